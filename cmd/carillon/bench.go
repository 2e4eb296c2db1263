package main

import (
	"context"
	"crypto/rand"
	"errors"
	"os"
	"runtime/debug"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/carillon-timers/carillon/client"
)

var _ = register(newBenchCommand)

const (
	// cleanBatch is how many timers one call cancels when a bench cleans up.
	cleanBatch = 1000
	// cleanCallers cancel at once.
	cleanCallers = 8
	// fillBatch is how many timers one call schedules when a bench fills the cluster; the client cuts it by bytes.
	fillBatch = 500
	// fillLimit bounds how long the timers of cancel, burst and drain may take to be scheduled.
	fillLimit = 5 * time.Minute
	// cleanLimit bounds the cleaning after an interrupt.
	cleanLimit = 30 * time.Second
	// benchMax bounds --count, --burst and --drain.
	benchMax = 10_000_000
	// benchPayloadMax is the largest payload that a node takes.
	benchPayloadMax = 64 << 10
	// benchIDDigits is how many digits the number of a timer has; with the prefix an ID has 24 bytes.
	benchIDDigits = 9
)

func newBenchCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "bench",
		Short: "Put a load on a cluster and measure it",
		Long: `Put a load on a cluster and measure it: rates, and latencies or lateness at the 50th, 99th and 99.9th percentile.

Each run has a random queue and IDs of its own, so that runs disturb each other's results by their load only. All loads
end by themselves, and what they have scheduled is cancelled at the end, also after Ctrl-C (a second one ends at once).
The load runs on this machine: if the servers run here too, they share its processors.

The exit code is 1 if an operation failed, or if a timer was delivered early or not at all.`,
		Example: `  carillon bench schedule --callers 64
  carillon bench schedule --callers 8 --batch 500 -o json | jq '.measures[0].rate'
  carillon bench fire --rate 10000 --duration 10s
  carillon bench failover --duration 60s    # and meanwhile kill a node`,
		Args: func(_ *cobra.Command, args []string) error {
			const names = "schedule, cancel, fire, failover, mixed"
			if len(args) > 0 {
				return usagef("%q is not one of %s", args[0], names)
			}
			return usagef("one of %s is needed", names)
		},
		RunE: func(*cobra.Command, []string) error { return nil },
	}
	cmd.AddCommand(newBenchSchedule(), newBenchCancel(), newBenchFire(), newBenchFailover(), newBenchMixed())
	return cmd
}

// benchFlags are the flags that all benches share.
type benchFlags struct {
	connection
	output         format
	callers, batch int
	size           int
	count          int64
	duration       time.Duration
	rate           float64
	keep           bool
}

func (b *benchFlags) flags(f *pflag.FlagSet) {
	f.SortFlags = false
	f.IntVar(&b.callers, "callers", b.callers, "how many callers at once, each waiting for its answer, 1 to 10,000")
	f.IntVar(&b.batch, "batch", b.batch, "how many timers a call has, 1 to 1,000")
	f.IntVar(&b.size, "payload", 100, "the payload's `bytes`, 0 to 65,536")
	f.Int64Var(&b.count, "count", b.count, "at most this `number` of timers; 0 means no limit but --duration")
	f.DurationVar(&b.duration, "duration", b.duration, "put the load on for at most this `time`, up to 1h")
	f.Float64Var(&b.rate, "rate", b.rate, "how many `timers` a second; 0 means as fast as the callers can")
	b.connection.flagsWithNamespace(f)
	b.output.flag(f, formatTable)
	f.Lookup("timeout").Usage = "give up a call or the connecting after this `time`, retries included"
}

// check returns the error of the first flag that is not valid.
func (b *benchFlags) check() error {
	switch {
	case b.callers < 1 || b.callers > 10_000:
		return usagef("--callers %d is not valid: 1 to 10,000", b.callers)
	case b.batch < 1 || b.batch > 1000:
		return usagef("--batch %d is not valid: 1 to 1,000", b.batch)
	case b.size < 0 || b.size > benchPayloadMax:
		return usagef("--payload %d is not valid: 0 to %s", b.size, thousands(benchPayloadMax))
	case b.count < 0 || b.count > benchMax:
		return usagef("--count %d is not valid: 0 to %s", b.count, thousands(benchMax))
	case b.duration <= 0 || b.duration > time.Hour:
		return usagef("--duration %v is not valid: more than 0, up to 1h", b.duration)
	case !(b.rate >= 0 && b.rate <= 10_000_000):
		return usagef("--rate %v is not valid: 0 to 10,000,000", b.rate)
	case b.timeout <= 0:
		return usagef("--timeout %v is not valid: must be positive", b.timeout)
	}
	return nil
}

func (b *benchFlags) settings() map[string]any {
	return map[string]any{
		"callers": b.callers, "batch": b.batch, "payload": b.size, "count": b.count, "duration": b.duration.String(), "rate": b.rate,
	}
}

// bench is one run.
type bench struct {
	*benchFlags
	client   *client.Client
	progress *progress
	report   *benchReport
	prefix   string // of the IDs
	queue    string
	payload  []byte
	timers   sync.Pool // of *[]client.Timer, of calls that have ended

	mu    sync.Mutex
	first error // guarded by mu
}

// benchGC is the GOGC of a bench: at Go's 100 its heap of a few MiB is looked through some hundred times a second, a quarter of its
// processor time, which servers on the same machine need.
const benchGC = 400

