package client

import (
	"context"
	"time"

	carillonv1 "github.com/carillon-timers/carillon/proto/carillon/v1"
)

// Change is what can be said of a change to one timer; the zero value is good.
type Change struct {
	// ExpectedRevision, if not 0, must be the timer's revision.
	ExpectedRevision int64
	// RequestID is as in Timer.
	RequestID string
}

// Pause says how a timer is paused; the zero value keeps its due time.
type Pause struct {
	// Freeze keeps the time that is left: Resume makes the timer due after it.
	Freeze bool
	// ExpectedRevision, if not 0, must be the timer's revision.
	ExpectedRevision int64
	// RequestID is as in Timer.
	RequestID string
}

// Pause keeps a timer from firing until Resume. A delivery that is out may still be answered: then a timer that fires
// once is done, and a repeat moves on and stays paused. Pausing a paused timer changes nothing. The answer has the
// revision and the request ID. Errors: ErrNotFound, ErrNotPending, *RevisionError, *InvalidError, *OverloadedError,
// ErrUnavailable, ErrUnknown, ErrClosed.
func (c *Client) Pause(ctx context.Context, id string, p Pause) (Scheduled, error) {
	x := Change{p.ExpectedRevision, p.RequestID}
	return c.change(ctx, "pause", id, x, func(ctx context.Context, e *endpoint, x Change) (dueAndRevision, error) {
		pb, err := e.timers.Pause(ctx, &carillonv1.PauseRequest{
			Namespace: c.cfg.Namespace, Id: id, Freeze: p.Freeze, RequestId: x.RequestID, ExpectedRevision: x.ExpectedRevision,
		})
		return dueAndRevision{time.Time{}, pb.GetRevision()}, err
	})
}

// Resume lets a paused timer go on: at its due time (at once if that has passed; a repeat goes by its misfire policy), or,
// if it was frozen, with the time that was left. Errors: those of Pause, and ErrNotPaused.
func (c *Client) Resume(ctx context.Context, id string, x Change) (Scheduled, error) {
	return c.change(ctx, "resume", id, x, func(ctx context.Context, e *endpoint, x Change) (dueAndRevision, error) {
		pb, err := e.timers.Resume(ctx, &carillonv1.ResumeRequest{
			Namespace: c.cfg.Namespace, Id: id, RequestId: x.RequestID, ExpectedRevision: x.ExpectedRevision,
		})
		return dueAndRevision{timeOf(pb.GetDue()), pb.GetRevision()}, err
	})
}

// FireNow makes a pending timer due at once. A repeat fires once more and stays on its grid. Errors: those of Pause, and
// ErrPaused.
func (c *Client) FireNow(ctx context.Context, id string, x Change) (Scheduled, error) {
	return c.change(ctx, "fire", id, x, func(ctx context.Context, e *endpoint, x Change) (dueAndRevision, error) {
		pb, err := e.timers.FireNow(ctx, &carillonv1.FireNowRequest{
			Namespace: c.cfg.Namespace, Id: id, RequestId: x.RequestID, ExpectedRevision: x.ExpectedRevision,
		})
		return dueAndRevision{timeOf(pb.GetDue()), pb.GetRevision()}, err
	})
}

type dueAndRevision struct {
	due      time.Time
	revision int64
}

// change repeats a call with the same request ID until it is answered.
func (c *Client) change(ctx context.Context, name, id string, x Change, call func(context.Context, *endpoint, Change) (dueAndRevision, error)) (Scheduled, error) {
	if x.RequestID == "" {
		x.RequestID = newRequestID()
	}
	s := Scheduled{RequestID: x.RequestID}
	err := checkText("id", id, 1, maxIDBytes)
	if err == nil {
		err = checkText("request_id", x.RequestID, 0, maxRequestIDBytes)
	}
	if err != nil {
		return s, wrap(name, id, err)
	}
	err = c.repeat(ctx, c.newOp(c.cfg.Namespace, id, true), func(ctx context.Context, e *endpoint, _ time.Duration) error {
		answer, err := call(ctx, e, x)
		s.Due, s.Revision = answer.due, answer.revision
		return err
	})
	if err != nil {
		return s, wrap(name, id, err)
	}
	return s, nil
}

// Explanation is the life of a timer.
type Explanation struct {
	Timer TimerStatus
	// Events are in the order of time. Of the failed attempts the last 8 are kept.
	Events []Event
}

// Event is something that happened to a timer.
type Event struct {
	At time.Time
	// Kind is a word: accepted, due, handed-out, failed, lapsed, acked, cancelled, paused, expired, dead, leader.
	Kind string
	// Node and Epoch say who did it; empty and 0 if it is not known any more.
	Node  string
	Epoch int64
	// Text is for people: the error of an attempt, why it was late.
	Text string
}

// Explain tells a timer's life from what the cluster has kept, also of a finished one while it is retained. An unknown
// timer is ErrNotFound.
func (c *Client) Explain(ctx context.Context, id string) (Explanation, error) {
	if err := checkText("id", id, 1, maxIDBytes); err != nil {
		return Explanation{}, wrap("explain", id, err)
	}
	var pb *carillonv1.ExplainResponse
	err := c.read(ctx, c.cfg.Namespace, id, func(ctx context.Context, e *endpoint) (err error) {
		pb, err = e.timers.Explain(ctx, &carillonv1.ExplainRequest{Namespace: c.cfg.Namespace, Id: id})
		return err
	})
	if err != nil {
		return Explanation{}, wrap("explain", id, err)
	}
	x := Explanation{Timer: statusOf(pb.GetTimer()), Events: make([]Event, 0, len(pb.GetEvents()))}
	for _, e := range pb.GetEvents() {
		x.Events = append(x.Events, Event{At: timeOf(e.GetAt()), Kind: e.GetKind(), Node: e.GetNode(), Epoch: e.GetEpoch(), Text: e.GetText()})
	}
	return x, nil
}
