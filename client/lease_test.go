package client_test

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/carillon-timers/carillon/client"
	carillonv1 "github.com/carillon-timers/carillon/proto/carillon/v1"
)

// pushOnce makes at-most-once timers due: their deliveries are settled, and have no lease.
func (w *workState) pushOnce(ids ...string) {
	w.set(func(w *workState) {
		for _, id := range ids {
			w.queue = append(w.queue, &carillonv1.Delivery{
				Namespace: "default", Id: id, Queue: "q", Token: []byte(id), Due: timestamppb.Now(), HandedOut: timestamppb.Now(), Attempt: 1,
				Guarantee: carillonv1.Guarantee_GUARANTEE_AT_MOST_ONCE,
			})
		}
	})
}

// A handler that needs more time gets it, through a failover, and its context moves; a lease that is not extended ends it.
func TestExtendLease(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t, 1, "n1", "n2")
		failures := 2
		c.hook(func(c *cluster) {
			c.call = func(_ *node, method string) error {
				if failures--; method == "extend" && failures >= 0 {
					return fail(codes.Unavailable, "NOT_LEADER", nil)
				}
				return nil
			}
		})
		j := work(t, c, func(ctx context.Context, d client.Delivery) error {
			begin := time.Now()
			time.Sleep(1500 * time.Millisecond)
			if end, err := d.ExtendLease(ctx, 5*time.Second); err != nil || end.Sub(begin) < 6500*time.Millisecond {
				t.Errorf("extend: %v, %v", end, err)
			}
			deadline, ok := ctx.Deadline()
			if left := time.Until(deadline); !ok || left < 4*time.Second || left > 5*time.Second {
				t.Errorf("the deadline is %v away", left)
			}
			child, cancel := context.WithTimeout(ctx, time.Hour)
			defer cancel()
			time.Sleep(4 * time.Second)
			if ctx.Err() != nil {
				t.Errorf("ended %v after it was extended: %v", time.Since(begin), context.Cause(ctx))
			}
			if _, err := d.ExtendLease(ctx, 0); err != nil { // the timer's own, 2 s
				t.Errorf("extend by default: %v", err)
			}
			extended := time.Now()
			<-child.Done()
			if took := time.Since(extended); took.Round(100*time.Millisecond) != 2*time.Second || !errors.Is(context.Cause(child), client.ErrLeaseEnded) {
				t.Errorf("ended after %v: %v", took, context.Cause(child))
			}
			if _, err := d.ExtendLease(context.WithoutCancel(ctx), time.Second); !errors.Is(err, client.ErrStale) {
				t.Errorf("extend of what has ended: %v", err)
			}
			return nil
		}, client.WorkOptions{})
		c.nodes["n1"].work.push(2*time.Second, "a")
		time.Sleep(10 * time.Second)
		j.end(t)
	})
}

// What the node does not hold any more cannot be extended.
func TestExtendStaleLease(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t, 1, "n1")
		n := c.nodes["n1"]
		n.work.set(func(w *workState) { w.stale = true })
		j := work(t, c, func(ctx context.Context, d client.Delivery) error {
			_, err := d.ExtendLease(ctx, time.Minute)
			var invalid *client.InvalidError
			if d.AtMostOnce != errors.As(err, &invalid) || d.AtMostOnce == errors.Is(err, client.ErrStale) {
				t.Errorf("%s: %v", d.ID, err)
			}
			return nil
		}, client.WorkOptions{})
		n.work.push(time.Minute, "a")
		n.work.pushOnce("b")
		synctest.Wait()
		j.end(t)
		if _, err := (client.Delivery{}).ExtendLease(t.Context(), time.Second); !errors.Is(err, client.ErrStale) {
			t.Errorf("not from a handler: %v", err)
		}
	})
}

// The answers of a handler: for the dead letters, and given back without an attempt.
func TestHandlerAnswers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t, 1, "n1")
		n := c.nodes["n1"]
		j := work(t, c, func(_ context.Context, d client.Delivery) error {
			switch d.ID {
			case "never":
				return fmt.Errorf("no: %w", client.Refuse(client.RetryAfter(errors.New("bad address"), time.Second)))
			case "other":
				return fmt.Errorf("not me: %w", client.ErrGiveBack)
			}
			return client.Refuse(nil)
		}, client.WorkOptions{})
		n.work.push(time.Minute, "never", "other", "good")
		synctest.Wait()
		j.end(t)
		n.work.get(func(w *workState) {
			if sorted(w.acks) != "good" || sorted(w.returns) != "other" || len(w.nacks) != 1 {
				t.Fatalf("acks %v, returns %v, nacks %v", w.acks, w.returns, w.nacks)
			}
			if x := w.nacks[0]; string(x.GetToken()) != "never" || !x.GetDead() || x.GetError() != "no: bad address" || x.Delay != nil {
				t.Errorf("nack: %v", x)
			}
		})
	})
}

// What is at most once is never dropped: not when its stream breaks, nor when the worker stops, nor if it waits for long.
func TestAtMostOnceIsNotDropped(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t, 1, "n1")
		n := c.nodes["n1"]
		var handled, cancelled atomic.Int32
		j := work(t, c, func(ctx context.Context, d client.Delivery) error {
			if _, ok := ctx.Deadline(); ok || !d.AtMostOnce {
				t.Errorf("%s has a lease", d.ID)
			}
			select {
			case <-time.After(40 * time.Second):
			case <-ctx.Done():
				cancelled.Add(1)
			}
			handled.Add(1)
			return nil
		}, client.WorkOptions{Concurrency: 1, Prefetch: 4, DrainTimeout: time.Hour})
		n.work.pushOnce("a", "b", "c", "d")
		synctest.Wait()
		n.work.set(func(w *workState) { w.breakUp = true })
		time.Sleep(time.Second)
		n.work.set(func(w *workState) { w.breakUp = false })
		time.Sleep(44 * time.Second)
		if handled.Load() != 1 {
			t.Errorf("%d handled", handled.Load())
		}
		j.cancel()
		synctest.Wait()
		n.work.pushOnce("late")
		j.end(t)
		n.work.get(func(w *workState) {
			// b ran when the worker was told to stop; c and d began afterwards, with a context of their own.
			if got := int(handled.Load()) + len(w.queue); got != 5 || handled.Load() < 4 || cancelled.Load() != 1 || len(w.returns)+len(w.nacks) != 0 {
				t.Errorf("handled %d, cancelled %d, %d left at the node, returns %v, nacks %v", handled.Load(), cancelled.Load(), len(w.queue), w.returns, w.nacks)
			}
		})
	})
}

// A handler that does not end loses what is at most once and waits behind it; Work ends in time all the same, and says so.
func TestAtMostOnceBehindADeafHandler(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t, 1, "n1")
		release := make(chan struct{})
		j := work(t, c, func(context.Context, client.Delivery) error { <-release; return nil },
			client.WorkOptions{Concurrency: 1, Prefetch: 2, DrainTimeout: 3 * time.Second})
		c.nodes["n1"].work.pushOnce("a", "b")
		synctest.Wait()
		begin := time.Now()
		j.end(t)
		if took := time.Since(begin); took < 3*time.Second || took > 5*time.Second {
			t.Errorf("took %v", took)
		}
		close(release)
	})
}
