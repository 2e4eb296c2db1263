package node

import (
	"cmp"
	"context"
	"fmt"
	"math/rand/v2"
	"reflect"
	"slices"
	"testing"

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
	size := 0
	for _, s := range l.timers {
		if s.Record.ID <= q.After {
			continue
		}
		if size += recordBytes(s.Record); len(page.Timers) == q.Limit || len(page.Timers) > 0 && size > raftfsm.MaxPageBytes {
			page.More = true
			break
		}
		page.Timers = append(page.Timers, s)
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
		var want []string
		for i := range rnd.IntN(600) {
			id, s := fmt.Sprintf("t%05d", rnd.IntN(1_000_000)*1000+i), local[rnd.IntN(shards)]
			want = append(want, id)
			s.timers = append(s.timers, statusOf(id, rnd.IntN(2)*rnd.IntN(60<<10)))
		}
		slices.Sort(want)
		for _, s := range local {
			slices.SortFunc(s.timers, func(a, b raftfsm.Status) int { return cmp.Compare(a.Record.ID, b.Record.ID) })
		}
		r := newFakeNet().router("n1", shards, "n1")
		r.local = func(s int) localShard { return local[s] }
		var got []string
		for after, more := "", true; more; {
			page, err := r.List(t.Context(), raftfsm.ListQuery{After: after, Limit: 1 + rnd.IntN(100)})
			if err != nil {
				t.Fatal(err)
			}
			size := 0
			for _, s := range page.Timers {
				got = append(got, s.Record.ID)
				size += recordBytes(s.Record)
			}
			if size > raftfsm.MaxPageBytes {
				t.Fatalf("seed %d: a page of %d bytes", seed, size)
			}
			if more = page.More; more {
				after = got[len(got)-1]
			}
		}
		if !slices.Equal(got, want) {
			t.Fatalf("seed %d: %d listed, %d there", seed, len(got), len(want))
		}
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
	want := raftfsm.Status{State: raftfsm.Fired, FinishedAt: 9, Record: &raftfsm.Record{
		Namespace: "a", ID: "b", Queue: "c", Payload: []byte{0, 1}, ContentType: "d",
		Headers: []raftfsm.Pair{{Key: "e", Value: "f"}}, Labels: []raftfsm.Pair{{Key: "g", Value: "h"}},
		Retry: raftfsm.RetryPolicy{Lease: 1, InitialBackoff: 2, MaxBackoff: 3, Multiplier: 4.5},
		Due:   5, NextDue: 6, Accepted: 7, Revision: 8, Attempt: 9, Created: 10, LastError: "i",
	}}
	raw, err := statusToProto(want).MarshalVT()
	if err != nil {
		t.Fatal(err)
	}
	got, err := statusFromBytes(raw)
	if err != nil || !reflect.DeepEqual(got, want) {
		t.Errorf("got %+v, %v, want %+v", got.Record, err, want.Record)
	}
	// Every field of a record must travel: a new one fails here until statusToProto knows it.
	n := 0
	for _, f := range reflect.VisibleFields(reflect.TypeFor[raftfsm.Record]()) {
		if f.IsExported() {
			n++
		}
	}
	if n != 15 {
		t.Errorf("raftfsm.Record has %d exported fields; this test and wire.go know 15", n)
	}
}
