package client_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/carillon-timers/carillon/client"
	carillonv1 "github.com/carillon-timers/carillon/proto/carillon/v1"
)

// job is one Work call in the background.
type job struct {
	cancel context.CancelFunc
	done   chan error
}

// work starts a worker whose log goes nowhere.
func work(t *testing.T, c *cluster, handler client.Handler, options client.WorkOptions) *job {
	t.Helper()
	cfg := c.config("n1:7400")
	cfg.Logger = slog.New(slog.NewTextHandler(io.Discard, nil))
	cl, err := client.Dial(t.Context(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { cl.Close() })
	ctx, cancel := context.WithCancel(t.Context())
	j := &job{cancel, make(chan error, 1)}
	go func() { j.done <- cl.Work(ctx, "q", handler, options) }()
	t.Cleanup(cancel)
	synctest.Wait()
	return j
}

// end cancels the worker and checks that it ends well.
func (j *job) end(t *testing.T) {
	t.Helper()
	j.cancel()
	if err := <-j.done; err != nil {
		t.Errorf("Work: %v", err)
	}
}

func sorted(list []string) string {
	list = slices.Clone(list)
	slices.Sort(list)
	return strings.Join(list, " ")
}

// At most Concurrency handlers run; a node never has more than Prefetch deliveries out that no handler has started.
func TestWorkCredits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t, 2, "n1", "n2")
		var running, most, begun atomic.Int32
		release := make(chan struct{})
		j := work(t, c, func(context.Context, client.Delivery) error {
			most.Store(max(most.Load(), running.Add(1)))
			begun.Add(1)
			<-release
			running.Add(-1)
			return nil
		}, client.WorkOptions{Concurrency: 4, Prefetch: 3, Name: "me"})
		for id, n := range c.nodes {
			n.work.push(time.Hour, ids(id, 100)...)
		}
		check := func() {
			t.Helper()
			synctest.Wait()
			handed, acked := 0, 0
			for _, n := range c.nodes {
				n.work.get(func(w *workState) {
					handed += w.handed[0]
					acked += len(w.acks)
					if w.starts[0].GetWorker() != "me" || w.starts[0].GetQueue() != "q" {
						t.Errorf("start: %v", w.starts[0])
					}
				})
			}
			if b := int(begun.Load()); running.Load() > 4 || handed-b > 2*3 || acked != b-int(running.Load()) {
				t.Fatalf("running %d, begun %d, handed out %d, acked %d", running.Load(), b, handed, acked)
			}
		}
		for range 200 {
			check()
			release <- struct{}{}
		}
		check()
		if most.Load() != 4 {
			t.Errorf("at most %d ran at once", most.Load())
		}
		j.end(t)
	})
}

// A node allows 10,000 deliveries on order or not answered; a worker with the highest numbers keeps to it.
func TestWorkKeepsToTheNodesLimit(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t, 1, "n1")
		release := make(chan struct{})
		j := work(t, c, func(context.Context, client.Delivery) error { <-release; return nil },
			client.WorkOptions{Concurrency: 10_000, Prefetch: 10_000})
		w := c.nodes["n1"].work
		w.push(time.Hour, ids("t", 15_000)...)
		check := func(answered int) {
			t.Helper()
			synctest.Wait()
			w.get(func(w *workState) {
				if len(w.acks) != answered || w.credits[0]-answered > 10_000 || w.handed[0] != min(10_000+answered, 15_000) {
					t.Errorf("credits %d, handed out %d, acked %d", w.credits[0], w.handed[0], len(w.acks))
				}
			})
		}
		check(0)
		for range 1500 {
			release <- struct{}{}
		}
		check(1500)
		close(release)
		check(15_000)
		j.end(t)
	})
}

// Nil acks; an error, a panic and an exit nack, each with what it says.
func TestWorkAnswers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t, 1, "n1")
		j := work(t, c, func(ctx context.Context, d client.Delivery) error {
			switch d.ID {
			case "error":
				return errors.New("it broke: \xff" + strings.Repeat("é", 1000))
			case "later":
				return fmt.Errorf("wrapped: %w", client.RetryAfter(errors.New("not now"), time.Minute))
			case "panic":
				panic("help")
			case "exit":
				runtime.Goexit()
			}
			if string(d.Payload) != "payload of ok" || d.Attempt != 1 || d.Received.IsZero() || !d.LeaseEnd.After(d.HandedOut) {
				t.Errorf("delivery: %+v", d)
			}
			return nil
		}, client.WorkOptions{Concurrency: 1})
		n := c.nodes["n1"]
		n.work.push(time.Minute, "error", "later", "panic", "exit", "ok")
		synctest.Wait()
		n.work.get(func(w *workState) {
			if sorted(w.acks) != "ok" || len(w.nacks) != 4 {
				t.Fatalf("acks %v, nacks %v", w.acks, w.nacks)
			}
			for _, nack := range w.nacks {
				text := nack.GetError()
				switch string(nack.GetToken()) {
				case "error":
					if !strings.HasPrefix(text, "it broke: \uFFFDé") || len(text) > 1024 || len(text) < 1020 || nack.Delay != nil {
						t.Errorf("error: %d bytes %q, delay %v", len(text), text, nack.Delay)
					}
				case "later":
					if text != "wrapped: not now" || nack.GetDelay().AsDuration() != time.Minute {
						t.Errorf("later: %v", nack)
					}
				case "panic":
					if text != "panic: help" {
						t.Errorf("panic: %q", text)
					}
				case "exit":
					if !strings.Contains(text, "exited") {
						t.Errorf("exit: %q", text)
					}
				}
			}
		})
		j.end(t)
	})
}

