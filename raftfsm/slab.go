package raftfsm

import (
	"fmt"
	"math/bits"
	"unsafe"
)

// place is where a blob lies: the number of its slab, which is not 0, and the offset in it.
type place uint64

func placeOf(slab uint32, offset int) place { return place(slab)<<32 | place(uint32(offset)) }

func (p place) slab() uint32 { return uint32(p >> 32) }
func (p place) offset() int  { return int(uint32(p)) }

const (
	// minSlab and maxSlab bound the slabs that hold many blobs; a blob above ownSlab has one alone.
	minSlab = 4 << 10
	maxSlab = 64 << 10
	ownSlab = 8 << 10
	// slabLists is how finely the slabs are told apart by what is dead in them.
	slabLists = 16
	// compactBase and compactFactor bound what one entry compacts: so many bytes, and so many for each byte that died in it.
	compactBase   = 4 << 10
	compactFactor = 4
)

// slabInfo is what the table knows of a slab. All its bytes are in view.slabs; the length there is what is written.
type slabInfo struct {
	// dead is how many bytes belong to blobs that no record points to.
	dead int32
	// list is where the slab waits for compaction, -1 if nowhere (free, the head, the victim); before and after are its neighbours there.
	list          int32
	before, after uint32
}

// slabHeap is the slabs of a table. Bytes are written once: a blob goes behind the last in the head, and when it is dead its
// place is not used again. Once a quarter of all bytes is dead, the slab with most of them is the victim: what lives in it is
// written again, some with each entry, and the slab is given back. So a snapshot may share all slabs. Guarded by FSM.mu.
type slabHeap struct {
	infos []slabInfo
	free  []uint32
	lists [slabLists]uint32
	// head takes what is written, victim is being compacted up to cursor; 0 is none.
	head, victim uint32
	cursor       int
	// used is all bytes that were written to present slabs, dead those of dead blobs, died those that died since the last compact.
	used, dead, died int64
	// moved counts the bytes that were moved by compaction.
	moved uint64
}

// reserve returns the bytes of a new blob and its place.
func (t *table) reserve(size int) ([]byte, place) {
	s := &t.heap
	n := s.head
	switch {
	case size > ownSlab:
		n = t.addSlab(size)
	case n == 0 || len(t.slabs[n])+size > cap(t.slabs[n]):
		s.head = 0
		if n != 0 {
			t.settle(n)
		}
		n = t.addSlab(max(t.slabSize(), size))
		s.head = n
	}
	at := len(t.slabs[n])
	t.slabs[n] = t.slabs[n][:at+size]
	s.used += int64(size)
	if n != s.head {
		t.settle(n)
	}
	return t.slabs[n][at : at+size : at+size], placeOf(n, at)
}

// slabSize is about an eighth of what is there.
func (t *table) slabSize() int {
	return min(max(minSlab, 1<<bits.Len64(uint64(t.heap.used)/8)), maxSlab)
}

func (t *table) addSlab(size int) uint32 {
	s := &t.heap
	bytes, info := make([]byte, 0, size), slabInfo{list: -1}
	if last := len(s.free) - 1; last >= 0 {
		n := s.free[last]
		s.free = s.free[:last]
		t.slabs[n], s.infos[n] = bytes, info
		return n
	}
	if len(t.slabs) == 0 {
		t.slabs, s.infos = append(t.slabs, nil), append(s.infos, slabInfo{list: -1})
	}
	t.slabs, s.infos = append(t.slabs, bytes), append(s.infos, info)
	return uint32(len(t.slabs) - 1)
}

// kill gives a blob up.
func (t *table) kill(p place) {
	s, n := &t.heap, p.slab()
	size := blobSize(len(t.inner(p)))
	s.dead += int64(size)
	s.died += int64(size)
	s.infos[n].dead += int32(size)
	if n != s.head {
		t.settle(n)
	}
}

// settle puts a slab that is not written any more where it belongs by what is dead in it: back to the heap if that is all.
func (t *table) settle(n uint32) {
	s := &t.heap
	info := &s.infos[n]
	if int(info.dead) == len(t.slabs[n]) {
		t.dropSlab(n)
		return
	}
	list := int32(-1)
	if n != s.victim {
		list = info.dead * slabLists / int32(len(t.slabs[n]))
	}
	if list != info.list {
		s.unlink(n)
		s.link(n, list)
	}
}

func (t *table) dropSlab(n uint32) {
	s := &t.heap
	s.unlink(n)
	if n == s.victim {
		s.victim = 0
	}
	s.used -= int64(len(t.slabs[n]))
	s.dead -= int64(s.infos[n].dead)
	s.infos[n] = slabInfo{list: -1}
	t.slabs[n] = nil
	s.free = append(s.free, n)
}

