package raftfsm

import (
	"fmt"
	"hash/maphash"
	"math/bits"
	"strings"
)

// orderCheck is a look at a whole order.
type orderCheck struct {
	*order
	// gone are the keys of the slots that are in the tree and went.
	gone map[uint32]string
	// used are the leaves that were seen.
	used map[leafRef]bool
}

// check verifies the prefixes, the heads, that keys are where the inner nodes say, what waits, and the counts.
func (o *order) check() error {
	if (o.root == nil) == (o.leaf == noLeaf) {
		return fmt.Errorf("a root and a single leaf, or none")
	}
	c := orderCheck{order: o, gone: map[uint32]string{}, used: map[leafRef]bool{}}
	young, err := c.checkWait()
	if err != nil {
		return err
	}
	count := 0
	if o.root == nil {
		count, err = c.checkLeaf(o.leaf, "", "")
	} else {
		count, err = c.checkNode(o.root, "", "")
	}
	if err != nil {
		return err
	}
	if want := o.size - young + len(o.wait.gone); count != want || len(c.gone) > 0 {
		return fmt.Errorf("%d timers in the tree, %d that wait and %d that went, counted %d; %d that went are not in the tree",
			count, young, len(o.wait.gone), o.size, len(c.gone))
	}
	return c.checkLeaves()
}

// checkWait verifies what waits, and returns how many timers came.
func (c *orderCheck) checkWait() (young int, err error) {
	w := &c.wait
	for i, g := range w.gone {
		if _, twice := c.gone[g.slot]; twice {
			return 0, fmt.Errorf("slot %d went twice", g.slot)
		}
		c.gone[g.slot] = string(w.key(i))
	}
	came := map[uint32]bool{}
	for _, slot := range w.young {
		if c.table.infos[slot>>pageBits].isYoung(slot & pageMask) {
			came[slot] = true
		}
	}
	for i := range c.table.infos {
		for _, b := range c.table.infos[i].slots {
			young += bits.OnesCount64(b.young)
		}
	}
	if young != len(came) {
		return 0, fmt.Errorf("%d slots are young, %d of them wait", young, len(came))
	}
	return young, nil
}

// checkLeaves verifies that the leaves that are not free are those of the tree.
func (c *orderCheck) checkLeaves() error {
	h, used := &c.leaves, 0
	open := map[uint32]bool{}
	for _, n := range h.open {
		if open[n] {
			return fmt.Errorf("slab %d of leaves is twice among the open", n)
		}
		open[n] = true
	}
	for n, slab := range h.slabs {
		if open[uint32(n)] != (h.free[n] != 0) {
			return fmt.Errorf("slab %d of leaves has the free ones %x, open %v", n, h.free[n], open[uint32(n)])
		}
		used += len(slab) - bits.OnesCount64(h.free[n])
		for i := range slab {
			r := leafRef(n)<<leafBits | leafRef(i)
			if free := h.free[n]>>i&1 != 0; free == c.used[r] || free && slab[i] != (orderLeaf{}) {
				return fmt.Errorf("leaf %d is free %v, used %v, or not empty", r, free, c.used[r])
			}
		}
	}
	if used != len(c.used) {
		return fmt.Errorf("%d leaves are in the tree, counted %d", len(c.used), used)
	}
	return nil
}

// checkNode verifies a node whose keys are from low on and below high; an empty high is no bound.
func (c *orderCheck) checkNode(n *orderNode, low, high string) (int, error) {
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
			if below, err = c.checkLeaf(n.leaves[i], from, to); below == 0 && err == nil {
				err = fmt.Errorf("an empty leaf below %q", from)
			}
		} else {
			below, err = c.checkNode(n.kids[i], from, to)
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

func (c *orderCheck) checkLeaf(ref leafRef, low, high string) (int, error) {
	if c.used[ref] {
		return 0, fmt.Errorf("leaf %d is twice in the tree", ref)
	}
	c.used[ref] = true
	l, before := c.at(ref), ""
	for i := range l.cells[:l.n] {
		slot := l.slot(i)
		key, gone := c.gone[slot]
		if gone {
			delete(c.gone, slot)
		} else if c.table.where(slot) == 0 || c.table.infos[slot>>pageBits].isYoung(slot&pageMask) {
			return 0, fmt.Errorf("slot %d is free, or young", slot)
		} else {
			key = string(c.slotKey(nil, slot))
		}
		if key < low || high != "" && key >= high || l.sorted && i > 0 && key <= before {
			return 0, fmt.Errorf("key %q is not behind %q and before %q, or not sorted", key, max(low, before), high)
		}
		if len(key) < int(l.prefix) || l.check != maphash.String(c.seed, key[:l.prefix]) || l.head(i) != leafHead([]byte(key), int(l.prefix)) {
			return 0, fmt.Errorf("key %q is not under a prefix of %d with head %08x", key, l.prefix, l.head(i))
		}
		before = key
	}
	return int(l.n), nil
}
