package raftfsm

import logv1 "github.com/carillon-timers/carillon/proto/carillonlog/v1"

// What a command looks at was most likely looked at by nobody for long, so it is in no cache. The functions here load what the commands
// of an entry need before the first is applied, in loops that are short, so that the processor waits for many cache lines at once; one
// command after the other, it would wait for each.

// readAhead finds the places of all timers and requests in the indexes, and loads what lies there. Called with mu held.
func (f *FSM) readAhead(e *entry) {
	s, sum, cmds := f.s, uint64(0), e.commands
	for i := range cmds {
		c := &cmds[i]
		c.hash = s.hash(c.namespace, c.id)
	}
	requests := s.requestKeys(cmds)
	for i := range cmds {
		sum += s.byKey.touch(cmds[i].hash)
	}
	if requests > 0 {
		sum += s.readRequestsAhead(cmds, uint64(requests))
	}
	ends := 0
	if s.finished.live > 0 {
		for i := range cmds {
			sum += s.byFinished.touch(cmds[i].hash)
		}
	}
	for i := range cmds {
		c := &cmds[i]
		if c.guess, c.guessed = s.byKey.guess(c.hash); c.guessed {
			ends++
		}
	}
	if ends > 0 {
		sum += f.readTimersAhead(cmds, ends)
	}
	f.touched = sum
}

// readTimersAhead loads the timers that there may be, and the places of what so many ends push out of the window.
func (f *FSM) readTimersAhead(cmds []command, ends int) (sum uint64) {
	s := f.s
	for i := range cmds {
		if c := &cmds[i]; c.guessed {
			sum += uint64(s.table.where(c.guess))
		}
	}
	for i := range cmds {
		if c := &cmds[i]; c.guessed {
			sum += s.table.touchAll(s.table.where(c.guess))
		}
	}
	return sum + s.readFinishedAhead(uint64(ends))
}

// readRequestsAhead loads the places of the requests, and those of what so many push out of the window.
func (s *state) readRequestsAhead(cmds []command, n uint64) (sum uint64) {
	for i := range cmds {
		if c := &cmds[i]; c.keyed {
			sum += s.byRequest.touch(c.request.place())
		}
	}
	w := &s.requests
	for seq := w.first; seq+w.limit <= w.last+n && seq <= w.last; seq++ {
		sum += s.byRequest.touch(w.hashes(seq).place())
	}
	return sum
}

// readFinishedAhead loads the places of what so many timers that end push out of the window.
func (s *state) readFinishedAhead(n uint64) (sum uint64) {
	w := &s.finished
	for seq := w.first; w.live > 0 && seq+w.limit <= w.last+n && seq <= w.last; seq++ {
		namespace, id, _ := s.finishedTexts(seq)
		sum += s.byFinished.touch(s.hash(borrow(namespace), borrow(id)))
	}
	return sum
}

// stampAhead loads the timers of the commands that Stamp looks at most. Called with mu held.
func (f *FSM) stampAhead(cmds []*Command) {
	s, sum := f.s, uint64(0)
	hashes := f.hashes[:0]
	for _, c := range cmds {
		switch k := c.Kind.(type) {
		case *logv1.Command_Complete:
			hashes = append(hashes, s.hash(space(k.Complete.Namespace), k.Complete.Id))
		case *logv1.Command_Cancel:
			hashes = append(hashes, s.hash(space(k.Cancel.Namespace), k.Cancel.Id))
		}
	}
	f.hashes = hashes
	for _, hash := range hashes {
		sum += s.byKey.touch(hash)
	}
	slots := f.slots[:0]
	for _, hash := range hashes {
		if slot, ok := s.byKey.guess(hash); ok {
			slots = append(slots, slot)
		}
	}
	f.slots = slots
	f.warm(slots)
	f.touched += sum
}
