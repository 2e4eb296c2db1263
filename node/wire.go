package node

import (
	"fmt"

	logv1 "github.com/carillon-timers/carillon/proto/carillonlog/v1"
	"github.com/carillon-timers/carillon/raftfsm"
)

// How results, timers and pages travel between nodes.

func resultsFromProto(list *logv1.ResultList) []raftfsm.Result {
	results := make([]raftfsm.Result, len(list.Results))
	for i, p := range list.Results {
		results[i] = raftfsm.Result{Code: raftfsm.Code(p.Code), Revision: p.Revision, Due: p.DueMs, Answer: p.Answer, Detail: p.Detail}
	}
	return results
}

func resultsToProto(results []raftfsm.Result) *logv1.ResultList {
	list := &logv1.ResultList{Results: make([]*logv1.Result, len(results))}
	for i, r := range results {
		list.Results[i] = &logv1.Result{Code: uint32(r.Code), Revision: r.Revision, DueMs: r.Due, Answer: r.Answer, Detail: r.Detail}
	}
	return list
}

func statusToProto(s raftfsm.Status) *logv1.TimerRead {
	r := s.Record
	if r == nil {
		return &logv1.TimerRead{State: uint32(s.State), FinishedMs: s.FinishedAt}
	}
	return &logv1.TimerRead{
		State: uint32(s.State), FinishedMs: s.FinishedAt,
		Record: &logv1.Record{
			Timer: &logv1.Schedule{
				Namespace: r.Namespace, Id: r.ID, DueMs: r.Due, Queue: r.Queue, Payload: r.Payload, ContentType: r.ContentType,
				Headers: pairsToProto(r.Headers), Labels: pairsToProto(r.Labels),
				Retry: &logv1.RetryPolicy{
					LeaseMs: r.Retry.Lease, InitialBackoffMs: r.Retry.InitialBackoff, MaxBackoffMs: r.Retry.MaxBackoff, Multiplier: r.Retry.Multiplier,
				},
			},
			Accepted: r.Accepted, Revision: r.Revision, Attempt: r.Attempt, NextDueMs: r.NextDue, CreatedMs: r.Created, LastError: r.LastError,
		},
	}
}

func statusFromProto(p *logv1.TimerRead) raftfsm.Status {
	s := raftfsm.Status{State: raftfsm.State(p.State), FinishedAt: p.FinishedMs}
	r, t := p.Record, p.Record.GetTimer()
	if t == nil {
		return s
	}
	s.Record = &raftfsm.Record{
		Namespace: t.Namespace, ID: t.Id, Queue: t.Queue, Payload: t.Payload, ContentType: t.ContentType,
		Headers: pairsFromProto(t.Headers), Labels: pairsFromProto(t.Labels),
		Retry: raftfsm.RetryPolicy{
			Lease: t.Retry.GetLeaseMs(), InitialBackoff: t.Retry.GetInitialBackoffMs(),
			MaxBackoff: t.Retry.GetMaxBackoffMs(), Multiplier: t.Retry.GetMultiplier(),
		},
		Due: t.DueMs, NextDue: r.NextDueMs, Accepted: r.Accepted, Revision: r.Revision, Attempt: r.Attempt, Created: r.CreatedMs, LastError: r.LastError,
	}
	return s
}

func statusFromBytes(b []byte) (raftfsm.Status, error) {
	p := &logv1.TimerRead{}
	if err := p.UnmarshalVT(b); err != nil {
		return raftfsm.Status{}, fmt.Errorf("answer of a peer: %w", err)
	}
	return statusFromProto(p), nil
}

func pageFromBytes(b []byte) (raftfsm.ListPage, error) {
	p := &logv1.Page{}
	if err := p.UnmarshalVT(b); err != nil {
		return raftfsm.ListPage{}, fmt.Errorf("answer of a peer: %w", err)
	}
	page := raftfsm.ListPage{More: p.More}
	for _, t := range p.Timers {
		page.Timers = append(page.Timers, statusFromProto(t))
	}
	return page, nil
}

func pageToProto(page raftfsm.ListPage) *logv1.Page {
	p := &logv1.Page{More: page.More}
	for _, s := range page.Timers {
		p.Timers = append(p.Timers, statusToProto(s))
	}
	return p
}

func pairsToProto(pairs []raftfsm.Pair) []*logv1.Pair {
	var out []*logv1.Pair
	for _, p := range pairs {
		out = append(out, &logv1.Pair{Key: p.Key, Value: p.Value})
	}
	return out
}

func pairsFromProto(pairs []*logv1.Pair) []raftfsm.Pair {
	var out []raftfsm.Pair
	for _, p := range pairs {
		out = append(out, raftfsm.Pair{Key: p.Key, Value: p.Value})
	}
	return out
}
