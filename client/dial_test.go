package client_test

import (
	"context"
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/carillon-timers/carillon/client"
	carillonv1 "github.com/carillon-timers/carillon/proto/carillon/v1"
)

func TestDialRefusesABadConfig(t *testing.T) {
	for _, cfg := range []client.Config{
		{},
		{Addrs: []string{"localhost"}},
		{Addrs: []string{"localhost:0"}},
		{Addrs: []string{"localhost:http"}},
		{Addrs: []string{"localhost:1"}, Namespace: "No"},
		{Addrs: []string{"localhost:1"}, Namespace: strings.Repeat("n", 64)},
		{Addrs: []string{"localhost:1"}, Name: "a\x00b"},
		{Addrs: []string{"localhost:1"}, CallTimeout: -1},
	} {
		var invalid *client.InvalidError
		if _, err := client.Dial(t.Context(), cfg); !errors.As(err, &invalid) {
			t.Errorf("%+v: %v", cfg, err)
		}
	}
}

// Nothing listens: the error names the address and the reason when the context ends, and nothing is left behind.
func TestDialNobody(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t, 1, "n1")
		ctx, cancel := context.WithTimeout(t.Context(), 4*time.Second)
		defer cancel()
		begin := time.Now()
		_, err := client.Dial(ctx, c.config("n8:7400", "n9:7400"))
		if !errors.Is(err, client.ErrUnavailable) || !errors.Is(err, context.DeadlineExceeded) || time.Since(begin) != 4*time.Second {
			t.Errorf("after %v: %v", time.Since(begin), err)
		}
		if text := err.Error(); !strings.Contains(text, ":7400: connection refused") || strings.Contains(text, "desc =") {
			t.Errorf("message: %v", err)
		}
	})
}

// One address of three works; a node that comes up during Dial is found.
func TestDialFindsOne(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t, 1, "n1", "n2")
		begin := time.Now()
		c.client(t, "n8:7400", "n2:7400", "n9:7400")
		if time.Since(begin) > 100*time.Millisecond {
			t.Errorf("took %v", time.Since(begin))
		}
		c.kill("n1")
		c.kill("n2")
		time.AfterFunc(3*time.Second, func() { c.start("n2") })
		c.client(t, "n1:7400", "n2:7400")
		if took := time.Since(begin); took < 3*time.Second || took > 6*time.Second {
			t.Errorf("took %v", took)
		}
	})
}

// The addresses that the nodes advertise cannot be reached from here: the configured one serves all calls, and each
// configured one is the way to its own node for Work.
func TestUnreachableAdvertisedAddresses(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t, 4, "n1", "n2")
		c.hook(func(c *cluster) {
			for _, n := range c.nodes {
				n.advertised = "inside-" + n.id + ":7400"
			}
		})
		cl := c.client(t, "n1:7400", "n2:7400")
		synctest.Wait()
		for _, id := range ids("t", 20) {
			if _, err := cl.Schedule(t.Context(), client.Timer{ID: id, Queue: "q"}); err != nil {
				t.Fatal(err)
			}
		}
		time.Sleep(time.Minute) // the map is read again
		c.took()
		for _, id := range ids("t", 20) {
			if _, err := cl.Get(t.Context(), id); err != nil {
				t.Fatal(err)
			}
		}
		for _, s := range c.took() {
			if want := c.leaders[carillonv1.ShardOf("default", s.id, 4)]; s.node != want {
				t.Errorf("%s went to %s, led by %s", s.id, s.node, want)
			}
		}
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error)
		got := make(chan string, 2)
		go func() {
			done <- cl.Work(ctx, "q", func(_ context.Context, d client.Delivery) error { got <- d.ID; return nil }, client.WorkOptions{})
		}()
		c.nodes["n1"].work.push(time.Minute, "one")
		c.nodes["n2"].work.push(time.Minute, "two")
		<-got
		<-got
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
}

// A member that joins later is found, its timers go to it; one that left is forgotten.
func TestMembersChange(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t, 1, "n1")
		cl := c.client(t)
		c.start("n2")
		c.lead("n2")
		time.Sleep(time.Minute)
		if _, err := cl.Schedule(t.Context(), client.Timer{ID: "a", Queue: "q"}); err != nil {
			t.Fatal(err)
		}
		if path := c.took(); len(path) != 1 || path[0].node != "n2" {
			t.Errorf("path: %+v", path)
		}
		members, err := cl.Members(t.Context())
		if err != nil || len(members) != 2 {
			t.Errorf("%+v, %v", members, err)
		}
		shards, err := cl.Shards(t.Context())
		if err != nil || len(shards) != 1 || shards[0].Leader != "n2" {
			t.Errorf("%+v, %v", shards, err)
		}
		st, err := cl.Status(t.Context())
		if err != nil || st.NodeID != "n1" || !st.Ready {
			t.Errorf("the configured node was not the one that was asked: %+v, %v", st, err)
		}
		c.kill("n2")
		c.hook(func(c *cluster) { delete(c.nodes, "n2") })
		c.lead("n1")
		time.Sleep(time.Minute)
		if _, err := cl.Get(t.Context(), "a"); err != nil {
			t.Error(err)
		}
		c.hook(func(c *cluster) { clear(c.dials) })
		time.Sleep(time.Minute)
		c.hook(func(c *cluster) {
			if n := c.dials["n2:7400"]; n > 0 {
				t.Errorf("a node that is no member any more was dialled %d times", n)
			}
		})
	})
}

// Close ends what waits, with ErrClosed, and nothing of the client is left.
func TestClose(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t, 1, "n1")
		cl := c.client(t)
		c.hook(func(c *cluster) {
			c.call = func(*node, string) error { return status.Error(codes.Unavailable, "broken") }
		})
		results := make(chan error, 3)
		go func() { _, err := cl.Schedule(t.Context(), client.Timer{ID: "a", Queue: "q"}); results <- err }()
		go func() { _, err := cl.Get(t.Context(), "a"); results <- err }()
		go func() {
			results <- cl.Work(t.Context(), "q", func(context.Context, client.Delivery) error { return nil }, client.WorkOptions{})
		}()
		time.Sleep(time.Second)
		cl.Close()
		for range 3 {
			if err := <-results; !errors.Is(err, client.ErrClosed) {
				t.Errorf("got %v", err)
			}
		}
		if _, err := cl.Schedule(t.Context(), client.Timer{ID: "b", Queue: "q"}); !errors.Is(err, client.ErrClosed) {
			t.Errorf("after Close: %v", err)
		}
		cl.Close()
	})
}
