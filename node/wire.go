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
		results[i] = resultFromProto(p)
	}
	return results
}

func resultFromProto(p *logv1.Result) raftfsm.Result {
	r := raftfsm.Result{Code: raftfsm.Code(p.Code), Revision: p.Revision, Due: p.DueMs, Answer: p.Answer, Detail: p.Detail, Key: p.Key}
	for _, item := range p.Items {
		r.Items = append(r.Items, resultFromProto(item))
	}
	return r
}

func resultsToProto(results []raftfsm.Result) *logv1.ResultList {
	list := &logv1.ResultList{Results: make([]*logv1.Result, len(results))}
	for i, r := range results {
		list.Results[i] = resultToProto(r)
	}
	return list
}

func resultToProto(r raftfsm.Result) *logv1.Result {
	p := &logv1.Result{Code: uint32(r.Code), Revision: r.Revision, DueMs: r.Due, Answer: r.Answer, Detail: r.Detail, Key: r.Key}
	for _, item := range r.Items {
		p.Items = append(p.Items, resultToProto(item))
	}
	return p
}

func statusToProto(s raftfsm.Status) *logv1.TimerRead {
	p := &logv1.TimerRead{
		State: uint32(s.State), FinishedMs: s.FinishedAt, HandedMs: s.HandedAt, HandedEpoch: s.HandedEpoch, Fired: s.Fired,
	}
	for _, r := range s.Reigns {
		p.Reigns = append(p.Reigns, &logv1.Reign{Epoch: r.Epoch, Node: r.Node, BegunMs: r.Begun})
	}
	if r := s.Record; r != nil {
		p.Record = &logv1.Record{
			Timer: &logv1.Schedule{
				Namespace: r.Namespace, Id: r.ID, DueMs: r.Due, Queue: r.Queue, Payload: r.Payload, ContentType: r.ContentType,
				Headers: pairsToProto(r.Headers), Labels: pairsToProto(r.Labels), Extra: r.Extra,
				Retry: &logv1.RetryPolicy{
					LeaseMs: r.Retry.Lease, InitialBackoffMs: r.Retry.InitialBackoff, MaxBackoffMs: r.Retry.MaxBackoff,
					Multiplier: r.Retry.Multiplier, MaxAttempts: r.Retry.MaxAttempts,
				},
			},
			Accepted: r.Accepted, Revision: r.Revision, Attempt: r.Attempt, NextDueMs: r.NextDue, CreatedMs: r.Created, LastError: r.LastError,
		}
	}
	return p
}

func statusFromProto(p *logv1.TimerRead) raftfsm.Status {
	s := raftfsm.Status{
		State: raftfsm.State(p.State), FinishedAt: p.FinishedMs, HandedAt: p.HandedMs, HandedEpoch: p.HandedEpoch, Fired: p.Fired,
	}
	for _, r := range p.Reigns {
		s.Reigns = append(s.Reigns, raftfsm.Reign{Epoch: r.Epoch, Node: r.Node, Begun: r.BegunMs})
	}
	r, t := p.Record, p.Record.GetTimer()
	if t == nil {
		return s
	}
	s.Record = &raftfsm.Record{
		Namespace: t.Namespace, ID: t.Id, Queue: t.Queue, Payload: t.Payload, ContentType: t.ContentType,
		Headers: pairsFromProto(t.Headers), Labels: pairsFromProto(t.Labels), Extra: t.Extra,
		Retry: raftfsm.RetryPolicy{
			Lease: t.Retry.GetLeaseMs(), InitialBackoff: t.Retry.GetInitialBackoffMs(), MaxBackoff: t.Retry.GetMaxBackoffMs(),
			Multiplier: t.Retry.GetMultiplier(), MaxAttempts: t.Retry.GetMaxAttempts(),
		},
		Due: t.DueMs, NextDue: r.NextDueMs, Accepted: r.Accepted, Revision: r.Revision, Attempt: r.Attempt, Created: r.CreatedMs, LastError: r.LastError,
	}
	return s
}

func queryToProto(q raftfsm.ListQuery) *logv1.PageRead {
	return &logv1.PageRead{
		Namespace: q.Namespace, Prefix: q.Prefix, After: q.After, Limit: uint32(q.Limit), Filter: q.Filter, Count: q.Count, Dead: q.Dead,
		Look: uint32(q.Look),
	}
}

func queryFromProto(p *logv1.PageRead) raftfsm.ListQuery {
	return raftfsm.ListQuery{
		Namespace: p.Namespace, Prefix: p.Prefix, After: p.After, Limit: int(p.Limit), Filter: p.Filter, Count: p.Count, Dead: p.Dead,
		Look: int(p.Look),
	}
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
	page := raftfsm.ListPage{More: p.More, Last: p.Last, Count: p.Count}
	for _, t := range p.Timers {
		page.Timers = append(page.Timers, statusFromProto(t))
	}
	return page, nil
}

func pageToProto(page raftfsm.ListPage) *logv1.Page {
	p := &logv1.Page{More: page.More, Last: page.Last, Count: page.Count}
	for _, s := range page.Timers {
		p.Timers = append(p.Timers, statusToProto(s))
	}
	return p
}

func forecastToProto(rows []raftfsm.ForecastRow) *logv1.ForecastCounts {
	p := &logv1.ForecastCounts{}
	for _, r := range rows {
		p.Rows = append(p.Rows, &logv1.ForecastRow{
			Namespace: r.Namespace, Queue: r.Queue, Before: r.Before, Counts: r.Counts, After: r.After, Paused: r.Paused,
		})
	}
	return p
}

func forecastFromBytes(b []byte) ([]raftfsm.ForecastRow, error) {
	p := &logv1.ForecastCounts{}
	if err := p.UnmarshalVT(b); err != nil {
		return nil, fmt.Errorf("answer of a peer: %w", err)
	}
	var rows []raftfsm.ForecastRow
	for _, r := range p.Rows {
		rows = append(rows, raftfsm.ForecastRow{
			Namespace: r.Namespace, Queue: r.Queue, Before: r.Before, Counts: r.Counts, After: r.After, Paused: r.Paused,
		})
	}
	return rows, nil
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
