package transport

import (
	"context"

	carillonv1 "github.com/carillon-timers/carillon/proto/carillon/v1"
	"github.com/carillon-timers/carillon/raftfsm"
)

// Outcome is what became of one command: a result, or one of the errors of package shard.
type Outcome struct {
	raftfsm.Result
	Err error
}

// Backend is what the gRPC server needs of a node. All calls end with their context.
type Backend interface {
	// Apply routes each command to the leader of its timer's shard, joined with what else goes there, and answers in
	// the order of the commands.
	Apply(ctx context.Context, commands []*raftfsm.Command) []Outcome
	// Get is a linearizable read of one timer.
	Get(ctx context.Context, namespace, id string) (raftfsm.Status, error)
	// ApplyShard brings a command to the leader of a shard, whatever timers it names.
	ApplyShard(ctx context.Context, shard int, command *raftfsm.Command) Outcome
	// List reads a page over all shards. If there are more, Last is the ID behind which they begin.
	List(ctx context.Context, query raftfsm.ListQuery) (raftfsm.ListPage, error)
	// ListShard reads a page of one shard.
	ListShard(ctx context.Context, shard int, query raftfsm.ListQuery) (raftfsm.ListPage, error)
	// Count counts over all shards.
	Count(ctx context.Context, query raftfsm.ListQuery) (int64, error)
	// Forecast adds up over all shards (SumForecast).
	Forecast(ctx context.Context, query raftfsm.ForecastQuery) ([]raftfsm.ForecastRow, error)
	// ExtendLease gives deliveries more time, milliseconds from now; 0 means the timer's own lease. It returns the new
	// ends in the order of the tokens, Unix milliseconds; 0 for a token that is stale.
	ExtendLease(ctx context.Context, tokens []raftfsm.Token, leases []int64) ([]int64, error)
	// Shards is the number of shards of the cluster; 0 before the cluster is formed.
	Shards() int
	Status(ctx context.Context) (*carillonv1.StatusResponse, error)
	Members(ctx context.Context) (*carillonv1.MembersResponse, error)
	ShardList(ctx context.Context) (*carillonv1.ShardsResponse, error)
}
