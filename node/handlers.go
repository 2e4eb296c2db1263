package node

import (
	"context"

	logv1 "github.com/carillon-timers/carillon/proto/carillonlog/v1"
	"github.com/carillon-timers/carillon/raftfsm"
	"github.com/carillon-timers/carillon/shard"
)

// handle registers what this node answers to others. Calls of a shard are served here or refused with a hint: they are
// never sent on.
func (n *Node) handle() {
	n.mux.HandleJoin(methodPledge, n.onPledge)
	n.mux.HandleJoin(methodRegister, n.onRegister)
	n.mux.Handle(methodReport, n.onReport)
	n.mux.Handle(methodApply, n.onApply)
	n.mux.Handle(methodGet, n.onGet)
	n.mux.Handle(methodList, n.onList)
	n.mux.Handle(methodForecast, n.onForecast)
	n.mux.Handle(methodExtend, n.onExtend)
}

// served finds the shard for a call of another node.
func (n *Node) served(group uint32) (localShard, error) {
	if local := n.replicas.local(int(group)); local != nil {
		return local, nil
	}
	if group < MaxShards {
		if leader := n.router.leader(int(group)); leader != "" && leader != n.config.ID {
			return nil, &shard.NotLeaderError{Leader: leader, Addr: n.clientAddr(leader)}
		}
	}
	return nil, &shard.NotLeaderError{}
}

func (n *Node) onApply(ctx context.Context, _ string, group uint32, body []byte) ([]byte, error) {
	local, err := n.served(group)
	if err != nil {
		return nil, toRemote(err)
	}
	// Before the commands are decoded: callers that look for the leader in vain must not cost what they ask for.
	if leader := local.Leader(); leader == "" {
		return nil, toRemote(&shard.NotLeaderError{})
	} else if leader != n.config.ID {
		return nil, toRemote(&shard.NotLeaderError{Leader: leader, Addr: n.clientAddr(leader)})
	}
	list := &logv1.CommandList{}
	if err := list.UnmarshalVT(body); err != nil {
		return nil, toRemote(err)
	}
	results, err := local.Propose(ctx, list.Commands)
	if err != nil {
		return nil, toRemote(err)
	}
	return resultsToProto(results).MarshalVT()
}

func (n *Node) onGet(ctx context.Context, _ string, group uint32, body []byte) ([]byte, error) {
	local, err := n.served(group)
	if err != nil {
		return nil, toRemote(err)
	}
	r := &logv1.Read{}
	if err := r.UnmarshalVT(body); err != nil {
		return nil, toRemote(err)
	}
	status, err := local.Get(ctx, r.Namespace, r.Id)
	if err != nil {
		return nil, toRemote(err)
	}
	return statusToProto(status).MarshalVT()
}

func (n *Node) onList(ctx context.Context, _ string, group uint32, body []byte) ([]byte, error) {
	local, err := n.served(group)
	if err != nil {
		return nil, toRemote(err)
	}
	r := &logv1.PageRead{}
	if err := r.UnmarshalVT(body); err != nil {
		return nil, toRemote(err)
	}
	page, err := local.List(ctx, queryFromProto(r))
	if err != nil {
		return nil, toRemote(err)
	}
	return pageToProto(page).MarshalVT()
}

func (n *Node) onForecast(ctx context.Context, _ string, group uint32, body []byte) ([]byte, error) {
	local, err := n.served(group)
	if err != nil {
		return nil, toRemote(err)
	}
	r := &logv1.ForecastRead{}
	if err := r.UnmarshalVT(body); err != nil {
		return nil, toRemote(err)
	}
	rows, err := local.Forecast(ctx, raftfsm.ForecastQuery{
		Namespace: r.Namespace, Queue: r.Queue, From: r.FromMs, Step: r.StepMs, Steps: int(r.Steps), Rows: int(r.Rows),
	})
	if err != nil {
		return nil, toRemote(err)
	}
	return forecastToProto(rows).MarshalVT()
}

func (n *Node) onExtend(ctx context.Context, _ string, group uint32, body []byte) ([]byte, error) {
	local, err := n.served(group)
	if err != nil {
		return nil, toRemote(err)
	}
	tokens, leases, err := extensionsFromBytes(body)
	if err != nil {
		return nil, toRemote(err)
	}
	ends, err := local.ExtendLease(ctx, tokens, leases)
	if err != nil {
		return nil, toRemote(err)
	}
	return (&logv1.LeaseExtended{EndMs: ends}).MarshalVT()
}

func (n *Node) onReport(context.Context, string, uint32, []byte) ([]byte, error) {
	return n.report().MarshalVT()
}
