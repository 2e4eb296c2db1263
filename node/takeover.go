package node

import (
	"context"
	"sync"

	"github.com/carillon-timers/carillon/shard"
)

// takeOverLimit bounds what is done about a lost peer: by then the heartbeat timeouts have done it.
const takeOverLimit = 4 * shard.TakeOverTurn

// peerLost is told by the peer port that the process of a node is gone. The groups that it led need not wait for a heartbeat
// timeout: the survivor whose turn it is stands for election. A time-out proves nothing, and starts nothing.
func (n *Node) peerLost(lost, _ string, refused bool) {
	if !refused || n.stopping.Load() {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), takeOverLimit)
	defer cancel()
	var all sync.WaitGroup
	for _, r := range n.replicas.all() {
		if open := r.open.Load(); open != nil {
			all.Go(func() { open.PeerLost(ctx, lost) })
		}
	}
	if d := n.dir.Load(); d != nil {
		all.Go(func() { shard.TakeOver(ctx, d.raft, d.candidates, d.transport, lost, directoryGroup) })
	}
	all.Wait()
}
