package client

import (
	"context"
	"errors"
	"fmt"
	"runtime/debug"
	"strings"
	"sync"
	"time"
	"unicode/utf8"

	"google.golang.org/protobuf/types/known/durationpb"

	carillonv1 "github.com/carillon-timers/carillon/proto/carillon/v1"
)

const (
	// memberCheck is how often a worker looks for new members.
	memberCheck = 3 * time.Second
	// settledUse is how long the answer to a delivery without a lease is of use: it only tells the node that there is room.
	settledUse = 30 * time.Second
)

var errExited = errors.New("the handler's goroutine exited")

// worker is one call of Work. Its goroutines: one per live member (follow, in stream.go, with a sender each), one per
// running handler, and one that settles again what a broken stream left open. run waits for all of them.
type worker struct {
	c       *Client // set once, as the next three
	queue   string
	handler Handler
	options WorkOptions
	again   *resettler      // set once
	user    context.Context // the caller's; its end begins the drain; set once, by run
	life    context.Context // ends after the drain; set once, by run

	handlers sync.WaitGroup // starts them; quiet waits for them, because some may start while the drain waits
	streams  sync.WaitGroup

	mu        sync.Mutex
	waiting   []*job                  // in the order of arrival; guarded by mu
	running   int                     // handlers; guarded by mu
	idle      chan struct{}           // closed when no handler runs; nil while nobody asks; guarded by mu
	draining  bool                    // new streams are finished at once; guarded by mu
	following map[string]bool         // node IDs that have a follower; guarded by mu
	open      map[*stream]bool        // guarded by mu
	fatal     context.CancelCauseFunc // ends the work with an error that cannot heal; set once, by run
}

// job is a delivery and the stream that it came on.
type job struct {
	delivery Delivery
	stream   *stream
	expires  time.Time  // the lease's end by our clock: it ends a little late, by the time that the delivery travelled
	lease    lease      // of what is not at most once, once a handler has it
	answer   settlement // the handler's, or that of nobody
}

// lost says that nobody waits for this delivery: the timer is, or will be, handed out again. What is at most once is not.
func (j *job) lost(now time.Time) bool {
	return !j.delivery.AtMostOnce && (j.stream.isBroken() || !now.Before(j.expires))
}

func newWorker(c *Client, queue string, handler Handler, options WorkOptions) *worker {
	return &worker{
		c: c, queue: queue, handler: handler, options: options, again: newResettler(c),
		following: make(map[string]bool), open: make(map[*stream]bool),
	}
}

// run works until the context ends, drains, and waits for everything.
func (w *worker) run(ctx context.Context) error {
	user, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	stop := context.AfterFunc(w.c.base, func() { cancel(ErrClosed) })
	defer stop()
	w.user, w.fatal = user, cancel
	life, end := context.WithCancel(context.WithoutCancel(ctx))
	w.life = life
	var settling sync.WaitGroup
	settling.Go(func() { w.again.run(life) })
	w.manage(user, life)
	w.drain()
	end()
	w.streams.Wait()
	settling.Wait()
	if ctx.Err() != nil {
		return nil
	}
	return context.Cause(user)
}

// manage keeps a follower for each live member until the context ends.
func (w *worker) manage(ctx, life context.Context) {
	ticker := time.NewTicker(memberCheck)
	defer ticker.Stop()
	for {
		changed := w.c.router.wait()
		for _, node := range w.c.router.alive() {
			w.follow(life, node)
		}
		select {
		case <-ctx.Done():
			return
		case <-changed:
		case <-ticker.C:
			w.c.hint()
		}
	}
}

// follow starts a follower of the node if it has none.
func (w *worker) follow(life context.Context, node string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.following[node] {
		return
	}
	w.following[node] = true
	w.streams.Go(func() {
		w.followNode(life, node)
		w.mu.Lock()
		defer w.mu.Unlock()
		delete(w.following, node)
	})
}

// arrived takes deliveries from a stream, in order.
func (w *worker) arrived(s *stream, deliveries []*carillonv1.Delivery) {
	if len(deliveries) == 0 {
		return
	}
	now := w.c.cfg.Now()
	started := 0
	w.mu.Lock()
	for _, pb := range deliveries {
		j := &job{delivery: deliveryOf(pb, now), stream: s}
		d := &j.delivery
		j.expires = now.Add(d.LeaseEnd.Sub(d.HandedOut))
		if d.AtMostOnce {
			j.expires = now.Add(settledUse)
		}
		switch {
		case w.user.Err() != nil && !d.AtMostOnce:
			w.giveBack(j)
		case w.running < w.options.Concurrency:
			w.running++
			started++
			w.handlers.Go(func() { w.handle(j) })
		default:
			w.waiting = append(w.waiting, j)
		}
	}
	w.mu.Unlock()
	s.credit(started)
}

// handle runs the job, then one after the other what waits.
func (w *worker) handle(j *job) {
	ended := false
	defer func() {
		if !ended { // the handler called runtime.Goexit: another goroutine goes on
			w.handlers.Go(func() { w.handle(w.next()) })
		}
	}()
	for j != nil {
		w.call(j)
		j = w.next()
	}
	ended = true
}

