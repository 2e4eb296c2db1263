package raftfsm

import (
	"strconv"
	"strings"

	logv1 "github.com/carillon-timers/carillon/proto/carillonlog/v1"
)

// Values of Schedule.if_exists.
const (
	ifExistsFail    = 0
	ifExistsReplace = 1
	ifExistsKeep    = 2
)

// All methods here are called with mu held.

// once runs a write with a request ID only if it is not remembered, and remembers it if it is OK.
func (f *FSM) once(kind byte, namespace, id string, requestID []byte, write func() Result) Result {
	if len(requestID) == 0 {
		return write()
	}
	high, low := requestKey(kind, namespace, id, requestID)
	if it := f.s.findRequest(high, low); it != nil {
		return Result{Revision: it.revision, Due: it.due, Answer: it.answer}
	}
	r := write()
	if r.Code == OK {
		f.s.remember(requestItem{
			high: high, low: low, revision: r.Revision, due: r.Due, at: f.s.clock, answer: r.Answer,
		})
	}
	return r
}

func revisionText(revision uint64) string { return strconv.FormatUint(revision, 10) }

func (f *FSM) schedule(c *logv1.Schedule) Result {
	c.Namespace = space(c.Namespace)
	if r, ok := f.s.validSchedule(c); !ok {
		return r
	}
	return f.once(requestSchedule, c.Namespace, c.Id, c.RequestId, func() Result { return f.scheduleNow(c) })
}

func (f *FSM) scheduleNow(c *logv1.Schedule) Result {
	s := f.s
	t := s.find(c.Namespace, c.Id)
	old := t.record
	if old == nil {
		if c.ExpectedRevision != 0 {
			return Result{Code: RevisionMismatch, Detail: revisionText(0)}
		}
		if seq, ok := s.findFinished(&t); ok {
			s.forget(seq)
		}
		r := f.recordOf(c)
		t.slot = s.insert(t.hash, r)
		f.lead.occupy(&t)
		f.ops = append(f.ops, s.arm(t.slot, r))
		return Result{Revision: r.Revision, Due: r.NextDue}
	}
	switch {
	case c.ExpectedRevision != 0 && c.ExpectedRevision != old.Revision:
		return Result{Code: RevisionMismatch, Revision: old.Revision, Detail: revisionText(old.Revision)}
	case c.IfExists == ifExistsKeep:
		return Result{Revision: old.Revision, Due: old.NextDue, Answer: AnswerKept}
	case c.IfExists == ifExistsFail:
		return Result{Code: AlreadyExists, Revision: old.Revision, Detail: revisionText(old.Revision)}
	}
	return f.change(&t, f.recordOf(c))
}

// change puts a changed record in the target's place.
func (f *FSM) change(t *target, r *Record) Result {
	f.s.replace(t, r)
	f.lead.changed(t.slot)
	f.ops = append(f.ops, f.s.arm(t.slot, r))
	return Result{Revision: r.Revision, Due: r.NextDue}
}

// recordOf takes over the texts and the payload of the command.
func (f *FSM) recordOf(c *logv1.Schedule) *Record {
	s := f.s
	s.accepted++
	return &Record{
		Namespace: s.name(c.Namespace), ID: c.Id, Queue: s.name(c.Queue), Payload: c.Payload,
		ContentType: s.name(c.ContentType), Headers: s.pairs(c.Headers), Labels: s.pairs(c.Labels), Retry: policyOf(c.Retry),
		Due: c.DueMs, NextDue: c.DueMs, Accepted: s.accepted, Revision: s.index, Created: s.clock,
	}
}

func (s *state) pairs(pairs []*logv1.Pair) []Pair {
	if len(pairs) == 0 {
		return nil
	}
	out := make([]Pair, len(pairs))
	for i, p := range pairs {
		out[i] = Pair{s.name(p.Key), p.Value}
	}
	return out
}

func (f *FSM) cancel(t *target, c *logv1.Cancel) Result {
	if r, ok := validKey(t.namespace, t.id); !ok {
		return r
	}
	if r, ok := validRequestID(c.RequestId); !ok {
		return r
	}
	handed := t.record != nil && f.lead.wasHanded(t.slot)
	r := f.once(requestCancel, t.namespace, t.id, c.RequestId, func() Result { return f.cancelNow(t, c) })
	// Only a released hold lets a timer be handed out between Stamp and here. The one who waits is told; what is
	// remembered is what all replicas know.
	if handed && r.Code == OK && f.s.table.at(t.slot) != t.record {
		r.Answer = AnswerFiring
	}
	return r
}

