package raftfsm

import (
	"fmt"
	"slices"
	"testing"

	logv1 "github.com/carillon-timers/carillon/proto/carillonlog/v1"
	"github.com/carillon-timers/carillon/wheel"
)

// leading returns a replica that leads epoch 1.
func leading(t *testing.T) *replica {
	r := newReplica(t, Options{})
	r.apply(begin(1, 1000))
	r.f.Lead(1)
	return r
}

// A schedule and a cancel of the same timer are on their way in two entries. If the timer could be handed out between
// them, the cancel would answer that no delivery started.
func TestCancelBehindScheduleInFlight(t *testing.T) {
	t.Parallel()
	r := leading(t)
	first, _ := r.stamped(1, 1000, schedule("a", 900))
	second, _ := r.stamped(1, 1000, cancel("a"))
	r.apply(first)
	if !r.describe("a").Held || r.handOut(1, "a") {
		t.Fatal("a timer was handed out before the cancel that is on its way")
	}
	if got := r.apply(second).Results[0]; got.Answer != AnswerCancelled {
		t.Fatalf("cancel answers %d, want %d", got.Answer, AnswerCancelled)
	}
}

// Two commands hold one timer. The end of one must not lift the hold of the other, also when the first takes the timer away and
// it is scheduled anew before the second comes.
func TestTwoHolds(t *testing.T) {
	t.Parallel()
	r := leading(t)
	r.apply(&logv1.Entry{Epoch: 1, ClockMs: 1000, Commands: []*Command{schedule("a", 900)}})
	first, _ := r.stamped(1, 1000, cancel("a"))
	second := cancel("a")
	second.GetCancel().ExpectedRevision = 99
	later, _ := r.stamped(1, 1000, second)
	r.f.ReleaseHolds(first.Commands)
	r.f.ReleaseHolds(first.Commands)
	if r.handOut(1, "a") {
		t.Fatal("the second hold was lifted by the first command")
	}
	again, _ := r.stamped(1, 1000, cancel("a"))
	r.apply(again)
	r.apply(&logv1.Entry{Epoch: 1, ClockMs: 1000, Commands: []*Command{schedule("a", 950)}})
	if r.handOut(1, "a") {
		t.Fatal("a timer that was scheduled anew is not held by the command that is still on its way")
	}
	r.feed.take()
	r.apply(later)
	if ops, want := r.feed.take(), []Op{{Kind: Arm, Slot: r.slot("a"), When: 950}}; !slices.Equal(ops, want) {
		t.Fatalf("a refused cancel pushed %v, want %v", ops, want)
	}
	if !r.handOut(1, "a") {
		t.Fatal("the timer stays held after the last command was refused")
	}
}

// Commands whose outcome was taken for lost are applied all the same. Their holds are gone already: another's must stay.
func TestReleasedAndThenApplied(t *testing.T) {
	t.Parallel()
	r := leading(t)
	r.apply(&logv1.Entry{Epoch: 1, ClockMs: 1000, Commands: []*Command{schedule("a", 900), schedule("b", 900)}})
	lost, _ := r.stamped(1, 1000, reCancel("a", 99), cancel("b"))
	other, _ := r.stamped(1, 1000, complete("a", 2, 0, 1))
	r.f.ReleaseHolds(lost.Commands)
	if r.handOut(1, "a") || !r.handOut(1, "b") {
		t.Fatal("a must be held by the other command, b by none")
	}
	got := r.apply(lost).Results
	if got[0].Code != RevisionMismatch || got[1].Answer != AnswerFiring {
		t.Fatalf("results %v: a delivery of b had started", got)
	}
	if r.handOut(1, "a") {
		t.Fatal("the late command lifted the other's hold")
	}
	if got := r.apply(other).Results[0]; got.Code != OK {
		t.Fatalf("complete gives %v", got)
	}
	// What is remembered is what every replica knows.
	r.same(r.restored())
}

