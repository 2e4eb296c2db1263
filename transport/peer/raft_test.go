package peer

import (
	"bytes"
	"fmt"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hashicorp/raft"

	"github.com/carillon-timers/carillon/transport/peer/peertest"
)

var names = []string{"n1", "n2", "n3"}

// cluster is three hosts with the replicas of some groups.
type cluster struct {
	t        *testing.T
	n        *peertest.Network
	hosts    []*host
	replicas [][]*replica // by host, then group
}

func newCluster(t *testing.T, groups int, change func(*Config)) *cluster {
	t.Helper()
	c := &cluster{t: t, n: peertest.New()}
	var servers []raft.Server
	for _, id := range names {
		c.hosts = append(c.hosts, newHost(t, c.n, id, change).run(c.n))
		servers = append(servers, raft.Server{ID: raft.ServerID(id), Address: raft.ServerAddress(id)})
	}
	for _, h := range c.hosts {
		var rs []*replica
		for g := range groups {
			rs = append(rs, openReplica(t, h, uint32(g), nil, servers))
		}
		c.replicas = append(c.replicas, rs)
	}
	return c
}

func (c *cluster) stop() {
	for _, rs := range c.replicas {
		for _, r := range rs {
			if err := r.raft.Shutdown().Error(); err != nil {
				c.t.Error(err)
			}
		}
	}
	for _, h := range c.hosts {
		h.stop()
	}
}

// leader waits for the one leader of a group among the hosts, but those in not.
func (c *cluster) leader(group int, not ...int) int {
	c.t.Helper()
	at := -1
	until(c.t, 30*time.Second, fmt.Sprintf("group %d has a leader", group), func() bool {
		for i, rs := range c.replicas {
			if !slices.Contains(not, i) && rs[group].raft.State() == raft.Leader &&
				rs[group].raft.VerifyLeader().Error() == nil {
				at = i
				return true
			}
		}
		return false
	})
	return at
}

// same waits until the replicas of a group have applied the same words.
func (c *cluster) same(group, count int) {
	c.t.Helper()
	for i := range c.replicas {
		until(c.t, 30*time.Second, fmt.Sprintf("group %d on %s has applied %d", group, names[i], count), func() bool {
			return c.replicas[i][group].fsm.count() == count
		})
		if got, want := c.replicas[i][group].fsm.list, c.replicas[0][group].fsm.list; !slices.Equal(got, want) {
			c.t.Fatalf("group %d: %s differs from %s", group, names[i], names[0])
		}
	}
}

// A leader is cut off, another takes over, the old one comes back and follows.
func TestRaftLeaderCutAndHeal(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t, 1, nil)
		defer c.stop()
		old := c.leader(0)
		if err := c.replicas[old][0].raft.Apply([]byte("one"), time.Second).Error(); err != nil {
			t.Fatal(err)
		}
		c.n.Isolate(names[old])
		start := time.Now()
		next := c.leader(0, old)
		if took := time.Since(start); took > 5*time.Second {
			t.Errorf("the next leader took %v", took)
		}
		if err := c.replicas[next][0].raft.Apply([]byte("two"), time.Second).Error(); err != nil {
			t.Fatal(err)
		}
		time.Sleep(20 * time.Second) // connections are given up meanwhile
		c.n.HealAll()
		c.same(0, 2)
		if s := c.hosts[old].m.Stats(); s.Lost == 0 {
			t.Errorf("no connection was given up in a cut of 20 s: %+v", s)
		}
		next = c.leader(0)
		if err := c.replicas[next][0].raft.Apply([]byte("three"), time.Second).Error(); err != nil {
			t.Fatal(err)
		}
		c.same(0, 3)
	})
}

// Sixteen groups share the connections; every pair of hosts has one.
func TestRaftManyGroups(t *testing.T) {
	const groups, each = 16, 20
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t, groups, nil)
		defer c.stop()
		for g := range groups {
			at := c.leader(g)
			var futures []raft.ApplyFuture
			for i := range each {
				futures = append(futures, c.replicas[at][g].raft.Apply(fmt.Appendf(nil, "%d/%d", g, i), time.Second))
			}
			for _, f := range futures {
				if err := f.Error(); err != nil {
					t.Fatal(err)
				}
			}
		}
		for g := range groups {
			c.same(g, each)
		}
		time.Sleep(10 * time.Second) // drained connections have ended
		for _, id := range names {
			if got := c.n.Conns(id); got != 2 {
				t.Errorf("%s has %d connections, want 2", id, got)
			}
		}
		victim := c.leader(0)
		c.n.Isolate(names[victim])
		for g := range groups {
			at := c.leader(g, victim)
			if err := c.replicas[at][g].raft.Apply([]byte("after"), time.Second).Error(); err != nil {
				t.Fatal(err)
			}
		}
		c.n.HealAll()
		for g := range groups {
			c.same(g, each+1)
		}
	})
}

// Entries that take many fragments arrive, and heartbeats hold the leader while they travel.
func TestRaftBigEntries(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t, 2, nil)
		defer c.stop()
		at := c.leader(0)
		term := c.replicas[at][0].raft.CurrentTerm()
		var futures []raft.ApplyFuture
		for i := range 8 {
			futures = append(futures, c.replicas[at][0].raft.Apply(bytes.Repeat([]byte{byte(i)}, 1<<20), time.Second))
		}
		for _, f := range futures {
			if err := f.Error(); err != nil {
				t.Fatal(err)
			}
		}
		c.same(0, 8)
		if now := c.replicas[c.leader(0)][0].raft.CurrentTerm(); now != term {
			t.Errorf("term went from %d to %d", term, now)
		}
	})
}

// A follower that missed what the log no longer holds gets a snapshot over a connection of its own.
func TestRaftSnapshot(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t, 1, func(c *Config) { c.SnapshotRate = 4 << 20 })
		defer c.stop()
		at := c.leader(0)
		r := c.replicas[at][0].raft
		away := (at + 1) % 3
		c.n.Isolate(names[away])
		conf := r.ReloadableConfig()
		conf.TrailingLogs = 1
		if err := r.ReloadConfig(conf); err != nil {
			t.Fatal(err)
		}
		for i := range 8 {
			if err := r.Apply(bytes.Repeat([]byte{byte(i)}, 1<<20), time.Second).Error(); err != nil {
				t.Fatal(err)
			}
		}
		if err := r.Snapshot().Error(); err != nil {
			t.Fatal(err)
		}
		start := time.Now()
		c.n.HealAll()
		c.same(0, 8)
		if took := time.Since(start); took < 2*time.Second {
			t.Errorf("8 MiB at 4 MiB/s took %v", took)
		}
		sent, got := c.hosts[at].m.Stats(), c.hosts[away].m.Stats()
		if sent.SnapshotsSent != 1 || got.SnapshotsReceived != 1 || sent.SnapshotBytes < 8<<20 {
			t.Errorf("snapshots: sent %+v, received %+v", sent, got)
		}
	})
}
