package shard

import (
	"errors"
	"fmt"
	"io"
	"slices"

	"github.com/carillon-timers/carillon/raftfsm"
	"github.com/hashicorp/raft"
)

// ApplyError says that this replica cannot apply an entry of the log: it is damaged, or from a newer version. The replica
// has stopped at the entry before, and snapshots nothing any more.
type ApplyError struct {
	Index uint64
	Cause error
}

func (e *ApplyError) Error() string { return fmt.Sprintf("apply entry %d: %v", e.Index, e.Cause) }

func (e *ApplyError) Unwrap() error { return e.Cause }

var errPoisoned = errors.New("the replica has stopped at an entry that it cannot apply")

// replica is the raft.BatchingFSM of a shard. Raft calls it from one goroutine, but for Persist.
type replica struct {
	s *Shard
	// member says that a configuration with this replica was applied. Touched by the goroutine that applies.
	member bool
}

// Apply implements raft.FSM.
func (r *replica) Apply(entry *raft.Log) any { return r.ApplyBatch([]*raft.Log{entry})[0] }

// ApplyBatch implements raft.BatchingFSM. As such it is given changes of the configuration too, so that a snapshot right
// after one can be taken. The answers are not used: waiters are completed by the proposer.
func (r *replica) ApplyBatch(entries []*raft.Log) []any {
	s, bytes := r.s, 0
	if s.poisoned.Load() != nil {
		return make([]any, len(entries))
	}
	last := entries[len(entries)-1].Index
	if err := s.disk.flushed(last); err != nil {
		s.poisoned.Store(&ApplyError{last, err}) // what comes later must not be applied without these
		return make([]any, len(entries))
	}
	for _, entry := range entries {
		switch entry.Type {
		case raft.LogConfiguration:
			r.configured(raft.DecodeConfiguration(entry.Data))
		case raft.LogCommand:
			applied, err := s.fsm.Apply(entry.Index, entry.Data)
			if err != nil {
				s.poison(&ApplyError{entry.Index, err})
				return make([]any, len(entries))
			}
			if applied.Begin && applied.Proposer == s.incarnation && applied.Epoch == entry.Term {
				s.steward.began(applied.Epoch)
			}
			s.proposer.applied(applied)
			applied.Release()
		}
		bytes += len(entry.Data)
		s.applied.Store(entry.Index)
	}
	s.kept.Store(kept(s.fsm.Stats()))
	s.snapshots.grow(uint64(len(entries)), int64(bytes))
	return make([]any, len(entries))
}

// kept is how many timers are not finished.
func kept(s raftfsm.Stats) int64 { return int64(s.Pending + s.Paused + s.Dead) }

// configured ends the replica when it was removed. The configurations from before it was added do not count.
func (r *replica) configured(c raft.Configuration) {
	contains := func(servers []raft.Server) bool {
		return slices.ContainsFunc(servers, func(s raft.Server) bool { return string(s.ID) == r.s.c.Node })
	}
	switch in := contains(c.Servers); {
	case r.member && !in && !contains(r.s.servers()):
		r.s.fail(ErrRemoved)
	default:
		r.member = in
	}
}

// Snapshot implements raft.FSM.
func (r *replica) Snapshot() (raft.FSMSnapshot, error) {
	if r.s.poisoned.Load() != nil {
		return nil, errPoisoned
	}
	snapshot, err := r.s.fsm.Snapshot()
	if err != nil {
		return nil, err
	}
	return &persisting{r.s, snapshot}, nil
}

// Restore implements raft.FSM: the state is replaced.
func (r *replica) Restore(from io.ReadCloser) error {
	defer from.Close()
	read := &counted{Reader: from}
	if err := r.s.fsm.Restore(read); err != nil {
		return fmt.Errorf("restore snapshot: %w", err)
	}
	stats := r.s.fsm.Stats()
	r.s.kept.Store(kept(stats))
	r.s.applied.Store(stats.AppliedIndex)
	r.s.snapshots.reset(read.n)
	return nil
}

// counted counts what is read.
type counted struct {
	io.Reader
	n int64
}

func (c *counted) Read(b []byte) (int, error) {
	n, err := c.Reader.Read(b)
	c.n += int64(n)
	return n, err
}
