package shard

import (
	"fmt"
	"strconv"
	"strings"

	"github.com/carillon-timers/carillon/raftfsm"
	"github.com/carillon-timers/carillon/shard/executor"
	"github.com/hashicorp/raft"
)

// Status is what a replica knows of itself and of its group.
type Status struct {
	ID uint32
	// Leader is the node that leads as far as this replica knows; "" if none is known.
	Leader string
	// Leading: this replica leads and has opened its epoch. Firing: it also holds its lease, and is not handing over.
	Leading, Firing bool
	// Epoch is that under which it leads; 0 if it does not.
	Epoch uint64
	// Term, LastIndex and Commit are Raft's; Applied is the last index that this replica's state has seen.
	Term, LastIndex, Commit, Applied uint64
	// StateIndex and Hash are the last entry of the state and its hash: equal on replicas at one StateIndex.
	StateIndex, Hash uint64
	// Servers are the servers of the group's latest configuration.
	Servers []raft.Server
	// State counts what is kept, Pending of it are pending, Overdue were due and are not handed out (on the leader).
	State            raftfsm.Stats
	Pending, Overdue int
	// Proposer, Executor, Disk and Snapshot are the figures of the parts.
	Proposer ProposerStats
	Executor executor.ExecStats
	Disk     DiskStats
	Snapshot SnapshotInfo
	// Stopped is why the replica can apply nothing more; nil if it can.
	Stopped error
}

// Status reads it. The parts are read one after the other.
func (s *Shard) Status() Status {
	status := Status{
		ID: s.c.ID, Leader: s.Leader(), Firing: s.mayFire(), Applied: s.applied.Load(), Servers: s.servers(),
		State: s.fsm.Stats(), Proposer: s.proposer.stats(), Executor: s.exec.Stats(), Disk: s.disk.stats(), Snapshot: s.snapshots.info(),
	}
	status.StateIndex, status.Hash = s.fsm.HashAt()
	status.Pending, status.Overdue = status.State.Pending, status.Executor.Overdue
	if r := s.steward.reign.Load(); r != nil {
		status.Leading, status.Epoch = true, r.epoch
	}
	if r := s.raft.Load(); r != nil {
		status.Term, status.LastIndex, status.Commit = r.CurrentTerm(), r.LastIndex(), r.CommitIndex()
		// Raft tells the index of its last snapshot as text only.
		status.Snapshot.Index, _ = strconv.ParseUint(r.Stats()["last_snapshot_index"], 10, 64)
	}
	if err := s.poisoned.Load(); err != nil {
		status.Stopped = err
	}
	return status
}

// ErrOf is the error that a result stands for: nil for OK. A result does not know the revision that was expected.
func ErrOf(r raftfsm.Result) error {
	switch r.Code {
	case raftfsm.OK:
		return nil
	case raftfsm.NotFound:
		return ErrNotFound
	case raftfsm.AlreadyExists:
		return ErrAlreadyExists
	case raftfsm.RevisionMismatch:
		return &RevisionError{Actual: r.Revision}
	case raftfsm.IsPaused:
		return ErrPaused
	case raftfsm.NotPaused:
		return ErrNotPaused
	case raftfsm.NotPending:
		return &NotPendingError{State: raftfsm.State(r.Answer)}
	case raftfsm.StaleToken:
		return ErrStaleToken
	case raftfsm.StaleEpoch:
		return ErrUnavailable
	case raftfsm.Invalid:
		field, limit, _ := strings.Cut(r.Detail, ": ")
		return &InvalidError{Field: field, Value: "the value", Limit: limit}
	}
	return fmt.Errorf("%w: result code %d is from a newer version", ErrUnknown, r.Code)
}
