package executor

import (
	logv1 "github.com/carillon-timers/carillon/proto/carillonlog/v1"
	"github.com/carillon-timers/carillon/raftfsm"
)

// askAgain is how long a slot waits for the command that follows from a verdict, in milliseconds, until it is looked at again. A
// second command for the same revision changes nothing.
const askAgain = 1000

// askingMax is for how many slots at once commands are proposed without a consumer (timers that expire, repeats whose due times
// become timers). The others of a pile are put off, so that it flows at this rate a second at least, and does not crowd the proposer.
const askingMax = 16_384

// asked is a command that a Take has found to be necessary, because the table did not simply give the timer out.
type asked struct {
	cmd *raftfsm.Command
	// owed is what is handed out once the command is applied; its Record is nil if nothing is (the command is no Complete ahead).
	owed owed
}

// owed is an at-most-once timer whose completion was asked for or is applied: the one that asked owes it to a consumer, and
// nobody else will ever hand it out.
type owed struct {
	entry readyEntry
	Delivery
}

// aheadList is what a queue has of at-most-once timers. Guarded by its Exec's mu.
type aheadList struct {
	// asked counts the slots that are held because their completion is on its way: they take credit, so that no more of them
	// are completed than consumers have asked for.
	asked int
	// owed are completed, in the order in which they are to be handed out. They outlive a change of role.
	owed []owed
}

// ask notes a command that follows from a verdict, and keeps its slot back. The caller holds mu.
func (e *Exec) ask(h raftfsm.Handed, entry readyEntry, now reading) {
	r := h.Record
	s := *e.slots.get(entry.slot)
	at := now.millis + askAgain
	if s.at > at {
		e.rearm = append(e.rearm, entry.slot)
	}
	s.state, s.list, s.asked, s.at = stateHeld, nil, true, at
	a := asked{}
	switch h.Verdict {
	case raftfsm.Missed:
		e.stats.missed.Add(1)
		a.cmd = advanceOf(r)
	case raftfsm.PastExpiry:
		e.stats.expired.Add(1)
		a.cmd = expireOf(r)
	case raftfsm.Ahead:
		a.cmd = &raftfsm.Command{Kind: &logv1.Command_Complete{Complete: &logv1.Complete{
			Namespace: r.Namespace, Id: r.ID, Revision: r.Revision, Attempt: r.Attempt, TokenEpoch: e.epoch,
			HandedMs: now.millis, Ahead: true,
		}}}
		a.owed = owed{entry, Delivery{Record: r, Token: e.token(r)}}
		s.record, s.ahead = r, true
		e.aheadOf(Queue{r.Namespace, r.Queue}).asked++
	}
	e.asking++
	e.slots.put(entry.slot, s)
	e.taken.asked = append(e.taken.asked, a)
}

func advanceOf(r *raftfsm.Record) *raftfsm.Command {
	return &raftfsm.Command{Kind: &logv1.Command_Advance{Advance: &logv1.Advance{
		Namespace: r.Namespace, Id: r.ID, Revision: r.Revision, Attempt: r.Attempt,
	}}}
}

func expireOf(r *raftfsm.Record) *raftfsm.Command {
	return &raftfsm.Command{Kind: &logv1.Command_Expire{Expire: &logv1.Expire{
		Namespace: r.Namespace, Id: r.ID, Revision: r.Revision, Attempt: r.Attempt,
	}}}
}

// propose hands on what a Take has asked for. What is not taken, or gets lost, is asked for again when the wheel brings the
// slot out. It is called under no lock.
func (e *Exec) propose(q Queue, term uint64, list []asked) {
	cmds := make([]*raftfsm.Command, len(list))
	for i := range list {
		cmds[i] = list[i].cmd
	}
	done := func(results []raftfsm.Result) { e.answered(q, term, list, results) }
	if !e.o.Settle(cmds, done) {
		e.retryIn(e.loop.clock.read(), leaseRetry)
	}
}

