package raftfsm

// All methods here are called with mu held.

func (f *FSM) reschedule(c *command) Result {
	if r := validChange(c); r != nil {
		return *r
	}
	if !c.now {
		if r := f.s.validDue(c.due, c.isDelay); r != nil {
			return *r
		}
	}
	return f.once(c, func() Result { return f.rescheduleNow(c) })
}

// validChange checks what all changes by clients have.
func validChange(c *command) *Result {
	if r := validKey(c.namespace, c.id); r != nil {
		return r
	}
	return validRequestID(c.requestID)
}

func (f *FSM) rescheduleNow(c *command) Result {
	s := f.s
	t := s.findHash(c.namespace, c.id, c.hash)
	if !t.pending {
		return s.notPending(&t)
	}
	if r := t.record.expect(c.expected); r != nil {
		return *r
	}
	e := s.edit(&t)
	if c.now {
		return f.fireNow(&t, e)
	}
	if r := e.extra.Repeat; r != nil {
		if r.HasEnd && c.due > r.EndMs {
			return *invalid("due", "%d is after the end of the repeat, %d", c.due, r.EndMs)
		}
		r.TickMs, r.BacklogMs = c.due, 0
	}
	if e.extra.ExpiryMs != 0 && c.due >= e.extra.ExpiryMs {
		return *invalid("due", "%d is not before the expiry, %d", c.due, e.extra.ExpiryMs)
	}
	s.accept(e, c.due)
	e.renew()
	e.extra.OutRevision = 0
	s.keepLeft(e)
	return f.put(&t, e)
}

// fireNow makes a timer due at once; one that is due, and may be out, stays as it is. A repeat whose due time is to come keeps it,
// and goes on at it.
func (f *FSM) fireNow(t *target, e *edit) Result {
	s := f.s
	if e.extra.Paused {
		return Result{Code: IsPaused, Revision: e.record.revision, Detail: revisionText(e.record.revision)}
	}
	if e.record.nextDue <= s.clock {
		return Result{Revision: e.record.revision, Due: e.record.nextDue}
	}
	due := min(e.body.due, s.clock)
	s.accept(e, s.clock)
	e.body.due = due
	return f.put(t, e)
}

func (f *FSM) pause(t *target, c *command) Result {
	if r := validChange(c); r != nil {
		return *r
	}
	return f.once(c, func() Result { return f.pauseNow(t, c) })
}

func (f *FSM) pauseNow(t *target, c *command) Result {
	s := f.s
	if !t.pending {
		return s.notPending(t)
	}
	if r := t.record.expect(c.expected); r != nil {
		return *r
	}
	e := s.edit(t)
	if e.extra.Paused {
		return Result{Revision: t.record.revision, Due: t.record.nextDue}
	}
	e.extra.Paused, e.extra.PausedMs, e.extra.Frozen = true, s.clock, c.freeze
	if c.firing {
		e.extra.OutRevision = t.record.revision
	}
	s.keepLeft(e)
	return f.put(t, e)
}

func (f *FSM) resume(t *target, c *command) Result {
	if r := validChange(c); r != nil {
		return *r
	}
	return f.once(c, func() Result { return f.resumeNow(t, c) })
}

func (f *FSM) resumeNow(t *target, c *command) Result {
	s := f.s
	if !t.pending {
		return s.notPending(t)
	}
	if r := t.record.expect(c.expected); r != nil {
		return *r
	}
	e := s.edit(t)
	x, repeat := e.extra, e.extra.Repeat
	if !x.Paused {
		return Result{Code: NotPaused, Revision: t.record.revision, Detail: revisionText(t.record.revision)}
	}
	due, fresh := t.record.nextDue, t.record.attempt == 0
	if x.Frozen {
		due = s.clock + x.LeftMs
	}
	ended := false
	switch {
	case repeat == nil || !fresh:
	case x.Frozen:
		repeat.TickMs, repeat.BacklogMs = due, 0
		ended = repeat.HasEnd && due > repeat.EndMs
	case !e.stands(s.clock):
		n := c.next()
		if c.revision != t.record.revision {
			n = nil // it was for what the timer was before
		}
		if r := known(n); r != nil {
			return *r
		}
		repeat.TickMs, repeat.BacklogMs, due, ended = n.TickMs, n.BacklogMs, n.DueMs, n.Ended
	}
	if ended {
		f.settle(t, Fired, false, life{fired: repeat.Fired, failures: e.extra.Failures})
		return Result{Revision: s.index}
	}
	x.Paused, x.PausedMs, x.Frozen, x.LeftMs, x.OutRevision = false, 0, false, 0, 0
	first := e.body.due
	s.accept(e, due)
	if !fresh {
		e.body.due = first
	}
	return f.put(t, e)
}
