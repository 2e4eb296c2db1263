package raftfsm

import (
	"fmt"
	"math"
	"testing"
)

// A blob keeps every number in full width: a record and a body that are written are read as they were, one wide number at a time and
// all of them together.
func TestBlobKeepsWideNumbers(t *testing.T) {
	t.Parallel()
	type timer struct {
		r record
		c body
	}
	plain := timer{record{nextDue: 5, accepted: 1, revision: 2, profile: 3}, body{id: "a", due: 5, created: 4, payload: []byte("p")}}
	cases := map[string]func(x *timer){
		"revision of 33 bits": func(x *timer) { x.r.revision = 1<<32 + 7 },
		"revision":            func(x *timer) { x.r.revision = math.MaxUint64 },
		"accepted of 33 bits": func(x *timer) { x.r.accepted = 1<<32 + 7 },
		"accepted":            func(x *timer) { x.r.accepted = math.MaxUint64 },
		"profile of 15 bits":  func(x *timer) { x.r.profile = 1<<14 + 7 },
		"profile":             func(x *timer) { x.r.profile = math.MaxUint32 },
		"attempt":             func(x *timer) { x.r.attempt = math.MaxUint32 },
		"next due":            func(x *timer) { x.r.nextDue, x.c.due, x.c.created = math.MaxInt64, math.MaxInt64, math.MaxInt64 },
		"first due":           func(x *timer) { x.r.nextDue, x.c.due, x.c.created = math.MinInt64, math.MinInt64, math.MinInt64 },
		"due":                 func(x *timer) { x.c.due = 5 - math.MaxInt64 },
		"made 44 bits before": func(x *timer) { x.c.created = 5 - (1<<44 + 7) },
		"made 44 bits after":  func(x *timer) { x.c.created = 5 + 1<<44 + 7 },
		"made long ago":       func(x *timer) { x.c.created = 5 - math.MaxInt64 },
		"made far ahead":      func(x *timer) { x.c.created = math.MaxInt64 },
	}
	all := plain
	for name, widen := range cases {
		x := plain
		widen(&x)
		t.Run(name, func(t *testing.T) { blobRoundTrip(t, x.r, x.c) })
	}
	for _, name := range []string{"revision", "accepted", "profile", "attempt", "due", "made far ahead"} {
		cases[name](&all)
	}
	t.Run("all", func(t *testing.T) { blobRoundTrip(t, all.r, all.c) })
}

func blobRoundTrip(t *testing.T, r record, c body) {
	inner := c.inner(&r)
	b := make([]byte, blobSize(inner))
	c.put(b, math.MaxUint32, &r, inner)
	in := blobInner(b)
	if blobSlot(b) != math.MaxUint32 || len(in) != inner || blobProfile(in) != r.profile || string(blobID(in)) != c.id {
		t.Errorf("slot %d, %d bytes of %d, profile %d, ID %q", blobSlot(b), len(in), inner, blobProfile(in), blobID(in))
	}
	var got record
	if got.read(in); got != r {
		t.Errorf("record is %+v, was %+v", got, r)
	}
	if back := bodyOf(in); back.due != c.due || back.created != c.created || string(back.payload) != string(c.payload) {
		t.Errorf("body is %+v, was %+v", back, c)
	}
}

// The same through the log, the table and a snapshot: timers that are accepted late in a long life, due as far from now as may be.
func TestWideNumbersThroughTheTable(t *testing.T) {
	t.Parallel()
	const wide, clock = 1 << 40, 1_700_000_000_000
	r := newReplica(t, Options{})
	r.f.s.accepted, r.next = wide, wide
	r.apply(begin(1, clock))
	for i, due := range []int64{minDueMillis, clock + MaxAheadMillis} {
		id := fmt.Sprint(i)
		if got := r.apply(entryAt(clock, schedule(id, due))).Results[0]; got.Code != OK {
			t.Fatal(resultText(got))
		}
		other := r.restored()
		for _, f := range []*FSM{r.f, other.f} {
			st, _ := f.Get("default", id)
			got := [5]int64{int64(st.Record.Revision), int64(st.Record.Accepted), st.Record.Due, st.Record.NextDue, st.Record.Created}
			if want := [5]int64{wide + 1 + int64(i), wide + 1 + int64(i), due, due, clock}; got != want {
				t.Errorf("timer %d has %v, want %v", i, got, want)
			}
		}
		r.same(other)
	}
}
