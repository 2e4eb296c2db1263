package wheel

import "math/bits"

const (
	entryBits = 12 // 4,096 entries of 16 bytes are a slab of 64 KiB
	entryLen  = 1 << entryBits
	chunkBits = 7 // and so are 128 chunks of 512
	chunkSlab = 1 << chunkBits
)

// slabMeta says which places of one slab are free. It lies beside the slab, so that a slab fills whole pages.
type slabMeta struct {
	sum   uint64 // bit w: words[w] is not 0
	words [64]uint64
	free  int32
}

// space hands out places in slabs, the lowest free ones first, so that after a flood the upper slabs run empty and are
// given back to the garbage collector. It only keeps the books: the slabs are its owner's, never move and hold no pointers.
type space struct {
	bits  int // a slab has 1<<bits places, 64 to 4,096
	meta  []slabMeta
	avail []uint64 // bit s: slab s has a free place
	whole []uint64 // bit s: slab s has free places only
	hole  []uint64 // bit s: slab s was given back
	low   int      // no word of avail below it has a bit
	spare int      // bits in whole
	slabN int      // slabs held
	used  int      // places handed out

	near   uint64 // free places of one word, which the books count as handed out: the next ones to be
	nearAt uint32 // the first place of that word
}

// alloc hands out a free place, the lowest of those there were when near was filled. fresh says that the owner must make
// its slab.
func (p *space) alloc() (i uint32, fresh bool) {
	if p.near == 0 {
		fresh = p.fill()
	}
	i = p.nearAt + uint32(bits.TrailingZeros64(p.near))
	p.near &= p.near - 1
	p.used++
	return i, fresh
}

// fill takes the lowest word that has free places into near. fresh says that it lies in a new slab.
func (p *space) fill() (fresh bool) {
	for p.low < len(p.avail) && p.avail[p.low] == 0 {
		p.low++
	}
	if p.low == len(p.avail) {
		p.grow()
		fresh = true
	}
	s := p.low<<6 + bits.TrailingZeros64(p.avail[p.low])
	m := &p.meta[s]
	w := bits.TrailingZeros64(m.sum) & 63
	p.near, p.nearAt = m.words[w], uint32(s<<p.bits|w<<6)
	m.words[w] = 0
	m.sum &= m.sum - 1
	if int(m.free) == 1<<p.bits {
		p.whole[s>>6] &^= 1 << (s & 63)
		p.spare--
	}
	if m.free -= int32(bits.OnesCount64(p.near)); m.free == 0 {
		p.avail[s>>6] &^= 1 << (s & 63)
	}
	return fresh
}

// isNear says that place i is free, and in near.
func (p *space) isNear(i uint32) bool { return i&^63 == p.nearAt && p.near>>(i&63)&1 != 0 }

// release takes place i back. It says whether that made i's slab wholly free.
func (p *space) release(i uint32) bool {
	s := int(i >> p.bits)
	m := &p.meta[s]
	w := i & (1<<p.bits - 1) >> 6
	m.words[w] |= 1 << (i & 63)
	m.sum |= 1 << w
	p.used--
	if m.free++; m.free == 1 {
		p.avail[s>>6] |= 1 << (s & 63)
		p.low = min(p.low, s>>6)
	}
	if int(m.free) < 1<<p.bits {
		return false
	}
	p.whole[s>>6] |= 1 << (s & 63)
	p.spare++
	return true
}

// excess names the highest wholly free slab if more of them are held than a new flood soon needs.
func (p *space) excess() (slab int, ok bool) {
	if p.spare <= 1+p.slabN/8 {
		return 0, false
	}
	for w := len(p.whole) - 1; w >= 0; w-- {
		if p.whole[w] != 0 {
			return w<<6 + 63 - bits.LeadingZeros64(p.whole[w]), true
		}
	}
	return 0, false
}

// drop takes the wholly free slab s out of the books; the owner gives it back to the garbage collector.
func (p *space) drop(s int) {
	bit := uint64(1) << (s & 63)
	p.whole[s>>6] &^= bit
	p.avail[s>>6] &^= bit
	p.hole[s>>6] |= bit
	p.meta[s] = slabMeta{}
	p.spare--
	p.slabN--
}

// grow enters one more slab, at the lowest number that has none.
func (p *space) grow() {
	s := len(p.meta)
	for w, h := range p.hole {
		if h != 0 {
			s = w<<6 + bits.TrailingZeros64(h)
			break
		}
	}
	if s == len(p.meta) {
		p.meta = append(p.meta, slabMeta{})
		if s>>6 == len(p.avail) {
			p.avail = append(p.avail, 0)
			p.whole = append(p.whole, 0)
			p.hole = append(p.hole, 0)
		}
	}
	m := &p.meta[s]
	m.free = 1 << p.bits
	for w := range m.words[:1<<p.bits>>6] {
		m.words[w] = ^uint64(0)
		m.sum |= 1 << w
	}
	bit := uint64(1) << (s & 63)
	p.hole[s>>6] &^= bit
	p.avail[s>>6] |= bit
	p.whole[s>>6] |= bit
	p.low = min(p.low, s>>6)
	p.spare++
	p.slabN++
}
