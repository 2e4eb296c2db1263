package shard

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/carillon-timers/carillon/raftfsm"
	"github.com/hashicorp/raft"
)

// When a replica is shut down under load Raft leaves hundreds of its futures unresolved. None of our waiters may hang, and
// none may be told "not applied" of what is there.
func TestStopUnderLoadLeavesNoWaiter(t *testing.T) {
	t.Parallel()
	for _, n := range []int{1, 3} {
		t.Run(fmt.Sprint(n), func(t *testing.T) {
			t.Parallel()
			inBubble(t, n, func(t *testing.T, c *cluster) {
				leader := c.leader()
				const callers = 4000
				errs := make([]error, callers)
				var waiters sync.WaitGroup
				for i := range callers {
					waiters.Go(func() {
						_, errs[i] = leader.shard.Propose(context.Background(), []*raftfsm.Command{after(fmt.Sprint(i), time.Hour)})
						if i%4 == 0 && errs[i] == nil {
							_, _ = leader.shard.Get(context.Background(), "", fmt.Sprint(i))
						}
					})
				}
				for leader.shard.applied.Load() < 5 {
					time.Sleep(time.Millisecond)
				}
				start := time.Now()
				if err := leader.stop(); err != nil {
					t.Errorf("Run: %v", err)
				}
				waiters.Wait()
				if took := time.Since(start); took > 2*time.Second {
					t.Errorf("stopping took %v", took)
				}
				for i, err := range errs {
					var notLeader *NotLeaderError
					if err != nil && !errors.Is(err, ErrUnknown) && !errors.Is(err, ErrUnavailable) && !errors.As(err, &notLeader) {
						t.Fatalf("call %d: %v", i, err)
					}
				}
				if n == 1 {
					leader.restart()
				}
				next := c.leader()
				for i, err := range errs {
					_, found := next.shard.fsm.Get("", fmt.Sprint(i))
					if err == nil && !found || errors.Is(err, ErrUnavailable) && found {
						t.Fatalf("call %d: answered %v, and it is there: %t", i, err, found)
					}
				}
			})
		})
	}
}

// Run and Close may come together, in any order and often; nothing is left.
func TestStartStop(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t, 1)
		n := c.nodes[0]
		for i := range 50 {
			n.open()
			if i == 0 {
				if err := n.shard.Bootstrap([]raft.Server{{ID: "n1", Address: "n1"}}); err != nil {
					t.Fatal(err)
				}
			}
			if has, err := n.shard.HasState(); err != nil || !has {
				t.Fatalf("has state: %t, %v", has, err)
			}
			var both sync.WaitGroup
			ctx, cancel := context.WithCancel(t.Context())
			both.Go(func() { _ = n.shard.Run(ctx) })
			if i%3 > 0 {
				time.Sleep(time.Duration(i) * 20 * time.Millisecond)
			}
			for range 2 {
				both.Go(func() { _ = n.shard.Close() })
			}
			both.Wait()
			cancel()
			if _, err := n.shard.Propose(t.Context(), []*raftfsm.Command{after("a", time.Hour)}); err == nil {
				t.Fatal("a closed shard took a command")
			}
			if err := n.shard.Run(t.Context()); err == nil {
				t.Fatal("a closed shard ran")
			}
		}
	})
}

// A planned hand-over under load: every call succeeds after retries, none is unknown, nothing fires twice because of it, and
// it is quick.
func TestTransferUnderLoad(t *testing.T) {
	t.Parallel()
	inBubble(t, 3, func(t *testing.T, c *cluster) {
		c.leader()
		stop := make(chan struct{})
		var unknown, calls atomic.Int64
		var writers sync.WaitGroup
		for w := range 16 {
			writers.Go(func() {
				for i := 0; ; i++ {
					select {
					case <-stop:
						return
					default:
					}
					if _, _, err := c.try(10*time.Second, after(fmt.Sprintf("%d-%d", w, i), time.Hour)); err != nil {
						t.Errorf("call failed: %v", err)
					}
					calls.Add(1)
					time.Sleep(time.Millisecond)
				}
			})
		}
		for i := range 20 {
			leader := c.leader()
			to := ""
			if i%2 == 0 {
				to = c.nodes[(i/2)%3].id
			}
			if to == leader.id {
				continue
			}
			start := time.Now()
			if err := leader.shard.Transfer(t.Context(), to); err != nil {
				t.Errorf("transfer %d: %v", i, err)
			}
			next := c.leader(leader)
			if took := time.Since(start); took > 200*time.Millisecond || to != "" && next.id != to {
				t.Errorf("transfer %d to %q: %s leads after %v", i, to, next.id, took)
			}
		}
		close(stop)
		writers.Wait()
		for _, n := range c.nodes {
			unknown.Add(int64(n.shard.Status().Proposer.Unknown))
		}
		if unknown.Load() != 0 {
			t.Errorf("%d of %d calls had an unknown outcome", unknown.Load(), calls.Load())
		}
		t.Logf("%d calls", calls.Load())
		c.inStep()
	})
}

