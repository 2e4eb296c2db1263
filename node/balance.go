package node

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/carillon-timers/carillon/shard"
)

const (
	balanceEvery   = time.Second            // how often leaderships are looked at
	balanceLag     = 256                    // how many entries behind a target may be and still count as caught up
	balanceTimeout = 3 * time.Second        // bounds one hand-over
	balancePause   = 200 * time.Millisecond // between two hand-overs
	balanceAvoid   = 30 * time.Second       // how long a shard is left alone after a hand-over that did not work
)

// balance hands each shard that this node leads back to its preferred leader, once that has been there for a while and
// has caught up: one shard at a time.
func (n *Node) balance(ctx context.Context) error {
	for ctx.Err() == nil {
		sleep(ctx, balanceEvery)
		if n.stopping.Load() {
			continue
		}
		state, _ := n.fsm.look()
		for _, r := range n.replicas.all() {
			if ctx.Err() != nil {
				break
			}
			if n.balanceOne(ctx, state, r) {
				sleep(ctx, balancePause)
			}
		}
	}
	return nil
}

// balanceOne reports whether it tried a hand-over.
func (n *Node) balanceOne(ctx context.Context, state *clusterState, r *replica) bool {
	open, now := r.open.Load(), n.mono()
	if open == nil || !open.Status().Leading {
		r.since.Store(nil)
		return false
	}
	if r.since.Load() == nil {
		r.since.Store(&now)
	}
	nodes := state.replicas(r.id)
	if len(nodes) == 0 || nodes[0] == n.config.ID {
		return false
	}
	preferred, seen := n.gossip.find(nodes[0])
	patience := n.config.BalanceAfter
	avoid := r.avoid.Load()
	if !seen || preferred.Leaving || now.Sub(preferred.Since) < patience || now.Sub(*r.since.Load()) < patience || avoid != nil && now.Before(*avoid) {
		return false
	}
	err := n.handBack(ctx, open, r.id, preferred.ID)
	switch {
	case err == nil:
		n.log.Info("leadership handed back", "shard", r.id, "to", preferred.ID)
	case errors.Is(err, errNotCaughtUp):
		n.log.Debug("leadership stays", "shard", r.id, "preferred", preferred.ID, "error", err)
		return false
	default:
		until := n.mono().Add(balanceAvoid)
		r.avoid.Store(&until)
		n.log.Warn("leadership was not handed back", "shard", r.id, "to", preferred.ID, "error", err, "again", balanceAvoid)
	}
	return true
}

var errNotCaughtUp = errors.New("the preferred leader has not caught up")

// handBack transfers the leadership if the target has, in its log and in its state, what this node had applied before it
// asked.
func (n *Node) handBack(ctx context.Context, open *shard.Shard, id int, to string) error {
	ctx, cancel := context.WithTimeout(ctx, balanceTimeout)
	defer cancel()
	applied := open.Status().Applied
	report, err := n.askReport(ctx, to)
	if err != nil {
		return fmt.Errorf("%w: %w", errNotCaughtUp, err)
	}
	for _, r := range report.Replicas {
		if int(r.Shard) != id {
			continue
		}
		if r.Failed != "" || r.Applied+balanceLag < applied || r.LastIndex < applied || r.Applied == 0 {
			return fmt.Errorf("%w: it has %d entries and has applied %d, of %d", errNotCaughtUp, r.LastIndex, r.Applied, applied)
		}
		return open.Transfer(ctx, to)
	}
	return fmt.Errorf("%w: it has no replica of the shard", errNotCaughtUp)
}
