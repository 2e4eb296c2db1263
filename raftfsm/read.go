package raftfsm

import "strings"

// Get returns a timer that is pending, or that finished within the retention.
func (f *FSM) Get(namespace, id string) (Status, bool) {
	namespace = space(namespace)
	f.mu.Lock()
	defer f.mu.Unlock()
	t := f.s.find(namespace, id)
	if t.pending {
		return f.pending(t.slot, &t.record), true
	}
	it := f.s.finishedItem(&t)
	if it == nil {
		return Status{}, false
	}
	seq, _ := f.s.findFinished(&t)
	_, _, queue := f.s.finishedTexts(seq)
	return Status{
		Record: &Record{
			Namespace: strings.Clone(namespace), ID: strings.Clone(id), Queue: string(queue), Due: it.due, NextDue: it.due,
			Revision: it.revision, Attempt: it.attempt, Created: it.created,
		},
		State: it.state, FinishedAt: it.at,
	}, true
}

// pending is the status of a record in the table. Called with mu held.
func (f *FSM) pending(slot uint32, r *record) Status {
	st := Status{Record: f.s.table.build(r), State: Pending}
	if f.lead.notes.at(slot)&noteHanded != 0 {
		st.State = Firing
	}
	return st
}

// List returns a page of pending timers. A limit that is not positive, or above MaxPageItems, means MaxPageItems; a page
// holds at least one timer.
func (f *FSM) List(q ListQuery) ListPage {
	namespace, limit := space(q.Namespace), q.Limit
	if limit <= 0 || limit > MaxPageItems {
		limit = MaxPageItems
	}
	start, size := q.Prefix, 0
	if q.After >= start && q.After != "" {
		start = q.After + "\x00" // the first ID behind After; no ID holds a zero byte
	}
	var page ListPage
	f.mu.Lock()
	defer f.mu.Unlock()
	f.s.order.from(namespace, start, func(slot uint32) bool {
		r := f.s.table.at(slot)
		if f.s.table.namespace(r) != namespace || !strings.HasPrefix(borrow(f.s.table.id(r)), q.Prefix) {
			return false
		}
		size += f.s.table.size(r)
		if len(page.Timers) == limit || size > MaxPageBytes && len(page.Timers) > 0 {
			page.More = true
			return false
		}
		page.Timers = append(page.Timers, f.pending(slot, r))
		return true
	})
	return page
}

// size is about what the timer takes in an answer, in bytes.
func (v *view) size(r *record) int {
	c, p := v.body(r), &v.profiles[r.profile]
	n := 96 + len(p.namespace) + len(c.id) + len(p.queue) + len(c.payload) + len(p.contentType) + len(c.lastError)
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
		Pending: s.table.count(), Finished: s.finished.live, Requests: s.requests.len(), PayloadBytes: s.payloads,
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
