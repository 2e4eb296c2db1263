package node

import (
	"context"

	logv1 "github.com/carillon-timers/carillon/proto/carillonlog/v1"
)

// noteCaughtUp looks at the replicas that have not yet had all that their leaders have, since they were opened. Until then
// they do not count for what is written, and a second node that goes down can stop their shards: who restarts nodes one
// after the other waits for it.
func (n *Node) noteCaughtUp(ctx context.Context) {
	behind := map[string][]*replica{} // by leader
	for _, r := range n.replicas.all() {
		open := r.open.Load()
		if open == nil || r.caughtUp.Load() {
			continue
		}
		goal := r.goal.Load()
		switch status := open.Status(); {
		case status.Leading && status.Firing, goal > 0 && status.Applied >= goal:
			r.caughtUp.Store(true)
		case goal > 0:
		case status.Leader != "" && !status.Leading:
			behind[status.Leader] = append(behind[status.Leader], r)
		}
	}
	for leader, replicas := range behind {
		ctx, cancel := context.WithTimeout(ctx, gatherTimeout)
		report, err := n.askReport(ctx, leader)
		cancel()
		if err != nil {
			continue // it is asked again
		}
		for _, r := range replicas {
			r.goal.Store(appliedBy(report, r.id))
		}
	}
}

// appliedBy is how far a node had come with a shard when it reported; 0 if it does not hold it any more.
func appliedBy(report *logv1.NodeReport, shard int) uint64 {
	for _, r := range report.Replicas {
		if int(r.Shard) == shard {
			return r.Applied
		}
	}
	return 0
}
