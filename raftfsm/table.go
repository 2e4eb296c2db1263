package raftfsm

import (
	"fmt"
	"math/bits"
)

const (
	pageBits = 6
	pageSize = 1 << pageBits
	pageMask = pageSize - 1
)

type page [pageSize]record

// view is what is needed to read timers: of the table, or of a snapshot, which has slices of its own.
type view struct {
	// pages holds the records by slot; nil is a page of free slots.
	pages []*page
	// slabs holds the blobs by the number of their slab.
	slabs [][]byte
	// profiles holds what timers share; an entry is not written while a snapshot may look at it.
	profiles []profile
}

// at returns the record in a slot, nil if it is free. The pointer is good until the next write to the table.
func (v *view) at(slot uint32) *record {
	n := slot >> pageBits
	if int(n) >= len(v.pages) || v.pages[n] == nil {
		return nil
	}
	if r := &v.pages[n][slot&pageMask]; r.where != 0 {
		return r
	}
	return nil
}

// inner is what a blob holds behind its size.
func (v *view) inner(p place) []byte { return blobInner(v.slabs[p.slab()][p.offset():]) }

func (v *view) body(r *record) body { return bodyOf(v.inner(r.where), r.nextDue) }

// id and namespace are the key of a record.
func (v *view) id(r *record) []byte        { return blobID(v.inner(r.where)) }
func (v *view) namespace(r *record) string { return v.profiles[r.profile].namespace }

// touch loads the record in a slot that is in use.
func (v *view) touch(slot uint32) uint64 {
	r := &v.pages[slot>>pageBits][slot&pageMask]
	return uint64(r.nextDue) + uint64(r.attempt)
}

// table keeps the timers in dense slots. Pages are copied before they are written if a snapshot may look at them, slabs are
// only added to, so a snapshot copies pointers, and any number of them may be alive. Guarded by FSM.mu.
type table struct {
	view
	heap  slabHeap
	index profileIndex
	infos []pageInfo
	// open is a stack of the pages that have a free slot, each once. spare is an empty page that no snapshot has seen.
	open  []uint32
	spare *page
	// generation counts the snapshots taken.
	generation uint64
	// alive is the number of snapshots that are not released; at 0 no page is shared.
	alive int
	// length is the number of slots ever used at once, used that of the slots in use.
	length uint32
	used   int
	// copied counts pages copied for the sake of a snapshot.
	copied uint64
}

type pageInfo struct {
	// taken has a bit for each slot in use.
	taken uint64
	// generation is that at which the page was made or last owned; one below the present is shared with a snapshot.
	generation uint64
	// lately is the slot of the page that was freed last.
	lately uint32
}

const pageFull = 1<<64 - 1

// alloc takes a free slot of the page that had its first one freed last: the one freed last in it, else the lowest. Its record
// must be set next.
func (t *table) alloc() uint32 {
	if len(t.open) == 0 {
		if len(t.pages) == 1<<(32-pageBits) {
			panic("raftfsm: the table is full")
		}
		t.open = append(t.open, uint32(len(t.pages)))
		t.pages, t.infos = append(t.pages, nil), append(t.infos, pageInfo{})
	}
	n := t.open[len(t.open)-1]
	info := &t.infos[n]
	if t.pages[n] == nil {
		t.pages[n], t.spare, info.generation = t.spare, nil, t.generation
		if t.pages[n] == nil {
			t.pages[n] = new(page)
		}
	}
	i := info.lately
	if info.taken>>i&1 != 0 {
		i = uint32(bits.TrailingZeros64(^info.taken))
	}
	info.taken |= 1 << i
	if info.taken == pageFull {
		t.open = t.open[:len(t.open)-1]
	}
	slot := n<<pageBits | i
	t.length = max(t.length, slot+1)
	t.used++
	return slot
}

// free gives a slot back, and its page if that was the last in it.
func (t *table) free(slot uint32) {
	n := slot >> pageBits
	*t.own(slot) = record{}
	info := &t.infos[n]
	if info.taken == pageFull {
		t.open = append(t.open, n)
	}
	info.lately = slot & pageMask
	info.taken &^= 1 << info.lately
	if t.used--; info.taken == 0 {
		t.spare, t.pages[n] = t.pages[n], nil
	}
}

// own returns the place of a slot's record to write to.
func (t *table) own(slot uint32) *record {
	n := slot >> pageBits
	if info := &t.infos[n]; info.generation < t.generation {
		if t.alive > 0 {
			clone := *t.pages[n]
			t.pages[n] = &clone
			t.copied++
		}
		info.generation = t.generation
	}
	return &t.pages[n][slot&pageMask]
}

// set writes a timer into a slot that was taken; what was there is the caller's to give up.
func (t *table) set(slot uint32, r *record, c *body) {
	inner := c.inner(r.nextDue)
	into, where := t.reserve(blobSize(inner))
	c.put(into, slot, r.nextDue, inner)
	r.where = where
	*t.own(slot) = *r
}

// share returns the view as it is now; it stays so until release.
func (t *table) share() view {
	t.generation++
	t.alive++
	return view{append([]*page(nil), t.pages...), append([][]byte(nil), t.slabs...), t.profiles[:len(t.profiles):len(t.profiles)]}
}

func (t *table) release() { t.alive-- }

// count is the number of timers.
func (t *table) count() int { return t.used }

func (t *table) check() error {
	if len(t.infos) != len(t.pages) || int(t.length) > len(t.pages)*pageSize {
		return fmt.Errorf("%d pages and %d infos for %d slots", len(t.pages), len(t.infos), t.length)
	}
	open := make(map[uint32]bool, len(t.open))
	for _, n := range t.open {
		if int(n) >= len(t.pages) || open[n] {
			return fmt.Errorf("page %d is out of range or twice among the open", n)
		}
		open[n] = true
	}
	used, uses := 0, make([]uint32, len(t.profiles))
	for n, p := range t.pages {
		info := &t.infos[n]
		if info.generation > t.generation || (p == nil) != (info.taken == 0) || open[uint32(n)] != (info.taken != pageFull) {
			return fmt.Errorf("page %d: generation %d of %d, taken %x, open %v", n, info.generation, t.generation, info.taken, open[uint32(n)])
		}
		used += bits.OnesCount64(info.taken)
		for i := range uint32(pageSize) {
			r := t.at(uint32(n)<<pageBits | i)
			if (r != nil) != (info.taken>>i&1 != 0) {
				return fmt.Errorf("slot %d of page %d: taken %x does not fit", i, n, info.taken)
			}
			if r == nil {
				continue
			}
			if slot := uint32(n)<<pageBits | i; slot >= t.length || blobSlot(t.slabs[r.where.slab()][r.where.offset():]) != slot {
				return fmt.Errorf("slot %d of %d: its blob is not its own", slot, t.length)
			}
			uses[r.profile]++
		}
	}
	if used != t.used {
		return fmt.Errorf("%d slots are taken, counted %d", used, t.used)
	}
	if t.spare != nil && *t.spare != (page{}) {
		return fmt.Errorf("the spare page is not empty")
	}
	if err := t.checkProfiles(uses); err != nil {
		return err
	}
	return t.checkSlabs()
}
