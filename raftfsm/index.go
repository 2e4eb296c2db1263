package raftfsm

// index finds a number (a slot, the sequence of a window) by the 64-bit hash of its key. It is open addressed with linear
// probing and holds no pointers and no keys: who asks compares the key. A cell is 32 bits of the hash (the lowest one
// set, so that an empty cell is 0) and the number. It is split into parts, so that growing moves 1/64 of it at a time.
type index struct {
	parts [indexParts]indexPart
	size  int
}

type indexPart struct {
	cells []uint64 // a power of two
	used  int
}

const (
	indexParts    = 64
	indexMinCells = 8
)

func (x *index) part(hash uint64) *indexPart { return &x.parts[hash>>58] }

func cellOf(hash uint64, ref uint32) uint64 { return (hash<<32 | 1<<32) | uint64(ref) }

// home is where a cell would like to be; the lowest bit of the hash is lost to the mark.
func home(cell uint64, mask uint64) uint64 { return cell >> 33 & mask }

// find returns the number under the hash that same accepts.
func (x *index) find(hash uint64, same func(ref uint32) bool) (uint32, bool) {
	p := x.part(hash)
	if p.used == 0 {
		return 0, false
	}
	want, mask := cellOf(hash, 0), uint64(len(p.cells)-1)
	for i := home(want, mask); p.cells[i] != 0; i = (i + 1) & mask {
		if p.cells[i]&^0xFFFFFFFF == want && same(uint32(p.cells[i])) {
			return uint32(p.cells[i]), true
		}
	}
	return 0, false
}

// put adds a number; that the key is not there yet is the caller's duty.
func (x *index) put(hash uint64, ref uint32) {
	p := x.part(hash)
	if (p.used+1)*4 > len(p.cells)*3 {
		p.resize(max(indexMinCells, len(p.cells)*2))
	}
	p.place(cellOf(hash, ref))
	p.used++
	x.size++
}

func (p *indexPart) place(cell uint64) {
	mask := uint64(len(p.cells) - 1)
	i := home(cell, mask)
	for p.cells[i] != 0 {
		i = (i + 1) & mask
	}
	p.cells[i] = cell
}

func (p *indexPart) resize(cells int) {
	old := p.cells
	p.cells = make([]uint64, cells)
	for _, c := range old {
		if c != 0 {
			p.place(c)
		}
	}
}

// remove takes the number under the hash out and says whether it was there. The cells behind it move up, so there are
// no tombstones.
func (x *index) remove(hash uint64, ref uint32) bool {
	p := x.part(hash)
	if p.used == 0 {
		return false
	}
	want, mask := cellOf(hash, ref), uint64(len(p.cells)-1)
	i := home(want, mask)
	for p.cells[i] != want {
		if p.cells[i] == 0 {
			return false
		}
		i = (i + 1) & mask
	}
	for j := (i + 1) & mask; p.cells[j] != 0; j = (j + 1) & mask {
		// The cell at j may fill the hole at i if its home is not between them.
		if (j-home(p.cells[j], mask))&mask >= (j-i)&mask {
			p.cells[i], i = p.cells[j], j
		}
	}
	p.cells[i] = 0
	p.used--
	x.size--
	if len(p.cells) > indexMinCells && p.used*8 < len(p.cells) {
		p.resize(max(indexMinCells, len(p.cells)/4))
	}
	return true
}

// reserve makes room for n numbers in all.
func (x *index) reserve(n int) {
	cells := indexMinCells
	for cells*3/4*indexParts < n+n/16 {
		cells *= 2
	}
	for i := range x.parts {
		if p := &x.parts[i]; len(p.cells) < cells && n > indexParts {
			p.resize(cells)
		}
	}
}
