package raftfsm

import (
	"encoding/hex"
	"fmt"
	"hash/fnv"
	"testing"

	logv1 "github.com/carillon-timers/carillon/proto/carillonlog/v1"
)

// keyed is n schedules of one timer, each with a request ID of its own.
func keyed(first, n int) (cmds []*Command) {
	for i := first; i < first+n; i++ {
		c := schedule("a", 5).GetSchedule()
		c.IfExists, c.RequestId = ifExistsReplace, fmt.Append(nil, "r", i)
		cmds = append(cmds, scheduleOf(c))
	}
	return cmds
}

// The window empties its first chunk when that is forgotten. A view of before must still read it, at any number of chunks (the slice
// grows by doubling: it may have room left or not).
func TestViewKeepsForgottenChunks(t *testing.T) {
	t.Parallel()
	w := newRequestWindow(3 * requestSize)
	push := func(seq uint64) { w.push(&requestItem{high: seq, low: ^seq, revision: seq, at: int64(seq)}) }
	for seq := uint64(1); seq <= 12*requestSize; seq++ {
		push(seq)
		if !w.over() {
			continue
		}
		if w.first&requestMask != requestMask {
			w.pop()
			continue
		}
		view, want := w.share(), w.first
		w.pop() // forgets a chunk
		count := 0
		for _, c := range view.chunks {
			if c.hashes == nil {
				t.Fatalf("a chunk of a view of %d..%d is gone", view.first, view.last)
			}
		}
		_ = view.each(func(seq uint64, it *requestItem) error {
			if count++; seq != want || it.high != want || it.low != ^want || it.revision != want || it.at != int64(want) {
				t.Fatalf("write %d of the view is %+v, want %d", seq, it, want)
			}
			want++
			return nil
		})
		if count != 3*requestSize+1 {
			t.Fatalf("%d writes in the view", count)
		}
	}
}

// An entry has more keyed commands than are remembered: all that is in the window is pushed out, and what will be behind it is not
// there to be read ahead, wherever the chunk ends.
func TestEntryOfMoreWritesThanAreRemembered(t *testing.T) {
	t.Parallel()
	const limit = 3
	f, next := New(Options{MaxRequests: limit, MaxFinished: 10}), 0
	// Entries of limit+1 end at 1024 less one, so the next would look into a chunk that is not there.
	applyNext(t, f, keyed(next, limit))
	for next = limit; next <= 2*requestSize+2*limit; next += limit + 1 {
		if f.s.requests.last != uint64(next) {
			t.Fatalf("%d writes, want %d", f.s.requests.last, next)
		}
		applyNext(t, f, keyed(next, limit+1))
		if got := f.Stats().Requests; got != limit {
			t.Fatalf("%d writes are remembered, want %d", got, limit)
		}
	}
	// The first entry of an empty window, far more than it holds.
	g := New(Options{MaxRequests: limit, MaxFinished: 10})
	applyNext(t, g, keyed(0, 500))
	for _, f := range []*FSM{f, g} {
		if err := f.Check(); err != nil {
			t.Fatal(err)
		}
	}
	// Only the last are known.
	revision := g.Stats().AppliedIndex
	applyNext(t, g, keyed(500-limit, limit))
	if st, _ := g.Get("default", "a"); st.Record.Revision != revision {
		t.Error("a remembered write was applied again")
	}
	applyNext(t, g, keyed(500-limit-1, 1))
	if st, _ := g.Get("default", "a"); st.Record.Revision == revision {
		t.Error("a forgotten write is remembered")
	}
}