func (f *FSM) cancelNow(t *target, c *logv1.Cancel) Result {
	s := f.s
	if t.record == nil {
		it := s.finishedItem(t)
		if it == nil {
			return Result{Code: NotFound}
		}
		return Result{Revision: it.revision, Answer: it.answer()}
	}
	if c.ExpectedRevision != 0 && c.ExpectedRevision != t.record.Revision {
		return Result{Code: RevisionMismatch, Revision: t.record.Revision, Detail: revisionText(t.record.Revision)}
	}
	f.settle(t, Cancelled, c.Firing)
	if c.Firing {
		return Result{Revision: s.index, Answer: AnswerFiring}
	}
	return Result{Revision: s.index, Answer: AnswerCancelled}
}

// settle takes a pending timer out of the table.
func (f *FSM) settle(t *target, how State, firing bool) {
	f.s.finish(t, how, firing)
	f.s.remove(t)
	f.lead.vacate(t)
	f.ops = append(f.ops, Op{Kind: Disarm, Slot: t.slot})
}

// finishedItem returns a finished timer within the retention.
func (s *state) finishedItem(t *target) *finishedItem {
	seq, ok := s.findFinished(t)
	if !ok {
		return nil
	}
	it := s.finishedAt(seq)
	if s.expired(it.at) {
		return nil
	}
	return it
}

// answer is that of a Cancel that comes after the end.
func (it *finishedItem) answer() uint32 {
	switch {
	case it.state == Fired:
		return AnswerFired
	case it.firing:
		return AnswerFiring
	}
	return AnswerCancelled
}

func (f *FSM) reschedule(c *logv1.Reschedule) Result {
	namespace := space(c.Namespace)
	if r, ok := validKey(namespace, c.Id); !ok {
		return r
	}
	if r, ok := validRequestID(c.RequestId); !ok {
		return r
	}
	if r, ok := f.s.validDue(c.DueMs, c.IsDelay); !ok {
		return r
	}
	return f.once(requestReschedule, namespace, c.Id, c.RequestId, func() Result { return f.rescheduleNow(namespace, c) })
}

func (f *FSM) rescheduleNow(namespace string, c *logv1.Reschedule) Result {
	s := f.s
	t := s.find(namespace, c.Id)
	if t.record == nil {
		r := Result{Code: NotFound}
		if it := s.finishedItem(&t); it != nil {
			r.Detail = map[State]string{Fired: "fired", Cancelled: "cancelled"}[it.state]
		}
		return r
	}
	if c.ExpectedRevision != 0 && c.ExpectedRevision != t.record.Revision {
		return Result{Code: RevisionMismatch, Revision: t.record.Revision, Detail: revisionText(t.record.Revision)}
	}
	r := *t.record
	s.accepted++
	r.Due, r.NextDue, r.Attempt, r.Accepted, r.Revision, r.LastError = c.DueMs, c.DueMs, 0, s.accepted, s.index, ""
	return f.change(&t, &r)
}

func (f *FSM) complete(t *target, c *logv1.Complete) Result {
	if r, ok := f.delivered(t, c.Revision, c.Attempt); !ok {
		return r
	}
	f.settle(t, Fired, false)
	return Result{Revision: f.s.index}
}

func (f *FSM) retry(t *target, c *logv1.Retry) Result {
	if r, ok := f.s.validDue(c.DueMs, false); !ok {
		return r
	}
	if r, ok := f.delivered(t, c.Revision, c.Attempt); !ok {
		return r
	}
	r := *t.record
	r.NextDue, r.Revision, r.LastError = c.DueMs, f.s.index, cutError(c.Error)
	if r.Attempt < 1<<32-1 {
		r.Attempt++
	}
	return f.change(t, &r)
}

// delivered says that the target is still at the delivery that a command settles.
func (f *FSM) delivered(t *target, revision uint64, attempt uint32) (Result, bool) {
	if r, ok := validKey(t.namespace, t.id); !ok {
		return r, false
	}
	if t.record == nil || t.record.Revision != revision || t.record.Attempt != attempt {
		return stale(t.record), false
	}
	return Result{}, true
}

func stale(r *Record) Result {
	if r == nil {
		return Result{Code: StaleToken, Detail: "no such timer is pending"}
	}
	return Result{Code: StaleToken, Revision: r.Revision, Detail: "revision " + revisionText(r.Revision) + ", attempt " + revisionText(uint64(r.Attempt))}
}

// cutError cuts a text to MaxErrorBytes of valid UTF-8.
func cutError(text string) string {
	return strings.ToValidUTF8(text[:min(len(text), MaxErrorBytes)], "")
}
