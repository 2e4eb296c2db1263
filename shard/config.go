package shard

import (
	"fmt"
	"time"

	"github.com/carillon-timers/carillon/raftfsm"
)

// Limits of a Config.
const (
	// MaxInFlight bounds the entries in flight: with hundreds of uncommitted entries a deposed leader can be sent
	// snapshots for ever.
	MaxInFlight = 16
	// MinTrailingLogs keeps the log longer than anything that a deposed leader can have in flight.
	MinTrailingLogs = 1024
	// MinTimeout bounds the Raft time-outs from below.
	MinTimeout = 20 * time.Millisecond
)

// Config shapes one replica of a shard. Open copies it.
type Config struct {
	// ID is the number of the shard.
	ID uint32
	// Node is the node's ID. It is the replica's Raft server ID and the address that the transport resolves.
	Node string
	// Boot names this run of the process; it goes into the entry that opens an epoch. May be empty.
	Boot string
	// Dir keeps the log and the snapshots; it is made if it is missing. Not used with Deps.Stores.
	Dir string

	// HeartbeatTimeout is how long a follower waits for its leader, ElectionTimeout how long a candidate waits for its
	// votes. Default 500 ms each; a follower answers heartbeats between disk writes, so they must cover the slowest.
	HeartbeatTimeout, ElectionTimeout time.Duration
	// LeaseTimeout is how old the last contact with a majority may be until a leader stops firing, and steps down.
	// Default 400 ms; below HeartbeatTimeout.
	LeaseTimeout time.Duration
	// CommitTimeout is how soon an idle leader tells its followers what is committed. Default 1 s.
	CommitTimeout time.Duration
	// ApplyTimeout bounds Propose. Default 10 s; beyond it the outcome is unknown, or, if nothing was sent yet, not applied.
	ApplyTimeout time.Duration
	// WriteTimeout is how long a write of the log may take until the disk counts as broken and the replica stops.
	// Default 10 s.
	WriteTimeout time.Duration
	// StopTimeout bounds each of the waits of Run's end: for Raft and for the log. Default 10 s.
	StopTimeout time.Duration

	// InFlight is the window: the log entries that wait for a majority at once. Default 2, at most MaxInFlight. While it is
	// full what comes is joined.
	InFlight int
	// MaxPending bounds the timers that are not finished: pending, paused and dead letters. Beyond it Schedule is refused, and
	// repeats with overlap allow wait; everything else goes on. Default 20,000,000.
	MaxPending int
	// MaxQueued and MaxQueuedBytes bound the commands that wait to be joined. Default 65,536 and 64 MiB.
	MaxQueued      int
	MaxQueuedBytes int

	// TrailingLogs is how many entries stay in the log after a snapshot, for followers that lag. Default 2,048, at least
	// MinTrailingLogs.
	TrailingLogs uint64
	// MaxAppendEntries bounds the entries of one message to a follower, and of one call of Apply. An entry has up to 256
	// KiB (a larger one is a single command). Default 16, at most 64.
	MaxAppendEntries int
	// SnapshotBytes and SnapshotEntries: a snapshot is taken when the log has grown by so much. Default 64 MiB and 32,768. Once a
	// snapshot is larger than SnapshotBytes, both grow with it.
	SnapshotBytes   int64
	SnapshotEntries uint64
	// SnapshotRate is how many bytes of a snapshot are written in a second, so that timers are not late meanwhile; up to four
	// times as many while the log is over twice the thresholds. Default 8 MiB, at least 64 KiB.
	SnapshotRate int64
	// SnapshotRetain is how many snapshots are kept. Default 2.
	SnapshotRetain int

	// Retention is how long finished timers and request IDs are remembered; MaxFinished and MaxRequests bound their
	// numbers. They must be equal on all replicas. Default 10 minutes, 65,536 and 131,072.
	Retention                time.Duration
	MaxFinished, MaxRequests int
}

// DefaultConfig returns the defaults; ID, Node and Dir are the caller's.
func DefaultConfig() Config {
	return Config{
		HeartbeatTimeout: 500 * time.Millisecond,
		ElectionTimeout:  500 * time.Millisecond,
		LeaseTimeout:     400 * time.Millisecond,
		CommitTimeout:    time.Second,
		ApplyTimeout:     10 * time.Second,
		WriteTimeout:     10 * time.Second,
		StopTimeout:      10 * time.Second,
		InFlight:         2,
		MaxPending:       20_000_000,
		MaxQueued:        65_536,
		MaxQueuedBytes:   64 << 20,
		TrailingLogs:     2048,
		MaxAppendEntries: 16,
		SnapshotBytes:    64 << 20,
		SnapshotEntries:  32_768,
		SnapshotRate:     8 << 20,
		SnapshotRetain:   2,
		Retention:        raftfsm.DefaultRetentionMillis * time.Millisecond,
		MaxFinished:      raftfsm.DefaultMaxFinished,
		MaxRequests:      raftfsm.DefaultMaxRequests,
	}
}

// Validate names the first field that is out of its limits.
func (c Config) Validate() error {
	if c.Node == "" {
		return &InvalidError{"node", `""`, "must not be empty"}
	}
	for _, f := range []struct {
		name            string
		value, low, top int64
	}{
		{"heartbeat_timeout", int64(c.HeartbeatTimeout), int64(MinTimeout), int64(time.Minute)},
		{"election_timeout", int64(c.ElectionTimeout), int64(c.HeartbeatTimeout), int64(time.Minute)},
		{"lease_timeout", int64(c.LeaseTimeout), int64(MinTimeout / 2), int64(c.HeartbeatTimeout) * 9 / 10},
		{"commit_timeout", int64(c.CommitTimeout), int64(time.Millisecond), int64(time.Minute)},
		{"apply_timeout", int64(c.ApplyTimeout), int64(c.ElectionTimeout), int64(time.Hour)},
		{"write_timeout", int64(c.WriteTimeout), int64(time.Millisecond), int64(time.Hour)},
		{"stop_timeout", int64(c.StopTimeout), int64(time.Millisecond), int64(time.Hour)},
		{"in_flight", int64(c.InFlight), 1, MaxInFlight},
		{"max_pending", int64(c.MaxPending), 1, 1 << 31},
		{"max_queued", int64(c.MaxQueued), raftfsm.MaxBatchItems, 1 << 24},
		{"max_queued_bytes", int64(c.MaxQueuedBytes), 2 * raftfsm.MaxBatchBytes, 1 << 34},
		{"trailing_logs", int64(c.TrailingLogs), MinTrailingLogs, 1 << 24},
		{"max_append_entries", int64(c.MaxAppendEntries), 1, 64},
		{"snapshot_bytes", c.SnapshotBytes, 1 << 10, 1 << 40},
		{"snapshot_entries", int64(c.SnapshotEntries), 1, 1 << 32},
		{"snapshot_rate", c.SnapshotRate, 64 << 10, 1 << 40},
		{"snapshot_retain", int64(c.SnapshotRetain), 1, 100},
		{"retention", int64(c.Retention), int64(time.Second), int64(366 * 24 * time.Hour)},
		{"max_finished", int64(c.MaxFinished), 1, raftfsm.MaxWindow},
		{"max_requests", int64(c.MaxRequests), 1, raftfsm.MaxWindow},
	} {
		if f.value < f.low || f.value > f.top {
			return &InvalidError{f.name, fmt.Sprint(f.value), fmt.Sprintf("must be %d to %d", f.low, f.top)}
		}
	}
	return nil
}
