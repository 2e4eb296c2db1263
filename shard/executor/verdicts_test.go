package executor

import (
	"fmt"
	"slices"
	"testing"
	"time"

	logv1 "github.com/carillon-timers/carillon/proto/carillonlog/v1"
	"github.com/carillon-timers/carillon/raftfsm"
	"github.com/carillon-timers/carillon/wheel"
)

func once() *logv1.Extra { return &logv1.Extra{AtMostOnce: true} }

func (b *bench) schedule(id string, extra *logv1.Extra) {
	b.table.scheduleWith(id, "q", b.millis(), 60_000, b.millis(), extra)
}

func none(settleCall) bool { return false }

// An at-most-once timer is completed first, and handed out once, at the next Take: also if the leadership has gone meanwhile, since
// nobody else has it.
func TestAheadIsHandedOutOnce(t *testing.T) {
	t.Parallel()
	for _, flip := range []string{"", "before", "after"} {
		b := newBench(t)
		b.lead(1)
		b.schedule("a", once())
		b.settle()
		if got := b.exec.Take(q("q"), 1); len(got) != 0 || len(b.calls) != 1 {
			t.Fatalf("took %v, proposed %v", ids(got), b.settled)
		}
		c := b.settled[0].GetComplete()
		if !c.GetAhead() || c.Id != "a" || c.Revision != 1 || c.TokenEpoch != 1 || c.HandedMs != b.millis() {
			t.Fatalf("proposed %v", b.settled)
		}
		if flip == "before" {
			b.exec.Follow()
		}
		told := b.told[q("q")]
		b.pass(time.Millisecond)
		b.apply(none)
		b.settle()
		if b.told[q("q")] == told || !b.exec.Waiting(q("q")) || b.exec.Stats().Owed != 1 {
			t.Fatalf("%q: told %d times, %+v", flip, b.told[q("q")]-told, b.exec.Stats())
		}
		if flip == "after" {
			b.lead(2)
			b.settle()
		}
		got := b.exec.Take(q("q"), 10)
		if len(got) != 1 || got[0].Token.Epoch != 1 || got[0].LeaseEnd != 0 || got[0].HandedOut != b.millis() || got[0].Token.HandedOut != b.millis() {
			t.Fatalf("%q: took %+v", flip, got)
		}
		b.pass(time.Hour)
		b.settle()
		if again := b.exec.Take(q("q"), 10); len(again) != 0 || len(b.calls) != 0 || b.exec.Stats().Owed != 0 || len(b.exec.ahead) != 0 {
			t.Fatalf("%q: took %v again, proposed %v", flip, ids(again), b.settled)
		}
	}
}

// Completions on their way take room, as what is owed does: no more are completed than were asked for.
func TestAheadTakesRoom(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	b.lead(1)
	for i := range 5 {
		b.schedule(fmt.Sprint("once", i), once())
	}
	b.schedule("plain", nil)
	b.settle()
	for range 3 {
		if got := b.exec.Take(q("q"), 3); len(got) != 0 || len(b.settled) != 3 {
			t.Fatalf("took %v, proposed %v", ids(got), b.settled)
		}
	}
	b.apply(none)
	b.settle()
	if got := ids(b.exec.Take(q("q"), 4)); !slices.Equal(got, []string{"once0", "once1", "once2"}) || len(b.settled) != 1 {
		t.Fatalf("took %v, proposed %v", got, b.settled)
	}
	if got := ids(b.exec.Take(q("q"), 3)); !slices.Equal(got, []string{"plain"}) {
		t.Fatalf("took %v, proposed %v", got, b.settled)
	}
	b.apply(none)
	b.settle()
	if got := ids(b.exec.Take(q("q"), 3)); !slices.Equal(got, []string{"once3", "once4"}) {
		t.Fatalf("took %v", got)
	}
}

