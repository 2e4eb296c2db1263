package client_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/carillon-timers/carillon/client"
	carillonv1 "github.com/carillon-timers/carillon/proto/carillon/v1"
)

// The calls go to the leader of the timer's shard without asking around.
func TestCallsGoToTheLeader(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t, 8, "n1", "n2", "n3")
		cl := c.client(t)
		synctest.Wait() // all members are connected
		c.hook(func(c *cluster) { c.item = onlyLeaders })
		for _, id := range ids("t", 50) {
			if _, err := cl.Schedule(t.Context(), client.Timer{ID: id, Queue: "q"}); err != nil {
				t.Fatal(err)
			}
		}
		for _, s := range c.took() {
			if want := c.leaders[carillonv1.ShardOf("default", s.id, 8)]; s.node != want {
				t.Errorf("%s went to %s, led by %s", s.id, s.node, want)
			}
		}
	})
}

// A hint is followed at once and remembered; with no leader the client waits and asks again with the same request ID.
func TestNotLeader(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t, 1, "n1", "n2", "n3")
		cl := c.client(t)
		synctest.Wait()
		c.lead("n3")
		c.hook(func(c *cluster) { c.item = onlyLeaders })
		begin := time.Now()
		if _, err := cl.Schedule(t.Context(), client.Timer{ID: "a", Queue: "q"}); err != nil {
			t.Fatal(err)
		}
		if waited := time.Since(begin); waited != 0 {
			t.Errorf("following a hint took %v", waited)
		}
		path := c.took()
		if len(path) != 2 || path[1].node != "n3" || path[0].requestID != path[1].requestID {
			t.Errorf("path: %+v", path)
		}
		if _, err := cl.Cancel(t.Context(), "a"); err != nil {
			t.Fatal(err)
		}
		if path := c.took(); len(path) != 1 || path[0].node != "n3" {
			t.Errorf("the hint was forgotten: %+v", path)
		}

		c.lead("")
		go func() {
			time.Sleep(1500 * time.Millisecond)
			c.lead("n2")
		}()
		if _, err := cl.Schedule(t.Context(), client.Timer{ID: "b", Queue: "q"}); err != nil {
			t.Fatal(err)
		}
		path = c.took()
		last := path[len(path)-1]
		if last.node != "n2" || len(path) > 20 {
			t.Errorf("%d attempts, the last at %s", len(path), last.node)
		}
		if late := last.at.Sub(begin) - 1500*time.Millisecond; late > time.Second {
			t.Errorf("accepted %v after the election", late)
		}
	})
}

// Two nodes that point at each other must not make the client spin.
func TestHintsInACircle(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t, 1, "n1", "n2")
		cl := c.client(t)
		synctest.Wait()
		c.hook(func(c *cluster) {
			c.item = func(n *node, _ string) *carillonv1.ItemError {
				return notLeader(map[string]string{"n1": "n2", "n2": "n1"}[n.id])
			}
		})
		ctx, cancel := context.WithTimeout(t.Context(), 2*time.Second)
		defer cancel()
		_, err := cl.Schedule(ctx, client.Timer{ID: "a", Queue: "q"})
		if !errors.Is(err, client.ErrUnavailable) || !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("got %v", err)
		}
		if n := len(c.took()); n > 60 {
			t.Errorf("%d attempts in 2 s", n)
		}
	})
}

// A reply that is lost after the write was applied: the repetition has the same request ID and gets the first answer.
func TestLostReply(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t, 1, "n1", "n2", "n3")
		cl := c.client(t)
		synctest.Wait()
		lost := 0
		c.hook(func(c *cluster) {
			c.reply = func(n *node, _ string) error {
				if lost++; lost > 2 {
					return nil
				}
				return status.Error(codes.Unavailable, "the connection broke")
			}
		})
		s, err := cl.Schedule(t.Context(), client.Timer{ID: "a", After: time.Minute, Queue: "q"})
		if err != nil || s.Revision != 1 {
			t.Fatalf("%+v, %v", s, err)
		}
		path := c.took()
		if len(path) != 3 || path[0].requestID != path[2].requestID || c.applied != 1 {
			t.Errorf("applied %d times: %+v", c.applied, path)
		}
		if path[0].node == path[1].node {
			t.Errorf("the node that did not answer was asked again at once: %+v", path)
		}
	})
}

