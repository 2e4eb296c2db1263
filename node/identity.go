package node

import (
	"crypto/rand"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"syscall"
)

// identity is what a node must never forget. It lies in node.json and is on the disk before anything is done with it.
type identity struct {
	dir  string
	lock *os.File
	// ended says which replicas have been opened to the end, also before that is on the disk.
	ended [MaxShards]atomic.Bool

	mu   sync.Mutex                   // held over the write of node.json
	data atomic.Pointer[identityData] // written under mu; what it points to never changes
}

// identityData is the content of node.json.
type identityData struct {
	Format   int    `json:"format"`
	NodeID   string `json:"node_id"`
	DiskUUID string `json:"disk_uuid"`
	// ClusterID is the one cluster that this node has pledged itself to, or joined.
	ClusterID string `json:"cluster_id,omitempty"`
	Shards    int    `json:"shards,omitempty"`
	// LogStore is where the Raft logs lie; empty in a folder that was made before there was a choice: bolt.
	LogStore string `json:"log_store,omitempty"`
	// Pledge is set on the nodes that create the cluster together.
	Pledge *pledgeRecord `json:"pledge,omitempty"`
	// Members is where the members were as the directory last told it, by node ID: after a restart it tells it only once they have found each other.
	Members map[string]memberPlace `json:"members,omitempty"`
	// Directory and Replicas say how far the stores on this disk have come.
	Directory storePhase            `json:"directory,omitempty"`
	Replicas  map[string]storePhase `json:"replicas,omitempty"`
}

// memberPlace is how the other nodes reach a member.
type memberPlace struct {
	Peer   string `json:"peer"`
	Gossip string `json:"gossip"`
}

type pledgeRecord struct {
	Proposer string   `json:"proposer"`
	Nodes    []string `json:"nodes"`
	Replicas int      `json:"replicas"`
}

// storePhase tells a store that may still be empty from one that may hold votes.
type storePhase string

const (
	// storeOpening: its folder is there; it has never been opened to the end, so it has never voted.
	storeOpening storePhase = "opening"
	// storeOpened: it may have voted. If its files are gone, the node must not come back under its ID.
	storeOpened storePhase = "opened"
)

const (
	identityFile   = "node.json"
	lockFile       = "lock"
	identityFormat = 1
)

// openIdentity locks the folder for this process and reads who lives there; an empty folder gets a new disk UUID.
func openIdentity(dir, nodeID string) (*identity, error) {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return nil, fmt.Errorf("data folder: %w", err)
	}
	lock, err := lockDir(dir)
	if err != nil {
		return nil, err
	}
	id := &identity{dir: dir, lock: lock}
	if err := id.load(nodeID); err != nil {
		return nil, errors.Join(err, lock.Close())
	}
	return id, nil
}

func lockDir(dir string) (*os.File, error) {
	lock, err := os.OpenFile(filepath.Join(dir, lockFile), os.O_CREATE|os.O_RDWR, 0o644)
	if err != nil {
		return nil, fmt.Errorf("data folder: %w", err)
	}
	err = syscall.Flock(int(lock.Fd()), syscall.LOCK_EX|syscall.LOCK_NB)
	if errors.Is(err, syscall.EWOULDBLOCK) {
		return nil, errors.Join(fmt.Errorf("data folder %s is in use by another process", dir), lock.Close())
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("lock data folder %s: %w", dir, err), lock.Close())
	}
	return lock, nil
}

func (id *identity) load(nodeID string) error {
	path := filepath.Join(id.dir, identityFile)
	raw, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return id.create(nodeID)
	}
	if err != nil {
		return fmt.Errorf("data folder: %w", err)
	}
	d := &identityData{}
	if err := json.Unmarshal(raw, d); err != nil {
		return fmt.Errorf("%s is damaged: %w", path, err)
	}
	switch {
	case d.Format != identityFormat:
		return fmt.Errorf("%s has format %d; this version reads format %d", path, d.Format, identityFormat)
	case d.NodeID == "" || d.DiskUUID == "":
		return fmt.Errorf("%s is damaged: node_id or disk_uuid is missing", path)
	case d.NodeID != nodeID:
		return fmt.Errorf("data folder %s belongs to node %q, not to %q", id.dir, d.NodeID, nodeID)
	}
	id.data.Store(d)
	return id.checkStores(d)
}

