package shard

import (
	"context"
	"slices"
	"strconv"
	"time"

	"github.com/hashicorp/raft"
)

// TakeOverTurn is how long one survivor waits for the one before it to take over, unless that asks for its vote in vain because its log
// is shorter. An election takes a few milliseconds.
const TakeOverTurn = 300 * time.Millisecond

// Campaigner is a transport that can make its own replica stand for election at once, as if a leader had told it to.
type Campaigner interface {
	// Campaign waits until Raft has taken it, or ctx ends.
	Campaign(ctx context.Context) error
}

// Candidates notes the candidates of a Raft group that stand without waiting for a time-out and whose log is shorter than this replica's,
// which therefore refuses its vote.
type Candidates struct {
	now     func() time.Time // set once
	shorter chan time.Time   // when the last one asked; holds at most one
}

// WatchCandidates begins to note them, until the Raft ends. now reads a monotonic clock.
func WatchCandidates(r *raft.Raft, now func() time.Time) *Candidates {
	c := &Candidates{now, make(chan time.Time, 1)}
	r.RegisterObserver(raft.NewObserver(nil, false, func(o *raft.Observation) bool {
		if vote, ok := o.Data.(raft.RequestVoteRequest); ok && vote.LeadershipTransfer && longer(o.Raft, &vote) {
			c.note(now())
		}
		return false
	}))
	return c
}

// note is called by one goroutine, Raft's loop.
func (c *Candidates) note(at time.Time) {
	select {
	case <-c.shorter:
	default:
	}
	c.shorter <- at
}

// longer says whether the log of this replica is longer than the candidate's, in the sense of elections.
func longer(r *raft.Raft, candidate *raft.RequestVoteRequest) bool {
	term, err := strconv.ParseUint(r.Stats()["last_log_term"], 10, 64)
	return err == nil && (term > candidate.LastLogTerm || term == candidate.LastLogTerm && r.LastIndex() > candidate.LastLogIndex)
}

// PeerLost says that the process of a node is gone (its connections broke and its port refuses): if it led this shard, the
// survivor whose turn it is stands for election now, instead of after the heartbeat timeout. It waits for its turn, and for
// nothing if another leads by then.
//
// A wrong guess costs an election and nothing else: Raft's rules decide who wins, and until the lease of the one that was
// thought dead has surely ended, a Cancel of what that one may still hand out answers FIRING (see raftfsm).
func (s *Shard) PeerLost(ctx context.Context, node string) {
	r, c := s.raft.Load(), s.candidates.Load()
	if r != nil && c != nil && TakeOver(ctx, r, c, s.d.Transport, node, s.c.ID) {
		s.log.Info("shard: stands for election, its leader's process is gone", "leader", node)
	}
}

// TakeOver is PeerLost for any Raft group. It reports whether this replica stood for election.
func TakeOver(ctx context.Context, r *raft.Raft, c *Candidates, t raft.Transport, lost string, group uint32) bool {
	campaigner, ok := t.(Campaigner)
	if !ok {
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
	if !ledBy(r, lost) {
		// One that was told before may have asked for a vote already, in vain: then no leader is known any more, and this replica is next,
		// even if it was told too late for a first turn.
		if !ledBy(r, "") || !c.fresh() {
			return false
		}
		turn--
	}
	for ; turn > 0; turn-- {
		if !c.await(ctx) {
			return false
		}
	}
	// By now another may have been elected.
	if !ledBy(r, lost) && !ledBy(r, "") {
		return false
	}
	return r.State() == raft.Follower && campaigner.Campaign(ctx) == nil
}

// fresh says whether a candidate has asked in vain less than a turn ago.
func (c *Candidates) fresh() bool {
	select {
	case at := <-c.shorter:
		return c.now().Sub(at) < TakeOverTurn
	default:
		return false
	}
}

// await waits for a turn, or until a candidate asks in vain. False if ctx ends before.
func (c *Candidates) await(ctx context.Context) bool {
	turn := time.NewTimer(TakeOverTurn)
	defer turn.Stop()
	for {
		select {
		case at := <-c.shorter:
			if c.now().Sub(at) < TakeOverTurn {
				return true
			}
		case <-turn.C:
			return true
		case <-ctx.Done():
			return false
		}
	}
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
