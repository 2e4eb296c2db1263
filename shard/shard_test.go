package shard

import (
	"context"
	"errors"
	"fmt"
	"reflect"
	"sync/atomic"
	"testing"
	"time"

	"github.com/carillon-timers/carillon/raftfsm"
	"github.com/carillon-timers/carillon/shard/executor"
)

// One timer's life: scheduled, kept by all, fired by the leader on its millisecond, acked, gone, and its request answered
// the same afterwards.
func TestOneTimersLife(t *testing.T) {
	t.Parallel()
	inBubble(t, 3, func(t *testing.T, c *cluster) {
		acked := make(chan raftfsm.Result, 10)
		c.sink.answer(func(d executor.Delivery) { acked <- c.propose(completeOf(d))[0] })
		leader := c.leader()
		due := time.Now().Add(time.Minute)
		first := c.propose(schedule("order-42", due))[0]
		if first.Code != raftfsm.OK || first.Due != due.UnixMilli() {
			t.Fatalf("schedule: %+v", first)
		}
		status, err := leader.shard.Get(t.Context(), "default", "order-42")
		if err != nil || status.State != raftfsm.Pending || string(status.Record.Payload) != "payload of order-42" {
			t.Fatalf("get: %+v, %v", status, err)
		}
		if r := <-acked; r.Code != raftfsm.OK {
			t.Fatalf("ack: %+v", r)
		}
		got := c.sink.all()
		if late := got[0].at.Sub(due); len(got) != 1 || late < 0 || late > 2*time.Millisecond {
			t.Fatalf("got %d deliveries, the first %v after it was due", len(got), late)
		}
		if again := c.propose(schedule("order-42", due))[0]; !reflect.DeepEqual(again, first) {
			t.Errorf("the same request: got %+v, want %+v", again, first)
		}
		if status, err = leader.shard.Get(t.Context(), "", "order-42"); err != nil || status.State != raftfsm.Fired {
			t.Errorf("get after the ack: %+v, %v", status, err)
		}
		if _, err := leader.shard.Get(t.Context(), "", "nobody"); !errors.Is(err, ErrNotFound) {
			t.Errorf("get of an unknown timer: %v", err)
		}
		if r := c.propose(cancelOf("order-42"))[0]; r.Answer != raftfsm.AnswerFired {
			t.Errorf("cancel after the ack: %+v", r)
		}
		c.inStep()
	})
}

// What was scheduled in another order comes out in the order of (due, acceptance).
func TestOrder(t *testing.T) {
	t.Parallel()
	inBubble(t, 3, func(t *testing.T, c *cluster) {
		c.leader()
		for _, seconds := range []int{9, 3, 5, 1, 25, 12} {
			c.propose(after(fmt.Sprintf("%02d", seconds), time.Duration(seconds)*time.Second))
		}
		time.Sleep(26 * time.Second)
		var got []string
		for _, d := range c.sink.all() {
			if d.Record.Attempt == 0 {
				got = append(got, d.Record.ID)
			}
		}
		if fmt.Sprint(got) != "[01 03 05 09 12 25]" {
			t.Errorf("got %v", got)
		}
	})
}

// A timer that nobody acks comes again when its lease has lapsed, with the next attempt.
func TestLapsedLease(t *testing.T) {
	t.Parallel()
	inBubble(t, 3, func(t *testing.T, c *cluster) {
		c.leader()
		c.propose(after("a", time.Second))
		time.Sleep(12 * time.Second)
		got := c.sink.all()
		if len(got) != 3 || got[0].Token.Attempt != 0 || got[1].Token.Attempt != 1 || got[2].Token.Attempt != 2 {
			t.Fatalf("got %d deliveries: %+v", len(got), got)
		}
		if wait := got[1].at.Sub(got[0].at); wait < 5*time.Second || wait > 5300*time.Millisecond {
			t.Errorf("the second came after %v, want the lease of 5 s and a back-off of about 100 ms", wait)
		}
		if r := c.propose(completeOf(got[0].Delivery))[0]; r.Code != raftfsm.StaleToken {
			t.Errorf("an ack with the first token: %+v", r)
		}
	})
}

