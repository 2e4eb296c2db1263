package wheel

// limits say how much is done at once. Those of a Wheel never change; tests choose small ones, so that a small wheel
// does all that a large one does.
type limits struct {
	work      int // elements that one Advance handles at most, which bounds how long it takes
	aheadBig  int // elements of a slot from which on it is moved down ahead of time
	aheadMin  int // elements that are then moved at least in one Advance
	aheadEach int // ticks after which is looked again for such slots
	touch     int // elements of a slot up to which the entries are warmed up on the way to level 0, and stale ones dropped
	few       int // elements of a slot up to which the first of them is looked for
	stale     int // stale elements that are always put up with
	sweep     int // chunks swept by an Advance while a sweep runs; Remove and Move sweep one
}

var defaults = limits{work: 8192, aheadBig: 1024, aheadMin: 512, aheadEach: 16, touch: 8192, few: 8, stale: 1024, sweep: 16}

// Advance brings time to now and fills due, from its start, with entries that are due, in the order of When and then
// of insertion. It returns their number. An entry that is emitted has left the wheel. more says that there is more to
// do for this now: due was too short, or the work of one call was up (n may then be 0); do what else is urgent and call again.
func (w *Wheel) Advance(now Tick, due []Due) (n int, more bool) {
	target := max(min(now, MaxTick)+1, w.base)
	budget := w.limits.work
	n, more = w.drainPast(due, &budget)
	for !more {
		t, l := w.first()
		if l > levels || t > target || l == 0 && t == target {
			w.settle(target)
			if target >= w.aheadAt {
				w.openAhead(budget)
			}
			break
		}
		w.base = max(w.base, t)
		if l == 0 {
			k := w.drain(t, due[n:], &budget)
			n += k
			more = w.slots[slotOf(0, t)].head != 0
			continue
		}
		if w.few(l, t) {
			if n < len(due) && w.emitLone(l, t, target, &due[n]) {
				n++
				continue
			}
			w.moveFew(l, t, target)
			continue
		}
		for j := range l {
			w.open[j] = max(w.open[j], t)
		}
		more = !w.moveDown(l, t, &budget)
	}
	w.sweepSome(w.limits.sweep)
	return n, more
}

// Next is a lower bound of the next tick at which Advance has work. If few timers share the slot of the first it is
// exactly when that is due; else it may be the tick at which the slot must be moved down, or at which removed timers
// must be swept out. It is not ok if there is nothing to do.
func (w *Wheel) Next() (Tick, bool) {
	if len(w.past.heap) > 0 {
		return w.Now(), true
	}
	if w.sweep.on || w.sweepDue() {
		return w.base, true
	}
	t, l := w.first()
	for w.elems > w.Len() && l <= levels && w.few(l, t) && w.prune(slotOf(l, t)) {
		t, l = w.first()
	}
	if l > levels || w.Len() == 0 {
		return 0, false
	}
	if l > 0 && w.few(l, t) {
		t = max(w.base, w.earliest(l, t))
	}
	for k := range levels {
		if at := max(w.base, w.open[k]-span(k+1)/2); at < t && w.aheadDue(k) {
			t = at
		}
	}
	return t, true
}

// first is the earliest tick that holds something: an occupied slot of level 0, or the start of a block that must be
// moved down from level l. l is above levels if the lists are empty.
func (w *Wheel) first() (t Tick, l int) {
	for l := range levels {
		d, ok := w.bits[l].from(int(w.base>>(levelBits*l)) & posMask)
		if !ok {
			continue
		}
		if t := w.base&^(span(l)-1) + Tick(d)<<(levelBits*l); t < w.open[l] {
			return t, l
		} // else it was moved ahead, and the rest of its block comes first
	}
	if w.farLen() > 0 {
		return max(w.open[levels-1], w.farMin&^(span(levels)-1)), levels
	}
	return 0, levels + 1
}

