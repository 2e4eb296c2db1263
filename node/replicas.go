package node

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/hashicorp/raft"

	"github.com/carillon-timers/carillon/shard"
)

// Waits before a replica that stopped by itself is opened again.
const (
	reopenMin   = 200 * time.Millisecond
	reopenMax   = 10 * time.Second
	reopenReset = time.Minute // after so long a run the wait starts again at the minimum
)

// replica is one shard on this node and its supervisor.
type replica struct {
	id    int
	nodes []string // of the shard, preferred leader first; nil if it is opened from what the disk says. Set before sharing.

	open     atomic.Pointer[shard.Shard] // nil while it is not open
	caughtUp atomic.Bool                 // it has had, since it was opened, all that its leader had when it was asked
	goal     atomic.Uint64               // what its leader had when it was asked; 0 before
	failed   atomic.Pointer[string]      // why it was stopped for good
	reopened atomic.Int64                // how often it was opened again
	since    atomic.Pointer[time.Time]   // since when it leads; nil while it does not. Written by balance alone.
	avoid    atomic.Pointer[time.Time]   // until when its leadership is not handed over again. Written by balance alone.
}

// replicaSet supervises the replicas of this node.
type replicaSet struct {
	n         *Node
	log       *slog.Logger
	snapshots *shard.Gate // one snapshot at a time

	mu      sync.Mutex
	byShard [MaxShards]*replica // guarded by mu; an entry never changes once it is set
	wanted  chan *replica       // from ensure to run
}

func newReplicaSet(n *Node) *replicaSet {
	return &replicaSet{n: n, log: n.log, snapshots: shard.NewGate(1), wanted: make(chan *replica, MaxShards)}
}

// ensure has a replica of the shard supervised. It never waits: each shard comes at most once.
func (s *replicaSet) ensure(id int, nodes []string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.byShard[id] == nil {
		r := &replica{id: id, nodes: nodes}
		s.byShard[id] = r
		s.wanted <- r
	}
}

// get returns the replica of a shard; nil if this node has none.
func (s *replicaSet) get(id int) *replica {
	if id < 0 || id >= MaxShards {
		return nil
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.byShard[id]
}

// all returns the replicas in the order of their shards.
func (s *replicaSet) all() []*replica {
	s.mu.Lock()
	defer s.mu.Unlock()
	var all []*replica
	for _, r := range s.byShard {
		if r != nil {
			all = append(all, r)
		}
	}
	return all
}

// local is the shard of this node that takes calls; nil if there is none.
func (s *replicaSet) local(id int) localShard {
	if r := s.get(id); r != nil {
		if open := r.open.Load(); open != nil {
			return open
		}
	}
	return nil
}

// run supervises until the context ends, and returns when all replicas have stopped; the error names those that did not
// stop cleanly.
func (s *replicaSet) run(ctx context.Context) error {
	var supervised sync.WaitGroup
	var errs [MaxShards]error // each written by its supervisor
	for ctx.Err() == nil {
		select {
		case r := <-s.wanted:
			supervised.Go(func() { errs[r.id] = s.supervise(ctx, r) })
		case <-ctx.Done():
		}
	}
	supervised.Wait()
	return errors.Join(errs[:]...)
}

// supervise opens the replica again when it has stopped for a reason that may pass; after one that cannot, it stays
// closed, and the process and the other shards live on.
func (s *replicaSet) supervise(ctx context.Context, r *replica) error {
	log := s.log.With("shard", r.id)
	wait := reopenMin
	for ctx.Err() == nil {
		began := s.n.mono()
		err := s.runOnce(ctx, r)
		if ctx.Err() != nil {
			return err
		}
		if err == nil {
			err = errors.New("the replica ended by itself")
		}
		if fatalReplica(err) {
			words := err.Error()
			r.failed.Store(&words)
			log.Error("the replica has FAILED and stays closed; it needs a hand", "error", err)
			return nil
		}
		if s.n.mono().Sub(began) > reopenReset {
			wait = reopenMin
		}
		log.Error("the replica stopped; it is opened again", "error", err, "after", wait)
		sleep(ctx, wait)
		wait = min(2*wait, reopenMax)
		r.reopened.Add(1)
	}
	return nil
}

// runOnce opens the replica and runs it until it stops. The preferred node gives a shard its first configuration, and
// only while the replica has never been opened to the end.
func (s *replicaSet) runOnce(ctx context.Context, r *replica) error {
	deps, config := s.deps(r.id), s.config(r.id)
	var err error
	if deps.Stores, err = s.n.shardStores(config); err != nil {
		return fmt.Errorf("open: %w", err)
	}
	open, err := shard.Open(config, deps)
	if err != nil {
		return fmt.Errorf("open: %w", err)
	}
	if s.n.identity.firstTime(r.id) {
		err = s.first(r, open)
	}
	if err != nil {
		return errors.Join(err, open.Close())
	}
	r.caughtUp.Store(false)
	r.goal.Store(0)
	r.open.Store(open)
	err = open.Run(ctx)
	r.open.Store(nil)
	s.n.deliverers().forget(uint32(r.id))
	if errors.Is(err, shard.ErrSlowStop) && !fatalReplica(err) {
		s.log.Error("the replica runs on; it is not opened again before it has ended", "shard", r.id, "error", err)
		select {
		case <-open.Ended():
		case <-ctx.Done():
		}
	}
	return err
}

// first is what is done with a replica that has never been opened to the end.
func (s *replicaSet) first(r *replica, open *shard.Shard) error {
	has, err := open.HasState()
	if err != nil {
		return err
	}
	if !has && len(r.nodes) > 0 && r.nodes[0] == s.n.config.ID {
		if err := open.Bootstrap(servers(r.nodes)); err != nil {
			return err
		}
	}
	return s.n.identity.endShard(r.id)
}

func servers(nodes []string) []raft.Server {
	var servers []raft.Server
	for _, id := range nodes {
		servers = append(servers, raft.Server{Suffrage: raft.Voter, ID: raft.ServerID(id), Address: raft.ServerAddress(id)})
	}
	return servers
}

// fatalReplica tells damage, unknown entries and a removal from the group, which no new opening heals, from what may pass.
func fatalReplica(err error) bool {
	var damaged *shard.DamagedError
	var apply *shard.ApplyError
	return errors.As(err, &damaged) || errors.As(err, &apply) || errors.Is(err, shard.ErrRemoved)
}

// config shapes the replica of a shard.
func (s *replicaSet) config(id int) shard.Config {
	n := s.n
	c := shard.DefaultConfig()
	c.ID, c.Node, c.Boot, c.Dir = uint32(id), n.config.ID, n.boot, n.identity.shardDir(id)
	c.HeartbeatTimeout, c.ElectionTimeout, c.LeaseTimeout = n.config.HeartbeatTimeout, n.config.ElectionTimeout, n.config.LeaseTimeout
	c.StopTimeout = n.config.StopTimeout / 4
	c.SnapshotEntries = uint64(n.config.SnapshotEntries)
	return c
}

// deps are the parts that the shards of a node share.
func (s *replicaSet) deps(id int) shard.Deps {
	n := s.n
	return shard.Deps{
		Transport: n.mux.Group(uint32(id)), Loop: n.loops[id%len(n.loops)], Deliverer: n.deliverers(), Now: n.now, Logger: n.log,
		SnapshotGate: s.snapshots, Addr: n.clientAddr,
	}
}