// next takes the oldest job that is still worth it; nil ends the goroutine.
func (w *worker) next() *job {
	w.mu.Lock()
	defer w.mu.Unlock()
	for len(w.waiting) > 0 {
		j := w.waiting[0]
		w.waiting[0] = nil
		w.waiting = w.waiting[1:]
		j.stream.credit(1)
		switch {
		case j.lost(w.c.cfg.Now()): // to run it would only double it
			j.stream.drop()
		case w.user.Err() != nil && !j.delivery.AtMostOnce: // drain comes
			w.giveBack(j)
		default:
			return j
		}
	}
	w.running--
	if w.running == 0 && w.idle != nil {
		close(w.idle)
		w.idle = nil
	}
	return nil
}

// quiet returns when no handler runs.
func (w *worker) quiet() {
	w.mu.Lock()
	if w.running == 0 {
		w.mu.Unlock()
		return
	}
	if w.idle == nil {
		w.idle = make(chan struct{})
	}
	idle := w.idle
	w.mu.Unlock()
	<-idle
}

// call runs the handler and settles the delivery, also if the handler panics or exits.
func (w *worker) call(j *job) {
	ctx, stop := w.context(j)
	defer stop()
	err := errExited
	defer func() {
		if p := recover(); p != nil {
			err = fmt.Errorf("panic: %v", p)
			w.c.cfg.Logger.Error("carillon: handler panicked", "queue", w.queue, "timer", j.delivery.ID,
				"attempt", j.delivery.Attempt, "panic", p, "stack", string(debug.Stack()))
		}
		w.settle(j, err)
		j.delivery = Delivery{} // the answer, which is a part of the job, waits for its confirmation
	}()
	err = w.handler(ctx, j.delivery)
}

// context is what a handler gets: it ends with the lease, or, if there is none, with the work.
func (w *worker) context(j *job) (ctx context.Context, stop func()) {
	switch {
	case !j.delivery.AtMostOnce:
		l := &j.lease
		l.parent, l.c, l.end = w.user, w.c, j.expires
		j.delivery.lease = l
		return l, l.stop
	case w.user.Err() != nil: // nobody else would ever get it
		return w.life, func() {}
	}
	return w.user, func() {}
}

// settle answers a delivery: nil acks it.
func (w *worker) settle(j *job, err error) {
	s := &j.answer
	s.token, s.expires, s.bound = j.delivery.Token, j.expires, j.delivery.AtMostOnce
	if j.delivery.lease != nil {
		s.expires = j.delivery.lease.ends()
	}
	switch {
	case errors.Is(err, ErrGiveBack):
		s.returned, s.bound = true, true
	case err != nil:
		s.nack = &carillonv1.Nack{Token: j.delivery.Token, Error: errorText(err)}
		var after *retryAfterError
		var refused *refusedError
		switch {
		case errors.As(err, &refused):
			s.nack.Dead = true
		case errors.As(err, &after):
			s.nack.Delay = durationpb.New(after.delay)
		case w.user.Err() != nil && errors.Is(err, context.Canceled):
			s.nack.Delay = durationpb.New(0) // we stopped it: it did not fail
		}
	}
	j.stream.settle(s)
}

// giveBack hands a delivery that no handler has started back to the node, to be delivered elsewhere at once.
func (w *worker) giveBack(j *job) {
	j.stream.settle(&settlement{token: j.delivery.Token, returned: true, bound: true, expires: j.expires})
}

// drain stops in order: nothing starts, what waits is given back, handlers end, answers are confirmed.
func (w *worker) drain() {
	w.mu.Lock()
	w.draining = true
	var left []*job
	for _, j := range w.waiting {
		if j.delivery.AtMostOnce {
			left = append(left, j)
		} else {
			w.giveBack(j)
		}
	}
	w.waiting = left
	w.mu.Unlock()

	limit := time.NewTimer(w.options.DrainTimeout)
	defer limit.Stop()
	if !waitFor(w.quiet, limit.C) {
		w.mu.Lock()
		running, lost := w.running, len(w.waiting)
		w.mu.Unlock()
		w.c.cfg.Logger.Warn("carillon: handlers did not end in time", "queue", w.queue, "handlers", running, "at_most_once_lost", lost)
		limit.Reset(goodbye) // for the answers of those that did
	}
	w.mu.Lock()
	for s := range w.open {
		s.finish()
	}
	w.mu.Unlock()
	if !waitFor(func() { w.streams.Wait(); w.quiet(); w.again.flush() }, limit.C) {
		w.c.cfg.Logger.Warn("carillon: acks were not confirmed in time", "queue", w.queue)
	}
}

// waitFor returns false if the limit comes first; then wait goes on by itself.
func waitFor(wait func(), limit <-chan time.Time) bool {
	done := make(chan struct{})
	var wg sync.WaitGroup
	wg.Go(func() {
		wait()
		close(done)
	})
	select {
	case <-done:
		return true
	case <-limit:
		return false
	}
}

// errorText is the error's text as the contract takes it: UTF-8, at most 1 KiB.
func errorText(err error) string {
	text := strings.ToValidUTF8(err.Error(), "\uFFFD")
	if len(text) <= maxErrorBytes {
		return text
	}
	cut := maxErrorBytes
	for !utf8.RuneStart(text[cut]) {
		cut--
	}
	return text[:cut]
}
