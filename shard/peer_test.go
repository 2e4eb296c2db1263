package shard

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/carillon-timers/carillon/raftfsm"
	"github.com/carillon-timers/carillon/shard/executor"
	"github.com/carillon-timers/carillon/transport/peer"
	"github.com/carillon-timers/carillon/transport/peer/peertest"
)

// The same over the transport of the product, on a network in memory with delays: timers fall due while one leader after the
// other is frozen, as SIGSTOP would, or its host dies and comes back. None is lost, none rings early, and a frozen leader hands
// nothing out after its lease.
func TestOverThePeerTransport(t *testing.T) {
	t.Parallel()
	var network *peertest.Network
	inBubble(t, 3, func(t *testing.T, c *cluster) {
		c.sink.answer(func(d executor.Delivery) { c.propose(completeOf(d)) })
		start := time.Now()
		due := map[string]time.Time{}
		for batch := range 4 {
			var cmds []*raftfsm.Command
			for i := range 100 {
				id, at := fmt.Sprintf("%d-%d", batch, i), start.Add(time.Duration(5000+100*i+batch)*time.Millisecond)
				cmds, due[id] = append(cmds, schedule(id, at)), at
			}
			c.propose(cmds...)
		}
		for round := range 4 {
			time.Sleep(3 * time.Second)
			leader := c.leader()
			network.Freeze(leader.id)
			frozen := time.Now()
			next := c.leader(leader)
			if took := time.Since(frozen); took > 3*time.Second {
				t.Errorf("round %d: %s leads after %v", round, next.id, took)
			}
			time.Sleep(time.Second)
			for _, d := range c.sink.all() {
				if d.by == executor.Source(leader.shard.exec) && d.at.Sub(frozen) > leader.shard.c.LeaseTimeout {
					t.Errorf("%s was handed out by the frozen leader after %v", d.Record.ID, d.at.Sub(frozen))
				}
			}
			network.Thaw(leader.id)
		}
		time.Sleep(20 * time.Second)
		rung := map[string]bool{}
		for _, d := range c.sink.all() {
			rung[d.Record.ID] = true
			if d.at.Before(due[d.Record.ID]) {
				t.Errorf("%s rang %v early", d.Record.ID, due[d.Record.ID].Sub(d.at))
			}
		}
		if len(rung) != 400 {
			t.Errorf("%d of 400 timers rang", len(rung))
		}
		c.sink.quiet()
		if left := c.leader().shard.Status().Pending; left != 0 {
			t.Errorf("%d timers are left", left)
		}
		t.Logf("%d deliveries of 400 timers", len(c.sink.all()))
		c.inStep()
	}, overNetwork(t, &network))
}

// A leader whose process is gone is replaced long before a heartbeat timeout (500 ms): its connections break, its port
// refuses, and the first survivor in turn stands for election at once.
func TestPeerLost(t *testing.T) {
	t.Parallel()
	var network *peertest.Network
	inBubble(t, 3, func(t *testing.T, c *cluster) {
		old := c.leader()
		c.propose(after("a", 600*time.Millisecond))
		network.Kill(old.id)
		start := time.Now()
		next := c.leader(old)
		if took := time.Since(start); took > 150*time.Millisecond {
			t.Errorf("%s leads after %v", next.id, took)
		}
		time.Sleep(time.Second)
		if again := c.leader(old); again != next {
			t.Errorf("%s took over from %s", again.id, next.id)
		}
		if got := c.sink.all(); len(got) != 1 || got[0].by != executor.Source(next.shard.exec) {
			t.Errorf("%d deliveries", len(got))
		}
		next.shard.PeerLost(t.Context(), old.id) // it leads no more: nothing happens
		if s := next.shard.Status(); !s.Firing {
			t.Errorf("firing %t", s.Firing)
		}
	}, overNetwork(t, &network))
}

// overNetwork gives each node a mux of its own, over a network in memory with delays, that tells of peers which are gone.
func overNetwork(t *testing.T, to **peertest.Network) func(*cluster) {
	return func(c *cluster) {
		network := peertest.New()
		*to = network
		hosts := []string{"n1", "n2", "n3"}
		for i, a := range hosts {
			for _, b := range hosts[i+1:] {
				network.Delay(a, b, 500*time.Microsecond)
			}
		}
		c.serve = func(n *node, ctx context.Context) (wait func()) {
			mux := peer.New(peer.Config{
				NodeID: n.id, BootID: "boot", ClusterID: func() string { return "cluster" },
				Resolve: func(node string) (string, bool) { return node, true }, Dial: network.Dialer(n.id),
				OnPeerLost: func(node, _ string, refused bool) {
					if time.Sleep(n.hears); refused {
						n.shard.PeerLost(ctx, node)
					}
				},
			})
			listener, err := network.Listen(n.id)
			if err != nil {
				t.Fatal(err)
			}
			n.peers = mux.Group(7)
			done := make(chan struct{})
			go func() {
				defer close(done)
				_ = mux.Run(ctx, listener)
			}()
			return func() { <-done }
		}
	}
}