// A delay counts from the call, however long the failover takes: 3 s later the delay that is sent is 3 s shorter.
func TestDelayCountsFromTheCall(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t, 1, "n1")
		cl := c.client(t)
		c.lead("")
		c.hook(func(c *cluster) {
			c.item = onlyLeaders
			c.call = func(n *node, method string) error {
				if method == "reschedule" && c.leaders[0] == "" {
					return fail(codes.Unavailable, "NOT_LEADER", nil)
				}
				return nil
			}
		})
		for _, call := range []func() (client.Scheduled, error){
			func() (client.Scheduled, error) {
				return cl.Schedule(t.Context(), client.Timer{ID: "a", After: time.Minute, Queue: "q"})
			},
			func() (client.Scheduled, error) {
				return cl.Reschedule(t.Context(), "a", client.Move{After: time.Minute})
			},
		} {
			c.lead("")
			begin := time.Now()
			time.AfterFunc(3*time.Second, func() { c.lead("n1") })
			s, err := call()
			if err != nil {
				t.Fatal(err)
			}
			if off := s.Due.Sub(begin.Add(time.Minute)); off < 0 || off > time.Millisecond {
				t.Errorf("due %v off the time that was meant", off)
			}
			path := c.took()
			if first := path[0].delay; first != time.Minute {
				t.Errorf("the first attempt said %v", first)
			}
			for _, p := range path {
				if p.requestID != path[0].requestID {
					t.Errorf("request IDs differ: %+v", path)
				}
			}
		}
	})
}

// Overload: the client waits as long as it is told, and says OverloadedError when the context ends.
func TestOverloaded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t, 1, "n1")
		cl := c.client(t)
		busy := true
		c.hook(func(c *cluster) {
			c.item = func(*node, string) *carillonv1.ItemError {
				if !busy {
					return nil
				}
				return fault(codes.ResourceExhausted, "LIMIT_REACHED", map[string]string{"limit": "pending", "retry_after_ms": "2000"})
			}
			c.call = func(_ *node, method string) error {
				if method != "get" {
					return nil
				}
				return fail(codes.ResourceExhausted, "LIMIT_REACHED", map[string]string{"limit": "reads"}, retryIn(3*time.Second))
			}
		})
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
		defer cancel()
		_, err := cl.Schedule(ctx, client.Timer{ID: "a", Queue: "q"})
		var overloaded *client.OverloadedError
		if !errors.As(err, &overloaded) || overloaded.Limit != "pending" || overloaded.RetryAfter != 2*time.Second {
			t.Errorf("got %v", err)
		}
		path := c.took()
		if len(path) < 2 || len(path) > 5 || path[1].at.Sub(path[0].at) < 2*time.Second {
			t.Errorf("attempts: %+v", path)
		}
		ctx2, cancel2 := context.WithTimeout(t.Context(), 5*time.Second)
		defer cancel2()
		if _, err := cl.Get(ctx2, "a"); !errors.As(err, &overloaded) || overloaded.RetryAfter != 3*time.Second {
			t.Errorf("get: %v", err)
		}
		c.hook(func(*cluster) { busy = false })
		if _, err := cl.Schedule(t.Context(), client.Timer{ID: "a", Queue: "q"}); err != nil {
			t.Errorf("after the overload: %v", err)
		}
	})
}

