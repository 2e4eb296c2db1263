package client

import (
	"context"
	"sync"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"

	carillonv1 "github.com/carillon-timers/carillon/proto/carillon/v1"
)

// lease is how long a handler may take over a delivery, and the handler's context: it ends with the lease, and moves with it. It is
// made when the handler first asks for more than the deadline: one that asks nothing costs nothing.
type lease struct {
	parent context.Context // set once
	c      *Client         // set once

	mu      sync.Mutex
	end     time.Time               // by our clock; guarded by mu
	stopped bool                    // the handler has returned; guarded by mu
	context context.Context         // nil before it is asked for; guarded by mu
	cancel  context.CancelCauseFunc // of the context; guarded by mu
	timer   *time.Timer             // ends the context; guarded by mu
}

// real is the context itself.
func (l *lease) real() context.Context {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.context != nil {
		return l.context
	}
	l.context, l.cancel = context.WithCancelCause(l.parent)
	left := l.end.Sub(l.c.cfg.Now())
	switch {
	case l.stopped:
		l.cancel(nil)
	case left <= 0:
		l.cancel(ErrLeaseEnded)
	default:
		l.timer = time.AfterFunc(left, l.lapse)
	}
	return l.context
}

// lapse ends the context, unless the lease was extended meanwhile.
func (l *lease) lapse() {
	l.mu.Lock()
	defer l.mu.Unlock()
	if left := l.end.Sub(l.c.cfg.Now()); left > 0 {
		l.timer.Reset(left)
		return
	}
	l.cancel(ErrLeaseEnded)
}

// stop frees what the lease holds.
func (l *lease) stop() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.stopped = true
	if l.timer != nil {
		l.timer.Stop()
	}
	if l.cancel != nil {
		l.cancel(nil)
	}
}

// Done implements context.Context, as the next two.
func (l *lease) Done() <-chan struct{} { return l.real().Done() }

func (l *lease) Err() error { return l.real().Err() }

func (l *lease) Value(key any) any { return l.real().Value(key) }

// Deadline is the end as it is now.
func (l *lease) Deadline() (time.Time, bool) {
	end := l.ends()
	if d, ok := l.parent.Deadline(); ok && d.Before(end) {
		return d, true
	}
	return end, true
}

func (l *lease) ends() time.Time {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.end
}

// extend moves the end; it says false if the lease has ended.
func (l *lease) extend(end time.Time) bool {
	if l.real().Err() != nil {
		return false
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.end = end
	if l.timer != nil {
		l.timer.Reset(end.Sub(l.c.cfg.Now()))
	}
	return true
}

// ExtendLease gives the delivery more time: so long from now, 100 ms to 24 h; 0 means the timer's own lease again. The
// handler's context moves with it (what was derived from it before and looks at its deadline, as a gRPC call, keeps the old
// one). It returns the new end by the leader's clock, or ErrStale: the lease has ended already
// or the leader has changed, and the timer is, or will be, handed out again. Other errors: *InvalidError, ErrUnavailable,
// ErrClosed. It is for the handler that has the delivery, while it runs; nothing is to be extended of what is AtMostOnce.
func (d Delivery) ExtendLease(ctx context.Context, length time.Duration) (time.Time, error) {
	switch {
	case d.AtMostOnce:
		return time.Time{}, wrap("extend", d.ID, &InvalidError{"guarantee", "at most once", "has no lease"})
	case d.lease == nil:
		return time.Time{}, wrap("extend", d.ID, ErrStale)
	}
	if length == 0 {
		length = d.LeaseEnd.Sub(d.HandedOut)
	}
	end, err := d.lease.ask(ctx, d, length)
	if err != nil {
		return time.Time{}, wrap("extend", d.ID, err)
	}
	return end, nil
}

func (l *lease) ask(ctx context.Context, d Delivery, length time.Duration) (time.Time, error) {
	request := &carillonv1.ExtendLeaseRequest{Items: []*carillonv1.Extend{{Token: d.Token, Lease: durationpb.New(length)}}}
	var asked time.Time
	var pb *carillonv1.ExtendLeaseResponse
	err := l.c.repeat(ctx, l.c.newOp(d.Namespace, d.ID, false), func(ctx context.Context, e *endpoint, _ time.Duration) (err error) {
		asked = l.c.cfg.Now() // the lease counts from when the leader reads it: ours ends no later
		pb, err = e.deliveries.ExtendLease(ctx, request)
		return err
	})
	if err != nil {
		return time.Time{}, err
	}
	if len(pb.GetResults()) != 1 || pb.Results[0].GetLeaseEnd() == nil || !l.extend(asked.Add(length)) {
		return time.Time{}, ErrStale
	}
	return timeOf(pb.Results[0].GetLeaseEnd()), nil
}
