package transport

import (
	"context"

	carillonv1 "github.com/carillon-timers/carillon/proto/carillon/v1"
	logv1 "github.com/carillon-timers/carillon/proto/carillonlog/v1"
	"github.com/carillon-timers/carillon/raftfsm"
)

func (t *timers) Pause(ctx context.Context, r *carillonv1.PauseRequest) (*carillonv1.PauseResponse, error) {
	if err := checkChange("PauseRequest", r); err != nil {
		return nil, err
	}
	result, err := t.server.applyOne(ctx, &raftfsm.Command{Kind: &logv1.Command_Pause{Pause: &logv1.Pause{
		Namespace:        namespaceOf(r.Namespace),
		Id:               r.Id,
		Freeze:           r.Freeze,
		ExpectedRevision: uint64(r.ExpectedRevision),
		RequestId:        requestID(r.RequestId),
	}}})
	if err != nil {
		return nil, err
	}
	return &carillonv1.PauseResponse{Revision: int64(result.Revision)}, nil
}

func (t *timers) Resume(ctx context.Context, r *carillonv1.ResumeRequest) (*carillonv1.ResumeResponse, error) {
	if err := checkChange("ResumeRequest", r); err != nil {
		return nil, err
	}
	result, err := t.server.applyOne(ctx, &raftfsm.Command{Kind: &logv1.Command_Resume{Resume: &logv1.Resume{
		Namespace:        namespaceOf(r.Namespace),
		Id:               r.Id,
		ExpectedRevision: uint64(r.ExpectedRevision),
		RequestId:        requestID(r.RequestId),
	}}})
	if err != nil {
		return nil, err
	}
	return &carillonv1.ResumeResponse{Due: moment(result.Due), Revision: int64(result.Revision)}, nil
}

func (t *timers) FireNow(ctx context.Context, r *carillonv1.FireNowRequest) (*carillonv1.FireNowResponse, error) {
	if err := checkChange("FireNowRequest", r); err != nil {
		return nil, err
	}
	result, err := t.server.applyOne(ctx, &raftfsm.Command{Kind: &logv1.Command_Reschedule{Reschedule: &logv1.Reschedule{
		Namespace:        namespaceOf(r.Namespace),
		Id:               r.Id,
		Now:              true,
		ExpectedRevision: uint64(r.ExpectedRevision),
		RequestId:        requestID(r.RequestId),
	}}})
	if err != nil {
		return nil, err
	}
	return &carillonv1.FireNowResponse{Due: moment(result.Due), Revision: int64(result.Revision)}, nil
}
