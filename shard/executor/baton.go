package executor

import (
	"context"
	"sync"
	"sync/atomic"
	"time"
)

// baton is the right to take turns. It is held by one worker, or it lies on the table while the worker that had it does
// the slow part of its turn. Then an alarm is set for the next deadline, and one worker more, the standby, waits for that:
// who comes first takes the baton. So a slow part that is quick, which is the rule, wakes no other thread (that costs 25 us
// at the median, and the wake-up itself), and one that is not holds up nothing.
type baton struct {
	// bed is where the holder sleeps, alarm is the standby's. Set by Run before its workers start.
	bed   bed
	alarm alarm
	// lies is 1 while the baton lies on the table.
	lies atomic.Uint32
	// until is when the alarm rings, in nanoseconds since the loop was made.
	until atomic.Int64
	// kicked is 1 if there is something to do that no turn has looked for yet.
	kicked atomic.Uint32
	// vacancy holds a token while there is no standby.
	vacancy chan struct{}

	passes atomic.Uint64
}

const (
	// grace is how long the baton lies before the standby takes it although no deadline has come, because something was
	// pushed or a turn left something to do.
	grace = 100 * time.Microsecond
	// helpAfter is how long the baton lies before the standby helps with the slow part, if that is more than one call.
	helpAfter = time.Millisecond
)

// layDown leaves the baton to who comes first, after a turn that found nothing to do for wait and has left some calls.
func (l *Loop) layDown(wait time.Duration, calls int) {
	switch {
	case wait == 0:
		wait = grace
	case calls > 1:
		wait = min(wait, helpAfter)
	}
	b := &l.baton
	until := l.clock.since() + wait
	b.until.Store(int64(until))
	b.alarm.set(wait)
	b.lies.Store(1)
	switch {
	case l.clock.since() >= until:
		// It may have rung before the baton lay, while this worker had no processor: the standby found nothing to take.
		b.alarm.set(grace)
	case b.kicked.Load() == 1:
		l.hurry()
	}
}

// pickUp says whether the worker that laid the baton down has it again.
func (l *Loop) pickUp() bool {
	if !l.baton.lies.CompareAndSwap(1, 0) {
		return false
	}
	l.baton.alarm.stop()
	return true
}

// hurry sets the alarm to ring within the grace.
func (l *Loop) hurry() {
	left := time.Duration(l.baton.until.Load()) - l.clock.since()
	if left > grace {
		l.baton.alarm.set(grace)
	}
}

// wake makes somebody take a turn soon: the holder if it sleeps; if the baton lies on the table, who takes it next.
func (l *Loop) wake() {
	b := &l.baton
	first := b.kicked.Swap(1) == 0
	switch {
	case !l.running.Load():
	case b.lies.Load() == 0:
		b.bed.wake()
	case first:
		l.hurry()
	}
}

// work is the life of a worker: wait to become the standby, wait for the alarm, hold the baton.
func (l *Loop) work(ctx context.Context) {
	b := &l.baton
	for {
		select {
		case <-ctx.Done():
			return
		case <-b.vacancy:
		}
		for taken := false; !taken; {
			b.alarm.wait()
			if ctx.Err() != nil {
				return
			}
			taken = b.lies.CompareAndSwap(1, 0)
		}
		b.passes.Add(1)
		b.vacancy <- struct{}{}
		l.hold(ctx)
		if ctx.Err() != nil {
			b.alarm.set(0) // so that the standby ends, too
			return
		}
	}
}

// hold takes turns until the context is done or another worker has taken the baton.
func (l *Loop) hold(ctx context.Context) {
	var w work
	for ctx.Err() == nil {
		wait := l.turn(&w)
		switch calls := l.slow.add(&w); {
		case calls > 0:
			l.layDown(wait, calls)
			l.slow.do(l.log)
			if !l.pickUp() {
				return
			}
		case wait > 0:
			l.rest(wait)
		}
	}
}

// run runs the workers until the context is done and they have come back from their callbacks.
func (l *Loop) run(ctx context.Context, workers int) {
	b := &l.baton
	b.vacancy <- struct{}{}
	b.lies.Store(1)
	b.alarm.set(0)
	l.running.Store(true)
	defer context.AfterFunc(ctx, func() {
		b.bed.wake()
		b.alarm.set(0)
	})()
	var all sync.WaitGroup
	for range workers {
		all.Go(func() { l.work(ctx) })
	}
	all.Wait()
}
