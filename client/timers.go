package client

import (
	"context"
	"fmt"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	carillonv1 "github.com/carillon-timers/carillon/proto/carillon/v1"
)

// Schedule accepts a timer: when it returns nil, the timer is on the disks of a majority. Errors: *InvalidError,
// ErrAlreadyExists, *RevisionError, *NotSupportedError, *OverloadedError, ErrUnavailable, ErrUnknown, ErrClosed.
func (c *Client) Schedule(ctx context.Context, t Timer) (Scheduled, error) {
	b := c.newOps(1)
	o, err := b.schedule(&t)
	if err != nil {
		return Scheduled{}, wrap("schedule", t.ID, err)
	}
	c.run(ctx, []*op{o})
	s, err := o.scheduled()
	if err != nil {
		return s, wrap("schedule", t.ID, err)
	}
	return s, nil
}

// ScheduleResult is the result of one timer of a batch.
type ScheduleResult struct {
	Scheduled
	// Err is nil or one of the errors of Schedule.
	Err error
}

// BatchError says that items of a batch failed; each result has its own error. It unwraps to the first one.
type BatchError struct {
	// Failed of Items failed; First is the index of the first of them.
	Failed, Items, First int
	Err                  error
}

func (e *BatchError) Error() string {
	return fmt.Sprintf("%d of %d items failed, first item %d: %v", e.Failed, e.Items, e.First, e.Err)
}

// Unwrap returns the error of the first item that failed.
func (e *BatchError) Unwrap() error { return e.Err }

// ScheduleBatch accepts any number of timers, each as Schedule does; they are sent in batches to the nodes that lead
// them. The results are in the order of the timers; the error is nil if all were accepted, else a *BatchError.
func (c *Client) ScheduleBatch(ctx context.Context, timers []Timer) ([]ScheduleResult, error) {
	results := make([]ScheduleResult, len(timers))
	b := c.newOps(len(timers))
	ops, open := make([]*op, len(timers)), make([]*op, 0, len(timers))
	for i := range timers {
		o, err := b.schedule(&timers[i])
		if err != nil {
			results[i].Err = err
			continue
		}
		ops[i] = o
		open = append(open, o)
	}
	if len(open) > 0 {
		c.run(ctx, open)
	}
	failed := batchFailures{items: len(timers)}
	for i, o := range ops {
		if o != nil {
			results[i].Scheduled, results[i].Err = o.scheduled()
		}
		failed.add(i, results[i].Err)
	}
	return results, failed.error("schedule batch")
}

// batchFailures counts the failures of a batch.
type batchFailures struct {
	items, failed, first int
	err                  error
}

func (f *batchFailures) add(i int, err error) {
	if err == nil {
		return
	}
	if f.failed == 0 {
		f.first, f.err = i, err
	}
	f.failed++
}

func (f *batchFailures) error(call string) error {
	if f.failed == 0 {
		return nil
	}
	return wrap(call, "", &BatchError{Failed: f.failed, Items: f.items, First: f.first, Err: f.err})
}

// ops makes the ops of one call.
type ops struct {
	c       *Client
	now     time.Time
	left    int // that are yet to be made, the next included
	free    []op
	encoder encoder
	ids     requestIDs
}

// opsTogether is how many are allocated together.
const opsTogether = 32

func (c *Client) newOps(n int) *ops {
	return &ops{c: c, now: c.cfg.Now(), left: n, encoder: encoder{left: n}, ids: requestIDs{left: n}}
}

func (b *ops) op(id string) *op {
	if len(b.free) == 0 {
		b.free = make([]op, min(b.left, opsTogether))
	}
	o := &b.free[0]
	b.free = b.free[1:]
	b.left--
	o.namespace, o.id, o.writes, o.started = b.c.cfg.Namespace, id, true, b.now
	return o
}

// schedule checks the timer and gives the call a request ID if it has none.
func (b *ops) schedule(t *Timer) (*op, error) {
	if err := t.check(); err != nil {
		return nil, err
	}
	o := b.op(t.ID)
	request := b.encoder.request(t, o.namespace)
	if request.RequestId == "" {
		request.RequestId = b.ids.next()
	}
	o.requestID, o.delay, o.item = request.RequestId, t.After, b.encoder.item(request)
	return o, nil
}

