package shard

import (
	"fmt"
	"log/slog"
	"math"
	"reflect"
	"testing"
	"time"

	logv1 "github.com/carillon-timers/carillon/proto/carillonlog/v1"
	"github.com/carillon-timers/carillon/raftfsm"
)

func millisOf(t testing.TB, text string) int64 {
	t.Helper()
	at, err := time.Parse(time.RFC3339, text)
	if err != nil {
		t.Fatal(err)
	}
	return at.UnixMilli()
}

// What a turn of a repeat gives by its policies, and where it goes on.
func TestRepeats(t *testing.T) {
	t.Parallel()
	c := newRepeats(slog.New(slog.DiscardHandler))
	const s = 1000
	every := func(change func(*logv1.Repeat)) *logv1.Repeat {
		r := &logv1.Repeat{EveryMs: 10 * s, StartMs: 3 * s, TickMs: 13 * s}
		change(r)
		return r
	}
	for _, x := range []struct {
		name   string
		repeat *logv1.Repeat
		now    int64
		want   raftfsm.Turn
	}{
		{"early", every(func(*logv1.Repeat) {}), 12 * s, raftfsm.Turn{Next: 13 * s}},
		{"on time", every(func(*logv1.Repeat) {}), 13 * s, raftfsm.Turn{Fire: []int64{13 * s}, Next: 23 * s}},
		{"missed, one", every(func(*logv1.Repeat) {}), 44 * s, raftfsm.Turn{Fire: []int64{43 * s}, Next: 53 * s}},
		{"missed, none", every(func(r *logv1.Repeat) { r.Misfire = misfireNone }), 45 * s, raftfsm.Turn{Next: 53 * s}},
		{"missed, all", every(func(r *logv1.Repeat) { r.Misfire, r.MaxCatchUp = misfireAll, 2 }), 44 * s,
			raftfsm.Turn{Fire: []int64{33 * s, 43 * s}, Next: 53 * s}},
		{"missed, all, some too late", every(func(r *logv1.Repeat) { r.Misfire, r.MaxCatchUp, r.MaxLateMs = misfireAll, 9, 15*s }), 44 * s,
			raftfsm.Turn{Fire: []int64{33 * s, 43 * s}, Next: 53 * s}},
		{"at its end", every(func(r *logv1.Repeat) { r.HasEnd, r.EndMs = true, 20*s }), 15 * s, raftfsm.Turn{Fire: []int64{13 * s}, Ended: true}},
		{"fixed delay", every(func(r *logv1.Repeat) { r.FixedDelay = true }), 44 * s, raftfsm.Turn{Fire: []int64{13 * s}, Next: 54 * s}},
		{"fixed delay, none", every(func(r *logv1.Repeat) { r.FixedDelay, r.Misfire = true, misfireNone }), 44 * s, raftfsm.Turn{Next: 54 * s}},
		{"fixed delay, not so late", every(func(r *logv1.Repeat) { r.FixedDelay, r.Misfire = true, misfireNone }), 14 * s,
			raftfsm.Turn{Fire: []int64{13 * s}, Next: 24 * s}},
		{"fixed delay, early", every(func(r *logv1.Repeat) { r.FixedDelay = true }), 12 * s, raftfsm.Turn{Next: 13 * s}},
		{"no rule", &logv1.Repeat{Cron: "nonsense"}, 0, raftfsm.Turn{Ended: true}},
		{"no period", &logv1.Repeat{}, 0, raftfsm.Turn{Ended: true}},
	} {
		if got := c.Turn(x.repeat, x.now); !reflect.DeepEqual(got, x.want) {
			t.Errorf("%s: got %+v, want %+v", x.name, got, x.want)
		}
	}
	for _, x := range []struct {
		name        string
		repeat      *logv1.Repeat
		after, want int64
	}{
		{"before its start", every(func(*logv1.Repeat) {}), 0, 3 * s},
		{"on the grid", every(func(*logv1.Repeat) {}), 3 * s, 13 * s},
		{"delay before its start", every(func(r *logv1.Repeat) { r.FixedDelay = true }), 0, 3 * s},
		{"delay", every(func(r *logv1.Repeat) { r.FixedDelay = true }), 5 * s, 15 * s},
		{"delay beyond its end", every(func(r *logv1.Repeat) { r.FixedDelay, r.HasEnd, r.EndMs = true, true, 14*s }), 5 * s, -1},
		{"delay at the end of time", every(func(r *logv1.Repeat) { r.FixedDelay = true }), math.MaxInt64, -1},
		{"in the night of a gap", &logv1.Repeat{Cron: "30 2 * * *", Zone: "Europe/Berlin"},
			millisOf(t, "2027-03-27T12:00:00Z"), millisOf(t, "2027-03-28T01:00:00Z")},
	} {
		got, ok := c.Next(x.repeat, x.after)
		if !ok {
			got = -1
		}
		if got != x.want {
			t.Errorf("%s: got %d, want %d", x.name, got, x.want)
		}
	}
}

// Parsed rules are kept, as long as they are used and up to a bound.
func TestRepeatsKeepRules(t *testing.T) {
	t.Parallel()
	c := newRepeats(slog.New(slog.DiscardHandler))
	used := ruleText{"* * * * *", "UTC"}
	first := c.rule(used)
	for i := range 3 * rulesKept {
		c.rule(ruleText{fmt.Sprintf("@every %dms", i+1), ""})
		if i%1000 == 0 && c.rule(used) != first {
			t.Fatalf("a rule in use was parsed again after %d others", i)
		}
	}
	if n := len(c.young) + len(c.old); n > 2*rulesKept {
		t.Errorf("%d rules are kept", n)
	}
	if c.rule(ruleText{"* * * * *", "Mars/Olympus"}) == nil || c.rule(ruleText{"* * * *", "UTC"}) != nil {
		t.Error("an unknown zone is to be taken for UTC, an expression that cannot be read to be refused")
	}
}
