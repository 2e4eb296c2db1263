package raftfsm

import "fmt"

// Apply applies the log entry at the index and pushes the ops that follow from it. An error means that this replica must
// stop: the entry is damaged, from a newer version, or out of order (it wraps ErrCorrupt or ErrUnsupported). Nothing of it is
// applied, and every later call returns the same error.
func (f *FSM) Apply(index uint64, data []byte) (Applied, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.poison != nil {
		return Applied{}, f.poison
	}
	r := f.takeRoom()
	defer f.leaveRoom(r)
	e := &r.in
	if err := e.read(data); err != nil {
		return Applied{}, f.fail("apply entry %d: %w", index, err)
	}
	if index <= f.s.index {
		return Applied{}, f.fail("apply entry %d: entry %d has been applied: %w", index, f.s.index, ErrCorrupt)
	}
	a := f.applyEntry(index, e)
	f.push()
	return a, nil
}

// applyEntry is Apply of a sound entry. Called with mu held.
func (f *FSM) applyEntry(index uint64, e *entry) Applied {
	s := f.s
	s.index = index
	a := Applied{Index: index, Epoch: e.epoch, Proposer: e.proposer, Sequence: e.sequence, Begin: e.begin}
	a.takeResults(len(e.commands))
	f.readAhead(e)
	if e.epoch < s.epoch {
		a.Stale, a.Clock = true, s.clock
		for i := range e.commands {
			a.Results[i] = Result{Code: StaleEpoch, Detail: fmt.Sprintf("epoch %d is over, it is %d", e.epoch, s.epoch)}
			f.liftOnly(e.epoch, &e.commands[i])
		}
		return a
	}
	s.clock = max(s.clock, e.clock)
	if e.begin || e.epoch > s.epoch {
		s.epoch, s.epochClock, s.begun = e.epoch, s.clock, index
	}
	if e.begin {
		s.reign(e.epoch, e.node)
	}
	a.Clock = s.clock
	f.buried, f.looked = 0, 0
	s.expire(e.commandsIn())
	for i := range e.commands {
		f.applyCommand(e, &e.commands[i], &a.Results[i])
	}
	s.table.compact()
	return a
}

// applyCommand applies one command; the result is zero before.
func (f *FSM) applyCommand(e *entry, c *command, result *Result) {
	switch c.kind {
	case kindSchedule:
		f.schedule(e, c, result)
	case kindReschedule:
		*result = f.reschedule(c)
	case kindRedrive, kindPurge:
		*result = f.letters(c)
	case kindAtomic:
		*result = f.atomic(e, c)
	default:
		*result = f.applyFound(e, c)
	}
}

// applyFound applies a command to a timer that it names and that is there, as a rule.
func (f *FSM) applyFound(e *entry, c *command) Result {
	t := target{namespace: c.namespace, id: c.id, hash: c.hash}
	f.s.look(&t)
	lifted := f.lead.lift(e.epoch, c.hold, &t)
	var r Result
	switch c.kind {
	case kindCancel:
		r = f.cancel(&t, c)
	case kindComplete:
		r = f.complete(&t, c)
	case kindRetry:
		r = f.retry(&t, c)
	case kindPause:
		r = f.pause(&t, c)
	case kindResume:
		r = f.resume(&t, c)
	case kindAdvance:
		r = f.advance(&t, c)
	case kindExpire:
		r = f.expire(&t, c)
	}
	if lifted {
		f.armUnchanged(&t)
	}
	return r
}

// armUnchanged arms the slot of a timer whose hold was lifted and which stayed as it was.
func (f *FSM) armUnchanged(t *target) {
	if f.s.unchanged(t) {
		r := f.s.table.at(t.slot) // as it is now: what was changed may lie where it lay before
		f.arm(t.slot, &r)
	}
}

// liftOnly lifts the hold of a command that is not applied.
func (f *FSM) liftOnly(epoch uint64, c *command) {
	if c.kind == kindAtomic {
		for i := range c.more.parts {
			p := &c.more.parts[i]
			p.hash = f.s.hash(p.namespace, p.id)
			f.liftOnly(epoch, p)
		}
	}
	if c.hold == 0 {
		return
	}
	t := f.s.findHash(c.namespace, c.id, c.hash)
	if f.lead.lift(epoch, c.hold, &t) {
		f.armUnchanged(&t)
	}
}
