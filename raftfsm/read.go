package raftfsm

import (
	"strings"

	logv1 "github.com/carillon-timers/carillon/proto/carillonlog/v1"
)

// Get returns a timer that is pending, or that finished within the retention.
func (f *FSM) Get(namespace, id string) (Status, bool) {
	namespace = space(namespace)
	f.mu.Lock()
	defer f.mu.Unlock()
	t := f.s.find(namespace, id)
	if t.pending {
		st := f.pending(t.slot, &t.record)
		st.Reigns = f.s.reigns
		return st, true
	}
	it := f.s.finishedItem(&t)
	if it == nil {
		return Status{}, false
	}
	seq, _ := f.s.findFinished(&t)
	_, _, queue := f.s.finishedTexts(seq)
	l := f.s.lifeAt(seq)
	record := &Record{
		Namespace: strings.Clone(namespace), ID: strings.Clone(id), Queue: string(queue), Due: it.due, NextDue: it.due,
		Revision: it.revision, Attempt: it.attempt, Created: it.created,
	}
	if len(l.failures) > 0 {
		record.Extra = &logv1.Extra{Failures: l.failures}
	}
	if it.state == Dead {
		if letter := f.s.letterOf(namespace, id, it.revision); letter != nil {
			record.LastError, record.Extra, record.Retry = letter.LastError, letter.Extra, letter.Retry
		}
	}
	return Status{
		Record: record,
		State:  it.state, FinishedAt: it.at, HandedAt: l.handed, HandedEpoch: l.epoch, Fired: l.fired, Reigns: f.s.reigns,
	}, true
}

// letterOf is the dead letter of a timer that died in the entry of the revision; nil if it is gone.
func (s *state) letterOf(namespace, id string, revision uint64) *Record {
	var letter *Record
	namespace = deadNamespace(namespace)
	s.order.from(namespace, letterKey(revision, 0), func(slot uint32) bool {
		r := s.table.at(slot)
		if r.revision != revision || s.table.namespace(&r) != namespace {
			return false
		}
		c := s.table.body(&r)
		if c.more().GetDead().GetId() == id {
			letter = s.table.build(&r)
		}
		return letter == nil
	})
	return letter
}

// pending is the status of a record in the table. Called with mu held.
func (f *FSM) pending(slot uint32, r *record) Status {
	st := Status{Record: f.s.table.build(r), State: f.stateOf(slot, r)}
	if st.State == Firing {
		st.HandedAt, st.HandedEpoch = f.lead.notes.when(slot), f.lead.epoch
	}
	if x := st.Record.Extra; x.GetRepeat() != nil {
		st.Fired = x.Repeat.Fired
	}
	return st
}

// stateOf is how far a record in the table has come. Called with mu held.
func (f *FSM) stateOf(slot uint32, r *record) State {
	p := &f.s.table.profiles[r.profile]
	switch {
	case p.isDead():
		return Dead
	case p.parked:
		return Paused
	case f.lead.notes.at(slot)&noteHanded != 0:
		return Firing
	}
	return Pending
}

// List returns a page of pending timers, or their number. A limit that is not positive, or above MaxPageItems, means
// MaxPageItems; a page holds at least one timer, if one is found among those that the call looks at.
func (f *FSM) List(q ListQuery) ListPage {
	namespace := space(q.Namespace)
	if q.Dead {
		namespace, q.Prefix, q.Filter = deadNamespace(namespace), "", &logv1.Filter{Queue: q.Filter.GetQueue()}
	}
	if q.Limit <= 0 || q.Limit > MaxPageItems {
		q.Limit = MaxPageItems
	}
	if q.Look <= 0 || q.Look > MaxLook {
		q.Look = MaxLook
	}
	start, size, looked := q.Prefix, 0, 0
	if q.After >= start && q.After != "" {
		start = q.After + "\x00" // the first ID behind After; no ID holds a zero byte
	}
	var page ListPage
	last := noSlot
	f.mu.Lock()
	defer f.mu.Unlock()
	t := &f.s.table
	fits := f.filter(q.Filter)
	var one record
	f.s.order.from(namespace, start, func(slot uint32) bool {
		one = t.at(slot)
		r := &one
		if t.namespace(r) != namespace || !strings.HasPrefix(borrow(t.id(r)), q.Prefix) {
			return false
		}
		if looked++; looked > q.Look {
			page.More = true
			return false
		}
		if !fits(slot, r) {
			last = slot
			return true
		}
		if q.Count {
			page.Count++
			last = slot
			return true
		}
		size += t.size(r)
		if len(page.Timers) == q.Limit || size > MaxPageBytes && len(page.Timers) > 0 {
			page.More = true
			return false
		}
		page.Timers, last = append(page.Timers, f.pending(slot, r)), slot
		return true
	})
	if page.More && last != noSlot {
		_, id := t.key(last)
		page.Last = string(id)
	}
	return page
}

// noSlot is no number of a slot.
const noSlot = ^uint32(0)

// size is about what the timer takes in an answer, in bytes.
func (v *view) size(r *record) int {
	c, p := v.body(r), &v.profiles[r.profile]
	n := 96 + len(p.namespace) + len(c.id) + len(p.queue) + len(c.payload) + len(p.contentType) + len(c.lastError) + len(c.extra)
	for _, pairs := range [2][]byte{c.headers, c.labels} {
		for _, pair := range pairsOf(pairs, nil) {
			n += 8 + len(pair.Key) + len(pair.Value)
		}
	}
	return n
}

// Stats counts what the shard keeps. Finished timers and requests that are over their retention count until they are dropped.
func (f *FSM) Stats() Stats {
	f.mu.Lock()
	defer f.mu.Unlock()
	s := f.s
	return Stats{
		Pending: s.table.count() - s.paused - s.dead, Paused: s.paused, Dead: s.dead, Finished: s.finished.live, Requests: s.requests.len(), PayloadBytes: s.payloads,
		AppliedIndex: s.index, Epoch: s.epoch, Clock: s.clock, EpochClock: s.epochClock,
	}
}

// Hash is the hash of the replicated state. It is equal on replicas at one index; see HashAt to have both.
func (f *FSM) Hash() uint64 {
	_, hash := f.HashAt()
	return hash
}

// HashAt is the index of the last entry and the hash of the state after it. It costs nothing: the hash is kept up to date.
func (f *FSM) HashAt() (index, hash uint64) {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.s.index, f.s.digest()
}
