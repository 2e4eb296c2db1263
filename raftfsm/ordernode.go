package raftfsm

import (
	"encoding/binary"
)

const (
	nodeFan  = 64
	nodeHead = 8
	nodeThin = nodeFan / 4
	nodeJoin = nodeFan * 3 / 4
)

// orderNode is an inner node of the order: child i has the keys from keys[i] on (keys[0] is not looked at). It keeps the prefix
// that its keys share and the eight bytes of each behind it. Guarded by FSM.mu.
type orderNode struct {
	prefix string
	n      int
	heads  [nodeFan]uint64
	keys   [nodeFan]string
	// kids is nil in a node above leaves.
	kids   *[nodeFan]*orderNode
	leaves [nodeFan]leafRef
}

// kid is a child that is a node; nil above leaves.
func (n *orderNode) kid(i int) *orderNode {
	if n.kids == nil {
		return nil
	}
	return n.kids[i]
}

func nodeHeadAt[T ~string | ~[]byte](key T, at int) uint64 {
	if at >= len(key) {
		return 0
	}
	var b [nodeHead]byte
	copy(b[:], key[at:])
	return binary.BigEndian.Uint64(b[:])
}

// child returns which child has k.
func (n *orderNode) child(k orderKey) int {
	if p := n.prefix; len(p) > 0 {
		if len(k) < len(p) || string(k[:len(p)]) != p {
			if string(k) < p {
				return 0
			}
			return n.n - 1
		}
	}
	head := nodeHeadAt(k, len(n.prefix))
	low, high := 1, n.n
	for low < high {
		if mid := int(uint(low+high) >> 1); n.heads[mid] < head {
			low = mid + 1
		} else {
			high = mid
		}
	}
	for low < n.n && n.heads[low] == head && n.keys[low] <= string(k) {
		low++
	}
	return low - 1
}

// insert puts a timer below n. If n had to be split, right is its second half, and key is not above all keys in it.
func (o *order) insert(n *orderNode, k orderKey, slot uint32) (right *orderNode, key string) {
	i := n.child(k)
	var leaf leafRef
	var kid *orderNode
	if n.kids == nil {
		leaf, key = o.addTo(n.leaves[i], k, slot)
	} else {
		kid, key = o.insert(n.kids[i], k, slot)
	}
	if leaf == noLeaf && kid == nil {
		return nil, ""
	}
	return n.place(i+1, key, leaf, kid)
}

// grow puts a node over the root and its second half.
func (o *order) grow(root *orderNode, key string, leaf leafRef, kid *orderNode) {
	root.keys[1] = key
	if root.kids == nil {
		root.leaves[0], root.leaves[1] = o.leaf, leaf
	} else {
		root.kids[0], root.kids[1] = o.root, kid
	}
	o.root, o.leaf = root, noLeaf
	root.rebuild()
}

// place puts a child at a position of a node, which is split if it is full.
func (n *orderNode) place(at int, key string, leaf leafRef, kid *orderNode) (right *orderNode, rightKey string) {
	if n.n < nodeFan {
		n.shift(at, key, leaf, kid)
		return nil, ""
	}
	right = &orderNode{}
	if n.kids != nil {
		right.kids = new([nodeFan]*orderNode)
	}
	// What comes at the end is most likely followed by more: leave the left node full.
	from := nodeFan / 2
	if at == nodeFan {
		from = nodeFan
	}
	n.move(right, 0, from, nodeFan-from)
	right.n, n.n = nodeFan-from, from
	if at >= from && (at > from || from == nodeFan) {
		right.shift(at-from, key, leaf, kid)
	} else {
		n.shift(at, key, leaf, kid)
	}
	n.rebuild()
	right.rebuild()
	return right, right.keys[0]
}

// move copies count children of n from a position into another node.
func (n *orderNode) move(to *orderNode, at, from, count int) {
	copy(to.heads[at:at+count], n.heads[from:])
	copy(to.keys[at:at+count], n.keys[from:])
	if n.kids != nil {
		copy(to.kids[at:at+count], n.kids[from:])
	} else {
		copy(to.leaves[at:at+count], n.leaves[from:])
	}
	if to == n {
		return
	}
	clear(n.keys[from:])
	clear(n.leaves[from:])
	if n.kids != nil {
		clear(n.kids[from:])
	}
}

