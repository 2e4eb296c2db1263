package shard

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/hashicorp/raft"
)

// snapshotRetry is how long a snapshot that could not be taken is put off: a change of the configuration or a transfer was
// under way.
const snapshotRetry = time.Second

// snapshots takes the shard's snapshots: when the log has grown enough since the last, in turn with the other shards of the
// node, and never while leadership is being handed over.
type snapshots struct {
	s *Shard // set before sharing
	// due holds at most one signal.
	due chan struct{}

	mu sync.Mutex
	// What follows is guarded by mu.
	entries  uint64
	bytes    int64
	last     SnapshotInfo
	size     int64
	restored uint64
}

// SnapshotInfo is about the last snapshot that this replica took by itself since it was opened.
type SnapshotInfo struct {
	// Index is that of Raft's last snapshot, also one from before, or from the leader.
	Index uint64
	// At is when it was taken, Took how long that took, Bytes its size.
	At    time.Time
	Took  time.Duration
	Bytes int64
	// Taken counts those that were taken, Total is how long all of them took.
	Taken uint64
	Total time.Duration
	// Failed counts those that could not be taken, Restored those that were read: at the start, or from the leader.
	Failed, Restored uint64
	// LogBytes and LogEntries have come since.
	LogBytes   int64
	LogEntries uint64
}

func newSnapshots(s *Shard) *snapshots { return &snapshots{s: s, due: make(chan struct{}, 1)} }

// grow counts what was applied.
func (n *snapshots) grow(entries uint64, bytes int64) {
	n.mu.Lock()
	n.entries += entries
	n.bytes += bytes
	grown := n.grown()
	n.mu.Unlock()
	if grown >= 1 {
		select {
		case n.due <- struct{}{}:
		default:
		}
	}
}

// grown is how many times the log has reached its threshold since the last snapshot. The threshold grows with the snapshot, once
// that is larger than SnapshotBytes: so what a snapshot costs for each entry does not grow with the state. Called with mu held.
func (n *snapshots) grown() float64 {
	c := &n.s.c
	grown := max(float64(n.entries)/float64(c.SnapshotEntries), float64(n.bytes)/float64(c.SnapshotBytes))
	return grown / max(1, float64(n.size)/float64(c.SnapshotBytes))
}

// haste is how many times faster than its rate a snapshot is to be written: once the log is twice as long as its threshold, in
// proportion to it.
func (n *snapshots) haste() float64 {
	n.mu.Lock()
	defer n.mu.Unlock()
	return min(max(n.grown()/2, 1), persistHaste)
}

// reset: a snapshot of so many bytes was restored.
func (n *snapshots) reset(size int64) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.entries, n.bytes, n.size = 0, 0, size
	n.restored++
}

func (n *snapshots) wrote(bytes int64) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.size = bytes
}

func (n *snapshots) info() SnapshotInfo {
	n.mu.Lock()
	defer n.mu.Unlock()
	info := n.last
	info.LogBytes, info.LogEntries, info.Restored = n.bytes, n.entries, n.restored
	return info
}

// run takes snapshots until the context ends.
func (n *snapshots) run(ctx context.Context) {
	for {
		select {
		case <-n.due:
		case <-ctx.Done():
			return
		}
		for !n.take(ctx) {
			wait := time.NewTimer(snapshotRetry)
			select {
			case <-wait.C:
			case <-ctx.Done():
				wait.Stop()
				return
			}
		}
	}
}

// take takes one; false if it has to be tried again.
func (n *snapshots) take(ctx context.Context) bool {
	if err := n.s.d.SnapshotGate.Acquire(ctx); err != nil {
		return false
	}
	defer n.s.d.SnapshotGate.Release()
	if n.s.steward.transferring.Load() {
		return false
	}
	n.mu.Lock()
	entries, bytes := n.entries, n.bytes
	n.mu.Unlock()
	start := n.s.d.Monotonic()
	// This future always resolves: Raft's snapshot goroutine answers what it has taken, and Persist ends when the shard stops.
	err := n.s.raft.Load().Snapshot().Error()
	n.mu.Lock()
	defer n.mu.Unlock()
	switch {
	case err == nil || errors.Is(err, raft.ErrNothingNewToSnapshot):
		// What came while it was written counts for the next one.
		n.entries, n.bytes = n.entries-min(entries, n.entries), n.bytes-min(bytes, n.bytes)
		n.last.At, n.last.Took, n.last.Bytes = n.s.d.Now(), n.s.d.Monotonic().Sub(start), n.size
		if err == nil {
			n.last.Taken++
			n.last.Total += n.last.Took
		}
		return true
	case n.s.poisoned.Load() != nil:
		return true
	}
	n.last.Failed++
	if ctx.Err() == nil {
		n.s.log.Warn("shard: snapshot failed; it is tried again", "error", err)
	}
	return false
}
