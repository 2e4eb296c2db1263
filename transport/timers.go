package transport

import (
	"context"

	carillonv1 "github.com/carillon-timers/carillon/proto/carillon/v1"
	"github.com/carillon-timers/carillon/raftfsm"
)

// timers serves carillon.v1.Timers.
type timers struct {
	carillonv1.UnimplementedTimersServer
	server *Server
}

func (t *timers) limits() limits { return t.server.limits() }

func (s *Server) limits() limits {
	c := &s.config
	return limits{payload: c.MaxPayloadBytes, now: c.Now(), webhooks: c.Webhooks, webhookHeaders: c.WebhookHeaders}
}

func (t *timers) shardOf(namespace, id string) int {
	if n := t.server.backend.Shards(); n > 0 {
		return carillonv1.ShardOf(namespace, id, n)
	}
	return 0
}

func (t *timers) Schedule(ctx context.Context, r *carillonv1.ScheduleRequest) (*carillonv1.ScheduleResponse, error) {
	cmd, err := scheduleCommand(r, t.limits())
	if err != nil {
		return nil, err
	}
	result, err := t.server.applyOne(ctx, cmd)
	if err != nil {
		return nil, err
	}
	return scheduleResponse(result, t.shardOf(r.Timer.Namespace, r.Timer.Id)), nil
}

func (t *timers) ScheduleBatch(ctx context.Context, r *carillonv1.ScheduleBatchRequest) (*carillonv1.ScheduleBatchResponse, error) {
	if err := checkScheduleBatch(r, encodedSize(ctx, r)); err != nil {
		return nil, err
	}
	k := maker{limits: t.limits(), left: len(r.Items)}
	command := func(i int) (*raftfsm.Command, error) { return k.schedule(r.Items[i]) }
	if r.Atomic {
		return t.scheduleAll(ctx, r, command)
	}
	outcomes := t.server.applyEach(ctx, len(r.Items), command)
	if err := overloadOf(outcomes); err != nil {
		return nil, err
	}
	results := make([]*carillonv1.ScheduleResult, len(outcomes))
	var slab []scheduled
	for i := range outcomes {
		o := &outcomes[i]
		if o.Err != nil {
			results[i] = &carillonv1.ScheduleResult{Outcome: &carillonv1.ScheduleResult_Error{Error: itemErrorOf(o.Err)}}
			continue
		}
		timer := r.Items[i].Timer
		results[i] = piece(&slab, len(outcomes)-i).accepted(o.Result, t.shardOf(timer.Namespace, timer.Id))
	}
	return &carillonv1.ScheduleBatchResponse{Results: results}, nil
}

// scheduleAll schedules an atomic batch.
func (t *timers) scheduleAll(ctx context.Context, r *carillonv1.ScheduleBatchRequest, command func(i int) (*raftfsm.Command, error)) (*carillonv1.ScheduleBatchResponse, error) {
	err := checkAtomic(r.Items, func(item *carillonv1.ScheduleRequest) (string, string) {
		return item.GetTimer().GetNamespace(), item.GetTimer().GetId()
	})
	if err != nil {
		return nil, err
	}
	results, err := t.server.applyAll(ctx, len(r.Items), command)
	if err != nil {
		return nil, err
	}
	resp := &carillonv1.ScheduleBatchResponse{}
	for i, result := range results {
		timer := r.Items[i].Timer
		resp.Results = append(resp.Results, new(scheduled).accepted(result, t.shardOf(timer.Namespace, timer.Id)))
	}
	return resp, nil
}

func (t *timers) Get(ctx context.Context, r *carillonv1.GetRequest) (*carillonv1.GetResponse, error) {
	if err := checkGet(r); err != nil {
		return nil, err
	}
	status, err := t.server.backend.Get(ctx, namespaceOf(r.Namespace), r.Id)
	if err != nil {
		return nil, err
	}
	return &carillonv1.GetResponse{Timer: timerStatus(status, t.shardOf(r.Namespace, r.Id))}, nil
}

