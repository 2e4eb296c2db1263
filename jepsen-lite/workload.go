package main

import (
	"context"
	"errors"
	"fmt"
	"hash/fnv"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/carillon-timers/carillon/client"
	"github.com/carillon-timers/carillon/jepsen-lite/local"
)

const queue = "jepsen"

// Workload schedules timers at a steady rate, moves some, cancels some close to their due time, and works them off.
type Workload struct {
	Clients []*client.Client
	History *History
	Random  *rand.Rand
	// Rate is timers a second; each falls due within Spread after From, or after its schedule if From is zero.
	Rate   int
	Spread time.Duration
	From   time.Time
	// Of a hundred timers, so many are cancelled, moved, and, at their first delivery, nacked or not answered at all.
	Cancels, Moves, Nacks, Silent int
	// Most is how many timers are scheduled in all; 0 means until the context ends.
	Most int
	// Over is closed when nothing is judged any more; until then handlers that do not answer wait for it.
	Over chan struct{}
	// Calls is how many calls may be under way at once.
	Calls int
	// Special is the load of timers that are not plain; nil for none.
	Special *Special
}

// plan is what will be done with one timer.
type plan struct {
	id           string
	client       *client.Client
	due          time.Time
	cancelAt     time.Time // zero: not
	moveAt       time.Time // zero: not
	movedDue     time.Time
	callDeadline time.Duration
}

// Load schedules until ctx ends or Most is reached, and returns when every call has been answered. Calls that are under
// way when ctx ends are finished.
func (w *Workload) Load(ctx context.Context) int {
	var calls sync.WaitGroup
	defer calls.Wait()
	free := make(chan struct{}, w.Calls)
	tick := time.NewTicker(time.Second / time.Duration(w.Rate))
	defer tick.Stop()
	for i := 0; w.Most == 0 || i < w.Most; i++ {
		select {
		case <-tick.C:
		case <-ctx.Done():
			return i
		}
		select {
		case free <- struct{}{}:
		case <-ctx.Done():
			return i
		}
		p := w.plan(i)
		calls.Go(func() {
			defer func() { <-free }()
			w.drive(p)
		})
	}
	return w.Most
}

func (w *Workload) plan(i int) plan {
	from := w.From
	if from.IsZero() {
		from = time.Now()
	}
	p := plan{
		id:           fmt.Sprintf("t%06d", i),
		client:       w.Clients[i%len(w.Clients)],
		due:          from.Add(time.Duration(w.Random.Int64N(int64(w.Spread)))).Truncate(time.Millisecond),
		callDeadline: 30 * time.Second,
	}
	switch roll := w.Random.IntN(100); {
	case roll < w.Cancels:
		// Around the due time: that is where a cancel and a hand-out meet.
		p.cancelAt = p.due.Add(time.Duration(w.Random.Int64N(int64(60*time.Millisecond))) - 40*time.Millisecond)
	case roll < w.Cancels+w.Moves:
		p.moveAt = p.due.Add(-time.Duration(w.Random.Int64N(int64(200 * time.Millisecond))))
		p.movedDue = p.due.Add(time.Duration(w.Random.Int64N(int64(w.Spread)))).Truncate(time.Millisecond)
	}
	return p
}

func (w *Workload) drive(p plan) {
	ctx, cancel := context.WithTimeout(context.Background(), p.callDeadline+time.Until(p.due)+w.Spread)
	defer cancel()
	if w.schedule(ctx, p) == Failed {
		return
	}
	switch {
	case !p.cancelAt.IsZero():
		if local.Pause(ctx, time.Until(p.cancelAt)) == nil {
			w.cancel(ctx, p)
		}
	case !p.moveAt.IsZero():
		if local.Pause(ctx, time.Until(p.moveAt)) == nil {
			w.move(ctx, p)
		}
	}
}

