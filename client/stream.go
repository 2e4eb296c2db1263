package client

import (
	"context"
	"errors"
	"io"
	"sync"
	"time"

	carillonv1 "github.com/carillon-timers/carillon/proto/carillon/v1"
)

// Limits of a stream.
const (
	// silence is how long a node may send nothing: it sends a heartbeat each 5 s.
	silence = 15 * time.Second
	// maxOutstanding is how many deliveries a node allows to be on order or not answered.
	maxOutstanding = 10_000
	// maxUnconfirmed stops the credit while so many answers wait for their confirmation.
	maxUnconfirmed = 4 * maxSettleItems
	// goodbye is how long a node may take to end the stream after our half of it is closed.
	goodbye = time.Second
)

var errSilent = errors.New("the node has sent nothing for 15 s")

// stream is one open Work stream to one node. Its receiver is the follower's goroutine; one more sends.
type stream struct {
	w      *worker
	rpc    carillonv1.Deliveries_WorkClient
	cancel context.CancelCauseFunc
	wake   chan struct{} // holds at most one signal

	mu          sync.Mutex
	credits     int                    // to give; guarded by mu
	outstanding int                    // on order, or delivered and not answered; guarded by mu
	outbox      []*settlement          // to send; guarded by mu
	unconfirmed map[string]*settlement // by token: in the outbox, or sent and not answered; guarded by mu
	broken      bool                   // guarded by mu
	finishing   bool                   // no new answers come; guarded by mu
	closed      bool                   // our half is closed; guarded by mu
}

// followNode keeps a stream to the node open until the work ends or the node is no live member any more.
func (w *worker) followNode(life context.Context, node string) {
	failures, warned := 0, false
	for w.user.Err() == nil && w.isAlive(node) {
		changed := w.c.router.wait()
		e := w.c.router.node(node)
		if e == nil {
			if failures++; failures == 10 && !warned {
				warned = true
				w.c.cfg.Logger.Warn("carillon: no way to a node; its deliveries come only when there is one", "node", node)
			}
			w.pauseUntil(changed, pause(failures, firstStreamPause, maxStreamPause))
			continue
		}
		good, err := w.stream(life, e)
		if w.user.Err() != nil {
			return
		}
		if err = errorOf(err); permanent(err) {
			w.fatal(err)
			return
		}
		if good {
			failures, warned = 0, false
		}
		w.c.hint()
		_ = sleep(w.user, pause(failures, firstStreamPause, maxStreamPause))
		failures++
	}
}

func (w *worker) isAlive(node string) bool {
	for _, id := range w.c.router.alive() {
		if id == node {
			return true
		}
	}
	return false
}

// pauseUntil waits for a change, for the time, or for the end.
func (w *worker) pauseUntil(changed <-chan struct{}, d time.Duration) {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-changed:
	case <-timer.C:
	case <-w.user.Done():
	}
}

// stream works one stream until it breaks or is finished; good says that the node answered on it.
func (w *worker) stream(life context.Context, e *endpoint) (good bool, err error) {
	ctx, cancel := context.WithCancelCause(life)
	defer cancel(nil)
	stop := context.AfterFunc(w.user, func() { cancel(nil) }) // while there is nothing to finish
	rpc, err := e.deliveries.Work(ctx)
	if !stop() || err != nil {
		return false, err
	}
	s := &stream{
		w: w, rpc: rpc, cancel: cancel, wake: make(chan struct{}, 1),
		credits: w.options.Prefetch, unconfirmed: make(map[string]*settlement),
	}
	w.mu.Lock()
	w.open[s] = true
	if w.draining {
		s.finish()
	}
	w.mu.Unlock()
	var sender sync.WaitGroup
	sender.Go(func() { s.send(ctx) })
	good, err = s.receive(ctx)
	cancel(nil)
	sender.Wait()
	w.mu.Lock()
	delete(w.open, s)
	w.mu.Unlock()
	w.again.add(s.breakOff()...)
	return good, err
}

// receive takes messages until the stream ends.
func (s *stream) receive(ctx context.Context) (good bool, err error) {
	watchdog := time.AfterFunc(silence, func() { s.cancel(errSilent) })
	defer watchdog.Stop()
	for {
		m, err := s.rpc.Recv()
		if err != nil {
			if errors.Is(context.Cause(ctx), errSilent) {
				return good, &unavailableError{message: errSilent.Error()}
			}
			if err == io.EOF {
				err = nil
			}
			return good, err
		}
		good = true
		watchdog.Reset(silence)
		s.confirm(m.GetSettled())
		s.w.arrived(s, m.GetDeliveries())
	}
}

