package peer

import (
	"encoding/binary"
	"sync"
	"sync/atomic"
)

// States of a message on its way out.
const (
	messageQueued int32 = iota
	messageStarted
	messageCancelled
)

// message is one request, answer or sign to be sent.
type message struct {
	typ     frameType
	group   uint32
	id      uint64
	payload []byte
	off     int      // guarded by the outbox's mu
	next    *message // guarded by the outbox's mu; in its queue
	soon    bool     // set before it is pushed; its sender sends more before it rests
	state   atomic.Int32
}

// messages is a queue.
type messages struct {
	first, last *message
	count       int
}

func (q *messages) add(m *message) {
	if q.last == nil {
		q.first = m
	} else {
		q.last.next = m
	}
	q.last = m
	q.count++
}

// drop takes the first out.
func (q *messages) drop() {
	m := q.first
	if q.first = m.next; q.first == nil {
		q.last = nil
	}
	m.next = nil
	q.count--
}

// cancel takes the message back; false means that some of it may be on its way.
func (m *message) cancel() bool {
	return m.state.CompareAndSwap(messageQueued, messageCancelled) || m.state.Load() == messageCancelled
}

// lane says how a message is queued.
type lane struct {
	urgent bool
	// class and group name the bulk queue; the messages of one queue keep their order.
	class uint8
	group uint32
}

const (
	classRaft     = 0
	classCall     = 1
	classResponse = 2
)

// laneQueue is one bulk queue; queues with something in them form a ring by next.
type laneQueue struct {
	lane     lane
	messages messages
	bytes    int
	next     *laneQueue
}

// outbox orders what a connection sends: urgent messages first, then one fragment of each bulk queue in turn, so that
// neither megabytes of one group delay the others nor anything delays a heartbeat. At any time one goroutine at most writes:
// the one that push told so, or the connection's writer, to which it hands over.
type outbox struct {
	maxMessages int
	maxBytes    int
	direct      bool          // set before sharing; who sends may write
	wake        chan struct{} // holds at most one signal: it is the writer's turn

	mu      sync.Mutex
	closed  bool                // guarded by mu
	writing bool                // guarded by mu; somebody writes, or will; what is queued meanwhile is sent by them
	urgent  messages            // guarded by mu
	queues  map[lane]*laneQueue // guarded by mu; only those with something in them
	spare   *laneQueue          // guarded by mu; an empty queue to be used again
	head    *laneQueue          // guarded by mu; the ring as a list
	tail    *laneQueue          // guarded by mu
	active  int                 // guarded by mu; messages of which some fragments are sent, not all
	count   int                 // guarded by mu; messages
	bytes   int                 // guarded by mu
}

func newOutbox(maxMessages, maxBytes int) *outbox {
	return &outbox{
		maxMessages: maxMessages, maxBytes: maxBytes, wake: make(chan struct{}, 1), queues: map[lane]*laneQueue{},
	}
}

// directBytes is the largest payload whose sender may write: a larger one may not fit into the socket's buffer.
const directBytes = 32 << 10

// push queues a message: ErrQueueFull if its queue is at the limit, ErrConnLost if the connection has ended. It never
// waits. mine says that the caller must write what is queued (conn.flush).
func (o *outbox) push(m *message, l lane) (mine bool, err error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if err := o.add(m, l); err != nil || o.writing {
		return false, err
	}
	o.writing = true
	if o.direct && !m.soon && len(m.payload) <= directBytes {
		return true, nil
	}
	o.signal()
	return false, nil
}

// rest ends a turn of the writer: true if nothing is queued, else the next turn is its own, too.
func (o *outbox) rest() bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.writing = o.count > 0
	return !o.writing
}

// pass ends a turn that push has given. What is queued, or left because the socket did not take it, is the writer's.
func (o *outbox) pass(left bool) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.writing = left || o.count > 0; o.writing {
		o.signal()
	}
}

// signal gives the writer the next turn.
func (o *outbox) signal() {
	select {
	case o.wake <- struct{}{}:
	default: // only when the connection has ended and nobody takes it
	}
}

