package shard

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/hashicorp/raft"
)

// ErrTransfer: leadership was not handed over; the shard goes on as before.
var ErrTransfer = errors.New("leadership was not transferred")

// Transfer hands leadership over to the node, or to the most up to date one if to is empty. It first stops proposing and
// firing: what comes waits, then is refused with *NotLeaderError, or goes on if the transfer fails (ErrTransfer). It ends with
// ctx, and within four election time-outs. For planned drains only: it is not a load balancer.
func (s *Shard) Transfer(ctx context.Context, to string) error {
	w := s.steward
	if !w.transfers.TryLock() {
		return fmt.Errorf("%w: another one is under way", ErrTransfer)
	}
	defer w.transfers.Unlock()
	r := w.reign.Load()
	if r == nil {
		return s.notLeader()
	}
	target, err := s.successor(to)
	if err != nil {
		return err
	}
	if !w.transferring.CompareAndSwap(false, true) {
		return fmt.Errorf("%w: the one before is not over", ErrTransfer)
	}
	limit, cancel := context.WithTimeout(ctx, 4*s.c.ElectionTimeout)
	defer cancel()
	if !s.proposer.pause(r.epoch) {
		w.transferring.Store(false)
		return s.notLeader()
	}
	if err = s.handOver(limit, r, target); err == nil {
		w.transferring.Store(false)
		s.log.Info("shard: leadership handed over", "epoch", r.epoch, "to", s.Leader())
		return nil
	}
	// Raft may refuse entries for a while yet. An entry that is applied shows that it is over.
	w.begun.Store(0)
	w.resuming.Store(true)
	s.proposer.again()
	w.signal()
	select {
	case <-r.ended:
		w.endTransfer()
	default:
	}
	return fmt.Errorf("%w: %w", ErrTransfer, err)
}

// successor finds the server to hand over to; nil for any.
func (s *Shard) successor(to string) (*raft.Server, error) {
	others := 0
	for _, server := range s.servers() {
		switch {
		case server.Suffrage != raft.Voter || string(server.ID) == s.c.Node:
		case string(server.Address) == to || string(server.ID) == to:
			return &server, nil
		default:
			others++
		}
	}
	if to != "" || others == 0 {
		return nil, fmt.Errorf("%w: no other voter %q", ErrTransfer, to)
	}
	return nil, nil
}

// handOver empties the window, then asks Raft and waits until the reign is over and the next leader is known.
func (s *Shard) handOver(ctx context.Context, r *reign, target *raft.Server) error {
	w := s.steward
	select {
	case <-s.proposer.drain():
	case <-r.ended:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	case <-s.stopping:
		return ErrUnavailable
	}
	select {
	case <-w.refusals: // of a transfer before
	default:
	}
	// The future is left alone: if Raft is shut down it may never resolve.
	if target == nil {
		s.raft.Load().LeadershipTransfer()
	} else {
		s.raft.Load().LeadershipTransferToServer(target.ID, target.Address)
	}
	select {
	case <-r.ended:
	case err := <-w.refusals:
		return err
	case <-ctx.Done():
		return ctx.Err()
	case <-s.stopping:
		return ErrUnavailable
	}
	tick := time.NewTicker(s.c.ElectionTimeout / 50)
	defer tick.Stop()
	for s.Leader() == "" {
		select {
		case <-tick.C:
		case <-ctx.Done():
			return nil
		case <-s.stopping:
			return nil
		}
	}
	return nil
}

// transferRefused notes that the successor could not be asked.
func (w *steward) transferRefused(err error) {
	select {
	case w.refusals <- err:
	default:
	}
}

// pause keeps what comes waiting; false if this replica does not lead under the epoch.
func (p *proposer) pause(epoch uint64) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.role != leading || p.epoch != epoch {
		return false
	}
	p.role = pausing
	return true
}
