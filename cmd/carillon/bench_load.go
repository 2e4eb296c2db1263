package main

import (
	"context"
	"sync"
	"sync/atomic"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/carillon-timers/carillon/client"
)

// load is callers that each do one call after the other.
type load struct {
	callers, batch int
	count          int64         // timers at most; 0: no limit
	limit          time.Duration // no call begins later
	rate           float64       // timers a second; 0: as fast as the callers can
}

// loaded is what a load came to.
type loaded struct {
	begun   int64         // the timers [0, begun) may have had their calls
	skipped int64         // of them, because the context ended
	failed  int64         // of them
	elapsed time.Duration // from the first call's begin to the last one's end
	calls   histogram
}

func (l *loaded) measure(name string) measure {
	return newMeasure(name, uint64(l.begun-l.skipped-l.failed), uint64(l.failed), l.elapsed, &l.calls)
}

// run calls do for [first, first+n) until the count, the limit or the context ends it; do returns how many failed. Calls
// that have begun are not cut short, for their timers could come to be after the bench has cleaned up. With a rate, the
// call for the timer i begins no earlier than i/rate after the load's begin.
func (l *load) run(ctx context.Context, do func(ctx context.Context, first, n int64) int64) *loaded {
	var (
		next, failed, skipped atomic.Int64
		callers               sync.WaitGroup
		mu                    sync.Mutex
		total                 loaded // guarded by mu until callers.Wait
	)
	began := time.Now()
	for range l.callers {
		callers.Go(func() {
			var calls histogram
			for time.Since(began) < l.limit && ctx.Err() == nil {
				first, n := l.take(&next)
				if n == 0 {
					break
				}
				if l.rate > 0 && !waitUntil(ctx, began.Add(slot(first, l.rate))) {
					skipped.Add(n)
					break
				}
				start := time.Now()
				failed.Add(do(context.WithoutCancel(ctx), first, n))
				calls.add(time.Since(start))
			}
			mu.Lock()
			defer mu.Unlock()
			total.calls.merge(&calls)
		})
	}
	callers.Wait()
	total.elapsed = time.Since(began)
	total.begun, total.failed, total.skipped = next.Load(), failed.Load(), skipped.Load()
	return &total
}

// take reserves the next numbers; n is 0 when there are no more.
func (l *load) take(next *atomic.Int64) (first, n int64) {
	for {
		first, n = next.Load(), int64(l.batch)
		if l.count > 0 {
			n = min(n, l.count-first)
		}
		if n <= 0 {
			return first, 0
		}
		if next.CompareAndSwap(first, first+n) {
			return first, n
		}
	}
}

// slot is when the timer i of a load with this rate has its turn.
func slot(i int64, rate float64) time.Duration {
	return time.Duration(float64(i) / rate * float64(time.Second))
}

// waitUntil returns false if the context ends first.
func waitUntil(ctx context.Context, t time.Time) bool {
	d := time.Until(t)
	if d <= 0 {
		return ctx.Err() == nil
	}
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-ctx.Done():
		return false
	}
}

// benchIn is how far in the future the timers of schedule and cancel are due.
type benchIn struct{ in time.Duration }

func (d *benchIn) flag(f *pflag.FlagSet) {
	f.DurationVar(&d.in, "in", 24*time.Hour, "the timers are due after this `time`, spread over as much again; at least 1m")
}

func (d *benchIn) check() error {
	if d.in < time.Minute || d.in > 10*365*24*time.Hour {
		return usagef("--in %v is not valid: 1m to 87600h", d.in)
	}
	return nil
}

// due spreads the timers, by a step that meets no period of the load.
func (d *benchIn) due(from time.Time) func(i int64) time.Time {
	return func(i int64) time.Time { return from.Add(d.in + time.Duration(i*7919)*time.Millisecond%d.in) }
}

func newBenchSchedule() *cobra.Command {
	b := benchFlags{callers: 64, batch: 1, count: 200_000, duration: 10 * time.Second}
	var due benchIn
	cmd := &cobra.Command{
		Use:   "schedule",
		Short: "Measure how fast timers are accepted",
		Long: `Measure how fast timers are accepted: each call ends when its timers are on the disks of a majority. The latencies are
those of the calls. The timers are due far in the future and are cancelled at the end.`,
		Example: `  carillon bench schedule                          # 64 callers with one timer a call
  carillon bench schedule --callers 1
  carillon bench schedule --callers 8 --batch 500 --count 1000000 --duration 1m
  carillon bench schedule --count 1000000 --batch 500 --keep    # leaves a million timers`,
		Args: arguments(),
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := firstOf(b.check(), due.check()); err != nil {
				return err
			}
			return b.run(cmd, func(ctx context.Context, r *bench) error { return r.runSchedule(ctx, due.due(time.Now())) })
		},
	}
	b.flags(cmd.Flags())
	due.flag(cmd.Flags())
	cmd.Flags().BoolVar(&b.keep, "keep", false, "leave the timers in the cluster")
	return cmd
}

