package transport

import (
	"context"

	carillonv1 "github.com/carillon-timers/carillon/proto/carillon/v1"
)

// cluster serves carillon.v1.Cluster.
type cluster struct {
	carillonv1.UnimplementedClusterServer
	server *Server
}

func (c *cluster) Status(ctx context.Context, r *carillonv1.StatusRequest) (*carillonv1.StatusResponse, error) {
	if err := known("StatusRequest", r); err != nil {
		return nil, err
	}
	return c.server.backend.Status(ctx)
}

func (c *cluster) Members(ctx context.Context, r *carillonv1.MembersRequest) (*carillonv1.MembersResponse, error) {
	if err := known("MembersRequest", r); err != nil {
		return nil, err
	}
	return c.server.backend.Members(ctx)
}

func (c *cluster) Shards(ctx context.Context, r *carillonv1.ShardsRequest) (*carillonv1.ShardsResponse, error) {
	if err := known("ShardsRequest", r); err != nil {
		return nil, err
	}
	return c.server.backend.ShardList(ctx)
}
