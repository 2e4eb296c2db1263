package shard

import (
	"bytes"
	"fmt"
	"io"
	"sync"

	"github.com/hashicorp/raft"
)

// memSnapshots keeps the newest snapshot in memory, from when it is closed on, as the store on disk does. Raft's store in memory
// shows a snapshot while it is still written.
type memSnapshots struct {
	mu      sync.Mutex
	meta    *raft.SnapshotMeta // guarded by mu; nil if there is none
	content []byte             // guarded by mu
}

func (s *memSnapshots) Create(version raft.SnapshotVersion, index, term uint64, configuration raft.Configuration, configurationIndex uint64,
	_ raft.Transport) (raft.SnapshotSink, error) {
	return &memSink{store: s, meta: raft.SnapshotMeta{
		Version: version, ID: fmt.Sprintf("%d-%d", term, index), Index: index, Term: term,
		Configuration: configuration, ConfigurationIndex: configurationIndex,
	}}, nil
}

func (s *memSnapshots) List() ([]*raft.SnapshotMeta, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.meta == nil {
		return nil, nil
	}
	meta := *s.meta
	return []*raft.SnapshotMeta{&meta}, nil
}

func (s *memSnapshots) Open(id string) (*raft.SnapshotMeta, io.ReadCloser, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.meta == nil || s.meta.ID != id {
		return nil, nil, fmt.Errorf("no snapshot %q", id)
	}
	meta := *s.meta
	return &meta, io.NopCloser(bytes.NewReader(s.content)), nil
}

// memSink is a snapshot under way; one goroutine writes it.
type memSink struct {
	bytes.Buffer
	store *memSnapshots
	meta  raft.SnapshotMeta
}

func (s *memSink) ID() string { return s.meta.ID }

func (s *memSink) Cancel() error {
	s.store = nil
	return nil
}

func (s *memSink) Close() error {
	if s.store == nil {
		return nil
	}
	s.store.mu.Lock()
	defer s.store.mu.Unlock()
	meta := s.meta
	meta.Size = int64(s.Len())
	s.store.meta, s.store.content = &meta, bytes.Clone(s.Bytes())
	return nil
}
