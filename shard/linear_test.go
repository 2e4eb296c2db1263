package shard

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/carillon-timers/carillon/raftfsm"
)

// operation is one call on one timer, from the first attempt to the answer. A write is repeated with its request ID until it
// is answered, so each has the effect of one, somewhere in between.
type operation struct {
	kind     string // put, cancel, get
	from, to time.Time
	// revision and answer are what was answered; for get the revision that was read, answer 1 for pending.
	revision uint64
	answer   uint32
}

// model is the state of the one timer: the revision of its last change, and whether it is pending. Zero: never scheduled. Two
// changes in one log entry have one revision.
type model struct {
	revision uint64
	pending  bool
}

// step applies an operation to the model; false if the answer is not what the model gives.
func (m model) step(o operation) (model, bool) {
	switch o.kind {
	case "put":
		return model{o.revision, true}, o.revision >= m.revision && o.revision > 0
	case "cancel":
		switch {
		case m.revision == 0:
			return m, o.answer == 0
		case m.pending:
			return model{o.revision, false}, o.answer == raftfsm.AnswerCancelled && o.revision >= m.revision
		}
		return m, o.answer == raftfsm.AnswerCancelled && o.revision == m.revision
	}
	return m, o.revision == m.revision && (o.answer == 1) == m.pending
}

// linearizable searches for an order of the operations that the model allows and that keeps the order in time (Wing and
// Gong's search, with the states that were seen).
func linearizable(history []operation) bool {
	type key struct {
		done  string
		state model
	}
	seen := map[key]bool{}
	done := make([]byte, len(history))
	var search func(state model, left int) bool
	search = func(state model, left int) bool {
		if left == 0 {
			return true
		}
		at := key{string(done), state}
		if seen[at] {
			return false
		}
		seen[at] = true
		// Whatever comes next was called before the first answer among those that are left.
		var first time.Time
		for i, o := range history {
			if done[i] == 0 && (first.IsZero() || o.to.Before(first)) {
				first = o.to
			}
		}
		for i, o := range history {
			if done[i] == 1 || o.from.After(first) {
				continue
			}
			if next, ok := state.step(o); ok {
				done[i] = 1
				if search(next, left-1) {
					return true
				}
				done[i] = 0
			}
		}
		return false
	}
	return search(model{}, len(history))
}

// The checker must be able to say no.
func TestCheckerSaysNo(t *testing.T) {
	t.Parallel()
	at := func(ms int) time.Time { return time.UnixMilli(int64(ms)) }
	put := operation{"put", at(0), at(10), 5, 0}
	if !linearizable([]operation{put, {"get", at(5), at(6), 0, 0}, {"get", at(20), at(30), 5, 1}}) {
		t.Error("a good history is refused")
	}
	for name, history := range map[string][]operation{
		"a stale read":          {put, {"get", at(20), at(30), 0, 0}},
		"a read that goes back": {put, {"get", at(1), at(2), 5, 1}, {"get", at(3), at(4), 0, 0}},
		"a lost cancel":         {put, {"cancel", at(11), at(12), 6, raftfsm.AnswerCancelled}, {"get", at(20), at(30), 5, 1}},
		"applied twice":         {put, {"cancel", at(11), at(12), 6, raftfsm.AnswerCancelled}, {"put", at(13), at(14), 5, 0}},
	} {
		if linearizable(history) {
			t.Errorf("%s is not seen", name)
		}
	}
}

// Operations on one timer are linearizable while leadership flips and nodes are cut off: reads and writes go to whoever says
// that it leads, also to one that does not know yet that it is deposed.
func TestLinearizable(t *testing.T) {
	t.Parallel()
	for seed := range uint64(8) {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			t.Parallel()
			inBubble(t, 3, func(t *testing.T, c *cluster) {
				rnd := rand.New(rand.NewPCG(seed, 9))
				c.operateAll(t, seed, func() {
					if rnd.IntN(2) == 0 {
						c.cut(c.nodes[rnd.IntN(3)])
					} else {
						c.heal()
					}
					for _, n := range c.nodes {
						if n.shard.mayFire() && rnd.IntN(4) == 0 {
							_ = n.shard.Transfer(context.Background(), "")
						}
					}
				})
			}, drowsy(seed)...)
		})
	}
}

// operateAll has clients operate on one timer while the nemesis does something now and then, and judges what they saw.
func (c *cluster) operateAll(t *testing.T, seed uint64, nemesis func()) {
	rnd := rand.New(rand.NewPCG(seed, 10))
	c.leader()
	var mu sync.Mutex
	var history []operation
	var clients sync.WaitGroup
	for client := range 5 {
		own := rand.New(rand.NewPCG(seed, uint64(client)))
		clients.Go(func() {
			for i := range 40 {
				o := c.operate(own, fmt.Sprintf("%d-%d", client, i))
				mu.Lock()
				history = append(history, o)
				mu.Unlock()
				time.Sleep(time.Duration(own.IntN(200)) * time.Millisecond)
			}
		})
	}
	stop := make(chan struct{})
	var troubles sync.WaitGroup
	troubles.Go(func() {
		for {
			select {
			case <-stop:
				return
			case <-time.After(time.Duration(rnd.IntN(700)) * time.Millisecond):
				nemesis()
			}
		}
	})
	clients.Wait()
	close(stop)
	troubles.Wait()
	c.heal()
	slices.SortFunc(history, func(a, b operation) int { return a.from.Compare(b.from) })
	if !linearizable(history) {
		t.Errorf("not linearizable:")
		for _, o := range history {
			t.Logf("%s to %s %s: revision %d, answer %d", o.from.Format("05.000"), o.to.Format("05.000"), o.kind, o.revision, o.answer)
		}
	}
	c.inStep()
}

// operate does one operation on the one timer.
func (c *cluster) operate(rnd *rand.Rand, request string) operation {
	o := operation{from: time.Now()}
	switch rnd.IntN(4) {
	case 0:
		o.kind = "cancel"
		cmd := cancelOf("x")
		cmd.GetCancel().RequestId = []byte(request)
		r := c.propose(cmd)[0]
		o.revision, o.answer = r.Revision, r.Answer
	case 1:
		o.kind = "put"
		cmd := after("x", time.Hour)
		cmd.GetSchedule().RequestId, cmd.GetSchedule().IfExists = []byte(request), 1
		o.revision = c.propose(cmd)[0].Revision
	default:
		o.kind = "get"
		o.revision, o.answer = c.read(rnd)
	}
	o.to = time.Now()
	return o
}

// read asks one node after the other until one answers.
func (c *cluster) read(rnd *rand.Rand) (revision uint64, answer uint32) {
	for i := rnd.IntN(3); ; i++ {
		ctx, cancel := context.WithTimeout(context.Background(), 3*time.Second)
		status, err := c.nodes[i%3].current.Load().Get(ctx, "", "x")
		cancel()
		switch {
		case err == nil && status.State == raftfsm.Pending:
			return status.Record.Revision, 1
		case err == nil:
			return status.Record.Revision, 0
		case errors.Is(err, ErrNotFound):
			return 0, 0
		}
		time.Sleep(3 * time.Millisecond)
	}
}
