package transport

import (
	"context"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"

	carillonv1 "github.com/carillon-timers/carillon/proto/carillon/v1"
	"github.com/carillon-timers/carillon/raftfsm"
	"github.com/carillon-timers/carillon/shard"
)

// oddIDs are names that other systems took at one door and refused at the next: an ID that could be created and not
// deleted.
var oddIDs = []struct {
	id string
	ok bool
}{
	{"", false}, {"/", true}, {"a/b", true}, {"../x", true}, {"a b", true}, {"a%2Fb", true},
	{"e\u0301", true}, {"\u00e9", true}, {"\U0001f514", true}, {"\u200f", true}, {"a\x00", false}, {"a\nb", true},
	{"x", true}, {" ", true}, {strings.Repeat("a", 255), true}, {strings.Repeat("a", 256), false},
	{strings.Repeat("a", 1024), false}, {strings.Repeat("a", 65536), false}, {"\xff", false}, {"a\xc3", false},
	{"{order-42}/reminder", true},
}

// Either each entry point works with an ID, or each refuses it and names the field.
func TestOddIDsAgreeAtEachEntryPoint(t *testing.T) {
	t.Parallel()
	h := serve(t, testConfig(), &fakeBackend{})
	delay := durationpb.New(0)
	for _, c := range oddIDs {
		for _, call := range []struct {
			method            string
			request, response any
		}{
			{"Schedule", &carillonv1.ScheduleRequest{Timer: goodTimer(c.id)}, &carillonv1.ScheduleResponse{}},
			{"Get", &carillonv1.GetRequest{Id: c.id}, &carillonv1.GetResponse{}},
			{"List", &carillonv1.ListRequest{Prefix: c.id}, &carillonv1.ListResponse{}},
			{"List", &carillonv1.ListRequest{Cursor: c.id}, &carillonv1.ListResponse{}},
			{"Reschedule", &carillonv1.RescheduleRequest{Id: c.id, When: &carillonv1.RescheduleRequest_Delay{Delay: delay}}, &carillonv1.RescheduleResponse{}},
			{"Cancel", &carillonv1.CancelRequest{Id: c.id}, &carillonv1.CancelResponse{}},
		} {
			ok := c.ok || (call.method == "List" && c.id == "") // which lists all, from the start
			err := h.invoke("/carillon.v1.Timers/"+call.method, call.request, call.response)
			if (err == nil) != ok {
				t.Errorf("%s %.20q: %v, want ok %v", call.method, c.id, err, ok)
			}
		}
		batch := &carillonv1.ScheduleBatchResponse{}
		if err := h.invoke("/carillon.v1.Timers/ScheduleBatch", &carillonv1.ScheduleBatchRequest{
			Items: []*carillonv1.ScheduleRequest{{Timer: goodTimer(c.id)}}}, batch); err != nil {
			t.Fatal(err)
		}
		if ok := batch.Results[0].GetOk() != nil; ok != c.ok {
			t.Errorf("batch %.20q: %v", c.id, batch.Results[0])
		}
		cancels := &carillonv1.CancelBatchResponse{}
		if err := h.invoke("/carillon.v1.Timers/CancelBatch", &carillonv1.CancelBatchRequest{
			Items: []*carillonv1.CancelRequest{{Id: c.id}}}, cancels); err != nil {
			t.Fatal(err)
		}
		if ok := cancels.Results[0].GetOk() != nil; ok != c.ok {
			t.Errorf("cancel batch %.20q: %v", c.id, cancels.Results[0])
		}
		token := raftfsm.Token{Epoch: 1, Revision: 1, Namespace: "default", ID: c.id}.Append(nil)
		if err := h.invoke("/carillon.v1.Deliveries/Ack", &carillonv1.AckRequest{Tokens: [][]byte{token}}, &carillonv1.SettleResponse{}); (err == nil) != c.ok {
			t.Errorf("ack %.20q: %v", c.id, err)
		}
	}
}

