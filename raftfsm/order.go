package raftfsm

import (
	"encoding/binary"
	"fmt"
	"sort"
	"strings"
)

// order is the pending timers by (namespace, ID): a B+ tree of slots. Keys are the namespace, a zero byte and the ID, which
// sorts as the two do, since neither holds a zero byte. A node keeps the prefix that all its keys share, and of each key
// only the eight bytes behind the prefix, its head: so a search compares numbers in one place, and looks at a key itself only
// if heads are equal. Guarded by FSM.mu.
type order struct {
	table *table
	root  *orderNode
	size  int
	key   orderKey // buffer
}

const (
	orderFan  = 64
	orderHead = 8
	// A node with fewer than orderThin entries is joined with a neighbour if both together have at most orderJoin.
	orderThin = orderFan / 4
	orderJoin = orderFan * 3 / 4
)

// orderNode is a leaf, or an inner node whose child i has the keys from inner.keys[i] on (inner.keys[0] is not looked at).
type orderNode struct {
	prefix string
	inner  *orderInner // nil in a leaf
	n      int
	heads  [orderFan]uint64
	slots  [orderFan]uint32 // of a leaf
}

type orderInner struct {
	keys [orderFan]string
	kids [orderFan]*orderNode
}

// orderKey is a key that is looked for.
type orderKey struct {
	namespace, id string
	bytes         []byte
}

func newOrder(t *table) order { return order{table: t, root: &orderNode{}} }

func (o *order) len() int { return o.size }

func (o *order) keyOf(namespace, id string) *orderKey {
	k := &o.key
	k.namespace, k.id = namespace, id
	k.bytes = append(append(append(k.bytes[:0], namespace...), 0), id...)
	return k
}

// headAt is the eight bytes of a key from position at on; behind its end are zeros.
func headAt[T string | []byte](key T, at int) uint64 {
	if at >= len(key) {
		return 0
	}
	var b [orderHead]byte
	copy(b[:], key[at:])
	return binary.BigEndian.Uint64(b[:])
}

// recordHead is headAt of a record's key.
func recordHead(r *Record, at int) uint64 {
	if at > len(r.Namespace) {
		return headAt(r.ID, at-len(r.Namespace)-1)
	}
	var b [orderHead]byte
	n := copy(b[:], r.Namespace[at:]) + 1
	if n < orderHead {
		copy(b[n:], r.ID)
	}
	return binary.BigEndian.Uint64(b[:])
}

func recordKey(r *Record) string { return r.Namespace + "\x00" + r.ID }

// entryHead and entryKey are the head and the key of what lies at i.
func (o *order) entryHead(n *orderNode, i, at int) uint64 {
	if n.inner != nil {
		return headAt(n.inner.keys[i], at)
	}
	return recordHead(o.table.at(n.slots[i]), at)
}

func (o *order) entryKey(n *orderNode, i int) string {
	if n.inner != nil {
		return n.inner.keys[i]
	}
	return recordKey(o.table.at(n.slots[i]))
}

// compare is of the key with that of entry i.
func (o *order) compare(n *orderNode, i int, k *orderKey) int {
	if n.inner != nil {
		switch key := n.inner.keys[i]; {
		case string(k.bytes) == key:
			return 0
		case string(k.bytes) < key:
			return -1
		}
		return 1
	}
	r := o.table.at(n.slots[i])
	if c := strings.Compare(k.namespace, r.Namespace); c != 0 {
		return c
	}
	return strings.Compare(k.id, r.ID)
}

// first is the first entry that looks at a key: an inner node's first has none.
func (n *orderNode) first() int {
	if n.inner != nil {
		return 1
	}
	return 0
}

// search returns the first entry whose key is not below k, and whether it is k.
func (o *order) search(n *orderNode, k *orderKey) (int, bool) {
	if p := n.prefix; len(p) > 0 {
		if len(k.bytes) < len(p) || string(k.bytes[:len(p)]) != p {
			if string(k.bytes) < p {
				return n.first(), false
			}
			return n.n, false
		}
	}
	head := headAt(k.bytes, len(n.prefix))
	heads := n.heads[:n.n]
	low, high := n.first(), n.n
	for low < high {
		if mid := int(uint(low+high) >> 1); heads[mid] < head {
			low = mid + 1
		} else {
			high = mid
		}
	}
	if low == n.n || heads[low] != head {
		return low, false
	}
	end := low + 1
	for end < n.n && heads[end] == head {
		end++
	}
	at := low + sort.Search(end-low, func(i int) bool { return o.compare(n, low+i, k) <= 0 })
	return at, at < end && o.compare(n, at, k) == 0
}

