package wheel

import (
	"fmt"
	"math/bits"
)

// Check verifies the invariants of the package and says which one is broken. It takes time and memory in proportion
// to the wheel's size.
func (w *Wheel) Check() error {
	for _, check := range []func() error{w.checkOpen, w.checkEntries, w.checkLists, w.entryAt.check, w.chunkAt.check} {
		if err := check(); err != nil {
			return err
		}
	}
	return nil
}

// checkOpen verifies the ranges of the levels: aligned, nested, and no wider than a level's slots.
func (w *Wheel) checkOpen() error {
	for l, end := range w.open {
		blk := span(l + 1)
		switch {
		case end&(blk-1) != 0:
			return fmt.Errorf("level %d ends at %d, not at a block's end", l, end)
		case l > 0 && end < w.open[l-1]:
			return fmt.Errorf("level %d ends at %d, before level %d does", l, end, l-1)
		case end > w.base&^(blk-1)+2*blk:
			return fmt.Errorf("level %d ends at %d, out of its slots at %d", l, end, w.base)
		}
	}
	return nil
}

// checkEntries verifies that exactly the places handed out have an odd generation.
func (w *Wheel) checkEntries() error {
	inUse := 0
	for s, slab := range w.entries {
		for k, e := range slab {
			free := w.entryAt.meta[s].words[k>>6]>>(k&63)&1 != 0 || slab == &gone || w.entryAt.isNear(uint32(s<<entryBits|k))
			if e.gen&1 == 1 {
				inUse++
				if free {
					return fmt.Errorf("entry %d is in use and free", s<<entryBits|k)
				}
			} else if !free && e.gen != 0 {
				return fmt.Errorf("entry %d is neither in use nor free", s<<entryBits|k)
			}
			if slab != &gone && e.stamp == noStamp {
				return fmt.Errorf("entry %d has the stamp that none may have", s<<entryBits|k)
			}
		}
	}
	if inUse != w.Len() {
		return fmt.Errorf("%d entries in use, Len is %d", inUse, w.Len())
	}
	return nil
}

// audit is what checkLists has found so far.
type audit struct {
	valid         map[uint32]bool
	elems, chunks int
}

func (a *audit) add(w *Wheel, el element) error {
	a.elems++
	if w.stale(el) {
		return nil
	}
	if a.valid[el.idx] {
		return fmt.Errorf("entry %d has two valid elements", el.idx)
	}
	if w.entry(el.idx).gen&1 == 0 {
		return fmt.Errorf("entry %d is free and has a valid element", el.idx)
	}
	a.valid[el.idx] = true
	return nil
}

// checkLists verifies the slots, their bits, and that each entry has one valid element.
func (w *Wheel) checkLists() error {
	a := &audit{valid: make(map[uint32]bool, w.Len())}
	for si := range w.slots {
		if err := w.checkSlot(a, si); err != nil {
			return fmt.Errorf("slot %d of level %d: %w", si&posMask, si/levelSlots, err)
		}
	}
	for i, p := range w.past.heap {
		if err := a.add(w, element{idx: p.idx, stamp: p.stamp}); err != nil {
			return fmt.Errorf("past list: %w", err)
		}
		if i > 0 && p.before(&w.past.heap[(i-1)/4]) {
			return fmt.Errorf("past list: element %d lies below a later one", i)
		}
		if p.when >= w.base {
			return fmt.Errorf("past list: tick %d at %d", p.when, w.base)
		}
	}
	switch {
	case len(a.valid) != w.Len():
		return fmt.Errorf("%d entries have a valid element, Len is %d", len(a.valid), w.Len())
	case a.elems != w.elems:
		return fmt.Errorf("%d elements, counted as %d", a.elems, w.elems)
	case a.chunks+len(w.hot)+1 != w.chunkAt.used:
		return fmt.Errorf("%d chunks in lists, %d free and hot, %d handed out", a.chunks, len(w.hot), w.chunkAt.used)
	}
	return nil
}

// checkSlot walks one list.
func (w *Wheel) checkSlot(a *audit, si int) error {
	s := w.slots[si]
	if si < slotFar && w.bits[si/levelSlots].has(si&posMask) != (s.head != 0) {
		return fmt.Errorf("its bit says %v", s.head == 0)
	}
	n, last := 0, uint32(0)
	for i := s.head; i != 0; i = w.chunk(i).next {
		c := w.chunk(i)
		if c.off >= c.n || c.n > chunkLen || int(c.n)%step(si) != 0 {
			return fmt.Errorf("chunk %d holds %d to %d", i, c.off, c.n)
		}
		for k := int(c.off); k < int(c.n); k += step(si) {
			if err := a.add(w, c.el[k]); err != nil {
				return err
			}
			if err := w.checkRange(si, c, k); err != nil {
				return err
			}
			n++
		}
		a.chunks++
		last = i
	}
	if n != int(s.n) || last != s.tail {
		return fmt.Errorf("%d elements up to chunk %d, counted as %d up to %d", n, last, s.n, s.tail)
	}
	return nil
}

// checkRange verifies that the tick of element k of c belongs to the level and the slot that it lies in.
func (w *Wheel) checkRange(si int, c *chunk, k int) error {
	if si >= slotFar {
		if when := c.farTick(k); when < w.open[levels-1] || when < w.farMin {
			return fmt.Errorf("tick %d, least %d, of the highest level %d", when, w.farMin, w.open[levels-1])
		}
		return nil
	}
	l := si / levelSlots
	at := int(w.base>>(levelBits*l)) & posMask
	start := w.base&^(span(l)-1) + Tick((si&posMask-at)&posMask)<<(levelBits*l)
	when := start | Tick(c.el[k].low)&(span(l)-1)
	from, to := w.base, w.open[l]
	if l > 0 {
		from = w.open[l-1]
	}
	if w.aheadSize(l) > 0 {
		to += span(l + 1) // may have been moved ahead in part
	}
	if when < from || when >= to || uint32(when) != c.el[k].low {
		return fmt.Errorf("tick %d (%d) outside %d to %d", when, c.el[k].low, from, to)
	}
	return nil
}

// check verifies the counts and summaries of a space.
func (p *space) check() error {
	used, spare, slabs := -bits.OnesCount64(p.near), 0, 0
	if p.near != 0 && p.meta[p.nearAt>>p.bits].words[p.nearAt&(1<<p.bits-1)>>6]&p.near != 0 {
		return fmt.Errorf("places from %d on are free twice", p.nearAt)
	}
	for s := range p.meta {
		m := &p.meta[s]
		free := 0
		for w, word := range m.words {
			for b := word; b != 0; b &= b - 1 {
				free++
			}
			if (m.sum>>w&1 != 0) != (word != 0) {
				return fmt.Errorf("slab %d: summary of word %d is wrong", s, w)
			}
		}
		held := p.hole[s>>6]>>(s&63)&1 == 0
		if held {
			slabs++
			used += 1<<p.bits - free
		}
		if free == 1<<p.bits {
			spare++
		}
		if free != int(m.free) || p.avail[s>>6]>>(s&63)&1 != b2u(free > 0) || p.whole[s>>6]>>(s&63)&1 != b2u(free == 1<<p.bits) {
			return fmt.Errorf("slab %d: %d places free, counted as %d", s, free, m.free)
		}
	}
	if used != p.used || spare != p.spare || slabs != p.slabN {
		return fmt.Errorf("space has %d places used, %d slabs, %d spare, counted as %d, %d, %d", used, slabs, spare, p.used, p.slabN, p.spare)
	}
	return nil
}

func b2u(b bool) uint64 { return uint64(b2i(b)) }
