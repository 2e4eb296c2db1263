package transport

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	carillonv1 "github.com/carillon-timers/carillon/proto/carillon/v1"
	logv1 "github.com/carillon-timers/carillon/proto/carillonlog/v1"
	"github.com/carillon-timers/carillon/raftfsm"
)

// All that a client can wish for comes to the log, and back to him as he wrote it, with the defaults.
func TestTimerThereAndBack(t *testing.T) {
	t.Parallel()
	timer := goodTimer("{a}b")
	timer.Target = &carillonv1.Timer_Webhook{Webhook: "https://Example.com/hook?x=1"}
	timer.When = nil
	timer.Window, timer.Guarantee = seconds(90), carillonv1.Guarantee_GUARANTEE_AT_MOST_ONCE
	timer.Expiry = timestamppb.New(testNow.Add(48 * time.Hour))
	timer.Retry = &carillonv1.RetryPolicy{MaxAttempts: 1}
	timer.Repeat = &carillonv1.Repeat{
		Rule: &carillonv1.Repeat_Cron{Cron: "0 9 * * *"}, Zone: "Europe/Berlin", Start: timestamppb.New(testNow), End: timestamppb.New(testNow.Add(72 * time.Hour)),
		MaxCount: 3, Misfire: carillonv1.Misfire_MISFIRE_ALL, MaxCatchUp: 5, MaxLateness: seconds(60), Overlap: carillonv1.Overlap_OVERLAP_ALLOW,
	}
	cmd, err := scheduleCommand(&carillonv1.ScheduleRequest{Timer: timer}, testLimits())
	if err != nil {
		t.Fatal(err)
	}
	s := cmd.GetSchedule()
	want := &logv1.Extra{
		AtMostOnce: true, ExpiryMs: testNow.Add(48 * time.Hour).UnixMilli(), Webhook: "https://Example.com/hook?x=1", WindowMs: 90_000,
		Repeat: &logv1.Repeat{
			Cron: "0 9 * * *", Zone: "Europe/Berlin", StartMs: testNow.UnixMilli(), HasEnd: true, EndMs: testNow.Add(72 * time.Hour).UnixMilli(),
			MaxCount: 3, Misfire: 3, MaxCatchUp: 5, MaxLateMs: 60_000, Overlap: 3,
		},
	}
	if !proto.Equal(s.Extra, want) || !s.First || s.IsDelay || s.Queue != "\x00https://example.com:443" || s.Retry.MaxAttempts != 1 {
		t.Errorf("got %v", s)
	}
	back := timerStatus(raftfsm.Status{State: raftfsm.Pending, Fired: 2, Record: &raftfsm.Record{
		Namespace: "default", ID: s.Id, Queue: s.Queue, Extra: s.Extra, Retry: raftfsm.RetryPolicy{MaxAttempts: 1}}}, 0)
	if back.Fired != 2 || back.Timer.GetWebhook() != timer.GetWebhook() || !proto.Equal(back.Timer.Repeat, timer.Repeat) ||
		!proto.Equal(back.Timer.Window, timer.Window) || back.Timer.Guarantee != timer.Guarantee || back.Timer.Retry.MaxAttempts != 1 {
		t.Errorf("came back as %v", back)
	}
}

// A period that counts from 1970 keeps its grid, though a start of 0 means none in the log; a plain timer has no extra part.
func TestExtraOfOthers(t *testing.T) {
	t.Parallel()
	timer := goodTimer("x")
	timer.When, timer.Repeat = nil, everyRepeat(10*time.Minute)
	timer.Repeat.Start = &timestamppb.Timestamp{}
	cmd, err := scheduleCommand(&carillonv1.ScheduleRequest{Timer: timer}, testLimits())
	if err != nil || cmd.GetSchedule().Extra.Repeat.StartMs != -600_000 || cmd.GetSchedule().Extra.Repeat.Misfire != 1 || cmd.GetSchedule().Extra.Repeat.Overlap != 1 {
		t.Errorf("got %v, %v", cmd, err)
	}
	cmd, err = scheduleCommand(&carillonv1.ScheduleRequest{Timer: goodTimer("x")}, testLimits())
	if err != nil || cmd.GetSchedule().Extra != nil {
		t.Errorf("got %v, %v", cmd, err)
	}
	frozen := timerStatus(raftfsm.Status{State: raftfsm.Paused, Record: &raftfsm.Record{Queue: "q", Extra: &logv1.Extra{Paused: true, Frozen: true, LeftMs: 1500}}}, 0)
	if frozen.State != carillonv1.State_STATE_PAUSED || frozen.TimeLeft.AsDuration() != 1500*time.Millisecond || frozen.NextDue != nil {
		t.Errorf("got %v", frozen)
	}
}

