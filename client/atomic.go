package client

import (
	"context"
	"fmt"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/types/known/durationpb"

	carillonv1 "github.com/carillon-timers/carillon/proto/carillon/v1"
)

// ScheduleAtomic accepts all of the timers or none, in one step. Their IDs must be different and share a hash tag, as
// "{order-42}/remind" and "{order-42}/expire" do; there are at most 1,000 of them, with 1 MiB. The results are in the order
// of the timers. An *AtomicError names the timer that was refused, with one of the errors of Schedule; the others are
// *InvalidError, *OverloadedError, ErrUnavailable, ErrUnknown and ErrClosed.
func (c *Client) ScheduleAtomic(ctx context.Context, timers []Timer) ([]Scheduled, error) {
	request := &carillonv1.ScheduleBatchRequest{Atomic: true, Items: make([]*carillonv1.ScheduleRequest, 0, len(timers))}
	results := make([]Scheduled, len(timers))
	for i, t := range timers {
		if err := t.check(); err != nil {
			return nil, wrap("schedule atomic", "", &AtomicError{i, err})
		}
		if t.RequestID == "" {
			t.RequestID = newRequestID()
		}
		request.Items = append(request.Items, new(encoder).request(&t, c.cfg.Namespace))
		results[i].RequestID = t.RequestID
	}
	if len(timers) == 0 {
		return nil, nil
	}
	var pb *carillonv1.ScheduleBatchResponse
	err := c.repeat(ctx, c.newOp(c.cfg.Namespace, timers[0].ID, true), func(ctx context.Context, e *endpoint, since time.Duration) (err error) {
		for i, item := range request.Items {
			if when, ok := item.GetTimer().GetWhen().(*carillonv1.Timer_Delay); ok {
				when.Delay = durationpb.New(max(0, timers[i].After-since)) // as op.age
			}
		}
		pb, err = e.timers.ScheduleBatch(ctx, request)
		return err
	})
	for i := 0; err == nil && i < len(results); i++ {
		if err = atomicItem(len(pb.GetResults()), len(results), i, func() *carillonv1.ItemError { return pb.Results[i].GetError() }); err == nil {
			results[i].fill(pb.Results[i].GetOk())
		}
	}
	if err != nil {
		return results, wrap("schedule atomic", "", err)
	}
	return results, nil
}

// CancelAtomic cancels all of the timers or none, in one step; the IDs are as in ScheduleAtomic. A timer that is not known,
// or has not the expected revision, fails them all with an *AtomicError. The results are in the order of the items.
func (c *Client) CancelAtomic(ctx context.Context, items []Cancellation) ([]CancelResult, error) {
	request := &carillonv1.CancelBatchRequest{Atomic: true}
	results := make([]CancelResult, len(items))
	for i, x := range items {
		if err := x.check(); err != nil {
			return nil, wrap("cancel atomic", "", &AtomicError{i, err})
		}
		if x.RequestID == "" {
			x.RequestID = newRequestID()
		}
		request.Items = append(request.Items, new(encoder).cancellation(&x, c.cfg.Namespace))
		results[i].RequestID = x.RequestID
	}
	if len(items) == 0 {
		return nil, nil
	}
	var pb *carillonv1.CancelBatchResponse
	err := c.repeat(ctx, c.newOp(c.cfg.Namespace, items[0].ID, true), func(ctx context.Context, e *endpoint, _ time.Duration) (err error) {
		pb, err = e.timers.CancelBatch(ctx, request)
		return err
	})
	for i := 0; err == nil && i < len(results); i++ {
		if err = atomicItem(len(pb.GetResults()), len(results), i, func() *carillonv1.ItemError { return pb.Results[i].GetError() }); err == nil {
			ok := pb.Results[i].GetOk()
			results[i].Outcome, results[i].Revision = CancelOutcome(ok.GetOutcome()), ok.GetRevision()
		}
	}
	if err != nil {
		return results, wrap("cancel atomic", "", err)
	}
	return results, nil
}

// atomicItem takes an answer of an atomic batch item by item: a node that keeps to the contract has no errors there.
func atomicItem(got, want, i int, item func() *carillonv1.ItemError) error {
	if got != want {
		return fmt.Errorf("%w: %w", ErrUnknown, &StatusError{codes.Internal, fmt.Sprintf("%d results for %d items", got, want)})
	}
	if e := item(); e != nil {
		return &AtomicError{i, itemErrorOf(e)}
	}
	return nil
}
