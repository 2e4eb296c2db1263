package client

import (
	"bytes"
	"fmt"
	"maps"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	carillonv1 "github.com/carillon-timers/carillon/proto/carillon/v1"
)

// Timer is what is scheduled.
type Timer struct {
	// ID is 1 to 255 bytes of UTF-8 without NUL. A part in braces, "{order-42}/reminder", is hashed alone, so timers that
	// share it share a shard.
	ID string
	// Due is the instant from which it may be delivered; it is rounded up to the millisecond. A time in the past fires at
	// once. At most one of Due and After is set; none means at once.
	Due time.Time
	// After is the delay, by the clock of the leader that accepts the timer; not negative. A repeated attempt counts it
	// from the first one.
	After time.Duration
	// Queue receives the deliveries: 1 to 255 bytes of UTF-8 without NUL.
	Queue string
	// Payload is opaque, at most 64 KiB by default.
	Payload []byte
	// ContentType describes the payload. Content type, headers and labels have 8 KiB together.
	ContentType string
	// Headers travel with each delivery.
	Headers map[string]string
	// Labels are for finding timers.
	Labels map[string]string
	// Retry says how deliveries are repeated; the zero value takes the defaults.
	Retry RetryPolicy
	// IfExists says what happens if a pending timer has the ID.
	IfExists IfExists
	// ExpectedRevision, if not 0, must be the revision of the timer that is replaced.
	ExpectedRevision int64
	// RequestID, at most 64 bytes, makes repeated calls have the effect of one; empty takes a random one, which protects
	// the retries of this call.
	RequestID string
}

// RetryPolicy says when a delivery that was not acked is tried again; fields that are 0 take the defaults.
type RetryPolicy struct {
	// Lease is how long a delivery may stay unanswered, 100 ms to 24 h; 30 s by default.
	Lease time.Duration
	// InitialBackoff is the wait before the second attempt, 1 ms to 24 h; 1 s by default.
	InitialBackoff time.Duration
	// MaxBackoff bounds the wait, InitialBackoff to 24 h; 5 min by default.
	MaxBackoff time.Duration
	// Multiplier makes each wait longer than the last, 1 to 100; 2 by default.
	Multiplier float64
	// MaxAttempts ends the attempts; 0 means no limit, other values are not supported by this version.
	MaxAttempts int
}

// IfExists is the policy for an ID that a pending timer has.
type IfExists int32

// The policies; the zero value is Fail.
const (
	// Fail answers ErrAlreadyExists.
	Fail = IfExists(carillonv1.IfExists_IF_EXISTS_FAIL)
	// Replace puts the new timer in its place in one step.
	Replace = IfExists(carillonv1.IfExists_IF_EXISTS_REPLACE)
	// Keep leaves the old timer and answers with its revision and Kept.
	Keep = IfExists(carillonv1.IfExists_IF_EXISTS_KEEP)
)

// Scheduled is what became of a timer.
type Scheduled struct {
	// Due is the due time in whole milliseconds.
	Due time.Time
	// Revision is that of the timer now.
	Revision int64
	// Kept is true if the policy was Keep and the timer existed.
	Kept bool
	// Shard keeps the timer (0 of a Reschedule says nothing).
	Shard int
	// RequestID is the one that was sent.
	RequestID string
}

// State is how far a timer has come.
type State int32

// The states.
const (
	// Pending: waiting for its due time, a consumer, or its next attempt.
	Pending = State(carillonv1.State_STATE_PENDING)
	// Firing: handed to a consumer that has not answered yet.
	Firing = State(carillonv1.State_STATE_FIRING)
	// Fired: acked; kept for the retention.
	Fired = State(carillonv1.State_STATE_FIRED)
	// Cancelled: taken away; kept for the retention.
	Cancelled = State(carillonv1.State_STATE_CANCELLED)
)

