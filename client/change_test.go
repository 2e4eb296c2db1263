package client_test

import (
	"context"
	"errors"
	"reflect"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/carillon-timers/carillon/client"
	carillonv1 "github.com/carillon-timers/carillon/proto/carillon/v1"
)

// all is a timer with every option.
func all() client.Timer {
	at := time.Date(2030, 1, 2, 3, 4, 5, 6e6, time.UTC)
	return client.Timer{
		ID: "{a}/1", Due: at, Webhook: "https://example.com/x", Payload: []byte("p"), ContentType: "text/plain",
		Headers: map[string]string{"h": "1"}, Labels: map[string]string{"l": "2"},
		Retry: client.RetryPolicy{
			Lease: time.Second, InitialBackoff: 2 * time.Second, MaxBackoff: 3 * time.Second, Multiplier: 1.5, MaxAttempts: 4,
		},
		Repeat: client.Repeat{
			Cron: "0 9 * * *", Zone: "Europe/Berlin", FixedDelay: true, Start: at, End: at.Add(time.Hour), MaxCount: 5,
			Misfire: client.MisfireAll, MaxCatchUp: 6, MaxLateness: 7 * time.Second, Overlap: client.OverlapAllow,
		},
		Window: 8 * time.Second, Expiry: at.Add(2 * time.Hour), AtMostOnce: true,
	}
}

// Every option is sent, and read back as it was given.
func TestEveryOption(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t, 1, "n1")
		cl := c.client(t)
		timer := all()
		if _, err := cl.Schedule(t.Context(), timer); err != nil {
			t.Fatal(err)
		}
		at := timestamppb.New(timer.Due)
		want := &carillonv1.Timer{
			Namespace: "default", Id: timer.ID, When: &carillonv1.Timer_Due{Due: at}, Target: &carillonv1.Timer_Webhook{Webhook: timer.Webhook},
			Payload: timer.Payload, ContentType: timer.ContentType, Headers: timer.Headers, Labels: timer.Labels,
			Retry: &carillonv1.RetryPolicy{
				Lease: durationpb.New(time.Second), InitialBackoff: durationpb.New(2 * time.Second), MaxBackoff: durationpb.New(3 * time.Second),
				Multiplier: 1.5, MaxAttempts: 4,
			},
			Repeat: &carillonv1.Repeat{
				Rule: &carillonv1.Repeat_Cron{Cron: "0 9 * * *"}, Zone: "Europe/Berlin", FixedDelay: true, Start: at,
				End: timestamppb.New(timer.Repeat.End), MaxCount: 5, Misfire: carillonv1.Misfire_MISFIRE_ALL, MaxCatchUp: 6,
				MaxLateness: durationpb.New(7 * time.Second), Overlap: carillonv1.Overlap_OVERLAP_ALLOW,
			},
			Window: durationpb.New(8 * time.Second), Expiry: timestamppb.New(timer.Expiry), Guarantee: carillonv1.Guarantee_GUARANTEE_AT_MOST_ONCE,
		}
		if got := c.nodes["n1"].timer(timer.ID).GetTimer(); !proto.Equal(got, want) {
			t.Errorf("sent %v\nwant %v", got, want)
		}
		got, err := cl.Get(t.Context(), timer.ID)
		if err != nil || !reflect.DeepEqual(got.Timer, timer) {
			t.Errorf("read %+v, %v\nwant %+v", got.Timer, err, timer)
		}
	})
}

// A repeat without a time asks for its own first due time; a timer without one is due at once.
func TestRepeatWithoutATime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t, 1, "n1")
		cl := c.client(t)
		begin := time.Now()
		for _, test := range []struct {
			timer client.Timer
			after time.Duration
		}{
			{client.Timer{ID: "once", Queue: "q"}, 0},
			{client.Timer{ID: "repeat", Queue: "q", Repeat: client.Repeat{Every: time.Hour}}, time.Hour},
			{client.Timer{ID: "moved", Queue: "q", Repeat: client.Repeat{Every: time.Hour}, After: time.Minute}, time.Minute},
		} {
			s, err := cl.Schedule(t.Context(), test.timer)
			if err != nil || !s.Due.Equal(begin.Add(test.after)) {
				t.Errorf("%s: %+v, %v", test.timer.ID, s, err)
			}
		}
		var invalid *client.InvalidError
		for field, timer := range map[string]client.Timer{
			"webhook": {ID: "a", Queue: "q", Webhook: "http://h"},
			"queue":   {ID: "a"},
			"repeat":  {ID: "a", Queue: "q", Repeat: client.Repeat{Zone: "UTC"}},
			"every":   {ID: "a", Queue: "q", Repeat: client.Repeat{Every: 1, Cron: "@daily"}},
		} {
			if _, err := cl.Schedule(t.Context(), timer); !errors.As(err, &invalid) || invalid.Field != field {
				t.Errorf("%s: %v", field, err)
			}
		}
	})
}

