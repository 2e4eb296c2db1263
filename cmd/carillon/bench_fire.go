package main

import (
	"context"
	"fmt"
	"math"
	"sync"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/carillon-timers/carillon/client"
)

// fireFlags are the flags of the benches with a worker.
type fireFlags struct {
	benchFlags
	concurrency int
	ahead, wait time.Duration
	burst, pile int64
}

func (x *fireFlags) flags(f *pflag.FlagSet) {
	x.benchFlags.flags(f)
	f.IntVar(&x.concurrency, "concurrency", 256, "the most deliveries that the worker handles at once, 1 to 10,000; as many wait at each node")
	f.DurationVar(&x.ahead, "ahead", x.ahead, "timers are scheduled this `time` before they are due, 100ms to 10m")
	f.DurationVar(&x.wait, "wait", 15*time.Second, "how long after the last due time a timer is waited for, up to 10m")
}

func (x *fireFlags) check() error {
	switch err := x.benchFlags.check(); {
	case err != nil:
		return err
	case x.concurrency < 1 || x.concurrency > 10_000:
		return usagef("--concurrency %d is not valid: 1 to 10,000", x.concurrency)
	case x.ahead < 100*time.Millisecond || x.ahead > 10*time.Minute:
		return usagef("--ahead %v is not valid: 100ms to 10m", x.ahead)
	case x.wait <= 0 || x.wait > 10*time.Minute:
		return usagef("--wait %v is not valid: more than 0, up to 10m", x.wait)
	case x.rate == 0:
		return usagef("--rate 0 is not valid: the timers a second that fall due are needed")
	case x.timers() > benchMax:
		return usagef("--rate %v for %v is not valid: at most %s timers in all", x.rate, x.duration, thousands(benchMax))
	case x.burst < 0 || x.burst > benchMax:
		return usagef("--burst %d is not valid: 1 to %s", x.burst, thousands(benchMax))
	case x.pile < 0 || x.pile > benchMax:
		return usagef("--drain %d is not valid: 1 to %s", x.pile, thousands(benchMax))
	case x.burst > 0 && x.pile > 0:
		return usagef("--burst %d and --drain %d: only one can be given", x.burst, x.pile)
	}
	return nil
}

// timers is how many the rate and the duration make, at most --count.
func (x *fireFlags) timers() int64 {
	n := int64(math.Ceil(min(x.rate*x.duration.Seconds(), benchMax+1)))
	if x.count > 0 {
		n = min(n, x.count)
	}
	return max(n, 1)
}

func newBenchFire() *cobra.Command {
	x := fireFlags{benchFlags: benchFlags{callers: 64, batch: 0, duration: 10 * time.Second, rate: 1000}, ahead: 2 * time.Second}
	cmd := &cobra.Command{
		Use:   "fire",
		Short: "Measure how late timers are delivered",
		Long: `Measure how late timers are delivered to a worker that acks each of them. Lateness is the time from the due time to the
begin of the worker's handler, by the clock of this machine: it is right only if that agrees with the servers' clocks.

The timers fall due at an even rate; each is scheduled --ahead of its due time. Instead of that:

--burst N has N timers due at one instant; the greatest lateness is the time until all had been handed out.
--drain N lets N timers pile up overdue while there is no worker, and then starts one: "drain" is how fast they are
handled, and "drain with acks" counts until all acks are on the disks of a majority. Their lateness means nothing.`,
		Example: `  carillon bench fire                                # 1,000 a second for 10s
  carillon bench fire --rate 10000 --duration 30s
  carillon bench fire --burst 10000
  carillon bench fire --drain 200000 --concurrency 1000
  carillon bench fire -o json | jq '.measures[] | select(.name == "lateness") | .p99_ms'`,
		Args: arguments(),
		RunE: func(cmd *cobra.Command, _ []string) error {
			x.batchByRate()
			if err := x.check(); err != nil {
				return err
			}
			return x.run(cmd, func(ctx context.Context, r *bench) error {
				switch {
				case x.burst > 0:
					return r.runBurst(ctx, &x)
				case x.pile > 0:
					return r.runDrain(ctx, &x)
				}
				return r.runFire(ctx, &x)
			})
		},
	}
	f := cmd.Flags()
	x.flags(f)
	f.Int64Var(&x.burst, "burst", 0, "instead this `number` of timers, all due at one instant")
	f.Int64Var(&x.pile, "drain", 0, "instead this `number` of timers, overdue when the worker starts")
	f.Lookup("batch").Usage += "; 0 means what falls due in 10 ms"
	return cmd
}

// batchByRate sets the batch to what falls due in 10 ms if none is given.
func (x *fireFlags) batchByRate() {
	if x.batch == 0 {
		x.batch = int(min(max(x.rate/100, 1), 500))
	}
}

func newBenchFailover() *cobra.Command {
	x := fireFlags{benchFlags: benchFlags{callers: 64, batch: 0, duration: 30 * time.Second, rate: 1000}, ahead: 5 * time.Second}
	cmd := &cobra.Command{
		Use:   "failover",
		Short: "Measure how late timers get while you break the cluster",
		Long: `Let timers fire at an even rate while you, or a script, kill, stop or freeze nodes, and report the worst lateness and
the longest time without any delivery. Nothing may be lost: the exit code is 1 if a timer was.

The timers are scheduled --ahead of their due time, so that a failover delays their delivery and not their scheduling;
duplicates are allowed after a kill, since the answer to a delivery can be lost with the node.`,
		Example: `  carillon bench failover --duration 60s & sleep 20; kill -9 "$pid_of_a_node"; wait
  carillon bench failover --rate 200 --duration 5m -o json`,
		Args: arguments(),
		RunE: func(cmd *cobra.Command, _ []string) error {
			x.batchByRate()
			if err := x.check(); err != nil {
				return err
			}
			return x.run(cmd, func(ctx context.Context, r *bench) error { return r.runFire(ctx, &x) })
		},
	}
	x.flags(cmd.Flags())
	cmd.Flags().Lookup("batch").Usage += "; 0 means what falls due in 10 ms"
	return cmd
}

