// Command benchcluster starts three real server processes on loopback, puts the loads of the targets T5 to T13 on them
// with `carillon bench`, kills and stops nodes, and prints one Markdown table with the targets beside what was measured.
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

	"github.com/carillon-timers/carillon/jepsen-lite/local"
)

// options of a run.
type options struct {
	binary, json string
	only         string
	duration     time.Duration
	pending      int
	drain        int
	shards       int
	timeout      time.Duration
}

func main() {
	var o options
	flag.StringVar(&o.binary, "binary", "bin/carillon", "the `carillon` to run")
	flag.StringVar(&o.json, "json", "", "also write the results to this `file`, as JSON")
	flag.StringVar(&o.only, "only", "", "only these `steps`, parted by commas: schedule, cancel, fire, drain, burst, kill, freeze, stop, memory, growth, snapshot, pressure")
	flag.DurationVar(&o.duration, "duration", 5*time.Second, "how long each load lasts")
	flag.IntVar(&o.pending, "pending", 1_000_000, "how many timers are pending for the memory, the restart, the growth of costs and the snapshots (these: 300,000 at most)")
	flag.IntVar(&o.drain, "drain", 200_000, "how many timers are overdue for the sustained fires")
	flag.IntVar(&o.shards, "shards", 16, "shards of the cluster")
	flag.DurationVar(&o.timeout, "timeout", 10*time.Minute, "gives up after this")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	ctx, cancel := context.WithTimeout(ctx, o.timeout)
	defer cancel()
	if err := o.run(ctx); err != nil {
		fmt.Fprintln(os.Stderr, "benchcluster:", err)
		os.Exit(1)
	}
}

// session is a run under way: steps run one after the other.
type session struct {
	options
	dir     string
	cluster *local.Cluster
	began   time.Time
	rows    []row
	notes   []string
}

// steps in their order; the last ones start a cluster of their own.
var steps = []struct {
	name string
	own  bool // the step has a fresh cluster
	run  func(*session, context.Context) error
}{
	{"schedule", false, (*session).schedule},
	{"cancel", false, (*session).cancel},
	{"fire", false, (*session).fire},
	{"drain", false, (*session).drained},
	{"burst", false, (*session).burst},
	{"kill", false, (*session).kill},
	{"freeze", false, (*session).freeze},
	{"stop", false, (*session).planned},
	{"memory", true, (*session).memory},
	{"growth", true, (*session).growth},
	{"snapshot", true, (*session).snapshot},
	{"pressure", false, (*session).pressure}, // it starts one of its own
}

// plan returns which steps run.
func (o options) plan() (map[string]bool, error) {
	chosen := map[string]bool{}
	for _, s := range steps {
		chosen[s.name] = o.only == ""
	}
	if o.only == "" {
		return chosen, nil
	}
	for name := range strings.SplitSeq(o.only, ",") {
		if _, ok := chosen[name]; !ok {
			return nil, fmt.Errorf("-only %q is not a step", name)
		}
		chosen[name] = true
	}
	return chosen, nil
}

func (o options) run(ctx context.Context) (err error) {
	chosen, err := o.plan()
	if err != nil {
		return err
	}
	dir, err := os.MkdirTemp("", "carillon-benchcluster-")
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
	s := &session{options: o, dir: dir, began: time.Now()}
	defer func() { s.stopCluster() }()
	for _, step := range steps {
		if !chosen[step.name] {
			continue
		}
		if err := s.fresh(ctx, step.own); err != nil {
			return fmt.Errorf("%s: %w", step.name, err)
		}
		s.log("%s", step.name)
		if err := step.run(s, ctx); err != nil {
			return fmt.Errorf("%s: %w", step.name, err)
		}
	}
	s.stopCluster()
	fmt.Println()
	fmt.Print(markdown(s.machine(), s.rows, s.notes))
	return s.save()
}

// fresh starts a cluster if there is none, or anew if the step wants its own.
func (s *session) fresh(ctx context.Context, own bool) error {
	if s.cluster != nil && !own {
		return nil
	}
	s.stopCluster()
	dir, err := os.MkdirTemp(s.dir, "cluster-")
	if err != nil {
		return err
	}
	if s.cluster, err = local.NewCluster(s.binary, dir, 3, s.shards, "--pprof", "--log-level", "warn"); err != nil {
		return err
	}
	if err := s.cluster.Start(); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	if err := s.cluster.WaitReady(ctx); err != nil {
		return err
	}
	s.log("three nodes are ready")
	return nil
}

func (s *session) stopCluster() {
	if s.cluster != nil {
		s.cluster.Stop()
		s.cluster = nil
	}
}

// log tells on standard error how far the run is; the table alone goes to standard output.
func (s *session) log(format string, args ...any) {
	fmt.Fprintf(os.Stderr, "%6.1fs  %s\n", time.Since(s.began).Seconds(), fmt.Sprintf(format, args...))
}

// machine describes where the figures come from, with the load that others put on it.
func (s *session) machine() string {
	load, err := os.ReadFile("/proc/loadavg")
	fields := strings.Fields(string(load))
	average := "not known"
	if err == nil && len(fields) > 2 {
		average = fields[0]
	}
	return fmt.Sprintf("%d CPUs, %s %s/%s, three server processes and the load on one machine, load average at the end %s, %s",
		runtime.NumCPU(), runtime.Version(), runtime.GOOS, runtime.GOARCH, average, time.Now().UTC().Format(time.DateOnly))
}

func (s *session) save() error {
	if s.json == "" {
		return nil
	}
	if err := os.MkdirAll(filepath.Dir(s.json), 0o755); err != nil {
		return err
	}
	text, err := json.MarshalIndent(map[string]any{"machine": s.machine(), "rows": s.rows, "notes": s.notes}, "", "  ")
	if err != nil {
		return err
	}
	return os.WriteFile(s.json, append(text, '\n'), 0o644)
}