func TestABatchWithOneBadItem(t *testing.T) {
	t.Parallel()
	backend := &fakeBackend{}
	h := serve(t, testConfig(), backend)
	bad := goodTimer("bad")
	bad.When = &carillonv1.Timer_Delay{Delay: durationpb.New(-1)}
	resp, err := h.timers.ScheduleBatch(context.Background(), &carillonv1.ScheduleBatchRequest{Items: []*carillonv1.ScheduleRequest{
		{Timer: goodTimer("a")}, {Timer: bad}, {Timer: goodTimer("b")},
		{Timer: goodTimer("b"), IfExists: carillonv1.IfExists_IF_EXISTS_REPLACE},
	}})
	if err != nil {
		t.Fatal(err)
	}
	for i, r := range resp.Results {
		if i == 1 {
			if e := r.GetError(); e.GetReason() != "INVALID_FIELD" || e.GetMetadata()["field"] != "delay" {
				t.Errorf("item 1: got %v", r)
			}
		} else if r.GetOk() == nil {
			t.Errorf("item %d: got %v", i, r)
		}
	}
	var got []string
	for _, cmd := range backend.applied() {
		got = append(got, cmd.GetSchedule().GetId())
	}
	if strings.Join(got, ",") != "a,b,b" { // the same ID twice stays in order
		t.Errorf("applied %v", got)
	}
	if backend.calls != 1 {
		t.Errorf("%d calls for one batch", backend.calls)
	}
}

func TestABatchOverALimitIsRefusedWhole(t *testing.T) {
	t.Parallel()
	backend := &fakeBackend{}
	h := serve(t, testConfig(), backend)
	large := &carillonv1.ScheduleBatchRequest{}
	for range 17 {
		timer := goodTimer("x")
		timer.Payload = make([]byte, 65536)
		large.Items = append(large.Items, &carillonv1.ScheduleRequest{Timer: timer})
	}
	_, err := h.timers.ScheduleBatch(context.Background(), large)
	if err = ErrorOf(StatusOf(err)); fieldOf(t, err) != "items" || !strings.Contains(err.Error(), "1048576 bytes") {
		t.Errorf("over 1 MiB: %v", err)
	}
	many := &carillonv1.CancelBatchRequest{}
	for range 1001 {
		many.Items = append(many.Items, &carillonv1.CancelRequest{Id: "x"})
	}
	_, err = h.timers.CancelBatch(context.Background(), many)
	if err = ErrorOf(StatusOf(err)); fieldOf(t, err) != "items" || !strings.Contains(err.Error(), "1000 items") {
		t.Errorf("1,001 items: %v", err)
	}
	if n := len(backend.applied()); n != 0 {
		t.Errorf("%d commands got through", n)
	}
	resp, err := h.timers.ScheduleBatch(context.Background(), &carillonv1.ScheduleBatchRequest{})
	if err != nil || len(resp.Results) != 0 {
		t.Errorf("an empty batch: %v, %v", resp, err)
	}
}

// The backend may leave a refusal to its result; the client hears what it expected.
func TestARefusalInAResult(t *testing.T) {
	t.Parallel()
	backend := &fakeBackend{onApply: func(context.Context, *raftfsm.Command) Outcome {
		return Outcome{Result: raftfsm.Result{Code: raftfsm.RevisionMismatch, Revision: 9}}
	}}
	h := serve(t, testConfig(), backend)
	_, err := h.timers.Cancel(t.Context(), &carillonv1.CancelRequest{Id: "x", ExpectedRevision: 4})
	if got := ErrorOf(StatusOf(err)); !same(got, &shard.RevisionError{Expected: 4, Actual: 9}) {
		t.Errorf("got %v", got)
	}
}

// A command is complete: sorted, with the defaults, in the default namespace.
func TestScheduleCommand(t *testing.T) {
	t.Parallel()
	timer := goodTimer("x")
	timer.Headers = map[string]string{"c": "3", "a": "1", "b": "2"}
	timer.Retry = &carillonv1.RetryPolicy{InitialBackoff: &durationpb.Duration{Seconds: 400, Nanos: 1}}
	cmd, err := scheduleCommand(&carillonv1.ScheduleRequest{Timer: timer, IfExists: carillonv1.IfExists_IF_EXISTS_KEEP, RequestId: "r"}, testLimits())
	if err != nil {
		t.Fatal(err)
	}
	s := cmd.GetSchedule()
	if s.Namespace != "default" || !s.IsDelay || s.DelayMs != 60_000 || s.IfExists != 2 || string(s.RequestId) != "r" {
		t.Errorf("got %v", s)
	}
	if s.Headers[0].Key != "a" || s.Headers[2].Value != "3" || len(s.Labels) != 0 {
		t.Errorf("headers %v", s.Headers)
	}
	// The default maximum grows with the initial back-off.
	if r := s.Retry; r.LeaseMs != 30_000 || r.InitialBackoffMs != 400_001 || r.MaxBackoffMs != 400_001 || r.Multiplier != 2 {
		t.Errorf("retry %v", r)
	}
}

