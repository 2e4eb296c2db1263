// Package shard keeps the timers of one shard in one Raft group and, while it leads, fires them.
//
// Invariants:
//
//  1. A result of Propose is of an entry that a majority has on disk. Any other end says what is known: not applied
//     (*NotLeaderError, *OverloadedError, ErrUnavailable) or ErrUnknown.
//  2. Nothing fires before the entry that opened the epoch is applied here, and nothing fires unless a majority answered
//     a message that was sent within the lease.
//  3. Every waiter of Propose, Get and List is released by its context, by a change of leadership and by the stop; none
//     waits for a future of Raft.
//  4. After an entry that cannot be applied, and after a write of the log that failed, the replica does nothing more, and
//     Run returns an error that says so.
//
// Threads: Run starts and waits for the steward (leadership), the sender (log entries), the reader (linearizable reads),
// the snapshot taker, the writer of the log and the one that empties Raft's notifications; the executor's loop belongs to the
// node. All methods may be called from any goroutine. DESIGN.md walks through one timer's life.
package shard

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"time"

	"github.com/carillon-timers/carillon/raftfsm"
	"github.com/carillon-timers/carillon/shard/executor"
	"github.com/hashicorp/raft"
)

// Errors that Run returns when the replica has stopped by itself; *ApplyError and *DiskError are the others.
var (
	// ErrWedged: this replica leads and hears of its majority, but an entry is not applied. Open it again.
	ErrWedged = errors.New("the Raft group is wedged")
	// ErrRemoved: the group has committed a configuration without this replica. Ask the recorded map before its files are
	// deleted; a replica that was added again meets its old removal while it catches up, and is to be opened again.
	ErrRemoved = errors.New("the replica was removed from its group")
	// ErrSlowStop: Raft did not stop in time. The log is left open, since Raft may still use it, until Ended. Nothing more is written
	// to it.
	ErrSlowStop = errors.New("the replica did not stop in time")
)

// Deps are what a shard needs of its node.
type Deps struct {
	// Transport carries the group's messages. It must do pre-vote (raft.WithPreVote). The shard closes it, if it can be closed.
	Transport raft.Transport
	// Stores replace the files under Config.Dir.
	Stores *Stores
	// Loop runs the executor. Deliverer learns what is ready.
	Loop      *executor.Loop
	Deliverer executor.Deliverer
	// Now is the wall clock, for the clock of the entries; default time.Now. When it runs back the entries' clock stands
	// still until it has caught up; when it jumps ahead what is due fires at once, in order, and the entries' clock does
	// not come back.
	Now func() time.Time
	// Monotonic is read for leases, waits and figures; its times must carry a monotonic reading. Default time.Now.
	Monotonic func() time.Time
	// Logger is the default logger if nil.
	Logger *slog.Logger
	// SnapshotGate is shared by the shards of a node; nil is always open.
	SnapshotGate *Gate
	// Addr is where clients reach a node, for *NotLeaderError; may be nil.
	Addr func(node string) string
}

// Shard is one replica.
type Shard struct {
	// These are set before sharing.
	c           Config
	d           Deps
	log         *slog.Logger
	incarnation uint64
	stores      *Stores
	disk        *disk
	transport   *contactTransport
	lease       *lease
	fsm         *raftfsm.FSM
	exec        *executor.Exec
	proposer    *proposer
	steward     *steward
	reads       *reads
	snapshots   *snapshots
	pipelines   sync.WaitGroup

	raft       atomic.Pointer[raft.Raft]
	candidates atomic.Pointer[Candidates]
	// kept (the timers that are not finished), applied and poisoned are written by the goroutine that applies.
	kept     atomic.Int64
	applied  atomic.Uint64
	poisoned atomic.Pointer[ApplyError]

	// stopping is closed first when Run ends, done last; ended when nothing runs on any more either.
	stopping, done, ended chan struct{}
	// late are the waits of a stop that go on behind it; closing says that the log is closed by one of them. Touched by Run alone.
	late    sync.WaitGroup
	closing bool

	mu sync.Mutex
	// state is how far the replica's life has come; cancel ends Run. Guarded by mu.
	state  state
	cancel context.CancelCauseFunc
}

type state int

const (
	opened state = iota
	running
	closed
)

