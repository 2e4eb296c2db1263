package main

import (
	"context"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/carillon-timers/carillon/client"
	"github.com/carillon-timers/carillon/jepsen-lite/local"
)

// Special schedules the timers that are not plain, beside the load, at a steady rate.
type Special struct {
	Client  *client.Client
	History *History
	Random  *rand.Rand
	// Rate is timers a second.
	Rate int
	// redriven is true from when dead letters were redriven on: then doomed timers are acked.
	redriven atomic.Bool
	// shots counts the calls of Aim. Touched by the nemesis alone.
	shots int
}

const (
	repeatEvery  = 400 * time.Millisecond
	repeatCount  = 20
	specialRetry = 100 * time.Millisecond
)

// Load schedules until ctx ends and returns how many.
func (s *Special) Load(ctx context.Context) int {
	var calls sync.WaitGroup
	defer calls.Wait()
	sorts := []Sort{Each, Counted, Delayed, Doomed, Doomed, Once, Once, Once}
	tick := time.NewTicker(time.Second / time.Duration(s.Rate))
	defer tick.Stop()
	for i := 0; ; i++ {
		select {
		case <-tick.C:
		case <-ctx.Done():
			return i
		}
		sort, id := sorts[i%len(sorts)], fmt.Sprintf("%s%05d", sorts[i%len(sorts)], i)
		due := time.Now().Add(500*time.Millisecond + time.Duration(s.Random.Int64N(int64(2*time.Second)))).Truncate(time.Millisecond)
		calls.Go(func() { s.schedule(sort, id, due) })
	}
}

// loadAny is Load, if there is anything to do.
func (s *Special) loadAny(ctx context.Context) int {
	if s == nil {
		return 0
	}
	return s.Load(ctx)
}

func (s *Special) schedule(sort Sort, id string, due time.Time) {
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	e := Event{Kind: Schedule, ID: id, Sort: sort, Start: time.Now().UnixNano(), Due: due.UnixMilli()}
	t := client.Timer{
		ID: id, Due: due, Queue: queue, Payload: []byte(id),
		Retry: client.RetryPolicy{Lease: 2 * time.Second, InitialBackoff: specialRetry, MaxBackoff: time.Second},
	}
	switch sort {
	case Each:
		end := due.Add((repeatCount - 1) * repeatEvery)
		e.Every, e.Last = repeatEvery.Milliseconds(), end.UnixMilli()
		t.Repeat = client.Repeat{
			Every: repeatEvery, End: end, Overlap: client.OverlapAllow, Misfire: client.MisfireAll, MaxCatchUp: 1000,
		}
	case Counted:
		e.Every, e.Count = repeatEvery.Milliseconds(), repeatCount
		t.Repeat = client.Repeat{Every: repeatEvery, MaxCount: repeatCount}
	case Delayed:
		e.Every, e.Count = repeatEvery.Milliseconds(), repeatCount
		t.Repeat = client.Repeat{Every: repeatEvery, MaxCount: repeatCount, FixedDelay: true}
	case Doomed:
		t.Retry.MaxAttempts = maxAttempts
	case Once:
		t.AtMostOnce = true
	}
	_, err := s.Client.Schedule(ctx, t)
	e.End = time.Now().UnixNano()
	e.Outcome, e.Error = outcomeOf(err)
	s.History.Add(e)
}

// doomed says that a delivery is to be nacked: of a doomed timer, until it was redriven.
func (s *Special) doomed(id string) bool {
	return s != nil && strings.HasPrefix(id, string(Doomed)) && !s.redriven.Load()
}

// aimed is how many timers Aim schedules, aimedWithin how far from its instant they fall due at most.
const (
	aimed       = 200
	aimedWithin = 15 * time.Millisecond
)

// Aim schedules timers that are at most once around an instant at which a leader is to be hit, and waits until they are accepted.
// Between their hand-out and what is committed lie a few milliseconds at most, which chance alone would not hit.
func (s *Special) Aim(at time.Time) {
	var calls sync.WaitGroup
	defer calls.Wait()
	s.shots++
	for i := range aimed {
		due := at.Add(time.Duration(i)*2*aimedWithin/aimed - aimedWithin).Truncate(time.Millisecond)
		calls.Go(func() { s.schedule(Once, fmt.Sprintf("%saimed%02d-%03d", Once, s.shots, i), due) })
	}
}

// ReadLetters notes all dead letters, and makes them timers again if it is told to.
func (s *Special) ReadLetters(ctx context.Context, redrive bool) error {
	for l, err := range s.Client.DeadLetters(ctx, client.DeadQuery{}) {
		if err != nil {
			return fmt.Errorf("read the dead letters: %w", err)
		}
		now := time.Now().UnixNano()
		s.History.Add(Event{
			Kind: Letter, ID: l.Timer.ID, Start: now, End: now, Outcome: OK, Due: l.Timer.Due.UnixMilli(), Attempt: l.Attempts,
			Answer: l.Reason.String(), Error: l.LastError,
		})
		if !redrive {
			continue
		}
		s.redriven.Store(true)
		if _, err := s.Client.Redrive(ctx, client.Letters{Keys: []string{l.Key}}); err != nil {
			return fmt.Errorf("redrive %s: %w", l.Timer.ID, err)
		}
		s.History.Add(Event{Kind: Redrive, ID: l.Timer.ID, Start: now, End: time.Now().UnixNano(), Outcome: OK})
	}
	return nil
}

// settled waits until nothing is pending, for a minute at most.
func settled(ctx context.Context, c *client.Client, log func(string, ...any)) {
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	for {
		page, err := c.ListPage(ctx, client.ListQuery{Limit: 10})
		if err == nil && len(page.Timers) == 0 {
			log("nothing is pending any more")
			return
		}
		if waited := local.Pause(ctx, 200*time.Millisecond); waited != nil {
			log("still pending after a minute: %d timers or more (%v)", len(page.Timers), err)
			return // the judge says which were lost
		}
	}
}