// create writes a first node.json; a folder that holds stores without one has lost it.
func (id *identity) create(nodeID string) error {
	for _, name := range []string{directoryFolder, shardsFolder} {
		if _, err := os.Stat(filepath.Join(id.dir, name)); err == nil {
			return fmt.Errorf("data folder %s holds %s but no %s: it cannot be told which node it belongs to", id.dir, name, identityFile)
		}
	}
	uuid, err := newUUID()
	if err != nil {
		return err
	}
	d := &identityData{Format: identityFormat, NodeID: nodeID, DiskUUID: uuid}
	id.data.Store(d)
	return writeFileSync(filepath.Join(id.dir, identityFile), d)
}

// checkStores refuses a disk that has lost a store which may have voted.
func (id *identity) checkStores(d *identityData) error {
	missing := func(folder, what string) error {
		path := id.storeFile(d, folder)
		if _, err := os.Stat(path); err == nil {
			return nil
		}
		return fmt.Errorf("%s is recorded in %s but %s is missing: the node could vote twice in one term; "+
			"restore the folder, or bring the machine back as a new node with an empty data folder and a new ID", what, identityFile, path)
	}
	if d.Directory == storeOpened {
		if err := missing(filepath.Join(id.dir, directoryFolder), "the directory"); err != nil {
			return err
		}
	}
	for name, phase := range d.Replicas {
		shard, err := strconv.Atoi(name)
		if err != nil || shard < 0 || shard >= MaxShards {
			return fmt.Errorf("%s is damaged: replica %q", identityFile, name)
		}
		if phase != storeOpened {
			continue
		}
		if err := missing(id.shardDir(shard), "shard "+name); err != nil {
			return err
		}
	}
	return nil
}

const (
	directoryFolder = "directory"
	shardsFolder    = "shards"
	// raftFile holds the log and the votes, in the directory's folder and in each shard's (package shard names it so).
	raftFile = "raft.db"
)

func (id *identity) directoryDir() string { return filepath.Join(id.dir, directoryFolder) }

func (id *identity) shardDir(shard int) string {
	return filepath.Join(id.dir, shardsFolder, strconv.Itoa(shard))
}

// get returns what is known; nobody changes it.
func (id *identity) get() *identityData { return id.data.Load() }

// clusterID is the cluster that this node belongs to; empty for none. It never waits.
func (id *identity) clusterID() string { return id.data.Load().ClusterID }

func (d *identityData) clone() *identityData {
	c := *d
	c.Replicas = maps.Clone(d.Replicas)
	if c.Replicas == nil {
		c.Replicas = map[string]storePhase{}
	}
	if d.Pledge != nil {
		p := *d.Pledge
		p.Nodes = slices.Clone(p.Nodes)
		c.Pledge = &p
	}
	return &c
}

// update changes a copy, brings it to the disk, and only then lets it count; a change that changes nothing writes
// nothing. An error of change is returned as it is.
func (id *identity) update(change func(d *identityData) (changed bool, err error)) error {
	id.mu.Lock()
	defer id.mu.Unlock()
	next := id.data.Load().clone()
	if changed, err := change(next); err != nil || !changed {
		return err
	}
	if err := writeFileSync(filepath.Join(id.dir, identityFile), next); err != nil {
		return fmt.Errorf("write %s: %w", identityFile, err)
	}
	id.data.Store(next)
	return nil
}

// errOtherCluster says that the node belongs to another cluster already.
var errOtherCluster = errors.New("this node belongs to another cluster")

// belong pledges the node to a cluster; a second one is refused. The pledge record is kept as it was first given.
func (id *identity) belong(clusterID string, shards int, pledge *pledgeRecord) error {
	return id.update(func(d *identityData) (bool, error) {
		switch d.ClusterID {
		case clusterID:
			return false, nil
		case "":
			d.ClusterID, d.Shards, d.Pledge = clusterID, shards, pledge
			return true, nil
		}
		return false, fmt.Errorf("%w: %s, not %s", errOtherCluster, d.ClusterID, clusterID)
	})
}