func (t *timers) List(ctx context.Context, r *carillonv1.ListRequest) (*carillonv1.ListResponse, error) {
	if err := checkList(r); err != nil {
		return nil, err
	}
	filter, err := readFilter(r.Filter)
	if err != nil {
		return nil, err
	}
	query := raftfsm.ListQuery{Namespace: namespaceOf(r.Namespace), Prefix: r.Prefix, After: r.Cursor, Limit: int(r.Limit), Filter: filter}
	if query.Limit == 0 {
		query.Limit = defaultPageItems
	}
	page, err := t.server.backend.List(ctx, query)
	if err != nil {
		return nil, err
	}
	resp := &carillonv1.ListResponse{}
	size := 0
	for _, status := range page.Timers {
		timer := timerStatus(status, t.shardOf(status.Record.Namespace, status.Record.ID))
		size += timer.SizeVT()
		if n := len(resp.Timers); n > 0 && (size > maxMessageBytes || n == query.Limit) {
			resp.NextCursor = resp.Timers[n-1].Timer.Id
			return resp, nil
		}
		resp.Timers = append(resp.Timers, timer)
	}
	if page.More {
		resp.NextCursor = page.Last
	}
	return resp, nil
}

// Count asks until all was looked at, as long as the call may last.
func (t *timers) Count(ctx context.Context, r *carillonv1.CountRequest) (*carillonv1.CountResponse, error) {
	if err := checkCountCall(r); err != nil {
		return nil, err
	}
	filter, err := readFilter(r.Filter)
	if err != nil {
		return nil, err
	}
	count, err := t.server.backend.Count(ctx, raftfsm.ListQuery{
		Namespace: namespaceOf(r.Namespace), Prefix: r.Prefix, Filter: filter, Count: true,
	})
	if err != nil {
		return nil, err
	}
	return &carillonv1.CountResponse{Count: count}, nil
}

func (t *timers) Cancel(ctx context.Context, r *carillonv1.CancelRequest) (*carillonv1.CancelResponse, error) {
	cmd, err := cancelCommand(r)
	if err != nil {
		return nil, err
	}
	result, err := t.server.applyOne(ctx, cmd)
	if err != nil {
		return nil, err
	}
	return cancelResponse(result), nil
}

func (t *timers) CancelBatch(ctx context.Context, r *carillonv1.CancelBatchRequest) (*carillonv1.CancelBatchResponse, error) {
	if err := checkCancelBatch(r, encodedSize(ctx, r)); err != nil {
		return nil, err
	}
	k := maker{left: len(r.Items)}
	command := func(i int) (*raftfsm.Command, error) { return k.cancel(r.Items[i]) }
	if r.Atomic {
		return t.cancelAll(ctx, r, command)
	}
	outcomes := t.server.applyEach(ctx, len(r.Items), command)
	if err := overloadOf(outcomes); err != nil {
		return nil, err
	}
	results := make([]*carillonv1.CancelResult, len(outcomes))
	var slab []cancelled
	for i := range outcomes {
		o := &outcomes[i]
		if o.Err != nil {
			results[i] = &carillonv1.CancelResult{Outcome: &carillonv1.CancelResult_Error{Error: itemErrorOf(o.Err)}}
			continue
		}
		results[i] = piece(&slab, len(outcomes)-i).answered(o.Result)
	}
	return &carillonv1.CancelBatchResponse{Results: results}, nil
}

// cancelAll cancels an atomic batch.
func (t *timers) cancelAll(ctx context.Context, r *carillonv1.CancelBatchRequest, command func(i int) (*raftfsm.Command, error)) (*carillonv1.CancelBatchResponse, error) {
	err := checkAtomic(r.Items, func(item *carillonv1.CancelRequest) (string, string) { return item.GetNamespace(), item.GetId() })
	if err != nil {
		return nil, err
	}
	results, err := t.server.applyAll(ctx, len(r.Items), command)
	if err != nil {
		return nil, err
	}
	resp := &carillonv1.CancelBatchResponse{}
	for _, result := range results {
		resp.Results = append(resp.Results, new(cancelled).answered(result))
	}
	return resp, nil
}

func (t *timers) Reschedule(ctx context.Context, r *carillonv1.RescheduleRequest) (*carillonv1.RescheduleResponse, error) {
	cmd, err := rescheduleCommand(r, t.limits())
	if err != nil {
		return nil, err
	}
	result, err := t.server.applyOne(ctx, cmd)
	if err != nil {
		return nil, err
	}
	return &carillonv1.RescheduleResponse{Due: moment(result.Due), Revision: int64(result.Revision)}, nil
}
