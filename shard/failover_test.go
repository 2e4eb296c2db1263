package shard

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"reflect"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/carillon-timers/carillon/raftfsm"
	"github.com/carillon-timers/carillon/shard/executor"
	"github.com/hashicorp/raft"
)

// The re-arm rule: 1,000 timers fall due while leadership flips and half of the acks get lost. When a due timer once left the
// wheel as it was handed out, 173 of them were stranded. All must be acked in the end, none may ring early.
func TestFlipsStrandNone(t *testing.T) {
	t.Parallel()
	inBubble(t, 3, func(t *testing.T, c *cluster) {
		rnd := rand.New(rand.NewPCG(1, 2))
		var lost atomic.Int64
		c.sink.answer(func(d executor.Delivery) {
			if c.sink.lose() {
				lost.Add(1)
				return
			}
			c.propose(completeOf(d))
		})
		c.leader()
		start := time.Now()
		due := map[string]time.Time{}
		for batch := range 10 {
			var cmds []*raftfsm.Command
			for i := range 100 {
				at := start.Add(time.Second + time.Duration(rnd.IntN(40_000))*time.Millisecond)
				cmd := schedule(fmt.Sprintf("%d-%d", batch, i), at)
				cmd.GetSchedule().Retry.LeaseMs = 1000
				cmds, due[cmd.GetSchedule().Id] = append(cmds, cmd), at
			}
			c.propose(cmds...)
		}
		flips := 0
		for time.Since(start) < 45*time.Second {
			leader := c.leader()
			if rnd.IntN(2) == 0 {
				_ = leader.shard.Transfer(t.Context(), "")
			} else {
				c.cut(leader)
				c.leader(leader)
				c.heal()
			}
			flips++
			time.Sleep(time.Duration(rnd.IntN(1500)) * time.Millisecond)
		}
		for range 1200 {
			if c.leader().shard.Status().Pending == 0 {
				break
			}
			time.Sleep(100 * time.Millisecond)
		}
		c.sink.quiet()
		if left := c.leader().shard.Status(); left.Pending != 0 {
			t.Errorf("%d of 1000 timers are stranded after %d flips: %+v", left.Pending, flips, left.Executor)
		}
		rung := map[string]bool{}
		for _, d := range c.sink.all() {
			rung[d.Record.ID] = true
			if d.at.Before(due[d.Record.ID]) {
				t.Errorf("%s rang %v early", d.Record.ID, due[d.Record.ID].Sub(d.at))
			}
		}
		if len(rung) != 1000 {
			t.Errorf("%d of 1000 timers rang", len(rung))
		}
		t.Logf("%d flips, %d deliveries, %d lost acks", flips, len(c.sink.all()), lost.Load())
		c.inStep()
	}, func(c *cluster) { c.sink.rnd = rand.New(rand.NewPCG(3, 4)) })
}

// A leader whose loop stands still, and whom nobody answers, still believes that it leads. It must fire nothing once its
// lease is over, and the others take over.
func TestFrozenLeaderFiresNothing(t *testing.T) {
	t.Parallel()
	inBubble(t, 3, func(t *testing.T, c *cluster) {
		old := c.leader()
		for i := range 100 {
			c.propose(after(fmt.Sprint(i), time.Duration(i)*50*time.Millisecond))
		}
		release := old.log.stall()
		waiting := make(chan error, 1)
		go func() {
			// This entry keeps Raft's loop waiting for the disk.
			_, err := old.shard.Propose(context.Background(), []*raftfsm.Command{after("x", time.Hour)})
			waiting <- err
		}()
		time.Sleep(time.Second)
		c.cut(old)
		frozen := time.Now()
		c.leader(old)
		time.Sleep(4 * time.Second)
		if old.shard.raft.Load().State() != raft.Leader {
			t.Fatal("the story is broken: Raft noticed")
		}
		if s := old.shard.Status(); !s.Leading || s.Firing {
			t.Errorf("the frozen leader: leading %t, firing %t", s.Leading, s.Firing)
		}
		if err := <-waiting; !errors.Is(err, ErrUnknown) {
			t.Errorf("the write in flight: %v", err)
		}
		start := time.Now()
		if _, err := old.shard.Propose(t.Context(), []*raftfsm.Command{after("y", time.Hour)}); !errors.Is(err, ErrUnavailable) {
			t.Errorf("a write at the frozen leader: %v", err)
		}
		if took := time.Since(start); took > 0 {
			t.Errorf("it was refused after %v", took)
		}
		c.propose(cancelOf("99"), after("new", time.Hour))
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if status, err := old.shard.Get(ctx, "", "new"); err == nil || errors.Is(err, ErrNotFound) {
			t.Errorf("the frozen leader answered a read: %+v, %v", status, err)
		}
		release()
		c.heal()
		time.Sleep(time.Second)
		all := map[string]bool{}
		for _, d := range c.sink.all() {
			all[d.Record.ID] = true
			if d.by == executor.Source(old.shard.exec) && d.at.Sub(frozen) > old.shard.c.LeaseTimeout {
				t.Errorf("%s was handed out %v after the last answer", d.Record.ID, d.at.Sub(frozen))
			}
		}
		if len(all) < 99 {
			t.Errorf("%d of 100 timers rang", len(all))
		}
		c.inStep()
	}, func(c *cluster) { c.sink.ack = func(d executor.Delivery) { c.propose(completeOf(d)) } })
}