func TestControlCalls(t *testing.T) {
	t.Parallel()
	backend := &fakeBackend{onApply: func(context.Context, *raftfsm.Command) Outcome {
		return Outcome{Result: raftfsm.Result{Revision: 7, Due: 5000}}
	}}
	h := serve(t, testConfig(), backend)
	pause, err1 := h.timers.Pause(t.Context(), &carillonv1.PauseRequest{Id: "x", Freeze: true, RequestId: "r", ExpectedRevision: 3})
	resume, err2 := h.timers.Resume(t.Context(), &carillonv1.ResumeRequest{Id: "x", RequestId: "r"})
	fire, err3 := h.timers.FireNow(t.Context(), &carillonv1.FireNowRequest{Id: "x"})
	if err1 != nil || err2 != nil || err3 != nil || pause.Revision != 7 || resume.Due.Seconds != 5 || fire.Due.Seconds != 5 || fire.Revision != 7 {
		t.Fatalf("got %v %v, %v %v, %v %v", pause, err1, resume, err2, fire, err3)
	}
	got := backend.applied()
	if p := got[0].GetPause(); p.Namespace != "default" || !p.Freeze || string(p.RequestId) != "r" || p.ExpectedRevision != 3 {
		t.Errorf("got %v", p)
	}
	if r := got[1].GetResume(); r.Id != "x" || string(r.RequestId) != "r" {
		t.Errorf("got %v", r)
	}
	if f := got[2].GetReschedule(); !f.Now || f.IsDelay {
		t.Errorf("got %v", f)
	}
	backend.onApply = func(context.Context, *raftfsm.Command) Outcome {
		return Outcome{Result: raftfsm.Result{Code: raftfsm.NotPending, Answer: uint32(raftfsm.Fired)}}
	}
	_, err := h.timers.FireNow(t.Context(), &carillonv1.FireNowRequest{Id: "x"})
	if info := infoOf(t, status.Convert(err)); info.Reason != "TIMER_NOT_PENDING" || info.Metadata["state"] != "STATE_FIRED" {
		t.Errorf("got %v", info)
	}
}

// An atomic batch is one command; the error is that of its first item that fails.
func TestAtomicBatch(t *testing.T) {
	t.Parallel()
	outcome := Outcome{Result: raftfsm.Result{Items: []raftfsm.Result{{Revision: 1, Due: 9}, {Revision: 1, Due: 10}}}}
	backend := &fakeBackend{onApply: func(context.Context, *raftfsm.Command) Outcome { return outcome }}
	h := serve(t, testConfig(), backend)
	r := &carillonv1.ScheduleBatchRequest{Atomic: true, Items: []*carillonv1.ScheduleRequest{{Timer: goodTimer("{a}1")}, {Timer: goodTimer("{a}2")}}}
	resp, err := h.timers.ScheduleBatch(t.Context(), r)
	if err != nil || len(resp.Results) != 2 || resp.Results[1].GetOk().GetDue().AsTime().UnixMilli() != 10 {
		t.Fatalf("got %v, %v", resp, err)
	}
	if got := backend.applied(); len(got) != 1 || len(got[0].GetAtomic().Commands) != 2 || got[0].GetAtomic().Commands[1].GetSchedule().Id != "{a}2" {
		t.Errorf("got %v", got)
	}
	outcome = Outcome{Result: raftfsm.Result{Code: raftfsm.RevisionMismatch, Revision: 8, Answer: 1}}
	_, err = h.timers.CancelBatch(t.Context(), &carillonv1.CancelBatchRequest{Atomic: true, Items: []*carillonv1.CancelRequest{{Id: "{a}1"}, {Id: "{a}2", ExpectedRevision: 4}}})
	if info := infoOf(t, status.Convert(err)); info.Reason != "REVISION_MISMATCH" || info.Metadata["item"] != "1" || info.Metadata["expected"] != "4" {
		t.Errorf("got %v", info)
	}
	outcome = Outcome{Result: raftfsm.Result{Code: raftfsm.StaleEpoch}}
	_, err = h.timers.ScheduleBatch(t.Context(), r)
	if info := infoOf(t, status.Convert(err)); info.Reason != "SHARD_UNAVAILABLE" || info.Metadata["item"] != "" {
		t.Errorf("got %v", info)
	}
	before := len(backend.applied())
	for _, c := range []struct{ field, first, second, space string }{
		{"id", "{a}1", "{a}1", ""}, {"id", "{a}1", "{b}1", ""}, {"id", "a", "b", ""}, {"namespace", "{a}1", "{a}2", "other"}, {"id", "{a}1", "", ""},
	} {
		second := goodTimer(c.second)
		second.Namespace = c.space
		_, err := h.timers.ScheduleBatch(t.Context(), &carillonv1.ScheduleBatchRequest{Atomic: true, Items: []*carillonv1.ScheduleRequest{{Timer: goodTimer(c.first)}, {Timer: second}}})
		if info := infoOf(t, status.Convert(err)); info.Metadata["field"] != c.field || info.Metadata["item"] != "1" {
			t.Errorf("%v: got %v", c, info)
		}
	}
	if resp, err := h.timers.ScheduleBatch(t.Context(), &carillonv1.ScheduleBatchRequest{Atomic: true}); err != nil || len(resp.Results) != 0 {
		t.Errorf("an empty one: %v, %v", resp, err)
	}
	if n := len(backend.applied()); n != before {
		t.Errorf("%d commands got through", n-before)
	}
}

