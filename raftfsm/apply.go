package raftfsm

import (
	"fmt"

	logv1 "github.com/carillon-timers/carillon/proto/carillonlog/v1"
)

// Apply applies the log entry at the index and pushes the ops that follow from it. An error means that this replica must
// stop: the entry is damaged, from a newer version, or out of order (it wraps ErrCorrupt or ErrUnsupported). Nothing of it is
// applied, and every later call returns the same error.
func (f *FSM) Apply(index uint64, data []byte) (Applied, error) {
	e, err := DecodeEntry(data)
	f.mu.Lock()
	defer f.mu.Unlock()
	switch {
	case f.poison != nil:
		return Applied{}, f.poison
	case err != nil:
		return Applied{}, f.fail("apply entry %d: %w", index, err)
	case index <= f.s.index:
		return Applied{}, f.fail("apply entry %d: entry %d has been applied: %w", index, f.s.index, ErrCorrupt)
	}
	a := f.applyEntry(index, e)
	f.push()
	return a, nil
}

// applyEntry is Apply of a sound entry. Called with mu held.
func (f *FSM) applyEntry(index uint64, e *logv1.Entry) Applied {
	s := f.s
	s.index = index
	a := Applied{Index: index, Epoch: e.Epoch, Proposer: e.Proposer, Sequence: e.Sequence, Begin: e.Begin != nil}
	a.Results = make([]Result, len(e.Commands))
	if e.Epoch < s.epoch {
		a.Stale, a.Clock = true, s.clock
		for i, c := range e.Commands {
			a.Results[i] = Result{Code: StaleEpoch, Detail: fmt.Sprintf("epoch %d is over, it is %d", e.Epoch, s.epoch)}
			f.liftOnly(e.Epoch, c)
		}
		return a
	}
	s.clock = max(s.clock, e.ClockMs)
	if e.Begin != nil || e.Epoch > s.epoch {
		s.epoch, s.epochClock, s.begun = e.Epoch, s.clock, index
	}
	a.Clock = s.clock
	s.expire(len(e.Commands))
	for i, c := range e.Commands {
		a.Results[i] = f.applyCommand(e.Epoch, c)
	}
	return a
}

// applyCommand applies one command.
func (f *FSM) applyCommand(epoch uint64, c *Command) Result {
	switch k := c.Kind.(type) {
	case *logv1.Command_Schedule:
		return f.schedule(k.Schedule)
	case *logv1.Command_Reschedule:
		return f.reschedule(k.Reschedule)
	case *logv1.Command_Cancel:
		return f.lifting(epoch, k.Cancel.Hold, k.Cancel, func(t *target) Result { return f.cancel(t, k.Cancel) })
	case *logv1.Command_Complete:
		return f.lifting(epoch, k.Complete.Hold, k.Complete, func(t *target) Result { return f.complete(t, k.Complete) })
	case *logv1.Command_Retry:
		return f.lifting(epoch, k.Retry.Hold, k.Retry, func(t *target) Result { return f.retry(t, k.Retry) })
	}
	panic("raftfsm: a command of a kind that DecodeEntry let pass")
}

// named is a command that names a timer.
type named interface {
	GetNamespace() string
	GetId() string
}

// lifting runs a command that settles a timer, and lifts its hold. If the timer stays as it was, its slot is armed again.
func (f *FSM) lifting(epoch, hold uint64, c named, apply func(t *target) Result) Result {
	t := f.s.find(space(c.GetNamespace()), c.GetId())
	lifted := f.lead.lift(epoch, hold, &t)
	r := apply(&t)
	if lifted && t.record != nil && f.s.table.at(t.slot) == t.record {
		f.ops = append(f.ops, f.s.arm(t.slot, t.record))
	}
	return r
}

// liftOnly lifts the hold of a command that is not applied.
func (f *FSM) liftOnly(epoch uint64, c *Command) {
	hold, settling := holdOf(c)
	if hold != nil && *hold != 0 {
		f.lifting(epoch, *hold, settling, func(*target) Result { return Result{} })
	}
}

// holdOf returns where the number of a command's hold lies; nil if it is of a kind that holds nothing.
func holdOf(c *Command) (*uint64, named) {
	switch k := c.Kind.(type) {
	case *logv1.Command_Cancel:
		return &k.Cancel.Hold, k.Cancel
	case *logv1.Command_Complete:
		return &k.Complete.Hold, k.Complete
	case *logv1.Command_Retry:
		return &k.Retry.Hold, k.Retry
	}
	return nil, nil
}
