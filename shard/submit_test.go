package shard

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/carillon-timers/carillon/raftfsm"
)

// A call that nobody waits for ends once: with its results, or, abandoned, with the reason if nothing of it was sent and with
// ErrUnknown if something was.
func TestSubmit(t *testing.T) {
	t.Parallel()
	inBubble(t, 3, func(t *testing.T, c *cluster) {
		leader := c.leader()
		ends := make(chan error, 10)
		submit := func(s *Shard, id string) (abandon func(error)) {
			abandon, err := s.Submit([]*raftfsm.Command{after(id, time.Hour)}, func(results []raftfsm.Result, err error) {
				if err == nil && (len(results) != 1 || results[0].Code != raftfsm.OK) {
					err = fmt.Errorf("results %+v", results)
				}
				ends <- err
			})
			if err != nil {
				t.Fatal(err)
			}
			return abandon
		}
		abandon := submit(leader.shard, "a")
		if err := <-ends; err != nil {
			t.Fatal(err)
		}
		abandon(context.Canceled) // it has ended: nothing comes of it

		release := leader.log.stall()
		why := errors.New("nobody wants it any more")
		var abandons []func(error)
		for i := range 3 { // the window holds two
			abandons = append(abandons, submit(leader.shard, fmt.Sprint(i)))
			time.Sleep(time.Millisecond)
		}
		for i, want := range []error{ErrUnknown, ErrUnknown, why} {
			abandons[i](why)
			if err := <-ends; !errors.Is(err, want) {
				t.Errorf("call %d: got %v, want %v", i, err, want)
			}
		}
		release()
		time.Sleep(time.Second)
		if len(ends) > 0 {
			t.Errorf("a call has ended twice: %v", <-ends)
		}
		for _, n := range c.nodes {
			if n == leader {
				continue
			}
			var notLeader *NotLeaderError
			if _, err := n.shard.Submit([]*raftfsm.Command{after("b", time.Hour)}, func([]raftfsm.Result, error) {
				t.Error("a follower has refused a call and ended it too")
			}); !errors.As(err, &notLeader) {
				t.Errorf("a follower: %v", err)
			}
		}
		var invalid *InvalidError
		if _, err := leader.shard.Submit(nil, nil); !errors.As(err, &invalid) {
			t.Errorf("without a command: %v", err)
		}
	})
}

// Each call ends when it is as old as ApplyTimeout, by itself: those that were sent are unknown, those that wait were not applied. One
// timer serves all calls of a shard.
func TestApplyTimeoutOfMany(t *testing.T) {
	t.Parallel()
	const limit = 3 * time.Second
	inBubble(t, 1, func(t *testing.T, c *cluster) {
		leader := c.leader()
		for round := range 2 { // the timer has run out, and serves again
			release := leader.log.stall()
			ends := make(chan error)
			for i := range 5 {
				go func() {
					start := time.Now()
					_, err := leader.shard.Propose(context.Background(), []*raftfsm.Command{after(fmt.Sprint(round, i), time.Hour)})
					if took := time.Since(start); took != limit {
						err = fmt.Errorf("ended after %v: %w", took, err)
					}
					ends <- err
				}()
				time.Sleep(700 * time.Millisecond)
			}
			for i := range 5 {
				want := ErrUnknown // the window holds two
				if i >= 2 {
					want = ErrUnavailable
				}
				if err := <-ends; err == nil || !errors.Is(err, want) || err.Error()[:5] == "ended" {
					t.Errorf("call %d: got %v, want %v", i, err, want)
				}
			}
			if s := leader.shard.Status().Proposer; s.Queued != 0 || s.QueuedBytes != 0 {
				t.Errorf("got %+v", s)
			}
			release()
			time.Sleep(time.Minute)
		}
		if r := c.propose(after("later", time.Hour))[0]; r.Code != raftfsm.OK {
			t.Errorf("got %+v", r)
		}
	}, func(c *cluster) { c.config = func(c *Config) { c.ApplyTimeout, c.WriteTimeout = limit, time.Hour } })
}