func TestFilters(t *testing.T) {
	t.Parallel()
	f, err := readFilter(&carillonv1.Filter{
		Labels: map[string]string{"b": "2", "a": "1"}, States: []carillonv1.State{5, 1, 5}, Queue: "https://example.com:443",
		DueFrom: &timestamppb.Timestamp{Nanos: 1}, DueBefore: &timestamppb.Timestamp{Seconds: 2},
	})
	want := &logv1.Filter{
		Labels: []*logv1.Pair{{Key: "a", Value: "1"}, {Key: "b", Value: "2"}}, States: []uint32{5, 1}, Queue: "\x00https://example.com:443",
		HasFrom: true, FromMs: 1, HasBefore: true, BeforeMs: 2000,
	}
	if err != nil || !proto.Equal(f, want) {
		t.Errorf("got %v, %v", f, err)
	}
	if f, err := readFilter(&carillonv1.Filter{}); f != nil || err != nil {
		t.Errorf("an empty one: %v, %v", f, err)
	}
	for name, c := range map[string]*carillonv1.Filter{
		"filter.labels":     {Labels: map[string]string{"": "x"}},
		"filter.states[1]":  {States: []carillonv1.State{1, 3}},
		"filter.queue":      {Queue: strings.Repeat("q", 256)},
		"filter.due_from":   {DueFrom: &timestamppb.Timestamp{Nanos: -1}},
		"filter.due_before": {DueFrom: &timestamppb.Timestamp{Seconds: 2}, DueBefore: &timestamppb.Timestamp{Seconds: 1}},
	} {
		if _, err := readFilter(c); fieldOf(t, err) != name {
			t.Errorf("%s: got %v", name, err)
		}
	}
}

// A page with a filter may be empty and go on behind the last ID that was looked at.
func TestListGoesOnBehindWhatWasLookedAt(t *testing.T) {
	t.Parallel()
	h := serve(t, testConfig(), &fakeBackend{onList: func(q raftfsm.ListQuery) (raftfsm.ListPage, error) {
		if q.Filter.GetQueue() != "a" || q.After != "" {
			return raftfsm.ListPage{}, nil
		}
		return raftfsm.ListPage{More: true, Last: "m"}, nil
	}})
	resp, err := h.timers.List(t.Context(), &carillonv1.ListRequest{Filter: &carillonv1.Filter{Queue: "a"}})
	if err != nil || len(resp.Timers) != 0 || resp.NextCursor != "m" {
		t.Errorf("got %v, %v", resp, err)
	}
}

