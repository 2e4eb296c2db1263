package raftfsm

import "math/bits"

const (
	leafBits = 6
	leafSlab = 1 << leafBits
)

// leafRef is the number of a leaf: that of its slab and, below it, its place there.
type leafRef uint32

// noLeaf is no leaf: there is no slab 0.
const noLeaf leafRef = 0

// leafHeap keeps the leaves of an order in slabs, so that the collector has few objects to look at. Leaves do not move. Guarded by FSM.mu.
type leafHeap struct {
	// slabs hold up to leafSlab leaves; nil is one that was given back.
	slabs [][]orderLeaf
	// free has a bit for each free leaf of a slab.
	free []uint64
	// open are the slabs that have a free leaf, each once; spare are the numbers of those that were given back.
	open, spare []uint32
}

func (h *leafHeap) at(r leafRef) *orderLeaf { return &h.slabs[r>>leafBits][r&(leafSlab-1)] }

// take returns an empty leaf.
func (h *leafHeap) take() (leafRef, *orderLeaf) {
	if len(h.open) == 0 {
		h.grow()
	}
	last := len(h.open) - 1
	n := h.open[last]
	i := bits.TrailingZeros64(h.free[n])
	if h.free[n] &^= 1 << i; h.free[n] == 0 {
		h.open = h.open[:last]
	}
	r := leafRef(n)<<leafBits | leafRef(i)
	return r, h.at(r)
}

// grow makes a slab. The first ones are small, so that a shard with few timers is.
func (h *leafHeap) grow() {
	if len(h.slabs) == 0 {
		h.slabs, h.free = append(h.slabs, nil), append(h.free, 0)
	}
	n, size := uint32(len(h.slabs)), 1<<min(leafBits, 2*(len(h.slabs)-1))
	if last := len(h.spare) - 1; last >= 0 {
		n, h.spare = h.spare[last], h.spare[:last]
	} else {
		h.slabs, h.free = append(h.slabs, nil), append(h.free, 0)
	}
	h.slabs[n], h.free[n] = make([]orderLeaf, size), allFree(size)
	h.open = append(h.open, n)
}

func allFree(size int) uint64 { return 1<<size - 1 }

// give takes a leaf back, and gives its slab back if no other leaf is used in it, unless it is the only one that is open.
func (h *leafHeap) give(r leafRef) {
	n, i := uint32(r>>leafBits), r&(leafSlab-1)
	h.slabs[n][i] = orderLeaf{}
	if h.free[n] == 0 {
		h.open = append(h.open, n)
	}
	if h.free[n] |= 1 << i; h.free[n] != allFree(len(h.slabs[n])) || len(h.open) == 1 {
		return
	}
	for at, o := range h.open {
		if o == n {
			last := len(h.open) - 1
			h.open[at] = h.open[last]
			h.open = h.open[:last]
			break
		}
	}
	h.slabs[n], h.free[n] = nil, 0
	h.spare = append(h.spare, n)
}
