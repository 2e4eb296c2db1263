package executor

import (
	"context"
	"fmt"
	"math"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/carillon-timers/carillon/raftfsm"
)

// A shard with a pile of overdue timers takes it out in bounded turns, and a fresh timer of another shard is ready in the
// first turn after it fell due.
func TestPileDoesNotHoldUpOthers(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	const pile = 6_000
	for i := range pile {
		b.table.schedule(fmt.Sprint(i), "q", b.millis()-int64(i%1000), 60_000, b.millis())
	}
	other, table := b.add(8)
	b.settle()
	table.lead(1)
	other.Lead(1)
	b.settle()
	b.lead(1)
	for i := 0; b.exec.Stats().Ready < pile; i++ {
		if i > pile {
			t.Fatal("the pile is not taken out")
		}
		before := b.exec.Stats().Ready
		table.schedule(fmt.Sprint(i), "fresh", b.millis()+1, 60_000, b.millis())
		b.turn()
		b.pass(time.Millisecond)
		b.turn()
		if got := other.Take(q("fresh"), 10); len(got) != 1 {
			t.Fatalf("turn %d: %d fresh timers are ready while a pile of %d drains", i, len(got), pile)
		}
		if n := b.exec.Stats().Ready - before; n > 2*fireSlice {
			t.Fatalf("%d slots in two turns", n)
		}
	}
	if got := len(b.exec.Take(q("q"), pile)); got != pile {
		t.Fatalf("took %d of the pile of %d", got, pile)
	}
}

// A flood of ops is applied in bounded turns, too, and a follower's are applied although it fires nothing.
func TestFloodOfOpsIsBounded(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	for i := range 5 * opsSlice {
		b.table.schedule(fmt.Sprint(i), "q", b.millis()-1, 60_000, b.millis())
	}
	for i := range 5 {
		b.turn()
		if got := b.exec.Stats().Armed; got != (i+1)*opsSlice {
			t.Fatalf("%d slots armed after turn %d", got, i)
		}
	}
	b.settle()
	if s := b.exec.Stats(); s.Ready != 0 || s.OpsWaiting != 0 {
		t.Fatalf("a follower has %+v", s)
	}
}

func TestFarDeadlinesDoNotFire(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	b.lead(1)
	far := []int64{
		math.MaxInt64, math.MaxInt64 - 1, time.Date(9999, 12, 31, 23, 59, 59, 0, time.UTC).UnixMilli(),
		b.millis() + raftfsm.MaxAheadMillis, 1 << 40, 1 << 41, 1<<41 - 1,
	}
	for i, due := range far {
		b.table.schedule(fmt.Sprint(i), "q", due, raftfsm.MaxLeaseMillis, b.millis())
	}
	b.table.schedule("near", "q", b.millis()+1000, raftfsm.MaxLeaseMillis, b.millis())
	var got []string
	for range 20 {
		b.settle()
		got = append(got, ids(b.exec.Take(q("q"), 100))...)
		b.pass(time.Second)
	}
	// 1<<40 is in the year 2004: overdue.
	if want := []string{"4", "near"}; !slices.Equal(got, want) {
		t.Fatalf("fired %v, want %v", got, want)
	}
}