func TestForecastCall(t *testing.T) {
	t.Parallel()
	var asked raftfsm.ForecastQuery
	c := testConfig()
	c.Now = func() time.Time { return testNow.Add(59 * time.Second) }
	h := serve(t, c, &fakeBackend{onForecast: func(q raftfsm.ForecastQuery) ([]raftfsm.ForecastRow, error) {
		asked = q
		return []raftfsm.ForecastRow{{Namespace: "a", Queue: "\x00https://example.com:443", Counts: []int64{1, 2}, Before: 3, After: 4, Paused: 5}}, nil
	}})
	resp, err := h.cluster.Forecast(t.Context(), &carillonv1.ForecastRequest{Queue: "http://a:80", Steps: 2})
	if err != nil || !resp.Start.AsTime().Equal(testNow) || resp.Step.AsDuration() != time.Minute || resp.Series[0].Queue != "https://example.com:443" || !slices.Equal(resp.Series[0].Counts, []int64{1, 2}) {
		t.Errorf("got %v, %v", resp, err)
	}
	if want := (raftfsm.ForecastQuery{Queue: "\x00http://a:80", From: testNow.UnixMilli(), Step: 60_000, Steps: 2, Rows: 1000}); asked != want {
		t.Errorf("asked %+v, want %+v", asked, want)
	}
	for field, r := range map[string]*carillonv1.ForecastRequest{
		"step": {Step: seconds(2)}, "steps": {Steps: 3601}, "from": {From: timestamppb.New(testNow.AddDate(101, 0, 0))}, "namespace": {Namespace: "A"},
	} {
		_, err := h.cluster.Forecast(t.Context(), r)
		if info := infoOf(t, status.Convert(err)); info.Metadata["field"] != field {
			t.Errorf("%s: got %v", field, info)
		}
	}
	if q, err := readForecast(&carillonv1.ForecastRequest{Steps: 3600, Step: seconds(1)}, testLimits()); err != nil || q.Rows != 55 {
		t.Errorf("got %+v, %v", q, err)
	}
}

func TestExtendLeaseCall(t *testing.T) {
	t.Parallel()
	h := serve(t, testConfig(), &fakeBackend{onExtend: func(tokens []raftfsm.Token, leases []int64) ([]int64, error) {
		ends := make([]int64, len(tokens))
		for i, token := range tokens {
			if token.ID != "stale" {
				ends[i] = 1000 + leases[i]
			}
		}
		return ends, nil
	}})
	token := func(id string) []byte { return raftfsm.Token{Namespace: "default", ID: id}.Append(nil) }
	resp, err := h.deliveries.ExtendLease(t.Context(), &carillonv1.ExtendLeaseRequest{Items: []*carillonv1.Extend{
		{Token: token("a"), Lease: durationpb.New(2 * time.Second)}, {Token: token("stale")}, {Token: token("b")},
	}})
	if err != nil || resp.Results[0].LeaseEnd.AsTime().UnixMilli() != 3000 || resp.Results[1].LeaseEnd != nil || resp.Results[2].LeaseEnd.AsTime().UnixMilli() != 1000 {
		t.Errorf("got %v, %v", resp, err)
	}
	for field, item := range map[string]*carillonv1.Extend{
		"items[0].token": {Token: []byte("x")}, "items.lease": {Token: token("a"), Lease: seconds(0.05)},
	} {
		_, err := h.deliveries.ExtendLease(t.Context(), &carillonv1.ExtendLeaseRequest{Items: []*carillonv1.Extend{item}})
		if info := infoOf(t, status.Convert(err)); info.Metadata["field"] != field {
			t.Errorf("%s: got %v", field, info)
		}
	}
}

// deadShards keeps dead letters as shards do: keys in order, pages cut at the limit, commands cut at a few letters.
type deadShards struct {
	letters [][]string // of each shard, sorted
	taken   map[string]bool
	most    int // letters of one command
}

func (d *deadShards) list(s int, q raftfsm.ListQuery) (raftfsm.ListPage, error) {
	var page raftfsm.ListPage
	for _, key := range d.letters[s] {
		if key <= q.After {
			continue
		}
		if len(page.Timers) == q.Limit {
			page.More = true
			break
		}
		page.Last = key
		page.Timers = append(page.Timers, raftfsm.Status{State: raftfsm.Dead, Record: &raftfsm.Record{
			Namespace: "\x00default", ID: key, Queue: "q", LastError: "no", Extra: &logv1.Extra{Dead: &logv1.Dead{Id: "id-" + key, Reason: 2, AtMs: 5, Attempts: 3}}}})
	}
	return page, nil
}