// A hand-over that cannot succeed fails in time, and the shard goes on proposing and firing under the same epoch.
func TestTransferFails(t *testing.T) {
	t.Parallel()
	inBubble(t, 3, func(t *testing.T, c *cluster) {
		leader := c.leader()
		s := leader.shard
		epoch := s.Status().Epoch
		if err := s.Transfer(t.Context(), "n9"); !errors.Is(err, ErrTransfer) {
			t.Errorf("to an unknown node: %v", err)
		}
		var other *node
		for _, n := range c.nodes {
			if n != leader {
				other = n
			}
		}
		c.cut(other)
		c.propose(after("a", 3*time.Second))
		waiting := make(chan error, 1)
		start := time.Now()
		time.AfterFunc(100*time.Millisecond, func() {
			_, err := s.Propose(context.Background(), []*raftfsm.Command{after("meanwhile", time.Hour)})
			waiting <- err
		})
		if err := s.Transfer(t.Context(), other.id); !errors.Is(err, ErrTransfer) {
			t.Errorf("to a node that is cut off: %v", err)
		}
		if took := time.Since(start); took > 2100*time.Millisecond {
			t.Errorf("it failed after %v", took)
		}
		if err := <-waiting; err != nil {
			t.Errorf("a call during the attempt: %v", err)
		}
		time.Sleep(3 * time.Second)
		if got := s.Status(); got.Epoch != epoch || !got.Firing {
			t.Errorf("epoch %d, firing %t; it was %d", got.Epoch, got.Firing, epoch)
		}
		if got := c.sink.all(); len(got) != 1 {
			t.Errorf("%d deliveries", len(got))
		}
		// An attempt that is given up at once leaves Raft refusing entries for a while.
		short, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
		defer cancel()
		if err := s.Transfer(short, other.id); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("with little time: %v", err)
		}
		start = time.Now()
		if r := c.propose(after("b", time.Hour))[0]; r.Code != raftfsm.OK || time.Since(start) > 1500*time.Millisecond {
			t.Errorf("the call after it: %+v after %v", r, time.Since(start))
		}
		c.heal()
		time.Sleep(5 * time.Second)
		if err := s.Transfer(t.Context(), other.id); err != nil {
			t.Errorf("after the heal: %v", err)
		}
		var notLeader *NotLeaderError
		if err := s.Transfer(t.Context(), ""); !errors.As(err, &notLeader) || notLeader.Leader != other.id {
			t.Errorf("by one that does not lead: %v", err)
		}
	})
}

// Alone there is nobody to hand over to; the call says so at once and nothing changes.
func TestTransferAlone(t *testing.T) {
	t.Parallel()
	inBubble(t, 1, func(t *testing.T, c *cluster) {
		s := c.leader().shard
		if err := s.Transfer(t.Context(), ""); !errors.Is(err, ErrTransfer) {
			t.Errorf("got %v", err)
		}
		if r := c.propose(after("a", time.Hour))[0]; r.Code != raftfsm.OK {
			t.Errorf("got %+v", r)
		}
	})
}

