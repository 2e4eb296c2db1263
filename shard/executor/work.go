package executor

import (
	"fmt"
	"log/slog"
	"runtime/debug"

	"github.com/carillon-timers/carillon/raftfsm"
)

// work is what a turn left to do after the baton is passed. Touched by one worker alone.
type work struct {
	// turn is the number of the turn, fired and ops what it has used of its budget.
	turn       uint64
	fired, ops int

	ready   []readyCall
	settled []settleCall
}

type readyCall struct {
	exec  *Exec
	queue Queue
}

type settleCall struct {
	exec *Exec
	cmds []*raftfsm.Command
}

func (w *work) begin(turn uint64) { w.turn, w.fired, w.ops = turn, 0, 0 }

// spent says that the turn has used its budget.
func (w *work) spent() bool { return w.fired >= fireBudget || w.ops >= opsBudget }

func (w *work) empty() bool { return len(w.ready) == 0 && len(w.settled) == 0 }

func (w *work) settle(e *Exec, cmd *raftfsm.Command) {
	if n := len(w.settled); n > 0 && w.settled[n-1].exec == e {
		w.settled[n-1].cmds = append(w.settled[n-1].cmds, cmd)
		return
	}
	w.settled = append(w.settled, settleCall{e, []*raftfsm.Command{cmd}})
}

// do does the slow part.
func (w *work) do(log *slog.Logger) {
	for _, c := range w.ready {
		c.exec.deliver(c.queue, log)
	}
	for _, c := range w.settled {
		c.exec.settle(c.cmds, log)
	}
	clear(w.ready)
	clear(w.settled)
	w.ready, w.settled = w.ready[:0], w.settled[:0]
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
	for again := e.lists[q] != nil; again; again = e.calls[q] && e.lists[q] != nil {
		e.calls[q] = false
		e.mu.Unlock()
		e.tell(q, log)
		e.mu.Lock()
	}
	delete(e.calls, q)
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

// settle hands lapsed leases on. If that panics they lapse again.
func (e *Exec) settle(cmds []*raftfsm.Command, log *slog.Logger) {
	defer func() {
		if p := recover(); p != nil {
			e.panicked(log, "settle", p)
		}
	}()
	e.o.Settle(cmds)
}

func (e *Exec) panicked(log *slog.Logger, who string, p any) {
	e.loop.stats.panics.Add(1)
	log.Error("executor: a callback panicked", "shard", e.o.Shard, "callback", who,
		"panic", fmt.Sprint(p), "stack", string(debug.Stack()))
	e.retryIn(e.loop.clock.read(), panicRetry)
}
