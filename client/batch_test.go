package client_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc/codes"

	"github.com/carillon-timers/carillon/client"
	carillonv1 "github.com/carillon-timers/carillon/proto/carillon/v1"
)

// Concurrent calls are joined while a batch is in flight, beside which only full ones are sent; a lone caller is sent at
// once.
func TestCallsAreJoined(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t, 4, "n1")
		cl := c.client(t)
		c.hook(func(c *cluster) {
			c.reply = func(*node, string) error {
				c.mu.Unlock() // the node takes its time
				time.Sleep(10 * time.Millisecond)
				c.mu.Lock()
				return nil
			}
		})
		begin := time.Now()
		if _, err := cl.Schedule(t.Context(), client.Timer{ID: "lone", Queue: "q"}); err != nil || time.Since(begin) != 10*time.Millisecond {
			t.Errorf("a lone call took %v: %v", time.Since(begin), err)
		}
		c.took()
		var callers sync.WaitGroup
		call := func(id string) {
			callers.Go(func() { _, _ = cl.Schedule(t.Context(), client.Timer{ID: id, Queue: "q"}) })
		}
		call("first")
		synctest.Wait()
		for i, id := range ids("few", 400) {
			if call(id); i%100 == 0 {
				synctest.Wait()
			}
		}
		callers.Wait()
		batches := map[int]int{} // by size
		for _, s := range c.took() {
			batches[s.batch]++
		}
		if batches[1] != 1 || batches[400] != 400 {
			t.Errorf("400 calls beside one in flight: how many travelled in batches of which size: %v", batches)
		}
		begin = time.Now()
		for _, id := range ids("t", 2500) {
			callers.Go(func() {
				if _, err := cl.Schedule(t.Context(), client.Timer{ID: id, Queue: "q"}); err != nil {
					t.Errorf("%s: %v", id, err)
				}
			})
		}
		callers.Wait()
		if took := time.Since(begin); took > 50*time.Millisecond {
			t.Errorf("2,500 concurrent calls took %v", took)
		}
		largest := 0
		for _, s := range c.took() {
			largest = max(largest, s.batch)
		}
		if largest > 1000 || largest < 500 {
			t.Errorf("the largest batch had %d items", largest)
		}
	})
}

// A batch of any size is cut by items and by bytes; a bad item spoils nothing but itself.
func TestScheduleBatch(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t, 4, "n1", "n2", "n3")
		cl := c.client(t)
		synctest.Wait()
		var timers []client.Timer
		for _, id := range ids("t", 3000) {
			timers = append(timers, client.Timer{ID: id, Queue: "q", After: time.Hour, Payload: make([]byte, 2000)})
		}
		timers[7].ID = ""
		timers[8].ID = timers[9].ID
		timers[11].After = -time.Second
		results, err := cl.ScheduleBatch(t.Context(), timers)
		var batch *client.BatchError
		if !errors.As(err, &batch) || batch.Failed != 3 || batch.First != 7 || batch.Items != 3000 {
			t.Errorf("error: %v", err)
		}
		var invalid *client.InvalidError
		for i, r := range results {
			switch i {
			case 7:
				if !errors.As(r.Err, &invalid) || invalid.Field != "id" {
					t.Errorf("item 7: %v", r.Err)
				}
			case 8, 9: // one of the two is the second
			case 11:
				if !errors.As(r.Err, &invalid) || invalid.Field != "delay" {
					t.Errorf("item 11: %v", r.Err)
				}
			default:
				if r.Err != nil || r.Revision == 0 {
					t.Errorf("item %d: %+v", i, r)
				}
			}
		}
		if !errors.Is(results[8].Err, client.ErrAlreadyExists) && !errors.Is(results[9].Err, client.ErrAlreadyExists) {
			t.Errorf("items 8 and 9: %v, %v", results[8].Err, results[9].Err)
		}
		for _, s := range c.took() {
			if s.batch > 270 { // 512 KiB of 2,000 bytes
				t.Fatalf("a batch of %d items", s.batch)
			}
		}

		items := []client.Cancellation{{ID: timers[0].ID}, {ID: "unknown"}, {ID: timers[1].ID}}
		answers, err := cl.CancelBatch(t.Context(), items)
		if !errors.As(err, &batch) || batch.Failed != 1 || !errors.Is(err, client.ErrNotFound) {
			t.Errorf("cancel batch: %v", err)
		}
		if answers[0].Outcome != client.CancelCancelled || answers[2].Outcome != client.CancelCancelled {
			t.Errorf("cancel batch: %+v", answers)
		}
		if results, err := cl.ScheduleBatch(t.Context(), nil); err != nil || len(results) != 0 {
			t.Errorf("an empty batch: %v, %v", results, err)
		}
	})
}

