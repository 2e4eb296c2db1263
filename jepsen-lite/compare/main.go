// Command compare puts the same loads on Carillon and on systems that one would use instead, one after the other on one
// machine, and prints one Markdown table with ratios. Each system runs as three real processes on loopback, and answers
// when what it accepted is on the disks of a majority. It is a module of its own: the product depends on none of this.
package main

import (
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"time"
)

// options of a run.
type options struct {
	binary, json, only string
	duration, timeout  time.Duration
	rate               float64
	shards             int
}

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if len(os.Args) > 1 && os.Args[1] == serveNATS {
		exit(runNATS(ctx, os.Args[2:]))
		return
	}
	lighten()
	var o options
	flag.StringVar(&o.binary, "binary", "bin/carillon", "the `carillon` to run")
	flag.StringVar(&o.json, "json", "", "also write the results to this `file`, as JSON")
	flag.StringVar(&o.only, "only", "carillon,nats,postgres", "the `systems`, parted by commas")
	flag.DurationVar(&o.duration, "duration", 5*time.Second, "how long each load lasts; the one of the lateness twice that")
	flag.Float64Var(&o.rate, "rate", 1000, "fires a second for the lateness")
	flag.IntVar(&o.shards, "shards", 16, "shards of Carillon")
	flag.DurationVar(&o.timeout, "timeout", 10*time.Minute, "gives up after this")
	flag.Parse()
	ctx, cancel := context.WithTimeout(ctx, o.timeout)
	defer cancel()
	exit(o.run(ctx))
}

func exit(err error) {
	if err != nil {
		fmt.Fprintln(os.Stderr, "compare:", err)
		os.Exit(1)
	}
}

// system is what is compared. Its methods but Schedule are called by one goroutine.
type system interface {
	// Title names the system with its version and how it is set up.
	Title() string
	// Start starts the servers with their data under dir, and connects.
	Start(ctx context.Context, dir string) error
	// Schedule returns when all the timers are on the disks of a majority. Called by many goroutines at once.
	Schedule(ctx context.Context, timers []timer) error
	// Work hands out what is due until the context ends; each timer is acked when the handler has returned.
	Work(ctx context.Context, handle func(id string)) error
	// Stop ends the connections and the servers, also after a Start that failed.
	Stop()
}

// timer is what is scheduled.
type timer struct {
	id      string
	due     time.Time
	payload []byte
}

// newSystem makes a system by its name.
func (o options) newSystem(name string) (system, error) {
	switch name {
	case "carillon":
		return &carillon{binary: o.binary, shards: o.shards}, nil
	case "nats":
		return &jetStream{}, nil
	case "postgres":
		return &postgres{must: 1}, nil
	case "postgres-both":
		return &postgres{must: 2}, nil
	}
	return nil, fmt.Errorf("-only %q is none of carillon, nats, postgres, postgres-both", name)
}

func (o options) run(ctx context.Context) (err error) {
	var systems []system
	for name := range strings.SplitSeq(o.only, ",") {
		s, err := o.newSystem(name)
		if err != nil {
			return err
		}
		systems = append(systems, s)
	}
	dir, err := os.MkdirTemp("", "carillon-compare-")
	if err != nil {
		return err
	}
	defer func() {
		if err == nil {
			err = os.RemoveAll(dir)
		} else {
			fmt.Fprintln(os.Stderr, "the logs are in", dir)
		}
	}()
	if err := os.Chmod(dir, 0o755); err != nil { // some servers run as another user
		return err
	}
	var results []result
	for i, s := range systems {
		r, err := o.measure(ctx, s, filepath.Join(dir, fmt.Sprint(i)))
		if err != nil {
			return fmt.Errorf("%s: %w", s.Title(), err)
		}
		results = append(results, r)
	}
	machine := machine()
	fmt.Printf("\n%s", markdown(machine, results))
	if o.json == "" {
		return nil
	}
	if err := os.MkdirAll(filepath.Dir(o.json), 0o755); err != nil {
		return err
	}
	text, err := json.MarshalIndent(map[string]any{"machine": machine, "systems": results}, "", "  ")
	if err != nil {
		return err
	}
	return os.WriteFile(o.json, append(text, '\n'), 0o644)
}

// measure runs one system alone.
func (o options) measure(ctx context.Context, s system, dir string) (result, error) {
	fmt.Fprintln(os.Stderr, "starts:", s.Title())
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return result{}, err
	}
	defer s.Stop()
	starting, cancel := context.WithTimeout(ctx, 2*time.Minute)
	defer cancel()
	if err := ordinary(func() error { return s.Start(starting, dir) }); err != nil {
		return result{}, fmt.Errorf("start: %w", err)
	}
	r := result{Title: s.Title()}
	d := driver{system: s, began: time.Now()}
	for i, l := range loads {
		rate, err := d.rate(ctx, l, o.duration)
		if err != nil {
			return r, fmt.Errorf("%s: %w", l.name, err)
		}
		r.Rates = append(r.Rates, rate)
		fmt.Fprintf(os.Stderr, "  %s: %s/s\n", loads[i].name, number(rate))
	}
	f, err := d.fire(ctx, o.rate, 2*o.duration)
	if err != nil {
		return r, fmt.Errorf("lateness: %w", err)
	}
	r.Rate, r.Fires = o.rate, f
	fmt.Fprintf(os.Stderr, "  lateness: %+v\n", f)
	if k, ok := s.(killer); ok {
		f, err := d.failover(ctx, k, o.rate, 2*o.duration)
		if err != nil {
			return r, fmt.Errorf("failover: %w", err)
		}
		r.Failover = &f
		fmt.Fprintf(os.Stderr, "  kill -9: %+v\n", f)
	}
	return r, nil
}

// machine describes where the figures come from.
func machine() string {
	load, err := os.ReadFile("/proc/loadavg")
	average := "not known"
	if fields := strings.Fields(string(load)); err == nil && len(fields) > 0 {
		average = fields[0]
	}
	return fmt.Sprintf("%d CPUs, %s/%s, each system as three server processes beside the load on one machine, one system at a time, "+
		"load average at the end %s, %s", runtime.NumCPU(), runtime.GOOS, runtime.GOARCH, average, time.Now().UTC().Format(time.DateOnly))
}
