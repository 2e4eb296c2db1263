package shard

import (
	"context"
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"github.com/carillon-timers/carillon/raftfsm"
	"github.com/hashicorp/raft"
)

// drowsyTransport is a transport of a busy machine: Raft asks it for a peer's encoding while it makes a message, between
// reading how far its log goes and reading how far it is committed, and the goroutine may lose its core there.
type drowsyTransport struct {
	*raft.InmemTransport
	nap func()
}

// EncodePeer naps.
func (t *drowsyTransport) EncodePeer(id raft.ServerID, addr raft.ServerAddress) []byte {
	t.nap()
	return t.InmemTransport.EncodePeer(id, addr)
}

// drowsy gives each node a drowsyTransport, for half of the seeds.
func drowsy(seed uint64) []func(*cluster) {
	if seed%2 == 0 {
		return nil
	}
	return []func(*cluster){func(c *cluster) {
		var mu sync.Mutex
		rnd := rand.New(rand.NewPCG(seed, 3))
		c.deps = func(d *Deps) {
			d.Transport = &drowsyTransport{d.Transport.(*raft.InmemTransport), func() {
				mu.Lock()
				nap := time.Duration(rnd.IntN(300)) * time.Millisecond
				if rnd.IntN(8) > 0 {
					nap = 0
				}
				mu.Unlock()
				time.Sleep(nap)
			}}
		}
	}}
}

// A message that says how far the leader has committed says nothing of entries that it does not itself match. Once a deposed
// leader whose log was longer than the message proved took its own, overwritten entries for committed: Raft bounds the commit
// index by the end of the follower's log, not by the last entry of the message.
func TestCommitNoFurtherThanTheMessage(t *testing.T) {
	t.Parallel()
	for _, pipeline := range []bool{false, true} {
		t.Run(fmt.Sprintf("pipeline %v", pipeline), func(t *testing.T) {
			inBubble(t, 3, func(t *testing.T, c *cluster) {
				old := c.leader()
				c.propose(after("common", time.Hour))
				time.Sleep(2 * time.Second)
				common, err := old.log.LastIndex()
				if err != nil {
					t.Fatal(err)
				}
				c.cut(old)
				ctx, cancel := context.WithTimeout(context.Background(), 100*time.Millisecond)
				defer cancel()
				if _, err := old.shard.Propose(ctx, []*raftfsm.Command{after("lost", time.Hour)}); err == nil {
					t.Error("a leader that is cut off accepted a timer")
				}
				next := c.leader(old)
				c.propose(after("kept", time.Hour))
				var last raft.Log
				if err := next.log.GetLog(common, &last); err != nil {
					t.Fatal(err)
				}
				next.transport.Connect(raft.ServerAddress(old.id), old.transport)
				args := &raft.AppendEntriesRequest{
					RPCHeader:    raft.RPCHeader{ProtocolVersion: raft.ProtocolVersionMax, ID: []byte(next.id), Addr: []byte(next.id)},
					Term:         next.shard.raft.Load().CurrentTerm(),
					PrevLogEntry: common, PrevLogTerm: last.Term, LeaderCommitIndex: next.shard.raft.Load().CommitIndex(),
				}
				if args.LeaderCommitIndex <= common {
					t.Fatalf("%s has committed nothing", next.id)
				}
				var resp raft.AppendEntriesResponse
				if pipeline {
					err = throughPipeline(next, old, args, &resp)
				} else {
					err = next.shard.transport.AppendEntries(raft.ServerID(old.id), raft.ServerAddress(old.id), args, &resp)
				}
				if err != nil || !resp.Success {
					t.Fatalf("the message was not taken: %v, %+v", err, resp)
				}
				if got := old.shard.raft.Load().CommitIndex(); got > common {
					t.Errorf("%s took its own entries up to %d for committed, the message matches %d", old.id, got, common)
				}
				c.heal()
				c.inStep()
			})
		})
	}
}

func throughPipeline(from, to *node, args *raft.AppendEntriesRequest, resp *raft.AppendEntriesResponse) error {
	p, err := from.shard.transport.AppendEntriesPipeline(raft.ServerID(to.id), raft.ServerAddress(to.id))
	if err != nil {
		return err
	}
	defer func() { _ = p.Close() }()
	if _, err := p.AppendEntries(args, resp); err != nil {
		return err
	}
	return (<-p.Consumer()).Error()
}
