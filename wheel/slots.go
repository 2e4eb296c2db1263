package wheel

import "math/bits"

const (
	levels     = 5
	levelBits  = 8
	levelSlots = 2 << levelBits // two blocks of 256: the present one, and the next while it is opened ahead
	posMask    = levelSlots - 1

	slotFar  = levels * levelSlots // beyond the highest level
	slotKept = slotFar + 1         // what stays there while the far list is gone through
	slotsAll = slotFar + 2

	chunkLen = 42
	hotMax   = 32
)

// element stands for an entry in a list. low is the lower half of its tick; the upper half follows from the slot.
type element struct{ idx, stamp, low uint32 }

// chunk is a link of a slot's list: eight cache lines.
type chunk struct {
	next   uint32
	n, off uint16 // elements off to n are in use
	el     [chunkLen]element
}

// slot is a list of chunks in the order of insertion. 0 is no chunk.
type slot struct{ head, tail, n uint32 }

// bitmap has a bit for each slot of a level, and in sum one for each word.
type bitmap struct {
	words [levelSlots / 64]uint64
	sum   uint8
}

func (b *bitmap) set(pos int) {
	b.words[pos>>6] |= 1 << (pos & 63)
	b.sum |= 1 << (pos >> 6)
}

func (b *bitmap) clear(pos int) {
	b.words[pos>>6] &^= 1 << (pos & 63)
	if b.words[pos>>6] == 0 {
		b.sum &^= 1 << (pos >> 6)
	}
}

func (b *bitmap) has(pos int) bool { return b.words[pos>>6]>>(pos&63)&1 != 0 }

// from is the distance from pos to the first bit at or after it, going round; not ok if there is none.
func (b *bitmap) from(pos int) (dist int, ok bool) {
	if b.sum == 0 {
		return 0, false
	}
	k := pos >> 6
	if w := b.words[k] >> (pos & 63); w != 0 {
		return bits.TrailingZeros64(w), true
	}
	// Words k+1 .. k+8: bit 0 of the rotated sum is word k+1, bit 7 is word k again, whose upper part is known to be empty.
	k = (k + 1 + bits.TrailingZeros8(bits.RotateLeft8(b.sum, -(k+1)))) & 7
	return (k<<6 + bits.TrailingZeros64(b.words[k]) - pos) & posMask, true
}

// span is the number of ticks that one slot of level l covers.
func span(l int) Tick { return 1 << (levelBits * l) }

// slotOf is the slot of a tick on level l.
func slotOf(l int, when Tick) int { return l*levelSlots + int(when>>(levelBits*l))&posMask }

// push appends an element to a slot's list.
func (w *Wheel) push(si int, el element) {
	s := &w.slots[si]
	if s.tail != 0 {
		if c := w.chunk(s.tail); c.n < chunkLen {
			c.el[c.n] = el
			c.n++
			s.n++
			return
		}
	}
	c := w.extend(si)
	c.el[0] = el
	c.n = 1
	s.n++
}

// extend appends an empty chunk to a slot's list.
func (w *Wheel) extend(si int) *chunk {
	s := &w.slots[si]
	i := w.newChunk()
	c := w.chunk(i)
	c.next, c.n, c.off = 0, 0, 0
	if s.tail != 0 {
		w.chunk(s.tail).next = i
	} else {
		s.head = i
		if si < slotFar {
			w.bits[si/levelSlots].set(si & posMask)
		}
	}
	s.tail = i
	return c
}

// pop frees the first chunk of a slot's list, whose elements have been dealt with and are out of s.n.
func (w *Wheel) pop(si int) {
	s := &w.slots[si]
	i := s.head
	s.head = w.chunk(i).next
	if s.head == 0 {
		w.emptied(si)
	}
	w.sweep.leave(si)
	w.freeChunk(i)
}

// emptied marks a slot as empty.
func (w *Wheel) emptied(si int) {
	w.slots[si] = slot{}
	if si < slotFar {
		w.bits[si/levelSlots].clear(si & posMask)
	}
}

// chunk is chunk i.
func (w *Wheel) chunk(i uint32) *chunk { return &w.chunks[i>>chunkBits][i&(chunkSlab-1)] }

// newChunk hands out a chunk with whatever is in it.
func (w *Wheel) newChunk() uint32 {
	if k := len(w.hot) - 1; k >= 0 {
		i := w.hot[k]
		w.hot = w.hot[:k]
		return i
	}
	i, fresh := w.chunkAt.alloc()
	if fresh {
		s := int(i >> chunkBits)
		if s == len(w.chunks) {
			w.chunks = append(w.chunks, nil)
		}
		w.chunks[s] = new([chunkSlab]chunk)
	}
	return i
}

func (w *Wheel) freeChunk(i uint32) {
	if len(w.hot) < hotMax {
		w.hot = append(w.hot, i)
		return
	}
	if !w.chunkAt.release(i) {
		return
	}
	for s, ok := w.chunkAt.excess(); ok; s, ok = w.chunkAt.excess() {
		w.chunks[s] = nil
		w.chunkAt.drop(s)
	}
}

// pushFar appends an element to a far list, where it takes two places: the second one carries the upper half of the tick.
func (w *Wheel) pushFar(si int, when Tick, el element) {
	w.push(si, el)
	w.push(si, element{low: uint32(when >> 32)})
	w.slots[si].n-- // a pair counts as one
}

// farTick is the tick of the pair at place i.
func (c *chunk) farTick(i int) Tick { return Tick(c.el[i+1].low)<<32 | Tick(c.el[i].low) }

// step is the number of places that an element takes in a slot's list.
func step(si int) int {
	if si >= slotFar {
		return 2
	}
	return 1
}
