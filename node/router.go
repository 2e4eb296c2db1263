package node

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync/atomic"
	"time"

	carillonv1 "github.com/carillon-timers/carillon/proto/carillon/v1"
	logv1 "github.com/carillon-timers/carillon/proto/carillonlog/v1"
	"github.com/carillon-timers/carillon/raftfsm"
	"github.com/carillon-timers/carillon/shard"
	"github.com/carillon-timers/carillon/shard/executor"
	"github.com/carillon-timers/carillon/transport/peer"
)

// errNotFormed answers all calls until the node belongs to a cluster and has heard its state from a majority.
var errNotFormed = fmt.Errorf("%w: the node is in no cluster yet, or has not reached a majority since its start (/readyz and its log say which)",
	shard.ErrUnavailable)

// Waits between two rounds of asking for a shard's leader.
const (
	routeWaitMin = 5 * time.Millisecond
	routeWaitMax = 80 * time.Millisecond
)

// localShard is the part of a shard that calls need.
type localShard interface {
	Leader() string
	Propose(ctx context.Context, cmds []*raftfsm.Command) ([]raftfsm.Result, error)
	Submit(cmds []*raftfsm.Command, done func([]raftfsm.Result, error)) (abandon func(error), err error)
	Get(ctx context.Context, namespace, id string) (raftfsm.Status, error)
	List(ctx context.Context, q raftfsm.ListQuery) (raftfsm.ListPage, error)
	Forecast(ctx context.Context, q raftfsm.ForecastQuery) ([]raftfsm.ForecastRow, error)
	ExtendLease(ctx context.Context, tokens []raftfsm.Token, leases []int64) ([]int64, error)
}

// router brings each call to the leader of its shard: here, or with one hop to the node that leads. What was not applied
// it tries again for a bounded time; what may have been applied it never sends twice.
type router struct {
	self   string
	limit  time.Duration // for how long a call that was not applied is tried again
	shards func() int
	// replicas are the nodes of a shard, preferred leader first; nil while the map is not known.
	replicas func(shard int) []string
	// local is the shard's replica on this node; nil if there is none that is open.
	local func(shard int) localShard
	alive func(node string) bool
	call  func(ctx context.Context, node string, method peer.Method, group uint32, body []byte) ([]byte, error)
	now   func() time.Time

	// leaders holds who last answered as the leader, or was named as one: a hint that is checked by using it.
	leaders [MaxShards]atomic.Pointer[string]

	forwarded, retried atomic.Int64
	proposals          executor.Histogram // how long the proposals to this node's own shards took
}

// read runs a read at the leader: a read that failed on the way has changed nothing, so it is tried again.
func (r *router) read(ctx context.Context, s int, here func(localShard) error, method peer.Method, body []byte, there func([]byte) error) error {
	return r.route(ctx, s, nil, func(node string) error {
		if node == r.self {
			if local := r.local(s); local != nil {
				return here(local)
			}
			return &shard.NotLeaderError{}
		}
		r.forwarded.Add(1)
		answer, err := r.call(ctx, node, method, uint32(s), body)
		if err != nil {
			return readError(err)
		}
		return there(answer)
	})
}

// Get is a linearizable read.
func (r *router) Get(ctx context.Context, namespace, id string) (raftfsm.Status, error) {
	shards := r.shards()
	if shards == 0 {
		return raftfsm.Status{}, errNotFormed
	}
	body, err := (&logv1.Read{Namespace: namespace, Id: id}).MarshalVT()
	if err != nil {
		return raftfsm.Status{}, err
	}
	var status raftfsm.Status
	err = r.read(ctx, carillonv1.ShardOf(namespace, id, shards), func(local localShard) (err error) {
		status, err = local.Get(ctx, namespace, id)
		return err
	}, methodGet, body, func(answer []byte) (err error) {
		status, err = statusFromBytes(answer)
		return err
	})
	return status, err
}