// FuzzRequests sends random bytes as each request through the codec and the checks: they may refuse, never panic, and
// what they let pass is within the limits.
func FuzzRequests(f *testing.F) {
	for _, c := range oddIDs {
		b, err := (&carillonv1.ScheduleRequest{Timer: goodTimer(c.id)}).MarshalVT()
		if err != nil {
			f.Fatal(err)
		}
		f.Add(b)
	}
	whole := goodTimer("{a}b")
	whole.Repeat, whole.Window, whole.Retry = everyRepeat(time.Minute), seconds(1), &carillonv1.RetryPolicy{MaxAttempts: 3}
	whole.Target = &carillonv1.Timer_Webhook{Webhook: "https://example.com/"}
	b, err := (&carillonv1.ScheduleRequest{Timer: whole}).MarshalVT()
	if err != nil {
		f.Fatal(err)
	}
	f.Add(b)
	f.Add([]byte(`{"items": [{"timer": {"queue": "a", "webhook": "b"}}]}`))
	random := rand.New(rand.NewPCG(1, 2))
	for range 20 {
		b := make([]byte, 64)
		for i := range b {
			b[i] = byte(random.Uint32())
		}
		f.Add(b)
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		l := testLimits()
		if r := (&carillonv1.ScheduleRequest{}); r.UnmarshalVT(b) == nil {
			if cmd, err := scheduleCommand(r, l); err == nil {
				s := cmd.GetSchedule()
				if checkKey(s.Namespace, s.Id) != nil || len(s.Queue) > raftfsm.MaxQueueBytes || s.Extra.GetWindowMs() > maxWindowMillis || s.DelayMs < 0 || s.DueMs > l.now.UnixMilli()+raftfsm.MaxAheadMillis || len(s.Payload) > l.payload {
					t.Errorf("got through: %v", s)
				}
			}
		}
		if r := (&carillonv1.RescheduleRequest{}); r.UnmarshalVT(b) == nil {
			_, _ = rescheduleCommand(r, l)
		}
		if r := (&carillonv1.CancelRequest{}); r.UnmarshalVT(b) == nil {
			_, _ = cancelCommand(r)
		}
		if r := (&carillonv1.ListRequest{}); r.UnmarshalVT(b) == nil {
			_ = checkList(r)
		}
		if r := (&carillonv1.NackRequest{}); r.UnmarshalVT(b) == nil && checkNack(r) == nil {
			for _, n := range r.Nacks {
				_, _ = nackCommand(raftfsm.Token{}, n)
			}
		}
		if r := (&carillonv1.WorkRequest{}); r.UnmarshalVT(b) == nil {
			_, _ = checkWork(r), checkWorkStart(r.Start)
			_, _ = readExtends("extends", r.Extends)
		}
		if r := (&carillonv1.Filter{}); r.UnmarshalVT(b) == nil {
			_, _ = readFilter(r)
		}
		if r := (&carillonv1.ForecastRequest{}); r.UnmarshalVT(b) == nil {
			if q, err := readForecast(r, l); err == nil && (q.Rows < 1 || q.Steps < 1 || q.From%q.Step != 0) {
				t.Errorf("got through: %+v", q)
			}
		}
		if r := (&carillonv1.RedriveRequest{}); r.UnmarshalVT(b) == nil {
			_, _ = readChosen(r.Keys, r.Queue, r.RequestId, 16)
		}
		_ = decodeJSON(b, &carillonv1.ScheduleBatchRequest{})
		_, _ = checkToken("token", b)
	})
}
