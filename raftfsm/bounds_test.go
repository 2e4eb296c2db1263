package raftfsm

import (
	"fmt"
	"testing"

	logv1 "github.com/carillon-timers/carillon/proto/carillonlog/v1"
)

func repeating(id string, due int64, payload int, r *logv1.Repeat) *Command {
	return scheduleOf(&logv1.Schedule{
		Namespace: "default", Id: id, Queue: "q", DueMs: due, Payload: make([]byte, payload), Extra: &logv1.Extra{Repeat: r},
	})
}

func advanceNow(r *replica, id string) *Command {
	ref := r.describe(id).Ref
	return &Command{Kind: &logv1.Command_Advance{Advance: &logv1.Advance{Namespace: "default", Id: id, Revision: ref.Revision}}}
}

// After an outage many repeats make timers of many due times. One entry makes no more of them than a batch may have, and in the
// end there is one for each.
func TestSpawnsAreBounded(t *testing.T) {
	const repeats, missed, payload, now = 4, 700, 8 << 10, 10_000
	r := newReplica(t, Options{Repeats: grid{}})
	r.apply(begin(1, 1))
	r.f.Lead(1)
	for i := range repeats {
		r.one(1, 1, repeating(fmt.Sprint("r", i), now-missed+1, payload, &logv1.Repeat{
			EveryMs: 1, Overlap: overlapAllow, Misfire: misfireAll, MaxCatchUp: MaxCatchUp, HasEnd: true, EndMs: now,
		}))
	}
	entries := 0
	for ; r.f.Stats().Pending > 0 && r.f.Stats().Pending < repeats*missed; entries++ {
		var cmds []*Command
		for i := range repeats {
			if _, ok := r.f.Get("default", fmt.Sprint("r", i)); ok && r.f.s.find("default", fmt.Sprint("r", i)).pending {
				cmds = append(cmds, advanceNow(r, fmt.Sprint("r", i)))
			}
		}
		before := r.f.Stats()
		e, _ := r.stamped(1, now, cmds...)
		r.apply(e)
		after := r.f.Stats()
		if n := after.PayloadBytes - before.PayloadBytes; n > MaxBatchBytes+repeats*payload {
			t.Fatalf("one entry added %d bytes of payload", n)
		}
		if entries > 1000 {
			t.Fatal("it does not end")
		}
	}
	for i := range repeats {
		for due := int64(now - missed + 1); due <= now; due++ {
			id, _ := childID(fmt.Sprint("r", i), due)
			if !r.f.s.find("default", id).pending {
				t.Fatalf("%s is not there after %d entries", id, entries)
			}
		}
	}
}

// A due time before 1970 is one as any other: it has not been decided about.
func TestMissedBefore1970(t *testing.T) {
	r := newReplica(t, Options{Repeats: grid{}})
	r.apply(begin(1, 3000))
	r.f.Lead(1)
	r.one(1, 3000, repeating("old", -5000, 0, &logv1.Repeat{EveryMs: 100, Overlap: overlapSkip, Misfire: misfireOne}))
	h := r.f.HandOut(1, 3050, []Ref{r.describe("old").Ref}, nil)[0]
	if h.Verdict != Missed {
		t.Fatalf("the verdict is %v: 80 due times would follow one by one", h.Verdict)
	}
	r.one(1, 3050, advanceNow(r, "old"))
	if got := r.describe("old").NextDue; got != 3000 {
		t.Fatalf("it goes on at %d", got)
	}
}

// A due time of an at-most-once repeat is settled before it is handed out, and may be owed to a consumer for long: a Cancel that comes
// meanwhile, also under another leader, cannot say that no delivery starts afterwards.
func TestCancelOfWhatIsOwed(t *testing.T) {
	t.Parallel()
	for _, flip := range []bool{false, true} {
		r := newReplica(t, Options{Repeats: grid{}})
		r.apply(begin(1, 1000))
		r.f.Lead(1)
		epoch := uint64(1)
		for _, id := range []string{"fired", "new"} {
			c := repeating(id, 2000, 0, &logv1.Repeat{EveryMs: 100, Overlap: overlapSkip, Misfire: misfireOne})
			c.GetSchedule().Extra.AtMostOnce = true
			r.one(1, 1000, c)
		}
		ref := r.describe("fired").Ref
		if h := r.f.HandOut(1, 2000, []Ref{ref}, nil)[0]; h.Verdict != Ahead {
			t.Fatalf("the verdict is %v", h.Verdict)
		}
		ahead := complete("fired", ref.Revision, 0, 1)
		ahead.GetComplete().Ahead = true
		if got := r.one(1, 2000, ahead); got.Code != OK {
			t.Fatalf("completed ahead: %+v", got)
		}
		if flip {
			epoch = 2
			r = r.restored()
			r.apply(begin(2, 2010))
			r.f.Lead(2)
		}
		for id, want := range map[string]uint32{"fired": AnswerFiring, "new": AnswerCancelled} {
			if got := r.one(epoch, 2020, cancel(id)); got.Code != OK || got.Answer != want {
				t.Errorf("flip %t: the cancel of %q gives %+v", flip, id, got)
			}
		}
	}
}
