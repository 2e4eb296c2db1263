package executor

import (
	"fmt"
	"log/slog"
	"runtime/debug"
	"sync"

	"github.com/carillon-timers/carillon/raftfsm"
)

// work is what a turn found that is to be done after the baton is laid down. Touched by the baton holder alone.
type work struct {
	// turn is the number of the turn, fired and ops what it has used of its budget.
	turn       uint64
	fired, ops int

	ready, settled []call
}

// call is one thing to do: tell the Deliverer of a queue or, if there are commands, have them proposed.
type call struct {
	exec  *Exec
	queue Queue
	cmds  []*raftfsm.Command
}

func (w *work) begin(turn uint64) { w.turn, w.fired, w.ops = turn, 0, 0 }

// spent says that the turn has used its budget.
func (w *work) spent() bool {
	return w.fired >= fireBudget || w.ops >= opsBudget || len(w.ready) >= readyBudget
}

func (w *work) settle(e *Exec, cmd *raftfsm.Command) {
	if n := len(w.settled); n > 0 && w.settled[n-1].exec == e {
		w.settled[n-1].cmds = append(w.settled[n-1].cmds, cmd)
		return
	}
	w.settled = append(w.settled, call{exec: e, cmds: []*raftfsm.Command{cmd}})
}

// slowPart holds the calls that are to be made. All workers that do the slow part of a turn take from it, so a call that
// blocks keeps back nothing but itself.
type slowPart struct {
	mu sync.Mutex
	// calls are to be made from at on; guarded by mu.
	calls []call
	at    int
}

// add takes over what a turn found and returns how many calls there are.
func (s *slowPart) add(w *work) int {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.calls = append(append(s.calls, w.ready...), w.settled...)
	clear(w.ready)
	clear(w.settled)
	w.ready, w.settled = w.ready[:0], w.settled[:0]
	return len(s.calls) - s.at
}

func (s *slowPart) next() (c call, ok bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.at == len(s.calls) {
		s.calls, s.at = s.calls[:0], 0
		return call{}, false
	}
	c, s.calls[s.at] = s.calls[s.at], call{}
	s.at++
	return c, true
}

// do makes calls until there are none left.
func (s *slowPart) do(log *slog.Logger) {
	for c, ok := s.next(); ok; c, ok = s.next() {
		if c.cmds != nil {
			c.exec.settle(c.cmds, log)
		} else {
			c.exec.deliver(c.queue, log)
		}
	}
}

// deliver tells the Deliverer that a queue has something ready, if it still has. For one queue it is called by one
// worker at a time, so one that blocks keeps one worker for each queue that it blocks on.
func (e *Exec) deliver(q Queue, log *slog.Logger) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if _, busy := e.calls[q]; busy {
		e.calls[q] = true
		return
	}
	for again := e.hasFor(q); again; again = e.calls[q] && e.hasFor(q) {
		e.calls[q] = false
		e.mu.Unlock()
		e.tell(q, log)
		e.mu.Lock()
	}
	delete(e.calls, q)
}

// hasFor says whether a Take of the queue may find something. The caller holds mu.
func (e *Exec) hasFor(q Queue) bool {
	a := e.ahead[q]
	return e.lists[q] != nil || a != nil && len(a.owed) > 0
}

// tell calls the Deliverer. If it panics nothing is lost: what is ready stays so, and it is told again in a while.
func (e *Exec) tell(q Queue, log *slog.Logger) {
	defer func() {
		if p := recover(); p != nil {
			e.panicked(log, "deliverer", p)
		}
	}()
	e.o.Deliverer.Ready(e, q)
}

// settle hands commands on. If that panics they come again.
func (e *Exec) settle(cmds []*raftfsm.Command, log *slog.Logger) {
	defer func() {
		if p := recover(); p != nil {
			e.panicked(log, "settle", p)
		}
	}()
	e.o.Settle(cmds, nil)
}

func (e *Exec) panicked(log *slog.Logger, who string, p any) {
	e.loop.stats.panics.Add(1)
	log.Error("executor: a callback panicked", "shard", e.o.Shard, "callback", who,
		"panic", fmt.Sprint(p), "stack", string(debug.Stack()))
	e.retryIn(e.loop.clock.read(), panicRetry)
}