// A clock that jumps ahead fires all that has fallen due, in order. One that runs back changes nothing: service time
// stands still, nothing is early, and no lease ends.
func TestClockJumps(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	b.lead(1)
	for i := range 600 {
		b.table.schedule(fmt.Sprint(i), "q", b.millis()+int64(i)*10_000, 60_000, b.millis())
	}
	b.settle()
	b.pass(599 * 10 * time.Second)
	b.settle()
	got := b.exec.Take(q("q"), 1000)
	if len(got) != 600 {
		t.Fatalf("%d of 600 fired after the clock jumped ahead", len(got))
	}
	for i, d := range got {
		if d.Record.ID != fmt.Sprint(i) {
			t.Fatalf("timer %s in place %d", d.Record.ID, i)
		}
		b.table.remove(d.Record.ID, 0)
	}

	b.table.schedule("emitted", "q", b.millis(), 60_000, b.millis())
	b.settle()
	b.table.schedule("a", "q", b.millis()+5_000, 60_000, b.millis())
	b.pass(-time.Hour)
	b.settle()
	if n := b.loop.Stats().ClockSteps; n != 1 {
		t.Fatalf("%d clock steps counted, want 1", n)
	}
	if early := b.exec.Take(q("q"), 10); len(early) != 0 {
		t.Fatalf("handed out early by the wall clock: %v", ids(early))
	}
	told := b.told[q("q")]
	b.pass(time.Hour)
	b.settle()
	if b.told[q("q")] == told {
		t.Fatal("the deliverer was not told again after a hand-out was refused as early")
	}
	if got := ids(b.exec.Take(q("q"), 10)); !slices.Equal(got, []string{"emitted"}) {
		t.Fatalf("took %v", got)
	}
	b.pass(5 * time.Second)
	b.settle()
	if got := ids(b.exec.Take(q("q"), 10)); !slices.Equal(got, []string{"a"}) {
		t.Fatalf("took %v", got)
	}
}

// Without the lease nothing is handed out; as it comes back the deliverer is told without a new timer.
func TestLeaseOfTheLeader(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	b.lead(1)
	b.table.schedule("a", "q", b.millis(), 60_000, b.millis())
	b.settle()
	b.lease = false
	b.table.schedule("b", "q", b.millis()+1, 60_000, b.millis())
	b.pass(time.Second)
	b.settle()
	if got := b.exec.Take(q("q"), 10); got != nil {
		t.Fatalf("handed out without the lease: %v", ids(got))
	}
	b.told = map[Queue]int{}
	b.lease = true
	b.pass(leaseRetry)
	b.settle()
	if b.told[q("q")] == 0 {
		t.Fatal("the deliverer was not told")
	}
	if got := ids(b.exec.Take(q("q"), 10)); !slices.Equal(got, []string{"a", "b"}) {
		t.Fatalf("took %v", got)
	}
}

// A new leader's pile is handed out as it comes out of the wheel, but what shares its tick with what is still in the
// wheel waits for it.
func TestCatchUpIsProgressive(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	for i := range 3 * fireSlice {
		queue := "q"
		if i == fireSlice-1 {
			queue = "other"
		}
		b.table.schedule(fmt.Sprint(i), queue, b.millis()-1000+int64(i/100), 60_000, b.millis())
	}
	b.settle()
	b.lead(1)
	b.turn()
	if s := b.exec.Stats(); !s.CatchingUp || s.Ready != fireSlice {
		t.Fatalf("after a turn: %+v", s)
	}
	got := b.exec.Take(q("q"), 1000)
	if len(got) != fireSlice/100*100 {
		t.Fatalf("took %d while the wheel still holds timers of tick %d", len(got), fireSlice/100)
	}
	if early := b.exec.Take(q("other"), 1); len(early) != 0 || b.told[q("other")] != 1 {
		t.Fatalf("took %v, told %d times", ids(early), b.told[q("other")])
	}
	b.settle()
	if b.told[q("other")] != 2 {
		t.Fatal("the deliverer was not told of what waited for its tick to be complete")
	}
	got = append(got, b.exec.Take(q("q"), 1000)...)
	for i, d := range got {
		if i >= fireSlice-1 {
			i++
		}
		if d.Record.ID != fmt.Sprint(i) {
			t.Fatalf("timer %s in place %d", d.Record.ID, i)
		}
	}
	if len(got) != 3*fireSlice-1 || b.exec.Stats().CatchingUp {
		t.Fatalf("took %d in all", len(got))
	}
}

