package transport

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/mem"
	"google.golang.org/grpc/status"

	carillonv1 "github.com/carillon-timers/carillon/proto/carillon/v1"
	"github.com/carillon-timers/carillon/raftfsm"
	"github.com/carillon-timers/carillon/shard"
)

// batchOf are n timers, of which one takes more than 8 bytes and the payload.
func batchOf(name string, n, payload int) *carillonv1.ScheduleBatchRequest {
	r := &carillonv1.ScheduleBatchRequest{}
	for i := range n {
		timer := goodTimer(fmt.Sprint(name, "/", i))
		timer.Payload = make([]byte, payload)
		r.Items = append(r.Items, &carillonv1.ScheduleRequest{Timer: timer})
	}
	return r
}

// full lets batches into the server's desk until no more fit, and returns what lets them out again.
func full(t *testing.T, s *Server) (empty func()) {
	t.Helper()
	v, err := s.desk.enter(t.Context(), nil, deskItems, 1)
	if err != nil {
		t.Fatal(err)
	}
	v.endTurn()
	return v.leave
}

func overloadIn(err error) *shard.OverloadedError {
	var overload *shard.OverloadedError
	if errors.As(ErrorOf(status.Convert(err)), &overload) {
		return overload
	}
	return nil
}

// garbage marshals to bytes that are no request, but as long as a batch.
type garbage struct{ plainCodec }

func (garbage) Marshal(any) ([]byte, error) { return []byte(strings.Repeat("\xff", 2*lightBytes)), nil }

type plainCodec struct{}

func (plainCodec) Unmarshal([]byte, any) error { return nil }
func (plainCodec) Name() string                { return newCodec().Name() }

// A node that is full refuses a batch before it is decoded and says when to come back; small ones still pass.
func TestFullNodeRefusesBatches(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		backend := &fakeBackend{}
		h := serve(t, testConfig(), backend)
		empty := full(t, h.server)
		began := time.Now()
		_, err := h.timers.ScheduleBatch(t.Context(), batchOf("a", 100, 100))
		if o := overloadIn(err); o == nil || o.RetryAfter != firstRetry || time.Since(began) != deskWait {
			t.Errorf("a batch: %v after %v", err, time.Since(began))
		}
		other := carillonv1.NewTimersClient(h.dial())
		if _, err := other.ScheduleBatch(t.Context(), batchOf("b", 100, 100), grpc.ForceCodec(garbage{})); overloadIn(err) == nil {
			t.Errorf("what is no batch was looked at: %v", err)
		}
		if n := len(backend.applied()); n > 0 {
			t.Errorf("%d commands came through", n)
		}
		other = carillonv1.NewTimersClient(h.dial())
		began = time.Now()
		if r, err := other.ScheduleBatch(t.Context(), batchOf("c", 3, 100)); err != nil || r.Results[2].GetOk() == nil || time.Since(began) != 0 {
			t.Errorf("a small batch: %v, %v after %v", r, err, time.Since(began))
		}
		var cancels []*carillonv1.CancelRequest
		for range 1000 {
			cancels = append(cancels, &carillonv1.CancelRequest{Id: "c/1"})
		}
		if _, err := other.CancelBatch(t.Context(), &carillonv1.CancelBatchRequest{Items: cancels}); overloadIn(err) == nil {
			t.Errorf("a batch of cancels: %v", err)
		}
		empty()
		other = carillonv1.NewTimersClient(h.dial())
		if _, err := other.ScheduleBatch(t.Context(), batchOf("b", 100, 100), grpc.ForceCodec(garbage{})); status.Code(err) != codes.Internal {
			t.Errorf("what is no batch, at a node that is not full: %v", err)
		}
		if _, err := other.ScheduleBatch(t.Context(), batchOf("d", 100, 100)); err != nil {
			t.Error(err)
		}
		st := h.server.Stats()
		if h.server.desk.items != 0 || st.RefusedBatches != 3 || st.WaitingBatches != 0 {
			t.Errorf("%d items stayed, %d batches refused, %d wait", h.server.desk.items, st.RefusedBatches, st.WaitingBatches)
		}
	})
}

