package shard

import (
	"context"
	"fmt"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	logv1 "github.com/carillon-timers/carillon/proto/carillonlog/v1"
	"github.com/carillon-timers/carillon/raftfsm"
	"github.com/carillon-timers/carillon/shard/executor"
)

// nats-io/nats-server PR #8308: the next time was kept in whole seconds, so that a period of 1.5 s was one of 1 s from the second
// firing on. Here each due time keeps its milliseconds, through log, snapshot and a restart of all replicas.
func TestReportPeriodKeepsItsMillis(t *testing.T) {
	t.Parallel()
	inBubble(t, 3, func(t *testing.T, c *cluster) {
		l := c.acked()
		c.leader()
		start := time.Now().UnixMilli() + 1000
		c.propose(repeat("r", &logv1.Repeat{EveryMs: 1500, StartMs: start, MaxCount: 200, Misfire: misfireAll, MaxCatchUp: 100}))
		time.Sleep(150 * time.Second)
		old := c.leader()
		if old.shard.Status().Snapshot.Index == 0 {
			t.Fatal("the story is broken: no snapshot was taken")
		}
		for _, n := range c.nodes {
			n.stop()
		}
		for _, n := range c.nodes {
			n.open()
		}
		for _, n := range c.nodes {
			n.run()
		}
		c.leader()
		time.Sleep(time.Until(time.UnixMilli(start + 200*1500)))
		c.settleAll(t)
		c.sink.quiet()
		ticks := l.ticks("r")
		if len(ticks) != 200 {
			t.Errorf("%d due times, want 200", len(ticks))
		}
		for i, tick := range ticks {
			if tick != start+int64(i)*1500 {
				t.Fatalf("due time %d is %d ms after the start", i, tick-start)
			}
		}
		c.inStep()
	}, func(c *cluster) {
		c.config = func(c *Config) { c.SnapshotEntries, c.TrailingLogs = 50, MinTrailingLogs }
	})
}

// michaelklishin/quartz-mongodb #45: the only thread of the scheduler slept until the next try of one timer, minutes ahead, and
// all others waited. Here timers that wait five minutes for their next attempt hold up nobody, and come again on time.
func TestReportBackoffHoldsUpNoOther(t *testing.T) {
	t.Parallel()
	inBubble(t, 3, func(t *testing.T, c *cluster) {
		const wait = 5 * time.Minute
		var late, done, again atomic.Int64
		refused := time.Now()
		c.sink.answer(func(d executor.Delivery) {
			if d.Record.Retry.Lease != 60_000 {
				late.Store(max(late.Load(), time.Now().UnixMilli()-d.Record.Due))
				done.Add(1)
			} else if d.Token.Attempt == 0 {
				cmd := retryOf(d, "refused")
				cmd.GetRetry().HasDelay, cmd.GetRetry().DelayMs = true, wait.Milliseconds()
				c.propose(cmd)
				return
			} else if time.Since(refused) >= wait {
				again.Add(1)
			}
			c.propose(completeOf(d))
		})
		c.leader()
		var cmds []*raftfsm.Command
		for i := range 50 {
			cmds = append(cmds, with(after(fmt.Sprint("bad", i), 0), func(s *logv1.Schedule) { s.Retry.LeaseMs = 60_000 }))
		}
		c.propose(cmds...)
		for batch := range 10 {
			var cmds []*raftfsm.Command
			for i := range 100 {
				cmds = append(cmds, after(fmt.Sprint(batch, "-", i), time.Second+time.Duration(i)*10*time.Millisecond))
			}
			c.propose(cmds...)
			time.Sleep(time.Second)
		}
		time.Sleep(5 * time.Second)
		if done.Load() != 1000 || late.Load() > 2 || again.Load() != 0 {
			t.Errorf("%d of 1000 came, up to %d ms late, and %d of those that wait", done.Load(), late.Load(), again.Load())
		}
		time.Sleep(wait)
		c.settleAll(t)
		c.sink.quiet()
		if again.Load() != 50 {
			t.Errorf("%d of 50 came again", again.Load())
		}
		c.inStep()
	})
}

// apache/rocketmq #10668: a replica whose log was cut kept references to what had been cut off in its wheel. Here a leader takes
// writes that nobody else has, comes back as a follower, loses them, and leads again: none of them rings, all others do.
func TestReportTruncatedLogLeavesNoTimers(t *testing.T) {
	t.Parallel()
	inBubble(t, 3, func(t *testing.T, c *cluster) {
		c.sink.answer(func(d executor.Delivery) { c.propose(completeOf(d)) })
		old := c.leader()
		c.inStep()
		c.cut(old)
		before, _ := old.log.LastIndex()
		refused := make(chan error, 1000)
		for i := range cap(refused) {
			go func() {
				_, err := old.shard.Propose(context.Background(), []*raftfsm.Command{after(fmt.Sprint("lost", i), 5*time.Second)})
				refused <- err
			}()
		}
		c.leader(old)
		if after, _ := old.log.LastIndex(); after == before {
			t.Fatal("the story is broken: nothing is to be cut off")
		}
		for i := range 100 {
			c.propose(after(fmt.Sprint("kept", i), 20*time.Second))
		}
		c.heal()
		c.inStep()
		for range cap(refused) {
			if err := <-refused; err == nil {
				t.Error("a write without a majority was acknowledged")
			}
		}
		for i := 0; c.leader() != old; i++ {
			if i == 20 {
				t.Fatal("the story is broken: the old leader does not lead again")
			}
			_ = c.leader().shard.Transfer(t.Context(), old.id)
		}
		synctest.Wait() // until the wheel has what the table gave it
		if s := old.shard.Status(); s.Pending != 100 || s.Executor.Armed != 100 {
			t.Errorf("%d timers, %d in the wheel, want 100", s.Pending, s.Executor.Armed)
		}
		time.Sleep(30 * time.Second)
		c.settleAll(t)
		c.sink.quiet()
		rung := map[string]bool{}
		for _, d := range c.sink.all() {
			if rung[d.Record.ID] = true; d.Record.ID[:4] != "kept" {
				t.Errorf("%s rang", d.Record.ID)
			}
		}
		if len(rung) != 100 {
			t.Errorf("%d of 100 rang", len(rung))
		}
	})
}

