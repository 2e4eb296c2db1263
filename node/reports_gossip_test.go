package node

import (
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/carillon-timers/carillon/client"
)

// Gossip took healthy nodes for dead while one was overloaded, and members flapped (hashicorp/consul #916, #1212). What gossip
// says of a node that works moves no leadership and removes no member.
func TestGossipAloneMovesNothing(t *testing.T) {
	t.Parallel()
	c := newTestCluster(t, spineShards)
	c.startAll(3)
	cl := c.client()
	before := c.epochs(t, cl)
	version := func() uint64 { state, _ := c.nodes["n1"].fsm.look(); return state.Version }
	leads := func() (leaders []string) {
		shards, err := cl.Shards(t.Context())
		if err != nil {
			t.Error(err)
		}
		for _, s := range shards {
			leaders = append(leaders, s.Leader)
		}
		return leaders
	}
	eventually(t, func() error { // no hand-over to a preferred node is on its way
		state, _ := c.nodes["n1"].fsm.look()
		for s, leader := range leads() {
			if want := state.replicas(s)[0]; leader != want {
				return fmt.Errorf("%s leads shard %d, not %s", leader, s, want)
			}
		}
		before = c.epochs(t, cl)
		return nil
	})
	map0 := version()
	if err := c.nodes["n2"].gossip.list.Load().Leave(time.Second); err != nil {
		t.Fatal(err)
	}
	eventually(t, func() error {
		if _, seen := c.nodes["n1"].gossip.find("n2"); seen {
			return errors.New("gossip still sees n2")
		}
		return nil
	})
	for s := range spineShards { // later than a hand-over would take
		if _, err := cl.Schedule(t.Context(), client.Timer{ID: idOf(s, spineShards), After: 4 * time.Second, Queue: "gossip"}); err != nil {
			t.Errorf("shard %d: %v", s, err)
		}
	}
	work(t, cl, "gossip").wait(t, "t", spineShards)
	if after := c.epochs(t, cl); !slices.Equal(before, after) || version() != map0 { // each reign has its own epoch
		t.Errorf("epochs %v, then %v; map %d, then %d", before, after, map0, version())
	}
	if state, _ := c.nodes["n1"].fsm.look(); state.Members["n2"].ID != "n2" {
		t.Error("n2 is no member any more")
	}
}