// Pause, resume and fire say what they changed; what they cannot change is an error that a caller can tell apart.
func TestPauseResumeFire(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t, 4, "n1", "n2")
		cl := c.client(t)
		if _, err := cl.Schedule(t.Context(), client.Timer{ID: "a", After: time.Hour, Queue: "q"}); err != nil {
			t.Fatal(err)
		}
		if s, err := cl.Pause(t.Context(), "a", client.Pause{Freeze: true, ExpectedRevision: 1}); err != nil || s.Revision != 2 || !s.Due.IsZero() {
			t.Errorf("pause: %+v, %v", s, err)
		}
		if r := c.last("pause").(*carillonv1.PauseRequest); !r.GetFreeze() || r.GetExpectedRevision() != 1 || r.GetNamespace() != "default" {
			t.Errorf("pause asked %v", r)
		}
		if got, err := cl.Get(t.Context(), "a"); err != nil || got.State != client.Paused || got.State.String() != "paused" || got.TimeLeft != time.Hour {
			t.Errorf("paused: %+v, %v", got, err)
		}
		if _, err := cl.FireNow(t.Context(), "a", client.Change{}); !errors.Is(err, client.ErrPaused) {
			t.Errorf("fire of a paused one: %v", err)
		}
		time.Sleep(time.Hour)
		if s, err := cl.Resume(t.Context(), "a", client.Change{}); err != nil || !s.Due.Equal(time.Now().Add(time.Hour)) {
			t.Errorf("resume: %+v, %v", s, err)
		}
		if _, err := cl.Resume(t.Context(), "a", client.Change{}); !errors.Is(err, client.ErrNotPaused) {
			t.Errorf("resume of one that is not paused: %v", err)
		}
		if s, err := cl.FireNow(t.Context(), "a", client.Change{RequestID: "r"}); err != nil || !s.Due.Equal(time.Now()) || s.RequestID != "r" {
			t.Errorf("fire: %+v, %v", s, err)
		}
		if _, err := cl.Cancel(t.Context(), "a"); err != nil {
			t.Fatal(err)
		}
		_, err := cl.Pause(t.Context(), "a", client.Pause{})
		var not *client.NotPendingError
		if !errors.Is(err, client.ErrNotPending) || !errors.As(err, &not) || not.State != "cancelled" {
			t.Errorf("pause of a cancelled one: %v", err)
		}
		if _, err := cl.Pause(t.Context(), "unknown", client.Pause{}); !errors.Is(err, client.ErrNotFound) {
			t.Errorf("pause of an unknown one: %v", err)
		}
		var invalid *client.InvalidError
		if _, err := cl.Resume(t.Context(), "", client.Change{}); !errors.As(err, &invalid) || invalid.Field != "id" {
			t.Errorf("no ID: %v", err)
		}
		x, err := cl.Explain(t.Context(), "a")
		if err != nil || x.Timer.State != client.Cancelled || len(x.Events) != 1 || x.Events[0].Kind != "accepted" || x.Events[0].Epoch != 3 {
			t.Errorf("explain: %+v, %v", x, err)
		}
		if _, err := cl.Explain(t.Context(), "unknown"); !errors.Is(err, client.ErrNotFound) {
			t.Errorf("explain of an unknown one: %v", err)
		}
	})
}

