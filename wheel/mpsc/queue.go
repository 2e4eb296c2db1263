// Package mpsc is an unbounded first-in-first-out queue for many producers and one consumer, who takes everything at once.
//
// It is a buffer behind a mutex which Drain swaps for an empty one: a producer holds the mutex for the time of an
// append, so it never waits for the consumer. What bounds it is admission by those who push.
//
// Invariants: elements leave in the order in which Push and PushN took the mutex, and those of one PushN stay together;
// after a Drain that came back empty, the next Push or PushN calls the wake-up, and no other does.
package mpsc

import "sync"

const (
	keepCap   = 1024 // a buffer of this capacity is always kept
	keepRatio = 8    // a larger one is dropped when batches use less than this part of it
	keepTurns = 64   // so many times in a row
)

// Queue is the queue. Use New. Push, PushN and Len may be called by any goroutine, Drain by one at a time.
type Queue[T any] struct {
	wake  func() // set before sharing
	small int    // touched by the consumer alone; batches in a row that were small for their large buffer

	mu   sync.Mutex
	buf  []T  // guarded by mu
	idle bool // guarded by mu; the consumer has found the queue empty and was not woken since
}

// New makes an empty queue. Its consumer counts as having seen it empty.
func New[T any]() *Queue[T] { return &Queue[T]{idle: true, wake: func() {}} }

// OnWake sets what the first producer after an empty Drain calls, outside the lock. It must be set before the queue
// is shared, must not wait, and must leave a mark that the consumer finds if it only now goes to sleep.
func (q *Queue[T]) OnWake(f func()) { q.wake = f }

// Push appends one element.
func (q *Queue[T]) Push(v T) {
	q.mu.Lock()
	q.buf = append(q.buf, v)
	idle := q.idle
	q.idle = false
	q.mu.Unlock()
	if idle {
		q.wake()
	}
}

// PushN appends elements, with no other between them. It does not keep vs.
func (q *Queue[T]) PushN(vs []T) {
	if len(vs) == 0 {
		return
	}
	q.mu.Lock()
	q.buf = append(q.buf, vs...)
	idle := q.idle
	q.idle = false
	q.mu.Unlock()
	if idle {
		q.wake()
	}
}

// Drain takes out all that is queued. It takes buf over as the next buffer, so the caller hands back the batch it got
// last, or nil, and no longer uses it. An empty result arms the wake-up.
func (q *Queue[T]) Drain(buf []T) []T {
	clear(buf)
	if cap(buf) > keepCap {
		if q.small++; len(buf) >= cap(buf)/keepRatio {
			q.small = 0
		}
		if q.small >= keepTurns {
			buf = nil // small stays, so the other buffer, if it is large too, goes at its next turn
		}
	}
	q.mu.Lock()
	out := q.buf
	q.buf = buf[:0]
	q.idle = len(out) == 0
	q.mu.Unlock()
	return out
}

// Len is the number of elements queued.
func (q *Queue[T]) Len() int {
	q.mu.Lock()
	defer q.mu.Unlock()
	return len(q.buf)
}
