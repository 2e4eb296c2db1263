package main

import (
	"context"
	"fmt"
	"os"
	"sync"
	"testing"

	"github.com/carillon-timers/carillon/client"
)

// A worker that stops gives back what it has prefetched, at a real node: once each of these counted as a failed attempt, and
// sent a timer with one attempt to the dead letters.
func TestStoppingWorkerCountsNoAttempt(t *testing.T) {
	startNode(t)
	ctx := t.Context()
	c, err := client.Dial(ctx, client.Config{Addrs: []string{os.Getenv("CARILLON_ADDR")}})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	const timers = 50
	var batch []client.Timer
	for i := range timers {
		batch = append(batch, client.Timer{ID: fmt.Sprint("s/", i), Queue: "stopping", Retry: client.RetryPolicy{MaxAttempts: 1}})
	}
	if _, err := c.ScheduleBatch(ctx, batch); err != nil {
		t.Fatal(err)
	}
	for range 3 {
		working, stop := context.WithCancel(ctx)
		err := c.Work(working, "stopping", func(ctx context.Context, d client.Delivery) error {
			stop()
			<-ctx.Done()
			return client.ErrGiveBack
		}, client.WorkOptions{Concurrency: 2, Prefetch: 20})
		if err != nil {
			t.Fatal(err)
		}
	}
	var mu sync.Mutex
	got := make(map[string]bool)
	working, stop := context.WithCancel(ctx)
	err = c.Work(working, "stopping", func(_ context.Context, d client.Delivery) error {
		mu.Lock()
		defer mu.Unlock()
		if got[d.ID] = true; len(got) == timers {
			stop()
		}
		if d.Attempt != 1 || !d.Last {
			t.Errorf("%s: attempt %d, last %v", d.ID, d.Attempt, d.Last)
		}
		return nil
	}, client.WorkOptions{})
	if err != nil || len(got) != timers {
		t.Errorf("got %d, %v", len(got), err)
	}
	for l, err := range c.DeadLetters(ctx, client.DeadQuery{}) {
		t.Errorf("died: %+v, %v", l, err)
	}
	if n, err := c.Count(ctx, client.CountQuery{}); n != 0 || err != nil {
		t.Errorf("%d left, %v", n, err)
	}
}