func (o *op) scheduled() (Scheduled, error) {
	s := Scheduled{RequestID: o.requestID}
	if o.err != nil {
		return s, o.err
	}
	s.fill(o.reply.(*carillonv1.ScheduleResponse))
	return s, nil
}

func (s *Scheduled) fill(pb *carillonv1.ScheduleResponse) {
	s.Due, s.Revision = timeOf(pb.GetDue()), pb.GetRevision()
	s.Kept, s.Shard = pb.GetKept(), int(pb.GetShard())
}

// CancelOutcome says how far a timer had come when it was cancelled.
type CancelOutcome int32

// The three answers of a cancel; a timer that is not known is ErrNotFound, one that died or expired ErrNotPending.
const (
	// CancelCancelled: no delivery starts afterwards.
	CancelCancelled = CancelOutcome(carillonv1.CancelOutcome_CANCEL_OUTCOME_CANCELLED)
	// CancelFiring: a delivery had been handed out (or may have been, by a leader that died) and may still complete; no
	// further attempt starts.
	CancelFiring = CancelOutcome(carillonv1.CancelOutcome_CANCEL_OUTCOME_FIRING)
	// CancelFired: the delivery had been acked; the cancel changed nothing.
	CancelFired = CancelOutcome(carillonv1.CancelOutcome_CANCEL_OUTCOME_FIRED)
)

func (o CancelOutcome) String() string {
	switch o {
	case CancelCancelled:
		return "cancelled"
	case CancelFiring:
		return "firing"
	case CancelFired:
		return "fired"
	}
	return fmt.Sprintf("outcome(%d)", int32(o))
}

// Cancellation is what is cancelled.
type Cancellation struct {
	ID string
	// ExpectedRevision, if not 0, must be the timer's revision.
	ExpectedRevision int64
	// RequestID is as in Timer.
	RequestID string
}

// CancelResult is the answer to one Cancellation.
type CancelResult struct {
	Outcome  CancelOutcome
	Revision int64
	// RequestID is the one that was sent.
	RequestID string
	// Err is set in the results of CancelBatch: nil or one of the errors of CancelDetail.
	Err error
}

// Cancel takes a timer away. It returns true if the timer was CANCELLED: no delivery starts afterwards; false if it was
// firing or had fired already. An unknown timer is ErrNotFound, one that died or expired ErrNotPending.
func (c *Client) Cancel(ctx context.Context, id string) (bool, error) {
	r, err := c.CancelDetail(ctx, Cancellation{ID: id})
	return err == nil && r.Outcome == CancelCancelled, err
}

// CancelDetail takes a timer away and says how far it had come. Errors: ErrNotFound, ErrNotPending (it died or expired), *RevisionError, *InvalidError,
// *OverloadedError, ErrUnavailable, ErrUnknown, ErrClosed.
func (c *Client) CancelDetail(ctx context.Context, x Cancellation) (CancelResult, error) {
	o, err := c.newOps(1).cancel(&x)
	if err != nil {
		return CancelResult{}, wrap("cancel", x.ID, err)
	}
	c.run(ctx, []*op{o})
	r := o.cancelled()
	if r.Err != nil {
		r.Err = wrap("cancel", x.ID, r.Err)
	}
	return r, r.Err
}

// CancelBatch cancels any number of timers, each as CancelDetail does. The results are in the order of the items; the
// error is nil if every item has an outcome, else a *BatchError.
func (c *Client) CancelBatch(ctx context.Context, items []Cancellation) ([]CancelResult, error) {
	results := make([]CancelResult, len(items))
	b := c.newOps(len(items))
	ops, open := make([]*op, len(items)), make([]*op, 0, len(items))
	for i := range items {
		o, err := b.cancel(&items[i])
		if err != nil {
			results[i].Err = err
			continue
		}
		ops[i] = o
		open = append(open, o)
	}
	if len(open) > 0 {
		c.run(ctx, open)
	}
	failed := batchFailures{items: len(items)}
	for i, o := range ops {
		if o != nil {
			results[i] = o.cancelled()
		}
		failed.add(i, results[i].Err)
	}
	return results, failed.error("cancel batch")
}

