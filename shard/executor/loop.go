package executor

import (
	"context"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"sync/atomic"
	"time"
)

// Loop is one timer loop: it owns the wheels of many shards, and a pool of workers that share a baton. The one that holds
// the baton waits for the next deadline, takes what is due, lays the baton down and does the slow part of its turn: it
// tells Deliverers. One that blocks keeps its worker, not the baton; when all workers are kept nothing fires.
type Loop struct {
	o     LoopOptions // set before sharing
	log   *slog.Logger
	clock *clock
	baton baton
	slow  slowPart
	// running says that the baton's alarms are there.
	running atomic.Bool
	stats   loopCounters
	// soonest is the tick before which the holder must look at what was pushed since its last turn began; looksAt is when it
	// looks again while it sleeps, never while it is awake: then all that hurries wakes it.
	soonest, looksAt atomic.Int64

	mu sync.Mutex
	// execs is replaced, never changed; guarded by mu for writing.
	execs atomic.Pointer[[]*Exec]

	// at is the shard that the next turn begins with, turns their number. Touched by the baton holder alone.
	at    int
	turns uint64
}

type loopCounters struct {
	turns, sleeps, panics atomic.Uint64
}

// LoopStats is what a loop counted.
type LoopStats struct {
	// Turns counts turns of the baton holder, Sleeps how often it went to sleep, Passes how often the baton went to another
	// worker.
	Turns, Sleeps, Passes uint64
	// Panics counts callbacks that panicked.
	Panics uint64
	// ClockSteps counts how often the wall clock was seen to run back.
	ClockSteps uint64
}

// NewLoop makes a loop without shards.
func NewLoop(o LoopOptions) *Loop {
	o = o.withDefaults()
	l := &Loop{o: o, log: o.Logger, clock: newClock(o.Now)}
	l.baton.vacancy = make(chan struct{}, 1)
	l.execs.Store(new([]*Exec))
	l.soonest.Store(never)
	l.looksAt.Store(never)
	return l
}

// Run runs the workers until the context is done and they have come back from their callbacks. It is called once. The
// error says that the system does not lend what it takes to sleep.
func (l *Loop) Run(ctx context.Context) error {
	for _, a := range []struct {
		at   *alarm
		make func() (alarm, error)
	}{
		{&l.baton.bed.alarm, l.o.Sleeper.newSharp},
		{&l.baton.alarm, l.o.Sleeper.newAlarm},
	} {
		var err error
		if *a.at, err = a.make(); err != nil {
			return fmt.Errorf("run timer loop: %w", err)
		}
		defer (*a.at).close()
	}
	l.run(ctx, l.o.Workers)
	return nil
}

// Add gives a shard to the loop. It follows and fires nothing until Lead.
func (l *Loop) Add(o Options) *Exec {
	e := newExec(l, o, l.clock.read().millis)
	l.mu.Lock()
	defer l.mu.Unlock()
	execs := append(slices.Clone(*l.execs.Load()), e)
	l.execs.Store(&execs)
	return e
}

// Remove takes a shard away. When it returns the shard hands nothing out, its Table is not asked and its ops are not
// drained any more; a callback that is under way may still end later.
func (l *Loop) Remove(e *Exec) {
	e.Follow()
	e.hand.mu.Lock()
	e.hand.removed = true
	e.hand.mu.Unlock()
	l.mu.Lock()
	defer l.mu.Unlock()
	execs := slices.DeleteFunc(slices.Clone(*l.execs.Load()), func(x *Exec) bool { return x == e })
	l.execs.Store(&execs)
}

// Stats tells what the loop counted.
func (l *Loop) Stats() LoopStats {
	return LoopStats{
		Turns: l.stats.turns.Load(), Sleeps: l.stats.sleeps.Load(), Passes: l.baton.passes.Load(), Panics: l.stats.panics.Load(),
		ClockSteps: l.clock.steps.Load(),
	}
}

// turn looks at every shard that has something to do, each once and in bounded slices, and returns how long nothing has.
// A turn that has used its budget stops; the next one goes on with the shard after.
func (l *Loop) turn(w *work) time.Duration {
	now, ranBack := l.clock.turn()
	if ranBack > 0 {
		l.log.Warn("executor: the clock ran back; nothing falls due until it has come to where it was", "by", ranBack)
	}
	l.baton.kicked.Store(0)
	l.soonest.Store(never)
	l.turns++
	w.begin(l.turns)
	l.stats.turns.Store(l.turns)
	execs := *l.execs.Load()
	next, wait := int64(never), l.clock.sleepMax
	for i := range execs {
		if w.spent() {
			l.at += i
			return 0
		}
		e := execs[(l.at+i)%len(execs)]
		retry, retries := e.retryWait(now)
		if e.dirty.Load() || e.hand.busy || e.hand.next <= now.millis || retries && retry == 0 {
			e.step(now, w)
			retry, retries = e.retryWait(now)
		}
		if e.hand.busy {
			wait = 0
		}
		if retries {
			wait = min(wait, max(retry, time.Millisecond))
		}
		next = min(next, e.hand.next)
	}
	l.at++
	return min(wait, l.clock.until(next))
}
