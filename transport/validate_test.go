package transport

import (
	"context"
	"errors"
	"math"
	"slices"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	carillonv1 "github.com/carillon-timers/carillon/proto/carillon/v1"
	"github.com/carillon-timers/carillon/raftfsm"
	"github.com/carillon-timers/carillon/shard"
)

// invoke calls with our own codec on the client's side too: it sends texts that are not UTF-8 as they are.
func (h *harness) invoke(method string, request, response any) error {
	return h.conn.Invoke(context.Background(), method, request, response, grpc.ForceCodecV2(newCodec()))
}

var testNow = time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)

func testLimits() limits {
	return limits{payload: raftfsm.DefaultPayloadBytes, now: testNow, webhooks: testWebhooks(nil)}
}

// fieldOf is the field that an error names, with its kind; empty for nil.
func fieldOf(t *testing.T, err error) string {
	t.Helper()
	var (
		invalid *shard.InvalidError
		missing *shard.NotSupportedError
	)
	switch {
	case err == nil:
		return ""
	case errors.As(err, &invalid):
		if invalid.Value == "" || invalid.Limit == "" {
			t.Errorf("%v: the value or the limit is missing", err)
		}
		return invalid.Field
	case errors.As(err, &missing):
		return "not supported: " + missing.Field
	}
	t.Fatalf("an error of the wrong kind: %v", err)
	return ""
}

// scheduleCase changes a good request; field is what the error must name.
type scheduleCase struct {
	name, field string
	change      func(*carillonv1.ScheduleRequest)
}

func onTimer(change func(*carillonv1.Timer)) func(*carillonv1.ScheduleRequest) {
	return func(r *carillonv1.ScheduleRequest) { change(r.Timer) }
}

func onRetry(change func(*carillonv1.RetryPolicy)) func(*carillonv1.ScheduleRequest) {
	return func(r *carillonv1.ScheduleRequest) {
		r.Timer.Retry = &carillonv1.RetryPolicy{}
		change(r.Timer.Retry)
	}
}

func seconds(n float64) *durationpb.Duration {
	return durationpb.New(time.Duration(n * float64(time.Second)))
}

var timerCases = []scheduleCase{
	{"good", "", func(*carillonv1.ScheduleRequest) {}},
	{"no timer", "timer", func(r *carillonv1.ScheduleRequest) { r.Timer = nil }},
	{"namespace upper case", "namespace", onTimer(func(x *carillonv1.Timer) { x.Namespace = "Prod" })},
	{"namespace of 64 bytes", "namespace", onTimer(func(x *carillonv1.Timer) { x.Namespace = strings.Repeat("a", 64) })},
	{"namespace of 63 bytes", "", onTimer(func(x *carillonv1.Timer) { x.Namespace = strings.Repeat("a", 63) })},
	{"no time", "due", onTimer(func(x *carillonv1.Timer) { x.When = nil })},
	{"no target", "target", onTimer(func(x *carillonv1.Timer) { x.Target = nil })},
	{"empty queue", "target", onTimer(func(x *carillonv1.Timer) { x.Target = &carillonv1.Timer_Queue{} })},
	{"empty webhook", "target", onTimer(func(x *carillonv1.Timer) { x.Target = &carillonv1.Timer_Webhook{} })},
	{"long queue", "queue", onTimer(func(x *carillonv1.Timer) { x.Target = &carillonv1.Timer_Queue{Queue: strings.Repeat("q", 256)} })},
	{"queue with NUL", "queue", onTimer(func(x *carillonv1.Timer) { x.Target = &carillonv1.Timer_Queue{Queue: "a\x00"} })},
	{"largest payload", "", onTimer(func(x *carillonv1.Timer) { x.Payload = make([]byte, 65536) })},
	{"payload", "payload", onTimer(func(x *carillonv1.Timer) { x.Payload = make([]byte, 65537) })},
	{"content type", "content_type", onTimer(func(x *carillonv1.Timer) { x.ContentType = "\xff" })},
	{"header without key", "headers", onTimer(func(x *carillonv1.Timer) { x.Headers = map[string]string{"": "v"} })},
	{"header key", "headers", onTimer(func(x *carillonv1.Timer) { x.Headers = map[string]string{"\xff": "v"} })},
	{"label value", `labels["k"]`, onTimer(func(x *carillonv1.Timer) { x.Labels = map[string]string{"k": "\xff"} })},
	{"8 KiB of attributes", "", onTimer(func(x *carillonv1.Timer) {
		x.ContentType, x.Headers, x.Labels = "text", map[string]string{"a": strings.Repeat("h", 4093)}, map[string]string{"bc": strings.Repeat("l", 4092)}
	})},
	{"over 8 KiB of attributes", "headers", onTimer(func(x *carillonv1.Timer) {
		x.ContentType, x.Headers, x.Labels = "text", map[string]string{"a": strings.Repeat("h", 4093)}, map[string]string{"bc": strings.Repeat("l", 4093)}
	})},
}

