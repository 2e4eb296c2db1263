package peer

import (
	"context"
	"io"
	"log/slog"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/hashicorp/raft"

	"github.com/carillon-timers/carillon/transport/peer/peertest"
)

// host is one mux on a network in memory; its address is its node ID.
type host struct {
	t      *testing.T
	m      *Mux
	cancel context.CancelFunc
	done   chan error
}

// newHost makes a host of cluster "c" without starting it; change may alter its configuration.
func newHost(t *testing.T, n *peertest.Network, id string, change func(*Config)) *host {
	t.Helper()
	c := Config{
		NodeID: id, BootID: id + "-boot1", ClusterID: func() string { return "c" },
		Resolve: func(node string) (string, bool) { return node, true }, Dial: n.Dialer(id),
		Logger: slog.New(slog.DiscardHandler),
	}
	if change != nil {
		change(&c)
	}
	return &host{t: t, m: New(c), done: make(chan error, 1)}
}

// run starts the host.
func (h *host) run(n *peertest.Network) *host {
	h.t.Helper()
	ln, err := n.Listen(h.m.c.NodeID)
	if err != nil {
		h.t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	h.cancel = cancel
	go func() { h.done <- h.m.Run(ctx, ln) }()
	synctest.Wait()
	return h
}

// stop ends the host and waits until all its goroutines have returned.
func (h *host) stop() {
	h.t.Helper()
	h.cancel()
	if err := <-h.done; err != nil {
		h.t.Errorf("run of %s ended with %v", h.m.c.NodeID, err)
	}
}

// serve answers what a group's transport consumes until it is stopped.
func serve(g raft.Transport, answer func(raft.RPC)) (stop func()) {
	quit := make(chan struct{})
	var wg sync.WaitGroup
	wg.Go(func() {
		for {
			select {
			case rpc := <-g.Consumer():
				answer(rpc)
			case <-quit:
				return
			}
		}
	})
	return func() { close(quit); wg.Wait() }
}

// words is an FSM that keeps what it is given.
type words struct {
	mu   sync.Mutex
	list []string
}

func (w *words) Apply(l *raft.Log) any {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.list = append(w.list, string(l.Data))
	return len(w.list)
}

func (w *words) count() int {
	w.mu.Lock()
	defer w.mu.Unlock()
	return len(w.list)
}

func (w *words) Snapshot() (raft.FSMSnapshot, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	var b []byte
	for _, s := range w.list {
		b = appendString(b, s)
	}
	return wordsSnapshot(b), nil
}

func (w *words) Restore(r io.ReadCloser) error {
	b, err := io.ReadAll(r)
	if err != nil {
		return err
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.list = nil
	for d := (&decoder{b: b}); len(d.b) > 0; {
		w.list = append(w.list, string(d.bytes()))
	}
	return nil
}

type wordsSnapshot []byte

func (s wordsSnapshot) Persist(sink raft.SnapshotSink) error {
	if _, err := sink.Write(s); err != nil {
		return err
	}
	return sink.Close()
}

func (wordsSnapshot) Release() {}

// replica is one Raft instance in memory.
type replica struct {
	raft  *raft.Raft
	fsm   *words
	store *raft.InmemStore
	snaps *raft.InmemSnapshotStore
}

func raftConfig(id string) *raft.Config {
	c := raft.DefaultConfig()
	c.LocalID = raft.ServerID(id)
	c.HeartbeatTimeout, c.ElectionTimeout = 500*time.Millisecond, 500*time.Millisecond
	c.LeaderLeaseTimeout, c.CommitTimeout = 400*time.Millisecond, time.Second
	c.SnapshotInterval, c.SnapshotThreshold, c.TrailingLogs = time.Hour, 1<<40, 1024
	c.NoLegacyTelemetry = true
	c.Logger = hclog.NewNullLogger()
	return c
}

// openReplica opens a group's replica on a host; old carries its stores over a restart.
func openReplica(t *testing.T, h *host, group uint32, old *replica, servers []raft.Server) *replica {
	t.Helper()
	r := &replica{fsm: &words{}, store: raft.NewInmemStore(), snaps: raft.NewInmemSnapshotStore()}
	if old != nil {
		r.store, r.snaps = old.store, old.snaps
	}
	c := raftConfig(h.m.c.NodeID)
	tr := h.m.Group(group)
	if old == nil && servers != nil {
		cfg := raft.Configuration{Servers: servers}
		if err := raft.BootstrapCluster(c, r.store, r.store, r.snaps, tr, cfg); err != nil {
			t.Fatal(err)
		}
	}
	var err error
	if r.raft, err = raft.NewRaft(c, r.fsm, r.store, r.store, r.snaps, tr); err != nil {
		t.Fatal(err)
	}
	return r
}

// until waits, in the bubble's time, for a condition.
func until(t *testing.T, limit time.Duration, what string, ok func() bool) {
	t.Helper()
	for end := time.Now().Add(limit); !ok(); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("not within %v: %s", limit, what)
		}
	}
}
