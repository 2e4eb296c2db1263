package raftfsm

import logv1 "github.com/carillon-timers/carillon/proto/carillonlog/v1"

// All methods here are called with mu held.

// advance moves a repeat on from due times that were missed, or that become timers of their own.
func (f *FSM) advance(t *target, c *command) Result {
	s := f.s
	if r := f.undelivered(t, c); r != nil {
		return *r
	}
	e := s.edit(t)
	if e.extra.Repeat == nil || e.extra.Paused {
		return *stale(t)
	}
	n, spawn := c.next(), c.more.spawn
	if r := known(n); r != nil {
		return *r
	}
	if r := e.validSpawn(t.id, spawn); r != nil {
		return *r
	}
	repeat := e.extra.Repeat
	for _, due := range spawn {
		if repeat.MaxCount > 0 && repeat.Fired >= repeat.MaxCount {
			break
		}
		repeat.Fired++
		f.spawn(t, e, due)
	}
	if !e.lasts(n) {
		f.settle(t, Fired, false, life{fired: repeat.Fired, failures: e.extra.Failures})
		return Result{Revision: s.index}
	}
	f.move(e, n)
	return f.put(t, e)
}

// validSpawn checks which due times become timers.
func (e *edit) validSpawn(id string, spawn []int64) *Result {
	if len(spawn) == 0 {
		return nil
	}
	if e.extra.Repeat.Overlap != overlapAllow {
		return invalid("spawn", "the overlap policy is %d", e.extra.Repeat.Overlap)
	}
	if len(spawn) > MaxCatchUp {
		return invalid("spawn", "%d due times; at most %d are allowed", len(spawn), MaxCatchUp)
	}
	for _, due := range spawn {
		if due < minDueMillis || due > maxDueMillis {
			return invalid("spawn", "%d is not in the years 1 to 9999", due)
		}
	}
	return nil
}

// spawn makes a timer of one due time. If there is one already, this due time has had its own.
func (f *FSM) spawn(parent *target, e *edit, due int64) {
	s := f.s
	id, refused := childID(parent.id, due)
	if refused != nil {
		return // the schedule was checked with the longest
	}
	t := s.find(parent.namespace, id)
	if t.pending {
		return
	}
	if seq, ok := s.findFinished(&t); ok {
		s.forget(seq)
	}
	x := &logv1.Extra{ExpiryMs: e.extra.ExpiryMs, AtMostOnce: e.extra.AtMostOnce, Webhook: e.extra.Webhook}
	b := e.body
	b.id, b.due, b.created, b.lastError, b.extra = id, due, s.clock, "", encodeExtra(x)
	f.addLike(&t, e, &b, x, due)
}

// addLike adds a timer that shares the target, policy, and content type of another. It is due at the time of its body.
func (f *FSM) addLike(t *target, like *edit, b *body, x *logv1.Extra, due int64) Result {
	s := f.s
	p := s.table.profiles[like.record.profile]
	p.namespace = t.namespace
	p.mark(x)
	s.accepted++
	r := record{nextDue: due, accepted: s.accepted, revision: s.index, profile: s.table.intern(s.seed, &p)}
	f.add(t, &r, b)
	return Result{Revision: r.revision, Due: r.nextDue}
}
