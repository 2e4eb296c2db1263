package raftfsm

import (
	"bytes"
	"fmt"
	"testing"
)

// Compaction moves blobs of slots whose page no command of the entry writes. A live snapshot shares that page, so it must be copied
// first: else the snapshot would find the blob's new place, in a slab that it does not have.
func TestCompactionSparesASharedPage(t *testing.T) {
	t.Parallel()
	const n, batch = 6 * pageSize, 128
	f := New(Options{MaxFinished: 10})
	each := func(first, last, factor int, make func(id string) *Command) {
		t.Helper()
		for ; first < last; first += batch {
			var cmds []*Command
			for i := first; i < first+batch; i++ {
				cmds = append(cmds, make(fmt.Sprint("timer-", i*factor%n)))
			}
			applyNext(t, f, cmds)
		}
	}
	each(0, n, 1, func(id string) *Command { return schedule(id, 5) })
	// Written again in another order, blobs of all pages lie in each slab.
	each(0, n, 4801, func(id string) *Command { return reschedule(id, 6) })
	want := snapshotBytes(t, f)
	s, err := f.Snapshot()
	if err != nil {
		t.Fatal(err)
	}
	defer s.Release()
	pages := make([]page, len(s.view.pages))
	for i, p := range s.view.pages {
		pages[i] = *p
	}
	moved, copied := f.s.table.heap.moved, f.s.table.copied
	// The timers of the first half leave, those of the second are moved and not written otherwise.
	each(0, n/2, 1, cancel)
	each(n-batch, n, 1, func(id string) *Command { return reschedule(id, 7) })
	if table := &f.s.table; table.heap.moved == moved || table.copied <= copied+n/2/pageSize {
		t.Fatalf("%d bytes moved, %d pages copied: the test needs more", table.heap.moved-moved, table.copied-copied)
	}
	for i, p := range s.view.pages {
		if *p != pages[i] {
			t.Fatalf("page %d was written, and a snapshot shares it", i)
		}
	}
	var got writeBuffer
	if _, err := s.WriteTo(&got); err != nil || !bytes.Equal(got, want) {
		t.Fatalf("the snapshot is not what it was: %v", err)
	}
	if err := f.Check(); err != nil {
		t.Fatal(err)
	}
}
