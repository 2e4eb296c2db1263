package node

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"time"

	"github.com/hashicorp/raft"

	logv1 "github.com/carillon-timers/carillon/proto/carillonlog/v1"
	"github.com/carillon-timers/carillon/shard"
)

// directoryGroup is the number of the directory's Raft group on the peer port; shards have 0 to 255.
const directoryGroup = 65535

const (
	// directoryCommitTimeout is how soon followers learn that an entry is committed when nothing follows it: it bounds how
	// stale an idle follower's map is.
	directoryCommitTimeout = 200 * time.Millisecond
	// directoryTimeout bounds one change of the directory.
	directoryTimeout = 3 * time.Second
	// directoryTrailing and directorySnapshotAfter count log entries; the directory changes rarely.
	directoryTrailing      = 1024
	directorySnapshotAfter = 1024
)

// directory is this node's replica of the directory group.
type directory struct {
	raft       *raft.Raft
	candidates *shard.Candidates
	fsm        *directoryFSM
	store      directoryStore
	transport  raft.Transport
	log        *slog.Logger

	futures sync.WaitGroup // who listens to a future; nobody waits for it, see wait
}

// directoryStore keeps Raft's log and votes.
type directoryStore interface {
	raft.LogStore
	raft.StableStore
	Close() error
}

// directoryOptions say how the replica is opened.
type directoryOptions struct {
	config    Config
	dir       string
	store     directoryStore
	transport raft.Transport
	fsm       *directoryFSM
	log       *slog.Logger
	mono      func() time.Time
	// bootstrap lists all nodes if this one creates the cluster.
	bootstrap []string
	// opened is called before the replica can vote for the first time.
	opened func() error
}

// openDirectory opens the replica; a fresh one that is not bootstrapped stays idle until a leader finds it.
func openDirectory(o directoryOptions) (*directory, error) {
	d, err := openDirectoryOn(o)
	if err != nil {
		return nil, errors.Join(err, o.store.Close())
	}
	return d, nil
}

func openDirectoryOn(o directoryOptions) (*directory, error) {
	store := o.store
	logger := raftLogger(o.log)
	snapshots, err := raft.NewFileSnapshotStoreWithLogger(o.dir, 2, logger)
	if err != nil {
		return nil, fmt.Errorf("directory: snapshots: %w", err)
	}
	c := raft.DefaultConfig()
	c.LocalID = raft.ServerID(o.config.ID)
	c.HeartbeatTimeout, c.ElectionTimeout, c.LeaderLeaseTimeout = o.config.HeartbeatTimeout, o.config.ElectionTimeout, o.config.LeaseTimeout
	c.CommitTimeout = directoryCommitTimeout
	c.TrailingLogs, c.SnapshotThreshold = directoryTrailing, directorySnapshotAfter
	c.ShutdownOnRemove, c.NoLegacyTelemetry = false, true
	c.Logger = logger
	if len(o.bootstrap) > 0 {
		err := raft.BootstrapCluster(c, store, store, snapshots, o.transport, directoryServers(o.bootstrap))
		if err != nil && !errors.Is(err, raft.ErrCantBootstrap) { // it can't if an earlier start came this far
			return nil, fmt.Errorf("directory: bootstrap: %w", err)
		}
	}
	if err := o.opened(); err != nil {
		return nil, fmt.Errorf("directory: %w", err)
	}
	r, err := raft.NewRaft(c, o.fsm, store, store, snapshots, o.transport)
	if err != nil {
		return nil, fmt.Errorf("directory: %w", err)
	}
	return &directory{raft: r, candidates: shard.WatchCandidates(r, o.mono), fsm: o.fsm, store: store, transport: o.transport, log: o.log}, nil
}

// directoryServers is the first configuration: the first nodes vote, the rest listens.
func directoryServers(nodes []string) raft.Configuration {
	var c raft.Configuration
	for i, id := range nodes {
		s := raft.Server{Suffrage: raft.Voter, ID: raft.ServerID(id), Address: raft.ServerAddress(id)}
		if i >= MaxDirectoryVoters {
			s.Suffrage = raft.Nonvoter
		}
		c.Servers = append(c.Servers, s)
	}
	return c
}

// leader is the node that leads the directory; empty while none is known.
func (d *directory) leader() string {
	_, id := d.raft.LeaderWithID()
	return string(id)
}

func (d *directory) leads() bool { return d.raft.State() == raft.Leader }

// propose commits one entry; an error of package node's small set is the entry's refusal.
func (d *directory) propose(ctx context.Context, e *logv1.DirectoryEntry) error {
	body, err := e.MarshalVT()
	if err != nil {
		return fmt.Errorf("directory: %w", err)
	}
	future := d.raft.Apply(seal(envelopeEntry, body), directoryTimeout)
	if err := d.wait(ctx, future, directoryTimeout); err != nil {
		return fmt.Errorf("directory: %w", err)
	}
	if refusal, ok := future.Response().(error); ok {
		return refusal
	}
	return nil
}

// admit adds a node to the group as one that listens.
func (d *directory) admit(ctx context.Context, node string) error {
	config := d.raft.GetConfiguration()
	if err := d.wait(ctx, config, directoryTimeout); err != nil {
		return fmt.Errorf("directory: %w", err)
	}
	known := func(s raft.Server) bool { return s.ID == raft.ServerID(node) }
	if slices.ContainsFunc(config.Configuration().Servers, known) {
		return nil
	}
	future := d.raft.AddNonvoter(raft.ServerID(node), raft.ServerAddress(node), 0, directoryTimeout)
	if err := d.wait(ctx, future, directoryTimeout); err != nil {
		return fmt.Errorf("directory: admit %s: %w", node, err)
	}
	return nil
}

// barrier returns when all that was committed before has been applied here; only the leader can.
func (d *directory) barrier(ctx context.Context) error {
	return d.wait(ctx, d.raft.Barrier(directoryTimeout), directoryTimeout)
}

// handOver gives the leadership away, if this replica has it and another voter is there to take it.
func (d *directory) handOver(ctx context.Context) {
	if !d.leads() {
		return
	}
	if err := d.wait(ctx, d.raft.LeadershipTransfer(), directoryTimeout); err != nil {
		d.log.Info("directory: the leadership was not handed over", "error", err)
	}
}

// close stops Raft and then the store; it gives up waiting when ctx ends, and then leaves the store open.
func (d *directory) close(ctx context.Context) error {
	shutdown := d.raft.Shutdown()
	closeTransport(d.transport)
	if err := d.wait(ctx, shutdown, directoryTimeout); err != nil {
		return fmt.Errorf("directory: shutdown: %w", err)
	}
	return d.store.Close()
}

// closeTransport ends what a Raft group that stops still asks of others: they may be stopping too, and two that wait for each
// other's answers would wait for a call's whole time-out.
func closeTransport(t raft.Transport) {
	if c, ok := t.(raft.WithClose); ok {
		_ = c.Close() // the mux's never fails
	}
}

// errRaftTimeout: a future of Raft did not resolve in time; what it stands for may still happen.
var errRaftTimeout = errors.New("raft did not answer in time")

// wait waits for a future no longer than the limit: after a shutdown some futures of hashicorp/raft never resolve, so
// the goroutine that listens to one is left behind.
func (d *directory) wait(ctx context.Context, f raft.Future, limit time.Duration) error {
	done := make(chan error, 1)
	d.futures.Go(func() { done <- f.Error() })
	timer := time.NewTimer(limit)
	defer timer.Stop()
	select {
	case err := <-done:
		return err
	case <-ctx.Done():
		return ctx.Err()
	case <-timer.C:
		return errRaftTimeout
	}
}
