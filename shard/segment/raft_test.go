package segment

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"sync"
	"testing"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/hashicorp/raft"
)

// lines is a state machine that keeps all it was told.
type lines struct {
	mu  sync.Mutex
	all []byte // guarded by mu
}

func (l *lines) Apply(e *raft.Log) any {
	l.mu.Lock()
	defer l.mu.Unlock()
	if !bytes.Contains(l.all, e.Data) { // a word whose outcome was not known is sent again
		l.all = append(l.all, e.Data...)
	}
	return nil
}

func (l *lines) Snapshot() (raft.FSMSnapshot, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return image(append([]byte(nil), l.all...)), nil
}

func (l *lines) Restore(r io.ReadCloser) error {
	b, err := io.ReadAll(r)
	l.mu.Lock()
	defer l.mu.Unlock()
	l.all = b
	return errors.Join(err, r.Close())
}

func (l *lines) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return string(l.all)
}

type image []byte

func (b image) Persist(s raft.SnapshotSink) error {
	_, err := s.Write(b)
	return errors.Join(err, s.Close())
}

func (image) Release() {}

// raftNode is a process with replicas of some groups on one log.
type raftNode struct {
	log    *runningLog
	groups []*raft.Raft
	fsms   []*lines
}

const raftGroups = 3

func startRaft(t *testing.T, dir string, id int, nets [][]*raft.InmemTransport, snapshots []raft.SnapshotStore) *raftNode {
	t.Helper()
	n := &raftNode{log: startIn(t, dir, Options{SegmentBytes: 64 << 10, Slack: 1, MoveBytes: 4 << 10, Logger: quietly})}
	for g := range raftGroups {
		c := raft.DefaultConfig()
		c.LocalID = raft.ServerID(fmt.Sprint(id))
		c.HeartbeatTimeout, c.ElectionTimeout, c.LeaderLeaseTimeout, c.CommitTimeout = 300*time.Millisecond, 300*time.Millisecond, 200*time.Millisecond, 10*time.Millisecond
		c.SnapshotThreshold, c.SnapshotInterval, c.TrailingLogs = 40, 20*time.Millisecond, 10
		c.Logger = hclog.NewNullLogger()
		store, fsm := n.log.Group(uint32(g)), &lines{}
		var servers []raft.Server
		for k := range nets {
			nets[id][g].Connect(nets[k][g].LocalAddr(), nets[k][g]) // the end of a Raft disconnects its transport
			servers = append(servers, raft.Server{ID: raft.ServerID(fmt.Sprint(k)), Address: nets[k][g].LocalAddr()})
		}
		err := raft.BootstrapCluster(c, store, store, snapshots[g], nets[id][g], raft.Configuration{Servers: servers})
		if err != nil && !errors.Is(err, raft.ErrCantBootstrap) {
			t.Fatal(err)
		}
		r, err := raft.NewRaft(c, fsm, store, store, snapshots[g], nets[id][g])
		if err != nil {
			t.Fatal(err)
		}
		n.groups, n.fsms = append(n.groups, r), append(n.fsms, fsm)
	}
	return n
}

func (n *raftNode) stop(t *testing.T) {
	t.Helper()
	for _, r := range n.groups {
		if err := r.Shutdown().Error(); err != nil {
			t.Error(err)
		}
	}
	if err := n.log.stop(); err != nil {
		t.Error(err)
	}
}

// Three nodes with three Raft groups each elect, store, take snapshots, cut their logs, miss entries while they are away, are
// sent snapshots, and agree at the end.
func TestRaft(t *testing.T) {
	t.Parallel()
	var nets [][]*raft.InmemTransport
	var snapshots [][]raft.SnapshotStore
	var dirs []string
	for range 3 {
		var net []*raft.InmemTransport
		var kept []raft.SnapshotStore
		for range raftGroups {
			_, transport := raft.NewInmemTransport("")
			net, kept = append(net, transport), append(kept, raft.NewInmemSnapshotStore())
		}
		nets, snapshots, dirs = append(nets, net), append(snapshots, kept), append(dirs, t.TempDir())
	}
	nodes := make([]*raftNode, 3)
	for i := range nodes {
		nodes[i] = startRaft(t, dirs[i], i, nets, snapshots[i])
	}
	want := make([]string, raftGroups)
	for round := range 4 {
		away := round % 3
		nodes[away].stop(t)
		nodes[away] = nil
		for g := range raftGroups {
			for k := range 60 {
				word := fmt.Sprintf("%d.%d ", round, k)
				applyOn(t, nodes, g, word)
				want[g] += word
			}
		}
		nodes[away] = startRaft(t, dirs[away], away, nets, snapshots[away])
	}
	for g := range raftGroups {
		for i, n := range nodes {
			deadline := time.After(20 * time.Second)
			for n.fsms[g].String() != want[g] {
				select {
				case <-time.After(5 * time.Millisecond):
				case <-deadline:
					t.Fatalf("node %d, group %d holds %d bytes, not %d", i, g, len(n.fsms[g].String()), len(want[g]))
				}
			}
		}
	}
	for _, n := range nodes {
		n.stop(t)
	}
}

// applyOn has the leader of a group apply a word.
func applyOn(t *testing.T, nodes []*raftNode, g int, word string) {
	t.Helper()
	for deadline := time.After(20 * time.Second); ; {
		for _, n := range nodes {
			if n == nil || n.groups[g].State() != raft.Leader {
				continue
			}
			if n.groups[g].Apply([]byte(word), time.Second).Error() == nil {
				return
			}
		}
		select {
		case <-time.After(5 * time.Millisecond):
		case <-deadline:
			t.Fatalf("group %d has no leader", g)
		}
	}
}