var retryCases = []scheduleCase{
	{"shortest lease", "", onRetry(func(p *carillonv1.RetryPolicy) { p.Lease = seconds(0.1) })},
	{"lease a nanosecond short", "retry.lease", onRetry(func(p *carillonv1.RetryPolicy) { p.Lease = &durationpb.Duration{Nanos: 99_999_999} })},
	{"lease of zero", "retry.lease", onRetry(func(p *carillonv1.RetryPolicy) { p.Lease = seconds(0) })},
	{"longest lease", "", onRetry(func(p *carillonv1.RetryPolicy) { p.Lease = seconds(86400) })},
	{"lease a nanosecond long", "retry.lease", onRetry(func(p *carillonv1.RetryPolicy) { p.Lease = &durationpb.Duration{Seconds: 86400, Nanos: 1} })},
	{"back-off", "retry.initial_backoff", onRetry(func(p *carillonv1.RetryPolicy) { p.InitialBackoff = seconds(-1) })},
	{"max back-off below the initial one", "retry.max_backoff", onRetry(func(p *carillonv1.RetryPolicy) { p.InitialBackoff, p.MaxBackoff = seconds(2), seconds(1) })},
	{"multiplier below 1", "retry.multiplier", onRetry(func(p *carillonv1.RetryPolicy) { p.Multiplier = 0.5 })},
	{"multiplier no number", "retry.multiplier", onRetry(func(p *carillonv1.RetryPolicy) { p.Multiplier = math.NaN() })},
	{"multiplier infinite", "retry.multiplier", onRetry(func(p *carillonv1.RetryPolicy) { p.Multiplier = math.Inf(1) })},
	{"attempts", "", onRetry(func(p *carillonv1.RetryPolicy) { p.MaxAttempts = 1_000_000 })},
	{"too many attempts", "retry.max_attempts", onRetry(func(p *carillonv1.RetryPolicy) { p.MaxAttempts = 1_000_001 })},
	{"negative attempts", "retry.max_attempts", onRetry(func(p *carillonv1.RetryPolicy) { p.MaxAttempts = -1 })},
}

var otherCases = []scheduleCase{
	{"webhook", "", onTimer(func(x *carillonv1.Timer) { x.Target = &carillonv1.Timer_Webhook{Webhook: "https://example.com"} })},
	{"webhook at home", "webhook", onTimer(func(x *carillonv1.Timer) { x.Target = &carillonv1.Timer_Webhook{Webhook: "https://127.0.0.1/"} })},
	{"window", "", onTimer(func(x *carillonv1.Timer) { x.Window = seconds(86_400) })},
	{"long window", "window", onTimer(func(x *carillonv1.Timer) { x.Window = seconds(86_400.1) })},
	{"a window as long as the period", "", onTimer(func(x *carillonv1.Timer) {
		x.Window, x.Repeat = seconds(5), &carillonv1.Repeat{Rule: &carillonv1.Repeat_Every{Every: seconds(5)}}
	})},
	{"a window longer than the period", "window", onTimer(func(x *carillonv1.Timer) {
		x.Window, x.Repeat = seconds(6), &carillonv1.Repeat{Rule: &carillonv1.Repeat_Every{Every: seconds(5)}}
	})},
	{"negative window", "window", onTimer(func(x *carillonv1.Timer) { x.Window = seconds(-1) })},
	{"expiry", "", onTimer(func(x *carillonv1.Timer) { x.Expiry = timestamppb.New(testNow.Add(61 * time.Second)) })},
	{"expiry at the due time", "expiry", onTimer(func(x *carillonv1.Timer) { x.Expiry = timestamppb.New(testNow.Add(60 * time.Second)) })},
	{"expiry too far", "expiry", onTimer(func(x *carillonv1.Timer) { x.Expiry = timestamppb.New(testNow.AddDate(101, 0, 0)) })},
	{"at most once", "", onTimer(func(x *carillonv1.Timer) { x.Guarantee = carillonv1.Guarantee_GUARANTEE_AT_MOST_ONCE })},
	{"at most once, twice", "retry.max_attempts", func(r *carillonv1.ScheduleRequest) {
		r.Timer.Guarantee, r.Timer.Retry = carillonv1.Guarantee_GUARANTEE_AT_MOST_ONCE, &carillonv1.RetryPolicy{MaxAttempts: 2}
	}},
	{"at least once", "", onTimer(func(x *carillonv1.Timer) { x.Guarantee = carillonv1.Guarantee_GUARANTEE_AT_LEAST_ONCE })},
	{"unknown guarantee", "guarantee", onTimer(func(x *carillonv1.Timer) { x.Guarantee = 9 })},
	{"unknown if_exists", "if_exists", func(r *carillonv1.ScheduleRequest) { r.IfExists = 4 }},
	{"request ID of 65 bytes", "request_id", func(r *carillonv1.ScheduleRequest) { r.RequestId = strings.Repeat("r", 65) }},
	{"request ID of 64 bytes", "", func(r *carillonv1.ScheduleRequest) { r.RequestId = strings.Repeat("r", 64) }},
	{"negative revision", "expected_revision", func(r *carillonv1.ScheduleRequest) { r.ExpectedRevision = -1 }},
	{"revision without replace", "expected_revision", func(r *carillonv1.ScheduleRequest) { r.ExpectedRevision = 1 }},
	{"revision with replace", "", func(r *carillonv1.ScheduleRequest) {
		r.ExpectedRevision, r.IfExists = 1, carillonv1.IfExists_IF_EXISTS_REPLACE
	}},
}

