package transport

import (
	"slices"
	"strings"

	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	carillonv1 "github.com/carillon-timers/carillon/proto/carillon/v1"
	logv1 "github.com/carillon-timers/carillon/proto/carillonlog/v1"
	"github.com/carillon-timers/carillon/raftfsm"
	"github.com/carillon-timers/carillon/shard/executor"
)

// This file turns requests into commands of the log, and what the cluster keeps into answers.

// maker makes the commands of one call, many in one allocation.
type maker struct {
	limits    limits
	left      int // commands that are yet to be made, the next included
	schedules []scheduling
	cancels   []cancelling
	ids       []byte // where request IDs go
}

// scheduling is a Schedule command in one piece, cancelling a Cancel, completing a Complete.
type (
	scheduling struct {
		command  raftfsm.Command
		kind     logv1.Command_Schedule
		schedule logv1.Schedule
	}
	cancelling struct {
		command raftfsm.Command
		kind    logv1.Command_Cancel
		cancel  logv1.Cancel
	}
	completing struct {
		command  raftfsm.Command
		kind     logv1.Command_Complete
		complete logv1.Complete
	}
)

// slabItems is how many of them are allocated together: what keeps one of them keeps no more than these.
const slabItems = 32

// piece cuts one off what is left of a slab, which it makes if there is nothing left.
func piece[T any](slab *[]T, left int) *T {
	if len(*slab) == 0 {
		*slab = make([]T, min(max(left, 1), slabItems))
	}
	p := &(*slab)[0]
	*slab = (*slab)[1:]
	return p
}

func scheduleCommand(r *carillonv1.ScheduleRequest, l limits) (*raftfsm.Command, error) {
	k := maker{limits: l}
	return k.schedule(r)
}

func (k *maker) schedule(r *carillonv1.ScheduleRequest) (*raftfsm.Command, error) {
	if err := checkSchedule(r); err != nil {
		return nil, err
	}
	t := r.Timer
	w, err := readTimer(t, k.limits)
	if err != nil {
		return nil, err
	}
	p := piece(&k.schedules, k.left)
	k.left--
	p.command.Kind, p.kind.Schedule = &p.kind, &p.schedule
	s := &p.schedule
	s.Namespace, s.Id = namespaceOf(t.Namespace), t.Id
	s.DueMs, s.DelayMs, s.IsDelay, s.First = w.due, w.delay, w.isDelay, w.first
	s.Queue, s.Payload, s.ContentType = w.queue, t.Payload, t.ContentType
	s.Headers, s.Labels = sortedPairs(t.Headers), sortedPairs(t.Labels)
	s.Retry, s.Extra = w.retry, w.extra
	s.IfExists, s.ExpectedRevision, s.RequestId = ifExists(r.IfExists), uint64(r.ExpectedRevision), k.requestID(r.RequestId)
	return &p.command, nil
}

func cancelCommand(r *carillonv1.CancelRequest) (*raftfsm.Command, error) {
	var k maker
	return k.cancel(r)
}

func (k *maker) cancel(r *carillonv1.CancelRequest) (*raftfsm.Command, error) {
	if err := checkChange("CancelRequest", r); err != nil {
		return nil, err
	}
	p := piece(&k.cancels, k.left)
	k.left--
	p.command.Kind, p.kind.Cancel = &p.kind, &p.cancel
	c := &p.cancel
	c.Namespace, c.Id = namespaceOf(r.Namespace), r.Id
	c.ExpectedRevision, c.RequestId = uint64(r.ExpectedRevision), k.requestID(r.RequestId)
	return &p.command, nil
}

// requestID is the function of that name, with less allocations.
func (k *maker) requestID(s string) []byte {
	if s == "" || k.left <= 1 && cap(k.ids) < len(s) {
		return requestID(s)
	}
	if cap(k.ids)-len(k.ids) < len(s) {
		k.ids = make([]byte, 0, slabItems*raftfsm.MaxRequestIDBytes/2)
	}
	start := len(k.ids)
	k.ids = append(k.ids, s...)
	return k.ids[start:len(k.ids):len(k.ids)]
}

func rescheduleCommand(r *carillonv1.RescheduleRequest, l limits) (*raftfsm.Command, error) {
	if err := checkReschedule(r); err != nil {
		return nil, err
	}
	due, delay, err := when(r.GetDue(), r.GetDelay(), l)
	if err != nil {
		return nil, err
	}
	return &raftfsm.Command{Kind: &logv1.Command_Reschedule{Reschedule: &logv1.Reschedule{
		Namespace:        namespaceOf(r.Namespace),
		Id:               r.Id,
		DueMs:            due,
		DelayMs:          delay,
		IsDelay:          r.GetDelay() != nil,
		ExpectedRevision: uint64(r.ExpectedRevision),
		RequestId:        requestID(r.RequestId),
	}}}, nil
}

