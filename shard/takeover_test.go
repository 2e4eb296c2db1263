package shard

import (
	"fmt"
	"testing"
	"time"

	"github.com/hashicorp/raft"

	"github.com/carillon-timers/carillon/raftfsm"
	"github.com/carillon-timers/carillon/shard/executor"
	"github.com/carillon-timers/carillon/transport/peer/peertest"
)

// A wrong guess: all survivors are told, again and again, that a leader which lives is gone. It costs elections; no timer is
// lost or rings early.
func TestTakeOverFromALivingLeader(t *testing.T) {
	t.Parallel()
	var network *peertest.Network
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
	}, overNetwork(t, &network))
}

// One survivor has a shorter log than the other and asks for its vote in vain: the other then stands at once, whether it learns of the
// loss before it is asked or after, and whether it is the next in turn or the first, which has learned of it too late for its turn.
func TestTakeOverAfterOneWithAShorterLog(t *testing.T) {
	t.Parallel()
	for _, story := range []struct {
		name          string
		shorter       int // whose turn the one with the shorter log has
		first, second time.Duration
		limit         time.Duration
	}{
		{"the next learns of it at once", 0, 0, 0, 150 * time.Millisecond},
		{"the next learns of it later", 0, 0, 20 * time.Millisecond, 170 * time.Millisecond},
		{"the first learns of it after its turn", 1, TakeOverTurn + 20*time.Millisecond, 0, TakeOverTurn + 120*time.Millisecond},
	} {
		t.Run(story.name, func(t *testing.T) {
			t.Parallel()
			var network *peertest.Network
			inBubble(t, 3, func(t *testing.T, c *cluster) {
				old := c.leader()
				var byTurn [2]*node
				for _, n := range c.nodes {
					if n != old {
						byTurn[turnOf(n.shard.servers(), raft.ServerAddress(n.id), raft.ServerAddress(old.id), n.shard.c.ID)] = n
					}
				}
				byTurn[0].hears, byTurn[1].hears = story.first, story.second
				longer := byTurn[1-story.shorter]
				network.Cut(old.id, byTurn[story.shorter].id)
				c.propose(after("a", time.Hour))
				network.Kill(old.id)
				network.HealAll()
				start := time.Now()
				if c.leader(old) != longer {
					t.Errorf("%s does not lead", longer.id)
				}
				if took := time.Since(start); took > story.limit {
					t.Errorf("%s leads after %v", longer.id, took)
				}
			}, overNetwork(t, &network))
		})
	}
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