func firstOf(errs ...error) error {
	for _, err := range errs {
		if err != nil {
			return err
		}
	}
	return nil
}

func (b *bench) load() load {
	return load{callers: b.callers, batch: b.batch, count: b.count, limit: b.duration, rate: b.rate}
}

func (b *bench) runSchedule(ctx context.Context, due func(int64) time.Time) error {
	var done *loaded
	b.progress.during(ctx, "schedule", b.count, b.duration, func() {
		l := b.load()
		done = l.run(ctx, func(ctx context.Context, first, n int64) int64 {
			defer b.progress.done.Add(n)
			return b.schedule(ctx, first, n, due)
		})
	})
	b.report.Measures = append(b.report.Measures, done.measure("schedule"))
	if b.keep {
		b.report.Kept = done.begun - done.skipped - done.failed
		return nil
	}
	b.clean(ctx, done.begun, nil)
	return nil
}

func newBenchCancel() *cobra.Command {
	b := benchFlags{callers: 64, batch: 1, count: 50_000, duration: 10 * time.Second}
	var due benchIn
	cmd := &cobra.Command{
		Use:   "cancel",
		Short: "Measure how fast timers are cancelled",
		Long: `Measure how fast timers are cancelled. They are scheduled before, which is not measured; --count says how many. The
latencies are those of the calls.`,
		Example: `  carillon bench cancel
  carillon bench cancel --callers 8 --batch 500 --count 200000`,
		Args: arguments(),
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := firstOf(b.check(), due.check()); err != nil {
				return err
			}
			if b.count == 0 {
				return usagef("--count 0 is not valid: the timers are scheduled first, so at least 1 is needed")
			}
			return b.run(cmd, func(ctx context.Context, r *bench) error { return r.runCancel(ctx, due.due(time.Now())) })
		},
	}
	b.flags(cmd.Flags())
	due.flag(cmd.Flags())
	cmd.Flags().Lookup("count").Usage = "schedule this `number` of timers first, and then cancel them"
	return cmd
}

func (b *bench) runCancel(ctx context.Context, due func(int64) time.Time) error {
	begun := b.fill(ctx, b.count, due)
	var done *loaded
	if ctx.Err() == nil && begun > 0 {
		b.progress.during(ctx, "cancel", begun, b.duration, func() {
			l := b.load()
			l.count = begun
			done = l.run(ctx, func(ctx context.Context, first, n int64) int64 {
				defer b.progress.done.Add(n)
				return b.cancel(ctx, first, n)
			})
		})
		b.report.Measures = append(b.report.Measures, done.measure("cancel"))
	}
	if done == nil || done.begun < begun || done.failed > 0 {
		b.clean(ctx, begun, nil)
	}
	return nil
}

// fill schedules n timers as fast as it can, not measured, and returns how many have begun.
func (b *bench) fill(ctx context.Context, n int64, due func(int64) time.Time) int64 {
	var done *loaded
	b.progress.during(ctx, "fill", n, 0, func() {
		l := load{callers: cleanCallers, batch: fillBatch, count: n, limit: fillLimit}
		done = l.run(ctx, func(ctx context.Context, first, n int64) int64 {
			defer b.progress.done.Add(n)
			return b.schedule(ctx, first, n, due)
		})
	})
	return done.begun
}

// cancel cancels the timers [first, first+n) in one call and returns how many were not cancelled by it.
func (b *bench) cancel(ctx context.Context, first, n int64) (failures int64) {
	ctx, cancel := context.WithTimeout(ctx, b.timeout)
	defer cancel()
	if n == 1 {
		if _, err := b.client.Cancel(ctx, b.id(first)); err != nil {
			b.failed(err)
			return 1
		}
		return 0
	}
	items := make([]client.Cancellation, n)
	for k := range items {
		items[k].ID = b.id(first + int64(k))
	}
	_, err := b.client.CancelBatch(ctx, items)
	return b.failures(err)
}
