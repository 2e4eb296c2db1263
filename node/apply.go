package node

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	logv1 "github.com/carillon-timers/carillon/proto/carillonlog/v1"
	"github.com/carillon-timers/carillon/raftfsm"
	"github.com/carillon-timers/carillon/shard"
	"github.com/carillon-timers/carillon/transport"
)

// This file brings the commands of a call to the leaders of their shards: those that are here take their shares from the call's
// own goroutine, and the call waits once for all of them; the others are asked side by side.

// Apply groups the commands by shard and runs the shards concurrently.
func (r *router) Apply(ctx context.Context, commands []*raftfsm.Command) []transport.Outcome {
	shards := r.shards()
	if shards == 0 {
		out := make([]transport.Outcome, len(commands))
		for i := range out {
			out[i].Err = errNotFormed
		}
		return out
	}
	return r.applyShares(ctx, sharesOf(commands, shards), len(commands))
}

// ApplyShard brings a command to the leader of a shard, whatever timers it names.
func (r *router) ApplyShard(ctx context.Context, s int, command *raftfsm.Command) transport.Outcome {
	if r.shards() == 0 {
		return transport.Outcome{Err: errNotFormed}
	}
	return r.applyShares(ctx, []share{{shard: s, commands: []*raftfsm.Command{command}, places: []int{0}}}, 1)[0]
}

// share is what a call wants of one shard.
type share struct {
	shard    int
	commands []*raftfsm.Command
	places   []int // of the commands in the call
	// abandon ends the wait for this node's replica, which has the share; nil if it has not, or the answer was looked at.
	abandon func(why error)
	// ended says that results and err are what the replica answered.
	ended   atomic.Bool
	results []raftfsm.Result
	err     error
}

// sharesOf groups the commands by shard. Each share has them in their order.
func sharesOf(commands []*raftfsm.Command, shards int) []share {
	if len(commands) == 1 {
		return []share{{shard: shardOf(commands[0], shards), commands: commands, places: []int{0}}}
	}
	of := make([]uint8, len(commands)) // MaxShards is 256
	var slot [MaxShards]int32          // how many commands a shard has; once it has a share, minus one minus the share's place
	n := 0
	for i, c := range commands {
		s := shardOf(c, shards)
		if slot[s] == 0 {
			n++
		}
		of[i] = uint8(s)
		slot[s]++
	}
	shares := make([]share, n)
	sorted, places := make([]*raftfsm.Command, len(commands)), make([]int, len(commands))
	n = 0
	for i, c := range commands {
		s := of[i]
		if k := slot[s]; k > 0 {
			shares[n].shard, shares[n].commands, shares[n].places = int(s), sorted[:0:k], places[:0:k]
			sorted, places = sorted[k:], places[k:]
			n++
			slot[s] = int32(-n)
		}
		p := &shares[-slot[s]-1]
		p.commands, p.places = append(p.commands, c), append(p.places, i)
	}
	return shares
}

// applying is one call under way. Its fields are the goroutine's that makes the call, but for left.
type applying struct {
	r      *router
	began  time.Time
	shares []share
	out    []transport.Outcome
	// left counts the shares that this node's replicas have not answered yet, and one more as long as they are given shares.
	left atomic.Int32
	// moved holds a signal when all have answered, or one that it could not do its share.
	moved chan struct{}
	// others are the shares that other goroutines see to.
	others sync.WaitGroup
}

func (r *router) applyShares(ctx context.Context, shares []share, n int) []transport.Outcome {
	a := &applying{r: r, began: r.now(), shares: shares, out: make([]transport.Outcome, n), moved: make(chan struct{}, 1)}
	a.left.Store(1)
	for i := range shares {
		switch p := &shares[i]; {
		case a.here(p), p.err != nil && a.settled(ctx, p):
		case len(shares) == 1:
			a.elsewhere(ctx, p)
		default:
			a.others.Go(func() { a.elsewhere(ctx, p) })
		}
	}
	a.left.Add(-1)
	a.wait(ctx)
	a.others.Wait()
	return a.out
}