// onRepeat changes a repeat of each ten minutes whose timer has no due time of its own.
func onRepeat(change func(*carillonv1.Repeat)) func(*carillonv1.ScheduleRequest) {
	return func(r *carillonv1.ScheduleRequest) {
		r.Timer.When, r.Timer.Repeat = nil, everyRepeat(10*time.Minute)
		change(r.Timer.Repeat)
	}
}

var repeatCases = []scheduleCase{
	{"repeat", "", onTimer(func(x *carillonv1.Timer) { x.Repeat = cronRepeat("0 9 * * *") })},
	{"repeat without a rule", "repeat", onTimer(func(x *carillonv1.Timer) { x.Repeat = &carillonv1.Repeat{} })},
	{"repeat without a due time", "", onRepeat(func(*carillonv1.Repeat) {})},
	{"repeat that has ended", "end", onRepeat(func(p *carillonv1.Repeat) { p.End = timestamppb.New(testNow) })},
	{"repeat due after its end", "delay", onTimer(func(x *carillonv1.Timer) {
		x.Repeat = everyRepeat(time.Second)
		x.Repeat.End = timestamppb.New(testNow)
	})},
	{"repeat due before its start", "due", onTimer(func(x *carillonv1.Timer) {
		x.When, x.Repeat = &carillonv1.Timer_Due{Due: timestamppb.New(testNow)}, everyRepeat(time.Second)
		x.Repeat.Start = timestamppb.New(testNow.Add(1))
	})},
	{"expiry before the first due time", "expiry", func(r *carillonv1.ScheduleRequest) {
		onRepeat(func(*carillonv1.Repeat) {})(r)
		r.Timer.Expiry = timestamppb.New(testNow.Add(10 * time.Minute))
	}},
	{"misfire", "misfire", onRepeat(func(p *carillonv1.Repeat) { p.Misfire = 4 })},
	{"catch-up", "", onRepeat(func(p *carillonv1.Repeat) { p.Misfire, p.MaxCatchUp = carillonv1.Misfire_MISFIRE_ALL, 1000 })},
	{"too much catch-up", "max_catch_up", onRepeat(func(p *carillonv1.Repeat) { p.Misfire, p.MaxCatchUp = carillonv1.Misfire_MISFIRE_ALL, 1001 })},
	{"catch-up of none", "max_catch_up", onRepeat(func(p *carillonv1.Repeat) { p.MaxCatchUp = 1 })},
	{"lateness", "", onRepeat(func(p *carillonv1.Repeat) { p.MaxLateness = seconds(1) })},
	{"no lateness", "max_lateness", onRepeat(func(p *carillonv1.Repeat) { p.MaxLateness = seconds(0) })},
	{"overlap", "overlap", onRepeat(func(p *carillonv1.Repeat) { p.Overlap = 4 })},
	{"overlap with a fixed delay", "overlap", onRepeat(func(p *carillonv1.Repeat) { p.FixedDelay, p.Overlap = true, carillonv1.Overlap_OVERLAP_ONE })},
	{"max count", "max_count", onRepeat(func(p *carillonv1.Repeat) { p.MaxCount = -1 })},
	{"children", "", childrenOf("x")},
	{"children of a tag", "", childrenOf("{a}" + strings.Repeat("b", 236))},
	{"children of a tag, too long", "id", childrenOf("{a}" + strings.Repeat("b", 237))},
	{"children of a long ID", "", childrenOf(strings.Repeat("b", 237))},
	{"children of a longer ID", "id", childrenOf(strings.Repeat("b", 238))},
	{"children of an open brace", "", childrenOf("a{b")},
	{"children of a closed brace", "id", childrenOf("a}b")},
	{"children of empty braces", "id", childrenOf("{}b")},
}

