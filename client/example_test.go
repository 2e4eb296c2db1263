package client_test

import (
	"context"
	"errors"
	"fmt"
	"log"
	"os"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/carillon-timers/carillon/client"
	carillonv1 "github.com/carillon-timers/carillon/proto/carillon/v1"
)

// config stands for client.Config{Addrs: []string{"127.0.0.1:7400"}}. The examples run against the cluster at
// $CARILLON_ADDR if that is set, else against one in memory.
func config() client.Config {
	if addr := os.Getenv("CARILLON_ADDR"); addr != "" {
		return client.Config{Addrs: []string{addr}}
	}
	c := newCluster(nil, 1, "n1")
	c.hook(func(c *cluster) { c.accepted = c.fireWhenDue })
	c.nodes["n1"].work.set(func(w *workState) {
		w.refused = func(token, why string) {
			c.hook(func(c *cluster) { c.buryRefused(c.timers[token], why) })
		}
	})
	return c.config("n1:7400")
}

// fireWhenDue hands a timer to the worker at its time.
func (c *cluster) fireWhenDue(t *carillonv1.Timer) {
	time.AfterFunc(time.Until(t.GetDue().AsTime()), func() {
		now := time.Now()
		c.nodes["n1"].work.set(func(w *workState) {
			w.queue = append(w.queue, &carillonv1.Delivery{
				Namespace: t.GetNamespace(), Id: t.GetId(), Queue: t.GetQueue(), Payload: t.GetPayload(), Token: []byte(t.GetId()),
				Due: t.GetDue(), HandedOut: timestamppb.New(now), LeaseEnd: timestamppb.New(now.Add(time.Minute)), Attempt: 1,
			})
		})
	})
}

// A timer is scheduled, and a worker receives it on time.
func Example() {
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	c, err := client.Dial(ctx, config())
	if err != nil {
		log.Fatal(err)
	}
	defer c.Close()

	_, err = c.Schedule(ctx, client.Timer{
		ID: "order-1/expire", After: 50 * time.Millisecond, Queue: "example-orders", Payload: []byte("order 1"), IfExists: client.Replace,
	})
	if err != nil {
		log.Fatal(err)
	}
	err = c.Work(ctx, "example-orders", func(ctx context.Context, d client.Delivery) error {
		fmt.Printf("%s: %s, attempt %d, early: %v\n", d.ID, d.Payload, d.Attempt, d.HandedOut.Before(d.Due))
		cancel() // one is enough
		return nil
	}, client.WorkOptions{Concurrency: 64})
	if err != nil {
		log.Fatal(err)
	}
	// Output: order-1/expire: order 1, attempt 1, early: false
}

// A write can be repeated with the same request ID, also by another process: it has the effect of one.
func ExampleClient_Schedule() {
	ctx := context.Background()
	c, err := client.Dial(ctx, config())
	if err != nil {
		log.Fatal(err)
	}
	defer c.Close()

	timer := client.Timer{
		ID: "order-2/expire", After: 30 * time.Minute, Queue: "example-orders", IfExists: client.Replace,
		RequestID: fmt.Sprint("checkout-2/", time.Now().UnixNano()),
	}
	first, err := c.Schedule(ctx, timer)
	if err != nil {
		log.Fatal(err)
	}
	second, err := c.Schedule(ctx, timer)
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println("one timer:", first.Revision == second.Revision && first.Due.Equal(second.Due))
	// Output: one timer: true
}

// Many timers go in batches; each has its own result.
func ExampleClient_ScheduleBatch() {
	ctx := context.Background()
	c, err := client.Dial(ctx, config())
	if err != nil {
		log.Fatal(err)
	}
	defer c.Close()

	results, err := c.ScheduleBatch(ctx, []client.Timer{
		{ID: "{order-3}/remind", After: time.Hour, Queue: "example-mail", IfExists: client.Replace},
		{ID: "{order-3}/expire", After: -time.Hour, Queue: "example-orders", IfExists: client.Replace},
	})
	var batch *client.BatchError
	if errors.As(err, &batch) {
		fmt.Println("failed:", batch.Failed)
	}
	for _, r := range results {
		fmt.Println(r.Err)
	}
	// Output:
	// failed: 1
	// <nil>
	// delay -1h0m0s is not valid: must not be negative
}

// Cancel is final if it answers true.
func ExampleClient_Cancel() {
	ctx := context.Background()
	c, err := client.Dial(ctx, config())
	if err != nil {
		log.Fatal(err)
	}
	defer c.Close()

	_, err = c.Schedule(ctx, client.Timer{ID: "order-4/expire", After: time.Hour, Queue: "example-orders", IfExists: client.Replace})
	if err != nil {
		log.Fatal(err)
	}
	ok, err := c.Cancel(ctx, "order-4/expire")
	fmt.Println(ok, err)
	_, err = c.Cancel(ctx, "order-5/expire")
	fmt.Println(errors.Is(err, client.ErrNotFound))
	// Output:
	// true <nil>
	// true
}

// List goes through the pending timers in the order of their IDs.
func ExampleClient_List() {
	ctx := context.Background()
	c, err := client.Dial(ctx, config())
	if err != nil {
		log.Fatal(err)
	}
	defer c.Close()

	for _, id := range []string{"list/b", "list/a", "list/c"} {
		if _, err := c.Schedule(ctx, client.Timer{ID: id, After: time.Hour, Queue: "example-orders", IfExists: client.Replace}); err != nil {
			log.Fatal(err)
		}
	}
	for t, err := range c.List(ctx, client.ListQuery{Prefix: "list/"}) {
		if err != nil {
			log.Fatal(err)
		}
		fmt.Println(t.ID, t.State)
	}
	// Output:
	// list/a pending
	// list/b pending
	// list/c pending
}

// A handler that cannot do its work now says when it wants to be asked again.
func ExampleRetryAfter() {
	handler := func(ctx context.Context, d client.Delivery) error {
		err := send(ctx, d.Payload)
		if errors.Is(err, errBusy) {
			return client.RetryAfter(err, 10*time.Second) // instead of the timer's own back-off
		}
		return err
	}
	fmt.Println(handler(context.Background(), client.Delivery{}))
	// Output: the mail server is busy
}

// A handler says what is to become of a delivery that it cannot deal with.
func ExampleRefuse() {
	begun := true
	handler := func(ctx context.Context, d client.Delivery) error {
		switch {
		case !begun: // this process has other things to do: others get it, and no attempt is counted
			return client.ErrGiveBack
		case len(d.Payload) == 0: // it will never work: the dead letters
			return client.Refuse(errors.New("no payload"))
		case d.Last: // the last attempt: after it come the dead letters
			return errors.New("given up")
		}
		return nil
	}
	fmt.Println(handler(context.Background(), client.Delivery{ID: "a"}))
	begun = false
	fmt.Println(handler(context.Background(), client.Delivery{ID: "b"}))
	// Output:
	// no payload
	// given back
}

var errBusy = errors.New("the mail server is busy")

func send(context.Context, []byte) error { return errBusy }
