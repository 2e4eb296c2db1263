package raftfsm

import "github.com/tidwall/btree"

// order is the pending timers by (namespace, ID). Guarded by FSM.mu.
type order struct{ tree *btree.BTreeG[orderItem] }

type orderItem struct {
	namespace, id string
	slot          uint32
}

func lessOrder(a, b orderItem) bool {
	if a.namespace != b.namespace {
		return a.namespace < b.namespace
	}
	return a.id < b.id
}

func newOrder() order {
	return order{btree.NewBTreeGOptions(lessOrder, btree.Options{NoLocks: true})}
}

func (o *order) put(namespace, id string, slot uint32) { o.tree.Set(orderItem{namespace, id, slot}) }

func (o *order) remove(namespace, id string) { o.tree.Delete(orderItem{namespace: namespace, id: id}) }

// from calls f for the slots from (namespace, id) on, in order, until it returns false.
func (o *order) from(namespace, id string, f func(slot uint32) bool) {
	o.tree.Ascend(orderItem{namespace: namespace, id: id}, func(it orderItem) bool { return f(it.slot) })
}

func (o *order) len() int { return o.tree.Len() }
