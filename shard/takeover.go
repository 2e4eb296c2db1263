package shard

import (
	"context"
	"slices"
	"time"

	"github.com/hashicorp/raft"
)

// TakeOverTurn is how long one survivor waits for the one before it to take over. An election takes a few milliseconds; the
// first in turn loses one only if its log is shorter than that of the next.
const TakeOverTurn = 300 * time.Millisecond

// Campaigner is a transport that can make its own replica stand for election at once, as if a leader had told it to.
type Campaigner interface {
	// Campaign waits until Raft has taken it, or ctx ends.
	Campaign(ctx context.Context) error
}

// PeerLost says that the process of a node is gone (its connections broke and its port refuses): if it led this shard, the
// survivor whose turn it is stands for election now, instead of after the heartbeat timeout. It waits for its turn, and for
// nothing if another leads by then.
//
// A wrong guess costs an election and nothing else: Raft's rules decide who wins, and until the lease of the one that was
// thought dead has surely ended, a Cancel of what that one may still hand out answers FIRING (see raftfsm).
func (s *Shard) PeerLost(ctx context.Context, node string) {
	if r := s.raft.Load(); r != nil && TakeOver(ctx, r, s.d.Transport, node, s.c.ID) {
		s.log.Info("shard: stands for election, its leader's process is gone", "leader", node)
	}
}

// TakeOver is PeerLost for any Raft group. It reports whether this replica stood for election.
func TakeOver(ctx context.Context, r *raft.Raft, t raft.Transport, lost string, group uint32) bool {
	campaigner, ok := t.(Campaigner)
	if !ok || !ledBy(r, lost) {
		return false
	}
	configuration := r.GetConfiguration()
	if configuration.Error() != nil {
		return false
	}
	turn := turnOf(configuration.Configuration().Servers, t.LocalAddr(), raft.ServerAddress(lost), group)
	if turn < 0 {
		return false
	}
	if turn > 0 {
		wait := time.NewTimer(time.Duration(turn) * TakeOverTurn)
		defer wait.Stop()
		select {
		case <-wait.C:
		case <-ctx.Done():
			return false
		}
		// By now another has been elected, or stands.
		if address, _ := r.LeaderWithID(); address != "" && address != raft.ServerAddress(lost) {
			return false
		}
	}
	return r.State() == raft.Follower && campaigner.Campaign(ctx) == nil
}

func ledBy(r *raft.Raft, node string) bool {
	address, _ := r.LeaderWithID()
	return address == raft.ServerAddress(node)
}

// turnOf is this replica's place among the surviving voters, another one first for each group, so that the groups of a dead
// node spread; -1 if it has no vote.
func turnOf(servers []raft.Server, self, lost raft.ServerAddress, group uint32) int {
	var voters []raft.ServerAddress
	for _, server := range servers {
		if server.Suffrage == raft.Voter && server.Address != lost {
			voters = append(voters, server.Address)
		}
	}
	slices.Sort(voters)
	at := slices.Index(voters, self)
	if at < 0 {
		return -1
	}
	return (at + int(group)) % len(voters)
}