func (w *Workload) schedule(ctx context.Context, p plan) Outcome {
	e := Event{Kind: Schedule, ID: p.id, Start: time.Now().UnixNano()}
	s, err := p.client.Schedule(ctx, client.Timer{
		ID: p.id, Due: p.due, Queue: queue, Payload: []byte(p.id),
		Retry: client.RetryPolicy{Lease: 2 * time.Second, InitialBackoff: 100 * time.Millisecond, MaxBackoff: time.Second},
	})
	e.End, e.Due = time.Now().UnixNano(), p.due.UnixMilli()
	e.Outcome, e.Error = outcomeOf(err)
	if err == nil && s.Due.UnixMilli() != e.Due {
		e.Error = fmt.Sprintf("asked for %s, accepted for %s", clock(e.Due), clock(s.Due.UnixMilli()))
	}
	w.History.Add(e)
	return e.Outcome
}

func (w *Workload) cancel(ctx context.Context, p plan) {
	e := Event{Kind: Cancel, ID: p.id, Start: time.Now().UnixNano()}
	r, err := p.client.CancelDetail(ctx, client.Cancellation{ID: p.id})
	e.End = time.Now().UnixNano()
	e.Outcome, e.Error = outcomeOf(err)
	switch {
	case err == nil:
		e.Answer = r.Outcome.String()
	case errors.Is(err, client.ErrNotFound):
		e.Outcome, e.Answer, e.Error = OK, "not found", ""
	}
	w.History.Add(e)
}

func (w *Workload) move(ctx context.Context, p plan) {
	e := Event{Kind: Reschedule, ID: p.id, Start: time.Now().UnixNano(), Due: p.movedDue.UnixMilli()}
	_, err := p.client.Reschedule(ctx, p.id, client.Move{Due: p.movedDue})
	e.End = time.Now().UnixNano()
	e.Outcome, e.Error = outcomeOf(err)
	w.History.Add(e)
}

// outcomeOf tells what a caller knows after err.
func outcomeOf(err error) (Outcome, string) {
	switch {
	case err == nil:
		return OK, ""
	case errors.Is(err, client.ErrUnknown):
		return Unknown, err.Error()
	default:
		return Failed, err.Error()
	}
}

// Work takes deliveries with every client until ctx ends, and notes each.
func (w *Workload) Work(ctx context.Context) error {
	var workers sync.WaitGroup
	failures := make([]error, len(w.Clients))
	for i, c := range w.Clients {
		name := fmt.Sprintf("w%d", i+1)
		workers.Go(func() {
			handler := func(_ context.Context, d client.Delivery) error { return w.take(name, d) }
			failures[i] = c.Work(ctx, queue, handler, client.WorkOptions{Concurrency: 2048, Name: name, DrainTimeout: 5 * time.Second})
		})
	}
	workers.Wait()
	return errors.Join(failures...)
}

var errRefused = errors.New("refused on purpose")

func (w *Workload) take(name string, d client.Delivery) error {
	e := Event{
		Kind: Deliver, ID: d.ID, Start: d.Received.UnixNano(), End: time.Now().UnixNano(), Outcome: OK, Due: d.Due.UnixMilli(),
		HandedOut: d.HandedOut.UnixMilli(), Epoch: uint64(d.Epoch), Revision: uint64(d.Revision), Attempt: d.Attempt, Worker: name,
	}
	if string(d.Payload) != parent(d.ID) {
		e.Error = fmt.Sprintf("payload is %q", d.Payload)
	}
	// The timer and its due time decide, so that a run is the same for the same seed.
	roll := rollOf(d.ID, d.Due)
	first := d.Attempt == 1 && !d.AtMostOnce
	doomed := w.Special.doomed(d.ID)
	// An attempt of a doomed timer now and then lapses; it counts, too.
	e.Silent = doomed && roll < 10*w.Silent && d.Attempt == 1+roll%maxAttempts || !doomed && first && roll >= w.Nacks && roll < w.Nacks+w.Silent
	e.Nacked = !e.Silent && (doomed || first && roll < w.Nacks)
	w.History.Add(e)
	switch {
	case e.Nacked:
		return errRefused
	case e.Silent: // as a hung handler: even an answer after the lease would come too early
		<-w.Over
		return errRefused
	}
	return nil
}

// rollOf is a number from 0 to 99 that follows from a delivery.
func rollOf(id string, due time.Time) int {
	h := fnv.New32a()
	_, _ = fmt.Fprintf(h, "%s %d", id, due.UnixMilli())
	return int(h.Sum32() % 100)
}
