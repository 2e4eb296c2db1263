package main

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"
)

// loads are the callers and batches whose schedules a second are measured.
var loads = []struct {
	name           string
	callers, batch int
}{
	{"schedules/s, one caller", 1, 1},
	{"schedules/s, 64 callers", 64, 1},
	{"schedules/s, 512 callers", 512, 1},
	{"schedules/s, 8 callers with batches of 500", 8, 500},
}

const (
	// farAhead is when the timers of the rates are due: they stay pending to the end of the run.
	farAhead = 24 * time.Hour
	// fireAhead is how long before its due time a timer of the lateness is scheduled.
	fireAhead = 3 * time.Second
	// fireCallers schedule at once the timers of the lateness, fireBatch in a call.
	fireCallers, fireBatch = 64, 10
	// fireWait is how long after the last due time deliveries are waited for.
	fireWait = 20 * time.Second
	// failoverAhead is how long the timers of a failover have to be scheduled, failoverWait how long they are waited for.
	failoverAhead, failoverWait = 8 * time.Second, 45 * time.Second
	// callLimit bounds a call.
	callLimit = 60 * time.Second
	// payloadBytes is the size of a payload.
	payloadBytes = 100
)

// driver puts the loads on a system.
type driver struct {
	system system
	began  time.Time
}

// fires is what became of the timers that fell due; times are in milliseconds.
type fires struct {
	P50   float64 `json:"p50_ms"`
	P99   float64 `json:"p99_ms"`
	Max   float64 `json:"max_ms"`
	Count int     `json:"count"`
	Early int     `json:"early"`
	Lost  int     `json:"lost"`
	Twice int     `json:"twice"`
}

// name makes the IDs of a load: 24 bytes each, and none twice in all runs.
func name() func(i int64) string {
	prefix := "cmp-" + strings.ToLower(rand.Text()[:10]) + "-"
	return func(i int64) string { return fmt.Sprintf("%s%09d", prefix, i) }
}

// callers runs do with the numbers [first, first+n) until the end or the count (0: none); the first error ends it.
func callers(ctx context.Context, count, batch int, most int64, end time.Time, do func(ctx context.Context, first, n int64) error) (done int64, err error) {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	var next, finished atomic.Int64
	var all sync.WaitGroup
	for range count {
		all.Go(func() {
			for ctx.Err() == nil && time.Now().Before(end) {
				n := int64(batch)
				first := next.Add(n) - n
				if most > 0 {
					n = min(n, most-first)
				}
				if n <= 0 {
					return
				}
				call, stop := context.WithTimeout(ctx, callLimit)
				err := do(call, first, n)
				stop()
				if err != nil {
					cancel(err)
					return
				}
				finished.Add(n)
			}
		})
	}
	all.Wait()
	return finished.Load(), context.Cause(ctx)
}

// rate is how many timers a second were accepted.
func (d *driver) rate(ctx context.Context, l struct {
	name           string
	callers, batch int
}, limit time.Duration) (float64, error) {
	id, payload := name(), make([]byte, payloadBytes)
	began := time.Now()
	due := began.Add(farAhead)
	done, err := callers(ctx, l.callers, l.batch, 0, began.Add(limit), func(ctx context.Context, first, n int64) error {
		timers := make([]timer, n)
		for k := range timers {
			i := first + int64(k)
			timers[k] = timer{id(i), due.Add(time.Duration(i) * time.Millisecond), payload}
		}
		return d.system.Schedule(ctx, timers)
	})
	return float64(done) / time.Since(began).Seconds(), err
}

// arrivals are the first deliveries.
type arrivals struct {
	mu    sync.Mutex
	at    map[string]time.Time // guarded by mu
	twice int                  // guarded by mu
	want  int
	all   chan struct{} // closed when as many have come as are wanted
}

func (a *arrivals) handle(id string) {
	now := time.Now()
	a.mu.Lock()
	defer a.mu.Unlock()
	if _, ok := a.at[id]; ok {
		a.twice++
		return
	}
	a.at[id] = now
	if len(a.at) == a.want {
		close(a.all)
	}
}

