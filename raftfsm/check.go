package raftfsm

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"maps"
)

// Check verifies every invariant of the state and of the notes beside it, and says what is wrong. It looks at everything, under the lock:
// for tests and for looking into a doubtful replica.
func (f *FSM) Check() error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if err := f.s.check(); err != nil {
		return fmt.Errorf("shard %d at index %d: %w", f.o.Shard, f.s.index, err)
	}
	if err := f.lead.check(f.s); err != nil {
		return fmt.Errorf("shard %d at index %d: leader's notes: %w", f.o.Shard, f.s.index, err)
	}
	return nil
}

func (s *state) check() error {
	if err := s.table.check(); err != nil {
		return err
	}
	if err := s.finished.check(); err != nil {
		return err
	}
	if err := s.requests.check(); err != nil {
		return err
	}
	if n := s.table.count(); s.byKey.size != n || s.order.len() != n {
		return fmt.Errorf("%d records, %d in the index, %d in the order", n, s.byKey.size, s.order.len())
	}
	if s.byFinished.size != s.finished.live || s.byRequest.size != s.requests.len() {
		return fmt.Errorf("%d finished and %d requests, %d and %d in the indexes", s.finished.live, s.requests.len(),
			s.byFinished.size, s.byRequest.size)
	}
	for name, x := range map[string]*index{"key": &s.byKey, "finished": &s.byFinished, "request": &s.byRequest} {
		if err := x.check(); err != nil {
			return fmt.Errorf("%s index: %w", name, err)
		}
	}
	var sum uint64
	for _, part := range []func(*uint64) error{s.checkRecords, s.checkFinished, s.checkRequests, s.checkReigns} {
		if err := part(&sum); err != nil {
			return err
		}
	}
	if sum != s.sum {
		return fmt.Errorf("state sum is %016x, its parts give %016x", s.sum, sum)
	}
	if err := s.order.check(); err != nil {
		return fmt.Errorf("order: %w", err)
	}
	return nil
}

func (s *state) checkRecords(sum *uint64) error {
	accepted, payloads, paused, dead := map[uint64]bool{}, int64(0), 0, 0
	for slot := range s.table.length {
		r := s.table.at(slot)
		if r.where == 0 {
			continue
		}
		namespace, c := s.table.namespace(&r), s.table.body(&r)
		t := s.find(namespace, c.id)
		if !t.pending || t.slot != slot {
			return fmt.Errorf("slot %d (%s/%s) is not what its key finds", slot, namespace, c.id)
		}
		if _, ok := s.findFinished(&t); ok {
			return fmt.Errorf("%s/%s is pending and finished", namespace, c.id)
		}
		if r.accepted == 0 || r.accepted > s.accepted || accepted[r.accepted] {
			return fmt.Errorf("%s/%s has place %d of %d, or it is taken", namespace, c.id, r.accepted, s.accepted)
		}
		if r.revision == 0 || r.revision > s.index || c.created > s.clock {
			return fmt.Errorf("%s/%s of revision %d, created %d, is younger than index %d, clock %d", namespace, c.id, r.revision, c.created, s.index, s.clock)
		}
		if err := s.checkExtra(namespace, &r, &c); err != nil {
			return fmt.Errorf("%s/%s: %w", namespace, c.id, err)
		}
		switch p := &s.table.profiles[r.profile]; {
		case p.isDead():
			dead++
		case p.parked:
			paused++
		}
		accepted[r.accepted] = true
		payloads += int64(len(c.payload))
		*sum += s.recordSum(&r, &c)
	}
	if payloads != s.payloads || paused != s.paused || dead != s.dead {
		return fmt.Errorf("payloads of %d bytes, %d paused, %d dead, counted %d, %d, %d", payloads, paused, dead, s.payloads, s.paused, s.dead)
	}
	return s.checkLoad()
}

// checkExtra verifies that the profile says what the blob does, and that the parts of an Extra fit together.
func (s *state) checkExtra(namespace string, r *record, c *body) error {
	p, x := &s.table.profiles[r.profile], c.more()
	want := *p
	want.mark(x)
	switch g := glanceAt(c.extra); {
	case want != *p:
		return fmt.Errorf("its profile says extra %v, parked %v, its blob %v, %v", p.extra, p.parked, want.extra, want.parked)
	case !bytes.Equal(encodeExtra(x), c.extra):
		return errors.New("its extra part is not in the one form")
	case (x.GetDead() != nil) != p.isDead():
		return errors.New("it is a dead letter, or lies among them, but not both")
	case g.expiry != x.GetExpiryMs() || g.atMostOnce != x.GetAtMostOnce() || (g.repeat != nil) != (x.GetRepeat() != nil) ||
		g.spawns != (x.GetRepeat().GetOverlap() == overlapAllow):
		return errors.New("a glance at it tells something else")
	case (x.GetWebhook() != "") != (p.queue[0] == 0):
		return fmt.Errorf("its queue is %q, its webhook %q", p.queue, x.GetWebhook())
	case !x.GetPaused() && (x.GetFrozen() || x.GetOutRevision() != 0 || x.GetPausedMs() != 0) || !x.GetFrozen() && x.GetLeftMs() != 0:
		return errors.New("it is not paused, or not frozen, and has what only such timers have")
	case x.GetOutRevision() > r.revision || len(x.GetFailures()) > maxFailures:
		return errors.New("a delivery that is out is younger than its pause, or too many failures are kept")
	}
	if rep := x.GetRepeat(); rep != nil {
		if refused := validRule(string(s.table.id(r)), rep); refused != nil {
			return errors.New(refused.Detail)
		}
		if rep.MaxCount > 0 && rep.Fired >= rep.MaxCount {
			return fmt.Errorf("it has fired %d of %d times", rep.Fired, rep.MaxCount)
		}
	}
	return nil
}

