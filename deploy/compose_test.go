package deploy

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/carillon-timers/carillon/client"
)

// compose is a Compose project of three nodes.
type compose struct {
	t       *testing.T
	command []string // docker compose, or docker-compose
	project string
	env     []string
	addrs   []string
}

// newCompose builds the image and starts the project; it is gone, with its data, when the test ends.
func newCompose(t *testing.T) *compose {
	t.Helper()
	c := &compose{t: t, project: fmt.Sprintf("carillon-test-%d", os.Getpid())}
	for _, command := range [][]string{{"docker", "compose"}, {"docker-compose"}} {
		if exec.Command(command[0], append(command[1:], "version")...).Run() == nil {
			c.command = command
			break
		}
	}
	if c.command == nil || exec.Command("docker", "info").Run() != nil {
		t.Skip("no Docker engine with Compose runs here: the Compose file was not tried")
	}
	image := c.project + ":test"
	c.run("./build-image.sh", image)
	c.env = append(os.Environ(), "CARILLON_IMAGE="+image)
	for i, port := range freePorts(t, 3) {
		c.env = append(c.env, fmt.Sprintf("CARILLON_PORT%d=%d", i+1, port))
		c.addrs = append(c.addrs, fmt.Sprintf("127.0.0.1:%d", port))
	}
	t.Cleanup(func() {
		if t.Failed() {
			t.Log(c.compose("logs", "--no-color", "--tail", "60"))
		}
		c.compose("down", "--volumes", "--timeout", "5")
		c.run("docker", "rmi", "--force", image)
	})
	c.compose("up", "--detach")
	return c
}

func freePorts(t *testing.T, n int) []int {
	t.Helper()
	var ports []int
	for range n {
		ln, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		defer ln.Close()
		ports = append(ports, ln.Addr().(*net.TCPAddr).Port)
	}
	return ports
}

func (c *compose) run(name string, args ...string) string {
	c.t.Helper()
	cmd := exec.Command(name, args...)
	cmd.Env = c.env
	out, err := cmd.CombinedOutput()
	if err != nil {
		c.t.Errorf("%s %s: %v\n%s", name, strings.Join(args, " "), err, out)
	}
	return strings.TrimSpace(string(out))
}

func (c *compose) compose(args ...string) string {
	c.t.Helper()
	args = append([]string{"--project-name", c.project, "--file", "compose.yaml"}, args...)
	return c.run(c.command[0], append(c.command[1:len(c.command):len(c.command)], args...)...)
}

// seen collects the first delivery of each timer.
type seen struct {
	mu    sync.Mutex
	late  map[string]time.Duration // guarded by mu
	early []string                 // guarded by mu
	extra int                      // guarded by mu
	all   chan struct{}            // closed when want timers were seen
	want  int
}

func (s *seen) take(_ context.Context, d client.Delivery) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if d.Received.Before(d.Due) {
		s.early = append(s.early, d.ID)
	}
	if _, again := s.late[d.ID]; again {
		s.extra++
		return nil
	}
	s.late[d.ID] = d.Received.Sub(d.Due)
	if len(s.late) == s.want {
		close(s.all)
	}
	return nil
}

// TestCompose kills a leader's container and cuts another one off the network while timers fire: all arrive, none early.
func TestCompose(t *testing.T) {
	const timers = 1200
	c := newCompose(t)
	ctx, cancel := context.WithTimeout(t.Context(), 3*time.Minute)
	defer cancel()
	sdk := c.dial(ctx)
	defer sdk.Close()

	s := &seen{late: map[string]time.Duration{}, all: make(chan struct{}), want: timers}
	working, stop := context.WithCancel(ctx)
	worked := make(chan error, 1)
	go func() { worked <- sdk.Work(working, "compose", s.take, client.WorkOptions{DrainTimeout: time.Second}) }()

	start := time.Now().Add(2 * time.Second)
	batch := make([]client.Timer, timers)
	for i := range batch {
		batch[i] = client.Timer{ID: fmt.Sprintf("t%04d", i), Due: start.Add(time.Duration(i) * 20 * time.Millisecond), Queue: "compose",
			Retry: client.RetryPolicy{Lease: 3 * time.Second}}
	}
	if _, err := sdk.ScheduleBatch(ctx, batch); err != nil {
		t.Fatal(err)
	}
	c.attack(ctx, sdk, start)
	select {
	case <-s.all:
	case <-ctx.Done():
	}
	stop()
	if err := <-worked; err != nil {
		t.Errorf("work: %v", err)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	var worst time.Duration
	for _, late := range s.late {
		worst = max(worst, late)
	}
	t.Logf("%d of %d timers arrived, %d twice, worst lateness %v", len(s.late), timers, s.extra, worst)
	if len(s.late) != timers || len(s.early) > 0 {
		t.Errorf("%d of %d timers arrived, early: %v", len(s.late), timers, s.early)
	}
}

// attack kills the container that leads shard 0, starts it again, cuts another one off the network, and heals it.
func (c *compose) attack(ctx context.Context, sdk *client.Client, start time.Time) {
	shards, err := sdk.Shards(ctx)
	if err != nil {
		c.t.Fatal(err)
	}
	leader := shards[0].Leader
	other := map[string]string{"n1": "n2", "n2": "n3", "n3": "n1"}[leader]
	until(ctx, start.Add(3*time.Second))
	c.t.Logf("kill %s, the leader of shard 0", leader)
	c.compose("kill", "-s", "SIGKILL", leader)
	until(ctx, start.Add(7*time.Second))
	c.compose("start", leader)
	c.ready(ctx, sdk)
	until(ctx, start.Add(12*time.Second))
	network, id := c.project+"_carillon", c.compose("ps", "--quiet", other)
	c.t.Logf("cut %s off", other)
	c.run("docker", "network", "disconnect", network, id)
	until(ctx, start.Add(17*time.Second))
	c.run("docker", "network", "connect", "--alias", other, network, id)
	c.t.Logf("healed %s", other)
	c.ready(ctx, sdk)
}

// until waits for an instant.
func until(ctx context.Context, at time.Time) {
	select {
	case <-time.After(time.Until(at)):
	case <-ctx.Done():
	}
}

// dial connects to the cluster and waits until it is ready.
func (c *compose) dial(ctx context.Context) *client.Client {
	c.t.Helper()
	for {
		sdk, err := client.Dial(ctx, client.Config{Addrs: c.addrs})
		if err == nil {
			c.ready(ctx, sdk)
			return sdk
		}
		if ctx.Err() != nil {
			c.t.Fatalf("dial: %v", errors.Join(err, ctx.Err()))
		}
		until(ctx, time.Now().Add(100*time.Millisecond))
	}
}

// ready waits until all three nodes are alive and every shard fires.
func (c *compose) ready(ctx context.Context, sdk *client.Client) {
	c.t.Helper()
	for {
		status, err := sdk.Status(ctx)
		if err == nil && status.Ready && status.MembersAlive == 3 {
			return
		}
		if ctx.Err() != nil {
			c.t.Fatalf("the cluster is not ready: %+v, %v", status, err)
		}
		until(ctx, time.Now().Add(100*time.Millisecond))
	}
}