// An item that can be tried again is, alone: its neighbours are not sent twice.
func TestOnlyTheFailedItemIsRepeated(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t, 1, "n1")
		cl := c.client(t)
		failures := 3
		c.hook(func(c *cluster) {
			c.item = func(_ *node, id string) *carillonv1.ItemError {
				if id != "t00004" || failures == 0 {
					return nil
				}
				failures--
				return fault(codes.Unavailable, "SHARD_UNAVAILABLE", nil)
			}
		})
		var timers []client.Timer
		for _, id := range ids("t", 10) {
			timers = append(timers, client.Timer{ID: id, Queue: "q"})
		}
		if _, err := cl.ScheduleBatch(t.Context(), timers); err != nil {
			t.Fatal(err)
		}
		times := make(map[string]int)
		for _, s := range c.took() {
			times[s.id]++
		}
		for id, n := range times {
			if want := map[bool]int{true: 4, false: 1}[id == "t00004"]; n != want {
				t.Errorf("%s was sent %d times", id, n)
			}
		}
	})
}

// A caller that leaves while its call waits for a batch is not sent; one that leaves later does not disturb the others.
func TestCallerLeaves(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t, 1, "n1")
		cl := c.client(t)
		c.hook(func(c *cluster) {
			c.reply = func(*node, string) error {
				c.mu.Unlock()
				time.Sleep(time.Second)
				c.mu.Lock()
				return nil
			}
		})
		var callers sync.WaitGroup
		for i := range 3 { // two are in flight, the third waits
			callers.Go(func() {
				if _, err := cl.Schedule(t.Context(), client.Timer{ID: fmt.Sprint("stays", i), Queue: "q"}); err != nil {
					t.Error(err)
				}
			})
		}
		ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
		defer cancel()
		callers.Go(func() { // in flight on the other lane
			if _, err := cl.Cancel(ctx, "unknown"); !errors.Is(err, client.ErrUnknown) || !errors.Is(err, context.DeadlineExceeded) {
				t.Errorf("sent and not answered, but: %v", err)
			}
		})
		synctest.Wait()
		_, err := cl.Schedule(ctx, client.Timer{ID: "leaves", Queue: "q"})
		if !errors.Is(err, client.ErrUnavailable) || errors.Is(err, client.ErrUnknown) {
			t.Errorf("never sent, but: %v", err)
		}
		callers.Wait()
		if c.timers["leaves"] != nil || len(c.timers) != 3 {
			t.Errorf("timers: %v", c.timers)
		}
	})
}

func TestBadTimersCostNoCall(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t, 1, "n1")
		cl := c.client(t)
		long := strings.Repeat("x", 256)
		for field, timer := range map[string]client.Timer{
			"id":           {ID: long, Queue: "q"},
			"queue":        {ID: "a"},
			"request_id":   {ID: "a", Queue: "q", RequestID: long},
			"delay":        {ID: "a", Queue: "q", After: 1, Due: time.Now()},
			"payload":      {ID: "a", Queue: "q", Payload: make([]byte, 600<<10)},
			"headers":      {ID: "a", Queue: "q", Labels: map[string]string{"k": strings.Repeat("x", 9<<10)}},
			"labels":       {ID: "a", Queue: "q", Labels: map[string]string{"k": "\xff"}},
			"content_type": {ID: "a", Queue: "q", ContentType: "\xff"},
		} {
			var invalid *client.InvalidError
			if _, err := cl.Schedule(t.Context(), timer); !errors.As(err, &invalid) || invalid.Field != field || len(err.Error()) > 200 {
				t.Errorf("%s: %v", field, err)
			}
		}
		for _, id := range []string{"", "\xff", "a\x00", long} {
			var invalid *client.InvalidError
			for call, err := range map[string]error{
				"get": second(cl.Get(t.Context(), id)), "cancel": second(cl.Cancel(t.Context(), id)),
				"reschedule": second(cl.Reschedule(t.Context(), id, client.Move{})),
			} {
				if !errors.As(err, &invalid) || invalid.Field != "id" {
					t.Errorf("%s of %q: %v", call, id, err)
				}
			}
		}
		if path := c.took(); len(path) > 0 {
			t.Errorf("sent: %+v", path)
		}
	})
}

func second[T any](_ T, err error) error { return err }

func TestList(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t, 1, "n1")
		cl := c.client(t)
		var timers []client.Timer
		for _, id := range append(ids("a", 25), ids("b", 5)...) {
			timers = append(timers, client.Timer{ID: id, Queue: "q", After: time.Hour})
		}
		if _, err := cl.ScheduleBatch(t.Context(), timers); err != nil {
			t.Fatal(err)
		}
		var got []string
		for timer, err := range cl.List(t.Context(), client.ListQuery{Prefix: "a", Limit: 10}) {
			if err != nil {
				t.Fatal(err)
			}
			got = append(got, timer.ID)
		}
		if want := ids("a", 25); strings.Join(got, " ") != strings.Join(want, " ") {
			t.Errorf("got %v", got)
		}
		c.took()
		for range cl.List(t.Context(), client.ListQuery{Limit: 10}) {
			break
		}
		if n := len(c.took()); n != 1 {
			t.Errorf("%d pages were read for one timer", n)
		}
		var invalid *client.InvalidError
		for _, err := range cl.List(t.Context(), client.ListQuery{Limit: 1001}) {
			if !errors.As(err, &invalid) {
				t.Errorf("a limit of 1,001: %v", err)
			}
		}
	})
}