// answered is called when what a Take has asked for is applied: what was completed ahead is owed, and the queue, which may
// have more to give, is looked at.
func (e *Exec) answered(q Queue, term uint64, list []asked, results []raftfsm.Result) {
	e.mu.Lock()
	for i, a := range list {
		if a.owed.Record != nil && results[i].Code == raftfsm.OK {
			l := e.aheadOf(q)
			l.owed = append(l.owed, a.owed)
			e.owing.Add(1)
		}
	}
	if e.term == term || e.owing.Load() > 0 {
		e.news = append(e.news, q)
	}
	e.mu.Unlock()
	e.wake()
}

// aheadOf returns the queue's list of at-most-once timers, a new one if it has none. The caller holds mu.
func (e *Exec) aheadOf(q Queue) *aheadList {
	l := e.ahead[q]
	if l == nil {
		l = new(aheadList)
		e.ahead[q] = l
	}
	return l
}

// pay hands out what the queue is owed, at most so much. Nothing else needs to be looked at: it was due, its completion is on a
// majority, and nobody else has it. The caller holds mu.
func (e *Exec) pay(q Queue, max int, now reading) (out []Delivery) {
	l := e.ahead[q]
	if l == nil || len(l.owed) == 0 {
		return nil
	}
	n := min(max, len(l.owed))
	for _, o := range l.owed[:n] {
		o.HandedOut, o.Token.HandedOut = now.millis, now.millis
		e.observe(o.entry, o.Record, now)
		out = append(out, o.Delivery)
	}
	l.owed = append([]owed(nil), l.owed[n:]...)
	e.owing.Add(int64(-n))
	e.dropAhead(q, l)
	return out
}

func (e *Exec) dropAhead(q Queue, l *aheadList) {
	if l.asked == 0 && len(l.owed) == 0 {
		delete(e.ahead, q)
	}
}

// unask notes that a slot waits for its command no more. The caller holds mu.
func (e *Exec) unask(s *slotState) {
	if s.asked {
		e.asking--
	}
	if !s.ahead {
		return
	}
	q := Queue{s.record.Namespace, s.record.Queue}
	if l := e.ahead[q]; l != nil {
		l.asked--
		e.dropAhead(q, l)
	}
}

// unaskAll forgets what is asked for, because the slots are forgotten; what is owed stays. The caller holds mu.
func (e *Exec) unaskAll() {
	e.asking = 0
	for q, l := range e.ahead {
		l.asked = 0
		e.dropAhead(q, l)
	}
}

// unattended settles what needs no consumer: a timer that has expired, and a repeat that makes timers of its due times. It says
// when the slot is to come out of the wheel again, or false if it is neither. The caller holds mu.
func (e *Exec) unattended(slot uint32, info *raftfsm.DueInfo, now int64, w *work) (at int64, ok bool) {
	expired := info.Expiry != 0 && now >= info.Expiry
	if !expired && (!info.Spawns || info.NextDue > now) || info.Held || info.Handed {
		return 0, false
	}
	if s := e.slots.get(slot); s != nil && s.asked && s.at > now {
		return s.at, true
	}
	if s := e.slots.get(slot); s != nil {
		e.forget(slot, s)
	}
	if e.asking >= askingMax {
		at = now + askAgain + int64(e.slots.count[stateHeld]-e.asking)*1000/askingMax
		e.slots.put(slot, slotState{revision: info.Revision, at: at, state: stateHeld})
		return at, true
	}
	r := e.o.Table.Record(slot)
	if r == nil || r.Revision != info.Revision {
		return 0, false // It has changed, and an op is on its way.
	}
	if expired {
		e.stats.expired.Add(1)
		w.settle(e, expireOf(r))
	} else {
		w.settle(e, advanceOf(r))
	}
	at = now + askAgain
	e.asking++
	e.slots.put(slot, slotState{revision: info.Revision, at: at, state: stateHeld, asked: true})
	return at, true
}
