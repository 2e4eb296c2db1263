package transport

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
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

// refusedOnce has a batch of the harness's client refused by a full desk, which is empty again afterwards.
func refusedOnce(t *testing.T, h *harness) {
	t.Helper()
	empty := full(t, h.server)
	defer empty()
	if _, err := h.timers.ScheduleBatch(t.Context(), batchOf("a", 100, 100)); overloadIn(err) == nil {
		t.Fatal(err)
	}
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
		refusedOnce(t, h)
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

// The estimate of a batch's items is never above what a batch may have, whatever the sizes of its items.
func TestItemsAreAtMostABatch(t *testing.T) {
	t.Parallel()
	r := batchOf("a", 500, 0)
	for _, item := range r.Items[480:] {
		item.Timer.Payload = make([]byte, 50<<10)
	}
	data, err := newCodec().Marshal(r)
	if err != nil {
		t.Fatal(err)
	}
	all := string(data.Materialize())
	for name, raw := range map[string]*rawMessage{
		"one large timer in JSON":  {json: make([]byte, 700<<10)},
		"the last are large":       {data: append(bufferOf(all[:16<<10]), bufferOf(all[16<<10:])...)},
		"empty items, then others": {data: append(bufferOf(strings.Repeat("\x0a\x00", 8<<10)), bufferOf(all)...)},
	} {
		if n := raw.items(); n > raftfsm.MaxBatchItems {
			t.Errorf("%s: %d items", name, n)
		}
	}
}

// A caller waits as long as the longest of its refusals said, at most lastRetry, and not at all once the clock was set back.
func TestCallerLeft(t *testing.T) {
	t.Parallel()
	c, now := &caller{}, time.Unix(1_000_000, 0)
	c.note(now, &shard.OverloadedError{RetryAfter: 2 * lastRetry})
	c.note(now.Add(time.Second), &shard.OverloadedError{RetryAfter: 50 * time.Millisecond})
	if got := c.left(now.Add(time.Second)); got != lastRetry-time.Second {
		t.Errorf("%v are left", got)
	}
	if got := c.left(now.Add(-time.Hour)); got != 0 {
		t.Errorf("%v are left after the clock was set back", got)
	}
	c.note(now.Add(-time.Hour), &shard.OverloadedError{RetryAfter: time.Second})
	if got := c.left(now.Add(-time.Hour)); got != time.Second {
		t.Errorf("%v are left of a refusal after that", got)
	}
}

// Of one connection no more than maxHeld schedules are held; the rest is refused at once, and cancels pass.
func TestHeldCallsAreBounded(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		h := serve(t, testConfig(), &fakeBackend{})
		refusedOnce(t, h)
		began := time.Now()
		var all sync.WaitGroup
		var refused atomic.Int64
		for range maxHeld + 10 {
			all.Go(func() {
				_, err := h.timers.ScheduleBatch(t.Context(), batchOf("b", 1, 0))
				switch o := overloadIn(err); {
				case o != nil && time.Since(began) == 0 && o.RetryAfter > 0:
					refused.Add(1)
				case err != nil || time.Since(began) < firstRetry:
					t.Errorf("%v after %v", err, time.Since(began))
				}
			})
		}
		synctest.Wait()
		if _, err := h.timers.CancelBatch(t.Context(), &carillonv1.CancelBatchRequest{Items: []*carillonv1.CancelRequest{{Id: "a"}}}); err != nil || time.Since(began) > 0 {
			t.Errorf("a cancel: %v after %v", err, time.Since(began))
		}
		all.Wait()
		if refused.Load() != 10 {
			t.Errorf("%d were refused at once", refused.Load())
		}
	})
}

// Whoever is let in at the last moment keeps its place.
func TestLetInAtTheLastMoment(t *testing.T) {
	t.Parallel()
	d := newDesk(time.Now)
	v, err := d.enter(t.Context(), nil, 1, 1)
	if err != nil {
		t.Fatal(err)
	}
	if err := d.give(v, errStopping); err != nil {
		t.Error(err)
	}
}

// A batch is let in only if its bytes fit beside those that are inside, too.
func TestDeskBoundsBytes(t *testing.T) {
	t.Parallel()
	d := newDesk(time.Now)
	v, err := d.enter(t.Context(), nil, 1, deskBytes-10)
	if err != nil {
		t.Fatal(err)
	}
	v.endTurn()
	if !d.fits(&visit{items: 1, bytes: 10}) || d.fits(&visit{items: 1, bytes: 11}) {
		t.Errorf("%d bytes are inside: 10 more fit: %v, 11 more fit: %v", d.bytes, d.fits(&visit{items: 1, bytes: 10}), d.fits(&visit{items: 1, bytes: 11}))
	}
}

// A batch is refused as a whole only if all its items are, and then with the longest time to wait.
func TestOverloadOfABatch(t *testing.T) {
	t.Parallel()
	refused := func(after time.Duration) Outcome { return Outcome{Err: &shard.OverloadedError{RetryAfter: after}} }
	all := []Outcome{refused(50 * time.Millisecond), refused(time.Second), refused(20 * time.Millisecond)}
	var overload *shard.OverloadedError
	if err := overloadOf(all); !errors.As(err, &overload) || overload.RetryAfter != time.Second {
		t.Errorf("all refused: %v", err)
	}
	for name, outcomes := range map[string][]Outcome{"none": nil, "one accepted": append(all, Outcome{}), "one invalid": append(all, Outcome{Err: shard.ErrUnavailable})} {
		if err := overloadOf(outcomes); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
}
