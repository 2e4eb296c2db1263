//go:build unix

package executor

import (
	"context"
	"fmt"
	"math/rand/v2"
	"runtime/debug"
	"slices"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/carillon-timers/carillon/raftfsm"
	"github.com/carillon-timers/carillon/wheel"
)

// leanTable is a table that costs next to nothing, so that a measurement is of the executor: timer i lies in slot i.
type leanTable struct {
	mu   sync.Mutex
	feed raftfsm.Feed
	due  []int64 // 0 for a free slot
}

const (
	leanLease = 30_000
	leanQueue = "q"
)

func (l *leanTable) Describe(slots []uint32, out []raftfsm.DueInfo) []raftfsm.DueInfo {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, slot := range slots {
		out = append(out, raftfsm.DueInfo{
			Ref: raftfsm.Ref{Slot: slot, Revision: uint64(slot) + 1}, OK: l.due[slot] != 0, Namespace: "default",
			Queue: leanQueue, NextDue: l.due[slot], Accepted: uint64(slot), Lease: leanLease,
		})
	}
	return out
}

func (l *leanTable) HandOut(_ uint64, _ int64, refs []raftfsm.Ref, out []raftfsm.Handed) []raftfsm.Handed {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, ref := range refs {
		out = append(out, raftfsm.Handed{Verdict: raftfsm.Give, Record: &raftfsm.Record{
			Namespace: "default", ID: "timer", Queue: leanQueue, Retry: raftfsm.RetryPolicy{Lease: leanLease},
			NextDue: l.due[ref.Slot], Revision: ref.Revision,
		}})
	}
	return out
}

func (l *leanTable) Record(uint32) *raftfsm.Record { return nil }

func (l *leanTable) Locate([]raftfsm.Token, []raftfsm.Ref) []raftfsm.Ref { return nil }

// complete frees the slots of deliveries that were acked, as Apply does.
func (l *leanTable) complete(ds []Delivery) {
	ops := make([]raftfsm.Op, 0, len(ds))
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, d := range ds {
		slot := uint32(d.Token.Revision - 1)
		l.due[slot] = 0
		ops = append(ops, raftfsm.Op{Slot: slot, Kind: raftfsm.Disarm})
	}
	l.feed.PushN(ops)
}

// load arms a timer for each of the given times.
func (l *leanTable) load(due []int64) {
	ops := make([]raftfsm.Op, 0, len(due))
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, at := range due {
		ops = append(ops, raftfsm.Op{When: wheel.Tick(at), Slot: uint32(len(l.due)), Kind: raftfsm.Arm})
		l.due = append(l.due, at)
	}
	l.feed.PushN(ops)
}

// spread is n times in the span after a time, in milliseconds.
func spread(n int, after, span int64) []int64 {
	due := make([]int64, n)
	for i := range due {
		due[i] = after + rand.Int64N(span)
	}
	return due
}

// lateness collects how late each hand-out was, in nanoseconds.
type lateness struct {
	late []int64
	n    atomic.Int64
	done chan struct{}
}

func (l *lateness) take(src Source, q Queue, table *leanTable) {
	const credit = 1000
	for l.takeSome(src, q, table, credit) == credit {
	}
}

func (l *lateness) takeSome(src Source, q Queue, table *leanTable, credit int) int {
	ds := src.Take(q, credit)
	now := time.Now().UnixNano()
	for _, d := range ds {
		i := l.n.Add(1) - 1
		l.late[i] = now - d.Record.NextDue*1e6
		if int(i) == len(l.late)-1 {
			close(l.done)
		}
	}
	if len(ds) > 0 {
		table.complete(ds)
	}
	return len(ds)
}

func (l *lateness) report(b *testing.B) {
	slices.Sort(l.late)
	if l.late[0] < 0 {
		b.Errorf("a timer was %d ns early", -l.late[0])
	}
	at := func(q float64) float64 { return float64(l.late[int(q*float64(len(l.late)-1))]) / 1e3 }
	b.ReportMetric(at(0.5), "p50-us")
	b.ReportMetric(at(0.99), "p99-us")
	b.ReportMetric(at(0.999), "p99.9-us")
	b.ReportMetric(at(1), "max-us")
	b.ReportMetric(0, "ns/op")
}

