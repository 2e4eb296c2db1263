package node

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/carillon-timers/carillon/client"
	carillonv1 "github.com/carillon-timers/carillon/proto/carillon/v1"
	logv1 "github.com/carillon-timers/carillon/proto/carillonlog/v1"
	"github.com/carillon-timers/carillon/raftfsm"
)

// idOf finds a timer ID that lives on the shard.
func idOf(shard, shards int) string {
	for i := 0; ; i++ {
		if id := fmt.Sprint("t", i); carillonv1.ShardOf("", id, shards) == shard {
			return id
		}
	}
}

var inAnHour = &carillonv1.Timer_Delay{Delay: durationpb.New(time.Hour)}

// A shard whose log is damaged stays closed and says so everywhere; the process and the other shard go on.
func TestDamagedShard(t *testing.T) {
	t.Parallel()
	c := newTestCluster(t, 2)
	config := c.config("n1", 1)
	config.Join, config.LogStore = nil, LogStoreBolt
	c.start(config)
	c.waitReady()
	c.stop("n1")
	path := filepath.Join(config.Dir, shardsFolder, "0", raftFile)
	if err := os.WriteFile(path, []byte(strings.Repeat("not a log ", 2000)), 0o600); err != nil {
		t.Fatal(err)
	}
	c.start(config)
	eventually(t, func() error {
		if code, body := c.httpGet("n1", "/readyz"); code != 503 || !strings.Contains(body, "shard 0 has failed") {
			return fmt.Errorf("readyz: %d, %s", code, body)
		}
		return nil
	})
	if code, _ := c.httpGet("n1", "/healthz"); code != 200 {
		t.Errorf("healthz: %d", code)
	}
	_, body := c.httpGet("n1", "/metrics")
	for _, line := range []string{`carillon_shard_failed{shard="0"} 1`, `carillon_shard_failed{shard="1"} 0`, "carillon_ready 0"} {
		if !strings.Contains(body, line) {
			t.Errorf("metrics lack %q", line)
		}
	}
	api := c.timers(t, "n1")
	schedule := func(shard int) error {
		ctx, cancel := context.WithTimeout(t.Context(), testWait)
		defer cancel()
		_, err := api.Schedule(ctx, &carillonv1.ScheduleRequest{Timer: &carillonv1.Timer{
			Id: idOf(shard, 2), Target: &carillonv1.Timer_Queue{Queue: "q"}, When: inAnHour,
		}})
		return err
	}
	eventually(t, func() error { return schedule(1) })
	began := time.Now()
	if err := schedule(0); err == nil {
		t.Error("the damaged shard took a timer")
	}
	if took := time.Since(began); took > 5*time.Second {
		t.Errorf("the damaged shard was waited for, for %v", took)
	}
}

// A replica that ends by itself is opened again, with all that it had; nothing else takes notice.
func TestReplicaIsOpenedAgain(t *testing.T) {
	t.Parallel()
	c := newTestCluster(t, 1)
	c.startAll(1)
	cl := c.client()
	if _, err := cl.Schedule(t.Context(), client.Timer{ID: "kept", After: time.Hour, Queue: "q"}); err != nil {
		t.Fatal(err)
	}
	r := c.nodes["n1"].replicas.get(0)
	if err := r.open.Load().Close(); err != nil {
		t.Fatal(err)
	}
	eventually(t, func() error {
		if n := r.reopened.Load(); n != 1 {
			return fmt.Errorf("opened again %d times", n)
		}
		return c.nodes["n1"].readiness()
	})
	if s, err := cl.Get(t.Context(), "kept"); err != nil || s.State != client.Pending {
		t.Errorf("kept: state %v, %v", s.State, err)
	}
}

// A replica that does not stop in time is not there any more: the node is not ready and its metrics say so, however long it runs on. It is
// opened again once it has ended.
func TestReplicaThatStopsSlowlyIsNotOpen(t *testing.T) {
	t.Parallel()
	c := newTestCluster(t, 1)
	config := c.config("n1", 1)
	config.StopTimeout = time.Second
	config.HeartbeatTimeout, config.ElectionTimeout, config.LeaseTimeout = 200*time.Millisecond, 200*time.Millisecond, 150*time.Millisecond
	n := c.start(config)
	c.waitReady()
	r := n.replicas.get(0)
	applied, release := make(chan struct{}), make(chan struct{})
	hung := &logv1.Schedule{Id: "kept", IsDelay: true, DelayMs: time.Hour.Milliseconds(), Queue: "q"}
	_, err := r.open.Load().Submit([]*raftfsm.Command{{Kind: &logv1.Command_Schedule{Schedule: hung}}}, func([]raftfsm.Result, error) {
		close(applied)
		<-release // what applies goes no further
	})
	if err != nil {
		t.Fatal(err)
	}
	<-applied
	if err := r.open.Load().Close(); err != nil {
		t.Fatal(err)
	}
	eventually(t, func() error {
		if err := n.readiness(); err == nil || err.Error() != "shard 0 is not open" {
			return fmt.Errorf("readiness: %v", err)
		}
		if _, body := c.httpGet("n1", "/metrics"); !strings.Contains(body, `carillon_shard_open{shard="0"} 0`) {
			return errors.New("the metrics say that it is open")
		}
		return nil
	})
	if again := r.reopened.Load(); again != 0 {
		t.Errorf("opened again %d times while it ran on", again)
	}
	close(release)
	eventually(t, n.readiness)
	if s, err := c.client().Get(t.Context(), "kept"); err != nil || s.State != client.Pending {
		t.Errorf("kept: state %v, %v", s.State, err)
	}
}

