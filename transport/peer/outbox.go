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
	off     int // guarded by the outbox's mu
	state   atomic.Int32
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
	messages []*message
	bytes    int
	next     *laneQueue
}

// outbox orders what a connection sends: urgent messages first, then one fragment of each bulk queue in turn, so that
// neither megabytes of one group delay the others nor anything delays a heartbeat.
type outbox struct {
	maxMessages int
	maxBytes    int
	wake        chan struct{} // holds at most one signal for the writer

	mu     sync.Mutex
	closed bool                // guarded by mu
	urgent []*message          // guarded by mu
	queues map[lane]*laneQueue // guarded by mu; only those with something in them
	head   *laneQueue          // guarded by mu; the ring as a list
	tail   *laneQueue          // guarded by mu
	active int                 // guarded by mu; messages of which some fragments are sent, not all
	count  int                 // guarded by mu; messages
	bytes  int                 // guarded by mu
}

func newOutbox(maxMessages, maxBytes int) *outbox {
	return &outbox{
		maxMessages: maxMessages, maxBytes: maxBytes, wake: make(chan struct{}, 1), queues: map[lane]*laneQueue{},
	}
}

// push queues a message: ErrQueueFull if its queue is at the limit, ErrConnLost if the connection has ended. It never
// waits.
func (o *outbox) push(m *message, l lane) error {
	o.mu.Lock()
	err := o.pushLocked(m, l)
	o.mu.Unlock()
	if err != nil {
		return err
	}
	select {
	case o.wake <- struct{}{}:
	default:
	}
	return nil
}

func (o *outbox) pushLocked(m *message, l lane) error {
	if o.closed {
		return ErrConnLost
	}
	if l.urgent {
		if len(o.urgent) >= urgentMax {
			return ErrQueueFull
		}
		o.urgent = append(o.urgent, m)
	} else {
		q := o.queues[l]
		if q == nil {
			q = &laneQueue{lane: l}
			o.queues[l] = q
			o.link(q)
		} else if len(q.messages) >= o.maxMessages || q.bytes+len(m.payload) > o.maxBytes {
			return ErrQueueFull
		}
		q.messages = append(q.messages, m)
		q.bytes += len(m.payload)
	}
	o.count++
	o.bytes += len(m.payload)
	return nil
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
	for len(o.urgent) > 0 {
		m := o.urgent[0]
		o.urgent[0] = nil
		o.urgent = o.urgent[1:]
		o.count--
		o.bytes -= len(m.payload)
		if m.state.CompareAndSwap(messageQueued, messageStarted) {
			return m, 0, len(m.payload)
		}
	}
	for o.head != nil {
		q := o.unlinkHead()
		m := q.messages[0]
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
	m := q.messages[0]
	q.messages[0] = nil
	q.messages = q.messages[1:]
	q.bytes -= len(m.payload)
	o.count--
	o.bytes -= len(m.payload)
	if len(q.messages) == 0 {
		delete(o.queues, q.lane)
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
	o.urgent, o.queues, o.head, o.tail = nil, nil, nil, nil
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