// A command that is lost, or that could not be proposed, is proposed again after a second, and not before.
func TestLostCommandsComeAgain(t *testing.T) {
	t.Parallel()
	missed := func(b *bench) *logv1.Extra { return &logv1.Extra{Repeat: &logv1.Repeat{TickMs: b.millis() - 5000}} }
	for name, extra := range map[string]func(b *bench) *logv1.Extra{
		"ahead": func(*bench) *logv1.Extra { return once() }, "missed": missed,
		"expired": func(b *bench) *logv1.Extra { return &logv1.Extra{ExpiryMs: b.millis()} },
		"spawns":  func(*bench) *logv1.Extra { return &logv1.Extra{Repeat: &logv1.Repeat{Overlap: overlapAllow}} },
	} {
		for _, full := range []bool{false, true} {
			b := newBench(t)
			b.lead(1)
			b.full = full
			b.schedule("a", extra(b))
			b.settle()
			b.exec.Take(q("q"), 1)
			b.full = false
			b.apply(func(settleCall) bool { return true })
			b.pass((askAgain - 1) * time.Millisecond)
			b.settle()
			if got := b.exec.Take(q("q"), 1); len(got) != 0 || len(b.settled) != 0 {
				t.Fatalf("%s: too early: took %v, proposed %v", name, ids(got), b.settled)
			}
			b.pass(time.Millisecond)
			b.settle()
			if got := b.exec.Take(q("q"), 1); len(got) != 0 || len(b.settled) != 1 {
				t.Fatalf("%s, full %t: took %v, proposed %v", name, full, ids(got), b.settled)
			}
			if err := b.check(); err != nil {
				t.Fatal(name, err)
			}
		}
	}
}

// A timer that expires while nobody takes is looked at just then, wherever it waits.
func TestExpiresWithoutAConsumer(t *testing.T) {
	t.Parallel()
	for name, due := range map[string]time.Duration{"ready": 0, "not due yet": time.Hour} {
		b := newBench(t)
		b.lead(1)
		b.table.scheduleWith("a", "q", b.millis()+due.Milliseconds(), 60_000, b.millis(), &logv1.Extra{ExpiryMs: b.millis() + 700})
		b.settle()
		if due > 0 { // the table arms it for when it expires
			b.table.push(raftfsm.Op{When: wheel.Tick(b.millis() + 700), Slot: 0, Kind: raftfsm.Arm})
			b.settle()
		}
		b.pass(699 * time.Millisecond)
		b.settle()
		if len(b.settled) != 0 {
			t.Fatalf("%s: too early: %v", name, b.settled)
		}
		b.pass(time.Millisecond)
		b.settle()
		if len(b.settled) != 1 || b.settled[0].GetExpire().GetId() != "a" || b.exec.Stats().Expired != 1 {
			t.Fatalf("%s: proposed %v", name, b.settled)
		}
		if got := b.exec.Take(q("q"), 1); len(got) != 0 {
			t.Fatalf("%s: took %v", name, ids(got))
		}
		b.apply(none)
		b.settle()
		if b.table.pending() != 0 || b.exec.Stats().Held != 0 || len(b.exec.lists) != 0 {
			t.Fatalf("%s: %+v", name, b.exec.Stats())
		}
	}
}

// One Take over a pile of missed repeats asks for a bounded number of commands; the rest follows by itself.
func TestPileOfMissed(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	b.lead(1)
	const pile = 2000
	for i := range pile {
		b.schedule(fmt.Sprint(i), &logv1.Extra{Repeat: &logv1.Repeat{TickMs: b.millis() - 10_000}})
	}
	b.settle()
	taken := 0
	for range 100 {
		if b.told[q("q")] == 0 {
			break
		}
		b.told = map[Queue]int{}
		got := b.exec.Take(q("q"), 1)
		if len(b.settled) > 2*handOutSlice {
			t.Fatalf("one Take asked for %d commands", len(b.settled))
		}
		taken += len(got)
		for _, d := range got {
			b.table.remove(d.Record.ID, d.Token.Revision)
		}
		b.apply(none)
		b.settle()
		if s := b.exec.Stats(); s.Held > 2*handOutSlice {
			t.Fatalf("%+v", s)
		}
	}
	if s := b.exec.Stats(); s.Missed < pile-1 || taken == 0 {
		t.Fatalf("%d were advanced, %d taken: %+v", s.Missed, taken, s)
	}
}