func (o *outbox) add(m *message, l lane) error {
	if o.closed {
		return ErrConnLost
	}
	if l.urgent {
		if o.urgent.count >= urgentMax {
			return ErrQueueFull
		}
		o.urgent.add(m)
	} else {
		q := o.queues[l]
		if q == nil {
			q = o.open(l)
		} else if q.messages.count >= o.maxMessages || q.bytes+len(m.payload) > o.maxBytes {
			return ErrQueueFull
		}
		q.messages.add(m)
		q.bytes += len(m.payload)
	}
	o.count++
	o.bytes += len(m.payload)
	return nil
}

// open puts an empty queue into the ring.
func (o *outbox) open(l lane) *laneQueue {
	q := o.spare
	if q == nil {
		q = new(laneQueue)
	}
	o.spare = nil
	*q = laneQueue{lane: l}
	o.queues[l] = q
	o.link(q)
	return q
}

func (o *outbox) link(q *laneQueue) {
	q.next = nil
	if o.tail == nil {
		o.head, o.tail = q, q
		return
	}
	o.tail.next = q
	o.tail = q
}

func (o *outbox) unlinkHead() *laneQueue {
	q := o.head
	o.head = q.next
	if o.head == nil {
		o.tail = nil
	}
	return q
}

// frame appends the next frame to b; false means that nothing waits.
func (o *outbox) frame(b []byte) ([]byte, bool) {
	o.mu.Lock()
	m, from, to := o.take()
	o.mu.Unlock()
	if m == nil {
		return b, false
	}
	h := header{typ: m.typ, group: m.group, id: m.id}
	var prefix []byte
	if to < len(m.payload) {
		h.flags = flagMore
		if from == 0 {
			h.flags |= flagFirst
			prefix = binary.LittleEndian.AppendUint32(nil, uint32(len(m.payload)))
		}
	}
	b = appendFrame(b, h, prefix, m.payload[from:to])
	if to == len(m.payload) {
		freePayload(m.payload)
		m.payload = nil
	}
	return b, true
}

// take picks the next fragment: payload[from:to] of m.
func (o *outbox) take() (m *message, from, to int) {
	for o.urgent.count > 0 {
		m := o.urgent.first
		o.urgent.drop()
		o.count--
		o.bytes -= len(m.payload)
		if m.state.CompareAndSwap(messageQueued, messageStarted) {
			return m, 0, len(m.payload)
		}
	}
	for o.head != nil {
		q := o.unlinkHead()
		m := q.messages.first
		large := len(m.payload) > fragmentBytes
		if m.off == 0 && large && o.active >= activeMax && m.state.Load() == messageQueued {
			o.link(q) // not its turn yet; those that are under way are in the ring too
			continue
		}
		if m.off == 0 && !m.state.CompareAndSwap(messageQueued, messageStarted) {
			o.finishHead(q)
			continue
		}
		from = m.off
		to = min(from+fragmentBytes, len(m.payload))
		m.off = to
		if large && from == 0 {
			o.active++
		}
		if to < len(m.payload) {
			o.link(q)
			return m, from, to
		}
		if large {
			o.active--
		}
		o.finishHead(q)
		return m, from, to
	}
	return nil, 0, 0
}

// finishHead drops the first message of an unlinked queue and puts the queue back if more waits.
func (o *outbox) finishHead(q *laneQueue) {
	n := len(q.messages.first.payload)
	q.messages.drop()
	q.bytes -= n
	o.count--
	o.bytes -= n
	if q.messages.count == 0 {
		delete(o.queues, q.lane)
		o.spare = q
		return
	}
	o.link(q)
}

// depth is what waits, in messages and bytes.
func (o *outbox) depth() (messages, bytes int) {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.count, o.bytes
}

func (o *outbox) close() {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.closed = true
	o.urgent, o.queues, o.head, o.tail, o.spare = messages{}, nil, nil, nil, nil
	o.count, o.bytes = 0, 0
}

// pooledBytes is the largest buffer that is kept for the next message.
const pooledBytes = 2 << 20

var payloads = sync.Pool{New: func() any { b := make([]byte, 0, 512); return &b }}

// newPayload returns an empty buffer with room for about n bytes.
func newPayload(n int) []byte {
	if n > pooledBytes {
		return make([]byte, 0, n)
	}
	b := *payloads.Get().(*[]byte)
	if cap(b) < n {
		b = make([]byte, 0, n)
	}
	return b[:0]
}

func freePayload(b []byte) {
	if cap(b) == 0 || cap(b) > pooledBytes {
		return
	}
	payloads.Put(&b)
}
