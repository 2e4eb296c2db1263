package transport

import (
	"context"
	"fmt"

	carillonv1 "github.com/carillon-timers/carillon/proto/carillon/v1"
	"github.com/carillon-timers/carillon/raftfsm"
)

func (d *deliveries) ExtendLease(ctx context.Context, r *carillonv1.ExtendLeaseRequest) (*carillonv1.ExtendLeaseResponse, error) {
	if err := checkExtendLease(r); err != nil {
		return nil, err
	}
	leases, err := readExtends("items", r.Items)
	if err != nil {
		return nil, err
	}
	tokens := make([]raftfsm.Token, len(r.Items))
	for i, item := range r.Items {
		if tokens[i], err = checkToken(fmt.Sprintf("items[%d].token", i), item.Token); err != nil {
			return nil, err
		}
	}
	resp := &carillonv1.ExtendLeaseResponse{}
	if len(tokens) == 0 {
		return resp, nil
	}
	ends, err := d.server.backend.ExtendLease(ctx, tokens, leases)
	if err != nil {
		return nil, err
	}
	for i, item := range r.Items {
		extended := &carillonv1.Extended{Token: item.Token}
		if ends[i] != 0 {
			extended.LeaseEnd = moment(ends[i])
		}
		resp.Results = append(resp.Results, extended)
	}
	return resp, nil
}

// extension is a lease that a worker wants longer.
type extension struct {
	token raftfsm.Token
	lease int64 // milliseconds; 0 means the timer's own
}

// extend hands the extensions of a message to the extenders of their shards: one that starts, or the next turn of one that runs.
// A token that is none of ours has no lease.
func (w *work) extend(items []*carillonv1.Extend) error {
	leases, err := readExtends("extends", items)
	if err != nil {
		return err
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	for i, item := range items {
		token, err := checkToken("extends", item.Token)
		if err != nil {
			w.server.counts.badTokens.Add(1)
			continue
		}
		lane := token.Shard % answerLanes
		waiting, runs := w.extensions[lane]
		w.extensions[lane] = append(waiting, extension{token, leases[i]})
		w.extends++
		if !runs {
			w.start(func() error { return w.extendAll(lane) })
		}
	}
	return nil
}

// extendAll extends leases of one shard until no more are wanted, as answerAll settles: a shard that hangs costs no other its
// leases. What cannot be extended now is dropped: the worker asks again before its
// lease ends, and after that others get the delivery.
func (w *work) extendAll(lane uint32) error {
	for {
		w.mu.Lock()
		waiting := w.extensions[lane]
		n := min(len(waiting), MaxAnswers)
		if n == 0 {
			delete(w.extensions, lane)
			w.mu.Unlock()
			return nil
		}
		batch := waiting[:n:n]
		w.extensions[lane] = waiting[n:]
		w.extends -= n
		w.mu.Unlock()
		w.extendBatch(batch)
		select {
		case w.room <- struct{}{}:
		default: // a signal is there already
		}
	}
}

func (w *work) extendBatch(batch []extension) {
	tokens, leases := make([]raftfsm.Token, len(batch)), make([]int64, len(batch))
	for i, x := range batch {
		tokens[i], leases[i] = x.token, x.lease
	}
	ctx, cancel := context.WithTimeout(w.server.root, w.server.config.SettleTimeout)
	defer cancel()
	ends, err := w.server.backend.ExtendLease(ctx, tokens, leases)
	if err != nil {
		w.server.config.Logger.Debug("leases are not extended", "worker", w.worker, "count", len(batch), "err", err)
		return
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	for i, token := range tokens {
		if _, ok := w.unanswered[token]; ok && ends[i] != 0 {
			w.unanswered[token] = ends[i]
		}
	}
}
