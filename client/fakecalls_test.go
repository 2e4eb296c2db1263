package client_test

import (
	"cmp"
	"context"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	carillonv1 "github.com/carillon-timers/carillon/proto/carillon/v1"
)

// heard notes a call and its request, and asks the hook.
func (n *node) heard(method, id, requestID string, request proto.Message) error {
	n.c.note(seen{n.id, method, id, requestID, 0, time.Now(), 1})
	n.c.mu.Lock()
	n.c.asked[method] = proto.Clone(request)
	n.c.mu.Unlock()
	return n.ask(n.c.call, method)
}

// last is the last request of a method.
func (c *cluster) last(method string) proto.Message {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.asked[method]
}

// atomicSchedule accepts all, or none if an ID is taken.
func (n *node) atomicSchedule(r *carillonv1.ScheduleBatchRequest) (*carillonv1.ScheduleBatchResponse, error) {
	first := r.GetItems()[0]
	if err := n.heard("schedule atomic", first.GetTimer().GetId(), first.GetRequestId(), r); err != nil {
		return nil, err
	}
	response := &carillonv1.ScheduleBatchResponse{}
	for i, item := range r.GetItems() {
		n.c.mu.Lock()
		taken := n.c.timers[item.GetTimer().GetId()] != nil && n.c.answers[item.GetRequestId()] == nil
		n.c.mu.Unlock()
		if taken && item.GetIfExists() <= carillonv1.IfExists_IF_EXISTS_FAIL {
			return nil, fail(codes.AlreadyExists, "TIMER_ALREADY_EXISTS", map[string]string{"item": strconv.Itoa(i)})
		}
	}
	for _, item := range r.GetItems() {
		response.Results = append(response.Results, &carillonv1.ScheduleResult{Outcome: &carillonv1.ScheduleResult_Ok{Ok: n.c.schedule(item)}})
	}
	return response, n.ask(n.c.reply, "schedule")
}

// atomicCancel cancels all, or none if one is not known.
func (n *node) atomicCancel(r *carillonv1.CancelBatchRequest) (*carillonv1.CancelBatchResponse, error) {
	first := r.GetItems()[0]
	if err := n.heard("cancel atomic", first.GetId(), first.GetRequestId(), r); err != nil {
		return nil, err
	}
	for i, item := range r.GetItems() {
		if n.timer(item.GetId()) == nil {
			return nil, fail(codes.NotFound, "TIMER_NOT_FOUND", map[string]string{"item": strconv.Itoa(i)})
		}
	}
	response := &carillonv1.CancelBatchResponse{}
	for _, item := range r.GetItems() {
		response.Results = append(response.Results, &carillonv1.CancelResult{Outcome: &carillonv1.CancelResult_Ok{Ok: n.c.cancel(item.GetId())}})
	}
	return response, n.ask(n.c.reply, "cancel")
}

func (n *node) timer(id string) *carillonv1.TimerStatus {
	n.c.mu.Lock()
	defer n.c.mu.Unlock()
	return n.c.timers[id]
}

// change applies f to a timer that is there.
func (n *node) change(method, id, requestID string, request proto.Message, f func(t *carillonv1.TimerStatus) error) error {
	if err := n.heard(method, id, requestID, request); err != nil {
		return err
	}
	t := n.timer(id)
	if t == nil {
		return fail(codes.NotFound, "TIMER_NOT_FOUND", nil)
	}
	n.c.mu.Lock()
	defer n.c.mu.Unlock()
	t.Revision++
	return f(t)
}

func (n *node) Pause(_ context.Context, r *carillonv1.PauseRequest) (*carillonv1.PauseResponse, error) {
	response := &carillonv1.PauseResponse{}
	return response, n.change("pause", r.GetId(), r.GetRequestId(), r, func(t *carillonv1.TimerStatus) error {
		if s := t.GetState(); s != carillonv1.State_STATE_PENDING && s != carillonv1.State_STATE_PAUSED {
			return fail(codes.FailedPrecondition, "TIMER_NOT_PENDING", map[string]string{"state": "CANCELLED"})
		}
		t.State = carillonv1.State_STATE_PAUSED
		if r.GetFreeze() {
			t.TimeLeft = durationpb.New(time.Until(t.GetNextDue().AsTime()))
		}
		response.Revision = t.GetRevision()
		return nil
	})
}