// settle ends a turn: all before target has been emitted, and no block that holds target waits to be moved down.
func (w *Wheel) settle(target Tick) {
	w.base = target
	for l := range levels {
		if w.open[l] <= target {
			w.open[l] = target&^(span(l+1)-1) + span(l+1)
		}
	}
}

// openAhead moves the next block of a level down while time is in the second half of the present one, a slice each
// time, if its slot is so large that it would hold up what is due when the block begins.
func (w *Wheel) openAhead(budget int) {
	w.aheadAt = w.base + Tick(w.limits.aheadEach)
	for l := levels - 1; l >= 0; l-- {
		left := w.open[l] - w.base
		if left > span(l+1)/2 || !w.aheadDue(l) {
			continue
		}
		slice := min(max(w.limits.aheadMin, 2*w.aheadSize(l)/int(left)), budget)
		budget -= slice
		w.moveDown(l+1, w.open[l], &slice)
		w.aheadAt = w.base
	}
}

// aheadDue says that the block that level l takes over next is large, or was moved in part, and that the level above has it.
func (w *Wheel) aheadDue(l int) bool {
	if l < levels-1 && w.open[l] == w.open[l+1] {
		return false
	}
	size := w.aheadSize(l)
	return size > w.limits.aheadBig || size > 0 && w.ahead(l)
}

// ahead says that a part of its next block has been moved to level l.
func (w *Wheel) ahead(l int) bool {
	if w.open[l]-w.base > span(l+1)/2 {
		return false
	}
	d, ok := w.bits[l].from(int(w.open[l]>>(levelBits*l)) & posMask)
	return ok && d < levelSlots/2
}

// aheadSize is the number of elements in the block that level l takes over next.
func (w *Wheel) aheadSize(l int) int {
	if l < levels-1 {
		return int(w.slots[slotOf(l+1, w.open[l])].n)
	}
	if w.slots[slotKept].n == 0 && w.farMin >= w.open[l]+span(levels) {
		return 0
	}
	return w.farLen()
}

func (w *Wheel) farLen() int { return int(w.slots[slotFar].n + w.slots[slotKept].n) }

// moveDown moves the slot of level l whose block begins at t to level l-1, in order. Until it says that this is
// done, new elements of the block still go to the slot's end, behind the older ones.
func (w *Wheel) moveDown(l int, t Tick, budget *int) bool {
	if l == levels {
		return w.moveFar(t, budget)
	}
	si := slotOf(l, t)
	s := &w.slots[si]
	check := l == 1 && int(s.n) <= w.limits.touch
	for s.head != 0 {
		if *budget <= 0 {
			return false
		}
		c := w.chunk(s.head)
		if check {
			w.touch(c, si)
		}
		for _, el := range c.el[c.off:c.n] {
			if check && w.stale(el) {
				w.elems--
				continue
			}
			w.push(slotOf(l-1, t|Tick(el.low)&(span(l)-1)), el)
		}
		s.n -= uint32(c.n - c.off)
		*budget -= int(c.n - c.off)
		w.pop(si)
	}
	w.open[l-1] = t + span(l)
	return true
}

// few says that the slot of level l whose block begins at t holds few elements, in one chunk, and is not the rest of one that was
// moved ahead: the elements that went before must not be overtaken.
func (w *Wheel) few(l int, t Tick) bool {
	if l == levels || l > 0 && w.bits[l-1].sum != 0 {
		return false
	}
	s := &w.slots[slotOf(l, t)]
	return int(s.n) <= w.limits.few && s.head == s.tail
}

// prune drops the stale elements of such a slot, so that removed timers wake no one, and says whether none was left.
func (w *Wheel) prune(si int) bool {
	c := w.chunk(w.slots[si].head)
	w.filterChunk(si, c)
	if c.n > 0 {
		return false
	}
	w.pop(si)
	return true
}

// earliest is the first tick in such a slot.
func (w *Wheel) earliest(l int, t Tick) Tick {
	c := w.chunk(w.slots[slotOf(l, t)].head)
	first := uint32(1<<32 - 1)
	mask := uint32(span(l) - 1)
	for _, el := range c.el[c.off:c.n] {
		first = min(first, el.low&mask)
	}
	return t | Tick(first)
}