// A caller that was told when to come back and comes at once waits until then, and costs nothing meanwhile; others do not.
func TestRudeCallerIsHeld(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		h := serve(t, testConfig(), &fakeBackend{})
		empty := full(t, h.server)
		if _, err := h.timers.ScheduleBatch(t.Context(), batchOf("a", 100, 100)); overloadIn(err) == nil {
			t.Fatal(err)
		}
		empty()
		began := time.Now()
		polite := carillonv1.NewTimersClient(h.dial())
		if _, err := polite.ScheduleBatch(t.Context(), batchOf("b", 100, 100)); err != nil || time.Since(began) != 0 {
			t.Errorf("another: %v after %v", err, time.Since(began))
		}
		if _, err := h.timers.ScheduleBatch(t.Context(), batchOf("a", 100, 100)); err != nil || time.Since(began) != firstRetry {
			t.Errorf("the rude one: %v after %v", err, time.Since(began))
		}
		if _, err := h.timers.ScheduleBatch(t.Context(), batchOf("a", 100, 100)); err != nil || time.Since(began) != firstRetry {
			t.Errorf("after its time: %v after %v", err, time.Since(began))
		}
		if held := h.server.Stats().HeldCalls; held != 1 {
			t.Errorf("%d calls were held", held)
		}
		// A stop and a caller that goes away end it.
		full(t, h.server)
		if _, err := h.timers.ScheduleBatch(t.Context(), batchOf("a", 100, 100)); overloadIn(err) == nil {
			t.Fatal(err)
		}
		var all sync.WaitGroup
		all.Go(func() {
			ctx, cancel := context.WithTimeout(t.Context(), firstRetry/2)
			defer cancel()
			if _, err := h.timers.ScheduleBatch(ctx, batchOf("a", 100, 100)); status.Code(err) != codes.DeadlineExceeded {
				t.Errorf("who has gone: %v", err)
			}
		})
		all.Wait()
		began = time.Now()
		all.Go(func() {
			_, err := h.timers.ScheduleBatch(t.Context(), batchOf("a", 100, 100))
			if !errors.Is(ErrorOf(status.Convert(err)), shard.ErrUnavailable) || time.Since(began) != 0 {
				t.Errorf("at the stop: %v after %v", err, time.Since(began))
			}
		})
		synctest.Wait()
		h.stop()
		all.Wait()
	})
}

// A batch that a shard refuses whole is refused once, and its caller is held; what is refused in part has its results.
func TestOverloadOfAWholeBatch(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		spare := ""
		backend := &fakeBackend{onApply: func(_ context.Context, cmd *raftfsm.Command) Outcome {
			if cmd.GetSchedule().GetId() == spare || cmd.GetCancel().GetId() == "x" {
				return Outcome{}
			}
			return Outcome{Err: &shard.OverloadedError{Limit: "full", RetryAfter: 50 * time.Millisecond}}
		}}
		h := serve(t, testConfig(), backend)
		_, err := h.timers.ScheduleBatch(t.Context(), batchOf("a", 2, 1))
		if o := overloadIn(err); o == nil || o.RetryAfter != 50*time.Millisecond || o.Limit != "full" {
			t.Errorf("all: %v", err)
		}
		began := time.Now()
		spare = "a/1"
		r, err := h.timers.ScheduleBatch(t.Context(), batchOf("a", 2, 1))
		if err != nil || r.Results[0].GetError().GetReason() != ReasonLimitReached || r.Results[1].GetOk() == nil {
			t.Errorf("one of two: %v, %v", r, err)
		}
		if took := time.Since(began); took != 50*time.Millisecond {
			t.Errorf("held for %v", took)
		}
		if r, err := h.timers.ScheduleBatch(t.Context(), &carillonv1.ScheduleBatchRequest{}); err != nil || len(r.Results) > 0 {
			t.Errorf("nothing: %v, %v", r, err)
		}
		cancels := &carillonv1.CancelBatchRequest{Items: []*carillonv1.CancelRequest{{Id: "x"}, {Id: "y"}}}
		if r, err := h.timers.CancelBatch(t.Context(), cancels); err != nil || r.Results[1].GetError().GetReason() != ReasonLimitReached {
			t.Errorf("a cancel of two: %v, %v", r, err)
		}
		cancels.Items[0].Id = "z"
		if _, err := h.timers.CancelBatch(t.Context(), cancels); overloadIn(err) == nil {
			t.Errorf("both cancels: %v", err)
		}
		if time.Since(began) != 50*time.Millisecond {
			t.Errorf("all within %v", time.Since(began))
		}
	})
}