func (d *deadShards) redrive(s int, r *logv1.Redrive) (result raftfsm.Result) {
	keys := r.Keys
	if len(keys) == 0 {
		keys = slices.Clone(d.letters[s])
	}
	most := d.most
	if len(r.Keys) == 0 && int(r.Limit) < most {
		most = int(r.Limit)
	}
	for i, key := range keys {
		if i == most {
			result.Answer = raftfsm.AnswerMore
			break
		}
		item := raftfsm.Result{Key: key}
		at, found := slices.BinarySearch(d.letters[s], key)
		switch {
		case !found:
			item.Code = raftfsm.NotFound
		case d.taken[key]:
			item.Code = raftfsm.AlreadyExists
		default:
			d.letters[s] = slices.Delete(d.letters[s], at, at+1)
			result.Due++
		}
		result.Items = append(result.Items, item)
	}
	return result
}

func newDeadShards(each int) (*deadShards, *fakeBackend) {
	d := &deadShards{letters: make([][]string, 16), taken: map[string]bool{}, most: 7}
	for s := range d.letters {
		for i := range each {
			d.letters[s] = append(d.letters[s], fmt.Sprintf("%02d-%04d", s, i))
		}
	}
	backend := &fakeBackend{onShard: d.list}
	backend.onApply = func(_ context.Context, cmd *raftfsm.Command) Outcome {
		backend.mu.Lock()
		s := backend.shards[len(backend.shards)-1]
		backend.mu.Unlock()
		return Outcome{Result: d.redrive(s, cmd.GetRedrive())}
	}
	return d, backend
}

func TestListDeadLetters(t *testing.T) {
	t.Parallel()
	d, backend := newDeadShards(9)
	d.letters[0], d.letters[5], d.letters[15] = nil, nil, d.letters[15][:2]
	h := serve(t, testConfig(), backend)
	for _, limit := range []int32{1, 4, 9, 1000} {
		var got []string
		r := &carillonv1.ListDeadLettersRequest{Limit: limit}
		for {
			resp, err := h.deliveries.ListDeadLetters(t.Context(), r)
			if err != nil {
				t.Fatal(err)
			}
			for _, l := range resp.Letters {
				got = append(got, fmt.Sprintf("%d-%s", l.Shard, strings.TrimPrefix(l.Timer.Id, "id-")))
				if l.Key != got[len(got)-1] || l.Timer.Namespace != "default" || l.Reason != carillonv1.DeadReason_DEAD_REASON_REFUSED || l.Attempts != 3 || l.LastError != "no" {
					t.Fatalf("got %v", l)
				}
			}
			if r.Cursor = resp.NextCursor; r.Cursor == "" {
				break
			}
		}
		var want []string
		for s, keys := range d.letters {
			for _, key := range keys {
				want = append(want, fmt.Sprintf("%d-%s", s, key))
			}
		}
		if !slices.Equal(got, want) {
			t.Errorf("limit %d: got %d letters, want %d", limit, len(got), len(want))
		}
	}
	_, err := h.deliveries.ListDeadLetters(t.Context(), &carillonv1.ListDeadLettersRequest{Cursor: "16-x"})
	if info := infoOf(t, status.Convert(err)); info.Metadata["field"] != "cursor" {
		t.Errorf("got %v", info)
	}
}