func reCancel(id string, expected uint64) *Command {
	c := cancel(id)
	c.GetCancel().ExpectedRevision = expected
	return c
}

// A record that changed while it was held: the hold goes on with the new revision, and its end arms the new time.
func TestReleaseAfterChange(t *testing.T) {
	t.Parallel()
	r := leading(t)
	r.apply(&logv1.Entry{Epoch: 1, ClockMs: 1000, Commands: []*Command{schedule("a", 900)}})
	if !r.handOut(1, "a") {
		t.Fatal("not handed out")
	}
	held, _ := r.stamped(1, 1000, cancel("a"))
	r.apply(&logv1.Entry{Epoch: 1, ClockMs: 1000, Commands: []*Command{reschedule("a", 5000)}})
	if d := r.describe("a"); d.Handed || !d.Held {
		t.Fatalf("after the change: %+v", d)
	}
	r.feed.take()
	r.f.ReleaseHolds(held.Commands)
	if ops, want := r.feed.take(), []Op{{Kind: Arm, Slot: 0, When: 5000}}; !slices.Equal(ops, want) {
		t.Fatalf("pushed %v, want %v", ops, want)
	}
}

// A release of holds of an epoch that is over must not touch those of the present one.
func TestEpochChangesWithHolds(t *testing.T) {
	t.Parallel()
	r := leading(t)
	r.apply(&logv1.Entry{Epoch: 1, ClockMs: 1000, Commands: []*Command{schedule("a", 900), schedule("b", 950)}})
	r.handOut(1, "b")
	old, _ := r.stamped(1, 1000, cancel("a"))
	r.f.Follow()
	r.apply(begin(2, 1001))
	r.feed.take()
	r.f.Lead(2)
	if ops, want := r.feed.take(), []Op{{Kind: Arm, Slot: r.slot("a"), When: 900}}; !slices.Equal(ops, want) {
		t.Fatalf("leading anew pushed %v, want %v: what was held would be stranded", ops, want)
	}
	r.stamped(2, 1001, cancel("a"))
	r.f.ReleaseHolds(old.Commands)
	if a := r.apply(old); !a.Stale {
		t.Fatal("an entry of the old epoch was applied")
	}
	if r.handOut(2, "a") {
		t.Fatal("the old epoch's command lifted the hold of the new one")
	}
	if r.handOut(1, "b") || !r.handOut(2, "b") {
		t.Fatal("b must go out under epoch 2 and no other")
	}
}

// Commands may be stamped before Lead is called for their epoch; they stay held. As long as the entry that opens the epoch is not
// applied the table may be behind: nothing is refused, and a timer that is due may be out.
func TestStampBeforeLead(t *testing.T) {
	t.Parallel()
	r := leading(t)
	r.apply(&logv1.Entry{Epoch: 1, ClockMs: 1000, Commands: []*Command{schedule("a", 2000), schedule("b", 9000)}})
	r.f.Follow()
	e, rejected := r.stamped(2, 1900, cancel("a"), cancel("b"), complete("a", 77, 0, 1))
	if rejected[2] != nil {
		t.Fatalf("a token was refused by a table that may be behind: %v", rejected[2])
	}
	if !e.Commands[0].GetCancel().Firing || e.Commands[1].GetCancel().Firing {
		t.Fatal("firing must be assumed of a, which is due within the guard, and not of b")
	}
	r.apply(begin(2, 1900))
	r.f.Lead(2)
	if r.handOut(2, "a") {
		t.Fatal("Lead forgot the holds of its own epoch")
	}
	r.apply(e)
}

