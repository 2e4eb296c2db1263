package shard

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"testing"
	"time"

	logv1 "github.com/carillon-timers/carillon/proto/carillonlog/v1"
	"github.com/carillon-timers/carillon/raftfsm"
	"github.com/carillon-timers/carillon/shard/executor"
)

// A leader that is deposed in the middle of a hand-over kept its mark "a transfer is under way"; elected again much later, it
// refused every write (hashicorp/raft #696). Whoever is interrupted so must take writes when it leads again.
func TestInterruptedTransferLeavesNoMark(t *testing.T) {
	t.Parallel()
	inBubble(t, 3, func(t *testing.T, c *cluster) {
		for round := range 20 {
			old := c.leader()
			to := c.nodes[0]
			if to == old {
				to = c.nodes[1]
			}
			c.cut(to) // Raft tries to bring it up to date until its time is over
			given := make(chan error, 1)
			go func() { given <- old.shard.Transfer(context.Background(), to.id) }()
			time.Sleep(time.Duration(round*20) * time.Millisecond)
			c.cut(old)
			time.Sleep(3 * time.Second)
			c.heal()
			if err := <-given; err == nil && old.shard.Status().Leading {
				t.Fatalf("round %d: handed over, and it leads", round)
			}
			for i := 0; c.leader() != old; i++ {
				if err := c.leader().shard.Transfer(t.Context(), old.id); err != nil && i > 100 {
					t.Fatalf("round %d: it cannot lead again: %v", round, err)
				}
				time.Sleep(100 * time.Millisecond)
			}
			start := time.Now()
			id := fmt.Sprint(round)
			_, err := old.shard.Propose(t.Context(), []*raftfsm.Command{after(id, time.Hour)})
			if err != nil && !errors.Is(err, ErrUnknown) {
				t.Errorf("round %d: the write at the old leader: %v", round, err)
			}
			if _, _, err := c.try(10*time.Second, after(id, time.Hour)); err != nil || time.Since(start) > 10*time.Second {
				t.Errorf("round %d: no write within %v: %v", round, time.Since(start), err)
			}
		}
		c.inStep()
	})
}

// A repeat whose consumer is slower than its period parked a goroutine for each run that it missed (go-co-op/gocron #242, #439).
// Not parallel: it counts the goroutines of the process.
func TestSlowConsumerOfARepeatParksNothing(t *testing.T) {
	inBubble(t, 1, func(t *testing.T, c *cluster) {
		c.sink.answer(func(d executor.Delivery) {
			time.Sleep(5 * time.Second)
			c.propose(completeOf(d))
		})
		s := c.leader().shard
		cmd := repeat("r", &logv1.Repeat{EveryMs: 100})
		cmd.GetSchedule().Retry.LeaseMs = 60_000
		c.propose(cmd)
		least, most := 1<<30, 0
		for range 10 * 60 {
			time.Sleep(time.Second)
			n := runtime.NumGoroutine()
			least, most = min(least, n), max(most, n)
			if got := s.Status(); got.Pending != 1 || got.Executor.Out > 1 || got.Executor.Ready > 1 {
				t.Fatalf("%d timers, %d out, %d ready", got.Pending, got.Executor.Out, got.Executor.Ready)
			}
		}
		if most-least >= 20 {
			t.Errorf("%d to %d goroutines", least, most)
		}
		if n := len(c.sink.all()); n < 110 || n > 120 {
			t.Errorf("%d deliveries in 10 minutes to a consumer that takes 5 s", n)
		}
		c.propose(cancelOf("r"))
		c.sink.quiet()
	})
}

// Timers that were due at once were taken from a count that they had not been added to (apache/rocketmq #7381), and counts of
// children went below 0 after an election (hashicorp/nomad #4731). Ours stay within what there is, on each replica.
func TestFiguresStayWithinBounds(t *testing.T) {
	t.Parallel()
	inBubble(t, 3, func(t *testing.T, c *cluster) {
		c.sink.answer(func(d executor.Delivery) { c.propose(completeOf(d)) })
		const total, each = 3000, 100
		look := func() (leading int) {
			for _, n := range c.nodes {
				s := n.shard.Status()
				for what, v := range map[string]int{
					"pending": s.Pending, "overdue": s.Overdue, "ready": s.Executor.Ready, "out": s.Executor.Out,
					"finished": s.State.Finished, "payloads": int(s.State.PayloadBytes), "queued": s.Proposer.Queued, "in flight": s.Proposer.InFlight,
				} {
					if v < 0 || v > 1<<20 {
						t.Errorf("%s: %s is %d", n.id, what, v)
					}
				}
				if s.Firing {
					leading++
				}
			}
			return leading
		}
		for batch := range total / each {
			var cmds []*raftfsm.Command
			for i := range each {
				cmds = append(cmds, after(fmt.Sprintf("%d-%d", batch, i), time.Duration(i%6)*time.Millisecond))
			}
			c.propose(cmds...)
			look()
			if batch%3 == 0 {
				_ = c.leader().shard.Transfer(t.Context(), "")
			}
			time.Sleep(7 * time.Millisecond)
			if n := look(); n > 1 {
				t.Errorf("%d replicas fire", n)
			}
		}
		for i := 0; c.leader().shard.Status().Pending > 0 && i < 600; i++ {
			time.Sleep(100 * time.Millisecond)
			look()
		}
		c.sink.quiet()
		c.inStep()
		for _, n := range c.nodes {
			if s := n.shard.Status(); s.Pending != 0 || s.State.PayloadBytes != 0 {
				t.Errorf("%s: %d timers and %d bytes are left", n.id, s.Pending, s.State.PayloadBytes)
			}
		}
		if s := c.leader().shard.Status(); s.Overdue != 0 || s.Executor.Ready != 0 || s.Executor.Out != 0 {
			t.Errorf("the leader has %d overdue, %d ready, %d out", s.Overdue, s.Executor.Ready, s.Executor.Out)
		}
	})
}
