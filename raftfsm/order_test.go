package raftfsm

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
)

// orderModel keeps an order beside a sorted list of keys.
type orderModel struct {
	table table
	order order
	slots map[string]uint32
}

func newOrderModel(limit int) *orderModel {
	m := &orderModel{slots: map[string]uint32{}}
	m.order = newOrder(&m.table)
	m.order.wait.limit = limit
	return m
}

func (m *orderModel) toggle(namespace, id string) {
	key := namespace + "\x00" + id
	if slot, ok := m.slots[key]; ok {
		m.order.remove(namespace, id, slot)
		r := m.table.at(slot)
		m.table.free(slot)
		m.table.kill(r.where)
		m.table.forgo(r.profile)
		delete(m.slots, key)
		return
	}
	slot := m.table.alloc()
	p := profileOf(namespace, "q", "", RetryPolicy{})
	m.table.set(slot, &record{profile: m.table.intern(m.order.seed, &p)}, &body{id: id})
	m.order.put(slot)
	m.slots[key] = slot
}

// run has 400 keys come or go, rather the one than the other, and reads now and then: what waits waits over several calls.
func (m *orderModel) run(t *testing.T, rng *rand.Rand, shrink bool, shape func(*rand.Rand) (string, string)) {
	t.Helper()
	for i := range 400 {
		namespace, id := shape(rng)
		if _, there := m.slots[namespace+"\x00"+id]; there == shrink || rng.IntN(3) == 0 {
			m.toggle(namespace, id)
		}
		if i%50 == 0 {
			if err := m.order.check(); err != nil {
				t.Fatal(err)
			}
		}
	}
	if namespace, id := shape(rng); rng.IntN(3) == 0 {
		m.check(t, namespace, id)
	}
}

func (m *orderModel) check(t *testing.T, namespace, id string) {
	t.Helper()
	if err := m.order.check(); err != nil {
		t.Fatal(err)
	}
	var want, got []string
	for key := range m.slots {
		if key >= namespace+"\x00"+id {
			want = append(want, key)
		}
	}
	slices.Sort(want)
	m.order.from(namespace, id, func(slot uint32) bool {
		got = append(got, string(m.order.slotKey(nil, slot)))
		return true
	})
	if !slices.Equal(got, want) {
		t.Fatalf("from %q %q: %d keys, want %d\n%q\n%q", namespace, id, len(got), len(want), got, want)
	}
}

// Keys of many shapes: long shared beginnings, keys that begin others, one byte, bytes above 0x7f, many namespaces.
func TestOrderModel(t *testing.T) {
	t.Parallel()
	shapes := map[string]func(rng *rand.Rand) (string, string){
		"numbered": func(rng *rand.Rand) (string, string) {
			return "default", fmt.Sprintf("order-%07d/expire", rng.IntN(3000))
		},
		"tail":       func(rng *rand.Rand) (string, string) { return "n", fmt.Sprintf("%030d%d", 0, rng.IntN(2000)) },
		"namespaces": func(rng *rand.Rand) (string, string) { return fmt.Sprint("t", rng.IntN(800)), "x" },
		"beginnings": func(rng *rand.Rand) (string, string) {
			return "aaaaaaaaa"[:1+rng.IntN(9)], "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa"[:1+rng.IntN(70)]
		},
		"bytes": func(rng *rand.Rand) (string, string) {
			b := make([]byte, 1+rng.IntN(12))
			for i := range b {
				b[i] = []byte{1, 2, 0x7F, 0x80, 0xFF}[rng.IntN(5)]
			}
			return "n", string(b)
		},
	}
	for name, shape := range shapes {
		for _, limit := range []int{1, 2, 50, 700, orderWaits} {
			t.Run(fmt.Sprintf("%s/%d", name, limit), func(t *testing.T) {
				t.Parallel()
				rng := rand.New(rand.NewPCG(7, uint64(limit)))
				m := newOrderModel(limit)
				for round := range 20 {
					m.run(t, rng, round/5%2 == 1, shape)
				}
			})
		}
	}
}

// Keys that come in order fill their leaves, and leave none behind when they go in order.
func TestOrderInSequence(t *testing.T) {
	t.Parallel()
	m := newOrderModel(orderWaits)
	const n = 20_000
	for i := range n {
		m.toggle("n", fmt.Sprintf("order-%09d", i))
	}
	m.check(t, "", "")
	nodes := 0
	m.order.root.count(&nodes)
	if limit := n/orderFan + n/orderFan/8; nodes > limit {
		t.Fatalf("%d nodes for %d keys in sequence, want at most %d", nodes, n, limit)
	}
	for i := range n {
		m.toggle("n", fmt.Sprintf("order-%09d", i))
		if i%1000 == 0 {
			m.check(t, "", "")
		}
	}
	m.check(t, "", "")
	if m.order.root != nil || m.order.at(m.order.leaf).n != 0 {
		t.Fatal("an empty order is not a single leaf")
	}
	kept := 0
	for _, slab := range m.order.leaves.slabs {
		kept += len(slab)
	}
	if kept > 2*leafSlab {
		t.Fatalf("an empty order keeps %d leaves", kept)
	}
}

func (n *orderNode) count(nodes *int) {
	*nodes++
	for i := range n.n {
		if n.kids == nil {
			*nodes++
		} else {
			n.kids[i].count(nodes)
		}
	}
}
