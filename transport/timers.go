package transport

import (
	"context"
	"errors"
	"fmt"

	carillonv1 "github.com/carillon-timers/carillon/proto/carillon/v1"
	logv1 "github.com/carillon-timers/carillon/proto/carillonlog/v1"
	"github.com/carillon-timers/carillon/raftfsm"
	"github.com/carillon-timers/carillon/shard"
)

// timers serves carillon.v1.Timers.
type timers struct {
	carillonv1.UnimplementedTimersServer
	server *Server
}

func (t *timers) limits() limits {
	return limits{payload: t.server.config.MaxPayloadBytes, now: t.server.config.Now()}
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
	if err := checkScheduleBatch(r); err != nil {
		return nil, err
	}
	l := t.limits()
	outcomes := t.server.applyEach(ctx, len(r.Items), func(i int) (*raftfsm.Command, error) {
		return scheduleCommand(r.Items[i], l)
	})
	results := make([]*carillonv1.ScheduleResult, len(outcomes))
	for i, o := range outcomes {
		if o.Err != nil {
			results[i] = &carillonv1.ScheduleResult{Outcome: &carillonv1.ScheduleResult_Error{Error: itemErrorOf(o.Err)}}
			continue
		}
		timer := r.Items[i].Timer
		ok := scheduleResponse(o.Result, t.shardOf(timer.Namespace, timer.Id))
		results[i] = &carillonv1.ScheduleResult{Outcome: &carillonv1.ScheduleResult_Ok{Ok: ok}}
	}
	return &carillonv1.ScheduleBatchResponse{Results: results}, nil
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
	query := raftfsm.ListQuery{Namespace: namespaceOf(r.Namespace), Prefix: r.Prefix, After: r.Cursor, Limit: int(r.Limit)}
	if query.Limit == 0 {
		query.Limit = defaultPageItems
	}
	page, err := t.server.backend.List(ctx, query)
	if err != nil {
		return nil, err
	}
	resp := &carillonv1.ListResponse{}
	more, size := page.More, 0
	for _, status := range page.Timers {
		timer := timerStatus(status, t.shardOf(status.Record.Namespace, status.Record.ID))
		size += timer.SizeVT()
		if len(resp.Timers) > 0 && (size > maxMessageBytes || len(resp.Timers) == query.Limit) {
			more = true
			break
		}
		resp.Timers = append(resp.Timers, timer)
	}
	if n := len(resp.Timers); more && n > 0 {
		resp.NextCursor = resp.Timers[n-1].Timer.Id
	}
	return resp, nil
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
	if err := checkCancelBatch(r); err != nil {
		return nil, err
	}
	outcomes := t.server.applyEach(ctx, len(r.Items), func(i int) (*raftfsm.Command, error) {
		return cancelCommand(r.Items[i])
	})
	results := make([]*carillonv1.CancelResult, len(outcomes))
	for i, o := range outcomes {
		if o.Err != nil {
			results[i] = &carillonv1.CancelResult{Outcome: &carillonv1.CancelResult_Error{Error: itemErrorOf(o.Err)}}
			continue
		}
		results[i] = &carillonv1.CancelResult{Outcome: &carillonv1.CancelResult_Ok{Ok: cancelResponse(o.Result)}}
	}
	return &carillonv1.CancelBatchResponse{Results: results}, nil
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

func (s *Server) applyOne(ctx context.Context, cmd *raftfsm.Command) (raftfsm.Result, error) {
	outcome := s.apply(ctx, []*raftfsm.Command{cmd})[0]
	return outcome.Result, outcome.Err
}

// applyEach applies the commands that could be made, in their order; the others keep their own error.
func (s *Server) applyEach(ctx context.Context, n int, command func(i int) (*raftfsm.Command, error)) []Outcome {
	outcomes := make([]Outcome, n)
	cmds := make([]*raftfsm.Command, 0, n)
	places := make([]int, 0, n)
	for i := range n {
		cmd, err := command(i)
		if err != nil {
			outcomes[i].Err = err
			continue
		}
		cmds, places = append(cmds, cmd), append(places, i)
	}
	if len(cmds) == 0 {
		return outcomes
	}
	for i, outcome := range s.apply(ctx, cmds) {
		outcomes[places[i]] = outcome
	}
	return outcomes
}

// apply asks the backend and makes sure of what it promises: an outcome for each command, an error for
// each refusal.
func (s *Server) apply(ctx context.Context, cmds []*raftfsm.Command) []Outcome {
	outcomes := s.backend.Apply(ctx, cmds)
	if len(outcomes) != len(cmds) {
		panic(fmt.Sprintf("the backend answered %d of %d commands", len(outcomes), len(cmds)))
	}
	for i := range outcomes {
		o := &outcomes[i]
		if o.Err == nil {
			o.Err = shard.ErrOf(o.Result)
		}
		if o.Err == nil {
			continue
		}
		if revision, ok := errors.AsType[*shard.RevisionError](o.Err); ok && revision.Expected == 0 {
			o.Err = &shard.RevisionError{Expected: expectedRevision(cmds[i]), Actual: revision.Actual}
		}
	}
	return outcomes
}

// expectedRevision is what the client expected: the shard answers with the actual one alone.
func expectedRevision(cmd *raftfsm.Command) uint64 {
	switch kind := cmd.Kind.(type) {
	case *logv1.Command_Schedule:
		return kind.Schedule.ExpectedRevision
	case *logv1.Command_Cancel:
		return kind.Cancel.ExpectedRevision
	case *logv1.Command_Reschedule:
		return kind.Reschedule.ExpectedRevision
	}
	return 0
}