// An entry that does not come through although the majority answers stops the replica, so that the node opens it again.
func TestWatchdog(t *testing.T) {
	t.Parallel()
	inBubble(t, 3, func(t *testing.T, c *cluster) {
		leader := c.leader()
		p := leader.shard.proposer
		p.mu.Lock()
		p.sequence++
		p.flights = append(p.flights, &flight{sequence: p.sequence, formed: true, sentAt: time.Now()})
		p.mu.Unlock()
		start := time.Now()
		leader.wg.Wait()
		least := wedgedAfter * leader.shard.c.ElectionTimeout
		if took := time.Since(start); !errors.Is(leader.err, ErrWedged) || took < least || took > least+time.Second {
			t.Errorf("Run returned %v after %v", leader.err, took)
		}
		leader.restart()
		c.leader()
		c.propose(after("a", time.Hour))
		c.inStep()
	})
}

// A replica that is busy with what came before an entry is not wedged: one that had been restarted on a starved machine was stopped
// again just as it came to its first entry.
func TestWatchdogWaitsForProgress(t *testing.T) {
	t.Parallel()
	inBubble(t, 3, func(t *testing.T, c *cluster) {
		leader := c.leader()
		p := leader.shard.proposer
		p.mu.Lock()
		p.sequence++
		p.flights = append(p.flights, &flight{sequence: p.sequence, formed: true, sentAt: time.Now()})
		p.mu.Unlock()
		applied := leader.shard.applied.Load()
		for range 20 { // as if it applied an old entry a second
			time.Sleep(time.Second)
			applied++
			leader.shard.applied.Store(applied)
		}
		if !leader.shard.mayFire() {
			t.Error("it was stopped though it goes on")
		}
		moved := time.Now()
		leader.wg.Wait()
		if took := time.Since(moved); !errors.Is(leader.err, ErrWedged) || took < 5*time.Second {
			t.Errorf("Run returned %v after %v without progress", leader.err, took)
		}
		leader.restart()
		c.leader()
		c.inStep()
	})
}

// An entry that Raft refused, found out by the next one that is applied: its waiter is told that it was not applied, and
// what it held is released.
func TestRefusedEntry(t *testing.T) {
	t.Parallel()
	inBubble(t, 3, func(t *testing.T, c *cluster) {
		leader := c.leader()
		p := leader.shard.proposer
		c.propose(after("a", time.Second))
		time.Sleep(1500 * time.Millisecond)
		ack := completeOf(c.sink.all()[0].Delivery)
		if _, refused := leader.shard.fsm.Stamp(leader.shard.Status().Epoch, time.Now().UnixMilli(), []*raftfsm.Command{ack}); refused[0] != nil {
			t.Fatal(refused[0])
		}
		answer := make(chan error, 1)
		lost := &call{
			cmds: []*raftfsm.Command{ack}, results: make([]raftfsm.Result, 1), open: 1, next: 1, sent: true,
			done: func(_ []raftfsm.Result, err error) { answer <- err },
		}
		p.mu.Lock()
		p.sequence++
		p.flights = append(p.flights, &flight{
			sequence: p.sequence, formed: true, sentAt: time.Now(), items: []item{{lost, 0}}, cmds: lost.cmds,
		})
		p.mu.Unlock()
		c.propose(after("b", time.Hour))
		if err := <-answer; !errors.Is(err, ErrUnavailable) {
			t.Errorf("got %v", err)
		}
		time.Sleep(10 * time.Second)
		if got := c.sink.all(); len(got) < 2 || got[1].Record.ID != "a" {
			t.Errorf("the timer whose ack was lost did not ring again: %d deliveries", len(got))
		}
	})
}

// A replica can be bootstrapped while it runs, once.
func TestBootstrapWhileRunning(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t, 1)
		n := c.nodes[0]
		n.open()
		n.run()
		defer c.stop()
		time.Sleep(5 * time.Second)
		servers := []raft.Server{{ID: "n1", Address: "n1"}}
		if err := n.shard.Bootstrap(servers); err != nil {
			t.Fatal(err)
		}
		c.leader()
		if err := n.shard.Bootstrap(servers); !errors.Is(err, raft.ErrCantBootstrap) {
			t.Errorf("the second time: %v", err)
		}
		if r := c.propose(after("a", time.Hour))[0]; r.Code != raftfsm.OK {
			t.Errorf("got %+v", r)
		}
	})
}

