package raftfsm

import (
	"bytes"
	"encoding/binary"
	"hash/maphash"
	"slices"
	"strings"
)

// order is the pending timers by (namespace, ID): a B+ tree of slots. Keys are the namespace, a zero byte and the ID, which
// sorts as the two do, since neither holds a zero byte.
//
// A leaf is written far more often than it is read, so it is not sorted until it is read or split: a timer is put behind the
// last and found again by its slot. A leaf keeps the length of a prefix that all its keys share, and of each key the four bytes
// behind the prefix, its head; keys themselves are looked at only where heads are equal. It holds no pointers. Timers that come and go
// wait until there are many (orderwait.go). Guarded by FSM.mu.
type order struct {
	table *table
	// root is nil while all is in leaf.
	root   *orderNode
	leaf   leafRef
	leaves leafHeap
	wait   orderWait
	// splits counts the leaves that were split; what leafOf found before is void.
	splits uint64
	size   int
	seed   maphash.Seed
	// key, low and high are buffers.
	key       orderKey
	low, high []byte
	// touched keeps what is loaded together from being optimized away.
	touched uint64
}

const (
	// orderFan makes a leaf 1 KiB.
	orderFan  = 126
	orderHead = 4
	// A leaf with fewer than orderThin entries is joined with a neighbour if both together have at most orderJoin.
	orderThin = orderFan / 4
	orderJoin = orderFan * 3 / 4
)

// orderLeaf is a leaf. Guarded by FSM.mu.
type orderLeaf struct {
	// check is the hash of the prefix, which is that of all keys.
	check  uint64
	prefix uint16
	n      uint8
	sorted bool
	// cells are the heads with the slots behind them.
	cells [orderFan]uint64
}

func (l *orderLeaf) slot(i int) uint32 { return uint32(l.cells[i]) }
func (l *orderLeaf) head(i int) uint32 { return uint32(l.cells[i] >> 32) }

func orderCell(head, slot uint32) uint64 { return uint64(head)<<32 | uint64(slot) }

// orderKey is a key that is looked for.
type orderKey []byte

func newOrder(t *table) order {
	o := order{table: t, seed: maphash.MakeSeed()}
	o.leaf, _ = o.leaves.take()
	return o
}

func (o *order) at(r leafRef) *orderLeaf { return o.leaves.at(r) }

func (o *order) len() int { return o.size }

func (o *order) keyOf(namespace, id string) orderKey {
	o.key = append(append(append(o.key[:0], namespace...), 0), id...)
	return o.key
}

// slotKey writes the key of a slot over b.
func (o *order) slotKey(b []byte, slot uint32) []byte {
	namespace, id := o.table.key(slot)
	return append(append(append(b[:0], namespace...), 0), id...)
}

// compareSlots compares the keys of two slots.
func (o *order) compareSlots(a, b uint32) int {
	if a == b {
		return 0
	}
	x, xID := o.table.key(a)
	y, yID := o.table.key(b)
	if c := strings.Compare(x, y); c != 0 {
		return c
	}
	return bytes.Compare(xID, yID)
}

// leafHead is the bytes of a key from a position on; behind its end are zeros.
func leafHead(key []byte, at int) uint32 {
	if at+orderHead <= len(key) {
		return binary.BigEndian.Uint32(key[at:])
	}
	var b [orderHead]byte
	if at < len(key) {
		copy(b[:], key[at:])
	}
	return binary.BigEndian.Uint32(b[:])
}

// leafOf finds the leaf of a key.
func (o *order) leafOf(k orderKey) *orderLeaf {
	r := o.leaf
	for n := o.root; n != nil; {
		i := n.child(k)
		r, n = n.leaves[i], n.kid(i)
	}
	return o.at(r)
}

// add puts a timer that is not there into the tree; its record lies in the slot.
func (o *order) add(k orderKey, slot uint32) {
	if o.root == nil {
		if right, key := o.addTo(o.leaf, k, slot); right != noLeaf {
			o.grow(&orderNode{n: 2}, key, right, nil)
		}
		return
	}
	if right, key := o.insert(o.root, k, slot); right != nil {
		o.grow(&orderNode{n: 2, kids: &[nodeFan]*orderNode{}}, key, noLeaf, right)
	}
}

// addTo puts a timer into a leaf. If the leaf had to be split, r is its second half, and key is not above all keys in it.
func (o *order) addTo(left leafRef, k orderKey, slot uint32) (r leafRef, key string) {
	l := o.at(left)
	if l.n < orderFan {
		o.push(l, k, slot)
		return noLeaf, ""
	}
	o.splits++
	o.sort(l)
	o.high = o.slotKey(o.high, l.slot(orderFan-1))
	r, right := o.leaves.take()
	if bytes.Compare(k, o.high) > 0 {
		// What comes at the end is most likely followed by more: leave the left leaf full.
		o.push(right, k, slot)
		return r, between(o.high, k)
	}
	right.check, right.prefix, right.sorted = l.check, l.prefix, true
	right.n = uint8(copy(right.cells[:], l.cells[orderFan/2:]))
	l.n = orderFan / 2
	o.low, o.high = o.slotKey(o.low, l.slot(orderFan/2-1)), o.slotKey(o.high, right.slot(0))
	key = between(o.low, o.high)
	o.sharpen(l)
	o.sharpen(right)
	if string(k) < key {
		o.push(l, k, slot)
	} else {
		o.push(right, k, slot)
	}
	return r, key
}

