package wheel

import "math/bits"

const (
	slabBits  = 12
	slabLen   = 1 << slabBits
	slabMask  = slabLen - 1
	slabWords = slabLen / 64
)

// slabMeta says which places of one slab are free. It lies beside the slab, so that a slab fills whole pages.
type slabMeta struct {
	sum   uint64 // bit w: words[w] is not 0
	words [slabWords]uint64
	free  int32
}

// pool hands out places in slabs, the lowest free one first, so that after a flood the upper slabs run empty and are
// given back to the garbage collector. Slabs never move and hold no pointers.
type pool[T any] struct {
	slabs []*[slabLen]T // gone where there is no slab
	gone  *[slabLen]T   // stands in for a slab given back; never written
	meta  []slabMeta
	avail []uint64 // bit s: slab s has a free place
	whole []uint64 // bit s: slab s has free places only
	hole  []uint64 // bit s: slab s was given back
	low   int      // no word of avail below it has a bit
	spare int      // bits in whole
	slabN int      // slabs held
	used  int      // places handed out
}

// at is the place i, which must have been handed out or lie in a slab given back.
func (p *pool[T]) at(i uint32) *T { return &p.slabs[i>>slabBits][i&slabMask] }

// alloc hands out the lowest free place. fresh says that its slab has just been made: all its places are zero.
func (p *pool[T]) alloc() (i uint32, fresh bool) {
	for p.low < len(p.avail) && p.avail[p.low] == 0 {
		p.low++
	}
	if p.low == len(p.avail) {
		p.grow()
		fresh = true
	}
	s := p.low<<6 + bits.TrailingZeros64(p.avail[p.low])
	m := &p.meta[s]
	w := bits.TrailingZeros64(m.sum) & (slabWords - 1)
	b := bits.TrailingZeros64(m.words[w])
	m.words[w] &= m.words[w] - 1
	if m.words[w] == 0 {
		m.sum &= m.sum - 1
	}
	if m.free == slabLen {
		p.whole[s>>6] &^= 1 << (s & 63)
		p.spare--
	}
	if m.free--; m.free == 0 {
		p.avail[s>>6] &^= 1 << (s & 63)
	}
	p.used++
	return uint32(s<<slabBits | w<<6 | b), fresh
}

// release takes place i back. It says whether that made i's slab wholly free.
func (p *pool[T]) release(i uint32) bool {
	s := int(i >> slabBits)
	m := &p.meta[s]
	w := i & slabMask >> 6
	m.words[w] |= 1 << (i & 63)
	m.sum |= 1 << w
	p.used--
	if m.free++; m.free == 1 {
		p.avail[s>>6] |= 1 << (s & 63)
		p.low = min(p.low, s>>6)
	}
	if m.free < slabLen {
		return false
	}
	p.whole[s>>6] |= 1 << (s & 63)
	p.spare++
	return true
}

// excess names the highest wholly free slab if more of them are held than a new flood soon needs.
func (p *pool[T]) excess() (slab int, ok bool) {
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

// drop gives the wholly free slab s back to the garbage collector.
func (p *pool[T]) drop(s int) {
	bit := uint64(1) << (s & 63)
	p.whole[s>>6] &^= bit
	p.avail[s>>6] &^= bit
	p.hole[s>>6] |= bit
	p.slabs[s] = p.gone
	p.meta[s] = slabMeta{}
	p.spare--
	p.slabN--
}

// grow makes one more slab, at the lowest number that has none.
func (p *pool[T]) grow() {
	s := len(p.slabs)
	for w, h := range p.hole {
		if h != 0 {
			s = w<<6 + bits.TrailingZeros64(h)
			break
		}
	}
	if s == len(p.slabs) {
		p.slabs = append(p.slabs, nil)
		p.meta = append(p.meta, slabMeta{})
		if s>>6 == len(p.avail) {
			p.avail = append(p.avail, 0)
			p.whole = append(p.whole, 0)
			p.hole = append(p.hole, 0)
		}
	}
	p.slabs[s] = new([slabLen]T)
	m := &p.meta[s]
	m.sum, m.free = 1<<(slabWords-1)<<1-1, slabLen
	for w := range m.words {
		m.words[w] = ^uint64(0)
	}
	bit := uint64(1) << (s & 63)
	p.hole[s>>6] &^= bit
	p.avail[s>>6] |= bit
	p.whole[s>>6] |= bit
	p.low = min(p.low, s>>6)
	p.spare++
	p.slabN++
}