func childrenOf(id string) func(*carillonv1.ScheduleRequest) {
	return func(r *carillonv1.ScheduleRequest) {
		onRepeat(func(p *carillonv1.Repeat) { p.Overlap = carillonv1.Overlap_OVERLAP_ALLOW })(r)
		r.Timer.Id = id
	}
}

func TestScheduleChecks(t *testing.T) {
	t.Parallel()
	for _, c := range slices.Concat(timerCases, retryCases, otherCases, repeatCases) {
		r := &carillonv1.ScheduleRequest{Timer: goodTimer("x")}
		c.change(r)
		_, err := scheduleCommand(r, testLimits())
		if got := fieldOf(t, err); got != c.field {
			t.Errorf("%s: got %q (%v), want %q", c.name, got, err, c.field)
		}
	}
}

func TestOtherChecks(t *testing.T) {
	t.Parallel()
	minute := &carillonv1.RescheduleRequest_Delay{Delay: durationpb.New(time.Minute)}
	reschedule := func(r *carillonv1.RescheduleRequest) error { _, err := rescheduleCommand(r, testLimits()); return err }
	many := make([][]byte, MaxAnswers+1)
	for name, c := range map[string]struct {
		err   error
		field string
	}{
		"get":                 {checkGet(&carillonv1.GetRequest{Id: "x"}), ""},
		"get without ID":      {checkGet(&carillonv1.GetRequest{}), "id"},
		"cancel":              {checkChange("CancelRequest", &carillonv1.CancelRequest{Id: "x", ExpectedRevision: 3, RequestId: "r"}), ""},
		"cancel revision":     {checkChange("CancelRequest", &carillonv1.CancelRequest{Id: "x", ExpectedRevision: -3}), "expected_revision"},
		"cancel request":      {checkChange("CancelRequest", &carillonv1.CancelRequest{Id: "x", RequestId: "\xff"}), "request_id"},
		"reschedule":          {reschedule(&carillonv1.RescheduleRequest{Id: "x", When: minute}), ""},
		"reschedule no time":  {reschedule(&carillonv1.RescheduleRequest{Id: "x"}), "due"},
		"reschedule no ID":    {reschedule(&carillonv1.RescheduleRequest{When: minute}), "id"},
		"reschedule negative": {reschedule(&carillonv1.RescheduleRequest{Id: "x", When: &carillonv1.RescheduleRequest_Delay{Delay: durationpb.New(-1)}}), "delay"},
		"list":                {checkList(&carillonv1.ListRequest{Limit: 1000}), ""},
		"list limit":          {checkList(&carillonv1.ListRequest{Limit: 1001}), "limit"},
		"list negative limit": {checkList(&carillonv1.ListRequest{Limit: -1}), "limit"},
		"list prefix":         {checkList(&carillonv1.ListRequest{Prefix: strings.Repeat("p", 256)}), "prefix"},
		"list cursor":         {checkList(&carillonv1.ListRequest{Cursor: "\xff"}), "cursor"},
		"batch":               {checkScheduleBatch(&carillonv1.ScheduleBatchRequest{Items: make([]*carillonv1.ScheduleRequest, 1000)}, 0), ""},
		"batch of 1,001":      {checkScheduleBatch(&carillonv1.ScheduleBatchRequest{Items: make([]*carillonv1.ScheduleRequest, 1001)}, 0), "items"},
		"cancel batch":        {checkCancelBatch(&carillonv1.CancelBatchRequest{Items: make([]*carillonv1.CancelRequest, 1001)}, 0), "items"},
		"ack":                 {checkAck(&carillonv1.AckRequest{Tokens: many[:MaxAnswers]}), ""},
		"too many acks":       {checkAck(&carillonv1.AckRequest{Tokens: many}), "tokens"},
		"too many nacks":      {checkNack(&carillonv1.NackRequest{Nacks: make([]*carillonv1.Nack, MaxAnswers+1)}), "nacks"},
		"long token":          {checkWork(&carillonv1.WorkRequest{Acks: [][]byte{nil, make([]byte, 513)}}), "acks[1]"},
		"stream acks":         {checkWork(&carillonv1.WorkRequest{Acks: many}), "acks"},
		"stream nacks":        {checkWork(&carillonv1.WorkRequest{Nacks: make([]*carillonv1.Nack, MaxAnswers+1)}), "nacks"},
		"negative credits":    {checkWork(&carillonv1.WorkRequest{Credits: -1}), "credits"},
		"no start":            {checkWorkStart(nil), "start"},
		"no queue":            {checkWorkStart(&carillonv1.WorkStart{}), "queue"},
		"worker":              {checkWorkStart(&carillonv1.WorkStart{Queue: "q", Worker: strings.Repeat("w", 256)}), "worker"},
	} {
		if got := fieldOf(t, c.err); got != c.field {
			t.Errorf("%s: got %q (%v), want %q", name, got, c.err, c.field)
		}
	}
}