// A timer that was scheduled under this epoch cannot have been handed out by the leader before, however close it is to the
// beginning of the epoch.
func TestFiringAfterFailover(t *testing.T) {
	t.Parallel()
	r := leading(t)
	r.apply(&logv1.Entry{Epoch: 1, ClockMs: 1000, Commands: []*Command{schedule("old", 1400), schedule("far", 1501)}})
	r.apply(begin(2, 1000))
	r.f.Lead(2)
	r.apply(&logv1.Entry{Epoch: 2, ClockMs: 1000, Commands: []*Command{schedule("new", 1400)}})
	e, _ := r.stamped(2, 1000, cancel("old"), cancel("far"), cancel("new"))
	var got []uint32
	for _, res := range r.apply(e).Results {
		got = append(got, res.Answer)
	}
	if want := []uint32{AnswerFiring, AnswerCancelled, AnswerCancelled}; !slices.Equal(got, want) {
		t.Fatalf("answers %v, want %v", got, want)
	}
}

// Leading that is interrupted within one epoch: a delivery from before is still out, so a cancel says so, though the
// timer may be handed out again.
func TestFollowAndLeadAgain(t *testing.T) {
	t.Parallel()
	r := leading(t)
	r.apply(&logv1.Entry{Epoch: 1, ClockMs: 9000, Commands: []*Command{schedule("a", 900)}})
	r.handOut(1, "a")
	r.f.Follow()
	if r.handOut(1, "a") {
		t.Fatal("handed out while not leading")
	}
	r.f.Lead(1)
	if got := r.one(1, 9000, cancel("a")); got.Answer != AnswerFiring {
		t.Fatalf("answer %d, want %d", got.Answer, AnswerFiring)
	}
}

// Another leader numbers its holds alike. Its commands must not lift those of this replica.
func TestHoldsOfAnotherLeader(t *testing.T) {
	t.Parallel()
	r := leading(t)
	r.apply(&logv1.Entry{Epoch: 1, ClockMs: 1000, Commands: []*Command{schedule("a", 900)}})
	mine, _ := r.stamped(1, 1000, reCancel("a", 99))
	theirs := reCancel("a", 98)
	theirs.GetCancel().Hold = mine.Commands[0].GetCancel().Hold
	r.apply(&logv1.Entry{Epoch: 2, ClockMs: 1000, Commands: []*Command{theirs}})
	if !r.describe("a").Held {
		t.Fatal("a command of another leader lifted the hold")
	}
}

// A delivery that failed is over: a cancel during the back-off finds nothing handed out.
func TestCancelInBackoff(t *testing.T) {
	t.Parallel()
	r := leading(t)
	r.one(1, 9000, schedule("a", 900))
	r.handOut(1, "a")
	if got := r.one(1, 9000, retry("a", 2, 0, 1)); got.Code != OK || got.Due < 9900 || got.Due > 10100 {
		t.Fatalf("retry gives %+v", got)
	}
	if got := r.one(1, 9000, cancel("a")); got.Answer != AnswerCancelled {
		t.Fatalf("answer %d, want %d", got.Answer, AnswerCancelled)
	}
}

// A leader that does not know yet that it was replaced hands nothing out once the log says so.
func TestOldLeaderHandsNothingOut(t *testing.T) {
	t.Parallel()
	r := leading(t)
	r.one(1, 1000, schedule("a", 900))
	r.apply(begin(2, 1000))
	if r.handOut(1, "a") {
		t.Fatal("handed out under an epoch that is over")
	}
}

// The leader's notes go with the table that they are about.
func TestRestoreForgetsNotes(t *testing.T) {
	t.Parallel()
	r := leading(t)
	r.apply(&logv1.Entry{Epoch: 1, ClockMs: 1000, Commands: []*Command{schedule("a", 900), schedule("b", 900)}})
	e, _ := r.stamped(1, 1000, cancel("a"))
	r.handOut(1, "b")
	if err := r.f.Restore(writeBuffer(snapshotBytes(t, r.f)).reader()); err != nil {
		t.Fatal(err)
	}
	r.check()
	if d := r.describe("a"); d.Held || d.Handed {
		t.Fatalf("after a restore: %+v", d)
	}
	r.apply(e)
}

