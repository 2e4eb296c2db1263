package raftfsm

// index finds a number (a slot, the sequence of a window) by the 64-bit hash of its key. It is open addressed with linear
// probing and holds no pointers and no keys: who asks compares the key. A cell is 32 bits of the hash (the lowest one
// set, so that an empty cell is 0) and the number. It is split into parts, so that growing moves 1/64 of it at a time. A part
// has any number of cells and the order of its homes is that of the hashes, so growing by a third is one sweep over both.
type index struct {
	parts [indexParts]indexPart
	size  int
}

type indexPart struct {
	cells []uint64
	used  int
}

const (
	indexParts    = 64
	indexMinCells = 8
)

func (x *index) part(hash uint64) *indexPart { return &x.parts[hash>>58] }

func cellOf(hash uint64, ref uint32) uint64 { return (hash<<32 | 1<<32) | uint64(ref) }

// home is where a cell would like to be among so many; the lowest bit of the hash is lost to the mark.
func home(cell uint64, cells int) int { return int(cell >> 33 * uint64(cells) >> 31) }

// first is the first number whose hash is nearly the one asked for, and where a walk goes on with next; nothing may be put or removed
// until it is over.
func (x *index) first(hash uint64) (ref uint32, at int, ok bool) {
	p := x.part(hash)
	if len(p.cells) == 0 {
		return 0, 0, false
	}
	cell := cellOf(hash, 0)
	return p.walk(home(cell, len(p.cells)), uint32(cell>>32))
}

// next goes on with a walk.
func (x *index) next(hash uint64, at int) (ref uint32, on int, ok bool) {
	return x.part(hash).walk(at, uint32(cellOf(hash, 0)>>32))
}

func (p *indexPart) walk(at int, want uint32) (ref uint32, on int, ok bool) {
	cells := p.cells
	for {
		c := cells[at]
		if c == 0 {
			return 0, 0, false
		}
		if at++; at == len(cells) {
			at = 0
		}
		if uint32(c>>32) == want {
			return uint32(c), at, true
		}
	}
}

// touch loads the first cell of a hash, and one that lies so far ahead that a walk seldom gets there: half of all walks go on in the
// next cache line.
func (x *index) touch(hash uint64) uint64 {
	p := x.part(hash)
	n := len(p.cells)
	if n == 0 {
		return 0
	}
	at := home(cellOf(hash, 0), n)
	return p.cells[at] + p.cells[min(at+touchAhead, n-1)]
}

// touchAhead is how many cells ahead: a walk to an empty cell takes 3 to 8 steps in the mean.
const touchAhead = 5

// guess is the number that is most likely under the hash, if it is there.
func (x *index) guess(hash uint64) (uint32, bool) {
	ref, _, ok := x.first(hash)
	return ref, ok
}

// put adds a number; that the key is not there yet is the caller's duty.
func (x *index) put(hash uint64, ref uint32) {
	p := x.part(hash)
	if n := len(p.cells); (p.used+1)*4 > n*3 {
		p.resize(max(indexMinCells, n+n/3))
	}
	p.place(cellOf(hash, ref))
	p.used++
	x.size++
}

func (p *indexPart) place(cell uint64) {
	i := home(cell, len(p.cells))
	for p.cells[i] != 0 {
		if i++; i == len(p.cells) {
			i = 0
		}
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
	n := len(p.cells)
	if n == 0 {
		return false
	}
	want := cellOf(hash, ref)
	i := home(want, n)
	for p.cells[i] != want {
		if p.cells[i] == 0 {
			return false
		}
		if i++; i == n {
			i = 0
		}
	}
	for j := i; ; {
		if j++; j == n {
			j = 0
		}
		c := p.cells[j]
		if c == 0 {
			break
		}
		// The cell at j may fill the hole at i if its home is not between them.
		if ahead(j, home(c, n), n) >= ahead(j, i, n) {
			p.cells[i], i = c, j
		}
	}
	p.cells[i] = 0
	p.used--
	x.size--
	if n > indexMinCells && p.used*8 < n {
		p.resize(max(indexMinCells, p.used*2))
	}
	return true
}

// ahead is how many cells of n at is ahead of from.
func ahead(at, from, n int) int {
	if at < from {
		return at - from + n
	}
	return at - from
}

// reserve makes room for n numbers in all.
func (x *index) reserve(n int) {
	if n <= indexParts {
		return
	}
	for i := range x.parts {
		if cells := n / indexParts * 3 / 2; len(x.parts[i].cells) < cells {
			x.parts[i].resize(max(indexMinCells, cells))
		}
	}
}