func completeCommand(t raftfsm.Token) *raftfsm.Command { return complete(&completing{}, t) }

func complete(p *completing, t raftfsm.Token) *raftfsm.Command {
	p.command.Kind, p.kind.Complete = &p.kind, &p.complete
	c := &p.complete
	c.Namespace, c.Id = t.Namespace, t.ID
	c.Revision, c.Attempt, c.TokenEpoch = t.Revision, t.Attempt, t.Epoch
	c.HandedMs = t.HandedOut
	return &p.command
}

// retryNow gives a delivery back with the timer's own back-off.
func retryNow(t raftfsm.Token, text string) *raftfsm.Command {
	return &raftfsm.Command{Kind: &logv1.Command_Retry{Retry: &logv1.Retry{
		Namespace: t.Namespace, Id: t.ID, Revision: t.Revision, Attempt: t.Attempt, TokenEpoch: t.Epoch, HandedMs: t.HandedOut,
		Error: cutText(text, raftfsm.MaxErrorBytes),
	}}}
}

// returnCommand gives back a delivery that was not begun.
func returnCommand(t raftfsm.Token) *raftfsm.Command {
	cmd := retryNow(t, "")
	cmd.GetRetry().Returned = true
	return cmd
}

// nackCommand says that a delivery failed.
func nackCommand(t raftfsm.Token, n *carillonv1.Nack) (*raftfsm.Command, error) {
	cmd := retryNow(t, n.Error)
	retry := cmd.GetRetry()
	retry.Dead = n.Dead
	if n.Delay == nil {
		return cmd, nil
	}
	ms, err := delayMillis("nacks.delay", n.Delay)
	if err != nil {
		return nil, err
	}
	retry.DelayMs, retry.HasDelay = ms, true
	return cmd, nil
}

// when gives the due time or the delay in milliseconds; one of the two is set.
func when(due *timestamppb.Timestamp, delay *durationpb.Duration, l limits) (dueMs, delayMs int64, err error) {
	if delay != nil {
		delayMs, err = delayMillis("delay", delay)
		return 0, delayMs, err
	}
	dueMs, err = dueMillis("due", due, l.now)
	return dueMs, 0, err
}

func namespaceOf(s string) string {
	if s == "" {
		return raftfsm.DefaultNamespace
	}
	return s
}

func requestID(s string) []byte {
	if s == "" {
		return nil
	}
	return []byte(s)
}

// ifExists gives the log's number of a policy.
func ifExists(p carillonv1.IfExists) uint32 {
	switch p {
	case carillonv1.IfExists_IF_EXISTS_REPLACE:
		return 1
	case carillonv1.IfExists_IF_EXISTS_KEEP:
		return 2
	}
	return 0
}

func sortedPairs(m map[string]string) []*logv1.Pair {
	if len(m) == 0 {
		return nil
	}
	pairs := make([]*logv1.Pair, 0, len(m))
	for k, v := range m {
		pairs = append(pairs, &logv1.Pair{Key: k, Value: v})
	}
	slices.SortFunc(pairs, func(a, b *logv1.Pair) int { return strings.Compare(a.Key, b.Key) })
	return pairs
}

func pairMap(pairs []raftfsm.Pair) map[string]string {
	if len(pairs) == 0 {
		return nil
	}
	m := make(map[string]string, len(pairs))
	for _, p := range pairs {
		m[p.Key] = p.Value
	}
	return m
}

func scheduleResponse(r raftfsm.Result, shard int) *carillonv1.ScheduleResponse {
	var s scheduled
	return s.fill(r, shard)
}

// scheduled is the result of one timer of a batch in one piece, cancelled that of a cancel.
type (
	scheduled struct {
		result   carillonv1.ScheduleResult
		ok       carillonv1.ScheduleResult_Ok
		response carillonv1.ScheduleResponse
		due      timestamppb.Timestamp
	}
	cancelled struct {
		result   carillonv1.CancelResult
		ok       carillonv1.CancelResult_Ok
		response carillonv1.CancelResponse
	}
)

func (s *scheduled) fill(r raftfsm.Result, shard int) *carillonv1.ScheduleResponse {
	s.response.Due = &s.due
	setMoment(&s.response.Due, r.Due)
	s.response.Revision, s.response.Kept, s.response.Shard = int64(r.Revision), r.Answer == raftfsm.AnswerKept, int32(shard)
	return &s.response
}

// accepted is the result of a timer that was accepted.
func (s *scheduled) accepted(r raftfsm.Result, shard int) *carillonv1.ScheduleResult {
	s.ok.Ok = s.fill(r, shard)
	s.result.Outcome = &s.ok
	return &s.result
}