// run connects, runs the load, and prints the report; the load returns an error only if it could not measure.
func (b *benchFlags) run(cmd *cobra.Command, load func(context.Context, *bench) error) error {
	ctx := cmd.Context()
	if os.Getenv("GOGC") == "" {
		debug.SetGCPercent(benchGC)
	}
	dial, cancel := context.WithTimeoutCause(ctx, b.timeout, &timeoutError{b.timeout})
	defer cancel()
	c, err := b.dial(dial, cmd.ErrOrStderr())
	if err != nil {
		return err
	}
	defer c.Close()
	name := "bench-" + strings.ToLower(rand.Text()[:8])
	r := &bench{
		benchFlags: b, client: c, progress: newProgress(cmd.ErrOrStderr()), prefix: name + "/", queue: name, payload: benchPayload(b.size),
		report: &benchReport{Bench: cmd.Name(), Began: stamp(time.Now()), Prefix: name + "/", Settings: b.settings()},
	}
	if err := load(ctx, r); err != nil {
		return err
	}
	r.report.Interrupted = ctx.Err() != nil
	r.report.FirstError = r.firstError()
	if err := r.report.print(cmd.OutOrStdout(), b.output); err != nil {
		return err
	}
	return r.report.problem()
}

// benchPayload is text, so that it can be looked at.
func benchPayload(size int) []byte {
	const text = "carillon bench "
	return []byte(strings.Repeat(text, size/len(text)+1)[:size])
}

// id names the timer with the number i.
func (b *bench) id(i int64) string {
	var buffer, digits [64]byte
	number := strconv.AppendInt(digits[:0], i, 10)
	id := append(buffer[:0], b.prefix...)
	for range benchIDDigits - len(number) {
		id = append(id, '0')
	}
	return string(append(id, number...))
}

// number is that of an ID of this run.
func (b *bench) number(id string) (int64, bool) {
	text, ok := strings.CutPrefix(id, b.prefix)
	if !ok {
		return 0, false
	}
	i, err := strconv.ParseInt(text, 10, 64)
	return i, err == nil
}

// failed remembers the first error of an operation.
func (b *bench) failed(err error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.first == nil {
		b.first = err
	}
}

func (b *bench) firstError() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.first == nil {
		return ""
	}
	return oneLine(b.first.Error())
}

// schedule schedules the timers [first, first+n) in one call and returns how many failed; due gives each its due time.
func (b *bench) schedule(ctx context.Context, first, n int64, due func(i int64) time.Time) (failures int64) {
	ctx, cancel := context.WithTimeout(ctx, b.timeout)
	defer cancel()
	if n == 1 {
		if _, err := b.client.Schedule(ctx, b.timer(first, due(first))); err != nil {
			b.failed(err)
			return 1
		}
		return 0
	}
	kept, _ := b.timers.Get().(*[]client.Timer)
	if kept == nil || int64(cap(*kept)) < n {
		fresh := make([]client.Timer, n)
		kept = &fresh
	}
	defer b.timers.Put(kept)
	timers := (*kept)[:n]
	for k := range timers {
		i := first + int64(k)
		timers[k] = b.timer(i, due(i))
	}
	_, err := b.client.ScheduleBatch(ctx, timers)
	return b.failures(err)
}

// failures is how many items of a batch failed.
func (b *bench) failures(err error) int64 {
	if err == nil {
		return 0
	}
	b.failed(err)
	var batch *client.BatchError
	if errors.As(err, &batch) {
		return int64(batch.Failed)
	}
	return 1
}

func (b *bench) timer(i int64, due time.Time) client.Timer {
	return client.Timer{ID: b.id(i), Due: due, Queue: b.queue, Payload: b.payload}
}

// clean cancels the timers [0, n) that are still pending and skip does not name; it goes on when ctx has ended, for a
// bounded time. With n 0 it does nothing: to a load a count of 0 means no limit.
func (b *bench) clean(ctx context.Context, n int64, skip func(i int64) bool) {
	if n == 0 {
		return
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), cleanLimit)
	defer cancel()
	b.progress.during(ctx, "clean up", n, 0, func() {
		l := load{callers: cleanCallers, batch: cleanBatch, count: n, limit: cleanLimit}
		l.run(ctx, func(ctx context.Context, first, n int64) int64 {
			defer b.progress.done.Add(n)
			var items []client.Cancellation
			for i := first; i < first+n; i++ {
				if skip == nil || !skip(i) {
					items = append(items, client.Cancellation{ID: b.id(i)})
				}
			}
			if len(items) == 0 {
				return 0
			}
			ctx, cancel := context.WithTimeout(ctx, b.timeout)
			defer cancel()
			// Timers that are gone already answer with an error; what is left is counted afterwards.
			_, _ = b.client.CancelBatch(ctx, items)
			return 0
		})
	})
	b.report.Kept = b.left(ctx)
}

// left counts the timers of this run that are still pending, as far as the cluster says.
func (b *bench) left(ctx context.Context) (count int64) {
	for _, err := range b.client.List(ctx, client.ListQuery{Prefix: b.prefix, Limit: 1000}) {
		if err != nil {
			b.failed(err)
			break
		}
		count++
	}
	return count
}

// pending counts the timers of this run that are still pending, up to 1,000; -1 if the cluster does not say.
func (b *bench) pending(ctx context.Context) int64 {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), b.timeout)
	defer cancel()
	page, err := b.client.ListPage(ctx, client.ListQuery{Prefix: b.prefix, Limit: 1000})
	if err != nil {
		return -1
	}
	return int64(len(page.Timers))
}
