package node

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/carillon-timers/carillon/client"
	carillonv1 "github.com/carillon-timers/carillon/proto/carillon/v1"
	"github.com/carillon-timers/carillon/shard"
)

const spineShards = 4

// The life of a cluster of three: it forms, keeps and fires timers, answers through any node, loses a node and gets it
// back, and is found whole after all three came back on other ports.
func TestThreeNodes(t *testing.T) {
	t.Parallel()
	c := newTestCluster(t, spineShards)
	c.startAll(3)
	t.Run("schedule, work, ack", c.scheduleWorkAck)
	t.Run("tutorial order", c.tutorialOrder)
	t.Run("any node answers", c.anyNodeAnswers)
	t.Run("who does not lead decodes nothing", c.followersDecodeNothing)
	t.Run("views", c.views)
	t.Run("HTTP", c.serveHTTP)
	t.Run("a node stops and comes back", c.stopAndBack)
	t.Run("all restart on new ports", c.restartAll)
}

// followersDecodeNothing: a follower that is asked for the leader's work says who leads before it looks at the commands.
func (c *testCluster) followersDecodeNothing(t *testing.T) {
	for id, n := range c.nodes {
		for s := range uint32(spineShards) {
			eventually(t, func() error {
				_, err := n.onApply(t.Context(), "", s, []byte("\xff no commands"))
				var notLeader *shard.NotLeaderError
				led := n.replicas.local(int(s)).Leader()
				if told := errors.As(fromRemote(err), &notLeader); err == nil || told == (led == id) || told && notLeader.Leader != led {
					return fmt.Errorf("%s, shard %d, led by %q: %w", id, s, led, err)
				}
				return nil
			})
		}
	}
}

// collector works a queue.
type collector struct {
	mu  sync.Mutex
	got []client.Delivery // guarded by mu
}

// work starts to work a queue until the test ends.
func work(t *testing.T, cl *client.Client, queue string) *collector {
	t.Helper()
	c := &collector{}
	ctx, cancel := context.WithCancel(context.Background())
	var working sync.WaitGroup
	working.Go(func() {
		_ = cl.Work(ctx, queue, func(_ context.Context, d client.Delivery) error {
			c.mu.Lock()
			defer c.mu.Unlock()
			c.got = append(c.got, d)
			return nil
		}, client.WorkOptions{Concurrency: 8}) // it ends with ctx; what it lacks wait misses
	})
	t.Cleanup(func() { cancel(); working.Wait() })
	return c
}

// wait waits until n different timers with the prefix have come, and returns their first deliveries in the order of their
// hand-out.
func (c *collector) wait(t *testing.T, prefix string, n int) []client.Delivery {
	t.Helper()
	var first []client.Delivery
	eventually(t, func() error {
		first = first[:0]
		seen := map[string]bool{}
		c.mu.Lock()
		defer c.mu.Unlock()
		for _, d := range c.got {
			if strings.HasPrefix(d.ID, prefix) && !seen[d.ID] {
				seen[d.ID] = true
				first = append(first, d)
			}
		}
		if len(first) < n {
			return fmt.Errorf("%d of %d timers came", len(first), n)
		}
		return nil
	})
	slices.SortStableFunc(first, func(a, b client.Delivery) int { return a.HandedOut.Compare(b.HandedOut) })
	return first
}

func (c *testCluster) scheduleWorkAck(t *testing.T) {
	cl := c.client()
	worker := work(t, cl, "spine")
	var want []string
	for i := range 40 {
		id := fmt.Sprint("spine-", i)
		want = append(want, id)
		if _, err := cl.Schedule(t.Context(), client.Timer{ID: id, After: 150 * time.Millisecond, Queue: "spine", Payload: []byte(id)}); err != nil {
			t.Fatal(err)
		}
	}
	var ids []string
	for _, d := range worker.wait(t, "spine-", len(want)) {
		ids = append(ids, d.ID)
		if d.HandedOut.Before(d.Due) {
			t.Errorf("%s was handed out %v early", d.ID, d.Due.Sub(d.HandedOut))
		}
		if string(d.Payload) != d.ID {
			t.Errorf("%s came with payload %q", d.ID, d.Payload)
		}
	}
	slices.Sort(ids)
	slices.Sort(want)
	if !slices.Equal(ids, want) {
		t.Errorf("delivered %v", ids)
	}
	eventually(t, func() error { // the ack of the last may still be on its way
		for _, id := range want {
			if s, err := cl.Get(t.Context(), id); err != nil || s.State != client.Fired {
				return fmt.Errorf("%s: state %v, %w", id, s.State, err)
			}
		}
		return nil
	})
}