// A pile that expires at once flows in bounded parts, and all of it is gone in the end.
func TestPileOfExpired(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	b.lead(1)
	const pile = 3 * askingMax
	for i := range pile {
		b.schedule(fmt.Sprint(i), &logv1.Extra{ExpiryMs: b.millis() + 100})
	}
	b.settle()
	b.pass(100 * time.Millisecond)
	for second := range 5 {
		b.settle()
		if len(b.settled) > askingMax {
			t.Fatalf("%d commands are on their way", len(b.settled))
		}
		if got := b.exec.Take(q("q"), 1); len(got) > 0 {
			t.Fatalf("took %v", ids(got))
		}
		b.apply(none)
		b.settle()
		if err := b.check(); err != nil {
			t.Fatalf("second %d: %v", second, err)
		}
		b.pass(time.Second)
	}
	if left := b.table.pending(); left != 0 {
		t.Fatalf("%d of %d are left: %+v", left, pile, b.exec.Stats())
	}
}

// A repeat whose due times become timers advances without a consumer, and its timers wait for one.
func TestSpawnsWithoutAConsumer(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	b.lead(1)
	b.schedule("a", &logv1.Extra{Repeat: &logv1.Repeat{Overlap: overlapAllow}})
	for range 5 {
		b.settle()
		b.apply(none)
		b.settle()
		b.pass(time.Second)
	}
	if got := b.exec.Take(q("q"), 10); len(got) != 5 {
		t.Fatalf("took %v", ids(got))
	}
}

func TestExtend(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	b.lead(1)
	for _, id := range []string{"longer", "shorter", "own", "lapses"} {
		b.table.schedule(id, "q", b.millis(), 1000, b.millis())
	}
	b.settle()
	var tokens []raftfsm.Token
	for _, d := range b.exec.Take(q("q"), 10) {
		tokens = append(tokens, d.Token)
	}
	handed := b.millis()
	b.pass(500 * time.Millisecond)
	b.settle()
	stale := tokens[0]
	stale.Attempt++
	ends := b.exec.Extend(append(tokens[:3:3], stale), []int64{3000, 100, 0, 1000})
	if now := b.millis(); !slices.Equal(ends, []int64{now + 3000, now + 100, now + 1000, 0}) {
		t.Fatalf("ends %v at %d", ends, now)
	}
	for _, step := range []struct {
		pass   time.Duration
		lapsed string
	}{{100, "shorter"}, {400, "lapses"}, {500, "own"}, {1999, ""}, {1, "longer"}} {
		b.pass(step.pass * time.Millisecond)
		b.settle()
		got := ""
		for _, c := range b.settled {
			if r := c.GetRetry(); !r.Lapsed || r.HandedMs != handed || r.Error == "" {
				t.Errorf("proposed %v", r)
			}
			got += c.GetRetry().Id
		}
		if got != step.lapsed {
			t.Errorf("after %d ms more %q lapsed, want %q", step.pass, got, step.lapsed)
		}
		if step.lapsed == "lapses" {
			if end := b.exec.Extend(tokens[3:], []int64{0}); end[0] != 0 {
				t.Error("a lease was extended after its Retry was proposed")
			}
		}
		b.apply(none)
	}
	b.exec.Follow()
	if end := b.exec.Extend(tokens[:1], []int64{0}); end[0] != 0 {
		t.Error("a follower extended a lease")
	}
}

// A timer that is paused leaves the ready list and the wheel, and its lease is not watched; resumed it is ready again.
func TestParked(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	b.lead(1)
	b.schedule("ready", nil)
	b.schedule("out", nil)
	b.settle()
	out := b.exec.Take(q("q"), 1)
	b.table.park("ready", true)
	b.table.park("out", true)
	b.settle()
	b.pass(time.Hour)
	b.settle()
	if got := b.exec.Take(q("q"), 10); len(out) != 1 || len(got) != 0 || len(b.settled) != 0 {
		t.Fatalf("took %v, proposed %v", ids(got), b.settled)
	}
	if s := b.exec.Stats(); s.Armed != 0 || s.Ready+s.Out+s.Held != 0 {
		t.Fatalf("%+v", s)
	}
	b.lead(2)
	b.settle()
	b.table.park("ready", false)
	b.table.park("out", false)
	b.settle()
	if got := b.exec.Take(q("q"), 10); len(got) != 2 {
		t.Fatalf("took %v", ids(got))
	}
}