// The end of the context: UNKNOWN if an attempt may have been applied, UNAVAILABLE if none can have been.
func TestContextEnds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t, 1, "n1", "n2")
		cl := c.client(t)
		synctest.Wait()
		for _, test := range []struct {
			answer error
			want   error
			not    error
		}{
			{fail(codes.Unavailable, "SHARD_UNAVAILABLE", nil), client.ErrUnavailable, client.ErrUnknown},
			{fail(codes.Unavailable, "NOT_LEADER", nil), client.ErrUnavailable, client.ErrUnknown},
			{fail(codes.Unknown, "OUTCOME_UNKNOWN", nil), client.ErrUnknown, client.ErrUnavailable},
			{status.Error(codes.Unavailable, "broken"), client.ErrUnknown, client.ErrUnavailable},
		} {
			c.hook(func(c *cluster) { c.call = func(*node, string) error { return test.answer } })
			for name, call := range map[string]func(context.Context) error{
				"schedule": func(ctx context.Context) error {
					_, err := cl.Schedule(ctx, client.Timer{ID: "a", Queue: "q"})
					return err
				},
				"cancel": func(ctx context.Context) error { _, err := cl.Cancel(ctx, "a"); return err },
				"reschedule": func(ctx context.Context) error {
					_, err := cl.Reschedule(ctx, "a", client.Move{After: 1})
					return err
				},
			} {
				ctx, cancel := context.WithTimeout(t.Context(), time.Second)
				err := call(ctx)
				cancel()
				if !errors.Is(err, test.want) || errors.Is(err, test.not) || !errors.Is(err, context.DeadlineExceeded) {
					t.Errorf("%s, answered %v: %v", name, test.answer, err)
				}
			}
		}
		c.hook(func(c *cluster) {
			c.call = func(*node, string) error { return fail(codes.Unavailable, "NOT_LEADER", nil) }
		})
		begin := time.Now()
		_, err := cl.Get(context.Background(), "a")
		if took := time.Since(begin); !errors.Is(err, client.ErrUnavailable) || took.Round(time.Second) != client.DefaultCallTimeout {
			t.Errorf("without a deadline: %v after %v", err, took)
		}
	})
}

// Refusals come back at once, as errors that a caller can tell apart.
func TestTypedErrors(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t, 1, "n1")
		cl := c.client(t)
		var (
			invalid  *client.InvalidError
			revision *client.RevisionError
			missing  *client.NotSupportedError
			other    *client.StatusError
		)
		for _, test := range []struct {
			code     codes.Code
			reason   string
			metadata map[string]string
			ok       func(error) bool
		}{
			{codes.NotFound, "TIMER_NOT_FOUND", nil, func(err error) bool { return errors.Is(err, client.ErrNotFound) }},
			{codes.AlreadyExists, "TIMER_ALREADY_EXISTS", nil, func(err error) bool { return errors.Is(err, client.ErrAlreadyExists) }},
			{codes.FailedPrecondition, "REVISION_MISMATCH", map[string]string{"expected": "3", "actual": "5"},
				func(err error) bool {
					return errors.As(err, &revision) && revision.Expected == 3 && revision.Actual == 5
				}},
			{codes.InvalidArgument, "INVALID_FIELD", map[string]string{"field": "due", "value": "x", "limit": "100 years"},
				func(err error) bool {
					return errors.As(err, &invalid) && *invalid == client.InvalidError{"due", "x", "100 years"}
				}},
			{codes.Unimplemented, "NOT_SUPPORTED", map[string]string{"field": "repeat"},
				func(err error) bool { return errors.As(err, &missing) && missing.Field == "repeat" }},
			{codes.PermissionDenied, "", nil, func(err error) bool { return errors.As(err, &other) && other.Code == codes.PermissionDenied }},
			{codes.Internal, "", nil, func(err error) bool { return errors.As(err, &other) && other.Code == codes.Internal }},
		} {
			c.hook(func(c *cluster) {
				c.item = func(*node, string) *carillonv1.ItemError { return fault(test.code, test.reason, test.metadata) }
				c.call = func(_ *node, method string) error {
					if method != "get" {
						return nil
					}
					return fail(test.code, test.reason, test.metadata)
				}
			})
			begin := time.Now()
			if _, err := cl.Schedule(t.Context(), client.Timer{ID: "a", Queue: "q"}); !test.ok(err) {
				t.Errorf("%v %s: schedule: %v", test.code, test.reason, err)
			}
			if _, err := cl.Get(t.Context(), "a"); !test.ok(err) {
				t.Errorf("%v %s: get: %v", test.code, test.reason, err)
			}
			if time.Since(begin) != 0 {
				t.Errorf("%v %s: was tried again", test.code, test.reason)
			}
			_, err := cl.Cancel(t.Context(), "a")
			_, readErr := cl.Get(t.Context(), "a")
			if errors.Is(err, client.ErrUnknown) != (test.code == codes.Internal) || errors.Is(readErr, client.ErrUnknown) {
				t.Errorf("%v %s: is the outcome known? %v, %v", test.code, test.reason, err, readErr)
			}
		}
	})
}