// child returns which child of an inner node has k.
func (o *order) child(n *orderNode, k *orderKey) int {
	i, same := o.search(n, k)
	if same {
		return i
	}
	return i - 1
}

// put adds a timer that is not there; its record lies in the slot.
func (o *order) put(namespace, id string, slot uint32) {
	k := o.keyOf(namespace, id)
	o.size++
	right, key := o.insert(o.root, k, slot)
	if right == nil {
		return
	}
	root := &orderNode{inner: &orderInner{}, n: 2}
	root.inner.kids[0], root.inner.kids[1], root.inner.keys[1] = o.root, right, key
	o.root = root
	o.rebuild(root)
}

// insert puts the slot below n. If n had to be split, right is its second half, and key is not above all keys in it.
func (o *order) insert(n *orderNode, k *orderKey, slot uint32) (right *orderNode, key string) {
	if n.inner == nil {
		at, _ := o.search(n, k)
		return o.place(n, at, k.bytes, slot, nil)
	}
	i := o.child(n, k)
	kid, kidKey := o.insert(n.inner.kids[i], k, slot)
	if kid == nil {
		return nil, ""
	}
	return o.place(n, i+1, []byte(kidKey), 0, kid)
}

// place puts an entry at a position of a node, which is split if it is full.
func (o *order) place(n *orderNode, at int, key []byte, slot uint32, kid *orderNode) (right *orderNode, rightKey string) {
	if n.n < orderFan {
		o.shift(n, at, key, slot, kid)
		return nil, ""
	}
	right = &orderNode{}
	if n.inner != nil {
		right.inner = &orderInner{}
	}
	// What comes at the end is most likely followed by more: leave the left node full.
	from := orderFan / 2
	if at == orderFan {
		from = orderFan
	}
	right.n = orderFan - from
	n.move(right, 0, from, right.n)
	n.n = from
	if at >= from && (at > from || from == orderFan) {
		o.rebuild(right)
		o.shift(right, at-from, key, slot, kid)
		o.rebuild(n)
	} else {
		o.rebuild(n)
		o.shift(n, at, key, slot, kid)
		o.rebuild(right)
	}
	return right, o.between(n, right)
}

// between is a short key above all in left and not above any in right.
func (o *order) between(left, right *orderNode) string {
	if right.inner != nil {
		return right.inner.keys[0]
	}
	low, high := o.entryKey(left, left.n-1), o.entryKey(right, 0)
	return strings.Clone(high[:shared(low, high)+1])
}

func shared[T string | []byte](a string, b T) int {
	n := min(len(a), len(b))
	for i := range n {
		if a[i] != b[i] {
			return i
		}
	}
	return n
}

// move copies count entries of n from position from into another node.
func (n *orderNode) move(to *orderNode, at, from, count int) {
	copy(to.heads[at:at+count], n.heads[from:])
	if n.inner == nil {
		copy(to.slots[at:at+count], n.slots[from:])
		return
	}
	copy(to.inner.keys[at:at+count], n.inner.keys[from:])
	copy(to.inner.kids[at:at+count], n.inner.kids[from:])
	if to != n {
		clear(n.inner.keys[from:])
		clear(n.inner.kids[from:])
	}
}

// shift puts an entry at a position of a node that has room.
func (o *order) shift(n *orderNode, at int, key []byte, slot uint32, kid *orderNode) {
	n.move(n, at+1, at, n.n-at)
	n.n++
	if n.inner == nil {
		n.slots[at] = slot
	} else {
		n.inner.keys[at], n.inner.kids[at] = string(key), kid
	}
	if n.n == 1+n.first() || shared(n.prefix, key) < len(n.prefix) {
		o.rebuild(n)
		return
	}
	n.heads[at] = headAt(key, len(n.prefix))
}

// rebuild finds the prefix of a node again, and its heads.
func (o *order) rebuild(n *orderNode) {
	first := n.first()
	if n.n <= first {
		n.prefix = ""
		return
	}
	low, high := o.entryKey(n, first), o.entryKey(n, n.n-1)
	length := shared(low, high)
	if n.n == first+1 {
		length = max(0, len(low)-orderHead) // alone: what comes next may share some of it
	}
	n.prefix = strings.Clone(low[:length])
	for i := first; i < n.n; i++ {
		n.heads[i] = o.entryHead(n, i, length)
	}
}

