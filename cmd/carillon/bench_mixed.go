package main

import (
	"context"
	"errors"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/spf13/cobra"

	"github.com/carillon-timers/carillon/client"
)

// mixedOps are the operations of bench mixed, with their share of a hundred. The first is also what the others need.
var mixedOps = []struct {
	name  string
	share int
}{{"schedule", 40}, {"reschedule", 20}, {"cancel", 15}, {"get", 25}}

// mixedSpread times --ahead is the range over which the delays of the timers of bench mixed are spread.
const mixedSpread = 4

func newBenchMixed() *cobra.Command {
	x := fireFlags{benchFlags: benchFlags{callers: 64, batch: 1, duration: 20 * time.Second, rate: 5000}, ahead: time.Second}
	cmd := &cobra.Command{
		Use:   "mixed",
		Short: "Measure all operations at once",
		Long: `Measure all operations at once, as an application would use them, while a worker takes what falls due: of a hundred
operations 40 schedule, 25 get, 20 reschedule and 15 cancel a timer. Timers are due once to five times --ahead
after they are scheduled. --rate and --count are operations; --batch must be 1.

An operation on a timer that has fired meanwhile is no error. Lateness is of the timers that were neither moved nor
cancelled.`,
		Example: `  carillon bench mixed
  carillon bench mixed --rate 0 --callers 512 --duration 1m`,
		Args: arguments(),
		RunE: func(cmd *cobra.Command, _ []string) error {
			if x.batch != 1 {
				return usagef("--batch %d is not valid: mixed does one operation a call", x.batch)
			}
			free := x.rate == 0 // check demands a rate, for the benches that need one
			if free {
				x.rate = benchMax / x.duration.Seconds()
			}
			if err := x.check(); err != nil {
				return err
			}
			return x.run(cmd, func(ctx context.Context, r *bench) error { return r.runMixed(ctx, &x, free) })
		},
	}
	f := cmd.Flags()
	x.flags(f)
	f.Lookup("batch").Usage = "must be 1: an operation a call"
	f.Lookup("count").Usage = "at most this `number` of operations; 0 means no limit but --duration"
	f.Lookup("rate").Usage = "how many `operations` a second; 0 means as fast as the callers can"
	return cmd
}

// mix is what the callers of bench mixed share.
type mix struct {
	*bench
	arrivals *arrivals
	ahead    time.Duration
	calls    []mixedCalls // one for each of mixedOps

	mu      sync.Mutex
	touched map[int64]bool // timers that were moved or cancelled; guarded by mu
}

type mixedCalls struct {
	mu            sync.Mutex
	calls         histogram // guarded by mu, as the next two
	count, failed uint64
}

func (b *bench) runMixed(ctx context.Context, x *fireFlags, free bool) error {
	n := x.timers()
	m := &mix{
		bench: b, arrivals: newArrivals(n, b.number, &progress{}), ahead: x.ahead, calls: make([]mixedCalls, len(mixedOps)),
		touched: make(map[int64]bool),
	}
	stop := b.worker(ctx, m.arrivals, x.concurrency)
	var done *loaded
	b.progress.during(ctx, "mixed", n, x.duration, func() {
		l := load{callers: x.callers, batch: 1, count: n, limit: x.duration, rate: x.rate}
		if free {
			l.rate = 0
		}
		done = l.run(ctx, func(ctx context.Context, i, _ int64) int64 {
			defer b.progress.done.Add(1)
			return m.do(ctx, i)
		})
	})
	m.settle(ctx, x.wait)
	if err := stop(); err != nil {
		return err
	}
	m.sum(ctx, done)
	return nil
}

// do does the operation with the number i, which is also that of the timer that it may schedule.
func (m *mix) do(ctx context.Context, i int64) (failed int64) {
	ctx, cancel := context.WithTimeout(ctx, m.timeout)
	defer cancel()
	op, other := m.choose(i)
	start := time.Now()
	var err error
	switch mixedOps[op].name {
	case "schedule":
		due := time.Now().Add(m.delay())
		if _, err = m.client.Schedule(ctx, m.timer(i, due)); err == nil {
			m.arrivals.accept(i, 1)
		}
	case "reschedule":
		m.touch(other)
		_, err = m.client.Reschedule(ctx, m.id(other), client.Move{After: m.delay()})
	case "cancel":
		m.touch(other)
		_, err = m.client.Cancel(ctx, m.id(other))
	case "get":
		_, err = m.client.Get(ctx, m.id(other))
	}
	took := time.Since(start)
	if errors.Is(err, client.ErrNotFound) || errors.Is(err, client.ErrNotPending) {
		err = nil // it has fired or was cancelled
	}
	c := &m.calls[op]
	c.mu.Lock()
	defer c.mu.Unlock()
	c.calls.add(took)
	if err != nil {
		m.failed(err)
		c.failed++
		return 1
	}
	c.count++
	return 0
}

func (m *mix) delay() time.Duration { return m.ahead + rand.N(mixedSpread*m.ahead) }

// choose picks an operation by its share and, for all but schedule, a timer that was accepted lately; if it finds none,
// it is schedule.
func (m *mix) choose(i int64) (op int, other int64) {
	dice := rand.IntN(100)
	for op = range mixedOps {
		if dice -= mixedOps[op].share; dice < 0 {
			break
		}
	}
	if op == 0 {
		return 0, 0
	}
	for range 8 {
		other = i - 1 - rand.Int64N(max(i, 1))%1000
		if other >= 0 && m.arrivals.accepted[other].Load() != 0 {
			return op, other
		}
	}
	return 0, 0
}

func (m *mix) touch(i int64) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.touched[i] = true
}

// settle waits until nothing of the run is pending any more, for a bounded time.
func (m *mix) settle(ctx context.Context, wait time.Duration) {
	limit := (1+mixedSpread)*m.ahead + wait
	m.progress.during(ctx, "settle", 0, limit, func() {
		for end := time.Now().Add(limit); time.Now().Before(end); {
			if m.pending(ctx) == 0 || !waitUntil(ctx, time.Now().Add(100*time.Millisecond)) {
				return
			}
		}
	})
}

// sum reports: a row for each operation, and the fires. Timers that were moved or cancelled are judged by the cluster's
// being empty at the end, since when or whether they were due is not known here.
func (m *mix) sum(ctx context.Context, done *loaded) {
	for op := range m.calls {
		c := &m.calls[op]
		m.report.Measures = append(m.report.Measures, newMeasure(mixedOps[op].name, c.count, c.failed, done.elapsed, &c.calls))
	}
	for i := range m.touched {
		m.arrivals.accepted[i].Store(0)
		m.arrivals.handled[i].Store(0)
	}
	lateness, f := m.arrivals.sum("lateness", time.Time{})
	m.report.Measures = append(m.report.Measures, lateness)
	f.Scheduled += int64(len(m.touched))
	f.Unacked = m.pending(ctx)
	if f.Unacked != 0 {
		if ctx.Err() != nil {
			f.Lost, f.Unacked = 0, -1
		}
		m.clean(ctx, done.begun, nil)
	}
	m.report.Fires = f
}