// A newer client's wish must not be dropped in silence: each message names its unknown field.
func TestUnknownFieldsAreRefused(t *testing.T) {
	t.Parallel()
	h := serve(t, testConfig(), &fakeBackend{})
	raw := protowire.AppendVarint(protowire.AppendTag(nil, 99, protowire.VarintType), 1)
	timer, policy := goodTimer("x"), goodTimer("x")
	timer.ProtoReflect().SetUnknown(raw)
	policy.Retry = &carillonv1.RetryPolicy{}
	policy.Retry.ProtoReflect().SetUnknown(raw)
	for _, c := range []struct {
		method, message string
		request         proto.Message
	}{
		{"Timers/Schedule", "ScheduleRequest", &carillonv1.ScheduleRequest{Timer: goodTimer("x")}},
		{"Timers/Schedule", "Timer", &carillonv1.ScheduleRequest{Timer: timer}},
		{"Timers/Schedule", "RetryPolicy", &carillonv1.ScheduleRequest{Timer: policy}},
		{"Timers/ScheduleBatch", "ScheduleBatchRequest", &carillonv1.ScheduleBatchRequest{}},
		{"Timers/Get", "GetRequest", &carillonv1.GetRequest{Id: "x"}},
		{"Timers/List", "ListRequest", &carillonv1.ListRequest{}},
		{"Timers/Cancel", "CancelRequest", &carillonv1.CancelRequest{Id: "x"}},
		{"Timers/CancelBatch", "CancelBatchRequest", &carillonv1.CancelBatchRequest{}},
		{"Timers/Reschedule", "RescheduleRequest", &carillonv1.RescheduleRequest{Id: "x"}},
		{"Timers/Pause", "PauseRequest", &carillonv1.PauseRequest{Id: "x"}},
		{"Timers/Resume", "ResumeRequest", &carillonv1.ResumeRequest{Id: "x"}},
		{"Timers/FireNow", "FireNowRequest", &carillonv1.FireNowRequest{Id: "x"}},
		{"Timers/Explain", "ExplainRequest", &carillonv1.ExplainRequest{Id: "x"}},
		{"Timers/Count", "CountRequest", &carillonv1.CountRequest{}},
		{"Timers/Preview", "PreviewRequest", &carillonv1.PreviewRequest{}},
		{"Deliveries/ExtendLease", "ExtendLeaseRequest", &carillonv1.ExtendLeaseRequest{}},
		{"Deliveries/ListDeadLetters", "ListDeadLettersRequest", &carillonv1.ListDeadLettersRequest{}},
		{"Deliveries/Redrive", "RedriveRequest", &carillonv1.RedriveRequest{}},
		{"Deliveries/Purge", "PurgeRequest", &carillonv1.PurgeRequest{}},
		{"Cluster/Forecast", "ForecastRequest", &carillonv1.ForecastRequest{}},
		{"Deliveries/Ack", "AckRequest", &carillonv1.AckRequest{}},
		{"Deliveries/Nack", "NackRequest", &carillonv1.NackRequest{}},
		{"Cluster/Status", "StatusRequest", &carillonv1.StatusRequest{}},
		{"Cluster/Members", "MembersRequest", &carillonv1.MembersRequest{}},
		{"Cluster/Shards", "ShardsRequest", &carillonv1.ShardsRequest{}},
	} {
		if c.message != "Timer" && c.message != "RetryPolicy" {
			c.request.ProtoReflect().SetUnknown(raw)
		}
		err := ErrorOf(StatusOf(h.invoke("/carillon.v1."+c.method, c.request, &carillonv1.GetResponse{})))
		var invalid *shard.InvalidError
		if !errors.As(err, &invalid) || invalid.Field != c.message || invalid.Value != "unknown field 99" {
			t.Errorf("%s: got %v", c.message, err)
		}
	}
}