// remove takes a timer out; its record still lies in its slot.
func (o *order) remove(namespace, id string) {
	o.size--
	o.removeBelow(o.root, o.keyOf(namespace, id))
	for o.root.inner != nil && o.root.n == 1 {
		o.root = o.root.inner.kids[0]
	}
	if o.root.n == 0 {
		o.root = &orderNode{}
	}
}

func (o *order) removeBelow(n *orderNode, k *orderKey) {
	if n.inner == nil {
		at, same := o.search(n, k)
		if !same {
			panic("raftfsm: a pending timer is not in the order")
		}
		n.take(at)
		return
	}
	i := o.child(n, k)
	kid := n.inner.kids[i]
	o.removeBelow(kid, k)
	if kid.n >= orderThin {
		return
	}
	if kid.n == 0 {
		n.take(i)
		return
	}
	if i+1 < n.n && kid.n+n.inner.kids[i+1].n <= orderJoin {
		o.join(n, i)
	} else if i > 0 && kid.n+n.inner.kids[i-1].n <= orderJoin {
		o.join(n, i-1)
	}
}

// take closes the gap of an entry that goes.
func (n *orderNode) take(at int) {
	n.move(n, at, at+1, n.n-at-1)
	n.n--
	if n.inner != nil {
		n.inner.keys[n.n], n.inner.kids[n.n] = "", nil
	}
}

// join moves what child i+1 has into child i.
func (o *order) join(n *orderNode, i int) {
	left, right := n.inner.kids[i], n.inner.kids[i+1]
	if right.inner != nil {
		right.inner.keys[0] = n.inner.keys[i+1]
	}
	count := right.n
	right.move(left, left.n, 0, count)
	left.n += count
	n.take(i + 1)
	// The record that is on its way out is not in the leaf any more, so all keys can be looked at.
	o.rebuild(left)
}

// from calls f for the slots from (namespace, id) on, in order, until it returns false.
func (o *order) from(namespace, id string, f func(slot uint32) bool) {
	o.walk(o.root, o.keyOf(namespace, id), f)
}

// walk visits what is below n; k is nil once all keys are behind the start.
func (o *order) walk(n *orderNode, k *orderKey, f func(slot uint32) bool) bool {
	at := 0
	if n.inner == nil {
		if k != nil {
			at, _ = o.search(n, k)
		}
		for ; at < n.n; at++ {
			if !f(n.slots[at]) {
				return false
			}
		}
		return true
	}
	if k != nil {
		at = o.child(n, k)
	}
	for ; at < n.n; at++ {
		if !o.walk(n.inner.kids[at], k, f) {
			return false
		}
		k = nil
	}
	return true
}

// check verifies the prefixes, the heads, that keys are in order and where the inner nodes say, and the count.
func (o *order) check() error {
	count, err := o.checkNode(o.root, "", "")
	if err == nil && count != o.size {
		err = fmt.Errorf("%d timers, counted %d", count, o.size)
	}
	return err
}

// checkNode verifies a node whose keys are from low on and below high; an empty high is no bound.
func (o *order) checkNode(n *orderNode, low, high string) (int, error) {
	before := low
	for i := n.first(); i < n.n; i++ {
		key := o.entryKey(n, i)
		if !strings.HasPrefix(key, n.prefix) || n.heads[i] != headAt(key, len(n.prefix)) {
			return 0, fmt.Errorf("key %q is not under prefix %q with head %016x", key, n.prefix, n.heads[i])
		}
		if key < before || high != "" && key >= high || i > n.first() && key == before {
			return 0, fmt.Errorf("key %q is not behind %q and before %q", key, before, high)
		}
		before = key
	}
	if n.inner == nil {
		return n.n, nil
	}
	count := 0
	for i, kid := range n.inner.kids[:n.n] {
		from, to := low, high
		if i > 0 {
			from = n.inner.keys[i]
		}
		if i+1 < n.n {
			to = n.inner.keys[i+1]
		}
		if kid == nil || kid.n == 0 {
			return 0, fmt.Errorf("an empty node below %q", from)
		}
		below, err := o.checkNode(kid, from, to)
		if err != nil {
			return 0, err
		}
		count += below
	}
	return count, nil
}