// fire lets timers fall due at a rate and measures how late the handler gets them.
func (d *driver) fire(ctx context.Context, rate float64, length time.Duration) (fires, error) {
	id, payload, count := name(), make([]byte, payloadBytes), int64(rate*length.Seconds())
	a := &arrivals{at: make(map[string]time.Time), want: int(count), all: make(chan struct{})}
	working, stop := context.WithCancel(ctx)
	var worker sync.WaitGroup
	var worked error
	worker.Go(func() { worked = d.system.Work(working, a.handle) })

	base := time.Now().Add(time.Second) // the worker connects meanwhile
	due := func(i int64) time.Time {    // whole milliseconds: nothing finer is promised by any of the systems
		return base.Add(fireAhead + time.Duration(float64(i)/rate*1e9)).Truncate(time.Millisecond)
	}
	_, err := callers(ctx, fireCallers, fireBatch, count, base.Add(2*length+time.Minute), func(ctx context.Context, first, n int64) error {
		if err := pause(ctx, time.Until(due(first).Add(-fireAhead))); err != nil {
			return err
		}
		timers := make([]timer, n)
		for k := range timers {
			timers[k] = timer{id(first + int64(k)), due(first + int64(k)), payload}
		}
		return d.system.Schedule(ctx, timers)
	})
	if err == nil {
		err = a.wait(ctx, time.Until(due(count))+fireWait)
	}
	stop()
	worker.Wait()
	if err := errors.Join(err, worked); err != nil {
		return fires{}, err
	}
	return a.sum(count, id, due), nil
}

// killer is a system that goes on by itself when a node dies.
type killer interface {
	// KillLeader kills the node whose loss hurts most with SIGKILL; it stays away.
	KillLeader(ctx context.Context) error
}

// failover has timers fall due at a rate, all scheduled before, and kills a node after a third of the time. It is the last
// thing that is done to a system.
func (d *driver) failover(ctx context.Context, k killer, rate float64, length time.Duration) (fires, error) {
	id, payload, count := name(), make([]byte, payloadBytes), int64(rate*length.Seconds())
	a := &arrivals{at: make(map[string]time.Time), want: int(count), all: make(chan struct{})}
	base := time.Now().Add(failoverAhead)
	due := func(i int64) time.Time {
		return base.Add(time.Duration(float64(i) / rate * 1e9)).Truncate(time.Millisecond)
	}
	if _, err := callers(ctx, 8, 500, count, base, func(ctx context.Context, first, n int64) error {
		timers := make([]timer, n)
		for k := range timers {
			timers[k] = timer{id(first + int64(k)), due(first + int64(k)), payload}
		}
		return d.system.Schedule(ctx, timers)
	}); err != nil {
		return fires{}, err
	}
	working, stop := context.WithCancel(ctx)
	var worker sync.WaitGroup
	var worked error
	worker.Go(func() { worked = d.system.Work(working, a.handle) })
	err := pause(ctx, time.Until(base)+length/3)
	if err == nil {
		err = k.KillLeader(ctx)
	}
	if err == nil {
		err = a.wait(ctx, time.Until(due(count))+failoverWait)
	}
	stop()
	worker.Wait()
	if err := errors.Join(err, worked); err != nil {
		return fires{}, err
	}
	return a.sum(count, id, due), nil
}

// wait waits for the last delivery, for at most the limit.
func (a *arrivals) wait(ctx context.Context, limit time.Duration) error {
	timer := time.NewTimer(limit)
	defer timer.Stop()
	select {
	case <-a.all:
	case <-timer.C:
	case <-ctx.Done():
		return ctx.Err()
	}
	return nil
}

// sum is called when the worker has ended.
func (a *arrivals) sum(count int64, id func(int64) string, due func(int64) time.Time) fires {
	a.mu.Lock()
	defer a.mu.Unlock()
	f := fires{Twice: a.twice}
	var late []time.Duration
	for i := range count {
		at, ok := a.at[id(i)]
		if !ok {
			f.Lost++
			continue
		}
		d := at.Sub(due(i))
		if d < 0 {
			f.Early++
		}
		late = append(late, d)
	}
	slices.Sort(late)
	f.Count, f.P50, f.P99, f.Max = len(late), quantile(late, 0.5), quantile(late, 0.99), quantile(late, 1)
	return f
}

// quantile of sorted durations, in milliseconds: the smallest that the share q of all do not exceed; 0 if there are none.
func quantile(sorted []time.Duration, q float64) float64 {
	if len(sorted) == 0 {
		return 0
	}
	rank := int(q * float64(len(sorted)))
	if float64(rank) < q*float64(len(sorted)) {
		rank++
	}
	return float64(sorted[max(rank, 1)-1].Microseconds()) / 1000
}

// pause waits, or returns the context's error.
func pause(ctx context.Context, d time.Duration) error {
	if d <= 0 {
		return ctx.Err()
	}
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}