// A leader that loses its quorum stops at once and answers so; a write in flight is unknown, and reads are refused.
func TestLostQuorum(t *testing.T) {
	t.Parallel()
	inBubble(t, 3, func(t *testing.T, c *cluster) {
		leader := c.leader()
		c.propose(after("far", time.Hour), after("soon", 2*time.Second))
		for _, n := range c.nodes {
			c.cut(n)
		}
		start := time.Now()
		_, err := leader.shard.Propose(context.Background(), []*raftfsm.Command{after("lost", time.Hour)})
		if took := time.Since(start); !errors.Is(err, ErrUnknown) || took > 2*time.Second {
			t.Errorf("a write without a quorum: %v after %v", err, took)
		}
		if _, err := leader.shard.Get(context.Background(), "", "far"); err == nil {
			t.Error("a read without a quorum was answered")
		}
		time.Sleep(5 * time.Second)
		if got := c.sink.all(); len(got) != 0 {
			t.Errorf("%d deliveries without a quorum", len(got))
		}
		for _, n := range c.nodes {
			if s := n.shard.Status(); s.Leading || s.Firing || s.Leader != "" {
				t.Errorf("%s: leading %t, firing %t, leader %q", n.id, s.Leading, s.Firing, s.Leader)
			}
		}
		c.heal()
		c.leader()
		time.Sleep(100 * time.Millisecond)
		if got := c.sink.all(); len(got) != 1 || got[0].Record.ID != "soon" {
			t.Errorf("after the heal: %d deliveries", len(got))
		}
		c.inStep()
	})
}

// Cuts and heals in bursts, faster than an election. Writers keep writing with request IDs: each has the effect of one, and
// what was acknowledged is there on all replicas.
func TestBurstsOfCuts(t *testing.T) {
	t.Parallel()
	inBubble(t, 3, func(t *testing.T, c *cluster) {
		var writers sync.WaitGroup
		stop := make(chan struct{})
		acknowledged := make([]map[string]uint64, 8)
		for w := range acknowledged {
			acknowledged[w] = map[string]uint64{}
			writers.Go(func() {
				for i := 0; ; i++ {
					select {
					case <-stop:
						return
					default:
					}
					id := fmt.Sprintf("%d-%d", w, i)
					acknowledged[w][id] = c.propose(after(id, time.Hour))[0].Revision
					time.Sleep(20 * time.Millisecond)
				}
			})
		}
		rnd := rand.New(rand.NewPCG(5, 6))
		for range 25 {
			c.cut(c.nodes[rnd.IntN(3)])
			time.Sleep(time.Duration(rnd.IntN(900)) * time.Millisecond)
			if rnd.IntN(3) > 0 {
				c.heal()
			}
			time.Sleep(time.Duration(rnd.IntN(400)) * time.Millisecond)
		}
		c.heal()
		c.leader()
		close(stop)
		writers.Wait()
		c.inStep()
		total := 0
		for _, writes := range acknowledged {
			for id, revision := range writes {
				total++
				for _, n := range c.nodes {
					if s, found := n.shard.fsm.Get("", id); !found || s.Record.Revision != revision {
						t.Fatalf("%s: %s is %+v, acknowledged as %d", n.id, id, s.Record, revision)
					}
				}
			}
		}
		if pending := c.leader().shard.Status().Pending; pending != total {
			t.Errorf("%d timers, %d were acknowledged", pending, total)
		}
		t.Logf("%d writes", total)
	})
}

// A write whose answer was lost is repeated at the next leader and has the effect of one.
func TestRetryAcrossFailover(t *testing.T) {
	t.Parallel()
	inBubble(t, 3, func(t *testing.T, c *cluster) {
		old := c.leader()
		first := c.propose(schedule("a", time.Now().Add(time.Hour)))[0]
		cancelled := c.propose(cancelOf("a"))[0]
		c.cut(old)
		c.leader(old)
		if again := c.propose(cancelOf("a"))[0]; !reflect.DeepEqual(again, cancelled) {
			t.Errorf("the cancel again: got %+v, want %+v", again, cancelled)
		}
		if again := c.propose(schedule("a", time.Now().Add(2*time.Hour)))[0]; !reflect.DeepEqual(again, first) {
			t.Errorf("the schedule again: got %+v, want %+v", again, first)
		}
		c.heal()
		c.inStep()
	})
}