// emitLone emits the one entry of such a slot if it is due before target, without moving it down.
func (w *Wheel) emitLone(l int, t, target Tick, due *Due) bool {
	si := slotOf(l, t)
	s := &w.slots[si]
	c := w.chunk(s.head)
	el := c.el[c.off]
	when := t | Tick(el.low)&(span(l)-1)
	e := w.entry(el.idx)
	if s.n != 1 || when >= target || e.stamp != el.stamp {
		return false
	}
	w.openAt(l, when)
	w.elems--
	s.n = 0
	w.pop(si)
	*due = Due{When: when, Ref: e.ref}
	w.leave(el.idx, e)
	return true
}

// openAt brings time to a tick before which nothing is left, in a block of level l, and opens the blocks below it.
func (w *Wheel) openAt(l int, when Tick) {
	w.base = max(w.base, when)
	for j := range l {
		w.open[j] = max(w.open[j], w.base&^(span(j+1)-1)+span(j+1))
	}
}

// moveFew moves such a slot to the levels on which its elements must lie when time has come to the first of them, or
// to target if that is before. Nothing else lies in between.
func (w *Wheel) moveFew(l int, t, target Tick) {
	w.openAt(l, min(target, w.earliest(l, t)))
	si := slotOf(l, t)
	c := w.chunk(w.slots[si].head)
	if l == 1 {
		w.touch(c, si)
	}
	for _, el := range c.el[c.off:c.n] {
		w.elems--
		w.place(t|Tick(el.low)&(span(l)-1), el)
	}
	w.slots[si].n = 0
	w.pop(si)
}

// moveFar goes through the far list, moves the block that begins at t to the highest level and keeps the rest.
func (w *Wheel) moveFar(t Tick, budget *int) bool {
	s := &w.slots[slotFar]
	for s.head != 0 {
		if *budget <= 0 {
			return false
		}
		c := w.chunk(s.head)
		for i := int(c.off); i < int(c.n); i += 2 {
			when := c.farTick(i)
			if when < t+span(levels) {
				w.push(slotOf(levels-1, when), c.el[i])
			} else {
				w.keptMin = min(w.keptMin, when)
				w.pushFar(slotKept, when, c.el[i])
			}
		}
		s.n -= uint32(c.n-c.off) / 2
		*budget -= int(c.n - c.off)
		w.pop(slotFar)
	}
	w.slots[slotFar], w.slots[slotKept] = w.slots[slotKept], slot{}
	w.farMin, w.keptMin = w.keptMin, MaxTick
	w.sweep.leave(slotFar)
	w.sweep.leave(slotKept)
	w.open[levels-1] = t + span(levels)
	return true
}

// drain emits the slot of level 0 for tick t, as far as due and budget go.
func (w *Wheel) drain(t Tick, due []Due, budget *int) (n int) {
	si := slotOf(0, t)
	s := &w.slots[si]
	for s.head != 0 {
		c := w.chunk(s.head)
		if c.n-c.off > 1 {
			w.touch(c, si)
		}
		for c.off < c.n {
			if n == len(due) || *budget == 0 {
				return n
			}
			el := c.el[c.off]
			c.off++
			s.n--
			w.elems--
			*budget--
			e := w.entry(el.idx)
			if e.stamp == el.stamp {
				due[n] = Due{When: t, Ref: e.ref}
				n++
				w.leave(el.idx, e)
			}
		}
		w.pop(si)
	}
	return n
}

// drainPast emits what was past when it came.
func (w *Wheel) drainPast(due []Due, budget *int) (n int, more bool) {
	for len(w.past.heap) > 0 {
		if n == len(due) || *budget == 0 {
			return n, true
		}
		p := w.past.pop()
		w.elems--
		*budget--
		e := w.entry(p.idx)
		if e.stamp == p.stamp {
			due[n] = Due{When: p.when, Ref: e.ref}
			n++
			w.leave(p.idx, e)
		}
	}
	return n, false
}