// Open opens a replica: its files, its state and its place in the loop. Call Run to start it, or Close.
func Open(c Config, d Deps) (*Shard, error) {
	if err := c.Validate(); err != nil {
		return nil, fmt.Errorf("open shard %d: %w", c.ID, err)
	}
	votes, ok := d.Transport.(raft.WithPreVote)
	if !ok || d.Loop == nil || d.Deliverer == nil {
		return nil, fmt.Errorf("open shard %d: a transport with pre-vote, a loop and a deliverer are needed", c.ID)
	}
	if d.Now == nil {
		d.Now = time.Now
	}
	if d.Monotonic == nil {
		d.Monotonic = time.Now
	}
	if d.Logger == nil {
		d.Logger = slog.Default()
	}
	s := &Shard{
		c: c, d: d, log: d.Logger.With("shard", c.ID), incarnation: rand.Uint64(), stores: d.Stores,
		stopping: make(chan struct{}), done: make(chan struct{}), ended: make(chan struct{}),
	}
	if s.stores == nil {
		var err error
		if s.stores, err = openStores(c, newRaftLogger(s.log)); err != nil {
			return nil, fmt.Errorf("open shard %d: %w", c.ID, err)
		}
	}
	s.disk = newDisk(s.stores, c.WriteTimeout, d.Monotonic, s.fail)
	s.disk.leads = func() bool { r := s.raft.Load(); return r != nil && r.State() == raft.Leader }
	s.lease = newLease(raft.ServerID(c.Node), c.LeaseTimeout, d.Monotonic, s.servers)
	s.steward = newSteward(s)
	s.transport = &contactTransport{
		Transport: d.Transport, votes: votes, lease: s.lease, pipelines: &s.pipelines, refused: s.steward.transferRefused,
		flushed: s.disk.early.upTo,
	}
	s.proposer, s.reads, s.snapshots = newProposer(s), newReads(s), newSnapshots(s)
	s.exec = d.Loop.Add(executor.Options{
		Shard: c.ID, Deliverer: d.Deliverer, LeaseHeld: s.mayFire, Settle: s.proposer.settleOwn,
	})
	s.fsm = raftfsm.New(raftfsm.Options{
		Shard: c.ID, Retention: c.Retention.Milliseconds(), MaxFinished: c.MaxFinished, MaxRequests: c.MaxRequests,
		Feed: s.exec.Feed(), Repeats: newRepeats(s.log),
	})
	s.exec.SetTable(s.fsm)
	return s, nil
}

// raftConfig is Raft's view of the configuration.
func (s *Shard) raftConfig() *raft.Config {
	c := raft.DefaultConfig()
	c.LocalID = raft.ServerID(s.c.Node)
	c.HeartbeatTimeout, c.ElectionTimeout = s.c.HeartbeatTimeout, s.c.ElectionTimeout
	c.LeaderLeaseTimeout, c.CommitTimeout = s.c.LeaseTimeout, s.c.CommitTimeout
	c.MaxAppendEntries, c.TrailingLogs = s.c.MaxAppendEntries, s.c.TrailingLogs
	// Snapshots are ours to time.
	c.SnapshotInterval, c.SnapshotThreshold = math.MaxInt64/4, math.MaxUint64
	// A replica that applies its own removal stops by itself (ErrRemoved), leader or not. If Raft shut itself down nobody could
	// wait for its goroutines, and the log could not be closed.
	c.ShutdownOnRemove = false
	c.NoLegacyTelemetry = true
	c.Logger = newRaftLogger(s.log)
	return c
}

// HasState says whether the replica has a log, a term or a snapshot.
func (s *Shard) HasState() (bool, error) {
	has, err := raft.HasExistingState(s.disk, s.disk, s.stores.Snapshots)
	if err != nil {
		return false, fmt.Errorf("shard %d: read state: %w", s.c.ID, err)
	}
	return has, nil
}

// Bootstrap makes the servers a new group. Every first replica may be given the same servers; one that has state refuses
// (raft.ErrCantBootstrap).
func (s *Shard) Bootstrap(servers []raft.Server) error {
	configuration := raft.Configuration{Servers: servers}
	var err error
	if r := s.raft.Load(); r != nil {
		err = r.BootstrapCluster(configuration).Error()
	} else {
		err = s.bootstrapStores(configuration)
	}
	if err != nil {
		return fmt.Errorf("bootstrap shard %d: %w", s.c.ID, err)
	}
	return nil
}

// bootstrapStores is Bootstrap before Run.
func (s *Shard) bootstrapStores(configuration raft.Configuration) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.state != opened {
		return ErrUnavailable
	}
	return raft.BootstrapCluster(s.raftConfig(), s.disk, s.disk, s.stores.Snapshots, s.transport, configuration)
}

// servers lists the servers of the latest configuration; none before Run.
func (s *Shard) servers() []raft.Server {
	r := s.raft.Load()
	if r == nil {
		return nil
	}
	return r.GetConfiguration().Configuration().Servers
}

// fail makes Run return err, which says why the replica stops by itself. It does not wait.
func (s *Shard) fail(err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.cancel != nil {
		s.cancel(err)
	}
}

// poison stops the replica at an entry that it cannot apply. Called by the goroutine that applies.
func (s *Shard) poison(err *ApplyError) {
	s.poisoned.Store(err)
	s.log.Error("shard: THIS REPLICA STOPS: an entry of its log cannot be applied", "index", err.Index, "error", err.Cause)
	s.fail(err)
}

// notLeader says who leads instead, as far as it is known.
func (s *Shard) notLeader() *NotLeaderError {
	leader := s.Leader()
	if leader == "" || leader == s.c.Node {
		return &NotLeaderError{}
	}
	e := &NotLeaderError{Leader: leader}
	if s.d.Addr != nil {
		e.Addr = s.d.Addr(leader)
	}
	return e
}

// Leader is the node that leads as far as this replica knows; "" if it knows none. It costs a read lock.
func (s *Shard) Leader() string {
	r := s.raft.Load()
	if r == nil {
		return ""
	}
	addr, _ := r.LeaderWithID()
	return string(addr)
}
