package wheel

// sweeper drops stale elements once they outnumber the entries. A sweep goes through all lists, a few chunks at each
// call, so nothing ever waits for it; memory stays below twice what the entries need.
type sweeper struct {
	on        bool
	si        int    // the slot being swept
	prev, cur uint32 // the chunk kept last, and the one to be swept next; 0 is none
}

// leave tells the sweeper that slot si loses its first chunk: the rest of that slot is about to be dealt with anyway.
func (s *sweeper) leave(si int) {
	if si == s.si {
		s.prev, s.cur = 0, 0
	}
}

func (w *Wheel) sweepDue() bool { return w.elems > 2*w.Len()+w.limits.stale }

// sweepSome sweeps up to chunks chunks if there is need.
func (w *Wheel) sweepSome(chunks int) {
	if !w.sweep.on {
		if !w.sweepDue() {
			return
		}
		w.sweep = sweeper{on: true, si: slotsAll}
	}
	for ; chunks > 0 && w.sweep.on; chunks-- {
		w.sweepStep()
	}
}

// purge drops all stale elements at once.
func (w *Wheel) purge() {
	w.sweep = sweeper{on: true, si: slotsAll}
	for w.sweep.on {
		w.sweepStep()
	}
}

// sweepStep sweeps one chunk; after the last slot it sweeps the past list, whole, and ends.
func (w *Wheel) sweepStep() {
	s := &w.sweep
	for s.cur == 0 {
		if s.si--; s.si < 0 {
			w.past.filter(func(p pastElement) bool { return !w.stale(element{idx: p.idx, stamp: p.stamp}) }, &w.elems)
			s.on = false
			return
		}
		s.prev, s.cur = 0, w.slots[s.si].head
	}
	c := w.chunk(s.cur)
	i, next := s.cur, c.next
	w.filterChunk(s.si, c)
	s.cur = next
	if c.n > 0 && s.prev != 0 {
		if p := w.chunk(s.prev); int(p.n+c.n) <= chunkLen {
			copy(p.el[p.n:], c.el[:c.n])
			p.n += c.n
			c.n = 0
		}
	}
	if c.n > 0 {
		s.prev = i
		return
	}
	w.unlink(s.si, s.prev, next)
	w.freeChunk(i)
}

// filterChunk drops the stale elements of a chunk and closes the gaps. It writes each element and only then counts it
// in or not: what is stale cannot be predicted, so a branch would cost more.
func (w *Wheel) filterChunk(si int, c *chunk) {
	w.touch(c, si)
	k, d, n := 0, step(si), 0
	for i := int(c.off); i < int(c.n); i += d {
		el := c.el[i]
		if d == 2 {
			c.el[k+1] = c.el[i+1]
		}
		c.el[k] = el
		valid := b2i(w.entry(el.idx).stamp == el.stamp)
		k += valid * d
		n += 1 - valid
	}
	c.off, c.n = 0, uint16(k)
	w.elems -= n
	w.slots[si].n -= uint32(n)
}

// unlink takes the chunk between prev and next out of a slot's list.
func (w *Wheel) unlink(si int, prev, next uint32) {
	s := &w.slots[si]
	if prev == 0 {
		s.head = next
	} else {
		w.chunk(prev).next = next
	}
	if next == 0 {
		s.tail = prev
	}
	if s.head == 0 {
		w.emptied(si)
		w.restTaken(si/levelSlots - 1)
	}
}

// restTaken opens the next block of level l if a part of it was moved ahead and the sweep has taken all the rest.
func (w *Wheel) restTaken(l int) {
	if l >= 0 && w.aheadSize(l) == 0 && w.ahead(l) {
		w.open[l] += span(l + 1)
	}
}

// touch loads the entries of a chunk's elements, and the next chunk, so that the cache misses overlap.
func (w *Wheel) touch(c *chunk, si int) {
	sum := uint32(w.chunk(c.next).n)
	d := step(si)
	for i := int(c.off); i < int(c.n); i += d {
		sum += w.entry(c.el[i].idx).stamp
	}
	w.sink = sum
}

// stale says that an element's entry has moved or left.
func (w *Wheel) stale(el element) bool { return w.entry(el.idx).stamp != el.stamp }