// Letters are redriven by their keys, whatever a shard does at a time; what fails is named and stays.
func TestRedriveByKeys(t *testing.T) {
	t.Parallel()
	d, backend := newDeadShards(20)
	d.taken["03-0002"] = true
	h := serve(t, testConfig(), backend)
	r := &carillonv1.RedriveRequest{RequestId: "r", Keys: []string{"4-missing"}}
	for i := range 20 {
		r.Keys = append(r.Keys, fmt.Sprintf("3-03-%04d", i))
	}
	resp, err := h.deliveries.Redrive(t.Context(), r)
	if err != nil || resp.Redriven != 19 || len(resp.Failed) != 2 || resp.More || len(d.letters[3]) != 1 {
		t.Fatalf("got %v, %v", resp, err)
	}
	if f := resp.Failed; f[0].Key != "3-03-0002" || f[0].Error.Reason != "TIMER_ALREADY_EXISTS" || f[1].Key != "4-missing" || f[1].Error.Reason != "TIMER_NOT_FOUND" {
		t.Errorf("got %v", f)
	}
	ids := map[string]bool{}
	for i, cmd := range backend.applied() { // to one shard no request ID goes twice
		id := fmt.Sprint(backend.shards[i], string(cmd.GetRedrive().RequestId))
		if n := len(cmd.GetRedrive().RequestId); n == 0 || n > raftfsm.MaxRequestIDBytes || ids[id] {
			t.Errorf("request ID %q", id)
		}
		ids[id] = true
	}
	for field, r := range map[string]*carillonv1.RedriveRequest{
		"keys[0]": {Keys: []string{"x"}}, "keys[1]": {Keys: []string{"3-a", "3-a"}}, "queue": {Keys: []string{"3-a"}, Queue: "q"}, "keys": {Keys: make([]string, 1001)},
	} {
		_, err := h.deliveries.Redrive(t.Context(), r)
		if info := infoOf(t, status.Convert(err)); info.Metadata["field"] != field {
			t.Errorf("%s: got %v", field, info)
		}
	}
}

// A call that is repeated with its request ID sends each shard what it sent before, though the answers say less: they have no items.
func TestRedriveIsRepeatable(t *testing.T) {
	t.Parallel()
	d, backend := newDeadShards(10)
	d.taken["02-0001"] = true // so that shard 2 is asked in more parts
	first := backend.onApply
	remembered := map[string]raftfsm.Result{}
	backend.onApply = func(ctx context.Context, cmd *raftfsm.Command) Outcome {
		backend.mu.Lock()
		key := fmt.Sprint(backend.shards[len(backend.shards)-1], string(cmd.GetRedrive().RequestId))
		backend.mu.Unlock()
		if r, ok := remembered[key]; ok {
			return Outcome{Result: raftfsm.Result{Due: r.Due, Answer: r.Answer}}
		}
		o := first(ctx, cmd)
		remembered[key] = o.Result
		return o
	}
	h := serve(t, testConfig(), backend)
	for range 2 {
		if _, err := h.deliveries.Redrive(t.Context(), &carillonv1.RedriveRequest{RequestId: "r"}); err != nil {
			t.Fatal(err)
		}
	}
	for _, id := range []string{"15r", "3r"} { // what comes behind shard 2
		if remembered[id].Due == 0 {
			t.Errorf("%s was not sent", id)
		}
	}
	seen := map[string]int{}
	for i, cmd := range backend.applied() {
		seen[fmt.Sprint(backend.shards[i], string(cmd.GetRedrive().RequestId))]++
	}
	for id, n := range seen {
		if n == 1 && !strings.HasPrefix(id, "2") {
			t.Errorf("%s was sent in one call only", id)
		}
	}
}

// Without keys all are redriven, and those that cannot be do not hold up those behind them.
func TestRedriveAll(t *testing.T) {
	t.Parallel()
	d, backend := newDeadShards(70) // 1,120
	for i := range 10 {
		d.taken[fmt.Sprintf("00-%04d", i)] = true
	}
	h := serve(t, testConfig(), backend)
	total := int64(0)
	for calls := 1; ; calls++ {
		resp, err := h.deliveries.Redrive(t.Context(), &carillonv1.RedriveRequest{})
		if err != nil || resp.Redriven > 1000 {
			t.Fatalf("got %v, %v", resp, err)
		}
		total += resp.Redriven
		if !resp.More {
			break
		}
		if resp.Redriven == 0 || calls > 200 {
			t.Fatalf("after %d calls %d are redriven", calls, total)
		}
	}
	if left := len(slices.Concat(d.letters...)); total != 1110 || left != 10 {
		t.Errorf("%d redriven, %d left", total, left)
	}
}

// "@every" is a period in the words of cron, and kept as one: the log does not take both.
func TestEveryInCron(t *testing.T) {
	t.Parallel()
	r, err := readRepeat(&carillonv1.Repeat{Rule: &carillonv1.Repeat_Cron{Cron: "@every 1500ms"}, FixedDelay: true}, testLimits())
	if err != nil || r.log.EveryMs != 1500 || r.log.Cron != "" {
		t.Fatalf("got %v, %v", r.log, err)
	}
	if got := repeatOf(r.log).GetEvery().AsDuration(); got != 1500*time.Millisecond {
		t.Errorf("it is shown as %v", got)
	}
}