// The order test of the small wheel in the field's tutorials, scaled down, over all shards. Order over shards is a matter of
// time alone, so a run in which a leader changed, or in which the machine was late by more than the gap, tells nothing and
// is repeated.
func (c *testCluster) tutorialOrder(t *testing.T) {
	const unit = 20 * time.Millisecond // the smallest gap is two of them
	cl := c.client()
	worker := work(t, cl, "order")
	for s := range spineShards { // once these have come the streams to all leaders are open
		if _, err := cl.Schedule(t.Context(), client.Timer{ID: "warm-" + idOf(s, spineShards), Queue: "order"}); err != nil {
			t.Fatal(err)
		}
	}
	worker.wait(t, "warm-", spineShards)
	for attempt := 0; ; attempt++ {
		before := c.epochs(t, cl)
		prefix := fmt.Sprintf("order-%d/", attempt)
		scheduleOrder(t, cl, prefix, unit)
		var got []string
		var late time.Duration
		for _, d := range worker.wait(t, prefix, 6) {
			got = append(got, strings.TrimPrefix(d.ID, prefix))
			late = max(late, d.HandedOut.Sub(d.Due))
		}
		if want := []string{"1", "3", "5", "9", "12", "25"}; slices.Equal(got, want) {
			return
		} else if late < 2*unit && slices.Equal(before, c.epochs(t, cl)) {
			t.Fatalf("order %v, want %v", got, want)
		}
	}
}

func scheduleOrder(t *testing.T, cl *client.Client, prefix string, unit time.Duration) {
	t.Helper()
	start := time.Now().Add(200 * time.Millisecond)
	var timers []client.Timer
	for _, delay := range []int{9, 3, 5, 1, 25, 12} {
		timers = append(timers, client.Timer{ID: fmt.Sprint(prefix, delay), Due: start.Add(time.Duration(delay) * unit), Queue: "order"})
	}
	results, err := cl.ScheduleBatch(t.Context(), timers)
	if err != nil {
		t.Fatal(err)
	}
	for i, r := range results {
		if r.Err != nil {
			t.Fatalf("%s: %v", timers[i].ID, r.Err)
		}
	}
}

// epochs of all shards, once each has a leader that fires.
func (c *testCluster) epochs(t *testing.T, cl *client.Client) []int64 {
	t.Helper()
	var epochs []int64
	eventually(t, func() error {
		epochs = nil
		shards, err := cl.Shards(t.Context())
		for _, s := range shards {
			if !s.Firing {
				return fmt.Errorf("shard %d does not fire", s.ID)
			}
			epochs = append(epochs, s.Epoch)
		}
		return err
	})
	return epochs
}

