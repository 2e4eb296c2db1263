package raftfsm

// All methods here are called with mu held.

// atomic applies all commands of a batch, or none.
func (f *FSM) atomic(e *entry, c *command) Result {
	parts := c.more.parts
	for i := range parts {
		parts[i].hash = f.s.hash(parts[i].namespace, parts[i].id)
	}
	results, refused := f.checkParts(e, parts)
	if refused != nil {
		for i := range parts {
			f.liftOnly(e.epoch, &parts[i])
		}
		return *refused
	}
	out := Result{Revision: f.s.index, Items: make([]Result, len(parts))}
	for i := range parts {
		if r := results[i]; r != nil {
			f.liftOnly(e.epoch, &parts[i])
			out.Items[i] = *r
			continue
		}
		f.applyCommand(e, &parts[i], &out.Items[i])
	}
	return out
}

// checkParts finds out, without changing anything, whether all parts would be OK. Results has those that are remembered.
func (f *FSM) checkParts(e *entry, parts []command) (results []*Result, refused *Result) {
	if len(parts) == 0 || len(parts) > MaxBatchItems {
		return nil, invalid("atomic", "%d commands; 1 to %d are allowed", len(parts), MaxBatchItems)
	}
	results = make([]*Result, len(parts))
	seen := make(map[timerKey]bool, len(parts))
	for i := range parts {
		c := &parts[i]
		key := timerKey{c.namespace, c.id}
		switch {
		case c.kind != parts[0].kind || c.kind != kindSchedule && c.kind != kindCancel:
			refused = invalid("atomic", "its commands are not all schedules, or all cancels")
		case seen[key]:
			refused = invalid("id", "%q is there twice", c.id)
		default:
			results[i], refused = f.checkPart(e, c)
		}
		if refused != nil {
			refused.Answer = uint32(i)
			return nil, refused
		}
		seen[key] = true
	}
	return results, nil
}

// checkPart is why a part would not be OK, and its result if that is remembered.
func (f *FSM) checkPart(e *entry, c *command) (remembered, refused *Result) {
	s := f.s
	if c.kind == kindCancel {
		refused = validChange(c)
	} else {
		refused = s.validSchedule(e, c)
	}
	if refused != nil {
		return nil, refused
	}
	if len(c.requestID) > 0 {
		c.request, c.keyed = c.requestKey(), true
		if it, ok := s.findRequest(c.request); ok {
			r := it.result()
			return &r, nil
		}
	}
	t := s.findHash(c.namespace, c.id, c.hash)
	decided := scheduleDecided
	if c.kind == kindCancel {
		decided = s.cancelDecided
	}
	if r := decided(&t, c); r != nil && r.Code != OK {
		return nil, r
	}
	return nil, nil
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
