package client

import (
	"context"
	"errors"
	"fmt"
	"time"

	carillonv1 "github.com/carillon-timers/carillon/proto/carillon/v1"
)

// Defaults and limits of WorkOptions.
const (
	DefaultConcurrency  = 16
	DefaultDrainTimeout = 30 * time.Second
	maxConcurrency      = 10_000
)

// Handler deals with one delivery. Nil acks it; an error or a panic nacks it, with the error's text (see RetryAfter for
// the wait before the next attempt, Refuse for the dead letters, ErrGiveBack for what was not begun). The context ends when
// the delivery's lease ends (cause ErrLeaseEnded; Delivery.ExtendLease puts that off), for then the timer is handed out
// again, and when the context of Work ends; a handler that wants to finish in spite of that uses context.WithoutCancel. A
// timer can be delivered more than once, unless it is AtMostOnce: Epoch, Revision and Attempt fence.
type Handler func(ctx context.Context, d Delivery) error

// WorkOptions says how a queue is worked; the zero value takes the defaults.
type WorkOptions struct {
	// Concurrency is the most handlers that run at once, 1 to 10,000; 16 if 0.
	Concurrency int
	// Prefetch is the most deliveries that each node may have sent and no handler has started, 1 to 10,000; Concurrency
	// if 0. What waits here uses up its lease; if it is at most once, it is lost if this process dies.
	Prefetch int
	// Name names this worker to the nodes, at most 255 bytes; Config.Name if empty.
	Name string
	// DrainTimeout bounds how long Work waits, after its context ended, for handlers that run and for the confirmation of
	// their acks; 30 s if 0.
	DrainTimeout time.Duration
}

func (o WorkOptions) withDefaults(c Config) WorkOptions {
	if o.Concurrency == 0 {
		o.Concurrency = DefaultConcurrency
	}
	if o.Prefetch == 0 {
		o.Prefetch = o.Concurrency
	}
	if o.Name == "" {
		o.Name = c.Name
	}
	if o.DrainTimeout == 0 {
		o.DrainTimeout = DefaultDrainTimeout
	}
	return o
}

func (o WorkOptions) validate() error {
	if o.Concurrency < 1 || o.Concurrency > maxConcurrency {
		return &InvalidError{"concurrency", fmt.Sprint(o.Concurrency), "1 to 10,000"}
	}
	if o.Prefetch < 1 || o.Prefetch > maxConcurrency {
		return &InvalidError{"prefetch", fmt.Sprint(o.Prefetch), "1 to 10,000"}
	}
	if o.DrainTimeout < 0 {
		return &InvalidError{"drain timeout", o.DrainTimeout.String(), "must not be negative"}
	}
	return checkText("worker", o.Name, 1, maxQueueBytes)
}

// Delivery is one attempt to hand a timer to a consumer.
type Delivery struct {
	Namespace, ID, Queue string
	Payload              []byte
	ContentType          string
	Headers, Labels      map[string]string
	// Due is when the timer was to fire (of the first attempt).
	Due time.Time
	// HandedOut is the leader's clock when this attempt started.
	HandedOut time.Time
	// LeaseEnd is when, by the leader's clock, it is tried again if there is no answer.
	LeaseEnd time.Time
	// Received is when it arrived, by this client's clock.
	Received time.Time
	// Attempt is 1 for the first delivery. For one timer, (Epoch, Revision, Attempt) only grows.
	Attempt         int
	Epoch, Revision int64
	Shard           int
	// Last is true if a failure of this attempt is the end: the dead letters.
	Last bool
	// AtMostOnce is true if the delivery is settled already: the handler's answer changes nothing, no lease ends, and there
	// is no other attempt.
	AtMostOnce bool
	// Token settles the delivery; opaque.
	Token []byte

	lease *lease // of a delivery that a handler has; nil else
}

func deliveryOf(pb *carillonv1.Delivery, received time.Time) Delivery {
	return Delivery{
		Namespace:   pb.GetNamespace(),
		ID:          pb.GetId(),
		Queue:       pb.GetQueue(),
		Payload:     pb.GetPayload(),
		ContentType: pb.GetContentType(),
		Headers:     pb.GetHeaders(),
		Labels:      pb.GetLabels(),
		Due:         timeOf(pb.GetDue()),
		HandedOut:   timeOf(pb.GetHandedOut()),
		LeaseEnd:    timeOf(pb.GetLeaseEnd()),
		Received:    received,
		Attempt:     int(pb.GetAttempt()),
		Epoch:       pb.GetEpoch(),
		Revision:    pb.GetRevision(),
		Shard:       int(pb.GetShard()),
		Last:        pb.GetLast(),
		AtMostOnce:  pb.GetGuarantee() == carillonv1.Guarantee_GUARANTEE_AT_MOST_ONCE,
		Token:       pb.GetToken(),
	}
}

// RetryAfter wraps a handler's error so that the next attempt starts after d instead of after the timer's own back-off;
// a negative d means at once. A nil error stays nil.
func RetryAfter(err error, d time.Duration) error {
	if err == nil {
		return nil
	}
	return &retryAfterError{err: err, delay: max(0, d)}
}

type retryAfterError struct {
	err   error
	delay time.Duration
}

func (e *retryAfterError) Error() string { return e.err.Error() }

func (e *retryAfterError) Unwrap() error { return e.err }

// Refuse wraps a handler's error so that the timer goes to the dead letters at once, with the error's text and the reason
// DeadRefused: for what will never work. A nil error stays nil.
func Refuse(err error) error {
	if err == nil {
		return nil
	}
	return &refusedError{err}
}

type refusedError struct{ err error }

func (e *refusedError) Error() string { return e.err.Error() }

func (e *refusedError) Unwrap() error { return e.err }

// ErrGiveBack, returned by a handler (or wrapped), gives back a delivery that it has not begun: others get it at once, and no
// attempt is counted. It comes back to this worker, too, unless that is stopping.
var ErrGiveBack = errors.New("given back")

// Work hands the deliveries of a queue to the handler until the context ends; then it takes no more, gives back what no
// handler has started (no attempt is counted), waits for the handlers that run (at most DrainTimeout), confirms their acks
// and returns nil. What is AtMostOnce cannot be given back: what has arrived is handed to the handler in that time, with a
// context that ends with it. Work keeps a stream to every live member and opens broken ones again; only an error that cannot
// heal ends it: *InvalidError, *NotSupportedError, *StatusError (a permission), ErrClosed.
func (c *Client) Work(ctx context.Context, queue string, handler Handler, options WorkOptions) error {
	options = options.withDefaults(c.cfg)
	err := checkText("queue", queue, 1, maxQueueBytes)
	if err == nil {
		err = options.validate()
	}
	if err == nil && handler == nil {
		err = errors.New("no handler")
	}
	if err == nil {
		err = newWorker(c, queue, handler, options).run(ctx)
	}
	if err != nil {
		return wrap("work", queue, err)
	}
	return nil
}