func (c *testCluster) timers(t *testing.T, id string) carillonv1.TimersClient {
	t.Helper()
	conn, err := grpc.NewClient(c.nodes[id].Addrs().Client, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	return carillonv1.NewTimersClient(conn)
}

// Every node takes every call: batches over all shards, reads, cancels and lists, whoever leads.
func (c *testCluster) anyNodeAnswers(t *testing.T) {
	for _, id := range []string{"n1", "n2", "n3"} {
		api := c.timers(t, id)
		batch := &carillonv1.ScheduleBatchRequest{}
		for i := range 20 {
			batch.Items = append(batch.Items, &carillonv1.ScheduleRequest{
				Timer: &carillonv1.Timer{Id: fmt.Sprintf("any-%s-%02d", id, i), When: inAnHour, Target: &carillonv1.Timer_Queue{Queue: "later"}},
				// A change of leadership in this moment may leave an outcome unknown.
				IfExists: carillonv1.IfExists_IF_EXISTS_KEEP,
			})
		}
		eventually(t, func() error {
			resp, err := api.ScheduleBatch(t.Context(), batch)
			for i, r := range resp.GetResults() {
				if r.GetOk() == nil {
					return fmt.Errorf("%s: item %d: %v", id, i, r.GetError())
				}
			}
			return err
		})
		got, err := api.Get(t.Context(), &carillonv1.GetRequest{Id: "any-n1-07"})
		if err != nil || got.Timer.Timer.Id != "any-n1-07" {
			t.Errorf("%s: get: %v, %v", id, got, err)
		}
	}
	var listed []string
	for cursor, more := "", true; more; more = cursor != "" {
		page, err := c.timers(t, "n2").List(t.Context(), &carillonv1.ListRequest{Prefix: "any-", Limit: 7, Cursor: cursor})
		if err != nil {
			t.Fatal(err)
		}
		for _, s := range page.Timers {
			listed = append(listed, s.Timer.Id)
		}
		cursor = page.NextCursor
	}
	if len(listed) != 60 || !slices.IsSorted(listed) {
		t.Errorf("listed %d: %v", len(listed), listed)
	}
	cancelled, err := c.timers(t, "n3").Cancel(t.Context(), &carillonv1.CancelRequest{Id: "any-n1-07"})
	if err != nil || cancelled.Outcome != carillonv1.CancelOutcome_CANCEL_OUTCOME_CANCELLED {
		t.Errorf("cancel: %v, %v", cancelled, err)
	}
}

func (c *testCluster) views(t *testing.T) {
	cl := c.client()
	c.epochs(t, cl)
	status, err := cl.Status(t.Context())
	if err != nil || !status.Ready || status.Shards != spineShards || status.MembersAlive != 3 || status.ShardsWithLeader != spineShards {
		t.Errorf("status %+v, %v", status, err)
	}
	members, err := cl.Members(t.Context())
	leads, replicas := 0, 0
	for _, m := range members {
		leads += m.Leads
		replicas += m.Replicas
		if !m.Alive || m.ClientAddr != c.nodes[m.ID].Addrs().Client {
			t.Errorf("member %+v", m)
		}
	}
	if err != nil || len(members) != 3 || leads != spineShards || replicas != 3*spineShards {
		t.Errorf("members %+v, %v", members, err)
	}
	shards, err := cl.Shards(t.Context())
	if err != nil || len(shards) != spineShards {
		t.Fatalf("shards %+v, %v", shards, err)
	}
	for _, s := range shards {
		if s.Leader == "" || !s.Firing || len(s.Replicas) != 3 {
			t.Errorf("shard %+v", s)
		}
	}
}

func (c *testCluster) serveHTTP(t *testing.T) {
	eventually(t, func() error {
		for path, want := range map[string]string{"/healthz": "ok", "/readyz": "ready", "/metrics": "carillon_shard_pending_timers"} {
			if code, body := c.httpGet("n1", path); code != 200 || !strings.Contains(body, want) {
				return fmt.Errorf("%s: %d, %.200s", path, code, body)
			}
		}
		return nil
	})
	if code, _ := c.httpGet("n1", "/debug/pprof/"); code != 404 {
		t.Errorf("pprof is served though it is off: %d", code)
	}
}

// stopAndBack stops the node that leads most: its leaderships go to others, and come back once it is back and has caught up.
func (c *testCluster) stopAndBack(t *testing.T) {
	cl := c.client()
	state, _ := c.nodes["n1"].fsm.look()
	preferred := map[string]int{}
	for s := range state.Shards {
		preferred[state.replicas(s)[0]]++
	}
	leaders := func() (map[string]int, error) {
		shards, err := cl.Shards(t.Context())
		leads := map[string]int{}
		for _, s := range shards {
			if s.Firing {
				leads[s.Leader]++
			}
		}
		return leads, err
	}
	config := c.config("n2", 0)
	if took := c.stop("n2"); took > config.StopTimeout {
		t.Errorf("the stop took %v", took)
	}
	eventually(t, func() error {
		leads, err := leaders()
		if err != nil || leads["n2"] != 0 || leads["n1"]+leads["n3"] != spineShards {
			return fmt.Errorf("leaders %v, %w", leads, err)
		}
		return nil
	})
	if _, err := cl.Schedule(t.Context(), client.Timer{ID: "while-away", After: time.Hour, Queue: "later"}); err != nil {
		t.Fatal(err)
	}
	c.start(config)
	c.waitReady()
	eventually(t, func() error {
		leads, err := leaders()
		if err != nil || leads["n2"] != preferred["n2"] {
			return fmt.Errorf("leaders %v, want %v; %w", leads, preferred, err)
		}
		return nil
	})
}

func (c *testCluster) restartAll(t *testing.T) {
	c.stopAll()
	for _, id := range []string{"n3", "n1", "n2"} {
		c.start(c.config(id, 0))
	}
	c.waitReady()
	cl := c.client()
	for _, id := range []string{"while-away", "any-n2-19"} {
		if s, err := cl.Get(t.Context(), id); err != nil || s.State != client.Pending {
			t.Errorf("%s: state %v, %v", id, s.State, err)
		}
	}
	eventually(t, func() error { // the directory has learnt the new addresses
		members, err := cl.Members(t.Context())
		state, _ := c.nodes["n1"].fsm.look()
		for _, m := range members {
			if at := state.Members[m.ID].Client; at != c.nodes[m.ID].Addrs().Client {
				return fmt.Errorf("%s is recorded at %s", m.ID, at)
			}
		}
		return err
	})
}
