package client

import (
	"context"
	"time"

	carillonv1 "github.com/carillon-timers/carillon/proto/carillon/v1"
)

// ClusterStatus is the cluster as the asked node sees it.
type ClusterStatus struct {
	ClusterID, NodeID, Version string
	Shards, ShardsWithLeader   int
	Members, MembersAlive      int
	// Pending counts the timers of the shards that have a leader; Overdue those of them whose due time has passed and
	// that no consumer holds.
	Pending, Overdue int64
	MapVersion       int64
	// Ready is true when every shard has a leader that fires.
	Ready bool
	Now   time.Time
}

// Member is a node.
type Member struct {
	ID                                         string
	ClientAddr, PeerAddr, GossipAddr, HTTPAddr string
	Alive                                      bool
	// Leads counts the shards that it leads, Replicas those that it holds.
	Leads, Replicas int
	Version, BootID string
	// DirectoryVoter is true if it votes in the directory group.
	DirectoryVoter bool
}

// Shard is a shard with its replicas.
type Shard struct {
	ID int
	// Leader is empty while the asked node knows none.
	Leader           string
	Epoch            int64
	Replicas         []string
	Pending, Overdue int64
	AppliedIndex     int64
	// Firing is true when the leader holds a lease and hands out.
	Firing bool
}

func memberOf(pb *carillonv1.Member) Member {
	return Member{
		ID:             pb.GetId(),
		ClientAddr:     pb.GetClientAddr(),
		PeerAddr:       pb.GetPeerAddr(),
		GossipAddr:     pb.GetGossipAddr(),
		HTTPAddr:       pb.GetHttpAddr(),
		Alive:          pb.GetAlive(),
		Leads:          int(pb.GetLeads()),
		Replicas:       int(pb.GetReplicas()),
		Version:        pb.GetVersion(),
		BootID:         pb.GetBootId(),
		DirectoryVoter: pb.GetDirectoryVoter(),
	}
}

// Status asks a node how the cluster stands.
func (c *Client) Status(ctx context.Context) (ClusterStatus, error) {
	var pb *carillonv1.StatusResponse
	err := c.read(ctx, "", "", func(ctx context.Context, e *endpoint) (err error) {
		pb, err = e.cluster.Status(ctx, &carillonv1.StatusRequest{})
		return err
	})
	if err != nil {
		return ClusterStatus{}, wrap("status", "", err)
	}
	return ClusterStatus{
		ClusterID:        pb.GetClusterId(),
		NodeID:           pb.GetNodeId(),
		Version:          pb.GetVersion(),
		Shards:           int(pb.GetShards()),
		ShardsWithLeader: int(pb.GetShardsWithLeader()),
		Members:          int(pb.GetMembers()),
		MembersAlive:     int(pb.GetMembersAlive()),
		Pending:          pb.GetPending(),
		Overdue:          pb.GetOverdue(),
		MapVersion:       pb.GetMapVersion(),
		Ready:            pb.GetReady(),
		Now:              timeOf(pb.GetNow()),
	}, nil
}

// Members lists the nodes.
func (c *Client) Members(ctx context.Context) ([]Member, error) {
	var pb *carillonv1.MembersResponse
	err := c.read(ctx, "", "", func(ctx context.Context, e *endpoint) (err error) {
		pb, err = e.cluster.Members(ctx, &carillonv1.MembersRequest{})
		return err
	})
	if err != nil {
		return nil, wrap("members", "", err)
	}
	members := make([]Member, 0, len(pb.GetMembers()))
	for _, m := range pb.GetMembers() {
		members = append(members, memberOf(m))
	}
	return members, nil
}

// Shards lists the shards.
func (c *Client) Shards(ctx context.Context) ([]Shard, error) {
	var pb *carillonv1.ShardsResponse
	err := c.read(ctx, "", "", func(ctx context.Context, e *endpoint) (err error) {
		pb, err = e.cluster.Shards(ctx, &carillonv1.ShardsRequest{})
		return err
	})
	if err != nil {
		return nil, wrap("shards", "", err)
	}
	shards := make([]Shard, 0, len(pb.GetShards()))
	for _, s := range pb.GetShards() {
		shards = append(shards, Shard{
			ID:           int(s.GetId()),
			Leader:       s.GetLeader(),
			Epoch:        s.GetEpoch(),
			Replicas:     s.GetReplicas(),
			Pending:      s.GetPending(),
			Overdue:      s.GetOverdue(),
			AppliedIndex: s.GetAppliedIndex(),
			Firing:       s.GetFiring(),
		})
	}
	return shards, nil
}
