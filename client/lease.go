package client

import (
	"context"
	"sync"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"

	carillonv1 "github.com/carillon-timers/carillon/proto/carillon/v1"
)

// lease is how long a handler may take over a delivery. Its context ends with it, and moves with it.
type lease struct {
	context.Context                         // set once
	cancel          context.CancelCauseFunc // set once
	c               *Client                 // set once

	mu    sync.Mutex
	end   time.Time   // by our clock; guarded by mu
	timer *time.Timer // ends the context; guarded by mu
}

// newLease ties a context to the end of the delivery's lease. What is at most once has no lease: nil.
func newLease(ctx context.Context, c *Client, end time.Time) *lease {
	l := &lease{c: c, end: end}
	l.Context, l.cancel = context.WithCancelCause(ctx)
	l.mu.Lock() // the timer may run at once
	defer l.mu.Unlock()
	l.timer = time.AfterFunc(end.Sub(c.cfg.Now()), l.lapse)
	return l
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
	l.timer.Stop()
	l.cancel(nil)
}

// Deadline is the end as it is now.
func (l *lease) Deadline() (time.Time, bool) {
	end := l.ends()
	if d, ok := l.Context.Deadline(); ok && d.Before(end) {
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
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.Context.Err() != nil {
		return false
	}
	l.end = end
	l.timer.Reset(end.Sub(l.c.cfg.Now()))
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