// The handler's context ends with the lease; what waited longer than its lease is not started.
func TestLeaseEnds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t, 1, "n1")
		begin := time.Now()
		var ran []string
		j := work(t, c, func(ctx context.Context, d client.Delivery) error {
			ran = append(ran, d.ID)
			<-ctx.Done()
			if !errors.Is(context.Cause(ctx), client.ErrLeaseEnded) || time.Since(begin) != 2*time.Second {
				t.Errorf("%v after %v", context.Cause(ctx), time.Since(begin))
			}
			return ctx.Err()
		}, client.WorkOptions{Concurrency: 1})
		c.nodes["n1"].work.push(2*time.Second, "slow", "waits")
		time.Sleep(3 * time.Second)
		j.end(t)
		if sorted(ran) != "slow" {
			t.Errorf("ran %v", ran)
		}
	})
}

// A stream breaks while handlers run and while acks are not confirmed: the acks go through any node, until each is
// confirmed or its lease has ended; what no handler had started is left to the node.
func TestBrokenStream(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t, 1, "n1", "n2")
		release := make(chan struct{})
		var begun atomic.Int32
		j := work(t, c, func(_ context.Context, d client.Delivery) error {
			begun.Add(1)
			if d.ID != "quick" {
				<-release
			}
			return nil
		}, client.WorkOptions{Concurrency: 3})
		failures := map[string]int{"quick": 2, "slow": 3}
		settle := func(token string, unary bool) carillonv1.SettleOutcome {
			c.mu.Lock()
			defer c.mu.Unlock()
			switch {
			case !unary:
				return carillonv1.SettleOutcome_SETTLE_OUTCOME_UNSPECIFIED // no answer
			case failures[token] > 0:
				failures[token]--
				return carillonv1.SettleOutcome_SETTLE_OUTCOME_FAILED
			case token == "stale":
				return carillonv1.SettleOutcome_SETTLE_OUTCOME_STALE
			}
			return carillonv1.SettleOutcome_SETTLE_OUTCOME_DONE
		}
		for _, n := range c.nodes {
			n.work.set(func(w *workState) { w.settle = settle })
		}
		n1 := c.nodes["n1"]
		n1.work.push(time.Hour, "quick", "slow", "stale")
		n1.work.push(3*time.Second, "short")
		n1.work.push(time.Hour, "waits")
		synctest.Wait()
		if begun.Load() != 4 {
			t.Fatalf("%d handlers began", begun.Load())
		}
		c.kill("n1")
		time.Sleep(5 * time.Second)
		close(release)
		time.Sleep(5 * time.Second)
		c.nodes["n2"].work.get(func(w *workState) {
			if sorted(w.unary) != "quick slow" {
				t.Errorf("settled %v", w.unary)
			}
		})
		if begun.Load() != 4 {
			t.Errorf("what waited was started: %d", begun.Load())
		}
		c.start("n1") // the stream comes back
		time.Sleep(5 * time.Second)
		n1.work.push(time.Hour, "again")
		synctest.Wait()
		if begun.Load() != 5 {
			t.Errorf("nothing was taken after the restart")
		}
		j.end(t)
	})
}

// onlyUnary settles what comes by a call of its own, and fails what comes on a stream.
func onlyUnary(_ string, unary bool) carillonv1.SettleOutcome {
	if unary {
		return carillonv1.SettleOutcome_SETTLE_OUTCOME_DONE
	}
	return carillonv1.SettleOutcome_SETTLE_OUTCOME_FAILED
}

// FAILED on a stream that lives is tried again through any node.
func TestFailedSettlement(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t, 1, "n1")
		j := work(t, c, func(context.Context, client.Delivery) error { return nil }, client.WorkOptions{})
		n := c.nodes["n1"]
		n.work.set(func(w *workState) {
			w.settle = onlyUnary
		})
		n.work.push(time.Minute, "a")
		synctest.Wait()
		n.work.get(func(w *workState) {
			if sorted(w.unary) != "a" {
				t.Errorf("settled %v", w.unary)
			}
		})
		j.end(t)
	})
}