// A batch with a bad item gets a result for each.
func TestBatchResults(t *testing.T) {
	t.Parallel()
	inBubble(t, 3, func(t *testing.T, c *cluster) {
		leader := c.leader()
		unknown := &raftfsm.Command{}
		bad := schedule("b", time.Now().Add(time.Hour))
		bad.GetSchedule().Queue = ""
		results, err := leader.shard.Propose(t.Context(), []*raftfsm.Command{
			schedule("a", time.Now().Add(time.Hour)), bad, unknown, nil, cancelOf("nobody"), after("c", -time.Second),
			schedule("a", time.Now().Add(2*time.Hour)), cancelOf("a"),
		})
		if err != nil {
			t.Fatal(err)
		}
		var got []raftfsm.Code
		for _, r := range results {
			got = append(got, r.Code)
		}
		want := fmt.Sprint([]raftfsm.Code{
			raftfsm.OK, raftfsm.Invalid, raftfsm.Invalid, raftfsm.Invalid, raftfsm.NotFound, raftfsm.Invalid, raftfsm.OK, raftfsm.OK,
		})
		if fmt.Sprint(got) != want {
			t.Errorf("got %v, want %v: %+v", got, want, results)
		}
		var invalid *InvalidError
		if err := ErrOf(results[1]); !errors.As(err, &invalid) || invalid.Field != "queue" {
			t.Errorf("got %v", err)
		}
		c.inStep()
	})
}

func TestFollowerRefuses(t *testing.T) {
	t.Parallel()
	inBubble(t, 3, func(t *testing.T, c *cluster) {
		leader := c.leader()
		for _, n := range c.nodes {
			if n == leader {
				continue
			}
			var notLeader *NotLeaderError
			_, err := n.shard.Propose(t.Context(), []*raftfsm.Command{after("a", time.Hour)})
			if !errors.As(err, &notLeader) || notLeader.Leader != leader.id || notLeader.Addr != leader.id+":7400" {
				t.Errorf("propose: %v", err)
			}
			if _, err := n.shard.Get(t.Context(), "", "a"); !errors.As(err, &notLeader) {
				t.Errorf("get: %v", err)
			}
			if _, err := n.shard.List(t.Context(), raftfsm.ListQuery{}); !errors.As(err, &notLeader) {
				t.Errorf("list: %v", err)
			}
		}
	})
}

// Limits are errors with a name; acks and cancels pass when no timer may come.
func TestOverload(t *testing.T) {
	t.Parallel()
	inBubble(t, 1, func(t *testing.T, c *cluster) {
		s := c.leader().shard
		for i := range 10 {
			c.propose(after(fmt.Sprint(i), time.Hour))
		}
		var overloaded *OverloadedError
		_, err := s.Propose(t.Context(), []*raftfsm.Command{after("11", time.Hour)})
		if !errors.As(err, &overloaded) || overloaded.Limit != "10 pending, paused and dead timers on shard 7" || overloaded.RetryAfter <= 0 {
			t.Fatalf("the eleventh timer: %v", err)
		}
		if r := c.propose(cancelOf("3"))[0]; r.Answer != raftfsm.AnswerCancelled {
			t.Fatalf("cancel: %+v", r)
		}
		if r := c.propose(after("11", time.Hour))[0]; r.Code != raftfsm.OK {
			t.Fatalf("after the cancel: %+v", r)
		}
		if n := s.Status().Proposer.Overloaded; n != 1 {
			t.Errorf("counted %d", n)
		}
		c.propose(pauseOf("4", false))
		if _, err := s.Propose(t.Context(), []*raftfsm.Command{after("12", time.Hour)}); !errors.As(err, &overloaded) {
			t.Errorf("with a paused timer: %v", err)
		}
	}, func(c *cluster) { c.config = func(c *Config) { c.MaxPending = 10 } })
}

// A context that ends while its command waits takes it out of the queue: not applied. One that ends when it was sent: unknown.
func TestContextEnds(t *testing.T) {
	t.Parallel()
	inBubble(t, 1, func(t *testing.T, c *cluster) {
		leader := c.leader()
		release := leader.log.stall()
		answers := make([]chan error, 4)
		for i := range answers {
			answers[i] = make(chan error, 1)
			ctx, cancel := context.WithTimeout(t.Context(), time.Second)
			defer cancel()
			go func() {
				_, err := leader.shard.Propose(ctx, []*raftfsm.Command{after(fmt.Sprint(i), time.Hour)})
				answers[i] <- err
			}()
			time.Sleep(time.Millisecond)
		}
		for i, answer := range answers {
			want := ErrUnknown // the window holds two
			if i >= 2 {
				want = context.DeadlineExceeded
			}
			if err := <-answer; !errors.Is(err, want) {
				t.Errorf("call %d: got %v, want %v", i, err, want)
			}
		}
		if s := leader.shard.Status().Proposer; s.Queued != 0 || s.QueuedBytes != 0 || s.InFlight != 2 || s.Unknown != 2 {
			t.Errorf("got %+v", s)
		}
		release()
		time.Sleep(time.Second)
		page, err := leader.shard.List(t.Context(), raftfsm.ListQuery{})
		if err != nil || len(page.Timers) != 2 {
			t.Errorf("%d timers, %v; want the two that were sent", len(page.Timers), err)
		}
	})
}