// A replica that is removed stops and says so, a follower as well as the leader; the others go on.
func TestRemoved(t *testing.T) {
	t.Parallel()
	inBubble(t, 3, func(t *testing.T, c *cluster) {
		leader := c.leader()
		var other *node
		for _, n := range c.nodes {
			if n != leader {
				other = n
			}
		}
		remove := func(by, who *node) {
			t.Helper()
			if err := by.shard.raft.Load().RemoveServer(raft.ServerID(who.id), 0, 0).Error(); err != nil {
				t.Fatal(err)
			}
		}
		remove(leader, other)
		// Raft does not tell a removed follower reliably; it stops if it is told.
		time.Sleep(time.Second)
		remove(leader, leader)
		leader.wg.Wait()
		if !errors.Is(leader.err, ErrRemoved) {
			t.Errorf("Run returned %v", leader.err)
		}
		if next := c.leader(leader, other); next.shard.Status().Servers[0].ID != raft.ServerID(next.id) {
			t.Errorf("got %+v", next.shard.Status().Servers)
		}
		c.propose(after("a", time.Hour))
	})
}

// The wall clock of the leader runs back: the entries' clock stands still and nothing fires early. It jumps ahead: what is due
// fires at once, in order.
func TestClockJumps(t *testing.T) {
	t.Parallel()
	var skew atomic.Int64
	now := func() time.Time { return time.Now().Add(time.Duration(skew.Load())) }
	inBubble(t, 1, func(t *testing.T, c *cluster) {
		s := c.leader().shard
		due := now().Add(10 * time.Second)
		c.propose(schedule("1", due), schedule("2", due.Add(time.Second)), schedule("3", due.Add(2*time.Hour)))
		before := s.Status().State.Clock
		skew.Store(int64(-time.Hour))
		r := c.propose(after("4", 20*time.Second))[0]
		if clock := s.Status().State.Clock; clock != before || r.Due != before+20_001 {
			t.Errorf("the clock went from %d to %d, a delay of 20 s is due at %d", before, clock, r.Due)
		}
		time.Sleep(12 * time.Second)
		if got := c.sink.all(); len(got) != 0 {
			t.Errorf("%s was fired early by the leader's clock", got[0].Record.ID)
		}
		skew.Store(int64(time.Minute))
		time.Sleep(2 * time.Second)
		var got []string
		for _, d := range c.sink.all() {
			got = append(got, d.Record.ID)
		}
		if fmt.Sprint(got) != "[1 2 4]" {
			t.Errorf("fired after the jump: %v", got)
		}
		c.propose(after("5", time.Hour))
		if clock := s.Status().State.Clock; clock != now().UnixMilli() {
			t.Errorf("the clock is %d, want %d", clock, now().UnixMilli())
		}
	}, func(c *cluster) {
		c.now = now
		c.deps = func(d *Deps) { d.Now = now }
	})
}

// A write that never ends does not keep Run: it returns, and says that the log is not closed. Only when the write has ended, too, may the
// replica be opened again; what its Raft tried to write meanwhile is not in the log.
func TestStopWithHungDisk(t *testing.T) {
	t.Parallel()
	var closed atomic.Bool
	inBubble(t, 1, func(t *testing.T, c *cluster) {
		leader := c.leader()
		release := leader.log.stall()
		go func() { _, _ = leader.shard.Propose(context.Background(), []*raftfsm.Command{after("a", time.Hour)}) }()
		time.Sleep(time.Second)
		start := time.Now()
		err := leader.stop()
		if took := time.Since(start); !errors.Is(err, ErrSlowStop) || took > 5*time.Second {
			t.Errorf("Run returned %v after %v", err, took)
		}
		if err := leader.shard.disk.StoreLog(&raft.Log{Index: 1}); !errors.Is(err, ErrSlowStop) {
			t.Errorf("a write after a slow stop: %v", err)
		}
		time.Sleep(time.Minute)
		select {
		case <-leader.shard.Ended():
			t.Error("it has ended while its write hangs")
		default:
		}
		release()
		<-leader.shard.Ended()
		if !closed.Load() {
			t.Error("it has ended and its log is open")
		}
	}, func(c *cluster) {
		c.config = func(c *Config) { c.StopTimeout = time.Second }
		c.deps = func(d *Deps) { d.Stores.Close = func() error { closed.Store(true); return nil } }
	})
}
