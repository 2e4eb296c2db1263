package node

import (
	"errors"
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/carillon-timers/carillon/client"
	carillonv1 "github.com/carillon-timers/carillon/proto/carillon/v1"
	logv1 "github.com/carillon-timers/carillon/proto/carillonlog/v1"
)

// A cluster of one, with the ways in which its node must not be started again.
func TestOneNode(t *testing.T) {
	t.Parallel()
	c := newTestCluster(t, 2)
	c.startAll(1)
	cl := c.client()
	if _, err := cl.Schedule(t.Context(), client.Timer{ID: "kept", After: time.Hour, Queue: "q"}); err != nil {
		t.Fatal(err)
	}
	again := c.config("n1", 1)
	again.Join = nil
	if err := c.start(again).mustEnd(t); !strings.Contains(err.Error(), "in use by another process") {
		t.Errorf("a second process: %v", err)
	}
	if took := c.stop("n1"); took > again.StopTimeout {
		t.Errorf("the stop took %v", took)
	}
	again.Shards = 3
	if err := c.start(again).mustEnd(t); !strings.Contains(err.Error(), "has 2 shards, which never changes; this start says 3") {
		t.Errorf("another shard count: %v", err)
	}
	again.Shards, again.BootstrapExpect = 0, 0
	c.start(again)
	c.waitReady()
	if s, err := c.client().Get(t.Context(), "kept"); err != nil || s.State != client.Pending {
		t.Errorf("kept: state %v, %v", s.State, err)
	}
}

// After a stop of all nodes they find each other where they were, with no --join. Not beside the other tests, which could take the ports.
func TestAllComeBackWhereTheyWere(t *testing.T) {
	c := newTestCluster(t, 2)
	c.startAll(3)
	if _, err := c.client().Schedule(t.Context(), client.Timer{ID: "kept", After: time.Hour, Queue: "q"}); err != nil {
		t.Fatal(err)
	}
	var configs []Config
	for id, n := range c.nodes {
		config, at := c.config(id, 0), n.Addrs()
		config.Join, config.Shards = nil, 0
		config.ClientAddr, config.PeerAddr, config.GossipAddr, config.HTTPAddr = at.Client, at.Peer, at.Gossip, at.HTTP
		configs = append(configs, config)
		eventually(t, func() error { // n1 may still be telling the others
			if known := n.identity.get().Members; len(known) != 3 {
				return fmt.Errorf("%s knows where %d members are", id, len(known))
			}
			return nil
		})
	}
	c.stopAll()
	for _, config := range configs {
		c.start(config)
	}
	c.waitReady()
	if s, err := c.client().Get(t.Context(), "kept"); err != nil || s.State != client.Pending {
		t.Errorf("kept: state %v, %v", s.State, err)
	}
}

// A node that joins later is a member and a full proxy, though it holds no shard; it joins again under its own disk only.
func TestJoinAndWipedDisk(t *testing.T) {
	t.Parallel()
	c := newTestCluster(t, 2)
	c.startAll(2)
	late := c.config("n5", 0)
	late.Shards = 0
	c.start(late)
	c.waitReady()
	proxy := c.timers(t, "n5")
	batch := &carillonv1.ScheduleBatchRequest{}
	for _, id := range []string{"a", "b"} {
		batch.Items = append(batch.Items, &carillonv1.ScheduleRequest{Timer: &carillonv1.Timer{
			Id: id, When: inAnHour, Target: &carillonv1.Timer_Queue{Queue: "q"},
		}})
	}
	resp, err := proxy.ScheduleBatch(t.Context(), batch)
	if err != nil || len(resp.Results) != 2 || resp.Results[0].GetOk() == nil || resp.Results[1].GetOk() == nil {
		t.Errorf("through the proxy: %v, %v", resp, err)
	}
	state, _ := c.nodes["n5"].fsm.look()
	if m, known := state.Members["n5"]; !known || m.Voter || len(state.shardsOf("n5")) != 0 {
		t.Errorf("member %+v, shards %v", m, state.shardsOf("n5"))
	}
	// A shard count that is not the cluster's keeps a node out.
	wrong := c.config("n6", 0)
	wrong.Shards = 7
	if err := c.start(wrong).mustEnd(t); !strings.Contains(err.Error(), "has 2 shards, which never changes; this start says 7") {
		t.Errorf("another shard count: %v", err)
	}
	// A node that says it is reached where another is would be a member that nobody can reach.
	twin := c.config("n7", 0)
	twin.Shards, twin.AdvertisePeerAddr = 0, c.nodes["n2"].Addrs().Peer
	if err := c.start(twin).mustEnd(t); !errors.Is(err, errRefused) || !strings.Contains(err.Error(), "is that of n2") {
		t.Errorf("another node's address: %v", err)
	}
	if state, _ := c.nodes["n1"].fsm.look(); state.Members["n7"].ID != "" {
		t.Error("a node that nobody can reach became a member")
	}
	// A voter that lost its disk comes back under its ID: it could vote twice in a term.
	config := c.config("n2", 2)
	config.Shards = 0
	c.stop("n2")
	if err := os.RemoveAll(config.Dir); err != nil {
		t.Fatal(err)
	}
	if err := c.start(config).mustEnd(t); !errors.Is(err, errRefused) || !strings.Contains(err.Error(), "could vote twice") {
		t.Errorf("a wiped disk: %v", err)
	}
}

