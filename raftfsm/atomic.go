package raftfsm

// All methods here are called with mu held.

// atomic applies all commands of a batch, or none.
func (f *FSM) atomic(e *entry, c *command) Result {
	parts := c.more.parts
	for i := range parts {
		parts[i].hash = f.s.hash(parts[i].namespace, parts[i].id)
	}
	results, refused, ok := f.checkParts(e, parts)
	if !ok {
		for i := range parts {
			f.liftOnly(e.epoch, &parts[i])
		}
		return refused
	}
	out := Result{Revision: f.s.index, Items: make([]Result, len(parts))}
	for i := range parts {
		if r := results[i]; r != nil {
			f.liftOnly(e.epoch, &parts[i])
			out.Items[i] = *r
			continue
		}
		out.Items[i] = f.applyCommand(e, &parts[i])
	}
	return out
}

// checkParts finds out, without changing anything, whether all parts would be OK. Results has those that are remembered.
func (f *FSM) checkParts(e *entry, parts []command) (results []*Result, refused Result, ok bool) {
	if len(parts) == 0 || len(parts) > MaxBatchItems {
		return nil, invalid("atomic", "%d commands; 1 to %d are allowed", len(parts), MaxBatchItems), false
	}
	results = make([]*Result, len(parts))
	seen := make(map[timerKey]bool, len(parts))
	for i := range parts {
		c := &parts[i]
		key := timerKey{c.namespace, c.id}
		r := Result{}
		switch {
		case c.kind != parts[0].kind || c.kind != kindSchedule && c.kind != kindCancel:
			r = invalid("atomic", "its commands are not all schedules, or all cancels")
		case seen[key]:
			r = invalid("id", "%q is there twice", c.id)
		default:
			results[i], r = f.checkPart(e, c)
		}
		if r.Code != OK {
			r.Answer = uint32(i)
			return nil, r, false
		}
		seen[key] = true
	}
	return results, Result{}, true
}

// checkPart is what a part would come to; its result if that is remembered.
func (f *FSM) checkPart(e *entry, c *command) (remembered *Result, r Result) {
	s := f.s
	kind, valid := byte(requestSchedule), s.validSchedule
	if c.kind == kindCancel {
		kind, valid = requestCancel, func(_ *entry, c *command) (Result, bool) { return validChange(c) }
	}
	if r, ok := valid(e, c); !ok {
		return nil, r
	}
	if len(c.requestID) > 0 {
		if it := s.findRequest(requestKey(kind, c.namespace, c.id, c.requestID)); it != nil {
			return &Result{Revision: it.revision, Due: it.due, Answer: it.answer}, Result{}
		}
	}
	t := s.findHash(c.namespace, c.id, c.hash)
	if c.kind == kindCancel {
		r, _ = s.cancelDecided(&t, c)
	} else {
		r, _ = scheduleDecided(&t, c)
	}
	return nil, r
}

// commandsIn counts the commands of an entry with those in batches.
func (e *entry) commandsIn() int {
	n := len(e.commands)
	for i := range e.commands {
		if m := e.commands[i].more; m != nil {
			n += len(m.parts)
		}
	}
	return n
}