// A deliverer that panics loses nothing and is told again; one that blocks keeps one worker.
func TestBadDeliverers(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		block := make(chan struct{})
		var panics atomic.Int32
		r := startRig(t, func(r *rig, src Source, q Queue) {
			switch {
			case q.Name == "block":
				<-block
			case q.Name == "q" && panics.Add(1) <= 2:
				panic("a deliverer's mistake")
			}
			r.consume(src, q)
		})
		r.table.lead(1)
		r.exec.Lead(1)
		for i := range DefaultWorkers - 1 {
			r.table.schedule(fmt.Sprint("blocks", i), "block", time.Now().UnixMilli()+int64(i), 60_000, 0)
		}
		r.in("a", 100*time.Millisecond)
		time.Sleep(3 * time.Second)
		r.mu.Lock()
		if len(r.got) != 1 || r.got[0].Record.ID != "a" {
			t.Errorf("got %v", ids(r.got))
		}
		r.mu.Unlock()
		if n := r.loop.Stats().Panics; n != 2 {
			t.Errorf("%d panics counted, want 2", n)
		}
		close(block)
		synctest.Wait()
		r.mu.Lock()
		defer r.mu.Unlock()
		if len(r.got) != DefaultWorkers {
			t.Errorf("got %v in the end", ids(r.got))
		}
	})
}

// What is pushed for later than the loop's next look, or to a shard that follows, costs no turn; a follower's ops do not pile
// up, and all that was pushed meanwhile is handed out by a new leader.
func TestPushesThatDoNotHurry(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		r := startRig(t, nil)
		time.Sleep(time.Millisecond)
		turnsOf := func(pushes int, due time.Duration) uint64 {
			before := r.loop.Stats().Turns
			for i := range pushes {
				r.in(fmt.Sprint(due, i), due)
			}
			time.Sleep(time.Millisecond)
			return r.loop.Stats().Turns - before
		}
		if n := turnsOf(100, 0); n > 0 {
			t.Errorf("%d turns for what is pushed to a follower", n)
		}
		if n := turnsOf(feedMax, time.Hour); n == 0 || r.exec.waiting.Load() > feedMax {
			t.Errorf("%d turns, and %d ops of a follower wait", n, r.exec.waiting.Load())
		}
		r.table.lead(1)
		r.exec.Lead(1)
		time.Sleep(1500 * time.Millisecond)
		if n := r.exec.Stats().Fired; n != 100 {
			t.Errorf("the new leader has fired %d of 100", n)
		}
		if n := turnsOf(100, 2*time.Hour); n > 0 {
			t.Errorf("%d turns for what is due in two hours", n)
		}
		if n := turnsOf(1, 10*time.Millisecond); n == 0 {
			t.Error("no turn for what is due before the next look")
		}
		time.Sleep(10 * time.Millisecond)
		synctest.Wait()
		if n := r.exec.Stats().Fired; n != 101 {
			t.Errorf("%d fired", n)
		}
	})
}

// A loop at rest reads the clock once a second and does nothing else.
func TestIdle(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		r := startRig(t, nil)
		r.table.lead(1)
		r.exec.Lead(1)
		r.in("far", 1000*time.Hour)
		synctest.Wait()
		before := r.loop.Stats()
		time.Sleep(100 * time.Second)
		after := r.loop.Stats()
		if n := after.Sleeps - before.Sleeps; n < 90 || n > 110 {
			t.Errorf("%d sleeps in 100 s", n)
		}
		if n := after.Turns - before.Turns; n > 110 {
			t.Errorf("%d turns in 100 s", n)
		}
	})
}

func TestRemove(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	b.lead(1)
	b.table.schedule("a", "q", b.millis(), 60_000, b.millis())
	b.settle()
	b.loop.Remove(b.exec)
	b.table.schedule("b", "q", b.millis(), 60_000, b.millis())
	told := b.told[q("q")]
	b.settle()
	if got := b.exec.Take(q("q"), 10); got != nil || b.told[q("q")] != told {
		t.Fatalf("a removed shard hands out %v", ids(got))
	}
}

