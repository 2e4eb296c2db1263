package node

import (
	"fmt"
	"io"
	"log/slog"
	"sync"

	"github.com/hashicorp/raft"

	logv1 "github.com/carillon-timers/carillon/proto/carillonlog/v1"
)

// maxDirectorySnapshot bounds what Restore reads: far above 256 shards and some thousand members.
const maxDirectorySnapshot = 16 << 20

// directoryFSM holds the directory's state for Raft; Apply, Snapshot and Restore are called by Raft's FSM goroutine.
type directoryFSM struct {
	log *slog.Logger // set before sharing

	mu      sync.Mutex
	state   *clusterState // guarded by mu; the state itself never changes
	failed  error         // guarded by mu: why nothing is applied any more
	changed chan struct{} // guarded by mu: closed and replaced at each change
}

func newDirectoryFSM(log *slog.Logger) *directoryFSM {
	return &directoryFSM{log: log, state: &clusterState{}, changed: make(chan struct{})}
}

// look returns the state and a channel that is closed when it has changed.
func (f *directoryFSM) look() (*clusterState, <-chan struct{}) {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.state, f.changed
}

// err says why the directory's replica on this node has stopped; nil while it works.
func (f *directoryFSM) err() error {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.failed
}

// Apply returns the refusal of an entry, or nil.
func (f *directoryFSM) Apply(l *raft.Log) any {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.failed != nil {
		return f.failed
	}
	entry := &logv1.DirectoryEntry{}
	body, err := unseal(envelopeEntry, l.Data)
	if err == nil {
		err = entry.UnmarshalVT(body)
	}
	var refusal error
	next := f.state
	if err == nil {
		next, refusal, err = f.state.apply(entry)
	}
	if err != nil {
		f.failed = fmt.Errorf("directory: entry %d: %w", l.Index, err)
		f.log.Error("the directory's replica on this node stops: it would differ from the others", "error", f.failed)
		f.wake()
		return f.failed
	}
	if next != f.state {
		f.state = next
		f.wake()
	}
	if refusal != nil {
		return refusal
	}
	return nil
}

// wake is called with mu held.
func (f *directoryFSM) wake() {
	close(f.changed)
	f.changed = make(chan struct{})
}

// Snapshot costs a pointer.
func (f *directoryFSM) Snapshot() (raft.FSMSnapshot, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.failed != nil {
		return nil, f.failed
	}
	return directorySnapshot{f.state}, nil
}

// Restore replaces the state.
func (f *directoryFSM) Restore(r io.ReadCloser) error {
	defer r.Close()
	raw, err := io.ReadAll(io.LimitReader(r, maxDirectorySnapshot+1))
	if err != nil {
		return fmt.Errorf("directory: restore: %w", err)
	}
	if len(raw) > maxDirectorySnapshot {
		return fmt.Errorf("directory: restore: snapshot is above %d bytes", maxDirectorySnapshot)
	}
	body, err := unseal(envelopeSnapshot, raw)
	if err != nil {
		return err
	}
	p := &logv1.DirectoryState{}
	if err := p.UnmarshalVT(body); err != nil {
		return fmt.Errorf("directory: restore: %w", err)
	}
	state := stateFromProto(p)
	if state.formed() {
		if err := state.check(); err != nil {
			return err
		}
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.state = state
	f.wake()
	return nil
}

type directorySnapshot struct{ state *clusterState }

// Persist writes the state.
func (s directorySnapshot) Persist(sink raft.SnapshotSink) error {
	body, err := s.state.proto().MarshalVT()
	if err == nil {
		_, err = sink.Write(seal(envelopeSnapshot, body))
	}
	if err != nil {
		if cancelErr := sink.Cancel(); cancelErr != nil {
			return fmt.Errorf("directory: persist: %w (and cancel: %w)", err, cancelErr)
		}
		return fmt.Errorf("directory: persist: %w", err)
	}
	return sink.Close()
}

// Release has nothing to do.
func (directorySnapshot) Release() {}