func (n *node) Resume(_ context.Context, r *carillonv1.ResumeRequest) (*carillonv1.ResumeResponse, error) {
	response := &carillonv1.ResumeResponse{}
	return response, n.change("resume", r.GetId(), r.GetRequestId(), r, func(t *carillonv1.TimerStatus) error {
		if t.GetState() != carillonv1.State_STATE_PAUSED {
			return fail(codes.FailedPrecondition, "TIMER_NOT_PAUSED", nil)
		}
		t.State = carillonv1.State_STATE_PENDING
		if t.TimeLeft != nil {
			t.NextDue, t.TimeLeft = timestamppb.New(time.Now().Add(t.TimeLeft.AsDuration())), nil
		}
		response.Due, response.Revision = t.GetNextDue(), t.GetRevision()
		return nil
	})
}

func (n *node) FireNow(_ context.Context, r *carillonv1.FireNowRequest) (*carillonv1.FireNowResponse, error) {
	response := &carillonv1.FireNowResponse{}
	return response, n.change("fire", r.GetId(), r.GetRequestId(), r, func(t *carillonv1.TimerStatus) error {
		if t.GetState() == carillonv1.State_STATE_PAUSED {
			return fail(codes.FailedPrecondition, "TIMER_PAUSED", nil)
		}
		t.NextDue = timestamppb.Now()
		response.Due, response.Revision = t.GetNextDue(), t.GetRevision()
		return nil
	})
}

func (n *node) Explain(_ context.Context, r *carillonv1.ExplainRequest) (*carillonv1.ExplainResponse, error) {
	if err := n.heard("explain", r.GetId(), "", r); err != nil {
		return nil, err
	}
	t := n.timer(r.GetId())
	if t == nil {
		return nil, fail(codes.NotFound, "TIMER_NOT_FOUND", nil)
	}
	return &carillonv1.ExplainResponse{Timer: proto.CloneOf(t), Events: []*carillonv1.Event{
		{At: t.GetCreated(), Kind: "accepted", Node: n.id, Epoch: 3, Text: "due in a while"},
	}}, nil
}

// List looks at looks timers for a page.
func (n *node) List(_ context.Context, r *carillonv1.ListRequest) (*carillonv1.ListResponse, error) {
	if err := n.heard("list", r.GetCursor(), "", r); err != nil {
		return nil, err
	}
	n.c.mu.Lock()
	defer n.c.mu.Unlock()
	response := &carillonv1.ListResponse{}
	limit := cmp.Or(int(r.GetLimit()), 100)
	looked := ""
	for i, id := range n.c.sorted(r.GetPrefix(), r.GetCursor()) {
		if len(response.Timers) == limit || n.c.looks > 0 && i == n.c.looks {
			response.NextCursor = looked
			break
		}
		looked = id
		if fits(n.c.timers[id], r.GetFilter()) {
			response.Timers = append(response.Timers, proto.CloneOf(n.c.timers[id]))
		}
	}
	return response, nil
}

func (n *node) Count(_ context.Context, r *carillonv1.CountRequest) (*carillonv1.CountResponse, error) {
	if err := n.heard("count", r.GetPrefix(), "", r); err != nil {
		return nil, err
	}
	n.c.mu.Lock()
	defer n.c.mu.Unlock()
	response := &carillonv1.CountResponse{}
	for _, id := range n.c.sorted(r.GetPrefix(), "") {
		if fits(n.c.timers[id], r.GetFilter()) {
			response.Count++
		}
	}
	return response, nil
}