// The real sleeper: Run ends with its context, whether the workers sleep, wait or deliver, and leaves nothing behind.
func TestRunEnds(t *testing.T) {
	for range 20 {
		loop := NewLoop(LoopOptions{Logger: quiet})
		ctx, cancel := context.WithCancel(t.Context())
		var run sync.WaitGroup
		run.Go(func() {
			if err := loop.Run(ctx); err != nil {
				t.Error(err)
			}
		})
		cancel()
		run.Wait()
		loop.wake() // comes late, to a descriptor that is closed
	}
}

// What is late is told by the histograms, the gauge and the oldest due time.
func TestStats(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	b.lead(1)
	due := b.millis() + 100
	b.table.schedule("a", "q", due, 60_000, b.millis())
	b.table.schedule("past", "q", 5, 60_000, b.millis())
	b.settle()
	b.pass(103 * time.Millisecond) // the turn comes 3 ms late
	b.settle()
	b.pass(7 * time.Millisecond) // and the consumer 10
	if s := b.exec.Stats(); s.Overdue != 2 || s.Ready != 2 || s.OldestDue != 5 || s.Armed != 2 {
		t.Fatalf("before: %+v", s)
	}
	b.exec.Take(q("q"), 2)
	s := b.exec.Stats()
	if s.Overdue != 0 || s.Out != 2 || s.Fired != 2 || s.OldestDue != 0 {
		t.Fatalf("after: %+v", s)
	}
	if w := s.WheelLate; w.Count != 1 || w.Max != 3000 {
		t.Fatalf("wheel lateness %d, max %d us", w.Count, w.Max)
	}
	if h := s.HandOutLate; h.Count != 2 || h.Max != 110_000 || h.Sum != 120_000 {
		t.Fatalf("hand-out lateness %d, max %d us, sum %d", h.Count, h.Max, h.Sum)
	}
}

// A slot whose ops come here after it was filled again and handed out is not handed out twice.
func TestSlotUsedAgain(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	b.lead(1)
	b.table.schedule("old", "q", b.millis(), 100, b.millis())
	b.settle()
	b.exec.Take(q("q"), 1)
	b.settle()
	b.pass(100 * time.Millisecond)
	// The Disarm and the Arm stay behind in the feed while the turn looks at the table.
	feed := b.table.feed
	late := &lateFeed{}
	b.table.feed = late
	b.table.remove("old", 0)
	b.table.schedule("new", "q", b.millis()-1, 60_000, b.millis())
	b.settle()
	if got := ids(b.exec.Take(q("q"), 1)); !slices.Equal(got, []string{"new"}) {
		t.Fatalf("took %v", got)
	}
	feed.PushN(late.ops)
	b.settle()
	if got := b.exec.Take(q("q"), 1); len(got) != 0 {
		t.Fatalf("handed out again: %v", ids(got))
	}
	if s := b.exec.Stats(); s.Out != 1 || s.Armed != 1 {
		t.Fatalf("%+v", s)
	}
}

type lateFeed struct{ ops []raftfsm.Op }

func (f *lateFeed) PushN(ops []raftfsm.Op) { f.ops = append(f.ops, ops...) }

func TestQueuesAreApart(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	b.lead(1)
	for i := range 300 {
		b.table.schedule(fmt.Sprint(i), strings.Repeat("x", i%3+1), b.millis(), 60_000, b.millis())
	}
	b.settle()
	for i := range 3 {
		if got := b.exec.Take(q(strings.Repeat("x", i+1)), 1000); len(got) != 100 {
			t.Fatalf("queue %d: %d timers", i, len(got))
		}
	}
	if len(b.exec.lists) != 0 {
		t.Fatalf("%d empty lists are kept", len(b.exec.lists))
	}
}