func TestMoments(t *testing.T) {
	t.Parallel()
	limit := testNow.UnixMilli() + raftfsm.MaxAheadMillis
	for _, c := range []struct {
		due  *timestamppb.Timestamp
		want int64
		ok   bool
	}{
		{&timestamppb.Timestamp{Seconds: 10, Nanos: 0}, 10_000, true},
		{&timestamppb.Timestamp{Seconds: 10, Nanos: 1}, 10_001, true}, // up: never early
		{&timestamppb.Timestamp{Seconds: 10, Nanos: 999_999_999}, 11_000, true},
		{&timestamppb.Timestamp{}, 0, true},
		{&timestamppb.Timestamp{Seconds: -1, Nanos: 1}, -999, true}, // before 1970, but a time
		{timestamppb.New(time.Time{}), -62_135_596_800_000, true},
		{&timestamppb.Timestamp{Seconds: -62_135_596_801}, 0, false}, // year 0
		{&timestamppb.Timestamp{Nanos: -1}, 0, false},
		{&timestamppb.Timestamp{Nanos: 1_000_000_000}, 0, false},
		{timestamppb.New(time.UnixMilli(limit)), limit, true},
		{timestamppb.New(time.UnixMilli(limit).Add(1)), 0, false},
		{timestamppb.New(time.Date(9999, 12, 31, 23, 59, 59, 0, time.UTC)), 0, false},
		{&timestamppb.Timestamp{Seconds: math.MaxInt64}, 0, false},
		{&timestamppb.Timestamp{Seconds: math.MinInt64}, 0, false},
	} {
		if got, err := dueMillis("due", c.due, testNow); got != c.want || (err == nil) != c.ok {
			t.Errorf("due %v: got %d, %v, want %d, %v", c.due, got, err, c.want, c.ok)
		}
	}
	for _, c := range []struct {
		delay *durationpb.Duration
		want  int64
		ok    bool
	}{
		{&durationpb.Duration{}, 0, true},
		{&durationpb.Duration{Nanos: 1}, 1, true},
		{&durationpb.Duration{Seconds: 1, Nanos: 1_000_001}, 1002, true},
		{&durationpb.Duration{Seconds: raftfsm.MaxAheadMillis / 1000}, raftfsm.MaxAheadMillis, true},
		{&durationpb.Duration{Seconds: raftfsm.MaxAheadMillis / 1000, Nanos: 1}, 0, false},
		{&durationpb.Duration{Nanos: -1}, 0, false},
		{&durationpb.Duration{Seconds: -1}, 0, false},
		{&durationpb.Duration{Seconds: 1, Nanos: -1}, 0, false},
		{&durationpb.Duration{Nanos: math.MinInt32}, 0, false},
		{&durationpb.Duration{Nanos: math.MaxInt32}, 0, false},
		{&durationpb.Duration{Seconds: math.MaxInt64}, 0, false},
		{&durationpb.Duration{Seconds: math.MinInt64}, 0, false},
	} {
		if got, err := delayMillis("delay", c.delay); got != c.want || (err == nil) != c.ok {
			t.Errorf("delay %v: got %d, %v, want %d, %v", c.delay, got, err, c.want, c.ok)
		}
	}
	for _, ms := range []int64{0, 1, -1, -999, -1000, -1001, 1_700_000_000_123} {
		if got, want := moment(ms).AsTime(), time.UnixMilli(ms); !got.Equal(want) || moment(ms).CheckValid() != nil {
			t.Errorf("moment %d: got %v, want %v", ms, got, want)
		}
	}
}

func TestValuesInErrorsAreShortened(t *testing.T) {
	t.Parallel()
	err := checkName("id", strings.Repeat("é", 100_000), raftfsm.MaxIDBytes)
	var invalid *shard.InvalidError
	if !errors.As(err, &invalid) || len(invalid.Value) > 200 || !strings.HasSuffix(invalid.Value, "(200000 bytes)") {
		t.Errorf("got %v", err)
	}
}