// remember notes where the members are. The map must not change any more.
func (id *identity) remember(members map[string]memberPlace) error {
	return id.update(func(d *identityData) (bool, error) {
		if maps.Equal(d.Members, members) {
			return false, nil
		}
		d.Members = members
		return true, nil
	})
}

// beginDirectory makes the directory's folder and records it; first is true while it has never been opened to the end.
func (id *identity) beginDirectory() (first bool, err error) {
	if err := mkdirSync(id.directoryDir()); err != nil {
		return false, err
	}
	err = id.update(func(d *identityData) (bool, error) {
		first = d.Directory != storeOpened
		if d.Directory != "" {
			return false, nil
		}
		d.Directory = storeOpening
		return true, nil
	})
	return first, err
}

func (id *identity) endDirectory() error {
	return id.update(func(d *identityData) (bool, error) {
		changed := d.Directory != storeOpened
		d.Directory = storeOpened
		return changed, nil
	})
}

// beginShards makes the folders of shards and records them, all in one write.
func (id *identity) beginShards(shards []int) error {
	for _, shard := range shards {
		if err := mkdirSync(id.shardDir(shard)); err != nil {
			return err
		}
	}
	return id.update(func(d *identityData) (changed bool, err error) {
		for _, shard := range shards {
			if name := strconv.Itoa(shard); d.Replicas[name] == "" {
				d.Replicas[name], changed = storeOpening, true
			}
		}
		return changed, nil
	})
}

// firstTime is true while the shard has never been opened to the end.
func (id *identity) firstTime(shard int) bool {
	return id.get().Replicas[strconv.Itoa(shard)] != storeOpened
}

// endShard records that the shard was opened. What others wait to record goes into the same write.
func (id *identity) endShard(shard int) error {
	id.ended[shard].Store(true)
	return id.update(func(d *identityData) (changed bool, err error) {
		for name, phase := range d.Replicas {
			if s, err := strconv.Atoi(name); err == nil && phase == storeOpening && id.ended[s].Load() {
				d.Replicas[name], changed = storeOpened, true
			}
		}
		return changed, nil
	})
}

// shards lists the replicas that are recorded, sorted.
func (d *identityData) shards() []int {
	var shards []int
	for name := range d.Replicas {
		if shard, err := strconv.Atoi(name); err == nil {
			shards = append(shards, shard)
		}
	}
	slices.Sort(shards)
	return shards
}

// close gives the folder free.
func (id *identity) close() error { return id.lock.Close() }

// writeFileSync writes JSON so that after a crash either the old content or the new one is there.
func writeFileSync(path string, v any) error {
	raw, err := json.MarshalIndent(v, "", "  ")
	if err != nil {
		return err
	}
	f, err := os.Create(path + ".new")
	if err != nil {
		return err
	}
	_, err = f.Write(append(raw, '\n'))
	if err == nil {
		err = f.Sync()
	}
	if err := errors.Join(err, f.Close()); err != nil {
		return err
	}
	if err := os.Rename(path+".new", path); err != nil {
		return err
	}
	return syncDir(filepath.Dir(path))
}

// mkdirSync makes a folder that is still there after a crash.
func mkdirSync(path string) error {
	if err := os.MkdirAll(path, 0o755); err != nil {
		return err
	}
	if err := syncDir(filepath.Dir(path)); err != nil {
		return err
	}
	return syncDir(filepath.Dir(filepath.Dir(path)))
}

func syncDir(path string) error {
	d, err := os.Open(path)
	if err != nil {
		return err
	}
	return errors.Join(d.Sync(), d.Close())
}

// uuidBytes is the length of what newUUID returns.
const uuidBytes = 32

// newUUID returns 128 random bits in hexadecimal digits.
func newUUID() (string, error) {
	var b [16]byte
	if _, err := rand.Read(b[:]); err != nil {
		return "", fmt.Errorf("random: %w", err)
	}
	return hex.EncodeToString(b[:]), nil
}
