package client_test

import (
	"context"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/carillon-timers/carillon/client"
	carillonv1 "github.com/carillon-timers/carillon/proto/carillon/v1"
)

// The end of the context: handlers that run may finish and are acked, what waits is given back (once this was a nack, which
// counts a failed attempt), and Work returns when all is confirmed.
func TestDrain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t, 1, "n1")
		n := c.nodes["n1"]
		j := work(t, c, func(ctx context.Context, d client.Delivery) error {
			<-ctx.Done()
			switch d.ID {
			case "finishes":
				time.Sleep(2 * time.Second)
				return nil
			case "fails":
				return fmt.Errorf("half done: %w", client.RetryAfter(ctx.Err(), time.Second))
			}
			return ctx.Err()
		}, client.WorkOptions{Concurrency: 3})
		n.work.push(time.Minute, "finishes", "stops", "fails", "waits1", "waits2")
		synctest.Wait()
		begin := time.Now()
		j.cancel()
		synctest.Wait()
		n.work.push(time.Minute, "late") // there is credit left
		j.end(t)
		if took := time.Since(begin); took != 2*time.Second {
			t.Errorf("took %v", took)
		}
		n.work.get(func(w *workState) {
			if sorted(w.acks) != "finishes" || len(w.nacks) != 2 || sorted(w.returns) != "late waits1 waits2" || w.open != 0 || len(w.unary) != 0 {
				t.Errorf("acks %v, nacks %v, returns %v, unary %v", w.acks, w.nacks, w.returns, w.unary)
			}
			for _, nack := range w.nacks {
				want := time.Duration(0)
				if string(nack.GetToken()) == "fails" {
					want = time.Second
				}
				if nack.Delay == nil || nack.GetDelay().AsDuration() != want {
					t.Errorf("nack %v", nack)
				}
			}
		})
	})
}

// Work waits for the confirmation of the last acks, through another node if their own dies at the end.
func TestDrainConfirms(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t, 1, "n1", "n2")
		c.nodes["n1"].work.set(func(w *workState) {
			w.settle = func(string, bool) carillonv1.SettleOutcome {
				return carillonv1.SettleOutcome_SETTLE_OUTCOME_UNSPECIFIED
			}
		})
		j := work(t, c, func(context.Context, client.Delivery) error { return nil }, client.WorkOptions{})
		c.nodes["n1"].work.push(time.Minute, "a")
		synctest.Wait()
		j.cancel()
		time.Sleep(time.Second)
		select {
		case err := <-j.done:
			t.Fatalf("did not wait: %v", err)
		default:
		}
		c.kill("n1")
		j.end(t)
		c.nodes["n2"].work.get(func(w *workState) {
			if sorted(w.unary) != "a" {
				t.Errorf("settled %v", w.unary)
			}
		})
	})
}

// A handler that does not heed its context, and acks that nobody confirms, hold Work up no longer than DrainTimeout.
func TestDrainTimeout(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t, 1, "n1")
		n := c.nodes["n1"]
		release := make(chan struct{})
		options := client.WorkOptions{DrainTimeout: 3 * time.Second}
		j := work(t, c, func(context.Context, client.Delivery) error { <-release; return nil }, options)
		n.work.push(time.Minute, "deaf")
		synctest.Wait()
		begin := time.Now()
		j.end(t)
		if took := time.Since(begin); took < 3*time.Second || took > 5*time.Second {
			t.Errorf("a deaf handler: took %v", took)
		}
		close(release)

		n.work.set(func(w *workState) {
			w.settle = func(string, bool) carillonv1.SettleOutcome {
				return carillonv1.SettleOutcome_SETTLE_OUTCOME_UNSPECIFIED
			}
		})
		j = work(t, c, func(context.Context, client.Delivery) error { return nil }, options)
		n.work.push(time.Minute, "unconfirmed")
		synctest.Wait()
		begin = time.Now()
		j.end(t)
		if took := time.Since(begin); took < 3*time.Second || took > 5*time.Second {
			t.Errorf("no confirmation: took %v", took)
		}
	})
}

// Start and stop again and again, at once and at any moment: nothing is left, nothing hangs.
func TestWorkStress(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t, 1, "n1", "n2")
		cl := c.client(t)
		done := make(chan error)
		for i := range 20 {
			go func() {
				ctx, cancel := context.WithTimeout(t.Context(), time.Duration(i*7)*time.Millisecond)
				defer cancel()
				done <- cl.Work(ctx, "q", func(context.Context, client.Delivery) error { time.Sleep(time.Millisecond); return nil },
					client.WorkOptions{Concurrency: 1 + i%3})
			}()
		}
		for i := range 50 {
			c.nodes[fmt.Sprint("n", 1+i%2)].work.push(time.Minute, ids(fmt.Sprint(i), 3)...)
			time.Sleep(2 * time.Millisecond)
		}
		for range 20 {
			if err := <-done; err != nil {
				t.Error(err)
			}
		}
	})
}
