package shard

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/hashicorp/raft"

	"github.com/carillon-timers/carillon/raftfsm"
	"github.com/carillon-timers/carillon/shard/executor"
	"github.com/carillon-timers/carillon/transport/peer"
	"github.com/carillon-timers/carillon/transport/peer/peertest"
)

// overPeers has the cluster talk through the product's own transport, on a network in memory, and tells each replica of
// peers whose process is gone.
func overPeers(t *testing.T, network *peertest.Network) func(*cluster) {
	return func(c *cluster) {
		c.serve = func(n *node, ctx context.Context) (wait func()) {
			mux := peer.New(peer.Config{
				NodeID: n.id, BootID: "boot", ClusterID: func() string { return "cluster" },
				Resolve: func(node string) (string, bool) { return node, true }, Dial: network.Dialer(n.id),
				OnPeerLost: func(node, _ string, refused bool) {
					if refused {
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

// A leader whose process is gone is replaced long before a heartbeat timeout (500 ms): its connections break and its port
// refuses.
func TestTakeOverFromADeadProcess(t *testing.T) {
	t.Parallel()
	network := peertest.New()
	inBubble(t, 3, func(t *testing.T, c *cluster) {
		old := c.leader()
		network.Kill(old.id)
		killed := time.Now()
		c.leader(old)
		if took := time.Since(killed); took > 150*time.Millisecond {
			t.Errorf("the next leader fires after %v, want at most 150 ms", took)
		}
	}, overPeers(t, network))
}

// A wrong guess: all survivors are told, again and again, that a leader which lives is gone. It costs elections; no timer is
// lost or rings early.
func TestTakeOverFromALivingLeader(t *testing.T) {
	t.Parallel()
	network := peertest.New()
	inBubble(t, 3, func(t *testing.T, c *cluster) {
		c.sink.answer(func(d executor.Delivery) { c.propose(completeOf(d)) })
		start := time.Now()
		due := map[string]time.Time{}
		var cmds []*raftfsm.Command
		for i := range 300 {
			id, at := fmt.Sprintf("t%d", i), start.Add(time.Duration(1000+20*i)*time.Millisecond)
			cmds, due[id] = append(cmds, schedule(id, at)), at
		}
		c.propose(cmds...)
		for range 6 {
			time.Sleep(time.Second)
			leader := c.leader()
			for _, n := range c.nodes {
				if n != leader {
					n.shard.PeerLost(t.Context(), leader.id)
				}
			}
		}
		time.Sleep(20 * time.Second)
		rung := map[string]bool{}
		for _, d := range c.sink.all() {
			rung[d.Record.ID] = true
			if d.at.Before(due[d.Record.ID]) {
				t.Errorf("%s rang %v early", d.Record.ID, due[d.Record.ID].Sub(d.at))
			}
		}
		if len(rung) != len(due) {
			t.Errorf("%d of %d timers rang", len(rung), len(due))
		}
		c.inStep()
	}, overPeers(t, network))
}

func TestTurnOf(t *testing.T) {
	t.Parallel()
	servers := []raft.Server{
		{Suffrage: raft.Voter, Address: "n3"}, {Suffrage: raft.Voter, Address: "n1"}, {Suffrage: raft.Voter, Address: "n2"},
		{Suffrage: raft.Nonvoter, Address: "n4"},
	}
	for _, c := range []struct {
		self  raft.ServerAddress
		group uint32
		want  int
	}{{"n1", 0, 0}, {"n3", 0, 1}, {"n1", 1, 1}, {"n3", 1, 0}, {"n4", 0, -1}, {"n2", 0, -1}} {
		if got := turnOf(servers, c.self, "n2", c.group); got != c.want {
			t.Errorf("turn of %s in group %d is %d, want %d", c.self, c.group, got, c.want)
		}
	}
}
