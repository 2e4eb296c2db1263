package client_test

import (
	"context"
	"errors"
	"fmt"
	"log"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/carillon-timers/carillon/client"
	carillonv1 "github.com/carillon-timers/carillon/proto/carillon/v1"
)

// buryRefused makes a dead letter of each timer that its worker refuses.
func (c *cluster) buryRefused(t *carillonv1.TimerStatus, why string) {
	c.letters = append(c.letters, &carillonv1.DeadLetter{
		Key: fmt.Sprintf("%020d", time.Now().UnixNano()), Timer: t.GetTimer(), Reason: carillonv1.DeadReason_DEAD_REASON_REFUSED,
		LastError: why, Attempts: 1, Died: timestamppb.Now(),
	})
}

// dial stands for what a program does once.
func dial(ctx context.Context) *client.Client {
	c, err := client.Dial(ctx, config())
	if err != nil {
		log.Fatal(err)
	}
	return c
}

// A timer that fires again and again: every weekday at nine, Berlin time. If the cluster was down at nine it fires once,
// when it is up again, but not later than an hour.
func ExampleRepeat() {
	ctx := context.Background()
	c := dial(ctx)
	defer c.Close()

	_, err := c.Schedule(ctx, client.Timer{
		ID: "report/weekdays", Queue: "example-reports", IfExists: client.Replace,
		Repeat: client.Repeat{Cron: "0 9 * * 1-5", Zone: "Europe/Berlin", Misfire: client.MisfireOne, MaxLateness: time.Hour},
	})
	if err != nil {
		log.Fatal(err)
	}
	t, err := c.Get(ctx, "report/weekdays")
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(t.State, t.Repeat.Cron, t.Repeat.Zone, t.Due.After(time.Now()))
	// Output: pending 0 9 * * 1-5 Europe/Berlin true
}

// Timers whose IDs share a part in braces change together or not at all.
func ExampleClient_ScheduleAtomic() {
	ctx := context.Background()
	c := dial(ctx)
	defer c.Close()

	both := []client.Timer{
		{ID: "{order-6}/remind", After: time.Hour, Queue: "example-mail", IfExists: client.Replace},
		{ID: "{order-6}/expire", After: 2 * time.Hour, Queue: "example-orders", IfExists: client.Replace},
	}
	if _, err := c.ScheduleAtomic(ctx, both); err != nil {
		log.Fatal(err)
	}
	both[1].IfExists = client.Fail
	_, err := c.ScheduleAtomic(ctx, both)
	var atomic *client.AtomicError
	if errors.As(err, &atomic) {
		fmt.Println("item", atomic.Item, "-", atomic.Err)
	}
	results, err := c.CancelAtomic(ctx, []client.Cancellation{{ID: "{order-6}/remind"}, {ID: "{order-6}/expire"}})
	fmt.Println(len(results), err)
	// Output:
	// item 1 - timer already exists
	// 2 <nil>
}

// A frozen timer keeps the time that is left.
func ExampleClient_Pause() {
	ctx := context.Background()
	c := dial(ctx)
	defer c.Close()

	if _, err := c.Schedule(ctx, client.Timer{ID: "trial-7/end", After: time.Hour, Queue: "example-trials", IfExists: client.Replace}); err != nil {
		log.Fatal(err)
	}
	if _, err := c.Pause(ctx, "trial-7/end", client.Pause{Freeze: true}); err != nil {
		log.Fatal(err)
	}
	t, err := c.Get(ctx, "trial-7/end")
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(t.State, t.TimeLeft.Round(time.Minute))
	s, err := c.Resume(ctx, "trial-7/end", client.Change{})
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println("due in", time.Until(s.Due).Round(time.Minute))
	// Output:
	// paused 1h0m0s
	// due in 1h0m0s
}

// A filter finds timers by label, state, time and queue.
func ExampleClient_Count() {
	ctx := context.Background()
	c := dial(ctx)
	defer c.Close()

	for i, customer := range []string{"7", "8", "7"} {
		_, err := c.Schedule(ctx, client.Timer{
			ID: fmt.Sprint("count/", i), After: time.Hour, Queue: "example-orders", Labels: map[string]string{"customer": customer},
			IfExists: client.Replace,
		})
		if err != nil {
			log.Fatal(err)
		}
	}
	query := client.CountQuery{Prefix: "count/", Filter: client.Filter{Labels: map[string]string{"customer": "7"}}}
	fmt.Println(c.Count(ctx, query))
	for t, err := range c.List(ctx, client.ListQuery{Prefix: query.Prefix, Filter: query.Filter}) {
		fmt.Println(t.ID, err)
	}
	// Output:
	// 2 <nil>
	// count/0 <nil>
	// count/2 <nil>
}

// What will never work goes to the dead letters, where it can be looked at, and redriven when it has been mended.
func ExampleClient_DeadLetters() {
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	c := dial(ctx)
	defer c.Close()

	_, err := c.Schedule(ctx, client.Timer{ID: "mail-8", Queue: "example-dead", Payload: []byte("nobody"), IfExists: client.Replace})
	if err != nil {
		log.Fatal(err)
	}
	working, stop := context.WithCancel(ctx)
	err = c.Work(working, "example-dead", func(context.Context, client.Delivery) error {
		stop()
		return client.Refuse(errors.New("no such address"))
	}, client.WorkOptions{Concurrency: 1})
	if err != nil {
		log.Fatal(err)
	}
	var keys []string
	for l, err := range c.DeadLetters(ctx, client.DeadQuery{Queue: "example-dead"}) {
		if err != nil {
			log.Fatal(err)
		}
		fmt.Printf("%s: %s, %s: %s\n", l.Timer.ID, l.Timer.Payload, l.Reason, l.LastError)
		keys = append(keys, l.Key)
	}
	fmt.Println(c.Purge(ctx, client.Letters{Keys: keys})) // or c.Redrive
	// Output:
	// mail-8: nobody, refused: no such address
	// 1 <nil>
}

// A handler that takes long asks for more time before its lease ends.
func ExampleDelivery_ExtendLease() {
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	c := dial(ctx)
	defer c.Close()

	_, err := c.Schedule(ctx, client.Timer{ID: "video-9", Queue: "example-videos", IfExists: client.Replace})
	if err != nil {
		log.Fatal(err)
	}
	err = c.Work(ctx, "example-videos", func(ctx context.Context, d client.Delivery) error {
		defer cancel()
		for part := range 3 {
			if _, err := d.ExtendLease(ctx, time.Minute); err != nil {
				return err // client.ErrStale: somebody else has it, or will
			}
			fmt.Println("part", part)
		}
		return nil
	}, client.WorkOptions{})
	if err != nil {
		log.Fatal(err)
	}
	// Output:
	// part 0
	// part 1
	// part 2
}
