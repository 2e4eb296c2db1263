package client

import (
	"fmt"
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
	// once. At most one of Due and After is set; none means at once, or, of a repeat, its own first due time.
	Due time.Time
	// After is the delay, by the clock of the leader that accepts the timer; not negative. A repeated attempt counts it
	// from the first one.
	After time.Duration
	// Queue receives the deliveries: 1 to 255 bytes of UTF-8 without NUL. Exactly one of Queue and Webhook is set.
	Queue string
	// Webhook is an http or https URL, at most 2,048 bytes, to which each delivery is posted. Its host must be allowed by the
	// servers' configuration if its address is not public.
	Webhook string
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
	// Repeat makes the timer fire again and again; the zero value fires once.
	Repeat Repeat
	// Window lets the leader place each due time where the fewest timers are, at most so much later; up to 24 h, and of a repeat with a
	// period no longer than that.
	Window time.Duration
	// Expiry, if set, is the instant after which a delivery is of no use: the timer then ends as Expired. After the due time,
	// at most 100 years ahead.
	Expiry time.Time
	// AtMostOnce has the completion on the disks of a majority before the timer is handed out: it is never tried again, and
	// is lost if its consumer fails. Not with Retry.MaxAttempts over 1.
	AtMostOnce bool
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
	// MaxBackoff is the longest wait, InitialBackoff to 24 h; 5 min by default, or InitialBackoff if that is longer. Waits are spread by
	// 10 % up and down, never over it.
	MaxBackoff time.Duration
	// Multiplier makes each wait longer than the last, 1 to 100; 2 by default.
	Multiplier float64
	// MaxAttempts sends the timer to the dead letters after so many attempts, up to 1,000,000; 0 means no limit.
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

// Scheduled is what became of a timer that was scheduled or changed.
type Scheduled struct {
	// Due is the due time in whole milliseconds; Pause does not say it.
	Due time.Time
	// Revision is that of the timer now.
	Revision int64
	// Kept is true if the policy was Keep and the timer existed.
	Kept bool
	// Shard keeps the timer; only Schedule and its batches say it.
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
	// Paused: does not fire until Resume.
	Paused = State(carillonv1.State_STATE_PAUSED)
	// Dead: its last attempt failed, or its consumer refused it for good; a dead letter keeps it.
	Dead = State(carillonv1.State_STATE_DEAD)
	// Expired: its expiry passed before it was settled; kept for the retention.
	Expired = State(carillonv1.State_STATE_EXPIRED)
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
	case Paused:
		return "paused"
	case Dead:
		return "dead"
	case Expired:
		return "expired"
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
	// Fired counts the due times of a repeat that were fired.
	Fired int64
	// TimeLeft is set while the timer is paused and frozen: how long after Resume it is due.
	TimeLeft time.Duration
}

// request is the timer as it travels, in the memory of the encoder and of the timer; the caller has checked the timer.
func (e *encoder) request(t *Timer, namespace string) *carillonv1.ScheduleRequest {
	pb := &e.timer
	*pb = carillonv1.Timer{
		Namespace:   namespace,
		Id:          t.ID,
		Payload:     t.Payload,
		ContentType: t.ContentType,
		Headers:     t.Headers,
		Labels:      t.Labels,
		Retry:       t.Retry.proto(),
		Window:      optional(t.Window),
		Expiry:      optionalTime(t.Expiry),
	}
	if t.Webhook != "" {
		pb.Target = &carillonv1.Timer_Webhook{Webhook: t.Webhook}
	} else {
		e.queue.Queue = t.Queue
		pb.Target = &e.queue
	}
	if t.Repeat.set() {
		pb.Repeat = t.Repeat.proto()
	}
	if t.AtMostOnce {
		pb.Guarantee = carillonv1.Guarantee_GUARANTEE_AT_MOST_ONCE
	}
	switch {
	case !t.Due.IsZero():
		e.at.Seconds, e.at.Nanos = t.Due.Unix(), int32(t.Due.Nanosecond())
		e.due.Due = &e.at
		pb.When = &e.due
	case t.After != 0 || pb.Repeat == nil:
		pb.When = &carillonv1.Timer_Delay{Delay: durationpb.New(t.After)}
	}
	e.schedule = carillonv1.ScheduleRequest{
		Timer:            pb,
		IfExists:         carillonv1.IfExists(t.IfExists),
		RequestId:        t.RequestID,
		ExpectedRevision: t.ExpectedRevision,
	}
	return &e.schedule
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
		MaxAttempts:    int32Of(r.MaxAttempts),
	}
}

func optional(d time.Duration) *durationpb.Duration {
	if d == 0 {
		return nil
	}
	return durationpb.New(d)
}

func statusOf(pb *carillonv1.TimerStatus) TimerStatus {
	return TimerStatus{
		Timer:     timerOf(pb.GetTimer()),
		Namespace: pb.GetTimer().GetNamespace(),
		State:     State(pb.GetState()),
		Revision:  pb.GetRevision(),
		Attempt:   int(pb.GetAttempt()),
		NextDue:   timeOf(pb.GetNextDue()),
		Created:   timeOf(pb.GetCreated()),
		LastError: pb.GetLastError(),
		Shard:     int(pb.GetShard()),
		Fired:     pb.GetFired(),
		TimeLeft:  pb.GetTimeLeft().AsDuration(),
	}
}

func timerOf(pb *carillonv1.Timer) Timer {
	retry := pb.GetRetry()
	return Timer{
		ID:          pb.GetId(),
		Due:         timeOf(pb.GetDue()),
		Queue:       pb.GetQueue(),
		Webhook:     pb.GetWebhook(),
		Payload:     pb.GetPayload(),
		ContentType: pb.GetContentType(),
		Headers:     pb.GetHeaders(),
		Labels:      pb.GetLabels(),
		Retry: RetryPolicy{
			Lease:          retry.GetLease().AsDuration(),
			InitialBackoff: retry.GetInitialBackoff().AsDuration(),
			MaxBackoff:     retry.GetMaxBackoff().AsDuration(),
			Multiplier:     retry.GetMultiplier(),
			MaxAttempts:    int(retry.GetMaxAttempts()),
		},
		Repeat:     repeatOf(pb.GetRepeat()),
		Window:     pb.GetWindow().AsDuration(),
		Expiry:     timeOf(pb.GetExpiry()),
		AtMostOnce: pb.GetGuarantee() == carillonv1.Guarantee_GUARANTEE_AT_MOST_ONCE,
	}
}

// timeOf is the zero time for an unset field.
func timeOf(ts *timestamppb.Timestamp) time.Time {
	if ts == nil {
		return time.Time{}
	}
	return ts.AsTime()
}
