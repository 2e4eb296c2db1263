package executor

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/carillon-timers/carillon/raftfsm"
)

// rig is a loop that runs in a synctest bubble, with one leading shard whose consumer takes and acks at once.
type rig struct {
	loop  *Loop
	exec  *Exec
	table *fakeTable
	mu    sync.Mutex
	// got is what was handed out; guarded by mu.
	got []Delivery
}

func startRig(t *testing.T, deliver func(r *rig, src Source, q Queue)) *rig {
	r := &rig{loop: NewLoop(LoopOptions{Sleeper: NewTimerSleeper(), Logger: quiet}), table: newFakeTable()}
	if deliver == nil {
		deliver = func(r *rig, src Source, q Queue) { r.consume(src, q) }
	}
	r.exec = r.loop.Add(Options{
		Table: r.table, Deliverer: readyFunc(func(src Source, q Queue) { deliver(r, src, q) }),
		Settle: func(cmds []*raftfsm.Command, _ func([]raftfsm.Result)) bool {
			for _, c := range cmds {
				r.table.retry(c.GetRetry().GetId(), c.GetRetry().GetRevision(), time.Now().UnixMilli()+1000)
			}
			return true
		},
	})
	r.table.feed = r.exec.Feed()
	ctx, cancel := context.WithCancel(t.Context())
	var run sync.WaitGroup
	run.Go(func() {
		if err := r.loop.Run(ctx); err != nil {
			t.Error(err)
		}
	})
	t.Cleanup(func() { cancel(); run.Wait() })
	return r
}

func (r *rig) consume(src Source, q Queue) {
	for got := src.Take(q, 100); len(got) > 0; got = src.Take(q, 100) {
		r.mu.Lock()
		r.got = append(r.got, got...)
		r.mu.Unlock()
		for _, d := range got {
			r.table.remove(d.Record.ID, d.Token.Revision)
		}
	}
}

func (r *rig) in(id string, d time.Duration) {
	r.table.schedule(id, "q", time.Now().Add(d).UnixMilli(), 30_000, time.Now().UnixMilli())
}

// The tutorial's delays, each to the millisecond.
func TestTutorialOrder(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		r := startRig(t, nil)
		r.table.lead(1)
		r.exec.Lead(1)
		start := time.Now().UnixMilli()
		for _, s := range []int{9, 3, 5, 1, 25, 12} {
			r.in(fmt.Sprint(s), time.Duration(s)*time.Second)
		}
		time.Sleep(30 * time.Second)
		r.mu.Lock()
		defer r.mu.Unlock()
		var at []string
		for _, d := range r.got {
			at = append(at, fmt.Sprintf("%s at %d ms", d.Record.ID, d.HandedOut-start))
		}
		want := []string{"1 at 1000 ms", "3 at 3000 ms", "5 at 5000 ms", "9 at 9000 ms", "12 at 12000 ms", "25 at 25000 ms"}
		if !slices.Equal(at, want) {
			t.Fatalf("got %v, want %v", at, want)
		}
	})
}

// An unanswered delivery comes again a lease and a back-off later, and with a new token.
func TestLeaseLapses(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var handed []Delivery
		r := startRig(t, func(r *rig, src Source, q Queue) {
			r.mu.Lock()
			defer r.mu.Unlock()
			handed = append(handed, src.Take(q, 1)...)
		})
		r.table.lead(1)
		r.exec.Lead(1)
		start := time.Now().UnixMilli()
		r.in("a", 500*time.Millisecond)
		time.Sleep(40 * time.Second)
		r.mu.Lock()
		defer r.mu.Unlock()
		if len(handed) != 2 || handed[0].HandedOut-start != 500 || handed[1].HandedOut-start != 31_500 ||
			handed[1].Token.Attempt != 1 || handed[1].Token.Revision <= handed[0].Token.Revision {
			t.Fatalf("got %+v from %d", handed, start)
		}
	})
}

// A ready timer whose wait has pushed its place in the wheel minutes away still lapses at the end of its lease.
func TestLeaseAfterLongWait(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	b.lead(1)
	b.table.schedule("a", "q", b.millis(), 1000, b.millis())
	for range 100 {
		b.settle()
		b.pass(time.Minute)
	}
	b.settle()
	if got := b.exec.Take(q("q"), 1); len(got) != 1 {
		t.Fatalf("took %d", len(got))
	}
	b.settle()
	b.pass(999 * time.Millisecond)
	b.settle()
	if len(b.settled) != 0 {
		t.Fatal("settled early")
	}
	b.pass(time.Millisecond)
	b.settle()
	if len(b.settled) != 1 {
		t.Fatalf("settled %d leases, want 1", len(b.settled))
	}
	// The settling is lost: it comes again, not at once.
	b.settle()
	b.pass(999 * time.Millisecond)
	b.settle()
	if len(b.settled) != 1 {
		t.Fatal("settled again at once")
	}
	b.pass(time.Millisecond)
	b.settle()
	if len(b.settled) != 2 {
		t.Fatalf("settled %d times, want 2", len(b.settled))
	}
}