// A deposed leader with entries that nobody else has, behind a leader that has cut its log, is sent a snapshot; with hundreds
// of such entries it was sent tens of thousands. The window keeps them few, and it heals.
func TestDeposedLeaderHeals(t *testing.T) {
	t.Parallel()
	inBubble(t, 3, func(t *testing.T, c *cluster) {
		old := c.leader()
		c.cut(old)
		for range 300 {
			go func() {
				_, _ = old.shard.Propose(t.Context(), []*raftfsm.Command{after("lost", time.Hour)})
			}()
		}
		next := c.leader(old)
		for i := range 1700 {
			c.propose(after(fmt.Sprint(i), time.Hour))
		}
		time.Sleep(5 * time.Second)
		if next.shard.Status().Snapshot.Index < 1100 {
			t.Fatalf("the story is broken: no snapshot was taken: %+v", next.shard.Status().Snapshot)
		}
		start := time.Now()
		c.heal()
		c.inStep()
		if took := time.Since(start); took > 15*time.Second { // most of it is Raft's back-off
			t.Errorf("healing took %v", took)
		}
		if installs := old.shard.Status().Snapshot.Restored; installs < 1 || installs > 2 {
			t.Errorf("%d snapshots were installed", installs)
		}
	}, func(c *cluster) {
		c.config = func(c *Config) { c.SnapshotEntries, c.TrailingLogs = 500, MinTrailingLogs }
	})
}

// An entry of an unknown version stops each replica that comes to it, at the entry before, loudly, and none of them
// snapshots afterwards. (The last one may not come to it: it lacks a majority to learn that the entry is committed.)
func TestUnknownEntryStopsTheReplica(t *testing.T) {
	t.Parallel()
	inBubble(t, 3, func(t *testing.T, c *cluster) {
		leader := c.leader()
		c.propose(after("a", time.Hour))
		before := leader.shard.fsm.Hash()
		leader.shard.raft.Load().Apply([]byte{0xCA, 99, 1, 0, 0, 0, 0, 0}, 0)
		time.Sleep(10 * time.Second)
		stopped := 0
		for _, n := range c.nodes {
			if n.shard.fsm.Hash() != before {
				t.Errorf("%s has changed its state", n.id)
			}
			if n.shard.Status().Stopped == nil {
				continue
			}
			stopped++
			n.wg.Wait()
			var apply *ApplyError
			if !errors.As(n.err, &apply) || !errors.Is(n.err, raftfsm.ErrUnsupported) {
				t.Errorf("%s: Run returned %v", n.id, n.err)
			}
			if _, err := (&replica{s: n.shard}).Snapshot(); err == nil {
				t.Errorf("%s snapshots", n.id)
			}
		}
		if stopped < 2 || leader.shard.Status().Stopped == nil {
			t.Errorf("%d replicas have stopped", stopped)
		}
		if _, err := leader.shard.Propose(t.Context(), []*raftfsm.Command{after("b", time.Hour)}); !errors.Is(err, ErrUnavailable) {
			t.Errorf("propose: %v", err)
		}
	})
}

// A new leader's state may lack what is committed: it learns of it with the first entry of its term. Until that is applied it
// answers no read, proposes nothing and fires nothing.
func TestNewLeaderWaitsForItsEpoch(t *testing.T) {
	t.Parallel()
	inBubble(t, 3, func(t *testing.T, c *cluster) {
		old := c.leader()
		c.propose(after("a", 300*time.Millisecond))
		old.stop()
		var release []func()
		for _, n := range c.nodes {
			if n != old {
				if _, found := n.shard.fsm.Get("", "a"); found {
					t.Fatal("the story is broken: the follower has applied the write")
				}
				release = append(release, n.log.stall())
			}
		}
		var next *node
		for next == nil {
			for _, n := range c.nodes {
				if n.shard.raft.Load().State() == raft.Leader {
					next = n
				}
			}
			time.Sleep(time.Millisecond)
		}
		ctx, cancel := context.WithTimeout(t.Context(), 500*time.Millisecond)
		defer cancel()
		if status, err := next.shard.Get(ctx, "", "a"); err == nil || errors.Is(err, ErrNotFound) {
			t.Errorf("a read was answered: %+v, %v", status, err)
		}
		if s := next.shard.Status(); s.Leading || s.Firing {
			t.Errorf("leading %t, firing %t", s.Leading, s.Firing)
		}
		for _, f := range release {
			f()
		}
		if c.leader(old) != next {
			t.Fatal("the story is broken: another leader")
		}
		if _, err := next.shard.Get(t.Context(), "", "a"); err != nil {
			t.Errorf("after the epoch is open: %v", err)
		}
		old.restart()
		c.inStep()
	})
}
