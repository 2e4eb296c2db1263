package main

import (
	"container/heap"

	"github.com/carillon-timers/carillon/wheel"
)

// start is the present of all simulated runs, in Unix milliseconds: an uneven instant of 2027.
const start = 1_800_000_123_457

// engine is one way to keep timers. Timers are numbered by the caller; ticks are Unix milliseconds after start.
type engine interface {
	add(ids []uint32, whens []int64)
	move(ids []uint32, whens []int64)
	remove(ids []uint32)
	expire() int // lets all timers expire in simulated time and returns how many did; -1: cannot
}

// ours is the package under test.
type ours struct {
	w       *wheel.Wheel
	handles []wheel.Handle
	due     [256]wheel.Due
}

func newOurs(n int) engine { return &ours{w: wheel.New(start), handles: make([]wheel.Handle, n)} }

// add keeps the handles of a batch together until it is done: their places in the table are far apart, and in one go
// the cache misses overlap.
func (o *ours) add(ids []uint32, whens []int64) {
	var hs [64]wheel.Handle
	for first := 0; first < len(ids); first += len(hs) {
		part := ids[first:min(first+len(hs), len(ids))]
		for k, id := range part {
			hs[k] = o.w.Add(wheel.Tick(whens[first+k]), uint64(id))
		}
		for k, id := range part {
			o.handles[id] = hs[k]
		}
	}
}

// batches cuts ids into batches of 64 and warms the wheel up for each, as the executor does.
func (o *ours) batches(ids []uint32, f func(first int, hs []wheel.Handle)) {
	var hs [64]wheel.Handle
	for first := 0; first < len(ids); first += len(hs) {
		part := hs[:min(len(hs), len(ids)-first)]
		for k := range part {
			part[k] = o.handles[ids[first+k]]
		}
		o.w.Warm(part)
		f(first, part)
	}
}

func (o *ours) move(ids []uint32, whens []int64) {
	o.batches(ids, func(first int, hs []wheel.Handle) {
		for k, h := range hs {
			o.w.Move(h, wheel.Tick(whens[first+k]))
		}
	})
}

func (o *ours) remove(ids []uint32) {
	o.batches(ids, func(_ int, hs []wheel.Handle) {
		for _, h := range hs {
			o.w.Remove(h)
		}
	})
}

func (o *ours) expire() int {
	n := 0
	for {
		t, ok := o.w.Next()
		if !ok {
			return n
		}
		for more := true; more; {
			var k int
			k, more = o.w.Advance(t, o.due[:])
			n += k
		}
	}
}

// binaryHeap is what most programs write: container/heap over pointers with tracked indices.
type binaryHeap struct {
	h    timerHeap
	byID []*heapTimer
}

type heapTimer struct {
	when int64
	id   uint32
	at   int32
}

type timerHeap []*heapTimer

func (h timerHeap) Len() int           { return len(h) }
func (h timerHeap) Less(i, j int) bool { return h[i].when < h[j].when }
func (h timerHeap) Swap(i, j int) {
	h[i], h[j] = h[j], h[i]
	h[i].at, h[j].at = int32(i), int32(j)
}
func (h *timerHeap) Push(x any) {
	t := x.(*heapTimer)
	t.at = int32(len(*h))
	*h = append(*h, t)
}
func (h *timerHeap) Pop() any {
	last := len(*h) - 1
	t := (*h)[last]
	(*h)[last] = nil
	*h = (*h)[:last]
	return t
}

func newHeap(n int) engine { return &binaryHeap{byID: make([]*heapTimer, n)} }

func (b *binaryHeap) add(ids []uint32, whens []int64) {
	for k, id := range ids {
		t := &heapTimer{when: whens[k], id: id}
		b.byID[id] = t
		heap.Push(&b.h, t)
	}
}

func (b *binaryHeap) move(ids []uint32, whens []int64) {
	for k, id := range ids {
		t := b.byID[id]
		t.when = whens[k]
		heap.Fix(&b.h, int(t.at))
	}
}

func (b *binaryHeap) remove(ids []uint32) {
	for _, id := range ids {
		heap.Remove(&b.h, int(b.byID[id].at))
		b.byID[id] = nil
	}
}

func (b *binaryHeap) expire() int {
	n := 0
	for len(b.h) > 0 {
		t := heap.Pop(&b.h).(*heapTimer)
		b.byID[t.id] = nil
		n++
	}
	return n
}

// rounds is the hashed wheel of one level: a slot holds all timers of equal tick modulo the size, with the rounds left.
type rounds struct {
	now   int64
	slots [roundSlots]*roundTimer
	byID  []*roundTimer
	n     int
}

const roundSlots = 4096

type roundTimer struct {
	prev, next *roundTimer
	slot, left int64
	id         uint32
}

func newRounds(n int) engine { return &rounds{now: start, byID: make([]*roundTimer, n)} }

func (r *rounds) insert(t *roundTimer, when int64) {
	t.slot, t.left = when%roundSlots, (when-r.now)/roundSlots
	t.prev, t.next = nil, r.slots[t.slot]
	if t.next != nil {
		t.next.prev = t
	}
	r.slots[t.slot] = t
	r.n++
}

func (r *rounds) unlink(t *roundTimer) {
	if t.prev != nil {
		t.prev.next = t.next
	} else {
		r.slots[t.slot] = t.next
	}
	if t.next != nil {
		t.next.prev = t.prev
	}
	r.n--
}

func (r *rounds) add(ids []uint32, whens []int64) {
	for k, id := range ids {
		r.byID[id] = &roundTimer{id: id}
		r.insert(r.byID[id], whens[k])
	}
}

func (r *rounds) move(ids []uint32, whens []int64) {
	for k, id := range ids {
		r.unlink(r.byID[id])
		r.insert(r.byID[id], whens[k])
	}
}

func (r *rounds) remove(ids []uint32) {
	for _, id := range ids {
		r.unlink(r.byID[id])
		r.byID[id] = nil
	}
}

// expire goes on for a third of a second of CPU time at most: with far timers each turn of the wheel visits every one.
func (r *rounds) expire() int {
	n := 0
	for began := cpuNow(); r.n > 0 && (r.now&255 != 0 || cpuNow()-began < 3e8); r.now++ {
		for t := r.slots[r.now%roundSlots]; t != nil; t = t.next {
			if t.left--; t.left < 0 {
				r.unlink(t)
				r.byID[t.id] = nil
				n++
			}
		}
	}
	return n
}