func cpuTime() time.Duration {
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		return 0
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

// field is a loop that runs with leading shards, to which a consumer with credit listens.
type field struct {
	execs  []*Exec
	tables []*leanTable
	stop   func()
}

// start returns when far timers, due in an hour to a day, are in the wheels.
func start(b *testing.B, shards, far int, l *lateness) *field {
	loop := NewLoop(LoopOptions{Logger: quiet})
	ctx, cancel := context.WithCancel(context.Background())
	var run sync.WaitGroup
	run.Go(func() {
		if err := loop.Run(ctx); err != nil {
			b.Error(err)
		}
	})
	f := &field{stop: func() { cancel(); run.Wait() }}
	for s := range shards {
		table := &leanTable{}
		e := loop.Add(Options{Table: table, Shard: uint32(s), Deliverer: readyFunc(func(src Source, q Queue) {
			l.take(src, q, table)
		})})
		table.feed = e.Feed()
		table.load(spread(far/shards, time.Now().UnixMilli()+3_600_000, 82_800_000))
		e.Lead(1)
		f.execs, f.tables = append(f.execs, e), append(f.tables, table)
	}
	for _, e := range f.execs {
		for e.Stats().Armed < far/shards {
			<-time.After(time.Millisecond)
		}
	}
	debug.FreeOSMemory() // else the runtime gives back slowly what the loading took, and that is measured
	return f
}

// BenchmarkLateness reports how late timers are handed out to a consumer that has credit and acks at once, over two
// seconds in real time.
func BenchmarkLateness(b *testing.B) {
	for _, pending := range []int{100_000, 1_000_000} {
		for _, shards := range []int{1, 16} {
			for _, rate := range []int{1_000, 10_000, 50_000} {
				b.Run(fmt.Sprintf("pending=%d/shards=%d/rate=%d", pending, shards, rate), func(b *testing.B) {
					for range b.N {
						measureLateness(b, shards, pending, rate)
					}
				})
			}
		}
	}
}

func measureLateness(b *testing.B, shards, pending, rate int) {
	const lead, length = 500, 2000
	n := rate * length / 1000
	l := &lateness{late: make([]int64, n/shards*shards), done: make(chan struct{})}
	f := start(b, shards, pending, l)
	defer f.stop()
	begin := time.Now().UnixMilli() + lead
	for _, table := range f.tables {
		table.load(spread(n/shards, begin, length))
	}
	for time.Now().UnixMilli() < begin-10 {
		<-time.After(time.Millisecond)
	}
	cpu := cpuTime()
	select {
	case <-l.done:
	case <-time.After(30 * time.Second):
		b.Fatalf("%d of %d timers fired", l.n.Load(), n)
	}
	b.ReportMetric(float64(cpuTime()-cpu)/float64(length)/1e4, "cpu-%")
	var wheel HistogramSnapshot
	for _, e := range f.execs {
		wheel.Merge(e.Stats().WheelLate)
	}
	b.ReportMetric(float64(wheel.Quantile(0.5)), "wheel-p50-us")
	l.report(b)
}

// BenchmarkIdle reports the CPU time that a million far timers cost, in percent of a core.
func BenchmarkIdle(b *testing.B) {
	for range b.N {
		f := start(b, 16, 1_000_000, &lateness{})
		<-time.After(time.Second)
		cpu := cpuTime()
		const length = 6 * time.Second
		<-time.After(length)
		b.ReportMetric(100*float64(cpuTime()-cpu)/float64(length), "cpu-%")
		b.ReportMetric(0, "ns/op")
		f.stop()
	}
}

// BenchmarkSleep reports how late the bare sleepers wake for the next millisecond, for comparison: it is what the machine
// allows.
func BenchmarkSleep(b *testing.B) {
	for _, c := range []struct {
		name string
		make func() (alarm, error)
	}{
		{"native", defaultSleeper().newAlarm}, {"sharp", defaultSleeper().newSharp}, {"timer", NewTimerSleeper().newAlarm},
	} {
		b.Run(c.name, func(b *testing.B) {
			a, err := c.make()
			if err != nil {
				b.Fatal(err)
			}
			defer a.close()
			l := &lateness{late: make([]int64, 1000)}
			for range b.N {
				for i := range l.late {
					now := time.Now()
					at := now.Truncate(time.Millisecond).Add(time.Millisecond)
					a.set(at.Sub(now))
					a.wait()
					l.late[i] = max(0, int64(time.Since(at)))
				}
			}
			l.report(b)
		})
	}
}

// BenchmarkPile reports the CPU time per timer for a new leader that brings out a pile of overdue timers, hands it out and
// has it acked: once from the wheel to the ready list, once from there to the consumer and out of the wheel again.
func BenchmarkPile(b *testing.B) {
	const pile = 1_000_000
	for range b.N {
		loop := NewLoop(LoopOptions{Logger: quiet})
		table := &leanTable{}
		e := loop.Add(Options{Table: table, Deliverer: readyFunc(func(Source, Queue) {})})
		table.feed = e.Feed()
		table.load(spread(pile, time.Now().UnixMilli()-10_000, 10_000))
		var w work
		turns := func(done func() bool) float64 {
			cpu := cpuTime()
			for !done() {
				loop.turn(&w)
				loop.slow.add(&w)
				loop.slow.do(quiet)
			}
			return float64(cpuTime()-cpu) / pile
		}
		arm := turns(func() bool { return e.Stats().Armed == pile })
		e.Lead(1)
		ready := turns(func() bool { return e.slots.count[stateReady] == pile && e.limit == never })
		begin := cpuTime()
		for got := e.Take(Queue{"default", leanQueue}, 1000); len(got) > 0; got = e.Take(Queue{"default", leanQueue}, 1000) {
			table.complete(got)
		}
		take := float64(cpuTime()-begin) / pile
		disarm := turns(func() bool { return e.hand.wheel.Len() == 0 })
		b.ReportMetric(arm, "arm-ns")
		b.ReportMetric(ready, "ready-ns")
		b.ReportMetric(take, "take-ns")
		b.ReportMetric(disarm, "disarm-ns")
		b.ReportMetric(0, "ns/op")
	}
}