// nats-io/nats-server #8594 and PR #8595: what was purged or written over stayed in the wheel, was looked at in each round, and came
// back with each restart: a million entries of eleven messages. apache/samza PR #566: what had fired stayed in a map. Here the
// wheel of each replica has what is pending, at once, when all has passed, and after a restart.
func TestReportNoStaleEntries(t *testing.T) {
	t.Parallel()
	inBubble(t, 3, func(t *testing.T, c *cluster) {
		c.sink.answer(func(d executor.Delivery) { c.propose(completeOf(d)) })
		c.leader()
		check := func(when string, want int) {
			t.Helper()
			c.inStep()
			time.Sleep(2 * time.Second) // a follower's loop looks once a second
			for _, n := range c.nodes {
				if s := n.shard.Status(); s.Pending != want || s.Executor.Armed != want || s.State.Finished > 500 {
					t.Errorf("%s, %s: %d are pending, %d in the wheel, %d finished; want %d", when, n.id, s.Pending, s.Executor.Armed, s.State.Finished, want)
				}
			}
		}
		for batch := range 10 {
			var cmds, cancels []*raftfsm.Command
			for i := range 300 {
				id := fmt.Sprint(batch, "-", i)
				cmds = append(cmds, after(id, time.Hour))
				switch i % 3 {
				case 0:
					cancels = append(cancels, cancelOf(id))
				case 1: // written over, again and again
					cancels = append(cancels, with(after("same", time.Hour), func(s *logv1.Schedule) { s.IfExists, s.RequestId = 1, nil }))
				}
			}
			c.propose(cmds...)
			for _, r := range c.propose(cancels...) {
				if err := ErrOf(r); err != nil {
					t.Fatal(err)
				}
			}
		}
		check("before their time", 2001)
		time.Sleep(time.Hour)
		c.settleAll(t)
		check("after their time", 0)
		c.sink.quiet()
		for _, n := range c.nodes {
			n.stop()
			n.restart()
		}
		c.leader()
		check("after a restart", 0)
		if n := len(c.sink.all()); n != 2001 {
			t.Errorf("%d deliveries, want 2001", n)
		}
	}, func(c *cluster) { c.config = func(c *Config) { c.MaxFinished = 500 } })
}

// RussellLuo/timingwheel #25: 100,000 timers that armed themselves again each millisecond stopped the wheel, and all who called it,
// for good. Here repeats that come faster than the disk writes are late, others go on, and it is over when they are cancelled.
func TestReportOverloadIsLateness(t *testing.T) {
	t.Parallel()
	inBubble(t, 1, func(t *testing.T, c *cluster) {
		var late, probes atomic.Int64
		c.sink.answer(func(d executor.Delivery) {
			if d.Record.Queue == "probe" {
				late.Store(max(late.Load(), time.Now().UnixMilli()-d.Record.Due))
				probes.Add(1)
			}
			c.propose(completeOf(d))
		})
		leader := c.leader()
		slow := func() { time.Sleep(40 * time.Millisecond) }
		leader.log.slow.Store(&slow)
		var repeats, cancels []*raftfsm.Command
		for i := range 200 {
			id := fmt.Sprint("r", i)
			repeats, cancels = append(repeats, repeat(id, &logv1.Repeat{EveryMs: 1})), append(cancels, cancelOf(id))
		}
		c.propose(repeats...)
		for i := range 20 {
			c.propose(with(after(fmt.Sprint(i), 100*time.Millisecond), func(s *logv1.Schedule) { s.Queue = "probe" }))
			time.Sleep(200 * time.Millisecond)
		}
		c.propose(cancels...)
		c.settleAll(t)
		c.sink.quiet()
		if probes.Load() < 20 || late.Load() > 500 {
			t.Errorf("%d of 20 probes came, up to %d ms late", probes.Load(), late.Load())
		}
		if n := len(c.sink.all()); n < 200*20 {
			t.Errorf("200 repeats were handed out %d times in 4 s", n)
		}
		time.Sleep(2 * time.Second) // a loop without work looks once a second
		if s := leader.shard.Status(); s.Executor.Armed != 0 || s.Overdue != 0 {
			t.Errorf("afterwards %d are in the wheel, %d overdue", s.Executor.Armed, s.Overdue)
		}
	})
}