// The repetition of an answer does not wait for a node that is frozen, whichever node it goes to: another one gets it soon.
func TestFrozenNodeGetsNoAnswers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t, 1, "n1", "n2")
		j := work(t, c, func(context.Context, client.Delivery) error { return nil }, client.WorkOptions{})
		n := c.nodes["n1"]
		n.work.set(func(w *workState) {
			w.settle = onlyUnary
		})
		c.nodes["n2"].frozen.Store(true)
		for range 12 { // the node is picked at random
			n.work.push(time.Minute, "a")
			time.Sleep(2500 * time.Millisecond)
			n.work.get(func(w *workState) {
				if len(w.unary) == 0 {
					t.Error("not settled after 2.5 s")
				}
			})
			n.work.set(func(w *workState) { w.unary = nil })
			time.Sleep(5 * time.Second) // n2 is suspect no more
		}
		c.nodes["n2"].frozen.Store(false)
		j.end(t)
	})
}

// A node that says nothing for 15 s is left and tried again; heartbeats keep a quiet stream.
func TestSilence(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t, 1, "n1")
		j := work(t, c, func(context.Context, client.Delivery) error { return nil }, client.WorkOptions{})
		n := c.nodes["n1"]
		streams := func() (count int) {
			n.work.get(func(w *workState) { count = w.streams })
			return count
		}
		time.Sleep(time.Minute)
		if streams() != 1 {
			t.Errorf("a quiet stream was opened %d times", streams())
		}
		n.work.set(func(w *workState) { w.mute = true })
		time.Sleep(14 * time.Second)
		if streams() != 1 {
			t.Errorf("given up early")
		}
		time.Sleep(2 * time.Second)
		if streams() != 2 {
			t.Errorf("opened %d times", streams())
		}
		n.work.set(func(w *workState) { w.mute = false })
		j.end(t)
	})
}

// Streams that break again and again come back with a pause, and a member that joins gets one.
func TestStreamsComeBack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t, 1, "n1")
		j := work(t, c, func(context.Context, client.Delivery) error { return nil }, client.WorkOptions{})
		n1 := c.nodes["n1"]
		n1.work.set(func(w *workState) { w.breakUp = true })
		time.Sleep(10 * time.Second)
		n1.work.get(func(w *workState) {
			if w.streams < 5 || w.streams > 30 {
				t.Errorf("opened %d times in 10 s", w.streams)
			}
		})
		n1.work.set(func(w *workState) { w.breakUp = false })
		n2 := c.start("n2")
		time.Sleep(10 * time.Second)
		for _, n := range []*node{n1, n2} {
			n.work.get(func(w *workState) {
				if w.open != 1 {
					t.Errorf("%s has %d streams", n.id, w.open)
				}
			})
		}
		j.end(t)
		for _, n := range []*node{n1, n2} {
			n.work.get(func(w *workState) {
				if w.open != 0 {
					t.Errorf("%s still has %d streams", n.id, w.open)
				}
			})
		}
	})
}

// Only an error that will be the same for ever ends Work.
func TestWorkEnds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t, 1, "n1")
		n := c.nodes["n1"]
		handler := func(context.Context, client.Delivery) error { return nil }
		var invalid *client.InvalidError
		var other *client.StatusError
		for _, test := range []struct {
			refuse error
			ok     func(error) bool
		}{
			{fail(codes.InvalidArgument, "INVALID_FIELD", map[string]string{"field": "queue"}), func(err error) bool { return errors.As(err, &invalid) }},
			{status.Error(codes.PermissionDenied, "no"), func(err error) bool { return errors.As(err, &other) }},
		} {
			n.work.set(func(w *workState) { w.refuse = test.refuse })
			if err := <-work(t, c, handler, client.WorkOptions{}).done; !test.ok(err) {
				t.Errorf("%v: %v", test.refuse, err)
			}
		}
		n.work.set(func(w *workState) { w.refuse = status.Error(codes.Internal, "a hiccup") })
		j := work(t, c, handler, client.WorkOptions{})
		time.Sleep(time.Second)
		j.end(t)

		cl := c.client(t)
		for _, err := range []error{
			cl.Work(t.Context(), "", handler, client.WorkOptions{}),
			cl.Work(t.Context(), strings.Repeat("q", 256), handler, client.WorkOptions{}),
			cl.Work(t.Context(), "q", handler, client.WorkOptions{Concurrency: -1}),
			cl.Work(t.Context(), "q", handler, client.WorkOptions{Prefetch: 10_001}),
		} {
			if !errors.As(err, &invalid) {
				t.Errorf("bad options: %v", err)
			}
		}
		if cl.Work(t.Context(), "q", nil, client.WorkOptions{}) == nil {
			t.Errorf("no handler, no error")
		}
	})
}

// The same delivery twice: both reach the handler, both are answered.
func TestDuplicateDelivery(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t, 1, "n1")
		var mu sync.Mutex
		var got []string
		j := work(t, c, func(_ context.Context, d client.Delivery) error {
			mu.Lock()
			defer mu.Unlock()
			got = append(got, d.ID)
			return nil
		}, client.WorkOptions{})
		c.nodes["n1"].work.push(time.Minute, "a", "a")
		synctest.Wait()
		j.end(t)
		c.nodes["n1"].work.get(func(w *workState) {
			if sorted(got) != "a a" || sorted(w.acks) != "a a" {
				t.Errorf("got %v, acks %v", got, w.acks)
			}
		})
	})
}