// Each call that changes something is repeated through a failover with the same request ID, and says UNKNOWN if it has to
// give up while an attempt may have been applied.
func TestChangesAreRepeated(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t, 1, "n1", "n2", "n3")
		cl := c.client(t)
		synctest.Wait()
		for method, call := range map[string]func(context.Context) error{
			"pause":  func(ctx context.Context) error { _, err := cl.Pause(ctx, "a", client.Pause{}); return err },
			"resume": func(ctx context.Context) error { _, err := cl.Resume(ctx, "a", client.Change{}); return err },
			"fire":   func(ctx context.Context) error { _, err := cl.FireNow(ctx, "a", client.Change{}); return err },
			"schedule atomic": func(ctx context.Context) error {
				_, err := cl.ScheduleAtomic(ctx, []client.Timer{{ID: "{x}1", Queue: "q"}, {ID: "{x}2", Queue: "q"}})
				return err
			},
			"cancel atomic": func(ctx context.Context) error {
				_, err := cl.CancelAtomic(ctx, []client.Cancellation{{ID: "{x}1"}, {ID: "{x}2"}})
				return err
			},
			"redrive": func(ctx context.Context) error { _, err := cl.Redrive(ctx, client.Letters{All: true}); return err },
			"purge": func(ctx context.Context) error {
				_, err := cl.Purge(ctx, client.Letters{Keys: []string{"k"}})
				return err
			},
		} {
			failures := 5
			c.hook(func(c *cluster) {
				c.call = func(*node, string) error {
					if failures--; failures < 0 {
						return fail(codes.NotFound, "TIMER_NOT_FOUND", nil)
					}
					return status.Error(codes.Unavailable, "the connection broke")
				}
			})
			c.took()
			err := call(t.Context())
			path := c.took()
			if !errors.Is(err, client.ErrNotFound) || len(path) != 6 {
				t.Errorf("%s: %d attempts, %v", method, len(path), err)
			}
			for _, p := range path {
				if p.method != method || p.requestID == "" || p.requestID != path[0].requestID {
					t.Errorf("%s: %+v", method, p)
				}
			}
			failures = 1 << 30
			ctx, cancel := context.WithTimeout(t.Context(), time.Second)
			if err := call(ctx); !errors.Is(err, client.ErrUnknown) {
				t.Errorf("%s given up: %v", method, err)
			}
			cancel()
		}
	})
}

// A proxy or a web server that answers instead of a node is no old version of one.
func TestNoNodeAnswers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t, 1, "n1")
		cl := c.client(t)
		c.hook(func(c *cluster) {
			c.call = func(*node, string) error {
				return status.Error(codes.Unimplemented, "unexpected HTTP status code received from server: 404 (Not Found)")
			}
		})
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		_, err := cl.Explain(ctx, "a")
		var missing *client.NotSupportedError
		if !errors.Is(err, client.ErrUnavailable) || errors.As(err, &missing) || !strings.Contains(err.Error(), "no Carillon node answers here") {
			t.Error(err)
		}
		ctx, cancel = context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if _, err := cl.Pause(ctx, "a", client.Pause{}); !errors.Is(err, client.ErrUnavailable) || errors.Is(err, client.ErrUnknown) {
			t.Errorf("a write: %v", err)
		}
	})
}

// An atomic batch is all or nothing; its error names the item, and its delays count from the call.
func TestAtomic(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t, 4, "n1", "n2")
		cl := c.client(t)
		failures := 2
		c.hook(func(c *cluster) {
			c.call = func(*node, string) error {
				if failures--; failures < 0 {
					return nil
				}
				return fail(codes.Unavailable, "SHARD_UNAVAILABLE", nil)
			}
		})
		begin := time.Now()
		timers := []client.Timer{{ID: "{o}1", After: time.Hour, Queue: "q"}, {ID: "{o}2", After: 2 * time.Hour, Queue: "q", RequestID: "mine"}}
		got, err := cl.ScheduleAtomic(t.Context(), timers)
		if err != nil || len(got) != 2 || got[1].RequestID != "mine" || got[0].RequestID == "" {
			t.Fatalf("%+v, %v", got, err)
		}
		for i := range got {
			if !got[i].Due.Equal(begin.Add(timers[i].After)) || got[i].Revision != int64(i+1) {
				t.Errorf("item %d: %+v", i, got[i])
			}
		}
		if time.Since(begin) == 0 {
			t.Error("no time has passed: the test proves nothing about delays")
		}
		var atomic *client.AtomicError
		_, err = cl.ScheduleAtomic(t.Context(), []client.Timer{{ID: "{o}3", Queue: "q"}, {ID: "{o}1", Queue: "q"}})
		if !errors.As(err, &atomic) || atomic.Item != 1 || !errors.Is(err, client.ErrAlreadyExists) || c.nodes["n1"].timer("{o}3") != nil {
			t.Errorf("an ID that is taken: %v", err)
		}
		var invalid *client.InvalidError
		_, err = cl.ScheduleAtomic(t.Context(), []client.Timer{{ID: "{o}3", Queue: "q"}, {ID: "{o}4"}})
		if !errors.As(err, &atomic) || atomic.Item != 1 || !errors.As(err, &invalid) || invalid.Field != "queue" {
			t.Errorf("no queue: %v", err)
		}
		_, err = cl.CancelAtomic(t.Context(), []client.Cancellation{{ID: "{o}1"}, {ID: "{o}9"}})
		if !errors.As(err, &atomic) || atomic.Item != 1 || !errors.Is(err, client.ErrNotFound) {
			t.Errorf("cancel of an unknown one: %v", err)
		}
		cancelled, err := cl.CancelAtomic(t.Context(), []client.Cancellation{{ID: "{o}1"}, {ID: "{o}2"}})
		if err != nil || len(cancelled) != 2 || cancelled[1].Outcome != client.CancelCancelled {
			t.Errorf("%+v, %v", cancelled, err)
		}
		if none, err := cl.ScheduleAtomic(t.Context(), nil); none != nil || err != nil {
			t.Errorf("none: %v, %v", none, err)
		}
	})
}

