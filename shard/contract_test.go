package shard

import (
	"errors"
	"fmt"
	"testing"
	"time"

	logv1 "github.com/carillon-timers/carillon/proto/carillonlog/v1"
	"github.com/carillon-timers/carillon/raftfsm"
)

func atomicOf(parts ...*raftfsm.Command) *raftfsm.Command {
	return &raftfsm.Command{Kind: &logv1.Command_Atomic{Atomic: &logv1.Atomic{Commands: parts}}}
}

// An atomic batch is applied as a whole or not at all, and says which of its commands is refused; one with a hole in it never comes
// into the log.
func TestAtomic(t *testing.T) {
	t.Parallel()
	inBubble(t, 3, func(t *testing.T, c *cluster) {
		leader := c.leader()
		at := time.Now().Add(time.Hour)
		batch := func(ids ...string) *raftfsm.Command {
			var parts []*raftfsm.Command
			for _, id := range ids {
				parts = append(parts, with(schedule("{tag}"+id, at), func(s *logv1.Schedule) { s.RequestId = nil }))
			}
			return atomicOf(parts...)
		}
		if r := c.propose(batch("a", "b"))[0]; r.Code != raftfsm.OK || len(r.Items) != 2 {
			t.Errorf("a sound batch: %+v", r)
		}
		if r := c.propose(batch("c", "d", "b", "e"))[0]; !errors.Is(ErrOf(r), ErrAlreadyExists) || r.Answer != 2 {
			t.Errorf("a batch with a timer that exists: %+v", r)
		}
		for _, bad := range []*raftfsm.Command{
			atomicOf(completeOf(delivery{}.Delivery)), atomicOf(nil), atomicOf(atomicOf(schedule("x", at))),
			{Kind: &logv1.Command_Atomic{}}, {Kind: &logv1.Command_Pause{}}, {Kind: &logv1.Command_Redrive{}},
		} {
			results, err := leader.shard.Propose(t.Context(), []*raftfsm.Command{bad})
			if err != nil || results[0].Code != raftfsm.Invalid {
				t.Errorf("%v: %+v, %v", bad, results, err)
			}
		}
		page, err := leader.shard.List(t.Context(), raftfsm.ListQuery{Prefix: "{tag}"})
		if err != nil || len(page.Timers) != 2 {
			t.Errorf("%d timers, %v; want a and b", len(page.Timers), err)
		}
		if r := c.propose(atomicOf(cancelOf("{tag}a"), cancelOf("{tag}b")))[0]; r.Code != raftfsm.OK {
			t.Errorf("a batch of cancels: %+v", r)
		}
		if n := leader.shard.Status().Pending; n != 0 {
			t.Errorf("%d are left", n)
		}
		c.inStep()
	})
}

// Lists by filter, counts and forecasts are the leader's to answer.
func TestReads(t *testing.T) {
	t.Parallel()
	inBubble(t, 3, func(t *testing.T, c *cluster) {
		leader := c.leader()
		start := time.Now().Truncate(time.Second).Add(time.Minute)
		for i := range 10 {
			c.propose(with(schedule(fmt.Sprint(i), start.Add(time.Duration(i)*time.Second)), func(s *logv1.Schedule) {
				s.Labels = []*logv1.Pair{{Key: "parity", Value: fmt.Sprint(i % 2)}}
			}))
		}
		c.propose(pauseOf("7", false))
		odd := &logv1.Filter{Labels: []*logv1.Pair{{Key: "parity", Value: "1"}}, States: []uint32{uint32(raftfsm.Pending)}}
		page, err := leader.shard.List(t.Context(), raftfsm.ListQuery{Filter: odd})
		if err != nil || len(page.Timers) != 4 {
			t.Errorf("%d timers, %v", len(page.Timers), err)
		}
		if page, err = leader.shard.List(t.Context(), raftfsm.ListQuery{Filter: odd, Count: true}); err != nil || page.Count != 4 {
			t.Errorf("counted %d, %v", page.Count, err)
		}
		query := raftfsm.ForecastQuery{From: start.UnixMilli(), Step: 5000, Steps: 1, Rows: 10}
		rows, err := leader.shard.Forecast(t.Context(), query)
		if err != nil || len(rows) != 1 || rows[0].Before != 0 || rows[0].Counts[0] != 5 || rows[0].After != 4 || rows[0].Paused != 1 {
			t.Errorf("forecast %+v, %v", rows, err)
		}
		query.Steps = 0
		var invalid *InvalidError
		if _, err := leader.shard.Forecast(t.Context(), query); !errors.As(err, &invalid) || invalid.Field != "steps" {
			t.Errorf("a forecast of no steps: %v", err)
		}
		if _, err := leader.shard.ExtendLease(t.Context(), []raftfsm.Token{{}}, nil); !errors.As(err, &invalid) {
			t.Errorf("a token without a lease: %v", err)
		}
		for _, n := range c.nodes {
			var notLeader *NotLeaderError
			if _, err := n.shard.Forecast(t.Context(), query); n != leader && !errors.As(err, &notLeader) {
				t.Errorf("at a follower: %v", err)
			}
		}
		if r := c.propose(&raftfsm.Command{Kind: &logv1.Command_Reschedule{Reschedule: &logv1.Reschedule{Id: "7", Now: true}}})[0]; !errors.Is(ErrOf(r), ErrPaused) {
			t.Errorf("fire now of a paused timer: %v", ErrOf(r))
		}
		if r := c.propose(resumeOf("8"))[0]; !errors.Is(ErrOf(r), ErrNotPaused) {
			t.Errorf("resume of a pending timer: %v", ErrOf(r))
		}
		c.propose(cancelOf("8"))
		var finished *NotPendingError
		if r := c.propose(pauseOf("8", false))[0]; !errors.As(ErrOf(r), &finished) || finished.State != raftfsm.Cancelled {
			t.Errorf("pause of a cancelled timer: %v", ErrOf(r))
		}
	})
}
