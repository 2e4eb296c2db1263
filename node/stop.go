package node

import (
	"context"
	"errors"
	"sync"
	"time"
)

// Shares of the time that a stop may take.
const (
	tellLeaving    = 50 * time.Millisecond // for others to hear that this node leaves
	handOverShare  = 4                     // the hand-over may take a quarter of StopTimeout
	watchTransfers = 20 * time.Millisecond // how often the targets of a hand-over are looked at
	gossipShare    = 20                    // leaving gossip may take a twentieth
)

// stop ends the node in bounded time: not ready; no more clients; leaderships handed over; no more firing; Raft; gossip;
// peers; HTTP; the data folder is free. What does not stop in time is named in the error.
func (n *Node) stop(r running) error {
	ctx, cancel := context.WithTimeout(context.Background(), n.config.StopTimeout)
	defer cancel()
	n.stopping.Store(true)
	began := n.mono()
	var errs []error
	step := func(name string, do func() error) {
		start := n.mono()
		errs = append(errs, do())
		n.log.Debug("stopped", "step", name, "took", n.mono().Sub(start))
	}
	parts := func(parts ...*part) func() error {
		return func() error {
			var errs []error
			for _, p := range parts {
				p.cancel()
			}
			for _, p := range parts {
				errs = append(errs, p.stop(ctx))
			}
			return errors.Join(errs...)
		}
	}
	step("say so", func() error {
		n.gossip.tell(tellLeaving, func(m *nodeMeta) { m.Leaving = true })
		return nil
	})
	step("clients and webhooks", parts(r.clients, r.webhooks))
	r.seeds.cancel()
	step("background", parts(r.background...))
	step("hand over", func() error { n.handOver(ctx); return nil })
	step("loops", parts(r.loops...))
	step("replicas", parts(r.replicas))
	if d := n.dir.Load(); d != nil {
		step("directory", func() error { return d.close(ctx) })
	}
	// A Raft group that has not stopped may still use the log: then it stays open, and the folder locked, until the process ends.
	inUse := r.log != nil && errors.Join(errs...) != nil
	if r.log != nil && !inUse {
		step("segment log", parts(r.log))
		step("segment log's files", n.closeLog)
		inUse = errors.Join(errs...) != nil
	}
	step("gossip", func() error { return n.gossip.stop(n.config.StopTimeout / gossipShare) })
	step("seeds", parts(r.seeds)) // a seed that does not answer may have held it up
	step("peers", parts(r.peers))
	if r.http != nil {
		step("HTTP", parts(r.http))
	}
	if !inUse {
		step("folder", n.identity.close)
	}
	n.log.Info("node stopped", "took", n.mono().Sub(began))
	return errors.Join(errs...)
}

// transfer is one leadership on its way to another node.
type transfer struct {
	to     string
	cancel context.CancelFunc
}

// handOver gives all leaderships away, at once and in bounded time, to replicas on nodes that stay; one whose target goes
// away meanwhile is given up.
func (n *Node) handOver(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, n.config.StopTimeout/handOverShare)
	defer cancel()
	state, _ := n.fsm.look()
	var transfers []transfer
	var all sync.WaitGroup
	for _, r := range n.replicas.all() {
		open := r.open.Load()
		if open == nil || !open.Status().Leading {
			continue
		}
		to := n.stayingReplica(state, r.id)
		if to == "" {
			continue // nobody is there to take it
		}
		one, cancel := context.WithCancel(ctx)
		transfers = append(transfers, transfer{to, cancel})
		all.Go(func() {
			defer cancel()
			if err := open.Transfer(one, to); err != nil {
				n.log.Info("a leadership was not handed over", "shard", r.id, "to", to, "error", err)
			}
		})
	}
	done := make(chan struct{})
	var watch sync.WaitGroup
	watch.Go(func() { n.giveUp(transfers, done) })
	if d := n.dir.Load(); d != nil && n.othersStay() {
		d.handOver(ctx)
	}
	all.Wait()
	close(done)
	watch.Wait()
}

// stayingReplica is another node that holds the shard and is there to stay; empty if there is none.
func (n *Node) stayingReplica(state *clusterState, shard int) string {
	for _, node := range state.replicas(shard) {
		if node != n.config.ID && n.alive(node) {
			return node
		}
	}
	return ""
}

// giveUp cancels transfers to nodes that leave, until done is closed.
func (n *Node) giveUp(transfers []transfer, done <-chan struct{}) {
	tick := time.NewTicker(watchTransfers)
	defer tick.Stop()
	for {
		select {
		case <-tick.C:
		case <-done:
			return
		}
		for _, t := range transfers {
			if !n.alive(t.to) {
				t.cancel()
			}
		}
	}
}

// othersStay tells whether another node is there that stays.
func (n *Node) othersStay() bool {
	for id, p := range n.gossip.peers() {
		if id != n.config.ID && !p.Leaving {
			return true
		}
	}
	return false
}
