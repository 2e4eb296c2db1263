package raftfsm

import (
	"encoding/binary"
	"fmt"
	"hash/maphash"
	"strings"
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
	leaves [nodeFan]*orderLeaf
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
	var leaf *orderLeaf
	var kid *orderNode
	if n.kids == nil {
		leaf, key = o.addTo(n.leaves[i], k, slot)
	} else {
		kid, key = o.insert(n.kids[i], k, slot)
	}
	if leaf == nil && kid == nil {
		return nil, ""
	}
	return n.place(i+1, key, leaf, kid)
}

// grow puts a node over the root and its second half.
func (o *order) grow(root *orderNode, key string, leaf *orderLeaf, kid *orderNode) {
	root.keys[1] = key
	if root.kids == nil {
		root.leaves[0], root.leaves[1] = o.leaf, leaf
	} else {
		root.kids[0], root.kids[1] = o.root, kid
	}
	o.root, o.leaf = root, nil
	root.rebuild()
}

// place puts a child at a position of a node, which is split if it is full.
func (n *orderNode) place(at int, key string, leaf *orderLeaf, kid *orderNode) (right *orderNode, rightKey string) {
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
func (n *orderNode) shift(at int, key string, leaf *orderLeaf, kid *orderNode) {
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

func (o *order) removeBelow(n *orderNode, k orderKey, slot uint32) {
	i := n.child(k)
	if n.kids == nil {
		leaf := n.leaves[i]
		if leaf.take(k, slot); leaf.n < orderThin {
			o.thinLeaf(n, i)
		}
		return
	}
	kid := n.kids[i]
	if o.removeBelow(kid, k, slot); kid.n < nodeThin {
		n.thinNode(i)
	}
}

// thinLeaf joins a leaf that has become thin with a neighbour, or takes it away if it is empty.
func (o *order) thinLeaf(n *orderNode, i int) {
	leaf := n.leaves[i]
	fits := func(j int) bool { return j >= 0 && j < n.n && leaf.n+n.leaves[j].n <= orderJoin }
	switch {
	case leaf.n == 0:
		leaf.moves++
		n.take(i)
	case fits(i + 1):
		o.join(leaf, n.leaves[i+1])
		n.take(i + 1)
	case fits(i - 1):
		o.join(n.leaves[i-1], leaf)
		n.take(i)
	}
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
	n.keys[n.n], n.leaves[n.n] = "", nil
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
		if n.kids == nil && !o.walkLeaf(n.leaves[at], k, f) || n.kids != nil && !o.walk(n.kids[at], k, f) {
			return false
		}
		k = nil
	}
	return true
}

// check verifies the prefixes, the heads, that keys are where the inner nodes say, and the count.
func (o *order) check() error {
	count, err := 0, error(nil)
	switch {
	case (o.root == nil) == (o.leaf == nil):
		return fmt.Errorf("a root and a single leaf, or none")
	case o.root == nil:
		count, err = o.checkLeaf(o.leaf, "", "")
	default:
		count, err = o.checkNode(o.root, "", "")
	}
	if err == nil && count != o.size {
		err = fmt.Errorf("%d timers, counted %d", count, o.size)
	}
	return err
}

// checkNode verifies a node whose keys are from low on and below high; an empty high is no bound.
func (o *order) checkNode(n *orderNode, low, high string) (int, error) {
	count, before := 0, low
	for i := range n.n {
		from, to := low, high
		if i > 0 {
			from = n.keys[i]
			if !strings.HasPrefix(from, n.prefix) || n.heads[i] != nodeHeadAt(from, len(n.prefix)) {
				return 0, fmt.Errorf("key %q is not under prefix %q with head %016x", from, n.prefix, n.heads[i])
			}
			if from <= before && i > 1 || from < before || high != "" && from >= high {
				return 0, fmt.Errorf("key %q is not behind %q and before %q", from, before, high)
			}
			before = from
		}
		if i+1 < n.n {
			to = n.keys[i+1]
		}
		below, err := 0, error(nil)
		if n.kids == nil {
			if below, err = o.checkLeaf(n.leaves[i], from, to); below == 0 && err == nil {
				err = fmt.Errorf("an empty leaf below %q", from)
			}
		} else {
			below, err = o.checkNode(n.kids[i], from, to)
		}
		if err != nil {
			return 0, err
		}
		count += below
	}
	if n.n == 0 {
		return 0, fmt.Errorf("an empty node below %q", low)
	}
	return count, nil
}

func (o *order) checkLeaf(l *orderLeaf, low, high string) (int, error) {
	before := ""
	for i := range l.cells[:l.n] {
		slot := l.slot(i)
		if o.table.where(slot) == 0 {
			return 0, fmt.Errorf("slot %d is free", slot)
		}
		key := string(o.slotKey(nil, slot))
		if key < low || high != "" && key >= high || l.sorted && i > 0 && key <= before {
			return 0, fmt.Errorf("key %q is not behind %q and before %q, or not sorted", key, max(low, before), high)
		}
		if len(key) < int(l.prefix) || l.check != maphash.String(o.seed, key[:l.prefix]) || l.head(i) != leafHead([]byte(key), int(l.prefix)) {
			return 0, fmt.Errorf("key %q is not under a prefix of %d with head %08x", key, l.prefix, l.head(i))
		}
		before = key
	}
	return int(l.n), nil
}