// worker works the run's queue until stop is called; stop waits until its acks are confirmed.
func (b *bench) worker(ctx context.Context, a *arrivals, concurrency int) (stop func() error) {
	ctx, cancel := context.WithCancel(context.WithoutCancel(ctx))
	var running sync.WaitGroup
	var err error
	running.Go(func() {
		err = b.client.Work(ctx, b.queue, a.handle, client.WorkOptions{Concurrency: concurrency})
		a.end()
	})
	return func() error {
		cancel()
		running.Wait()
		return err
	}
}

// runFire lets timers fall due at a rate.
func (b *bench) runFire(ctx context.Context, x *fireFlags) error {
	n := x.timers()
	b.report.Settings["concurrency"], b.report.Settings["ahead"] = x.concurrency, x.ahead.String()
	a := newArrivals(n, b.number, b.progress)
	stop := b.worker(ctx, a, x.concurrency)
	var done *loaded
	b.progress.during(ctx, "fire", n, 0, func() {
		base := time.Now().Add(x.ahead)
		l := load{callers: x.callers, batch: x.batch, count: n, limit: 2*x.duration + time.Minute, rate: x.rate}
		done = l.run(ctx, func(ctx context.Context, first, n int64) int64 {
			failed := b.schedule(ctx, first, n, func(i int64) time.Time { return base.Add(slot(i, x.rate)) })
			if failed == 0 {
				a.accept(first, n)
			}
			return failed
		})
		a.expect(done.begun - done.skipped - done.failed)
		a.wait(ctx, time.Until(base.Add(slot(n, x.rate)))+x.wait)
	})
	if err := stop(); err != nil {
		return err
	}
	b.finish(ctx, a, done, "lateness", time.Time{})
	return nil
}

// finish cleans up and reports.
func (b *bench) finish(ctx context.Context, a *arrivals, scheduled *loaded, name string, began time.Time) {
	m, f := a.sum(name, began)
	f.Unacked = b.pending(ctx)
	if ctx.Err() != nil || f.Unacked != 0 {
		if ctx.Err() != nil {
			f.Lost, f.Unacked = 0, -1 // what was not due yet is not lost
		}
		b.clean(ctx, scheduled.begun, a.has)
	}
	b.report.Measures = append(b.report.Measures, scheduled.measure("schedule"), m)
	b.report.Fires = f
}

// runBurst has all timers due at one instant.
func (b *bench) runBurst(ctx context.Context, x *fireFlags) error {
	a := newArrivals(x.burst, b.number, b.progress)
	stop := b.worker(ctx, a, x.concurrency)
	due := time.Now().Add(x.ahead + slot(x.burst, 20_000)).Truncate(time.Millisecond)
	b.report.Settings["burst"], b.report.Settings["concurrency"] = x.burst, x.concurrency
	done := b.fillCounted(ctx, a, x.burst, due)
	b.progress.during(ctx, "burst", x.burst, 0, func() {
		a.expect(done.begun - done.skipped - done.failed)
		a.wait(ctx, time.Until(due)+x.wait)
	})
	if err := stop(); err != nil {
		return err
	}
	b.finish(ctx, a, done, "burst", due)
	return nil
}

// fillCounted schedules n timers that are due at one instant.
func (b *bench) fillCounted(ctx context.Context, a *arrivals, n int64, due time.Time) (done *loaded) {
	b.progress.during(ctx, "fill", n, 0, func() {
		l := load{callers: cleanCallers, batch: fillBatch, count: n, limit: fillLimit}
		done = l.run(ctx, func(ctx context.Context, first, n int64) int64 {
			failed := b.schedule(ctx, first, n, func(int64) time.Time { return due })
			if failed == 0 {
				a.accept(first, n)
			}
			return failed
		})
	})
	return done
}

// runDrain lets timers pile up and then starts a worker.
func (b *bench) runDrain(ctx context.Context, x *fireFlags) error {
	a := newArrivals(x.pile, b.number, b.progress)
	b.report.Settings["drain"], b.report.Settings["concurrency"] = x.pile, x.concurrency
	done := b.fillCounted(ctx, a, x.pile, time.Now())
	began := time.Now()
	b.progress.during(ctx, "drain", x.pile, 0, func() {
		stop := b.worker(ctx, a, x.concurrency)
		a.expect(done.begun - done.skipped - done.failed)
		a.wait(ctx, x.wait+slot(x.pile, 5_000))
		if err := stop(); err != nil {
			b.failed(fmt.Errorf("work: %w", err))
		}
	})
	acked := time.Since(began)
	b.finish(ctx, a, done, "drain", began)
	b.report.Fires.Behind = 0 // all are overdue on purpose
	last := &b.report.Measures[len(b.report.Measures)-1]
	with := measure{Name: "drain with acks", Count: last.Count, Seconds: acked.Seconds(), Rate: float64(last.Count) / acked.Seconds()}
	b.report.Measures = append(b.report.Measures, with)
	return nil
}
