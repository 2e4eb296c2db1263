package node

import (
	"cmp"
	"fmt"
	"path/filepath"

	"github.com/hashicorp/raft"

	"github.com/carillon-timers/carillon/shard"
	"github.com/carillon-timers/carillon/shard/segment"
)

// The log stores, for Config.LogStore.
const (
	// LogStoreBolt keeps a raft-boltdb file per Raft group.
	LogStoreBolt = "bolt"
	// LogStoreSegment keeps the logs of all groups in one log of segments, which is flushed once for all that wait.
	LogStoreSegment = "segment"
)

// logFolder holds the segments.
const logFolder = "log"

func (id *identity) logDir() string { return filepath.Join(id.dir, logFolder) }

// logStore is the store of the folder; one that was made before there was a choice has bolt.
func (d *identityData) logStore() string {
	if d.LogStore == "" {
		return LogStoreBolt
	}
	return d.LogStore
}

// storeFile must be there if a group with that folder was ever opened.
func (id *identity) storeFile(d *identityData, folder string) string {
	if d.logStore() == LogStoreSegment {
		return filepath.Join(id.logDir(), segment.ManifestFile)
	}
	return filepath.Join(folder, raftFile)
}

// useLogStore records the log store and returns it: the one that is asked for, else the folder's, else the segment log. Once
// a group was opened in one, another is refused.
func (id *identity) useLogStore(store string) (string, error) {
	err := id.update(func(d *identityData) (bool, error) {
		if d.Directory == "" && len(d.Replicas) == 0 {
			store = cmp.Or(store, LogStoreSegment)
			changed := d.LogStore != store
			d.LogStore = store
			return changed, nil
		}
		if store = cmp.Or(store, d.logStore()); d.logStore() != store {
			return false, fmt.Errorf("data folder %s keeps its logs in the store %q; this start says %q: say %q, or start with an empty "+
				"folder under a new ID", id.dir, d.logStore(), store, d.logStore())
		}
		return false, nil
	})
	return store, err
}

// openLog opens the segment log, if the node has one.
func (n *Node) openLog() error {
	store, err := n.identity.useLogStore(n.config.LogStore)
	if err != nil || store != LogStoreSegment {
		return err
	}
	n.segments, err = segment.Open(n.identity.logDir(), segment.Options{Logger: n.log})
	return err
}

// group is a Raft group's part of the segment log; one that is damaged is refused.
func (n *Node) group(id uint32) (*segment.Group, error) {
	g := n.segments.Group(id)
	if err := g.Err(); err != nil {
		return nil, &shard.DamagedError{Path: n.identity.logDir(), Cause: err}
	}
	return g, nil
}

// shardStores are the stores of a replica; nil if the shard is to open its own.
func (n *Node) shardStores(c shard.Config) (*shard.Stores, error) {
	if n.segments == nil {
		return nil, nil
	}
	g, err := n.group(c.ID)
	if err != nil {
		return nil, err
	}
	snapshots, err := raft.NewFileSnapshotStoreWithLogger(c.Dir, c.SnapshotRetain, raftLogger(n.log.With("shard", c.ID)))
	if err != nil {
		return nil, fmt.Errorf("open snapshots: %w", err)
	}
	return &shard.Stores{Log: g, Stable: g, Snapshots: snapshots}, nil
}

// directoryGroupStore is the directory's part of the segment log.
type directoryGroupStore struct{ *segment.Group }

// Close does nothing: the log outlives its groups.
func (directoryGroupStore) Close() error { return nil }

// directoryStore opens the store of the directory.
func (n *Node) directoryStore() (directoryStore, error) {
	if n.segments == nil {
		return openDirectoryStore(n.identity.directoryDir())
	}
	g, err := n.group(directoryGroup)
	if err != nil {
		return nil, fmt.Errorf("directory: %w", err)
	}
	return directoryGroupStore{g}, nil
}

// startLog starts the segment log; nil if there is none. A write or flush that fails ends the node.
func (n *Node) startLog() *part {
	if n.segments == nil {
		return nil
	}
	return n.start("segment log", n.segments.Run)
}

// closeLog closes what openLog has opened.
func (n *Node) closeLog() error {
	if n.segments == nil {
		return nil
	}
	return n.segments.Close()
}

// logStats are the figures of the segment log; zeros without one.
func (n *Node) logStats() segment.Stats {
	if n.segments == nil {
		return segment.Stats{}
	}
	return n.segments.Stats()
}

func validLogStore(store string) error {
	if store != "" && store != LogStoreBolt && store != LogStoreSegment {
		return invalid("LogStore", store, `"segment", "bolt" or empty`)
	}
	return nil
}