// route calls do with one node after another until one leads the shard: who leads as this node's replica knows, the last known
// leader, this node, the replicas in the order of the map. It goes on only after errors that say "not applied". own is such an
// error if this node's replica was asked before.
func (r *router) route(ctx context.Context, s int, own error, do func(node string) error) error {
	var end time.Time // set at the first failure: a call that succeeds at once reads no clock
	var last error = &shard.NotLeaderError{}
	var tried []string
	failed := func(node string, err error) {
		if end.IsZero() {
			end = r.now().Add(r.limit)
		}
		r.retried.Add(1)
		last, tried = err, append(tried, node)
	}
	if own != nil {
		failed(r.self, own)
	}
	wait := routeWaitMin
	for {
		node := r.pick(s, tried)
		if node == "" {
			if end.IsZero() {
				end = r.now().Add(r.limit)
			}
			if !r.now().Before(end) {
				return last
			}
			sleep(ctx, wait)
			if ctx.Err() != nil {
				return last
			}
			tried, wait = tried[:0], min(2*wait, routeWaitMax)
			continue
		}
		err := do(node)
		if r.final(ctx, s, node, err) {
			return err
		}
		failed(node, err)
	}
}

// final says whether the answer of a node ends the search for the leader of a shard, and notes what it tells of it.
func (r *router) final(ctx context.Context, s int, node string, err error) bool {
	if err == nil {
		r.learn(s, node)
		return true
	}
	if ctx.Err() != nil || errors.Is(err, shard.ErrUnknown) {
		r.forget(s, node) // it may hang: the next call asks another first
		return true
	}
	if notLeader, ok := errors.AsType[*shard.NotLeaderError](err); ok {
		r.forget(s, node)
		if notLeader.Leader != "" && notLeader.Leader != node {
			r.learn(s, notLeader.Leader)
		}
		return false
	}
	if errors.Is(err, shard.ErrUnavailable) {
		r.forget(s, node)
		return false
	}
	return true
}

// pick chooses whom to ask next; empty when all were tried. This node's own replica hears of a new leader first, while the noted
// one may hang and not say so.
func (r *router) pick(s int, tried []string) string {
	local := r.local(s)
	if local != nil {
		if node := local.Leader(); node != "" && !slices.Contains(tried, node) && (node == r.self || r.alive(node)) {
			return node
		}
	}
	if hint := r.leaders[s].Load(); hint != nil && !slices.Contains(tried, *hint) {
		return *hint
	}
	if !slices.Contains(tried, r.self) && local != nil {
		return r.self
	}
	dead := ""
	for _, node := range r.replicas(s) {
		switch {
		case slices.Contains(tried, node) || node == r.self:
		case r.alive(node):
			return node
		case dead == "":
			dead = node
		}
	}
	return dead
}

// learn notes who leads. A leader that is not the noted one is rare, so the string is copied only then.
func (r *router) learn(s int, node string) {
	if hint := r.leaders[s].Load(); hint == nil || *hint != node {
		r.leaders[s].Store(&node)
	}
}

// forget drops the hint if it names the node.
func (r *router) forget(s int, node string) {
	if hint := r.leaders[s].Load(); hint != nil && *hint == node {
		r.leaders[s].CompareAndSwap(hint, nil)
	}
}

// leader is the hint for a shard; empty if there is none.
func (r *router) leader(s int) string {
	if hint := r.leaders[s].Load(); hint != nil {
		return *hint
	}
	return ""
}

// named is a command about one timer.
type named interface {
	GetNamespace() string
	GetId() string
}

// shardOf finds the shard of a command's timer; those of an atomic batch share it.
func shardOf(c *raftfsm.Command, shards int) int {
	var timer named
	switch k := c.Kind.(type) {
	case *logv1.Command_Schedule:
		timer = k.Schedule
	case *logv1.Command_Cancel:
		timer = k.Cancel
	case *logv1.Command_Reschedule:
		timer = k.Reschedule
	case *logv1.Command_Complete:
		timer = k.Complete
	case *logv1.Command_Retry:
		timer = k.Retry
	case *logv1.Command_Pause:
		timer = k.Pause
	case *logv1.Command_Resume:
		timer = k.Resume
	case *logv1.Command_Atomic:
		if len(k.Atomic.Commands) > 0 {
			return shardOf(k.Atomic.Commands[0], shards)
		}
		return 0
	default: // what names no timer goes to a shard by its number
		return 0
	}
	return carillonv1.ShardOf(timer.GetNamespace(), timer.GetId(), shards)
}
