package transport

import (
	"sync"

	"github.com/carillon-timers/carillon/shard/executor"
)

// sourceTurns bounds how many sources one turn of a subscriber asks.
const sourceTurns = 64

// Hub joins the ready lists of the shards (executor.Source) with the workers that subscribe to a queue. It implements
// executor.Deliverer.
//
// Workers pull: a subscriber's own sender takes what its credits allow, in turn with the others, and sends it. So
// nothing lies between the ready list and the wire but what one sender holds, at most 64 deliveries, and a consumer that
// hangs keeps nothing from the others. One subscriber at a time asks a source for a queue, which keeps the source's
// order.
type Hub struct {
	mu sync.Mutex
	// queues holds each queue that has subscribers or ready sources; guarded by mu.
	queues map[executor.Queue]*hubQueue
	// subscribers counts the subscribers of all queues; guarded by mu.
	subscribers int
	// credits is the sum over the subscribers; guarded by mu.
	credits int
	// taken counts the deliveries taken from sources; guarded by mu.
	taken uint64
}

// hubQueue is a queue; guarded by Hub.mu.
type hubQueue struct {
	name executor.Queue
	// sources has each source that may have ready timers or is being asked, and its state.
	sources map[executor.Source]*sourceState
	// ring is the order in which the ready ones that are not being asked have their turn.
	ring []*sourceState
	// subscribers counts those who may take.
	subscribers int
	// waiting are the subscribers with credit that found nothing, in the order in which they came.
	waiting []*subscriber
}

// sourceState is a source of one queue; guarded by Hub.mu.
type sourceState struct {
	source executor.Source
	// asked is true while a subscriber asks it: it is not in the ring then.
	asked bool
	// again is true if it became ready while it was asked.
	again bool
}

// subscriber is one Work stream's part of a queue.
type subscriber struct {
	queue *hubQueue // set before sharing
	// wake holds at most one signal: something may be ready, or credit came.
	wake chan struct{} // set before sharing
	// credits is what it may still take; guarded by Hub.mu.
	credits int
	// waits is true while it is in queue.waiting; guarded by Hub.mu.
	waits bool
	// gone is true after unsubscribe; guarded by Hub.mu.
	gone bool
}

// NewHub returns a hub without queues.
func NewHub() *Hub { return &Hub{queues: make(map[executor.Queue]*hubQueue)} }

// Ready remembers that the source has timers of the queue and wakes a subscriber that waits. It never waits and does
// not call the source.
func (h *Hub) Ready(src executor.Source, name executor.Queue) {
	h.mu.Lock()
	defer h.mu.Unlock()
	q := h.queue(name)
	state := q.sources[src]
	switch {
	case state == nil:
		state = &sourceState{source: src}
		q.sources[src] = state
		q.ring = append(q.ring, state)
	case state.asked:
		state.again = true
		return // who asks it looks again
	}
	q.wakeOne()
}

// Forget drops what is remembered of a shard's sources: for a shard that this node keeps no more.
func (h *Hub) Forget(shard uint32) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, q := range h.queues {
		ring := q.ring[:0]
		for _, state := range q.ring {
			if state.source.Shard() == shard {
				delete(q.sources, state.source)
				continue
			}
			ring = append(ring, state)
		}
		clear(q.ring[len(ring):])
		q.ring = ring
		h.tidy(q)
	}
}

// subscribe adds a subscriber without credit.
func (h *Hub) subscribe(name executor.Queue) *subscriber {
	h.mu.Lock()
	defer h.mu.Unlock()
	q := h.queue(name)
	q.subscribers++
	h.subscribers++
	return &subscriber{queue: q, wake: make(chan struct{}, 1)}
}

// unsubscribe takes the subscriber out: take gives it nothing more. What it had been woken for goes to the next.
func (h *Hub) unsubscribe(s *subscriber) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if s.gone {
		return
	}
	s.gone = true
	q := s.queue
	q.leave(s)
	q.subscribers--
	h.subscribers--
	h.credits -= s.credits
	s.credits = 0
	if q.subscribers == 0 {
		h.probe(q)
	}
	q.wakeOne()
	h.tidy(q)
}

// peeker is a Source that can say whether it has ready timers of a queue, so that a queue that was emptied by a worker
// that left can be forgotten at once. Without it, such a queue is remembered until its next worker finds it empty.
type peeker interface {
	// Waiting says whether Take could give something. It never waits.
	Waiting(q executor.Queue) bool
}

// probe forgets the sources that have nothing any more; h.mu is held, but not while a source is asked.
func (h *Hub) probe(q *hubQueue) {
	for range len(q.ring) {
		if len(q.ring) == 0 {
			return
		}
		state := q.next()
		src, ok := state.source.(peeker)
		waiting := !ok || h.peekUnlocked(src, q.name)
		q.back(state, waiting)
	}
}

func (h *Hub) peekUnlocked(src peeker, name executor.Queue) bool {
	h.mu.Unlock()
	defer h.mu.Lock()
	return src.Waiting(name)
}

