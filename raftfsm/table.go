package raftfsm

import "fmt"

const (
	pageBits = 8
	pageSize = 1 << pageBits
	pageMask = pageSize - 1
)

type page [pageSize]*Record

// table keeps the records in dense slots. Pages are copied before they are written if a snapshot may look at them, so a
// snapshot takes the page pointers only, and any number of snapshots may be alive. Guarded by FSM.mu.
type table struct {
	pages []*page
	// marks tells for each page at which generation it was made or last owned; one below the present generation is shared with a snapshot.
	marks []uint64
	// generation counts the snapshots taken.
	generation uint64
	// alive is the number of snapshots that are not released; at 0 no page is shared.
	alive int
	// free is the stack of free slots below len.
	free []uint32
	// length is the number of slots ever used at once.
	length uint32
	// copied counts pages copied for the sake of a snapshot.
	copied uint64
}

func (t *table) at(slot uint32) *Record {
	if slot >= t.length {
		return nil
	}
	return t.pages[slot>>pageBits][slot&pageMask]
}

// alloc returns a free slot: the one freed last, else a new one.
func (t *table) alloc() uint32 {
	if n := len(t.free); n > 0 {
		slot := t.free[n-1]
		t.free = t.free[:n-1]
		return slot
	}
	if t.length == 1<<32-1 {
		panic("raftfsm: the table is full")
	}
	slot := t.length
	t.length++
	if int(slot>>pageBits) == len(t.pages) {
		t.pages = append(t.pages, new(page))
		t.marks = append(t.marks, t.generation)
	}
	return slot
}

// set puts a record into a slot; nil frees it.
func (t *table) set(slot uint32, r *Record) {
	n := slot >> pageBits
	if t.marks[n] < t.generation {
		if t.alive > 0 {
			clone := *t.pages[n]
			t.pages[n] = &clone
			t.copied++
		}
		t.marks[n] = t.generation
	}
	t.pages[n][slot&pageMask] = r
	if r == nil {
		t.free = append(t.free, slot)
	}
}

// share returns the pages as they are now; they stay so until release.
func (t *table) share() []*page {
	t.generation++
	t.alive++
	return append([]*page(nil), t.pages...)
}

func (t *table) release() { t.alive-- }

// count is the number of records.
func (t *table) count() int { return int(t.length) - len(t.free) }

func (t *table) check() error {
	seen := make(map[uint32]bool, len(t.free))
	for _, slot := range t.free {
		if slot >= t.length || seen[slot] || t.at(slot) != nil {
			return fmt.Errorf("free list: slot %d is out of range, there twice or not free", slot)
		}
		seen[slot] = true
	}
	if want := (int(t.length) + pageMask) / pageSize; len(t.pages) != want || len(t.marks) != want {
		return fmt.Errorf("%d pages and %d marks for %d slots", len(t.pages), len(t.marks), t.length)
	}
	for slot := range t.length {
		if t.at(slot) == nil && !seen[slot] {
			return fmt.Errorf("slot %d is empty and not on the free list", slot)
		}
	}
	for n, p := range t.pages {
		if t.marks[n] > t.generation {
			return fmt.Errorf("page %d is of generation %d, the table of %d", n, t.marks[n], t.generation)
		}
		for i := uint32(n)*pageSize + 0; i < uint32(n+1)*pageSize; i++ {
			if i >= t.length && p[i&pageMask] != nil {
				return fmt.Errorf("slot %d beyond the table of %d is in use", i, t.length)
			}
		}
	}
	return nil
}
