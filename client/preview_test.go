package client_test

import (
	"context"
	"errors"
	"fmt"
	"log"
	"reflect"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/carillon-timers/carillon/client"
	carillonv1 "github.com/carillon-timers/carillon/proto/carillon/v1"
)

// Preview answers to every question as a real node does to that of ExampleClient_Preview.
func (n *node) Preview(_ context.Context, r *carillonv1.PreviewRequest) (*carillonv1.PreviewResponse, error) {
	n.c.note(seen{n.id, "preview", r.GetRepeat().GetCron(), "", r.GetRepeat().GetEvery().AsDuration(), time.Now(), 1})
	if err := n.ask(n.c.call, "preview"); err != nil {
		return nil, err
	}
	n.c.mu.Lock()
	n.c.previewed = r
	n.c.mu.Unlock()
	berlin := time.FixedZone("CEST", 2*3600)
	skipped := time.Date(2026, 3, 29, 1, 0, 0, 0, time.UTC)
	return &carillonv1.PreviewResponse{
		Times: []*carillonv1.PreviewTime{
			{Due: timestamppb.New(skipped), Local: skipped.In(berlin).Format(time.RFC3339), ZoneName: "CEST", Notes: []string{"02:30 is skipped by DST, moved to 03:00"}},
			{Due: timestamppb.New(skipped.Add(23*time.Hour + 30*time.Minute)), Local: "2026-03-30T02:30:00+02:00", ZoneName: "CEST"},
		},
		More: true, Zone: r.GetRepeat().GetZone(), ZoneVersion: "2025c",
	}, nil
}

func TestPreview(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t, 4, "n1", "n2", "n3")
		cl := c.client(t)
		failures := 2
		c.hook(func(c *cluster) {
			c.call = func(_ *node, method string) error {
				if method == "preview" && failures > 0 {
					failures--
					return fail(codes.Unavailable, "SHARD_UNAVAILABLE", nil)
				}
				return nil
			}
		})
		p, err := cl.Preview(t.Context(), client.PreviewQuery{Repeat: client.Repeat{Cron: "30 2 * * *", Zone: "Europe/Berlin"}, From: time.Now(), Count: 2})
		want := client.Preview{
			Times: []client.PreviewTime{
				{time.Date(2026, 3, 29, 1, 0, 0, 0, time.UTC), "2026-03-29T03:00:00+02:00", "CEST", []string{"02:30 is skipped by DST, moved to 03:00"}},
				{time.Date(2026, 3, 30, 0, 30, 0, 0, time.UTC), "2026-03-30T02:30:00+02:00", "CEST", nil},
			},
			More: true, Zone: "Europe/Berlin", ZoneVersion: "2025c",
		}
		if err != nil || !reflect.DeepEqual(p, want) || failures != 0 {
			t.Errorf("after two failures: got %+v, %v, want %+v", p, err, want)
		}
		c.hook(func(c *cluster) {
			c.call = func(*node, string) error {
				return fail(codes.InvalidArgument, "INVALID_FIELD", map[string]string{"field": "cron", "value": "x", "limit": "5 fields"})
			}
		})
		var invalid *client.InvalidError
		if _, err := cl.Preview(t.Context(), client.PreviewQuery{Repeat: client.Repeat{Cron: "x"}}); !errors.As(err, &invalid) || invalid.Field != "cron" {
			t.Errorf("refused by the node: %v", err)
		}
		for field, r := range map[string]client.Repeat{
			"repeat": {}, "every": {Every: time.Second, Cron: "@daily"}, "cron": {Cron: "\xff"}, "zone": {Every: time.Second, Zone: "\xff"},
		} {
			if _, err := cl.Preview(t.Context(), client.PreviewQuery{Repeat: r}); !errors.As(err, &invalid) || invalid.Field != field {
				t.Errorf("%+v: %v", r, err)
			}
		}
	})
}

// What is sent is what was asked.
func TestPreviewRequest(t *testing.T) {
	synctest.Test(t, testPreviewRequest)
}

func testPreviewRequest(t *testing.T) {
	c := newCluster(t, 1, "n1")
	at := time.Date(2026, 1, 2, 3, 4, 5, 6, time.UTC)
	_, err := c.client(t).Preview(t.Context(), client.PreviewQuery{
		Repeat: client.Repeat{Every: time.Minute, Zone: "UTC", FixedDelay: true, Start: at, End: at.Add(1), MaxCount: 7}, From: at.Add(2), Count: 1 << 40,
	})
	if err != nil {
		t.Fatal(err)
	}
	want := &carillonv1.PreviewRequest{
		Repeat: &carillonv1.Repeat{
			Rule: &carillonv1.Repeat_Every{Every: durationpb.New(time.Minute)}, Zone: "UTC", FixedDelay: true,
			Start: timestamppb.New(at), End: timestamppb.New(at.Add(1)), MaxCount: 7,
		},
		From: timestamppb.New(at.Add(2)), Count: 1<<31 - 1,
	}
	c.mu.Lock()
	got := c.previewed
	c.mu.Unlock()
	if !proto.Equal(got, want) {
		t.Errorf("got %v, want %v", got, want)
	}
}

// A preview shows what a cron expression means before it is used.
func ExampleClient_Preview() {
	ctx := context.Background()
	c, err := client.Dial(ctx, config())
	if err != nil {
		log.Fatal(err)
	}
	defer c.Close()

	p, err := c.Preview(ctx, client.PreviewQuery{
		Repeat: client.Repeat{Cron: "30 2 * * *", Zone: "Europe/Berlin"},
		From:   time.Date(2026, 3, 28, 12, 0, 0, 0, time.UTC),
		Count:  2,
	})
	if err != nil {
		log.Fatal(err)
	}
	for _, t := range p.Times {
		fmt.Println(t.Local, t.ZoneName, t.Notes)
	}
	// Output:
	// 2026-03-29T03:00:00+02:00 CEST [02:30 is skipped by DST, moved to 03:00]
	// 2026-03-30T02:30:00+02:00 CEST []
}