// The turn ends when the batch is decoded, so that others are decoded while it waits for the disks.
func TestTurnEndsBeforeTheBackend(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		backend := &fakeBackend{onApply: func(context.Context, *raftfsm.Command) Outcome {
			time.Sleep(time.Second)
			return Outcome{Result: raftfsm.Result{Items: make([]raftfsm.Result, 1)}}
		}}
		h := serve(t, testConfig(), backend)
		h.server.desk.turns = 1
		var all sync.WaitGroup
		began := time.Now()
		for i := range 6 {
			all.Go(func() {
				r := batchOf(fmt.Sprint("t", i), 1, 2*lightBytes)
				r.Atomic = i%2 == 0
				if _, err := h.timers.ScheduleBatch(t.Context(), r); err != nil {
					t.Error(err)
				}
			})
		}
		all.Wait()
		if took := time.Since(began); took != time.Second {
			t.Errorf("took %v", took)
		}
		// One that is not valid never comes to the backend; its turn ends all the same.
		for range 3 {
			if _, err := h.timers.ScheduleBatch(t.Context(), batchOf(strings.Repeat("x", 2*lightBytes), 1, 0)); err != nil {
				t.Error(err)
			}
		}
		if d := h.server.desk; d.turns != 1 || d.items != 0 || d.bytes != 0 {
			t.Errorf("%d turns, %d items, %d bytes", d.turns, d.items, d.bytes)
		}
	})
}

// The same over HTTP.
func TestFullNodeRefusesJSON(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		backend := &fakeBackend{}
		s := NewServer(testConfig(), backend)
		gateway := s.Gateway()
		empty := full(t, s)
		item := `{"timer": {"id": "a", "delay": "60s", "queue": "q", "payload": "` + strings.Repeat("aaaa", lightBytes/4) + `"}}`
		began := time.Now()
		code, answer, header := post(t, gateway, "/v1/timers/scheduleBatch", `{"items": [`+item+`]}`)
		if code != http.StatusTooManyRequests || header.Get("Retry-After") != "1" || reasonOf(answer) != ReasonLimitReached || time.Since(began) != deskWait {
			t.Errorf("%d %v %v after %v", code, header, answer, time.Since(began))
		}
		if n := len(backend.applied()); n > 0 {
			t.Errorf("%d commands came through", n)
		}
		empty()
		code, answer, _ = post(t, gateway, "/v1/timers/scheduleBatch", `{"items": [`+item+`]}`)
		if code != http.StatusOK || len(answer["results"].([]any)) != 1 {
			t.Errorf("%d %v", code, answer)
		}
		code, answer, _ = post(t, gateway, "/v1/timers/scheduleBatch", `{"items": [`+item+`}`)
		if code != http.StatusBadRequest || reasonOf(answer) != "INVALID_FIELD body" {
			t.Errorf("%d %v", code, answer)
		}
		s.cutOff()
	})
}

// The number of items is guessed by the size of the first ones.
func TestItemsOfARequest(t *testing.T) {
	t.Parallel()
	for _, n := range []int{0, 1, 2, 10, 100, 1000} {
		data, err := newCodec().Marshal(batchOf("name", n, 100))
		if err != nil {
			t.Fatal(err)
		}
		raw := &rawMessage{}
		if err := newCodec().Unmarshal(data, raw); err != nil {
			t.Fatal(err)
		}
		if got := raw.items(); got < max(1, n-n/20) || got > max(1, n+n/20) {
			t.Errorf("%d items were taken for %d", n, got)
		}
		raw.free()
	}
	for _, bytes := range []string{"", "\xff", "\x08\x01", "\x0a\xff\xff\xff\xff\x0f", "\x0a", "\x0a\x05abc"} {
		raw := &rawMessage{data: bufferOf(bytes)}
		if got := raw.items(); got != 1 {
			t.Errorf("%q: %d items", bytes, got)
		}
	}
}

func bufferOf(s string) mem.BufferSlice { return mem.BufferSlice{mem.SliceBuffer(s)} }
