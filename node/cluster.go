package node

import (
	"context"
	"maps"
	"slices"
	"sync"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	carillonv1 "github.com/carillon-timers/carillon/proto/carillon/v1"
	logv1 "github.com/carillon-timers/carillon/proto/carillonlog/v1"
	"github.com/carillon-timers/carillon/transport"
)

// gatherTimeout is how long the other nodes may take to report; who is late is shown as unknown.
const gatherTimeout = 700 * time.Millisecond

// backend is what the client port needs of the node: the router, and the views of the cluster.
type backend struct {
	*router
	n *Node
}

var _ transport.Backend = (*backend)(nil)

// Shards is the cluster's shard count; 0 before the cluster is formed.
func (b *backend) Shards() int { return b.n.shards() }

// report is what this node knows of itself.
func (n *Node) report() *logv1.NodeReport {
	state, _ := n.fsm.look()
	report := &logv1.NodeReport{NodeId: n.config.ID, BootId: n.boot, MapVersion: state.Version}
	for _, r := range n.replicas.all() {
		p := &logv1.ReplicaReport{Shard: uint32(r.id)}
		if failed := r.failed.Load(); failed != nil {
			p.Failed = *failed
		}
		if open := r.open.Load(); open != nil {
			s := open.Status()
			p.Leader, p.Leading, p.Firing, p.Epoch = s.Leader, s.Leading, s.Firing, s.Epoch
			p.Applied, p.LastIndex, p.Pending, p.Overdue = s.Applied, s.LastIndex, int64(s.Pending), int64(s.Overdue)
		}
		report.Replicas = append(report.Replicas, p)
	}
	return report
}

// askReport asks one node for its report.
func (n *Node) askReport(ctx context.Context, node string) (*logv1.NodeReport, error) {
	if node == n.config.ID {
		return n.report(), nil
	}
	body, err := n.mux.Call(ctx, node, methodReport, directoryGroup, nil)
	if err != nil {
		return nil, fromRemote(err)
	}
	report := &logv1.NodeReport{}
	if err := report.UnmarshalVT(body); err != nil {
		return nil, err
	}
	return report, nil
}

// gather collects the reports of all members that gossip sees, within a short time.
func (n *Node) gather(ctx context.Context, state *clusterState) map[string]*logv1.NodeReport {
	ctx, cancel := context.WithTimeout(ctx, gatherTimeout)
	defer cancel()
	var mu sync.Mutex
	reports := map[string]*logv1.NodeReport{} // guarded by mu
	var all sync.WaitGroup
	for id := range state.Members {
		if _, seen := n.gossip.find(id); !seen && id != n.config.ID {
			continue
		}
		all.Go(func() {
			report, err := n.askReport(ctx, id)
			if err != nil {
				n.log.Debug("no report", "from", id, "error", err)
				return
			}
			mu.Lock()
			defer mu.Unlock()
			reports[id] = report
		})
	}
	all.Wait()
	return reports
}

// shardView is what the reports tell of one shard.
type shardView struct {
	// lead is the report of the leader: of those that say they lead the one with the greatest epoch; nil if none does.
	lead *logv1.ReplicaReport
	// leader is the node that leads; empty if it is not known.
	leader string
}

// shardViews finds the leader of each shard. What followers believe about a leader that did not report is not taken for
// true: its numbers would be made up.
func shardViews(shards int, reports map[string]*logv1.NodeReport) []shardView {
	views := make([]shardView, shards)
	for _, node := range slices.Sorted(maps.Keys(reports)) {
		for _, r := range reports[node].Replicas {
			if !r.Leading || int(r.Shard) >= shards {
				continue
			}
			if v := &views[r.Shard]; v.lead == nil || r.Epoch > v.lead.Epoch {
				v.lead, v.leader = r, node
			}
		}
	}
	return views
}

// Status is the cluster as this node sees it.
func (b *backend) Status(ctx context.Context) (*carillonv1.StatusResponse, error) {
	n := b.n
	state, _ := n.fsm.look()
	status := &carillonv1.StatusResponse{
		ClusterId: state.ClusterID, NodeId: n.config.ID, Version: n.config.Version, Shards: int32(state.Shards),
		Members: int32(len(state.Members)), MapVersion: int64(state.Version), Now: timestamppb.New(n.now()),
	}
	if !state.formed() {
		return status, nil
	}
	for id := range state.Members {
		if _, seen := n.gossip.find(id); seen {
			status.MembersAlive++
		}
	}
	firing := 0
	for _, v := range shardViews(state.Shards, n.gather(ctx, state)) {
		if v.lead == nil {
			continue
		}
		status.ShardsWithLeader++
		status.Pending += v.lead.Pending
		status.Overdue += v.lead.Overdue
		if v.lead.Firing {
			firing++
		}
	}
	status.Ready = firing == state.Shards
	return status, nil
}

// Members lists the nodes that the directory knows.
func (b *backend) Members(ctx context.Context) (*carillonv1.MembersResponse, error) {
	n := b.n
	state, _ := n.fsm.look()
	if !state.formed() {
		return nil, errNotFormed
	}
	leads := map[string]int32{}
	for _, v := range shardViews(state.Shards, n.gather(ctx, state)) {
		leads[v.leader]++
	}
	resp := &carillonv1.MembersResponse{MapVersion: int64(state.Version), Shards: int32(state.Shards)}
	for _, id := range state.memberIDs() {
		m := state.Members[id]
		p := &carillonv1.Member{
			Id: id, ClientAddr: m.Client, PeerAddr: m.Peer, GossipAddr: m.Gossip, HttpAddr: m.HTTPAddr, Version: m.Version, BootId: m.Boot,
			Leads: leads[id], Replicas: int32(len(state.shardsOf(id))), DirectoryVoter: m.Voter,
		}
		if live, ok := n.gossip.find(id); ok { // gossip is ahead of the directory after a restart
			p.Alive = true
			p.ClientAddr, p.PeerAddr, p.GossipAddr, p.HttpAddr = live.Client, live.Peer, live.Gossip, live.HTTP
			p.Version, p.BootId = live.Version, live.Boot
		}
		resp.Members = append(resp.Members, p)
	}
	return resp, nil
}

// ShardList lists the shards; what no leader has reported stays unknown: no leader, zeros.
func (b *backend) ShardList(ctx context.Context) (*carillonv1.ShardsResponse, error) {
	n := b.n
	state, _ := n.fsm.look()
	if !state.formed() {
		return nil, errNotFormed
	}
	resp := &carillonv1.ShardsResponse{MapVersion: int64(state.Version)}
	for id, v := range shardViews(state.Shards, n.gather(ctx, state)) {
		p := &carillonv1.Shard{Id: int32(id), Leader: v.leader, Replicas: state.replicas(id)}
		if v.lead != nil {
			p.Epoch, p.Pending, p.Overdue = int64(v.lead.Epoch), v.lead.Pending, v.lead.Overdue
			p.AppliedIndex, p.Firing = int64(v.lead.Applied), v.lead.Firing
		}
		resp.Shards = append(resp.Shards, p)
	}
	return resp, nil
}