// The sender writes into the commands when it makes an entry of them. A caller whose context ends just then gets its answer
// when that is done, so that the commands are not written to behind its back.
func TestContextEndsWhileStamping(t *testing.T) {
	t.Parallel()
	var gate atomic.Pointer[chan struct{}]
	inBubble(t, 1, func(t *testing.T, c *cluster) {
		leader := c.leader()
		open := make(chan struct{})
		gate.Store(&open)
		ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
		defer cancel()
		time.AfterFunc(time.Second, func() {
			gate.Store(nil)
			close(open)
		})
		start := time.Now()
		cmd := after("a", time.Hour)
		_, err := leader.shard.Propose(ctx, []*raftfsm.Command{cmd})
		if took := time.Since(start); !errors.Is(err, ErrUnknown) || took != time.Second || cmd.GetSchedule().IsDelay {
			t.Errorf("got %v after %v, with the command %v", err, took, cmd)
		}
	}, func(c *cluster) {
		c.deps = func(d *Deps) {
			d.Now = func() time.Time {
				if open := gate.Load(); open != nil {
					<-*open
				}
				return time.Now()
			}
		}
	})
}

// ApplyTimeout bounds a call that has no deadline of its own.
func TestApplyTimeout(t *testing.T) {
	t.Parallel()
	inBubble(t, 1, func(t *testing.T, c *cluster) {
		leader := c.leader()
		defer leader.log.stall()()
		start := time.Now()
		_, err := leader.shard.Propose(context.Background(), []*raftfsm.Command{after("a", time.Hour)})
		if took := time.Since(start); !errors.Is(err, ErrUnknown) || took != 3*time.Second {
			t.Errorf("got %v after %v", err, took)
		}
	}, func(c *cluster) { c.config = func(c *Config) { c.ApplyTimeout = 3 * time.Second } })
}

// Commands that come while the window is full travel together.
func TestGroupCommit(t *testing.T) {
	t.Parallel()
	inBubble(t, 1, func(t *testing.T, c *cluster) {
		leader := c.leader()
		before := leader.shard.Status().Proposer
		release := leader.log.stall()
		const callers = 2500
		done := make(chan error, callers)
		for i := range callers {
			go func() {
				_, err := leader.shard.Propose(t.Context(), []*raftfsm.Command{after(fmt.Sprint(i), time.Hour)})
				done <- err
			}()
		}
		time.Sleep(time.Second)
		release()
		for range callers {
			if err := <-done; err != nil {
				t.Fatal(err)
			}
		}
		after := leader.shard.Status().Proposer
		if entries := after.Entries - before.Entries; entries > 6 || after.Commands-before.Commands != callers {
			t.Errorf("%d entries for %d commands", entries, after.Commands-before.Commands)
		}
	})
}

// A command that is larger than a joined entry travels alone; others are joined up to the limit of bytes.
func TestLargeCommands(t *testing.T) {
	t.Parallel()
	inBubble(t, 3, func(t *testing.T, c *cluster) {
		leader := c.leader()
		large := after("large", time.Hour)
		large.GetSchedule().Payload = make([]byte, raftfsm.MaxPayloadBytes)
		if r := c.propose(large)[0]; r.Code != raftfsm.OK {
			t.Fatalf("got %+v", r)
		}
		var cmds []*raftfsm.Command
		for i := range 15 {
			cmd := after(fmt.Sprint(i), time.Hour)
			cmd.GetSchedule().Payload = make([]byte, 64<<10)
			cmds = append(cmds, cmd)
		}
		before := leader.shard.Status().Proposer.Entries
		for _, r := range c.propose(cmds...) {
			if r.Code != raftfsm.OK {
				t.Fatalf("got %+v", r)
			}
		}
		if entries := leader.shard.Status().Proposer.Entries - before; entries < 4 || entries > 6 {
			t.Errorf("15 commands of 64 KiB took %d entries", entries)
		}
		var invalid *InvalidError
		if _, err := leader.shard.Propose(t.Context(), append(cmds, cmds...)); !errors.As(err, &invalid) {
			t.Errorf("two MiB in one call: %v", err)
		}
		if _, err := leader.shard.Propose(t.Context(), make([]*raftfsm.Command, raftfsm.MaxBatchItems+1)); !errors.As(err, &invalid) {
			t.Errorf("1,001 commands in one call: %v", err)
		}
	})
}