// Two machines are given one ID: the second says so and ends; the first goes on.
func TestTwoProcessesUnderOneID(t *testing.T) {
	t.Parallel()
	c := newTestCluster(t, 1)
	c.startAll(1)
	second := c.config("n1", 0)
	second.Dir = filepath.Join(c.dir, "elsewhere")
	first := c.nodes["n1"]
	err := c.start(second).mustEnd(t)
	if !strings.Contains(err.Error(), "node ID n1 is in use") {
		t.Errorf("the second: %v", err)
	}
	if err := first.readiness(); err != nil {
		t.Errorf("the first: %v", err)
	}
}

// cable is the network of one node, but for gossip; it can be cut and mended.
type cable struct {
	mu    sync.Mutex
	cut   bool                  // guarded by mu
	conns map[net.Conn]struct{} // guarded by mu; all that were made and not cut
}

func (c *cable) take(conn net.Conn, err error) (net.Conn, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if err != nil {
		return nil, err
	}
	if c.cut {
		return nil, errors.Join(errors.New("the cable is cut"), conn.Close())
	}
	c.conns[conn] = struct{}{}
	return conn, nil
}

func (c *cable) dial(ctx context.Context, addr string) (net.Conn, error) {
	return c.take((&net.Dialer{}).DialContext(ctx, "tcp", addr))
}

func (c *cable) listen(network, addr string) (net.Listener, error) {
	ln, err := net.Listen(network, addr)
	return &cableListener{ln, c}, err
}

func (c *cable) set(cut bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.cut = cut; cut {
		for conn := range c.conns {
			_ = conn.Close() // it may be closed already
		}
		clear(c.conns)
	}
}

type cableListener struct {
	net.Listener
	cable *cable
}

func (l *cableListener) Accept() (net.Conn, error) {
	for {
		conn, err := l.Listener.Accept()
		if err != nil {
			return nil, err
		}
		if conn, err := l.cable.take(conn, nil); err == nil {
			return conn, nil
		}
	}
}

// The node that leads most is cut off while timers fall due, though gossip still sees it: the others take over, nothing is
// lost or early, and it is a good member again once it is back.
func TestNodeCutOff(t *testing.T) {
	t.Parallel()
	c := newTestCluster(t, spineShards)
	wire := &cable{conns: map[net.Conn]struct{}{}}
	c.startWith(c.config("n1", 3), Deps{Listen: wire.listen, Dial: wire.dial})
	c.start(c.config("n2", 3))
	c.start(c.config("n3", 3))
	c.waitReady()
	cl := c.client()
	const count = 60
	for i := range count {
		if _, err := cl.Schedule(t.Context(), client.Timer{ID: fmt.Sprint("cut-", i), After: time.Duration(300+30*i) * time.Millisecond, Queue: "cut"}); err != nil {
			t.Fatal(err)
		}
	}
	worker := work(t, cl, "cut")
	wire.set(true)
	for _, d := range worker.wait(t, "cut-", count) { // what was on its way when the cable was cut comes again
		if d.HandedOut.Before(d.Due) {
			t.Errorf("%s was early", d.ID)
		}
	}
	leads := func() (map[string]int, error) {
		shards, err := c.client("n2", "n3").Shards(t.Context())
		leads := map[string]int{}
		for _, s := range shards {
			leads[s.Leader]++
		}
		return leads, err
	}
	if leads, err := leads(); err != nil || leads["n2"]+leads["n3"] != spineShards {
		t.Errorf("leaders %v, %v", leads, err)
	}
	wire.set(false)
	state, _ := c.nodes["n2"].fsm.look()
	want := 0
	for s := range state.Shards {
		if state.replicas(s)[0] == "n1" {
			want++
		}
	}
	eventually(t, func() error {
		leads, err := leads()
		if err != nil || leads["n1"] != want {
			return fmt.Errorf("leaders %v, want %d of n1; %w", leads, want, err)
		}
		return nil
	})
}