func cancelResponse(r raftfsm.Result) *carillonv1.CancelResponse {
	return &carillonv1.CancelResponse{Outcome: carillonv1.CancelOutcome(r.Answer), Revision: int64(r.Revision)}
}

// answered is the result of a cancel that has an answer.
func (c *cancelled) answered(r raftfsm.Result) *carillonv1.CancelResult {
	c.response.Outcome, c.response.Revision = carillonv1.CancelOutcome(r.Answer), int64(r.Revision)
	c.ok.Ok = &c.response
	c.result.Outcome = &c.ok
	return &c.result
}

// timerStatus is a timer as clients see it. A dead letter is shown as the timer that it was.
func timerStatus(s raftfsm.Status, shard int) *carillonv1.TimerStatus {
	r := s.Record
	status := &carillonv1.TimerStatus{
		Timer: &carillonv1.Timer{
			Namespace:   r.Namespace,
			Id:          r.ID,
			When:        &carillonv1.Timer_Due{Due: moment(r.Due)},
			Payload:     r.Payload,
			ContentType: r.ContentType,
			Headers:     pairMap(r.Headers),
			Labels:      pairMap(r.Labels),
			Guarantee:   guaranteeOf(r),
		},
		State:     carillonv1.State(s.State),
		Revision:  int64(r.Revision),
		Attempt:   int32(r.Attempt),
		Created:   moment(r.Created),
		LastError: r.LastError,
		Shard:     int32(shard),
		Fired:     s.Fired,
	}
	setTarget(status.Timer, r.Queue, r.Extra.GetWebhook())
	setExtra(status, r.Extra)
	if s.FinishedAt != 0 { // a finished timer has no next delivery
		return status
	}
	if !r.Extra.GetPaused() {
		status.NextDue = moment(r.NextDue)
	}
	status.Timer.Retry = &carillonv1.RetryPolicy{
		Lease:          millis(r.Retry.Lease),
		InitialBackoff: millis(r.Retry.InitialBackoff),
		MaxBackoff:     millis(r.Retry.MaxBackoff),
		Multiplier:     r.Retry.Multiplier,
		MaxAttempts:    int32(r.Retry.MaxAttempts),
	}
	return status
}

// setExtra shows what few timers have.
func setExtra(status *carillonv1.TimerStatus, x *logv1.Extra) {
	if x == nil {
		return
	}
	t := status.Timer
	if x.Repeat != nil {
		t.Repeat = repeatOf(x.Repeat)
	}
	if x.WindowMs != 0 {
		t.Window = millis(x.WindowMs)
	}
	if x.ExpiryMs != 0 {
		t.Expiry = moment(x.ExpiryMs)
	}
	if x.Paused && x.Frozen {
		status.TimeLeft = millis(max(x.LeftMs, 0))
	}
}

func guaranteeOf(r *raftfsm.Record) carillonv1.Guarantee {
	if r.Extra.GetAtMostOnce() {
		return carillonv1.Guarantee_GUARANTEE_AT_MOST_ONCE
	}
	return carillonv1.Guarantee_GUARANTEE_AT_LEAST_ONCE
}

// deliveryOf writes a delivery as it travels over one that was sent; the token is appended to tokens, which it returns.
func deliveryOf(into *carillonv1.Delivery, d executor.Delivery, tokens []byte) []byte {
	r, start := d.Record, len(tokens)
	tokens = d.Token.Append(tokens)
	into.Namespace, into.Id, into.Queue = r.Namespace, r.ID, r.Queue
	into.Payload, into.ContentType = r.Payload, r.ContentType
	into.Headers, into.Labels = pairMap(r.Headers), pairMap(r.Labels)
	setMoment(&into.Due, r.Due)
	setMoment(&into.HandedOut, d.HandedOut)
	if into.Guarantee = guaranteeOf(r); into.Guarantee == carillonv1.Guarantee_GUARANTEE_AT_MOST_ONCE {
		into.LeaseEnd = nil
	} else {
		setMoment(&into.LeaseEnd, d.LeaseEnd)
	}
	into.Last = r.Retry.MaxAttempts > 0 && d.Token.Attempt+1 >= r.Retry.MaxAttempts
	into.Token = tokens[start:len(tokens):len(tokens)]
	into.Epoch, into.Revision = int64(d.Token.Epoch), int64(d.Token.Revision)
	into.Attempt, into.Shard = int32(d.Token.Attempt)+1, int32(d.Token.Shard)
	return tokens
}

func millis(ms int64) *durationpb.Duration {
	return &durationpb.Duration{Seconds: ms / millisPerSecond, Nanos: int32(ms%millisPerSecond) * nanosPerMilli}
}
