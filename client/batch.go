package client

import (
	"errors"
	"fmt"

	"google.golang.org/grpc/codes"

	carillonv1 "github.com/carillon-timers/carillon/proto/carillon/v1"
)

// begin makes the attempt ready for another round; the round before has ended.
func (a *attempt) begin(o *op, r *round) {
	a.op, a.size, a.round, a.err, a.reply = o, len(o.item), r, nil, nil
	a.state.Store(attemptQueued)
}

// sendSchedules sends one batch and gives each attempt its outcome.
func (c *Client) sendSchedules(e *endpoint, batch []*attempt) {
	request := &carillonv1.ScheduleBatchRequest{}
	request.ProtoReflect().SetUnknown(joined(batch))
	ctx, end := c.bound(c.base, e)
	pb, err := e.timers.ScheduleBatch(ctx, request)
	err = end(err)
	results := pb.GetResults()
	finish(e, e.schedules, batch, len(results), err, func(i int) (any, *carillonv1.ItemError) {
		return results[i].GetOk(), results[i].GetError()
	})
}

// sendCancels is sendSchedules for cancels.
func (c *Client) sendCancels(e *endpoint, batch []*attempt) {
	request := &carillonv1.CancelBatchRequest{}
	request.ProtoReflect().SetUnknown(joined(batch))
	ctx, end := c.bound(c.base, e)
	pb, err := e.timers.CancelBatch(ctx, request)
	err = end(err)
	results := pb.GetResults()
	finish(e, e.cancels, batch, len(results), err, func(i int) (any, *carillonv1.ItemError) {
		return results[i].GetOk(), results[i].GetError()
	})
}

// finish gives each attempt of a batch its outcome: the error of the whole call, or its own result.
func finish(e *endpoint, l *lane, batch []*attempt, results int, err error, result func(i int) (any, *carillonv1.ItemError)) {
	if err == nil && results != len(batch) {
		err = &StatusError{codes.Internal, fmt.Sprintf("%d results for %d items", results, len(batch))}
	} else {
		err = atAddress(e.addr, err)
	}
	var overloaded *OverloadedError
	if err != nil {
		l.throttle(errors.As(err, &overloaded))
		failAll(batch, err)
		var lost *unavailableError
		if errors.As(err, &lost) && lost.silent {
			l.turnAway(&unavailableError{message: lost.message, silent: true})
		}
		return
	}
	busy := false
	for i, a := range batch {
		reply, item := result(i)
		if item == nil {
			a.finish(reply, nil)
			continue
		}
		err := itemErrorOf(item)
		busy = busy || errors.As(err, &overloaded)
		a.finish(nil, err)
	}
	l.throttle(busy)
}
