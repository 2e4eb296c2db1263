package raftfsm

import (
	"fmt"
	"slices"
	"testing"

	logv1 "github.com/carillon-timers/carillon/proto/carillonlog/v1"
)

// Paging over a namespace gives each timer once, in the order of IDs, whatever the prefix and the page size.
func TestListPages(t *testing.T) {
	t.Parallel()
	r := newReplica(t, Options{})
	var want []string
	e := &logv1.Entry{Epoch: 1}
	for i := range 500 {
		id := fmt.Sprintf("%s/%d", []string{"order", "order-", "other", "ä"}[i%4], i*7919%500)
		want = append(want, id)
		e.Commands = append(e.Commands, schedule(id, 1))
		elsewhere := schedule(id+"x", 1)
		elsewhere.GetSchedule().Namespace = []string{"a", "defaul", "default0", "z"}[i%4]
		e.Commands = append(e.Commands, elsewhere)
	}
	r.apply(e)
	slices.Sort(want)
	for _, limit := range []int{1, 7, 100, 0, 5000} {
		if got := pages(r.f, "", limit); !slices.Equal(got, want) {
			t.Fatalf("limit %d gives %d timers, want %d", limit, len(got), len(want))
		}
	}
	for _, prefix := range []string{"order", "order/", "ord", "ä", "z", "other/1"} {
		with := slices.DeleteFunc(slices.Clone(want), func(id string) bool { return len(id) < len(prefix) || id[:len(prefix)] != prefix })
		if got := pages(r.f, prefix, 9); !slices.Equal(got, with) {
			t.Fatalf("prefix %q gives %v, want %v", prefix, got, with)
		}
	}
	if got := ids(r.f.List(ListQuery{Prefix: "order", After: "a"})); len(got) == 0 || got[0] < "order" {
		t.Fatalf("a cursor before the prefix gives %v", got)
	}
}

func pages(f *FSM, prefix string, limit int) []string {
	var got []string
	q := ListQuery{Prefix: prefix, Limit: limit}
	for {
		page := f.List(q)
		got = append(got, ids(page)...)
		if !page.More {
			return got
		}
		q.After = got[len(got)-1]
	}
}

// A page ends at its bytes, but never before the first timer.
func TestListPageBytes(t *testing.T) {
	t.Parallel()
	r := newReplica(t, Options{})
	for i := range 5 {
		c := schedule(fmt.Sprint(i), 1).GetSchedule()
		c.Payload = make([]byte, MaxPayloadBytes)
		r.apply(&logv1.Entry{Epoch: 1, Commands: []*Command{scheduleOf(c)}})
	}
	if page := r.f.List(ListQuery{}); len(page.Timers) != 1 || !page.More {
		t.Fatalf("a page of %d timers, more=%v", len(page.Timers), page.More)
	}
	if got := pages(r.f, "", 0); len(got) != 5 {
		t.Fatalf("pages give %v", got)
	}
}

// What is over its retention goes a bounded number at a time, and is not seen before it goes.
func TestExpiryIsBoundedPerEntry(t *testing.T) {
	t.Parallel()
	const n = 3 * expireBase
	r := newReplica(t, Options{Retention: 1000})
	e := &logv1.Entry{Epoch: 1, ClockMs: 1}
	for i := range n {
		c := cancel(fmt.Sprint(i))
		c.GetCancel().RequestId = []byte("r")
		e.Commands = append(e.Commands, schedule(fmt.Sprint(i), 1), c)
	}
	r.apply(e)
	for i := range 3 {
		st := r.f.Stats()
		if want := n - i*expireBase - min(i, 1)*expirePerCommand; st.Finished != want || st.Requests != want {
			t.Fatalf("after %d entries: %+v, want %d", i, st, want)
		}
		// The write of the last one is not dropped before the last round, but it is remembered no more.
		again := &logv1.Entry{Epoch: 1, ClockMs: 1002}
		if i == 0 {
			again.Commands = e.Commands[2*n-1:]
		}
		if got := r.apply(again).Results; i == 0 && got[0].Code != NotFound {
			t.Fatalf("cancel gives %v", got[0])
		}
		if _, ok := r.f.Get("", fmt.Sprint(n-1)); ok {
			t.Fatal("a timer is seen after its retention")
		}
		r.restored().same(r)
	}
}

// One push for each entry, however many commands it has.
func TestOnePushPerEntry(t *testing.T) {
	t.Parallel()
	r := newReplica(t, Options{})
	r.apply(&logv1.Entry{Epoch: 1, Commands: []*Command{schedule("a", 1), schedule("b", 1), cancel("a")}})
	r.apply(&logv1.Entry{Epoch: 1, Commands: []*Command{cancel("x")}})
	if r.feed.calls != 1 {
		t.Fatalf("%d pushes for one entry with ops and one without", r.feed.calls)
	}
}
