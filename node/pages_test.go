package node

import (
	"cmp"
	"context"
	"fmt"
	"math/rand/v2"
	"reflect"
	"slices"
	"testing"

	logv1 "github.com/carillon-timers/carillon/proto/carillonlog/v1"
	"github.com/carillon-timers/carillon/raftfsm"
	"github.com/carillon-timers/carillon/shard"
)

func statusOf(id string, payload int) raftfsm.Status {
	return raftfsm.Status{State: raftfsm.Pending, Record: &raftfsm.Record{Namespace: "default", ID: id, Payload: make([]byte, payload)}}
}

// listedShard lists its timers as a shard does: in order, after the cursor, cut at the limits.
type listedShard struct {
	fakeShard
	timers []raftfsm.Status // sorted
}

func (l *listedShard) List(_ context.Context, q raftfsm.ListQuery) (raftfsm.ListPage, error) {
	var page raftfsm.ListPage
	size, looked, look := 0, 0, q.Look
	if look == 0 {
		look = 50
	}
	for _, s := range l.timers {
		if s.Record.ID <= q.After {
			continue
		}
		fits := q.Filter == nil || q.Filter.Queue == s.Record.Queue
		if looked == look || fits && !q.Count && (len(page.Timers) == q.Limit || len(page.Timers) > 0 && size+recordBytes(s.Record) > raftfsm.MaxPageBytes) {
			page.More = true
			break
		}
		looked, page.Last = looked+1, s.Record.ID
		switch {
		case !fits:
		case q.Count:
			page.Count++
		default:
			size += recordBytes(s.Record)
			page.Timers = append(page.Timers, s)
		}
	}
	return page, nil
}

// The model: all timers of all shards, sorted. Walked page by page, with random limits and payloads, the list is the same:
// nothing twice, nothing left out, whatever the order in which the shards answer.
func TestListIsTheSortedUnion(t *testing.T) {
	t.Parallel()
	for seed := range uint64(30) {
		rnd := rand.New(rand.NewPCG(seed, 7))
		shards := 1 + rnd.IntN(20)
		local := make([]*listedShard, shards)
		for s := range local {
			local[s] = &listedShard{}
		}
		var want, wantA []string
		for i := range rnd.IntN(600) {
			id, s := fmt.Sprintf("t%05d", rnd.IntN(1_000_000)*1000+i), local[rnd.IntN(shards)]
			status := statusOf(id, rnd.IntN(2)*rnd.IntN(60<<10))
			want = append(want, id)
			if status.Record.Queue = string("ab"[rnd.IntN(2)]); status.Record.Queue == "a" {
				wantA = append(wantA, id)
			}
			s.timers = append(s.timers, status)
		}
		for _, s := range local {
			slices.SortFunc(s.timers, func(a, b raftfsm.Status) int { return cmp.Compare(a.Record.ID, b.Record.ID) })
		}
		r := newFakeNet().router("n1", shards, "n1")
		r.local = func(s int) localShard { return local[s] }
		checkWalk(t, r, rnd, nil, want)
		checkWalk(t, r, rnd, &logv1.Filter{Queue: "a"}, wantA)
	}
}

// checkWalk compares what a walk from page to page finds, and the count, with what is there.
func checkWalk(t *testing.T, r *router, rnd *rand.Rand, filter *logv1.Filter, want []string) {
	t.Helper()
	slices.Sort(want)
	var got []string
	for after, more := "", true; more; {
		page, err := r.List(t.Context(), raftfsm.ListQuery{After: after, Limit: 1 + rnd.IntN(100), Filter: filter})
		if err != nil {
			t.Fatal(err)
		}
		size := 0
		for _, s := range page.Timers {
			got = append(got, s.Record.ID)
			size += recordBytes(s.Record)
		}
		if size > raftfsm.MaxPageBytes {
			t.Fatalf("a page of %d bytes", size)
		}
		if more = page.More; more && page.Last <= after {
			t.Fatalf("the page after %q ends at %q", after, page.Last)
		}
		after = page.Last
	}
	if !slices.Equal(got, want) {
		t.Fatalf("filter %v: %d listed, %d there", filter, len(got), len(want))
	}
	count, err := r.Count(t.Context(), raftfsm.ListQuery{Filter: filter, Count: true})
	if err != nil || count != int64(len(want)) {
		t.Fatalf("filter %v: counted %d, %v; %d there", filter, count, err, len(want))
	}
}

