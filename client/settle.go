package client

import (
	"context"
	"sync"
	"time"

	carillonv1 "github.com/carillon-timers/carillon/proto/carillon/v1"
)

// maxSettleItems is how many answers go into one message.
const maxSettleItems = 1000

// settlement is an answer to a delivery: an ack, a nack, or a return.
type settlement struct {
	token    []byte
	nack     *carillonv1.Nack
	returned bool      // was not begun
	bound    bool      // of use on its own stream only: a return, because the end of the stream says the same, or what is settled already
	expires  time.Time // of no use afterwards: the timer is handed out again
}

// resettler sends the answers that a broken stream left open, through any node, until each is confirmed or of no use.
type resettler struct {
	c    *Client
	wake chan struct{} // holds at most one signal

	mu      sync.Mutex
	waiting []*settlement // guarded by mu
	busy    int           // taken and not answered yet; guarded by mu
	idle    chan struct{} // closed when nothing waits or is busy; nil while nobody asks; guarded by mu
	ended   bool          // run has ended: nothing is taken any more; guarded by mu
}

func newResettler(c *Client) *resettler {
	return &resettler{c: c, wake: make(chan struct{}, 1)}
}

// add never blocks.
func (r *resettler) add(list ...*settlement) {
	if len(list) == 0 {
		return
	}
	r.mu.Lock()
	for _, s := range list {
		if !r.ended && !s.bound {
			r.waiting = append(r.waiting, s)
		}
	}
	r.mu.Unlock()
	select {
	case r.wake <- struct{}{}:
	default:
	}
}

// flush returns when nothing is left, or run has ended.
func (r *resettler) flush() {
	r.mu.Lock()
	if len(r.waiting)+r.busy == 0 {
		r.mu.Unlock()
		return
	}
	if r.idle == nil {
		r.idle = make(chan struct{})
	}
	idle := r.idle
	r.mu.Unlock()
	<-idle
}

// run settles until the context ends.
func (r *resettler) run(ctx context.Context) {
	defer r.abandon()
	failures := 0
	for {
		batch := r.take()
		if len(batch) == 0 {
			failures = 0
			select {
			case <-r.wake:
				continue
			case <-ctx.Done():
				return
			}
		}
		left := r.send(ctx, batch)
		r.put(left)
		if len(left) == 0 {
			failures = 0
			continue
		}
		if sleep(ctx, pause(failures, firstStreamPause, maxPause)) != nil {
			return
		}
		failures++
	}
}

// take returns what is still of use, at most a message's worth.
func (r *resettler) take() []*settlement {
	now := r.c.cfg.Now()
	r.mu.Lock()
	defer r.mu.Unlock()
	var batch []*settlement
	i := 0
	for ; i < len(r.waiting) && len(batch) < maxSettleItems; i++ {
		if now.Before(r.waiting[i].expires) {
			batch = append(batch, r.waiting[i])
		}
	}
	r.waiting = r.waiting[i:]
	r.busy = len(batch)
	r.signalLocked()
	return batch
}

func (r *resettler) put(left []*settlement) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.busy = 0
	r.waiting = append(r.waiting, left...)
	r.signalLocked()
}

func (r *resettler) signalLocked() {
	if r.idle != nil && len(r.waiting)+r.busy == 0 {
		close(r.idle)
		r.idle = nil
	}
}

// abandon drops what is left and what comes.
func (r *resettler) abandon() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.ended, r.waiting, r.busy = true, nil, 0
	r.signalLocked()
}

// send makes one attempt and returns what must be tried again.
func (r *resettler) send(ctx context.Context, batch []*settlement) []*settlement {
	acks, nacks := &carillonv1.AckRequest{}, &carillonv1.NackRequest{}
	byToken := make(map[string]*settlement, len(batch))
	for _, s := range batch {
		byToken[string(s.token)] = s
		if s.nack == nil {
			acks.Tokens = append(acks.Tokens, s.token)
		} else {
			nacks.Nacks = append(nacks.Nacks, s.nack)
		}
	}
	e := r.c.router.pick(anyNode)
	if e == nil {
		return batch
	}
	ctx, end := r.c.bound(ctx, e)
	if len(acks.Tokens) > 0 {
		r.took(e, byToken)(e.deliveries.Ack(ctx, acks))
	}
	if len(nacks.Nacks) > 0 {
		r.took(e, byToken)(e.deliveries.Nack(ctx, nacks))
	}
	_ = end(nil) // took has seen the errors
	var left []*settlement
	for _, s := range byToken {
		left = append(left, s)
	}
	return left
}

// took removes from the map what has a final answer.
func (r *resettler) took(e *endpoint, byToken map[string]*settlement) func(*carillonv1.SettleResponse, error) {
	return func(pb *carillonv1.SettleResponse, err error) {
		if err != nil {
			if u, ok := errorOf(err).(*unavailableError); ok && u.maybe {
				r.c.router.blame(e)
			}
			return
		}
		for _, s := range pb.GetSettled() {
			if final(s.GetOutcome()) {
				delete(byToken, string(s.GetToken()))
			}
		}
	}
}

// final says whether the answer needs no repetition.
func final(o carillonv1.SettleOutcome) bool {
	return o == carillonv1.SettleOutcome_SETTLE_OUTCOME_DONE || o == carillonv1.SettleOutcome_SETTLE_OUTCOME_STALE
}