// confirm takes the node's word on answers. What failed there is tried again through any node.
func (s *stream) confirm(settled []*carillonv1.Settled) {
	if len(settled) == 0 {
		return
	}
	var again []*settlement
	s.mu.Lock()
	for _, pb := range settled {
		key := string(pb.GetToken())
		if open, ok := s.unconfirmed[key]; ok {
			delete(s.unconfirmed, key)
			if !final(pb.GetOutcome()) {
				again = append(again, open)
			}
		}
	}
	wanted := s.finishing || s.credits > 0
	s.mu.Unlock()
	s.w.again.add(again...)
	if wanted { // what was waited for may be confirmed
		s.signal()
	}
}

// credit lets the node send more. A little of it waits for more, or for an answer that goes anyway.
func (s *stream) credit(n int) {
	s.mu.Lock()
	s.credits += n
	enough := s.enoughLocked()
	s.mu.Unlock()
	if enough {
		s.signal()
	}
}

// enoughLocked says that the credit is worth a message: an eighth of what the node may have.
func (s *stream) enoughLocked() bool { return s.credits > 0 && 8*s.credits >= s.w.options.Prefetch }

// drop takes note of a delivery that is never answered.
func (s *stream) drop() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.outstanding--
}

// settle sends an answer: on the stream, or through any node if that is over.
func (s *stream) settle(x *settlement) {
	s.mu.Lock()
	over := s.broken || s.closed
	if !over {
		s.unconfirmed[string(x.token)] = x
		s.outbox = append(s.outbox, x)
	}
	s.mu.Unlock()
	if over {
		s.w.again.add(x)
		return
	}
	s.signal()
}

// finish ends the stream as soon as every answer is confirmed.
func (s *stream) finish() {
	s.mu.Lock()
	s.finishing = true
	s.mu.Unlock()
	s.signal()
}

func (s *stream) isBroken() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.broken
}

// breakOff marks the end and returns the answers that were not confirmed.
func (s *stream) breakOff() []*settlement {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.broken = true
	var open []*settlement
	for _, x := range s.unconfirmed {
		open = append(open, x)
	}
	s.unconfirmed, s.outbox = nil, nil
	return open
}

func (s *stream) signal() {
	select {
	case s.wake <- struct{}{}:
	default:
	}
}

// send is the one sender: each message takes all that has come together.
func (s *stream) send(ctx context.Context) {
	err := s.rpc.Send(&carillonv1.WorkRequest{
		Start: &carillonv1.WorkStart{Namespace: s.w.c.cfg.Namespace, Queue: s.w.queue, Worker: s.w.options.Name},
	})
	for err == nil {
		m, last := s.message()
		if last {
			_ = s.rpc.CloseSend()
			if sleep(ctx, goodbye) == nil {
				s.cancel(nil)
			}
			return
		}
		if m != nil {
			err = s.rpc.Send(m)
			continue
		}
		select {
		case <-s.wake:
		case <-ctx.Done():
			return
		}
	}
	// Recv knows why the stream broke.
}

// message takes the next message; nil if there is nothing to say, last if nothing will ever be.
func (s *stream) message() (m *carillonv1.WorkRequest, last bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	n := min(len(s.outbox), maxSettleItems)
	s.outstanding -= n
	credits := min(s.credits, maxOutstanding-s.outstanding)
	if len(s.unconfirmed) > maxUnconfirmed || s.finishing || s.w.user.Err() != nil {
		credits = 0
	}
	if n == 0 && credits == 0 {
		s.closed = s.finishing && len(s.unconfirmed) == 0
		return nil, s.closed
	}
	s.credits -= credits
	s.outstanding += credits
	m = &carillonv1.WorkRequest{Credits: int32(credits), Acks: make([][]byte, 0, n)}
	for _, x := range s.outbox[:n] {
		switch {
		case x.returned:
			m.Returns = append(m.Returns, x.token)
		case x.nack != nil:
			m.Nacks = append(m.Nacks, x.nack)
		default:
			m.Acks = append(m.Acks, x.token)
		}
	}
	if s.outbox = s.outbox[n:]; len(s.outbox) == 0 {
		s.outbox = nil
	}
	return m, false
}