func (s State) String() string {
	switch s {
	case Pending:
		return "pending"
	case Firing:
		return "firing"
	case Fired:
		return "fired"
	case Cancelled:
		return "cancelled"
	}
	return fmt.Sprintf("state(%d)", int32(s))
}

// TimerStatus is a timer as the cluster keeps it. Of a finished timer, payload and headers are gone.
type TimerStatus struct {
	// Timer as it was accepted; Due is set, After is not.
	Timer
	Namespace string
	State     State
	// Revision grows with each change of the timer.
	Revision int64
	// Attempt counts the deliveries that failed so far.
	Attempt int
	// NextDue is when the next delivery may start: the due time, or the end of a back-off.
	NextDue time.Time
	Created time.Time
	// LastError is what the last failed attempt said, at most 1 KiB.
	LastError string
	// Shard keeps the timer.
	Shard int
}

// request builds the call; the caller has checked the timer. It copies: a batch may still be on its way when the call
// has returned because its context ended.
func (t *Timer) request(namespace string) *carillonv1.ScheduleRequest {
	pb := &carillonv1.Timer{
		Namespace:   namespace,
		Id:          t.ID,
		Target:      &carillonv1.Timer_Queue{Queue: t.Queue},
		Payload:     bytes.Clone(t.Payload),
		ContentType: t.ContentType,
		Headers:     maps.Clone(t.Headers),
		Labels:      maps.Clone(t.Labels),
		Retry:       t.Retry.proto(),
	}
	if t.Due.IsZero() {
		pb.When = &carillonv1.Timer_Delay{Delay: durationpb.New(t.After)}
	} else {
		pb.When = &carillonv1.Timer_Due{Due: timestamppb.New(t.Due)}
	}
	return &carillonv1.ScheduleRequest{
		Timer:            pb,
		IfExists:         carillonv1.IfExists(t.IfExists),
		RequestId:        t.RequestID,
		ExpectedRevision: t.ExpectedRevision,
	}
}

func (r RetryPolicy) proto() *carillonv1.RetryPolicy {
	if r == (RetryPolicy{}) {
		return nil
	}
	return &carillonv1.RetryPolicy{
		Lease:          optional(r.Lease),
		InitialBackoff: optional(r.InitialBackoff),
		MaxBackoff:     optional(r.MaxBackoff),
		Multiplier:     r.Multiplier,
		MaxAttempts:    int32(min(max(r.MaxAttempts, -1<<31), 1<<31-1)),
	}
}

func optional(d time.Duration) *durationpb.Duration {
	if d == 0 {
		return nil
	}
	return durationpb.New(d)
}

func statusOf(pb *carillonv1.TimerStatus) TimerStatus {
	t, retry := pb.GetTimer(), pb.GetTimer().GetRetry()
	return TimerStatus{
		Timer: Timer{
			ID:          t.GetId(),
			Due:         timeOf(t.GetDue()),
			Queue:       t.GetQueue(),
			Payload:     t.GetPayload(),
			ContentType: t.GetContentType(),
			Headers:     t.GetHeaders(),
			Labels:      t.GetLabels(),
			Retry: RetryPolicy{
				Lease:          retry.GetLease().AsDuration(),
				InitialBackoff: retry.GetInitialBackoff().AsDuration(),
				MaxBackoff:     retry.GetMaxBackoff().AsDuration(),
				Multiplier:     retry.GetMultiplier(),
				MaxAttempts:    int(retry.GetMaxAttempts()),
			},
		},
		Namespace: t.GetNamespace(),
		State:     State(pb.GetState()),
		Revision:  pb.GetRevision(),
		Attempt:   int(pb.GetAttempt()),
		NextDue:   timeOf(pb.GetNextDue()),
		Created:   timeOf(pb.GetCreated()),
		LastError: pb.GetLastError(),
		Shard:     int(pb.GetShard()),
	}
}

// timeOf is the zero time for an unset field.
func timeOf(ts *timestamppb.Timestamp) time.Time {
	if ts == nil {
		return time.Time{}
	}
	return ts.AsTime()
}