// A pledge binds a node to one cluster, before its answer leaves and over restarts.
func TestPledge(t *testing.T) {
	t.Parallel()
	c := newTestCluster(t, 2)
	config := c.config("n2", 3)
	n := c.start(config)
	ask := func(n *testNode, cluster string, shards uint32, nodes ...string) error {
		body, err := (&logv1.Pledge{ClusterId: cluster, Proposer: nodes[0], Nodes: nodes, Shards: shards, Replicas: 3}).MarshalVT()
		if err != nil {
			t.Fatal(err)
		}
		answer, err := n.onPledge(t.Context(), nodes[0], directoryGroup, body)
		if err != nil {
			return err
		}
		given := &logv1.PledgeGiven{}
		if err := given.UnmarshalVT(answer); err != nil || given.Member.GetDiskUuid() != n.identity.get().DiskUUID {
			return fmt.Errorf("answer %v, %w", given, err)
		}
		return nil
	}
	for name, err := range map[string]error{
		"other shards": ask(n, "c1", 3, "n1", "n2", "n3"),
		"other count":  ask(n, "c1", 2, "n1", "n2"),
		"not for me":   ask(n, "c1", 2, "n1", "n3", "n4"),
		"no cluster":   ask(n, "", 2, "n1", "n2", "n3"),
	} {
		if err == nil {
			t.Errorf("%s: was given", name)
		}
	}
	if id := n.identity.get(); id.ClusterID != "" {
		t.Fatalf("a refused pledge was written: %+v", id)
	}
	if err := ask(n, "c1", 2, "n1", "n2", "n3"); err != nil {
		t.Fatal(err)
	}
	if err := ask(n, "c1", 2, "n1", "n2", "n3"); err != nil {
		t.Errorf("asked again: %v", err)
	}
	if err := ask(n, "c2", 2, "n1", "n2", "n3"); err == nil {
		t.Error("a second cluster got a pledge")
	}
	c.stop("n2")
	n = c.start(config)
	if err := ask(n, "c2", 2, "n1", "n2", "n3"); err == nil {
		t.Error("a second cluster got a pledge after a restart")
	}
	if err := ask(n, "c1", 2, "n1", "n2", "n3"); err != nil {
		t.Errorf("asked again after a restart: %v", err)
	}
}

// The node that creates the cluster is cut off after its own pledge: when it comes back it goes on with the same cluster.
func TestCreationGoesOnAfterACrash(t *testing.T) {
	t.Parallel()
	c := newTestCluster(t, 2)
	config := c.config("n1", 2)
	id := openTestIdentity(t, config.Dir, "n1")
	if err := id.belong("c-first", 2, &pledgeRecord{Proposer: "n1", Nodes: []string{"n1", "n2"}, Replicas: 2}); err != nil {
		t.Fatal(err)
	}
	closeTestIdentity(t, id)
	c.start(config)
	c.start(c.config("n2", 2))
	c.waitReady()
	for id, n := range c.nodes {
		if state, _ := n.fsm.look(); state.ClusterID != "c-first" {
			t.Errorf("%s belongs to %s", id, state.ClusterID)
		}
	}
}

func TestConfigNamesWhatIsWrong(t *testing.T) {
	t.Parallel()
	for field, change := range map[string]func(*Config){
		"ID":              func(c *Config) { c.ID = "a b" },
		"Dir":             func(c *Config) { c.Dir = "" },
		"ClientAddr":      func(c *Config) { c.ClientAddr = "7400" },
		"Join":            func(c *Config) { c.Join = []string{"h:x:y"} },
		"BootstrapExpect": func(c *Config) { c.BootstrapExpect = -1 },
		"Shards":          func(c *Config) { c.Shards = 257 },
		"Loops":           func(c *Config) { c.Loops = 0 },
		"LeaseTimeout":    func(c *Config) { c.LeaseTimeout = c.HeartbeatTimeout },
		"ElectionTimeout": func(c *Config) { c.ElectionTimeout = c.HeartbeatTimeout - 1 },
		"BalanceAfter":    func(c *Config) { c.BalanceAfter = c.ElectionTimeout },
		"StopTimeout":     func(c *Config) { c.StopTimeout = time.Millisecond },
	} {
		c := DefaultConfig()
		c.ID, c.Dir = "n1", "d"
		if err := c.Validate(); err != nil {
			t.Fatalf("the defaults: %v", err)
		}
		change(&c)
		if err := c.Validate(); err == nil || !strings.Contains(err.Error(), "config: "+field+":") {
			t.Errorf("%s: got %v", field, err)
		}
	}
}
