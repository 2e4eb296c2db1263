package shard

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime/debug"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/hashicorp/raft"
	raftboltdb "github.com/hashicorp/raft-boltdb/v2"
	"go.etcd.io/bbolt"
	bolterrors "go.etcd.io/bbolt/errors"
)

// Stores are what a replica keeps on disk.
type Stores struct {
	Log       raft.LogStore
	Stable    raft.StableStore
	Snapshots raft.SnapshotStore
	// Close is called once, after the last use; nil for nothing to do.
	Close func() error
}

const (
	boltFile = "raft.db"
	// boltWait is how long opening waits for the file's lock: another process, or a replica that has not closed yet.
	boltWait = time.Second
	// cachedEntries is the size of the cache of the newest entries, which the leader sends to its followers. Each has up
	// to 256 KiB, so it is small.
	cachedEntries = 16
)

// DamagedError says that the files of a replica cannot be read. The replica is lost: it must not vote again, and comes back
// under a new ID from its peers.
type DamagedError struct {
	Path  string
	Cause error
}

func (e *DamagedError) Error() string { return fmt.Sprintf("%s is damaged: %v", e.Path, e.Cause) }

func (e *DamagedError) Unwrap() error { return e.Cause }

// openStores opens the bolt log and the snapshots under dir.
func openStores(c Config, logger hclog.Logger) (*Stores, error) {
	if c.Dir == "" {
		return nil, &InvalidError{"dir", `""`, "must not be empty"}
	}
	if err := os.MkdirAll(c.Dir, 0o750); err != nil {
		return nil, err
	}
	bolt, err := openBolt(filepath.Join(c.Dir, boltFile))
	if err != nil {
		return nil, err
	}
	snapshots, err := raft.NewFileSnapshotStoreWithLogger(c.Dir, c.SnapshotRetain, logger)
	if err != nil {
		return nil, errors.Join(fmt.Errorf("open snapshots: %w", err), bolt.Close())
	}
	return &Stores{Log: bolt, Stable: bolt, Snapshots: snapshots, Close: bolt.Close}, nil
}

// openBolt opens the log and reads its ends. bbolt panics on some damage and faults on a shortened file; both become an
// error here. Damage inside an entry shows only later, by the checksum of each entry.
func openBolt(path string) (store *raftboltdb.BoltStore, err error) {
	defer debug.SetPanicOnFault(debug.SetPanicOnFault(true))
	defer func() {
		if p := recover(); p != nil {
			store, err = nil, &DamagedError{path, fmt.Errorf("panic: %v", p)}
		}
	}()
	if err := walkBolt(path); err != nil {
		return nil, openError(path, err)
	}
	store, err = raftboltdb.New(raftboltdb.Options{
		Path: path,
		BoltOptions: &bbolt.Options{
			Timeout: boltWait,
			// The free list is rebuilt when the file is opened instead of being written with each commit.
			NoFreelistSync: true, FreelistType: bbolt.FreelistMapType,
		},
	})
	if err != nil {
		return nil, openError(path, err)
	}
	if err := readEnds(store); err != nil {
		return nil, errors.Join(&DamagedError{path, err}, store.Close())
	}
	return store, nil
}

// openError tells a file that is damaged from one that cannot be opened now.
func openError(path string, err error) error {
	var system *os.PathError
	switch {
	case errors.Is(err, bolterrors.ErrTimeout):
		return fmt.Errorf("open %s: it is open already, here or in another process: %w", path, err)
	case errors.As(err, &system):
		return fmt.Errorf("open the log: %w", err)
	}
	return &DamagedError{path, err}
}

// walkBolt visits all keys of the file, if there is one. bbolt, opened for writing, visits all pages in a goroutine of its
// own, where a damaged one would end the process; here it is a panic or a fault of this goroutine.
func walkBolt(path string) (err error) {
	info, err := os.Stat(path)
	if errors.Is(err, os.ErrNotExist) || err == nil && info.Size() == 0 {
		return nil
	}
	db, err := bbolt.Open(path, 0o600, &bbolt.Options{ReadOnly: true, Timeout: boltWait})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, db.Close()) }()
	return db.View(func(tx *bbolt.Tx) error {
		return tx.ForEach(func(_ []byte, b *bbolt.Bucket) error {
			return b.ForEach(func(_, _ []byte) error { return nil })
		})
	})
}

func readEnds(store raft.LogStore) error {
	first, err := store.FirstIndex()
	if err != nil {
		return err
	}
	last, err := store.LastIndex()
	if err != nil || last == 0 {
		return err
	}
	var entry raft.Log
	for _, index := range []uint64{first, last} {
		if err := store.GetLog(index, &entry); err != nil {
			return fmt.Errorf("entry %d: %w", index, err)
		}
		if entry.Index != index {
			return fmt.Errorf("entry %d calls itself %d", index, entry.Index)
		}
	}
	return nil
}