// A leader dies under load: every call ends well, each timer is there once, no request ID changed.
func TestLeaderDies(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t, 1, "n1", "n2", "n3")
		cl := c.client(t, "n1:7400", "n2:7400", "n3:7400")
		synctest.Wait()
		c.hook(func(c *cluster) { c.item = onlyLeaders })
		var callers sync.WaitGroup
		for i := range 20 {
			callers.Go(func() {
				for j := range 50 {
					id := fmt.Sprintf("%d/%d", i, j)
					if _, err := cl.Schedule(t.Context(), client.Timer{ID: id, Queue: "q"}); err != nil {
						t.Errorf("%s: %v", id, err)
					}
					time.Sleep(20 * time.Millisecond)
				}
			})
		}
		time.Sleep(400 * time.Millisecond)
		c.kill("n1")
		c.lead("")
		time.Sleep(1200 * time.Millisecond)
		c.lead("n2")
		callers.Wait()
		request := make(map[string]string)
		for _, s := range c.took() {
			if old := request[s.id]; old != "" && old != s.requestID {
				t.Errorf("%s had two request IDs", s.id)
			}
			request[s.id] = s.requestID
		}
		if len(c.timers) != 1000 || c.applied != 1000 {
			t.Errorf("%d timers, applied %d times", len(c.timers), c.applied)
		}
	})
}

// ledCluster has one shard, led by n1 of three nodes that all are connected, and takes writes at its leader alone.
func ledCluster(t *testing.T) (*cluster, *client.Client) {
	t.Helper()
	c := newCluster(t, 1, "n1", "n2", "n3")
	cl := c.client(t)
	synctest.Wait()
	c.hook(func(c *cluster) { c.item = onlyLeaders })
	return c, cl
}

// A node is frozen: its connections stand and it answers nothing. Others lead soon after, and no call waits for AttemptTimeout, neither those
// that it was asked nor those that wait behind them. Each timer is there once.
func TestFrozenNode(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, cl := ledCluster(t)
		if _, err := cl.Schedule(t.Context(), client.Timer{ID: "a", Queue: "q"}); err != nil {
			t.Fatal(err)
		}
		begin := time.Now()
		c.nodes["n1"].frozen.Store(true)
		time.AfterFunc(1200*time.Millisecond, func() { c.lead("n2") })
		var calls sync.WaitGroup
		for i, id := range ids("t", 20) {
			time.Sleep(10 * time.Millisecond)
			calls.Go(func() {
				var err error
				if i%4 == 3 {
					_, err = cl.Get(t.Context(), "a")
				} else {
					_, err = cl.Schedule(t.Context(), client.Timer{ID: id, Queue: "q"})
				}
				if took := time.Since(begin); err != nil || took > 2500*time.Millisecond {
					t.Errorf("call %d: %v after %v", i, err, took)
				}
			})
		}
		calls.Wait()
		c.nodes["n1"].frozen.Store(false)
		time.Sleep(time.Second) // it ends what it was asked
		c.mu.Lock()
		defer c.mu.Unlock()
		if len(c.timers) != 16 || c.applied != 16 {
			t.Errorf("%d timers, applied %d times, want 16", len(c.timers), c.applied)
		}
	})
}

// A node that is slow and answers when it is asked whether it is there has all of AttemptTimeout.
func TestSlowNodeIsWaitedFor(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, cl := ledCluster(t)
		c.nodes["n1"].slow.Store(int64(4500 * time.Millisecond))
		if _, err := cl.Schedule(t.Context(), client.Timer{ID: "a", Queue: "q"}); err != nil {
			t.Fatal(err)
		}
		if seen := c.took(); len(seen) != 1 {
			t.Errorf("asked %d times", len(seen))
		}
	})
}
