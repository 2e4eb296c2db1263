package node

import (
	"context"
	"errors"
	"sync"
	"time"
)

// Shares of the time that a stop may take.
const (
	tellLeaving   = 50 * time.Millisecond // for others to hear that this node leaves
	handOverShare = 4                     // the hand-over may take a quarter of StopTimeout
	gossipShare   = 20                    // leaving gossip may take a twentieth
)

// stop ends the node in bounded time: not ready; no more clients; leaderships handed over; no more firing; Raft; gossip;
// peers; HTTP; the data folder is free. What does not stop in time is named in the error.
func (n *Node) stop(r running) error {
	ctx, cancel := context.WithTimeout(context.Background(), n.config.StopTimeout)
	defer cancel()
	n.stopping.Store(true)
	n.setNotReady("stopping")
	n.gossip.tell(tellLeaving, func(m *nodeMeta) { m.Leaving = true })
	errs := []error{r.clients.stop(ctx)}
	for _, p := range r.background {
		errs = append(errs, p.stop(ctx))
	}
	n.handOver(ctx)
	for _, p := range r.loops {
		errs = append(errs, p.stop(ctx))
	}
	errs = append(errs, r.replicas.stop(ctx))
	if d := n.dir.Load(); d != nil {
		errs = append(errs, d.close(ctx))
	}
	errs = append(errs, n.gossip.stop(n.config.StopTimeout/gossipShare), r.peers.stop(ctx))
	if r.http != nil {
		errs = append(errs, r.http.stop(ctx))
	}
	return errors.Join(append(errs, n.identity.close())...)
}

// handOver gives all leaderships away, at once and in bounded time, to replicas on nodes that stay.
func (n *Node) handOver(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, n.config.StopTimeout/handOverShare)
	defer cancel()
	state, _ := n.fsm.look()
	var all sync.WaitGroup
	for _, r := range n.replicas.all() {
		open := r.open.Load()
		if open == nil || !open.Status().Leading {
			continue
		}
		to := ""
		for _, node := range state.replicas(r.id) {
			if node != n.config.ID && n.alive(node) {
				to = node
				break
			}
		}
		if to == "" {
			continue // nobody is there to take it
		}
		all.Go(func() {
			if err := open.Transfer(ctx, to); err != nil {
				n.log.Info("a leadership was not handed over", "shard", r.id, "to", to, "error", err)
			}
		})
	}
	if d := n.dir.Load(); d != nil && n.othersAlive() {
		all.Go(func() { d.handOver(ctx) })
	}
	all.Wait()
}

// othersAlive tells whether another node is there that stays.
func (n *Node) othersAlive() bool {
	for id, p := range n.gossip.peers() {
		if id != n.config.ID && !p.Leaving {
			return true
		}
	}
	return false
}
