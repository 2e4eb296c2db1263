package node

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/carillon-timers/carillon/client"
)

// testCluster is a cluster in this process, on loopback, on ports that the system chooses.
type testCluster struct {
	t      *testing.T
	dir    string
	shards int
	nodes  map[string]*testNode
}

// testNode is one run of a node.
type testNode struct {
	*Node
	cancel context.CancelFunc
	done   chan struct{}
	err    error // set before done is closed
}

func newTestCluster(t *testing.T, shards int) *testCluster {
	return &testCluster{t: t, dir: t.TempDir(), shards: shards, nodes: map[string]*testNode{}}
}

const testWait = time.Minute // far beyond what anything here takes

func (c *testCluster) config(id string, expect int) Config {
	config := DefaultConfig()
	config.ID, config.Dir = id, filepath.Join(c.dir, id)
	config.ClientAddr, config.PeerAddr, config.GossipAddr, config.HTTPAddr = "127.0.0.1:0", "127.0.0.1:0", "127.0.0.1:0", "127.0.0.1:0"
	config.BootstrapExpect, config.Shards = expect, c.shards
	// A busy machine holds a process up for long; what is tested here is not how fast a failover is.
	config.HeartbeatTimeout, config.ElectionTimeout, config.LeaseTimeout = time.Second, time.Second, 900*time.Millisecond
	config.BalanceAfter = 2 * time.Second
	for _, n := range c.nodes {
		config.Join = append(config.Join, n.Addrs().Gossip)
	}
	return config
}

// start runs a node and waits until it listens or has ended.
func (c *testCluster) start(config Config) *testNode {
	c.t.Helper()
	return c.startWith(config, Deps{})
}

func (c *testCluster) startWith(config Config, deps Deps) *testNode {
	c.t.Helper()
	deps.Logger = testLogger(c.t)
	n, err := New(config, deps)
	if err != nil {
		c.t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	tn := &testNode{Node: n, cancel: cancel, done: make(chan struct{})}
	go func() { // ends with Run; stop waits for it
		defer close(tn.done)
		tn.err = n.Run(ctx)
	}()
	c.t.Cleanup(func() { cancel(); <-tn.done })
	select {
	case <-n.Listening():
		c.nodes[config.ID] = tn
	case <-tn.done:
	case <-time.After(testWait):
		c.t.Fatal("the node does not listen")
	}
	return tn
}

// startAll starts nodes n1 to nN that create a cluster, and waits until all are ready.
func (c *testCluster) startAll(count int) {
	c.t.Helper()
	for i := range count {
		c.start(c.config(fmt.Sprint("n", i+1), count))
	}
	c.waitReady()
}

func (c *testCluster) waitReady() {
	c.t.Helper()
	for id, n := range c.nodes {
		select {
		case <-n.Ready():
		case <-n.done:
			c.t.Fatalf("%s ended: %v", id, n.err)
		case <-time.After(testWait):
			c.t.Fatalf("%s is not ready: %v", id, n.readiness())
		}
	}
}

// stop ends a node and returns how long that took.
func (c *testCluster) stop(id string) time.Duration {
	c.t.Helper()
	n := c.nodes[id]
	delete(c.nodes, id)
	began := time.Now()
	n.cancel()
	<-n.done
	if n.err != nil {
		c.t.Errorf("%s: %v", id, n.err)
	}
	return time.Since(began)
}

func (c *testCluster) stopAll() {
	c.t.Helper()
	var all sync.WaitGroup
	for _, n := range c.nodes {
		all.Go(func() { n.cancel(); <-n.done })
	}
	all.Wait()
	for id, n := range c.nodes {
		if n.err != nil {
			c.t.Errorf("%s: %v", id, n.err)
		}
	}
	clear(c.nodes)
}

// client dials the nodes.
func (c *testCluster) client(ids ...string) *client.Client {
	c.t.Helper()
	var addrs []string
	for id, n := range c.nodes {
		if len(ids) == 0 || slices.Contains(ids, id) {
			addrs = append(addrs, n.Addrs().Client)
		}
	}
	cl, err := client.Dial(c.t.Context(), client.Config{Addrs: addrs})
	if err != nil {
		c.t.Fatal(err)
	}
	c.t.Cleanup(func() { _ = cl.Close() })
	return cl
}

// eventually waits until ok is nil; the last error is told when it never is.
func eventually(t *testing.T, ok func() error) {
	t.Helper()
	end := time.Now().Add(testWait)
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for {
		err := ok()
		if err == nil {
			return
		}
		if time.Now().After(end) {
			t.Fatal(err)
		}
		<-tick.C
	}
}

func testLogger(t *testing.T) *slog.Logger {
	if os.Getenv("CARILLON_TEST_LOG") == "" {
		return quiet
	}
	return slog.New(slog.NewTextHandler(t.Output(), &slog.HandlerOptions{Level: slog.LevelDebug}))
}

func (c *testCluster) httpGet(id, path string) (int, string) {
	c.t.Helper()
	response, err := http.Get("http://" + c.nodes[id].Addrs().HTTP + path)
	if err != nil {
		c.t.Fatal(err)
	}
	defer response.Body.Close()
	body, err := io.ReadAll(response.Body)
	if err != nil {
		c.t.Fatal(err)
	}
	return response.StatusCode, string(body)
}

// mustEnd waits for a node that cannot go on, and returns why.
func (n *testNode) mustEnd(t *testing.T) error {
	t.Helper()
	select {
	case <-n.done:
	case <-time.After(testWait):
		t.Fatal("the node goes on")
	}
	if n.err == nil {
		return errors.New("no error")
	}
	return n.err
}