// cancel is schedule for a cancel.
func (b *ops) cancel(x *Cancellation) (*op, error) {
	if err := x.check(); err != nil {
		return nil, err
	}
	o := b.op(x.ID)
	request := b.encoder.cancellation(x, o.namespace)
	if request.RequestId == "" {
		request.RequestId = b.ids.next()
	}
	o.cancels, o.requestID, o.item = true, request.RequestId, b.encoder.item(request)
	return o, nil
}

func (x *Cancellation) check() error {
	if err := checkText("id", x.ID, 1, maxIDBytes); err != nil {
		return err
	}
	return checkText("request_id", x.RequestID, 0, maxRequestIDBytes)
}

// cancellation is request for a cancel.
func (e *encoder) cancellation(x *Cancellation, namespace string) *carillonv1.CancelRequest {
	e.cancel = carillonv1.CancelRequest{Namespace: namespace, Id: x.ID, RequestId: x.RequestID, ExpectedRevision: x.ExpectedRevision}
	return &e.cancel
}

func (o *op) cancelled() CancelResult {
	r := CancelResult{RequestID: o.requestID, Err: o.err}
	if o.err == nil {
		pb := o.reply.(*carillonv1.CancelResponse)
		r.Outcome, r.Revision = CancelOutcome(pb.GetOutcome()), pb.GetRevision()
	}
	return r
}

// Move says to when a timer is moved: at most one of Due and After is set, as in Timer.
type Move struct {
	Due   time.Time
	After time.Duration
	// ExpectedRevision, if not 0, must be the timer's revision.
	ExpectedRevision int64
	// RequestID is as in Timer.
	RequestID string
}

// Reschedule moves a pending timer to a new due time and keeps everything else; a repeat goes on from there on its grid, and
// a paused timer stays paused. A finished timer is ErrNotPending while it is retained, an unknown one ErrNotFound; the other
// errors are those of Schedule.
func (c *Client) Reschedule(ctx context.Context, id string, m Move) (Scheduled, error) {
	if m.RequestID == "" {
		m.RequestID = newRequestID()
	}
	s := Scheduled{RequestID: m.RequestID}
	if err := m.check(id); err != nil {
		return s, wrap("reschedule", id, err)
	}
	request := &carillonv1.RescheduleRequest{
		Namespace: c.cfg.Namespace, Id: id, RequestId: m.RequestID, ExpectedRevision: m.ExpectedRevision,
	}
	if !m.Due.IsZero() {
		request.When = &carillonv1.RescheduleRequest_Due{Due: timestamppb.New(m.Due)}
	}
	o := c.newOp(c.cfg.Namespace, id, true)
	err := c.repeat(ctx, o, func(ctx context.Context, e *endpoint, since time.Duration) error {
		if m.Due.IsZero() {
			request.When = &carillonv1.RescheduleRequest_Delay{Delay: durationpb.New(max(0, m.After-since))}
		}
		pb, err := e.timers.Reschedule(ctx, request)
		s.Due, s.Revision = timeOf(pb.GetDue()), pb.GetRevision()
		return err
	})
	if err != nil {
		return s, wrap("reschedule", id, err)
	}
	return s, nil
}

func (m Move) check(id string) error {
	if err := checkText("id", id, 1, maxIDBytes); err != nil {
		return err
	}
	if err := checkText("request_id", m.RequestID, 0, maxRequestIDBytes); err != nil {
		return err
	}
	return checkWhen(m.Due, m.After)
}

// Get returns a timer, also a finished one while it is retained. It sees all that was answered before. An unknown timer
// is ErrNotFound.
func (c *Client) Get(ctx context.Context, id string) (TimerStatus, error) {
	if err := checkText("id", id, 1, maxIDBytes); err != nil {
		return TimerStatus{}, wrap("get", id, err)
	}
	var pb *carillonv1.GetResponse
	err := c.read(ctx, c.cfg.Namespace, id, func(ctx context.Context, e *endpoint) (err error) {
		pb, err = e.timers.Get(ctx, &carillonv1.GetRequest{Namespace: c.cfg.Namespace, Id: id})
		return err
	})
	if err != nil {
		return TimerStatus{}, wrap("get", id, err)
	}
	return statusOf(pb.GetTimer()), nil
}