func (s *slabHeap) unlink(n uint32) {
	info := &s.infos[n]
	if info.list < 0 {
		return
	}
	if info.before != 0 {
		s.infos[info.before].after = info.after
	} else {
		s.lists[info.list] = info.after
	}
	if info.after != 0 {
		s.infos[info.after].before = info.before
	}
	info.list, info.before, info.after = -1, 0, 0
}

func (s *slabHeap) link(n uint32, list int32) {
	if list < 0 {
		return
	}
	info := &s.infos[n]
	info.list, info.after = list, s.lists[list]
	if info.after != 0 {
		s.infos[info.after].before = n
	}
	s.lists[list] = n
}

// compact moves some blobs together if too much is dead. No place that was read before is good afterwards.
func (t *table) compact() {
	s := &t.heap
	budget := compactBase + compactFactor*s.died
	s.died = 0
	for budget > 0 {
		if s.victim == 0 && !t.chooseVictim() {
			return
		}
		victim := s.victim
		from := placeOf(victim, s.cursor)
		size := blobSize(len(t.inner(from)))
		s.cursor += size
		budget -= int64(size)
		slot := blobSlot(t.slabs[victim][from.offset():])
		if t.where(slot) == from {
			into, to := t.reserve(size)
			copy(into, t.slabs[victim][from.offset():])
			before := t.copied
			*t.own(slot) = to
			budget -= int64(t.copied-before) * int64(unsafe.Sizeof(page{}))
			t.kill(from)
			s.died -= int64(size)
			s.moved += uint64(size)
		}
	}
}

// chooseVictim says that there is one: that enough is dead to be worth it.
func (t *table) chooseVictim() bool {
	s := &t.heap
	if s.dead*4 < s.used || s.dead < maxSlab {
		return false
	}
	for list := slabLists - 1; list > 0; list-- {
		if n := s.lists[list]; n != 0 {
			s.unlink(n)
			s.victim, s.cursor = n, 0
			return true
		}
	}
	return false
}

// checkSlabs verifies that the slabs are full of blobs, that each record points to one which names its slot, and the counts.
func (t *table) checkSlabs() error {
	s := &t.heap
	if len(s.infos) != len(t.slabs) {
		return fmt.Errorf("%d slabs, %d infos", len(t.slabs), len(s.infos))
	}
	var used, dead, free, live int64
	for n, b := range t.slabs {
		info := &s.infos[n]
		if b == nil {
			if n > 0 {
				free++
			}
			if info.dead != 0 || info.list >= 0 {
				return fmt.Errorf("free slab %d has %d dead bytes, list %d", n, info.dead, info.list)
			}
			continue
		}
		gone := 0
		for at := 0; at < len(b); {
			size := blobSize(len(blobInner(b[at:])))
			if t.where(blobSlot(b[at:])) != placeOf(uint32(n), at) {
				gone += size
			} else {
				live++
			}
			at += size
		}
		if gone != int(info.dead) {
			return fmt.Errorf("slab %d has %d dead bytes, counted %d", n, gone, info.dead)
		}
		if uint32(n) != s.head && gone == len(b) {
			return fmt.Errorf("slab %d is all dead", n)
		}
		waits := uint32(n) != s.head && uint32(n) != s.victim
		if want := info.dead * slabLists / int32(max(1, len(b))); waits && info.list != want || !waits && info.list >= 0 {
			return fmt.Errorf("slab %d is in list %d, want %d, waits %v", n, info.list, want, waits)
		}
		used += int64(len(b))
		dead += int64(gone)
	}
	if used != s.used || dead != s.dead || free != int64(len(s.free)) || live != int64(t.count()) {
		return fmt.Errorf("slabs of %d bytes, %d dead, %d free slabs, %d blobs; counted %d, %d, %d, %d",
			used, dead, free, live, s.used, s.dead, len(s.free), t.count())
	}
	return t.checkLists()
}

func (t *table) checkLists() error {
	s, listed := &t.heap, 0
	for list, n := range s.lists {
		for before := uint32(0); n != 0; before, n = n, s.infos[n].after {
			if info := &s.infos[n]; info.list != int32(list) || info.before != before {
				return fmt.Errorf("slab %d in list %d says list %d, behind %d", n, list, info.list, info.before)
			}
			listed++
		}
	}
	for n := range s.infos {
		if s.infos[n].list >= 0 {
			listed--
		}
	}
	if listed != 0 {
		return fmt.Errorf("the lists of slabs are off by %d", listed)
	}
	return nil
}
