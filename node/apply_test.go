package node

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	carillonv1 "github.com/carillon-timers/carillon/proto/carillon/v1"
	"github.com/carillon-timers/carillon/raftfsm"
	"github.com/carillon-timers/carillon/shard"
	"github.com/carillon-timers/carillon/transport"
)

// slowShard answers when it is told to, or abandoned.
type slowShard struct {
	fakeShard
	cmds []*raftfsm.Command
	done func([]raftfsm.Result, error)
}

func (f *slowShard) Submit(cmds []*raftfsm.Command, done func([]raftfsm.Result, error)) (func(error), error) {
	f.cmds, f.done = cmds, done
	return func(error) { done(nil, shard.ErrUnknown) }, nil
}

// commandsOf makes n commands for each of the shards.
func commandsOf(n, shards int) []*raftfsm.Command {
	var commands []*raftfsm.Command
	counts := make([]int, shards)
	for i := 0; len(commands) < n*shards; i++ {
		id := fmt.Sprint("t", i)
		if s := carillonv1.ShardOf("default", id, shards); counts[s] < n {
			counts[s]++
			commands = append(commands, cancelCommand(id))
		}
	}
	return commands
}

// slowRouter is a router whose own node leads two of three shards and is slow to answer; n2 leads the third.
func slowRouter() (*router, []*slowShard, *fakeNet) {
	f := newFakeNet()
	slow := []*slowShard{{fakeShard: fakeShard{leader: "n1"}}, {fakeShard: fakeShard{leader: "n1"}}}
	f.set("n2", 0, &fakeShard{})
	f.set("n2", 2, &fakeShard{})
	r := f.router("n1", 3, "n1", "n2")
	r.local = func(s int) localShard {
		if s < len(slow) {
			return slow[s]
		}
		return nil
	}
	return r, slow, f
}

// A shard that has lost its leadership is asked for elsewhere at once, though another is not through yet; each answer comes to its
// place, and what went different ways is told apart.
func TestApplyGoesOnWhileOthersWait(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		r, slow, f := slowRouter()
		commands := commandsOf(3, 3)
		ends := make(chan []transport.Outcome)
		go func() { ends <- r.Apply(t.Context(), commands) }()
		synctest.Wait()
		if want := []string{"n2"}; !slices.Equal(f.calls, want) {
			t.Fatalf("called %v, want %v", f.calls, want)
		}
		slow[0].leader = "n2"
		slow[0].done(nil, &shard.NotLeaderError{Leader: "n2"})
		synctest.Wait()
		if want := []string{"n2", "n2"}; !slices.Equal(f.calls, want) {
			t.Fatalf("called %v, want %v", f.calls, want)
		}
		results := make([]raftfsm.Result, len(slow[1].cmds))
		for k, c := range slow[1].cmds {
			results[k] = raftfsm.Result{Detail: c.GetCancel().Id}
		}
		slow[1].done(results, nil)
		for i, o := range <-ends {
			id := commands[i].GetCancel().Id
			own := carillonv1.ShardOf("default", id, 3) == 1
			if o.Err != nil || own && o.Detail != id || !own && o.Revision == 0 {
				t.Errorf("%s: %+v", id, o)
			}
		}
		if r.leader(0) != "n2" || r.leader(1) != "n1" || r.retried.Load() != 1 {
			t.Errorf("noted %q and %q after %d repetitions", r.leader(0), r.leader(1), r.retried.Load())
		}
	})
}

// A call that ends early abandons what this node's replicas have, and tells what they say of it.
func TestApplyEndsWithItsContext(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		r, _, f := slowRouter()
		ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
		defer cancel()
		began := time.Now()
		commands := commandsOf(1, 3)
		for i, o := range r.Apply(ctx, commands) {
			var want error
			if carillonv1.ShardOf("default", commands[i].GetCancel().Id, 3) < 2 {
				want = shard.ErrUnknown
			}
			if !errors.Is(o.Err, want) {
				t.Errorf("%d: got %v, want %v", i, o.Err, want)
			}
		}
		if took := time.Since(began); took != 50*time.Millisecond || len(f.calls) != 1 {
			t.Errorf("it took %v and %d calls", took, len(f.calls))
		}
	})
}

// An error that is not about leadership is the answer, from a replica that refuses at once as from one that fails later.
func TestApplyKeepsRefusals(t *testing.T) {
	t.Parallel()
	f := newFakeNet()
	refuses := &shard.OverloadedError{Limit: "queued"}
	f.set("n1", 0, &fakeShard{leader: "n1", err: refuses})
	f.set("n1", 1, &fakeShard{leader: "n1"})
	commands := commandsOf(2, 2)
	for i, o := range f.router("n1", 2, "n1", "n2").Apply(t.Context(), commands) {
		if s := carillonv1.ShardOf("default", commands[i].GetCancel().Id, 2); (s == 0) != errors.Is(o.Err, refuses) {
			t.Errorf("shard %d: %v", s, o.Err)
		}
	}
	if len(f.calls) != 0 {
		t.Errorf("called %v", f.calls)
	}
}

// Commands keep their order within a shard, whatever the number of shards.
func TestSharesOf(t *testing.T) {
	t.Parallel()
	for _, shards := range []int{1, 2, 16, MaxShards} {
		for _, n := range []int{1, 2, 1000} {
			var commands []*raftfsm.Command
			for i := range n {
				commands = append(commands, cancelCommand(fmt.Sprint("t", i)))
			}
			seen := make([]bool, n)
			shares := sharesOf(commands, shards)
			for i := range shares {
				p := &shares[i]
				if len(p.commands) != len(p.places) || len(p.commands) == 0 || !slices.IsSorted(p.places) {
					t.Fatalf("%d commands at %v", len(p.commands), p.places)
				}
				for k, i := range p.places {
					if seen[i] || p.commands[k] != commands[i] || shardOf(commands[i], shards) != p.shard {
						t.Fatalf("%d of %d for %d shards is in the wrong share", i, n, shards)
					}
					seen[i] = true
				}
			}
			if slices.Contains(seen, false) {
				t.Errorf("%d of %d commands for %d shards are in none", slices.Index(seen, false), n, shards)
			}
		}
	}
}