// A shard without a leader makes the page an error, not a shorter list.
func TestListFailsWithAShard(t *testing.T) {
	t.Parallel()
	f := newFakeNet()
	f.set("n1", 0, &fakeShard{page: raftfsm.ListPage{Timers: []raftfsm.Status{statusOf("a", 1)}}})
	f.set("n1", 1, &fakeShard{err: &shard.OverloadedError{Limit: "reads"}})
	if page, err := f.router("n1", 2, "n1").List(t.Context(), raftfsm.ListQuery{Limit: 10}); err == nil {
		t.Errorf("got %d timers and no error", len(page.Timers))
	}
}

func TestTimersTravel(t *testing.T) {
	t.Parallel()
	want := raftfsm.Status{
		State: raftfsm.Fired, FinishedAt: 9, HandedAt: 11, HandedEpoch: 12, Fired: 13, Reigns: []raftfsm.Reign{{Epoch: 14, Node: "n", Begun: 15}},
		Record: &raftfsm.Record{
			Namespace: "a", ID: "b", Queue: "c", Payload: []byte{0, 1}, ContentType: "d",
			Headers: []raftfsm.Pair{{Key: "e", Value: "f"}}, Labels: []raftfsm.Pair{{Key: "g", Value: "h"}},
			Retry: raftfsm.RetryPolicy{Lease: 1, InitialBackoff: 2, MaxBackoff: 3, Multiplier: 4.5, MaxAttempts: 16},
			Due:   5, NextDue: 6, Accepted: 7, Revision: 8, Attempt: 9, Created: 10, LastError: "i",
			Extra: &logv1.Extra{ExpiryMs: 17},
		},
	}
	raw, err := statusToProto(want).MarshalVT()
	if err != nil {
		t.Fatal(err)
	}
	got, err := statusFromBytes(raw)
	if err != nil || got.Record.Extra.GetExpiryMs() != 17 {
		t.Fatalf("got %+v, %v", got.Record, err)
	}
	got.Record.Extra = want.Record.Extra // a message is not compared by its fields
	if !reflect.DeepEqual(got, want) {
		t.Errorf("got %+v, want %+v", got.Record, want.Record)
	}
	// Every field must travel: a new one fails here until wire.go knows it.
	for _, known := range []struct {
		is     reflect.Type
		fields int
	}{
		{reflect.TypeFor[raftfsm.Record](), 16}, {reflect.TypeFor[raftfsm.Status](), 7}, {reflect.TypeFor[raftfsm.RetryPolicy](), 5},
		{reflect.TypeFor[raftfsm.Reign](), 3}, {reflect.TypeFor[raftfsm.Result](), 7}, {reflect.TypeFor[raftfsm.ListQuery](), 8},
		{reflect.TypeFor[raftfsm.ListPage](), 4}, {reflect.TypeFor[raftfsm.ForecastQuery](), 6}, {reflect.TypeFor[raftfsm.ForecastRow](), 6},
	} {
		n := 0
		for _, f := range reflect.VisibleFields(known.is) {
			if f.IsExported() {
				n++
			}
		}
		if n != known.fields {
			t.Errorf("%v has %d exported fields; this test and wire.go know %d", known.is, n, known.fields)
		}
	}
}

func TestResultsTravel(t *testing.T) {
	t.Parallel()
	want := []raftfsm.Result{
		{Code: raftfsm.NotPending, Revision: 1, Due: 2, Answer: 3, Detail: "d"},
		{Items: []raftfsm.Result{{Key: "k", Code: raftfsm.NotFound}, {Key: "l", Revision: 4}}},
	}
	raw, err := resultsToProto(want).MarshalVT()
	if err != nil {
		t.Fatal(err)
	}
	list := &logv1.ResultList{}
	if err := list.UnmarshalVT(raw); err != nil {
		t.Fatal(err)
	}
	if got := resultsFromProto(list); !reflect.DeepEqual(got, want) {
		t.Errorf("got %+v, want %+v", got, want)
	}
}