// checkLoad verifies the counts by the second, if there are any.
func (s *state) checkLoad() error {
	if s.load.seconds == nil {
		return nil
	}
	seconds, minutes := map[int64]uint32{}, map[int64]loadMinute{}
	s.table.each(func(r *record) {
		if !s.table.profiles[r.profile].parked {
			seconds[secondOf(r.nextDue)]++
		}
	})
	for at := range seconds {
		m := minutes[at>>loadBits]
		m.used++
		minutes[at>>loadBits] = m
	}
	for at, m := range s.load.minutes {
		for second := at << loadBits; m.least > 0 && second < (at+1)<<loadBits; second++ {
			if seconds[second] < m.least {
				return fmt.Errorf("second %d has %d timers, its minute says %d", second, seconds[second], m.least)
			}
		}
		if m.used != minutes[at].used {
			return fmt.Errorf("minute %d has %d seconds in use, counted %d", at, minutes[at].used, m.used)
		}
	}
	if !maps.Equal(seconds, s.load.seconds) || len(minutes) != len(s.load.minutes) {
		return fmt.Errorf("%d seconds in %d minutes have timers, counted %d in %d", len(seconds), len(minutes), len(s.load.seconds), len(s.load.minutes))
	}
	return nil
}

func (s *state) checkReigns(sum *uint64) error {
	for i := range s.reigns {
		r := &s.reigns[i]
		if r.Epoch > s.epoch || r.Begun > s.clock || i > 0 && s.reigns[i-1].Epoch >= r.Epoch || i >= maxReigns {
			return fmt.Errorf("reign %d of %d is of epoch %d, begun %d; it is %d, clock %d", i, len(s.reigns), r.Epoch, r.Begun, s.epoch, s.clock)
		}
		*sum += s.reignSum(r)
	}
	return nil
}

func (s *state) checkFinished(sum *uint64) error {
	view, at := s.finished.share(), int64(-1<<63)
	return view.each(func(seq uint64, c *finishedChunk, i uint64) error {
		namespace, id, _ := c.texts(i)
		t := s.find(string(namespace), string(id))
		if got, ok := s.findFinished(&t); !ok || got != seq {
			return fmt.Errorf("finished %d (%s/%s) is not what its key finds: %d", seq, namespace, id, got)
		}
		if it := &c.items[i]; it.at < at || it.at > s.clock {
			return fmt.Errorf("finished %d (%s/%s) ended at %d, after one of %d, clock %d", seq, namespace, id, it.at, at, s.clock)
		}
		at = c.items[i].at
		*sum += s.finishedSum(seq)
		return nil
	})
}

func (s *state) checkRequests(sum *uint64) error {
	view, at := s.requests.share(), int64(-1<<63)
	return view.each(func(seq uint64, it *requestItem) error {
		place := requestHashes{it.high, it.low}.place()
		ref, cell, ok := s.byRequest.first(place)
		for ok && ref != uint32(seq) {
			ref, cell, ok = s.byRequest.next(place, cell)
		}
		if !ok || s.requests.sequence(ref) != seq {
			return fmt.Errorf("request %d is not in the index", seq)
		}
		if it.at < at || it.at > s.clock {
			return fmt.Errorf("request %d is of %d, after one of %d, clock %d", seq, it.at, at, s.clock)
		}
		at = it.at
		*sum += s.requestSum(seq, it)
		return nil
	})
}

// check verifies that each number can be found from its home, and the counts.
func (x *index) check() error {
	size := 0
	for part := range x.parts {
		p := &x.parts[part]
		used, n := 0, len(p.cells)
		for i, c := range p.cells {
			if c == 0 {
				continue
			}
			used++
			for j := home(c, n); j != i; j = (j + 1) % n {
				if p.cells[j] == 0 {
					return fmt.Errorf("part %d: cell %d cannot be reached from its home", part, i)
				}
			}
		}
		if used != p.used || used*4 > len(p.cells)*3 {
			return fmt.Errorf("part %d: %d of %d cells are used, counted %d", part, used, len(p.cells), p.used)
		}
		size += used
	}
	if size != x.size {
		return fmt.Errorf("%d cells are used, counted %d", size, x.size)
	}
	return nil
}

func (l *leadership) check(s *state) error {
	held, open := 0, 0
	var err error
	l.notes.each(func(slot uint32, n note) {
		if s.table.where(slot) == 0 {
			err = fmt.Errorf("slot %d is free and has a note", slot)
		}
		held += int(n & noteHeld)
	})
	if err := cmp.Or(err, l.notes.check()); err != nil {
		return err
	}
	for key, n := range l.absent {
		if t := s.find(key.namespace, key.id); t.pending || n == 0 {
			return fmt.Errorf("%s/%s has %d holds apart from its slot", key.namespace, key.id, n)
		}
		held += int(n)
	}
	for _, is := range l.holds.open {
		if is {
			open++
		}
	}
	if held != open {
		return fmt.Errorf("%d holds on timers, %d open", held, open)
	}
	return nil
}

func (t *noteTable) check() error {
	used := 0
	for i := range t.cells {
		c := &t.cells[i]
		if c.note == 0 {
			continue
		}
		if used++; t.find(c.slot) != i {
			return fmt.Errorf("the note of slot %d is in cell %d, its slot finds %d", c.slot, i, t.find(c.slot))
		}
	}
	if used != t.used || used*4 > len(t.cells)*3 {
		return fmt.Errorf("%d notes in %d cells, counted %d", used, len(t.cells), t.used)
	}
	return nil
}