// here gives a share to this node's replica if that leads, and says whether it has taken it; if not, err may be why.
func (a *applying) here(p *share) bool {
	r := a.r
	local := r.local(p.shard)
	if local == nil || r.pick(p.shard, nil) != r.self {
		return false
	}
	a.left.Add(1)
	abandon, err := local.Submit(p.commands, func(results []raftfsm.Result, err error) {
		if err == nil {
			r.proposals.Observe(r.now().Sub(a.began).Microseconds())
		}
		p.results, p.err = results, err
		p.ended.Store(true)
		if a.left.Add(-1) == 0 || err != nil {
			select {
			case a.moved <- struct{}{}:
			default:
			}
		}
	})
	if err != nil {
		a.left.Add(-1)
		p.err = err
		return false
	}
	p.abandon = abandon
	return true
}

// wait sees to the answers of this node's replicas as they come, until all have answered.
func (a *applying) wait(ctx context.Context) {
	over := ctx.Done()
	for {
		left := a.left.Load()
		for i := range a.shares {
			p := &a.shares[i]
			if p.abandon == nil || !p.ended.Load() {
				continue
			}
			p.abandon = nil
			if !a.settled(ctx, p) {
				a.others.Go(func() { a.elsewhere(ctx, p) })
			}
		}
		if left == 0 {
			return
		}
		select {
		case <-a.moved:
		case <-over:
			over = nil // they answer soon
			for i := range a.shares {
				if p := &a.shares[i]; p.abandon != nil {
					p.abandon(ctx.Err())
				}
			}
		}
	}
}

// settled sets the outcomes of a share by the answer of this node's replica; false if another node is to be asked.
func (a *applying) settled(ctx context.Context, p *share) bool {
	if !a.r.final(ctx, p.shard, a.r.self, p.err) {
		return false
	}
	p.set(a.out, p.results, p.err)
	return true
}

// elsewhere brings a share to its leader, wherever that is. This node's replica may have said already that it does not lead.
func (a *applying) elsewhere(ctx context.Context, p *share) {
	r := a.r
	var results []raftfsm.Result
	var body []byte
	err := r.route(ctx, p.shard, p.err, func(node string) (err error) {
		if node == r.self {
			results, err = r.propose(ctx, p.shard, p.commands)
			return err
		}
		if body == nil {
			if body, err = (&logv1.CommandList{Commands: p.commands}).MarshalVT(); err != nil {
				return err
			}
		}
		results, err = r.forward(ctx, node, p.shard, body, len(p.commands))
		return err
	})
	p.set(a.out, results, err)
}

// set sets the outcome of each of its commands.
func (p *share) set(out []transport.Outcome, results []raftfsm.Result, err error) {
	for k, i := range p.places {
		if err != nil {
			out[i].Err = err
		} else {
			out[i] = transport.Outcome{Result: results[k], Err: shard.ErrOf(results[k])}
		}
	}
}

func (r *router) propose(ctx context.Context, s int, commands []*raftfsm.Command) ([]raftfsm.Result, error) {
	local := r.local(s)
	if local == nil {
		return nil, &shard.NotLeaderError{}
	}
	began := r.now()
	results, err := local.Propose(ctx, commands)
	if err == nil {
		r.proposals.Observe(r.now().Sub(began).Microseconds())
	}
	return results, err
}

// forward is the one hop. When the connection breaks after the request has left, nobody knows the outcome.
func (r *router) forward(ctx context.Context, node string, s int, body []byte, n int) ([]raftfsm.Result, error) {
	r.forwarded.Add(1)
	answer, err := r.call(ctx, node, methodApply, uint32(s), body)
	if err != nil {
		return nil, writeError(err)
	}
	list := &logv1.ResultList{}
	if err := list.UnmarshalVT(answer); err != nil || len(list.Results) != n {
		return nil, fmt.Errorf("%w: the answer of %s has no meaning", shard.ErrUnknown, node)
	}
	return resultsFromProto(list), nil
}
