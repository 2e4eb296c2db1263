package executor

import "github.com/carillon-timers/carillon/raftfsm"

// taken is what Take uses again from call to call.
type taken struct {
	entries []readyEntry
	refs    []raftfsm.Ref
	handed  []raftfsm.Handed
	asked   []asked
}

// Take implements Source. Takes of one shard follow one another, so what two subscribers take at once is in order too.
func (e *Exec) Take(q Queue, max int) []Delivery {
	firing := e.firing.Load()
	if max <= 0 || !firing && e.owing.Load() == 0 {
		return nil
	}
	if firing && !e.o.LeaseHeld() {
		e.retryIn(e.loop.clock.read(), leaseRetry)
		firing = false
	}
	e.mu.Lock()
	now := e.loop.clock.read()
	out := e.pay(q, max, now)
	rearm, early := len(e.rearm), false
	if firing {
		out, early = e.takeLocked(q, max, now, out)
	}
	rearm = len(e.rearm) - rearm
	asked, term := e.taken.asked, e.term
	e.taken.asked = nil
	e.mu.Unlock()
	if early {
		e.retryIn(now, leaseRetry)
	}
	if rearm > 0 {
		e.wake()
	}
	if len(asked) > 0 {
		e.propose(q, term, asked)
	}
	return out
}

// takeLocked appends what it hands out to out. It also says whether it stopped at a timer that is not due by the wall clock,
// which has run back since the timer left the wheel. At-most-once timers whose completion is on its way take room, as what is
// handed out does. The caller holds mu.
func (e *Exec) takeLocked(q Queue, max int, now reading, out []Delivery) (_ []Delivery, early bool) {
	l := e.lists[q]
	if e.limit == 0 || l == nil {
		return out, false
	}
	room := max - len(out)
	if a := e.ahead[q]; a != nil {
		room -= a.asked
	}
	if out == nil && room > 0 {
		out = make([]Delivery, 0, min(room, l.len()))
	}
	t := &e.taken
	for room > 0 && !early && len(t.asked) < handOutSlice {
		if early = e.pick(l, min(room, handOutSlice), floorMillis(now.nanos)); len(t.refs) == 0 {
			break
		}
		t.handed = e.o.Table.HandOut(e.epoch, now.millis, t.refs, t.handed[:0])
		for i := range t.handed {
			switch h := t.handed[i]; h.Verdict {
			case raftfsm.Refused:
				e.refuse(t.refs[i], t.entries[i])
			case raftfsm.Give:
				out = append(out, e.handOut(t.entries[i], h.Record, now))
				room--
			case raftfsm.Ahead:
				e.ask(h, t.entries[i], now)
				room--
			default:
				e.ask(h, t.entries[i], now)
			}
		}
	}
	clear(t.handed)
	if l.len() == 0 {
		e.dropList(l)
	}
	return out, early
}

// pick pops up to n entries that are not stale, into taken.
func (e *Exec) pick(l *readyList, n int, wall int64) (early bool) {
	t := &e.taken
	t.entries, t.refs = t.entries[:0], t.refs[:0]
	for len(t.refs) < n {
		head, ok := l.head()
		if !ok {
			return false
		}
		if !e.live(head) {
			l.pop()
			l.stale--
			e.stats.dropped.Add(1)
			continue
		}
		if head.due >= e.limit {
			return false
		}
		if head.due > wall {
			return true
		}
		l.pop()
		t.entries = append(t.entries, head)
		t.refs = append(t.refs, raftfsm.Ref{Slot: head.slot, Revision: head.revision})
	}
	return false
}

// refuse notes a slot that the table did not hand out. If it is held it comes back with ReleaseHolds or the fate of the
// command that holds it; if it has changed, an op is on its way; in any case the wheel has it.
func (e *Exec) refuse(ref raftfsm.Ref, entry readyEntry) {
	e.stats.refused.Add(1)
	s := *e.slots.get(entry.slot)
	s.state, s.list = stateHeld, nil
	e.slots.put(ref.Slot, s)
}

func (e *Exec) handOut(entry readyEntry, record *raftfsm.Record, now reading) Delivery {
	leaseEnd := now.millis + record.Retry.Lease
	s := *e.slots.get(entry.slot)
	if s.at > leaseEnd {
		e.rearm = append(e.rearm, entry.slot)
	}
	s.state, s.list, s.record, s.at, s.span = stateOut, nil, record, leaseEnd, uint32(record.Retry.Lease)
	e.slots.put(entry.slot, s)
	e.observe(entry, record, now)
	d := Delivery{Record: record, Token: e.token(record), HandedOut: now.millis, LeaseEnd: leaseEnd}
	d.Token.HandedOut = now.millis
	return d
}

// token is that of a delivery under the present epoch. The caller holds mu.
func (e *Exec) token(r *raftfsm.Record) raftfsm.Token {
	return raftfsm.Token{
		Shard: e.o.Shard, Epoch: e.epoch, Revision: r.Revision, Attempt: r.Attempt, Namespace: r.Namespace, ID: r.ID,
	}
}

// observe counts a hand-out. A timer that was scheduled in the past is late from its creation on.
func (e *Exec) observe(entry readyEntry, record *raftfsm.Record, now reading) {
	e.stats.fired.Add(1)
	if record.Attempt > 0 {
		e.stats.redelivered.Add(1)
		return
	}
	e.stats.handOutLate.Observe(now.nanos/1000 - max(record.NextDue, record.Created)*1000)
	if record.NextDue >= record.Created {
		e.stats.wheelLate.Observe(int64(entry.late))
	}
}
