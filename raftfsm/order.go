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
// behind the prefix, its head; keys themselves are looked at only where heads are equal. It holds no pointers. Guarded by FSM.mu.
type order struct {
	table *table
	// root is nil while all is in leaf.
	root *orderNode
	leaf *orderLeaf
	size int
	seed maphash.Seed
	// key, low and high are buffers.
	key       orderKey
	low, high []byte
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
	// moves counts how often keys left the leaf other than by being removed; an orderHint of before is void.
	moves uint32
	// cells are the heads with the slots behind them.
	cells [orderFan]uint64
}

func (l *orderLeaf) slot(i int) uint32 { return uint32(l.cells[i]) }
func (l *orderLeaf) head(i int) uint32 { return uint32(l.cells[i] >> 32) }

func orderCell(head, slot uint32) uint64 { return uint64(head)<<32 | uint64(slot) }

// orderHint is the leaf that a key belongs to. The zero value is none.
type orderHint struct {
	leaf  *orderLeaf
	moves uint32
}

func (h orderHint) good() bool { return h.leaf != nil && h.leaf.moves == h.moves }

// orderKey is a key that is looked for.
type orderKey []byte

func newOrder(t *table) order {
	return order{table: t, leaf: &orderLeaf{}, seed: maphash.MakeSeed()}
}

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
func (o *order) leafOf(namespace, id string) *orderLeaf {
	l, k := o.leaf, o.keyOf(namespace, id)
	for n := o.root; n != nil; {
		i := n.child(k)
		l, n = n.leaves[i], n.kid(i)
	}
	return l
}

// touch loads the end of the leaf of a hint that is fresh, where a timer is put, and makes the hint good.
func (h *orderHint) touch() uint64 {
	h.moves = h.leaf.moves
	return h.leaf.cells[min(h.leaf.n, orderFan-1)]
}

// touchAll loads the leaf, in which a timer is looked for that leaves it.
func (h *orderHint) touchAll() (sum uint64) {
	for i := 0; i < orderFan; i += 8 {
		sum += h.leaf.cells[i]
	}
	return sum
}

// put adds a timer that is not there; its record lies in the slot.
func (o *order) put(namespace, id string, slot uint32, hint orderHint) {
	k := o.keyOf(namespace, id)
	o.size++
	if hint.good() && hint.leaf.n < orderFan {
		o.push(hint.leaf, k, slot)
		return
	}
	if o.root == nil {
		if right, key := o.addTo(o.leaf, k, slot); right != nil {
			o.grow(&orderNode{n: 2}, key, right, nil)
		}
		return
	}
	if right, key := o.insert(o.root, k, slot); right != nil {
		o.grow(&orderNode{n: 2, kids: &[nodeFan]*orderNode{}}, key, nil, right)
	}
}

// addTo puts a timer into a leaf. If the leaf had to be split, right is its second half, and key is not above all keys in it.
func (o *order) addTo(l *orderLeaf, k orderKey, slot uint32) (right *orderLeaf, key string) {
	if l.n < orderFan {
		o.push(l, k, slot)
		return nil, ""
	}
	l.moves++
	o.sort(l)
	o.high = o.slotKey(o.high, l.slot(orderFan-1))
	if bytes.Compare(k, o.high) > 0 {
		// What comes at the end is most likely followed by more: leave the left leaf full.
		right = &orderLeaf{}
		o.push(right, k, slot)
		return right, between(o.high, k)
	}
	right = &orderLeaf{check: l.check, prefix: l.prefix, sorted: true}
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
	return right, key
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

// remove takes a timer out; its record still lies in its slot.
func (o *order) remove(namespace, id string, slot uint32, hint orderHint) {
	k := o.keyOf(namespace, id)
	o.size--
	if o.root == nil {
		o.leaf.take(k, slot)
		return
	}
	if hint.good() && hint.leaf.n > orderThin {
		hint.leaf.take(k, slot)
		return
	}
	o.removeBelow(o.root, k, slot)
	for o.root != nil && o.root.n == 1 {
		o.leaf, o.root = o.root.leaves[0], o.root.kid(0)
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

// join moves what a leaf has into the one before it. A timer that is on its way out is in neither.
func (o *order) join(left, right *orderLeaf) {
	o.low, o.high = o.slotKey(o.low, left.slot(0)), o.slotKey(o.high, right.slot(0))
	length := min(shared(o.low, o.high), int(left.prefix), int(right.prefix))
	o.shorten(left, length, o.low)
	o.shorten(right, length, o.high)
	copy(left.cells[left.n:], right.cells[:right.n])
	right.moves++
	left.n += right.n
	left.sorted = false
}

// from calls f for the slots from (namespace, id) on, in order, until it returns false.
func (o *order) from(namespace, id string, f func(slot uint32) bool) {
	k := o.keyOf(namespace, id)
	if o.root == nil {
		o.walkLeaf(o.leaf, k, f)
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