// A list with a filter goes on over pages that are short or empty; a count counts the same.
func TestFilter(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t, 4, "n1")
		cl := c.client(t)
		var timers []client.Timer
		for i, id := range ids("t", 50) {
			timer := client.Timer{ID: id, After: time.Hour, Queue: "q"}
			if i%20 == 7 {
				timer.Labels = map[string]string{"k": "v"}
			}
			timers = append(timers, timer)
		}
		if _, err := cl.ScheduleBatch(t.Context(), timers); err != nil {
			t.Fatal(err)
		}
		c.hook(func(c *cluster) { c.looks = 5 })
		at := time.Now()
		filter := client.Filter{
			Labels: map[string]string{"k": "v"}, States: []client.State{client.Pending, client.Paused}, DueFrom: at, DueBefore: at.Add(1), Queue: "q",
		}
		c.took()
		var got []string
		for timer, err := range cl.List(t.Context(), client.ListQuery{Prefix: "t", Filter: filter}) {
			if err != nil {
				t.Fatal(err)
			}
			got = append(got, timer.ID)
		}
		if pages := len(c.took()); sorted(got) != "t00007 t00027 t00047" || pages != 10 {
			t.Errorf("got %v in %d pages", got, pages)
		}
		want := &carillonv1.Filter{
			Labels: filter.Labels, States: []carillonv1.State{carillonv1.State_STATE_PENDING, carillonv1.State_STATE_PAUSED},
			DueFrom: timestamppb.New(at), DueBefore: timestamppb.New(at.Add(1)), Queue: "q",
		}
		if sent := c.last("list").(*carillonv1.ListRequest).GetFilter(); !proto.Equal(sent, want) {
			t.Errorf("sent %v", sent)
		}
		if n, err := cl.Count(t.Context(), client.CountQuery{Prefix: "t", Filter: filter}); n != 3 || err != nil {
			t.Errorf("count: %d, %v", n, err)
		}
		if n, err := cl.Count(t.Context(), client.CountQuery{}); n != 50 || err != nil || c.last("count").(*carillonv1.CountRequest).GetFilter() != nil {
			t.Errorf("count of all: %d, %v", n, err)
		}
		var invalid *client.InvalidError
		if _, err := cl.Count(t.Context(), client.CountQuery{Filter: client.Filter{Labels: map[string]string{"": "x"}}}); !errors.As(err, &invalid) {
			t.Errorf("a label without a name: %v", err)
		}
	})
}

func TestForecast(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t, 4, "n1", "n2")
		from := time.Now().Add(time.Hour)
		f, err := c.client(t).Forecast(t.Context(), client.ForecastQuery{Namespace: "n", Queue: "q", From: from, Step: time.Second, Steps: 2})
		want := client.Forecast{
			Start: from.UTC(), Step: time.Second,
			Series: []client.ForecastSeries{{Namespace: "default", Queue: "q", Before: 1, Counts: []int64{2, 3}, After: 4, Paused: 5}},
		}
		if err != nil || !reflect.DeepEqual(f, want) {
			t.Errorf("%+v, %v", f, err)
		}
		r := c.last("forecast").(*carillonv1.ForecastRequest)
		if r.GetNamespace() != "n" || r.GetSteps() != 2 || r.GetStep().AsDuration() != time.Second {
			t.Errorf("asked %v", r)
		}
	})
}