// sorted returns the IDs of what is not finished, behind the cursor; called with mu held.
func (c *cluster) sorted(prefix, cursor string) []string {
	var ids []string
	for _, id := range slices.Sorted(maps.Keys(c.timers)) {
		switch c.timers[id].GetState() {
		case carillonv1.State_STATE_PENDING, carillonv1.State_STATE_FIRING, carillonv1.State_STATE_PAUSED:
			if strings.HasPrefix(id, prefix) && id > cursor {
				ids = append(ids, id)
			}
		}
	}
	return ids
}

func fits(t *carillonv1.TimerStatus, f *carillonv1.Filter) bool {
	for k, v := range f.GetLabels() {
		if t.GetTimer().GetLabels()[k] != v {
			return false
		}
	}
	return len(f.GetStates()) == 0 || slices.Contains(f.GetStates(), t.GetState())
}

func (n *node) Forecast(_ context.Context, r *carillonv1.ForecastRequest) (*carillonv1.ForecastResponse, error) {
	if err := n.heard("forecast", r.GetQueue(), "", r); err != nil {
		return nil, err
	}
	return &carillonv1.ForecastResponse{Start: r.GetFrom(), Step: r.GetStep(), Series: []*carillonv1.ForecastSeries{
		{Namespace: "default", Queue: "q", Before: 1, Counts: []int64{2, 3}, After: 4, Paused: 5},
	}}, nil
}

func (n *node) ListDeadLetters(_ context.Context, r *carillonv1.ListDeadLettersRequest) (*carillonv1.ListDeadLettersResponse, error) {
	if err := n.heard("dead", r.GetCursor(), "", r); err != nil {
		return nil, err
	}
	n.c.mu.Lock()
	defer n.c.mu.Unlock()
	response := &carillonv1.ListDeadLettersResponse{}
	limit := cmp.Or(int(r.GetLimit()), 100)
	for _, l := range n.c.letters {
		if l.GetKey() <= r.GetCursor() {
			continue
		}
		if len(response.Letters) == limit {
			response.NextCursor = response.Letters[len(response.Letters)-1].GetKey()
			break
		}
		response.Letters = append(response.Letters, l)
	}
	return response, nil
}

// takeLetters removes dead letters, at most 1,000, or those with the keys; the stuck ones stay.
func (c *cluster) takeLetters(keys []string) (done int64, failed []*carillonv1.LetterError, more bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	known := make(map[string]bool)
	var left []*carillonv1.DeadLetter
	looked := 0
	for _, l := range c.letters {
		known[l.GetKey()] = true
		switch {
		case len(keys) > 0 && !slices.Contains(keys, l.GetKey()):
			left = append(left, l)
		case looked == 1000:
			left, more = append(left, l), true
		case c.stuck[l.GetKey()]:
			looked++
			left, failed = append(left, l), append(failed, &carillonv1.LetterError{Key: l.GetKey(), Error: fault409()})
		default:
			looked++
			done++
		}
	}
	for _, key := range keys {
		if !known[key] {
			failed = append(failed, &carillonv1.LetterError{Key: key, Error: fault404()})
		}
	}
	c.letters = left
	return done, failed, more
}

func (n *node) Redrive(_ context.Context, r *carillonv1.RedriveRequest) (*carillonv1.RedriveResponse, error) {
	if err := n.heard("redrive", strconv.Itoa(len(r.GetKeys())), r.GetRequestId(), r); err != nil {
		return nil, err
	}
	done, failed, more := n.c.takeLetters(r.GetKeys())
	return &carillonv1.RedriveResponse{Redriven: done, Failed: failed, More: more}, nil
}

func (n *node) Purge(_ context.Context, r *carillonv1.PurgeRequest) (*carillonv1.PurgeResponse, error) {
	if err := n.heard("purge", strconv.Itoa(len(r.GetKeys())), r.GetRequestId(), r); err != nil {
		return nil, err
	}
	done, failed, more := n.c.takeLetters(r.GetKeys())
	return &carillonv1.PurgeResponse{Purged: done, Failed: failed, More: more}, nil
}
