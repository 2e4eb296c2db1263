package raftfsm

import (
	"fmt"
	"math/bits"
)

const (
	pageBits = 10
	pageSize = 1 << pageBits
	pageMask = pageSize - 1
)

// page is the places of the blobs in so many slots; 0 is a free slot.
type page [pageSize]place

// view is what is needed to read timers: of the table, or of a snapshot, which has slices of its own.
type view struct {
	// pages holds the records by slot; nil is a page of free slots.
	pages []*page
	// slabs holds the blobs by the number of their slab.
	slabs [][]byte
	// profiles holds what timers share; an entry is not written while a snapshot may look at it.
	profiles []profile
}

// where is the place of the blob in a slot, 0 if that is free.
func (v *view) where(slot uint32) place {
	n := slot >> pageBits
	if int(n) >= len(v.pages) || v.pages[n] == nil {
		return 0
	}
	return v.pages[n][slot&pageMask]
}

// at returns the record in a slot; its where is 0 if that is free.
func (v *view) at(slot uint32) (r record) {
	if r.where = v.where(slot); r.where != 0 {
		r.read(v.inner(r.where))
	}
	return r
}

// key is the key of the timer in a slot, which is not free.
func (v *view) key(slot uint32) (namespace string, id []byte) {
	in := v.inner(v.where(slot))
	return v.profiles[blobProfile(in)].namespace, blobID(in)
}

// each calls f for all records.
func (v *view) each(f func(r *record)) {
	var r record
	for _, p := range v.pages {
		if p == nil {
			continue
		}
		for _, r.where = range p {
			if r.where != 0 {
				r.read(v.inner(r.where))
				f(&r)
			}
		}
	}
}

// inner is what a blob holds behind its size.
func (v *view) inner(p place) []byte { return blobInner(v.slabs[p.slab()][p.offset():]) }

func (v *view) body(r *record) body { return bodyOf(v.inner(r.where)) }

// id and namespace are the key of a record.
func (v *view) id(r *record) []byte        { return blobID(v.inner(r.where)) }
func (v *view) namespace(r *record) string { return v.profiles[r.profile].namespace }

// touch loads the beginning of a blob: the ID and the record most likely end in its second cache line.
func (v *view) touch(p place) uint64 {
	b := v.slabs[p.slab()][p.offset():]
	return uint64(b[0]) + uint64(b[min(63, len(b)-1)])
}

// touchAll loads a blob of the usual size, and whoever changes it reads all of it.
func (v *view) touchAll(p place) uint64 {
	b := v.slabs[p.slab()][p.offset():]
	last := len(b) - 1
	return uint64(b[0]) + uint64(b[min(64, last)]) + uint64(b[min(128, last)]) + uint64(b[min(192, last)])
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
	// slots has the bits of 64 slots each, used is the number of those in use.
	slots [pageSize / 64]slotBits
	used  uint32
	// generation is that at which the page was made or last owned; one below the present is shared with a snapshot.
	generation uint64
	// lately is the slot of the page that was freed last.
	lately uint32
}

// slotBits has a bit for each slot that is in use, and one for each whose timer the order does not know yet.
type slotBits struct{ taken, young uint64 }

func (p *pageInfo) has(i uint32) bool     { return p.slots[i>>6].taken>>(i&63)&1 != 0 }
func (p *pageInfo) isYoung(i uint32) bool { return p.slots[i>>6].young>>(i&63)&1 != 0 }

// next is the free slot that was freed last, else the lowest. There must be one.
func (p *pageInfo) next() uint32 {
	if !p.has(p.lately) {
		return p.lately
	}
	k := 0
	for p.slots[k].taken == 1<<64-1 {
		k++
	}
	return uint32(k<<6 + bits.TrailingZeros64(^p.slots[k].taken))
}

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
	i := info.next()
	info.slots[i>>6].taken |= 1 << (i & 63)
	if info.used++; info.used == pageSize {
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
	*t.own(slot) = 0
	info := &t.infos[n]
	if info.used == pageSize {
		t.open = append(t.open, n)
	}
	info.lately = slot & pageMask
	info.slots[info.lately>>6].taken &^= 1 << (info.lately & 63)
	info.used--
	if t.used--; info.used == 0 {
		t.spare, t.pages[n] = t.pages[n], nil
	}
}

// setYoung notes that the order does not know the timer in a slot yet; dropYoung that it knows, or need not, and says whether it did not.
func (t *table) setYoung(slot uint32) {
	t.infos[slot>>pageBits].slots[slot&pageMask>>6].young |= 1 << (slot & 63)
}

func (t *table) dropYoung(slot uint32) bool {
	word, bit := &t.infos[slot>>pageBits].slots[slot&pageMask>>6].young, uint64(1)<<(slot&63)
	if *word&bit == 0 {
		return false
	}
	*word &^= bit
	return true
}

// own returns the place of a slot to write to.
func (t *table) own(slot uint32) *place {
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
	inner := c.inner(r)
	into, where := t.reserve(blobSize(inner))
	c.put(into, slot, r, inner)
	r.where = where
	*t.own(slot) = where
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
		if info.generation > t.generation || (p == nil) != (info.used == 0) || open[uint32(n)] != (info.used != pageSize) {
			return fmt.Errorf("page %d: generation %d of %d, %d used, open %v", n, info.generation, t.generation, info.used, open[uint32(n)])
		}
		taken := 0
		for i := range uint32(pageSize) {
			slot := uint32(n)<<pageBits | i
			r := t.at(slot)
			if (r.where != 0) != info.has(i) || info.isYoung(i) && !info.has(i) {
				return fmt.Errorf("slot %d of page %d: %x does not fit", i, n, info.slots)
			}
			if r.where == 0 {
				continue
			}
			taken++
			if slot >= t.length || blobSlot(t.slabs[r.where.slab()][r.where.offset():]) != slot {
				return fmt.Errorf("slot %d of %d: its blob is not its own", slot, t.length)
			}
			uses[r.profile]++
		}
		if taken != int(info.used) {
			return fmt.Errorf("page %d has %d slots in use, counted %d", n, taken, info.used)
		}
		used += taken
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
