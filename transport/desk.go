package transport

import (
	"context"
	"fmt"
	"runtime"
	"sync"
	"time"

	"github.com/carillon-timers/carillon/shard"
)

// Limits of the batches that a node works on at one time.
const (
	// lightBytes: a request up to this size is not asked to wait. It costs less than the asking would bring.
	lightBytes = 4 << 10
	// deskItems and deskBytes bound what is being decoded, proposed and waited for; one batch alone may be larger.
	deskItems = 8192
	deskBytes = 16 << 20
	// waitingBytes bounds the requests that wait for that, as they came.
	waitingBytes = 32 << 20
	// deskWait is how long one waits at most, and half of the time that its caller gives it.
	deskWait = time.Second
	// firstRetry is the shortest time that a refused caller is told to wait. It grows with the time since the first refusal,
	// up to lastRetry. calmTime without one ends an overload.
	firstRetry = 250 * time.Millisecond
	lastRetry  = 2 * time.Second
	calmTime   = 2 * lastRetry
)

// desk lets batches in, in the order in which they came: few at a time are decoded and checked, so that the goroutines that
// fire and replicate find a processor, and a bounded number of timers is on its way, so that neither memory nor the queues of the
// shards grow with the number of callers. What waits has not been decoded.
type desk struct {
	now func() time.Time // set once

	mu sync.Mutex
	// What follows is guarded by mu.
	turns        int // how many more may be decoded
	items, bytes int // that were let in and have not left
	waiting      int // bytes of the requests in line
	line         []*visit
	// overload is when the overload began, refusal when the last one was refused.
	overload, refusal time.Time
	refused           uint64
}

// visit is one batch at the desk. Its fields are guarded by desk.mu.
type visit struct {
	desk         *desk
	encoded      int // the size in protobuf, 0 if it came in JSON; set once by the gate
	items, bytes int
	turn         bool // it is being decoded
	inside       bool // it was let in and has not left
	// admitted is closed when it is let in.
	admitted chan struct{}
}

func newDesk(now func() time.Time) *desk {
	return &desk{now: now, turns: max(1, runtime.GOMAXPROCS(0)/2)}
}

// enter waits until the batch may be decoded: then it has a turn, which endTurn ends, and a place, which leave gives back.
func (d *desk) enter(ctx context.Context, stop <-chan struct{}, items, bytes int) (*visit, error) {
	v := &visit{desk: d, items: items, bytes: bytes}
	if done, err := d.arrive(v); done {
		return v, err
	}
	wait := deskWait
	if end, ok := ctx.Deadline(); ok {
		wait = min(wait, end.Sub(d.now())/2)
	}
	limit := time.NewTimer(wait)
	defer limit.Stop()
	var err error
	select {
	case <-v.admitted:
		return v, nil
	case <-limit.C:
	case <-stop:
		err = errStopping
	case <-ctx.Done():
		err = ctx.Err()
	}
	return v, d.give(v, err)
}

// arrive lets the batch in, puts it in line, or refuses it.
func (d *desk) arrive(v *visit) (done bool, err error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	switch {
	case len(d.line) == 0 && d.fits(v):
		d.admit(v)
		return true, nil
	case d.waiting+v.bytes > waitingBytes && len(d.line) > 0:
		return true, d.refuse(fmt.Sprintf("%s of batches wait on this node", byteCount(waitingBytes)))
	}
	v.admitted = make(chan struct{})
	d.line = append(d.line, v)
	d.waiting += v.bytes
	return false, nil
}

// give takes a batch that has waited too long out of the line, unless it was let in at the last moment; why is nil if it is
// to be refused.
func (d *desk) give(v *visit, why error) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if v.inside {
		return nil
	}
	for i, other := range d.line {
		if other == v {
			d.line = append(d.line[:i], d.line[i+1:]...)
			break
		}
	}
	d.waiting -= v.bytes
	d.next() // it may have been too large for what the next one fits into
	if why == nil {
		why = d.refuse(fmt.Sprintf("%d timers in batches are worked on by this node", deskItems))
	}
	return why
}

// fits says whether a batch may be let in. Called with mu held.
func (d *desk) fits(v *visit) bool {
	return d.turns > 0 && (d.items == 0 || d.items+v.items <= deskItems && d.bytes+v.bytes <= deskBytes)
}

// admit lets a batch in. Called with mu held.
func (d *desk) admit(v *visit) {
	d.turns--
	d.items += v.items
	d.bytes += v.bytes
	v.turn, v.inside = true, true
}

// next lets in who is first in line, as long as there is room. Called with mu held.
func (d *desk) next() {
	n := 0
	for n < len(d.line) && d.fits(d.line[n]) {
		v := d.line[n]
		d.admit(v)
		d.waiting -= v.bytes
		close(v.admitted)
		n++
	}
	if n > 0 {
		rest := copy(d.line, d.line[n:])
		clear(d.line[rest:])
		d.line = d.line[:rest]
	}
}

// refuse makes the error of a refusal: the longer the overload lasts, the longer is the time to wait. Called with mu held.
func (d *desk) refuse(limit string) error {
	now := d.now()
	if d.refusal.IsZero() || now.Sub(d.refusal) > calmTime {
		d.overload = now
	}
	d.refusal = now
	d.refused++
	return &shard.OverloadedError{Limit: limit, RetryAfter: min(max(firstRetry, now.Sub(d.overload)), lastRetry)}
}

// endTurn lets the next one be decoded. It may be called again.
func (v *visit) endTurn() {
	v.desk.mu.Lock()
	defer v.desk.mu.Unlock()
	v.end()
}

// end ends the turn. Called with mu held.
func (v *visit) end() {
	if v.turn {
		v.turn = false
		v.desk.turns++
		v.desk.next()
	}
}

// leave gives back what the batch took. It may be called again.
func (v *visit) leave() {
	d := v.desk
	d.mu.Lock()
	defer d.mu.Unlock()
	if !v.inside {
		return
	}
	v.inside = false
	d.items -= v.items
	d.bytes -= v.bytes
	v.end()
	d.next()
}

// stats are how many wait, and how many were refused.
func (d *desk) stats() (waiting int, refused uint64) {
	d.mu.Lock()
	defer d.mu.Unlock()
	return len(d.line), d.refused
}