// shift puts a child at a position of a node that has room.
func (n *orderNode) shift(at int, key string, leaf leafRef, kid *orderNode) {
	n.move(n, at+1, at, n.n-at)
	n.n++
	n.keys[at] = key
	if n.kids != nil {
		n.kids[at] = kid
	} else {
		n.leaves[at] = leaf
	}
	if n.n <= 2 || shared(n.prefix, key) < len(n.prefix) {
		n.rebuild()
		return
	}
	n.heads[at] = nodeHeadAt(key, len(n.prefix))
}

// rebuild finds the prefix of a node again, and its heads.
func (n *orderNode) rebuild() {
	if n.n < 2 {
		n.prefix = ""
		return
	}
	low, high := n.keys[1], n.keys[n.n-1]
	length := shared(low, high)
	if n.n == 2 {
		length = max(0, len(low)-nodeHead) // alone: what comes next may share some of it
	}
	n.prefix = low[:length]
	for i := 1; i < n.n; i++ {
		n.heads[i] = nodeHeadAt(n.keys[i], length)
	}
}

// thin joins the leaf that a key belongs to with a neighbour, if it has become thin, and so on up to the root.
func (o *order) thin(k orderKey) {
	if o.root == nil {
		return
	}
	o.thinBelow(o.root, k)
	for o.root != nil && o.root.n == 1 {
		o.leaf, o.root = o.root.leaves[0], o.root.kid(0)
	}
}

func (o *order) thinBelow(n *orderNode, k orderKey) {
	i := n.child(k)
	if n.kids == nil {
		if o.at(n.leaves[i]).n < orderThin {
			o.thinLeaf(n, i)
		}
		return
	}
	kid := n.kids[i]
	if o.thinBelow(kid, k); kid.n < nodeThin {
		n.thinNode(i)
	}
}

// thinLeaf joins a leaf that has become thin with a neighbour, or takes it away if it is empty. A neighbour that is empty is left to
// the call that is about its keys.
func (o *order) thinLeaf(n *orderNode, i int) {
	leaf := o.at(n.leaves[i])
	fits := func(j int) bool {
		if j < 0 || j >= n.n {
			return false
		}
		other := o.at(n.leaves[j]).n
		return other > 0 && leaf.n+other <= orderJoin
	}
	gone := i
	switch {
	case leaf.n == 0:
	case fits(i + 1):
		gone = i + 1
		o.join(leaf, o.at(n.leaves[gone]))
	case fits(i - 1):
		o.join(o.at(n.leaves[i-1]), leaf)
	default:
		return
	}
	o.leaves.give(n.leaves[gone])
	n.take(gone)
}

// thinNode does so with a node.
func (n *orderNode) thinNode(i int) {
	kid := n.kids[i]
	fits := func(j int) bool { return j >= 0 && j < n.n && kid.n+n.kids[j].n <= nodeJoin }
	switch {
	case kid.n == 0:
		n.take(i)
	case fits(i + 1):
		n.join(i)
	case fits(i - 1):
		n.join(i - 1)
	}
}

// join moves what child i+1 has into child i.
func (n *orderNode) join(i int) {
	left, right := n.kids[i], n.kids[i+1]
	right.keys[0] = n.keys[i+1]
	count := right.n
	right.move(left, left.n, 0, count)
	left.n += count
	left.rebuild()
	n.take(i + 1)
}

// take closes the gap of a child that goes.
func (n *orderNode) take(at int) {
	n.move(n, at, at+1, n.n-at-1)
	n.n--
	n.keys[n.n], n.leaves[n.n] = "", noLeaf
	if n.kids != nil {
		n.kids[n.n] = nil
	}
}

// walk visits what is below n; k is nil once all keys are behind the start.
func (o *order) walk(n *orderNode, k orderKey, f func(slot uint32) bool) bool {
	at := 0
	if k != nil {
		at = n.child(k)
	}
	for ; at < n.n; at++ {
		if n.kids == nil && !o.walkLeaf(o.at(n.leaves[at]), k, f) || n.kids != nil && !o.walk(n.kids[at], k, f) {
			return false
		}
		k = nil
	}
	return true
}
