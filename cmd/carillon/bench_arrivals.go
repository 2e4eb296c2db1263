package main

import (
	"context"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/carillon-timers/carillon/client"
)

// arrivals keeps what became of each timer of a run that fires. Its handler is called by the worker's goroutines and
// takes no lock.
type arrivals struct {
	number   func(id string) (int64, bool)
	progress *progress

	accepted []atomic.Int64 // by the timer's number: when its call returned, in nanoseconds since 1970; 0: not accepted
	due      []atomic.Int64 // its due time, likewise, as the first delivery said
	handled  []atomic.Int64 // when its first delivery began to be handled, likewise; 0: not delivered

	delivered, early, duplicates atomic.Int64
	expected                     atomic.Int64 // deliveries at which all is closed; beyond reach while more may be scheduled
	all                          chan struct{}
	once                         sync.Once // closes all
}

func newArrivals(count int64, number func(string) (int64, bool), p *progress) *arrivals {
	a := &arrivals{
		number: number, progress: p, accepted: make([]atomic.Int64, count), due: make([]atomic.Int64, count),
		handled: make([]atomic.Int64, count), all: make(chan struct{}),
	}
	a.expected.Store(benchMax + 1)
	return a
}

// handle is the worker's handler.
func (a *arrivals) handle(_ context.Context, d client.Delivery) error {
	now := time.Now()
	i, ok := a.number(d.ID)
	if !ok || i < 0 || i >= int64(len(a.handled)) {
		return nil // not of this run: its queue has a random name, so nobody misses it
	}
	if now.Before(d.Due) || d.HandedOut.Before(d.Due) {
		a.early.Add(1)
	}
	if !a.handled[i].CompareAndSwap(0, now.UnixNano()) {
		a.duplicates.Add(1)
		return nil
	}
	a.due[i].Store(d.Due.UnixNano())
	a.progress.done.Add(1)
	if a.delivered.Add(1) >= a.expected.Load() {
		a.end()
	}
	return nil
}

// end says that no more deliveries come.
func (a *arrivals) end() { a.once.Do(func() { close(a.all) }) }

// accept notes that the timers [first, first+n) were accepted by now.
func (a *arrivals) accept(first, n int64) {
	now := time.Now().UnixNano()
	for i := first; i < first+n; i++ {
		a.accepted[i].Store(now)
	}
}

// expect says that no more are scheduled: n were accepted or may have been.
func (a *arrivals) expect(n int64) {
	a.expected.Store(n)
	if a.delivered.Load() >= n {
		a.end()
	}
}

// wait waits until all that is expected has come, for at most the limit.
func (a *arrivals) wait(ctx context.Context, limit time.Duration) {
	timer := time.NewTimer(limit)
	defer timer.Stop()
	select {
	case <-a.all:
	case <-timer.C:
	case <-ctx.Done():
	}
}

// has tells whether the timer was delivered.
func (a *arrivals) has(i int64) bool { return a.handled[i].Load() != 0 }

// sum sums up when the worker has ended. The time of the measure is
// that from the first due time, or from began if that is set, to the last delivery.
func (a *arrivals) sum(name string, began time.Time) (measure, *fires) {
	f := &fires{
		Delivered: a.delivered.Load(), Early: a.early.Load(), Duplicates: a.duplicates.Load(), Unacked: -1,
	}
	var (
		late            histogram
		times           []int64
		worst, worstDue int64
		firstDue        int64
	)
	for i := range a.handled {
		accepted, handled, due := a.accepted[i].Load(), a.handled[i].Load(), a.due[i].Load()
		if accepted != 0 {
			f.Scheduled++
		}
		if handled == 0 {
			if accepted != 0 {
				f.Lost++
			}
			continue
		}
		times = append(times, handled)
		if accepted == 0 || accepted > due {
			f.Behind++
			continue
		}
		if firstDue == 0 || due < firstDue {
			firstDue = due
		}
		late.add(time.Duration(handled - due))
		if handled-due > worst {
			worst, worstDue = handled-due, due
		}
	}
	f.WorstDue = stampOf(worstDue)
	slices.Sort(times)
	gap, at := largestGap(times)
	f.Gap, f.GapAt = ms(gap), stampOf(at)
	elapsed := time.Duration(0)
	if !began.IsZero() {
		firstDue = began.UnixNano()
	}
	if len(times) > 0 && firstDue != 0 {
		elapsed = time.Duration(times[len(times)-1] - firstDue)
	}
	return newMeasure(name, uint64(len(times)), 0, elapsed, &late), f
}

// largestGap is the longest time between neighbours of the sorted times, and when it began.
func largestGap(times []int64) (gap time.Duration, at int64) {
	for i := 1; i < len(times); i++ {
		if d := time.Duration(times[i] - times[i-1]); d > gap {
			gap, at = d, times[i-1]
		}
	}
	return gap, at
}