// Several subscribers take at once, on several workers, from a queue that is overdue in part, over two failovers; what a
// leader hands out for the first time is in the order of (due, acceptance).
func TestOrderWithManyTakers(t *testing.T) {
	t.Parallel()
	table := newFakeTable()
	table.keep = true
	loop := NewLoop(LoopOptions{Workers: 4, Logger: quiet})
	e := loop.Add(Options{Table: table, Deliverer: readyFunc(func(src Source, q Queue) { src.Take(q, 3) })})
	table.feed = e.Feed()
	ctx, cancel := context.WithCancel(t.Context())
	var all sync.WaitGroup
	all.Go(func() {
		if err := loop.Run(ctx); err != nil {
			t.Error(err)
		}
	})
	const timers = 6000
	now := time.Now().UnixMilli()
	r := seeded(t)
	for i := range timers {
		table.schedule(fmt.Sprint(i), fmt.Sprint(i%2), now+r.Int64N(600)-300, 60_000, now-400)
	}
	for range 4 {
		all.Go(func() {
			for ctx.Err() == nil {
				if len(e.Take(q("0"), 2))+len(e.Take(q("1"), 5)) == 0 {
					<-time.After(time.Millisecond)
				}
			}
		})
	}
	var from []int // where each epoch begins in the history
	for epoch := range uint64(3) {
		e.Follow()
		from = append(from, table.handedOut())
		table.lead(epoch + 1)
		e.Lead(epoch + 1)
		want := from[epoch] + timers
		if epoch < 2 {
			want = from[epoch] + timers/3
		}
		for table.handedOut() < want {
			<-time.After(time.Millisecond)
		}
	}
	cancel()
	all.Wait()
	for i, begin := range from {
		end := len(table.history)
		if i+1 < len(from) {
			end = from[i+1]
		}
		checkOrder(t, table.history[begin:end])
	}
	if got := len(table.history) - from[2]; got != timers {
		t.Fatalf("the last leader handed out %d timers, want each of %d once", got, timers)
	}
}

func checkOrder(t *testing.T, history []raftfsm.Record) {
	t.Helper()
	last := map[string]raftfsm.Record{}
	for _, r := range history {
		l, ok := last[r.Queue]
		if ok && (r.NextDue < l.NextDue || r.NextDue == l.NextDue && r.Accepted <= l.Accepted) {
			t.Fatalf("queue %s: (%d, %d) after (%d, %d)", r.Queue, r.NextDue, r.Accepted, l.NextDue, l.Accepted)
		}
		last[r.Queue] = r
	}
}

// A loop that is told twice to lead under one epoch forgets what is out, and the table does not hand it out again: the
// lease begins anew, and lapses.
func TestLeadTwice(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	b.lead(1)
	b.table.schedule("a", "q", b.millis(), 1000, b.millis())
	b.settle()
	b.exec.Take(q("q"), 1)
	b.exec.Lead(1)
	b.settle()
	if s := b.exec.Stats(); s.Out != 1 {
		t.Fatalf("%+v", s)
	}
	b.pass(time.Second)
	b.settle()
	if len(b.settled) != 1 || b.settled[0].GetRetry().GetId() != "a" {
		t.Fatalf("settled %v", b.settled)
	}
}

// A timer that a command in flight holds leaves the ready list, and comes back when the hold is lifted, or when another
// epoch has forgotten it.
func TestHeldComesBack(t *testing.T) {
	t.Parallel()
	for _, lift := range []string{"release", "lead"} {
		b := newBench(t)
		b.lead(1)
		b.table.schedule("a", "q", b.millis(), 60_000, b.millis())
		b.settle()
		b.table.hold("a")
		if got := b.exec.Take(q("q"), 1); len(got) != 0 {
			t.Fatalf("handed out %v", ids(got))
		}
		if s := b.exec.Stats(); s.Held != 1 || s.Ready != 0 || s.Overdue != 1 || s.Refused != 1 || b.exec.Waiting(q("q")) {
			t.Fatalf("held: %+v", s)
		}
		if lift == "release" {
			b.table.release("a")
		} else {
			b.lead(2)
		}
		b.settle()
		if !b.exec.Waiting(q("q")) {
			t.Fatalf("after %s the queue has nothing", lift)
		}
		if got := b.exec.Take(q("q"), 1); len(got) != 1 {
			t.Fatalf("after %s took %v", lift, ids(got))
		}
	}
}

// A shard that loses the leadership in the middle of a turn has nothing ready, and loses nothing.
func TestFollowInATurn(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	b.lead(1)
	b.table.schedule("a", "q", b.millis()+1, 60_000, b.millis())
	b.settle()
	b.onLease = b.exec.Follow
	b.pass(time.Second)
	b.settle()
	if s := b.exec.Stats(); s.Ready != 0 || s.Armed != 1 || b.told[q("q")] != 0 {
		t.Fatalf("%+v, told %d times", s, b.told[q("q")])
	}
	b.onLease = nil
	b.lead(2)
	b.settle()
	if got := b.exec.Take(q("q"), 1); len(got) != 1 {
		t.Fatalf("took %v", ids(got))
	}
}