// between is a short key above low and not above high.
func between(low, high []byte) string { return string(high[:shared(low, high)+1]) }

func shared[A, B ~string | ~[]byte](a A, b B) int {
	n := min(len(a), len(b))
	for i := range n {
		if a[i] != b[i] {
			return i
		}
	}
	return n
}

// push puts a timer behind the last of a leaf that has room.
func (o *order) push(l *orderLeaf, k orderKey, slot uint32) {
	if l.n == 0 {
		// Alone: what comes next may share some of it.
		l.prefix = uint16(max(0, len(k)-2*orderHead))
		l.check, l.sorted = maphash.Bytes(o.seed, k[:l.prefix]), true
	} else if p := int(l.prefix); len(k) < p || maphash.Bytes(o.seed, k[:p]) != l.check {
		o.low = o.slotKey(o.low, l.slot(0))
		o.shorten(l, shared(o.low, k), o.low)
	}
	head := leafHead(k, int(l.prefix))
	l.sorted = l.sorted && (l.n == 0 || l.head(int(l.n)-1) < head)
	l.cells[l.n] = orderCell(head, slot)
	l.n++
}

// shorten cuts the prefix of a leaf, one of whose keys is k, to a length, without looking at the other keys.
func (o *order) shorten(l *orderLeaf, length int, k orderKey) {
	cut := int(l.prefix) - length
	if cut <= 0 {
		return
	}
	first := leafHead(k[:l.prefix], length)
	for i := range l.cells[:l.n] {
		head := first
		if cut < orderHead {
			head |= l.head(i) >> (8 * cut)
		}
		l.cells[i] = orderCell(head, l.slot(i))
	}
	l.prefix = uint16(length)
	l.check = maphash.Bytes(o.seed, k[:length])
}

// sort orders a leaf by its keys.
func (o *order) sort(l *orderLeaf) {
	if l.sorted {
		return
	}
	slices.Sort(l.cells[:l.n])
	l.sorted = true
	l.eachTie(func(from, to int) {
		slices.SortFunc(l.cells[from:to], func(a, b uint64) int { return o.compareSlots(uint32(a), uint32(b)) })
	})
}

// eachTie calls f for each run of equal heads in a leaf that is ordered by heads.
func (l *orderLeaf) eachTie(f func(from, to int)) {
	for from, n := 0, int(l.n); from < n; {
		to := from + 1
		for to < n && l.head(to) == l.head(from) {
			to++
		}
		if to-from > 1 {
			f(from, to)
		}
		from = to
	}
}

// sharpen makes the prefix of a sorted leaf as long as it can be, if its heads tell too little.
func (o *order) sharpen(l *orderLeaf) {
	ties := 0
	l.eachTie(func(from, to int) { ties += to - from })
	if ties*8 < int(l.n) {
		return
	}
	o.low, o.high = o.slotKey(o.low, l.slot(0)), o.slotKey(o.high, l.slot(int(l.n)-1))
	length := shared(o.low, o.high)
	if length <= int(l.prefix) {
		return
	}
	l.prefix, l.check = uint16(length), maphash.Bytes(o.seed, o.low[:length])
	for i := range l.cells[:l.n] {
		o.low = o.slotKey(o.low, l.slot(i))
		l.cells[i] = orderCell(leafHead(o.low, length), l.slot(i))
	}
}

// take takes a timer out of a leaf.
func (l *orderLeaf) take(k orderKey, slot uint32) {
	at := slices.Index(l.cells[:l.n], orderCell(leafHead(k, int(l.prefix)), slot))
	if at < 0 {
		panic("raftfsm: a pending timer is not in the order")
	}
	l.n--
	l.sorted = l.sorted && at == int(l.n)
	l.cells[at] = l.cells[l.n]
}

// join moves what a leaf has into the one before it.
func (o *order) join(left, right *orderLeaf) {
	o.low, o.high = o.slotKey(o.low, left.slot(0)), o.slotKey(o.high, right.slot(0))
	length := min(shared(o.low, o.high), int(left.prefix), int(right.prefix))
	o.shorten(left, length, o.low)
	o.shorten(right, length, o.high)
	copy(left.cells[left.n:], right.cells[:right.n])
	left.n += right.n
	left.sorted = false
}

// from calls f for the slots from (namespace, id) on, in order, until it returns false. f changes nothing.
func (o *order) from(namespace, id string, f func(slot uint32) bool) {
	o.settle()
	k := o.keyOf(namespace, id)
	if o.root == nil {
		o.walkLeaf(o.at(o.leaf), k, f)
		return
	}
	o.walk(o.root, k, f)
}

// walkLeaf visits a leaf; k is nil once all keys are behind the start.
func (o *order) walkLeaf(l *orderLeaf, k orderKey, f func(slot uint32) bool) bool {
	o.sort(l)
	at := 0
	if k != nil {
		at, _ = slices.BinarySearchFunc(l.cells[:l.n], k, func(cell uint64, k orderKey) int {
			o.low = o.slotKey(o.low, uint32(cell))
			return bytes.Compare(o.low, k)
		})
	}
	for ; at < int(l.n); at++ {
		if !f(l.slot(at)) {
			return false
		}
	}
	return true
}