// grant adds credits.
func (h *Hub) grant(s *subscriber, credits int) {
	h.mu.Lock()
	if !s.gone {
		s.credits += credits
		h.credits += credits
	}
	h.mu.Unlock()
	s.signal()
}

// outstanding is what the subscriber may still take.
func (h *Hub) outstanding(s *subscriber) int {
	h.mu.Lock()
	defer h.mu.Unlock()
	return s.credits
}

// take appends up to 64 deliveries to out, as many as the subscriber has credit for, from the ready sources in turn.
func (h *Hub) take(s *subscriber, out []executor.Delivery) []executor.Delivery {
	h.mu.Lock()
	defer h.mu.Unlock()
	q := s.queue
	q.leave(s)
	if s.gone {
		return out
	}
	room := min(s.credits, takeMax)
	s.credits -= room
	h.credits -= room
	for turn := 0; room > 0 && turn < sourceTurns && len(q.ring) > 0; turn++ {
		before := len(out)
		out = h.ask(q, room, out)
		room -= len(out) - before
	}
	if !s.gone { // what was not used
		s.credits += room
		h.credits += room
	}
	q.wakeOne() // there may be more, for another
	h.tidy(q)
	return out
}

// ask takes from the source whose turn it is; h.mu is held, but not while the source is asked.
func (h *Hub) ask(q *hubQueue, room int, out []executor.Delivery) []executor.Delivery {
	state := q.next()
	got := h.askUnlocked(state.source, q.name, room)
	q.back(state, len(got) >= room)
	h.taken += uint64(len(got))
	return append(out, got...)
}

func (h *Hub) askUnlocked(src executor.Source, name executor.Queue, room int) []executor.Delivery {
	h.mu.Unlock()
	defer h.mu.Lock()
	return src.Take(name, room)
}

// await puts the subscriber into the line of those that wait. False means that it must not wait: take again.
func (h *Hub) await(s *subscriber) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	if s.gone || s.credits == 0 {
		return true // only new credit, or the end, can help it
	}
	if len(s.queue.ring) > 0 {
		return false
	}
	if !s.waits {
		s.waits = true
		s.queue.waiting = append(s.queue.waiting, s)
	}
	return true
}

// HubStats counts what the hub knows.
type HubStats struct {
	// Queues have subscribers or ready timers; Unattended have ready timers and no subscriber.
	Queues, Unattended int
	// Subscribers are the open subscriptions, Credits what they may still be sent.
	Subscribers, Credits int
	// Taken counts the deliveries handed to subscribers since the start.
	Taken uint64
}

// Stats counts.
func (h *Hub) Stats() HubStats {
	h.mu.Lock()
	defer h.mu.Unlock()
	stats := HubStats{Queues: len(h.queues), Subscribers: h.subscribers, Credits: h.credits, Taken: h.taken}
	for _, q := range h.queues {
		if q.subscribers == 0 {
			stats.Unattended++
		}
	}
	return stats
}

// queue finds or makes a queue; h.mu is held.
func (h *Hub) queue(name executor.Queue) *hubQueue {
	q := h.queues[name]
	if q == nil {
		q = &hubQueue{name: name, sources: make(map[executor.Source]*sourceState)}
		h.queues[name] = q
	}
	return q
}

// tidy forgets a queue that has nothing to remember; h.mu is held.
func (h *Hub) tidy(q *hubQueue) {
	if q.subscribers == 0 && len(q.sources) == 0 && h.queues[q.name] == q {
		delete(h.queues, q.name)
	}
}

// next takes the source whose turn it is out of the ring, to be asked without the lock.
func (q *hubQueue) next() *sourceState {
	state := q.ring[0]
	q.ring[0] = nil
	q.ring = q.ring[1:]
	state.asked, state.again = true, false
	return state
}

// back is the end of asking: the source is ready if it may have more, or if it became ready meanwhile; else it is
// forgotten until it says so.
func (q *hubQueue) back(state *sourceState, more bool) {
	state.asked = false
	if more || state.again {
		q.ring = append(q.ring, state)
		return
	}
	delete(q.sources, state.source)
}

// wakeOne wakes the subscriber that has waited longest, if a source is ready.
func (q *hubQueue) wakeOne() {
	if len(q.ring) == 0 || len(q.waiting) == 0 {
		return
	}
	s := q.waiting[0]
	q.waiting[0] = nil
	q.waiting = q.waiting[1:]
	s.waits = false
	s.signal()
}

// leave takes the subscriber out of the line.
func (q *hubQueue) leave(s *subscriber) {
	if !s.waits {
		return
	}
	s.waits = false
	for i, w := range q.waiting {
		if w == s {
			q.waiting = append(q.waiting[:i], q.waiting[i+1:]...)
			return
		}
	}
}

func (s *subscriber) signal() {
	select {
	case s.wake <- struct{}{}:
	default: // a signal is there already
	}
}