// The key of a remembered write is in snapshots, so it never changes, for none of the kinds. What is hashed (FNV-128a) is beside it.
func TestRequestKeysNeverChange(t *testing.T) {
	t.Parallel()
	const ns, id = "default", "a"
	rid := []byte("request")
	s, c, m := schedule(id, 500), cancel(id), reschedule(id, 600)
	s.GetSchedule().RequestId, c.GetCancel().RequestId, m.GetReschedule().RequestId = rid, rid, rid
	now := &Command{Kind: &logv1.Command_Reschedule{Reschedule: &logv1.Reschedule{Namespace: ns, Id: id, Now: true, RequestId: rid}}}
	pause := &Command{Kind: &logv1.Command_Pause{Pause: &logv1.Pause{Namespace: ns, Id: id, RequestId: rid}}}
	resume := &Command{Kind: &logv1.Command_Resume{Resume: &logv1.Resume{Namespace: ns, Id: id, RequestId: rid}}}
	redrive := &Command{Kind: &logv1.Command_Redrive{Redrive: &logv1.Redrive{Namespace: ns, RequestId: rid}}}
	purge := &Command{Kind: &logv1.Command_Purge{Purge: &logv1.Purge{Namespace: ns, RequestId: rid}}}
	cases := []struct {
		name   string
		c      *Command
		hashed string
		want   string
	}{
		{"schedule", s, "\x01default\x00a\x00request", "48935bc23428be25ec5027686d394727"},
		{"reschedule", m, "\x03default\x00a\x00request", "775e414ea7649f954affbeb25809b48d"},
		{"fire now", now, "\x06default\x00a\x00request", "6c76b027c2dbd86124d4235d1058cf10"},
		{"pause", pause, "\x04default\x00a\x00request", "2f76f1c4d08e7cc822891c2513b100ca"},
		{"resume", resume, "\x05default\x00a\x00request", "cb2b9f86711ea55089b7b81516ea69d3"},
		{"cancel", c, "\x02default\x00a\x00request", "17bea4b420874be8025d81791547e854"},
		{"redrive", redrive, "\x07\x00default\x00\x00request", "ad70494d4c39e0b8b38d1853168ee370"},
		{"purge", purge, "\x08\x00default\x00\x00request", "068e2ad821781a78d4882f9e24cd1ccb"},
	}
	f := New(Options{})
	for i, x := range cases {
		applyNext(t, f, []*Command{x.c})
		w := &f.s.requests
		if w.last != uint64(i+1) {
			t.Fatalf("%s: %d writes are remembered, want %d", x.name, w.last, i+1)
		}
		it := w.at(w.last)
		if got := hex.EncodeToString(requestMessage(&it).Key); got != x.want {
			t.Errorf("the key of %s is %s, want %s", x.name, got, x.want)
		}
		h := fnv.New128a()
		h.Write([]byte(x.hashed))
		if hex.EncodeToString(h.Sum(nil)) != x.want {
			t.Errorf("%s: %s is not the hash of %q", x.name, x.want, x.hashed)
		}
	}
}

// The index keeps 32 bits of a sequence; the rest follows from the window, also where it lies across 2^32 or far beyond.
func TestRequestsBeyond32Bits(t *testing.T) {
	t.Parallel()
	const limit = 40
	for _, begin := range []uint64{0, 1<<31 - 20, 1<<32 - 2*limit, 1<<32 - 20, 1 << 32, 1<<32 + 500, 5<<32 - 20, 1<<52 + 1<<31} {
		r := newReplica(t, Options{MaxRequests: limit})
		r.f.s.requests.last, r.f.s.requests.first = begin, begin+1
		for i := range 3 * limit {
			result := r.apply(entryAt(1000, keyed(i, 1)...)).Results[0]
			w := &r.f.s.requests
			for seq := w.first; seq <= w.last; seq++ {
				if got := w.sequence(uint32(seq)); got != seq {
					t.Fatalf("from %d on: sequence %d is found as %d", begin, seq, got)
				}
			}
			oldest := max(0, i+1-limit)
			for _, k := range []int{oldest, i} {
				again := r.apply(entryAt(1000, keyed(k, 1)...)).Results[0]
				if want := result.Revision - uint64(3*(i-k)); again.Code != OK || again.Revision != want {
					t.Fatalf("from %d on: write %d answers %+v, was revision %d", begin, k, again, want)
				}
			}
		}
		r.same(r.restored())
	}
}

func entryAt(clock int64, cmds ...*Command) *logv1.Entry {
	return &logv1.Entry{Epoch: 1, ClockMs: clock, Commands: cmds}
}