func TestBackoffGrowsAndIsBounded(t *testing.T) {
	t.Parallel()
	p := policyOf(RetryPolicy{})
	for attempt, want := range []int64{1000, 2000, 4000, 8000, 16000, 32000, 64000, 128000, 256000, 272727, 272727} {
		low, high := int64(1<<62), int64(0)
		for salt := range uint64(1000) {
			wait := p.backoff(uint32(attempt), salt*0x9E3779B97F4A7C15)
			low, high = min(low, wait), max(high, wait)
		}
		if low < want*9/10 || high > want*11/10+1 || high-low < want/6 {
			t.Errorf("attempt %d waits %d to %d, want 90 to 110 %% of %d", attempt, low, high, want)
		}
	}
	if wait := p.backoff(1<<32-1, 1<<64-1); wait != p.MaxBackoff {
		t.Errorf("the longest wait is %d, want %d", wait, p.MaxBackoff)
	}
}

// A ref that was taken before the timer was moved is of another revision: to take it would fire the timer hours early.
func TestStaleRefHandsNothingOut(t *testing.T) {
	t.Parallel()
	r := leading(t)
	r.apply(&logv1.Entry{Epoch: 1, ClockMs: 1000, Commands: []*Command{schedule("a", 900)}})
	stale := r.describe("a").Ref
	r.apply(&logv1.Entry{Epoch: 1, ClockMs: 1000, Commands: []*Command{reschedule("a", 9_000_000)}})
	if got := r.f.HandOut(1, 1000, []Ref{stale}, nil); got[0].Verdict != Refused || got[0].Record != nil {
		t.Fatalf("a ref of before the change gives %+v", got[0])
	}
	ref := r.describe("a").Ref
	if stale.Slot != ref.Slot || r.describe("a").Handed {
		t.Fatal("the timer must be in its slot, handed to nobody")
	}
	// The slot is given to another timer, too.
	r.apply(&logv1.Entry{Epoch: 1, ClockMs: 1000, Commands: []*Command{cancel("a"), schedule("b", 9_000_000)}})
	other := r.describe("b").Ref
	if other.Slot != ref.Slot {
		t.Fatal("the test needs the slot of a for b")
	}
	for i, h := range r.f.HandOut(1, 1000, []Ref{stale, ref, other}, nil) {
		if (h.Verdict == Give) != (i == 2) {
			t.Errorf("ref %d gives %+v", i, h)
		}
	}
}

// What was handed out or held is armed again in the order of (NextDue, Accepted), whatever slots it is in.
func TestArmedAgainInOrder(t *testing.T) {
	t.Parallel()
	r := leading(t)
	dues := []int64{700, 900, 300, 500, 300, 100, 900, 800}
	for i, due := range dues {
		r.apply(&logv1.Entry{Epoch: 1, ClockMs: 1000, Commands: []*Command{schedule(fmt.Sprint(i), due)}})
	}
	// Slots 0 and 7 are neither out nor held; of those due at one time, the one with the lower slot is accepted last.
	r.apply(&logv1.Entry{Epoch: 1, ClockMs: 1000, Commands: []*Command{reschedule("1", 900), reschedule("2", 300)}})
	var want []Op
	for _, id := range []string{"5", "4", "2", "3", "6", "1"} {
		want = append(want, Op{Kind: Arm, Slot: r.slot(id), When: wheel.Tick(r.f.Record(r.slot(id)).NextDue)})
		if id != "3" && id != "4" && !r.handOut(1, id) {
			t.Fatalf("%s is not handed out", id)
		}
	}
	r.stamped(1, 1000, cancel("3"), cancel("4"))
	r.feed.take()
	r.f.Follow()
	if ops := r.feed.take(); !slices.Equal(ops, want) {
		t.Errorf("Follow pushed %v, want %v", ops, want)
	}
	r.f.Lead(2)
	if ops, want := r.feed.take(), []Op{want[1], want[3]}; !slices.Equal(ops, want) {
		t.Errorf("Lead pushed %v, want %v", ops, want)
	}
}
