package node

import (
	"context"
	"fmt"
	"sync"

	logv1 "github.com/carillon-timers/carillon/proto/carillonlog/v1"
	"github.com/carillon-timers/carillon/raftfsm"
)

// ExtendLease asks the leader of each token's shard. A repetition does no harm, so it is routed like a read. A token of a
// shard that the cluster does not have is stale.
func (r *router) ExtendLease(ctx context.Context, tokens []raftfsm.Token, leases []int64) ([]int64, error) {
	shards := r.shards()
	if shards == 0 {
		return nil, errNotFormed
	}
	groups := map[int][]int{} // shard -> places in tokens
	for i, t := range tokens {
		if s := int(t.Shard); s < shards {
			groups[s] = append(groups[s], i)
		}
	}
	ends := make([]int64, len(tokens))
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	var all sync.WaitGroup
	for s, places := range groups {
		all.Go(func() {
			part, some := make([]raftfsm.Token, len(places)), make([]int64, len(places))
			for k, i := range places {
				part[k], some[k] = tokens[i], leases[i]
			}
			got, err := r.extendShard(ctx, s, part, some)
			if err != nil {
				cancel(err)
				return
			}
			for k, i := range places {
				ends[i] = got[k]
			}
		})
	}
	all.Wait()
	if cause := context.Cause(ctx); cause != nil {
		return nil, cause
	}
	return ends, nil
}

func (r *router) extendShard(ctx context.Context, s int, tokens []raftfsm.Token, leases []int64) ([]int64, error) {
	ask := &logv1.ExtendLease{LeaseMs: leases}
	for _, t := range tokens {
		ask.Tokens = append(ask.Tokens, t.Append(nil))
	}
	body, err := ask.MarshalVT()
	if err != nil {
		return nil, err
	}
	var ends []int64
	err = r.read(ctx, s, func(local localShard) (err error) {
		ends, err = local.ExtendLease(ctx, tokens, leases)
		return err
	}, methodExtend, body, func(answer []byte) error {
		p := &logv1.LeaseExtended{}
		if err := p.UnmarshalVT(answer); err != nil {
			return fmt.Errorf("answer of a peer: %w", err)
		}
		ends = p.EndMs
		return nil
	})
	if err == nil && len(ends) != len(tokens) {
		err = fmt.Errorf("answer of a peer: %d ends of %d leases", len(ends), len(tokens))
	}
	return ends, err
}

// extensionsFromBytes reads what extendShard has sent.
func extensionsFromBytes(body []byte) ([]raftfsm.Token, []int64, error) {
	p := &logv1.ExtendLease{}
	if err := p.UnmarshalVT(body); err != nil {
		return nil, nil, err
	}
	tokens := make([]raftfsm.Token, len(p.Tokens))
	for i, b := range p.Tokens {
		var err error
		if tokens[i], err = raftfsm.ParseToken(b); err != nil {
			return nil, nil, err
		}
	}
	return tokens, p.LeaseMs, nil
}
