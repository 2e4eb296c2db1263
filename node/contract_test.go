package node

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/carillon-timers/carillon/client"
	carillonv1 "github.com/carillon-timers/carillon/proto/carillon/v1"
	"github.com/carillon-timers/carillon/transport"
)

// What the contract promises beyond schedule, work and ack, at a cluster of three: asked at a node that leads a part of
// the shards only, so that most calls go on to another.
func TestWholeContract(t *testing.T) {
	t.Parallel()
	c := newTestCluster(t, spineShards)
	c.startAll(3)
	k := newContract(t, c)
	t.Run("repeat to its end", k.repeat)
	t.Run("pause, resume, fire now", k.pause)
	t.Run("dead letters", k.dead)
	t.Run("at most once, expiry", k.onceAndExpiry)
	t.Run("atomic batches", k.atomic)
	t.Run("filters, counts, forecast", k.filters)
	t.Run("explain", k.explain)
	t.Run("HTTP", k.http)
}

// contract is a client of node n2, and a worker of the queue "c" whose handler fails what is named "bad".
type contract struct {
	cluster    *testCluster
	timers     carillonv1.TimersClient
	deliveries carillonv1.DeliveriesClient
	views      carillonv1.ClusterClient
	worker     *collector
}

func newContract(t *testing.T, c *testCluster) *contract {
	conn, err := grpc.NewClient(c.nodes["n2"].Addrs().Client, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	k := &contract{
		cluster: c, timers: carillonv1.NewTimersClient(conn), deliveries: carillonv1.NewDeliveriesClient(conn),
		views: carillonv1.NewClusterClient(conn), worker: &collector{},
	}
	ctx, cancel := context.WithCancel(context.Background())
	var working sync.WaitGroup
	cl := c.client()
	working.Go(func() {
		_ = cl.Work(ctx, "c", k.handle, client.WorkOptions{Concurrency: 8}) // it ends with ctx; what it lacks the tests miss
	})
	t.Cleanup(func() { cancel(); working.Wait(); _ = conn.Close() })
	return k
}

func (k *contract) handle(_ context.Context, d client.Delivery) error {
	k.worker.mu.Lock()
	defer k.worker.mu.Unlock()
	k.worker.got = append(k.worker.got, d)
	if strings.Contains(d.ID, "bad") {
		return errors.New("it is bad")
	}
	return nil
}

// deliveries of a timer so far.
func (k *contract) count(id string) (n int) {
	k.worker.mu.Lock()
	defer k.worker.mu.Unlock()
	for _, d := range k.worker.got {
		if d.ID == id {
			n++
		}
	}
	return n
}

func (k *contract) schedule(t *testing.T, timer *carillonv1.Timer) *carillonv1.ScheduleResponse {
	t.Helper()
	if timer.Target == nil {
		timer.Target = &carillonv1.Timer_Queue{Queue: "c"}
	}
	resp, err := k.timers.Schedule(t.Context(), &carillonv1.ScheduleRequest{Timer: timer, RequestId: "schedule-" + timer.Id})
	if err != nil {
		t.Fatalf("schedule %s: %v", timer.Id, err)
	}
	return resp
}

func (k *contract) get(t *testing.T, id string) *carillonv1.TimerStatus {
	t.Helper()
	resp, err := k.timers.Get(t.Context(), &carillonv1.GetRequest{Id: id})
	if err != nil {
		t.Fatalf("get %s: %v", id, err)
	}
	return resp.Timer
}

// await waits until the timer has the state.
func (k *contract) await(t *testing.T, id string, state carillonv1.State) *carillonv1.TimerStatus {
	t.Helper()
	var got *carillonv1.TimerStatus
	eventually(t, func() error {
		if got = k.get(t, id); got.State != state {
			return fmt.Errorf("%s is %v, want %v", id, got.State, state)
		}
		return nil
	})
	return got
}

func in(d time.Duration) *carillonv1.Timer_Delay {
	return &carillonv1.Timer_Delay{Delay: durationpb.New(d)}
}

func everyMillis(n int64) *carillonv1.Repeat {
	return &carillonv1.Repeat{Rule: &carillonv1.Repeat_Every{Every: durationpb.New(time.Duration(n) * time.Millisecond)}}
}

// reason is the reason of an error.
func reason(err error) string {
	for _, d := range status.Convert(err).Details() {
		if info, ok := d.(*errdetails.ErrorInfo); ok {
			return info.Reason
		}
	}
	return ""
}

func (k *contract) repeat(t *testing.T) {
	repeat := everyMillis(150)
	repeat.MaxCount, repeat.Misfire, repeat.MaxCatchUp = 3, carillonv1.Misfire_MISFIRE_ALL, 10
	first := k.schedule(t, &carillonv1.Timer{Id: "repeat", Repeat: repeat})
	done := k.await(t, "repeat", carillonv1.State_STATE_FIRED)
	if n := k.count("repeat"); n != 3 || done.Fired != 3 {
		t.Errorf("%d deliveries, fired %d; want 3", n, done.Fired)
	}
	for i, d := range k.worker.wait(t, "repeat", 1) {
		if d.HandedOut.Before(first.Due.AsTime()) {
			t.Errorf("delivery %d at %v, first due %v", i, d.HandedOut, first.Due.AsTime())
		}
	}
	children := everyMillis(200)
	children.MaxCount, children.Overlap = 2, carillonv1.Overlap_OVERLAP_ALLOW
	first = k.schedule(t, &carillonv1.Timer{Id: "parent", Repeat: children})
	k.await(t, "parent", carillonv1.State_STATE_FIRED)
	child := k.await(t, fmt.Sprintf("{parent}@%d", first.Due.AsTime().UnixMilli()), carillonv1.State_STATE_FIRED)
	if child.Shard != first.Shard {
		t.Errorf("the child lies on shard %d, its parent on %d", child.Shard, first.Shard)
	}
}

func (k *contract) pause(t *testing.T) {
	k.schedule(t, &carillonv1.Timer{Id: "pause", When: in(time.Hour)})
	if _, err := k.timers.Resume(t.Context(), &carillonv1.ResumeRequest{Id: "pause"}); reason(err) != "TIMER_NOT_PAUSED" {
		t.Errorf("resume: %v", err)
	}
	if _, err := k.timers.Pause(t.Context(), &carillonv1.PauseRequest{Id: "pause", Freeze: true, RequestId: "p"}); err != nil {
		t.Fatal(err)
	}
	got := k.get(t, "pause")
	if left := got.TimeLeft.AsDuration(); got.State != carillonv1.State_STATE_PAUSED || left > time.Hour || left < 59*time.Minute {
		t.Errorf("got %v", got)
	}
	if _, err := k.timers.FireNow(t.Context(), &carillonv1.FireNowRequest{Id: "pause"}); reason(err) != "TIMER_PAUSED" {
		t.Errorf("fire now: %v", err)
	}
	if resp, err := k.timers.Resume(t.Context(), &carillonv1.ResumeRequest{Id: "pause"}); err != nil || time.Until(resp.Due.AsTime()) < 59*time.Minute {
		t.Errorf("resume: %v, %v", resp, err)
	}
	if _, err := k.timers.FireNow(t.Context(), &carillonv1.FireNowRequest{Id: "pause"}); err != nil {
		t.Fatal(err)
	}
	k.await(t, "pause", carillonv1.State_STATE_FIRED)
	if _, err := k.timers.Pause(t.Context(), &carillonv1.PauseRequest{Id: "pause"}); reason(err) != "TIMER_NOT_PENDING" {
		t.Errorf("pause: %v", err)
	}
}

func (k *contract) dead(t *testing.T) {
	policy := &carillonv1.RetryPolicy{MaxAttempts: 2, InitialBackoff: durationpb.New(time.Millisecond)}
	n := 12
	for i := range n {
		k.schedule(t, &carillonv1.Timer{Id: fmt.Sprint("bad-", i), When: in(0), Retry: policy, Payload: []byte("p")})
	}
	for i := range n {
		if got := k.await(t, fmt.Sprint("bad-", i), carillonv1.State_STATE_DEAD); got.LastError != "it is bad" || got.Attempt != 2 {
			t.Errorf("got %v", got)
		}
	}
	life, err := k.timers.Explain(t.Context(), &carillonv1.ExplainRequest{Id: "bad-3"})
	if err != nil || len(life.Events) < 7 || life.Events[len(life.Events)-1].Kind != "dead" || life.Events[len(life.Events)-2].Text != "attempt 2: it is bad" {
		t.Errorf("got %v, %v", life, err)
	}
	var keys []string
	for cursor, more := "", true; more; more = cursor != "" {
		page, err := k.deliveries.ListDeadLetters(t.Context(), &carillonv1.ListDeadLettersRequest{Limit: 5, Cursor: cursor, Queue: "c"})
		if err != nil {
			t.Fatal(err)
		}
		for _, l := range page.Letters {
			if l.Attempts != 2 || l.LastError != "it is bad" || string(l.Timer.Payload) != "p" || l.Reason != carillonv1.DeadReason_DEAD_REASON_ATTEMPTS || !strings.HasPrefix(l.Timer.Id, "bad-") {
				t.Errorf("got %v", l)
			}
			keys = append(keys, l.Key)
		}
		cursor = page.NextCursor
	}
	if len(keys) != n {
		t.Fatalf("%d letters, want %d", len(keys), n)
	}
	one, err := k.deliveries.Redrive(t.Context(), &carillonv1.RedriveRequest{Keys: keys[:1], RequestId: "one"})
	if err != nil || one.Redriven != 1 || len(one.Failed) != 0 {
		t.Errorf("redrive one: %v, %v", one, err)
	}
	gone, err := k.deliveries.Redrive(t.Context(), &carillonv1.RedriveRequest{Keys: keys[:1], RequestId: "two"})
	if err != nil || gone.Redriven != 0 || len(gone.Failed) != 1 || gone.Failed[0].Error.Reason != "TIMER_NOT_FOUND" {
		t.Errorf("redrive it again: %v, %v", gone, err)
	}
	again, err := k.deliveries.Redrive(t.Context(), &carillonv1.RedriveRequest{Keys: keys[:1], RequestId: "one"})
	if err != nil || again.Redriven != 1 {
		t.Errorf("repeat the call: %v, %v", again, err)
	}
	eventually(t, func() error { // it has died again
		purged, err := k.deliveries.Purge(t.Context(), &carillonv1.PurgeRequest{Queue: "c"})
		if n -= int(purged.GetPurged()); err != nil || n != 0 {
			return fmt.Errorf("%d left, %v", n, err)
		}
		return nil
	})
}

func (k *contract) onceAndExpiry(t *testing.T) {
	k.schedule(t, &carillonv1.Timer{Id: "once-bad", When: in(0), Guarantee: carillonv1.Guarantee_GUARANTEE_AT_MOST_ONCE})
	k.await(t, "once-bad", carillonv1.State_STATE_FIRED)
	eventually(t, func() error {
		if k.count("once-bad") != 1 {
			return errors.New("it does not come")
		}
		return nil
	})
	nobody := &carillonv1.Timer_Queue{Queue: "nobody"}
	k.schedule(t, &carillonv1.Timer{Id: "late", When: in(0), Target: nobody, Expiry: timestamppb.New(time.Now().Add(300 * time.Millisecond))})
	k.await(t, "late", carillonv1.State_STATE_EXPIRED)
}

func (k *contract) atomic(t *testing.T) {
	item := func(id string) *carillonv1.ScheduleRequest {
		return &carillonv1.ScheduleRequest{Timer: &carillonv1.Timer{Id: id, When: in(time.Hour), Target: &carillonv1.Timer_Queue{Queue: "c"}}}
	}
	both, err := k.timers.ScheduleBatch(t.Context(), &carillonv1.ScheduleBatchRequest{Atomic: true, Items: []*carillonv1.ScheduleRequest{item("{a}1"), item("{a}2")}})
	if err != nil || len(both.Results) != 2 || both.Results[1].GetOk() == nil {
		t.Fatalf("got %v, %v", both, err)
	}
	_, err = k.timers.ScheduleBatch(t.Context(), &carillonv1.ScheduleBatchRequest{Atomic: true, Items: []*carillonv1.ScheduleRequest{item("{a}3"), item("{a}2")}})
	var at *transport.ItemError
	if got := transport.ErrorOf(status.Convert(err)); !errors.As(got, &at) || at.Item != 1 || reason(err) != "TIMER_ALREADY_EXISTS" {
		t.Errorf("got %v", err)
	}
	if _, err := k.timers.Get(t.Context(), &carillonv1.GetRequest{Id: "{a}3"}); reason(err) != "TIMER_NOT_FOUND" {
		t.Errorf("a part was applied: %v", err)
	}
	large := &carillonv1.ScheduleBatchRequest{Atomic: true}
	for i := range 1000 {
		large.Items = append(large.Items, item(fmt.Sprintf("{l}%d", i)))
		large.Items[i].Timer.Payload = make([]byte, 900)
	}
	if got, err := k.timers.ScheduleBatch(t.Context(), large); err != nil || got.Results[999].GetOk() == nil {
		t.Errorf("a large one: %v", err)
	}
	gone, err := k.timers.CancelBatch(t.Context(), &carillonv1.CancelBatchRequest{Atomic: true, Items: []*carillonv1.CancelRequest{{Id: "{a}1"}, {Id: "{a}2"}}})
	if err != nil || gone.Results[1].GetOk().GetOutcome() != carillonv1.CancelOutcome_CANCEL_OUTCOME_CANCELLED {
		t.Errorf("got %v, %v", gone, err)
	}
}

func (k *contract) filters(t *testing.T) {
	start := time.Now().Add(time.Hour).Truncate(time.Minute)
	for i := range 40 {
		k.schedule(t, &carillonv1.Timer{
			Id: fmt.Sprintf("f-%02d", i), When: &carillonv1.Timer_Due{Due: timestamppb.New(start.Add(time.Duration(i) * time.Minute))},
			Target: &carillonv1.Timer_Queue{Queue: "f"}, Labels: map[string]string{"half": fmt.Sprint(i % 2)},
		})
	}
	if _, err := k.timers.Pause(t.Context(), &carillonv1.PauseRequest{Id: "f-02"}); err != nil {
		t.Fatal(err)
	}
	even := &carillonv1.Filter{Labels: map[string]string{"half": "0"}, DueBefore: timestamppb.New(start.Add(20 * time.Minute)), Queue: "f", States: []carillonv1.State{carillonv1.State_STATE_PENDING}}
	var got []string
	for cursor, more := "", true; more; more = cursor != "" {
		page, err := k.timers.List(t.Context(), &carillonv1.ListRequest{Limit: 3, Cursor: cursor, Filter: even})
		if err != nil {
			t.Fatal(err)
		}
		for _, s := range page.Timers {
			got = append(got, s.Timer.Id)
		}
		cursor = page.NextCursor
	}
	if want := []string{"f-00", "f-04", "f-06", "f-08", "f-10", "f-12", "f-14", "f-16", "f-18"}; !slices.Equal(got, want) {
		t.Errorf("listed %v, want %v", got, want)
	}
	for want, r := range map[int64]*carillonv1.CountRequest{9: {Filter: even}, 40: {Prefix: "f-"}, 1: {Filter: &carillonv1.Filter{States: []carillonv1.State{carillonv1.State_STATE_PAUSED}}}} {
		if count, err := k.timers.Count(t.Context(), r); err != nil || count.Count != want {
			t.Errorf("counted %v, %v, want %d", count, err, want)
		}
	}
	cast, err := k.views.Forecast(t.Context(), &carillonv1.ForecastRequest{Queue: "f", From: timestamppb.New(start.Add(time.Minute)), Steps: 10})
	if err != nil || len(cast.Series) != 1 {
		t.Fatalf("got %v, %v", cast, err)
	}
	if s := cast.Series[0]; s.Before != 1 || s.After != 29 || s.Paused != 1 || !slices.Equal(s.Counts, []int64{1, 0, 1, 1, 1, 1, 1, 1, 1, 1}) {
		t.Errorf("got %v", s)
	}
}

func (k *contract) explain(t *testing.T) {
	policy := &carillonv1.RetryPolicy{InitialBackoff: durationpb.New(time.Millisecond)}
	k.schedule(t, &carillonv1.Timer{Id: "e-bad", When: in(50 * time.Millisecond), Retry: policy})
	eventually(t, func() error {
		if k.count("e-bad") < 3 {
			return errors.New("it does not come")
		}
		return nil
	})
	if _, err := k.timers.Pause(t.Context(), &carillonv1.PauseRequest{Id: "e-bad"}); err != nil {
		t.Fatal(err)
	}
	resp, err := k.timers.Explain(t.Context(), &carillonv1.ExplainRequest{Id: "e-bad"})
	if err != nil {
		t.Fatal(err)
	}
	kinds, last := map[string]int{}, time.Time{}
	for _, e := range resp.Events {
		kinds[e.Kind]++
		if at := e.At.AsTime(); at.Before(last) {
			t.Errorf("%v comes before %v", at, last)
		}
		if last = e.At.AsTime(); e.Node == "" || e.Epoch == 0 {
			t.Errorf("who did it: %v", e)
		}
	}
	if kinds["accepted"] != 1 || kinds["paused"] != 1 || kinds["handed-out"] < 2 || kinds["failed"] < 2 {
		t.Errorf("got %v", resp.Events)
	}
	done, err := k.timers.Explain(t.Context(), &carillonv1.ExplainRequest{Id: "pause"})
	if err != nil || len(done.Events) < 4 || done.Events[len(done.Events)-1].Kind != "acked" || done.Events[len(done.Events)-2].Kind != "handed-out" {
		t.Errorf("got %v, %v", done, err)
	}
}

func (k *contract) http(t *testing.T) {
	path, body := curlOfDesign(t)
	for _, c := range []struct {
		path, body, want string
		code             int
	}{
		{path, body, `"revision"`, 200},
		{"/v1/timers/get", `{"id": "tea"}`, `"STATE_PENDING"`, 200},
		{"/v1/timers/get", `{"id": "coffee"}`, `"TIMER_NOT_FOUND"`, 404},
		{"/v1/cluster/status", ``, `"clusterId"`, 200},
	} {
		url := "http://" + k.cluster.nodes["n3"].Addrs().HTTP + c.path
		resp, err := http.Post(url, "application/json", bytes.NewBufferString(c.body))
		if err != nil {
			t.Fatal(err)
		}
		body, err := io.ReadAll(resp.Body)
		if cerr := resp.Body.Close(); err != nil || cerr != nil || resp.StatusCode != c.code || !strings.Contains(string(body), c.want) {
			t.Errorf("%s: %d %s, %v", c.path, resp.StatusCode, body, err)
		}
	}
}

// curlOfDesign is the example of DESIGN.md.
func curlOfDesign(t *testing.T) (path, body string) {
	t.Helper()
	text, err := os.ReadFile("DESIGN.md")
	if err != nil {
		t.Fatal(err)
	}
	example := regexp.MustCompile(`curl -H 'Content-Type: application/json' -d '([^']*)' http://127.0.0.1:7480(/\S*)`).FindSubmatch(text)
	if example == nil {
		t.Fatal("DESIGN.md has no example of a call over HTTP")
	}
	return string(example[2]), string(example[1])
}
