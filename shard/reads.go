package shard

import (
	"context"
	"fmt"
	"strings"
	"sync"

	"github.com/carillon-timers/carillon/raftfsm"
)

// reads makes reads linearizable. Readers join the next round; a round proves, once for all of them, that this replica
// still led after the last of them had come: a majority answers a message that is sent after that. All that was
// acknowledged before is applied here: what this replica acknowledged it had applied, and all before that came with the
// entry that opened the epoch.
type reads struct {
	s *Shard // set before sharing
	// wake holds at most one signal.
	wake chan struct{}

	mu sync.Mutex
	// next is the round that has not started yet; nil if nobody waits. Guarded by mu.
	next *round
}

// round is one proof. err is set before done is closed.
type round struct {
	done chan struct{}
	err  error
}

func newReads(s *Shard) *reads { return &reads{s: s, wake: make(chan struct{}, 1)} }

// join returns the round that starts next.
func (n *reads) join() *round {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.next == nil {
		n.next = &round{done: make(chan struct{})}
		select {
		case n.wake <- struct{}{}:
		default:
		}
	}
	return n.next
}

// run makes the rounds, until quit is closed.
func (n *reads) run(quit <-chan struct{}) {
	for {
		select {
		case <-n.wake:
		case <-quit:
			return
		}
		n.mu.Lock()
		r := n.next
		n.next = nil
		n.mu.Unlock()
		if r != nil {
			r.err = n.prove()
			close(r.done)
		}
	}
}

// prove proves that this replica leads now.
func (n *reads) prove() error {
	s := n.s
	r := s.steward.reign.Load()
	if r == nil {
		return s.notLeader()
	}
	from := s.d.Monotonic()
	ctx, cancel := context.WithTimeout(context.Background(), 2*s.c.ElectionTimeout)
	defer cancel()
	over := make(chan struct{})
	defer close(over)
	go func() {
		select {
		case <-r.ended:
		case <-s.stopping:
		case <-over:
		}
		cancel()
	}()
	// This makes Raft send heartbeats at once. The answer comes through the lease: the future may never resolve.
	s.raft.Load().VerifyLeader()
	err := s.lease.since(ctx, r.epoch, from)
	switch {
	case s.steward.reign.Load() != r:
		return s.notLeader()
	case err != nil:
		return fmt.Errorf("%w: no majority answers", ErrUnavailable)
	}
	return nil
}

// linearize waits until what is read then is at least as new as all that was acknowledged before the call.
func (s *Shard) linearize(ctx context.Context) error {
	if s.steward.reign.Load() == nil {
		return s.notLeader()
	}
	r := s.reads.join()
	select {
	case <-r.done:
		return r.err
	case <-ctx.Done():
		return ctx.Err()
	case <-s.stopping:
		return ErrUnavailable
	}
}

// Get is a linearizable read of one timer, ErrNotFound if it is not known. It ends with ctx. Only the leader answers
// (*NotLeaderError).
func (s *Shard) Get(ctx context.Context, namespace, id string) (raftfsm.Status, error) {
	if err := s.linearize(ctx); err != nil {
		return raftfsm.Status{}, err
	}
	status, found := s.fsm.Get(namespace, id)
	if !found {
		return raftfsm.Status{}, ErrNotFound
	}
	return status, nil
}

// List is a linearizable read: a page of timers that are not finished, their number, or a page of dead letters. It ends with ctx.
// Only the leader answers (*NotLeaderError).
func (s *Shard) List(ctx context.Context, q raftfsm.ListQuery) (raftfsm.ListPage, error) {
	if err := s.linearize(ctx); err != nil {
		return raftfsm.ListPage{}, err
	}
	return s.fsm.List(q), nil
}

// Forecast is a linearizable read: what falls due when, by queue. It ends with ctx. Only the leader answers (*NotLeaderError).
func (s *Shard) Forecast(ctx context.Context, q raftfsm.ForecastQuery) ([]raftfsm.ForecastRow, error) {
	if err := s.linearize(ctx); err != nil {
		return nil, err
	}
	rows, err := s.fsm.Forecast(q)
	if err != nil {
		field, limit, _ := strings.Cut(err.Error(), ": ")
		return nil, &InvalidError{Field: field, Value: "the value", Limit: limit}
	}
	return rows, nil
}

// ExtendLease moves the ends of leases to so many milliseconds from now; 0 means the timer's own lease. It returns the new ends,
// Unix milliseconds, in the order of the tokens: 0 for a token that is stale. The tokens are of this shard. Only the leader
// answers (*NotLeaderError). Nothing is written: after a failover the delivery is repeated all the same.
func (s *Shard) ExtendLease(ctx context.Context, tokens []raftfsm.Token, leases []int64) ([]int64, error) {
	switch {
	case len(tokens) != len(leases):
		return nil, &InvalidError{"lease", fmt.Sprintf("%d for %d tokens", len(leases), len(tokens)), "must be as many as tokens"}
	case ctx.Err() != nil:
		return nil, ctx.Err()
	case s.steward.reign.Load() == nil:
		return nil, s.notLeader()
	}
	return s.exec.Extend(tokens, leases), nil
}
