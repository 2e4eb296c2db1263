package raftfsm

import (
	"strconv"
	"strings"
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

func (f *FSM) schedule(e *entry, c *command) Result {
	if r, ok := f.s.validSchedule(e, c); !ok {
		return r
	}
	return f.once(requestSchedule, c.namespace, c.id, c.requestID, func() Result { return f.scheduleNow(e, c) })
}

func (f *FSM) scheduleNow(e *entry, c *command) Result {
	s := f.s
	t := s.findHash(c.namespace, c.id, c.hash)
	if !t.pending {
		if c.expected != 0 {
			return Result{Code: RevisionMismatch, Detail: revisionText(0)}
		}
		if seq, ok := s.findFinished(&t); ok {
			s.forget(seq)
		}
		r, b := f.recordOf(e, c)
		t.hint = c.hint
		s.insert(&t, &r, &b)
		f.lead.occupy(&t)
		f.ops = append(f.ops, arm(t.slot, &r))
		return Result{Revision: r.revision, Due: r.nextDue}
	}
	old := &t.record
	switch {
	case c.expected != 0 && c.expected != old.revision:
		return Result{Code: RevisionMismatch, Revision: old.revision, Detail: revisionText(old.revision)}
	case c.ifExists == ifExistsKeep:
		return Result{Revision: old.revision, Due: old.nextDue, Answer: AnswerKept}
	case c.ifExists == ifExistsFail:
		return Result{Code: AlreadyExists, Revision: old.revision, Detail: revisionText(old.revision)}
	}
	r, b := f.recordOf(e, c)
	return f.change(&t, &r, &b)
}

// change puts a changed timer in the target's place. Its profile has been counted.
func (f *FSM) change(t *target, r *record, c *body) Result {
	f.s.replace(t, r, c)
	f.lead.changed(t.slot)
	f.ops = append(f.ops, arm(t.slot, r))
	return Result{Revision: r.revision, Due: r.nextDue}
}

// recordOf makes the two parts of a new timer.
func (f *FSM) recordOf(e *entry, c *command) (record, body) {
	s := f.s
	s.accepted++
	r := record{nextDue: c.due, accepted: s.accepted, revision: s.index, profile: s.profileOf(c)}
	b := body{id: c.id, due: c.due, created: s.clock, payload: c.payload}
	b.headers, b.labels = s.pairsOf(e, c)
	return r, b
}

// profileOf counts one more use of what the command shares with others.
func (s *state) profileOf(c *command) uint32 {
	p := profileOf(c.namespace, c.queue, c.contentType, policyOf(c.retry))
	return s.table.intern(s.seed, &p)
}

// pairsOf is the headers and labels of a command as they lie in a blob, good until the next call.
func (s *state) pairsOf(e *entry, c *command) (headers, labels []byte) {
	b := appendPairs(s.attributes[:0], e.headers(c))
	n := len(b)
	b = appendPairs(b, e.labels(c))
	s.attributes = b
	return b[:n], b[n:]
}

func (f *FSM) cancel(t *target, c *command) Result {
	if r, ok := validKey(t.namespace, t.id); !ok {
		return r
	}
	if r, ok := validRequestID(c.requestID); !ok {
		return r
	}
	handed := t.pending && f.lead.wasHanded(t.slot)
	r := f.once(requestCancel, t.namespace, t.id, c.requestID, func() Result { return f.cancelNow(t, c) })
	// Only a released hold lets a timer be handed out between Stamp and here. The one who waits is told; what is
	// remembered is what all replicas know.
	if handed && r.Code == OK && !f.s.unchanged(t) {
		r.Answer = AnswerFiring
	}
	return r
}

func (f *FSM) cancelNow(t *target, c *command) Result {
	s := f.s
	if !t.pending {
		it := s.finishedItem(t)
		if it == nil {
			return Result{Code: NotFound}
		}
		return Result{Revision: it.revision, Answer: it.answer()}
	}
	if r := &t.record; c.expected != 0 && c.expected != r.revision {
		return Result{Code: RevisionMismatch, Revision: r.revision, Detail: revisionText(r.revision)}
	}
	f.settle(t, Cancelled, c.firing)
	if c.firing {
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

func (f *FSM) reschedule(c *command) Result {
	if r, ok := validKey(c.namespace, c.id); !ok {
		return r
	}
	if r, ok := validRequestID(c.requestID); !ok {
		return r
	}
	if r, ok := f.s.validDue(c.due, c.isDelay); !ok {
		return r
	}
	return f.once(requestReschedule, c.namespace, c.id, c.requestID, func() Result { return f.rescheduleNow(c) })
}

func (f *FSM) rescheduleNow(c *command) Result {
	s := f.s
	t := s.findHash(c.namespace, c.id, c.hash)
	if !t.pending {
		r := Result{Code: NotFound}
		if it := s.finishedItem(&t); it != nil {
			r.Detail = map[State]string{Fired: "fired", Cancelled: "cancelled"}[it.state]
		}
		return r
	}
	r, b := t.record, s.table.body(&t.record)
	if c.expected != 0 && c.expected != r.revision {
		return Result{Code: RevisionMismatch, Revision: r.revision, Detail: revisionText(r.revision)}
	}
	s.accepted++
	r.nextDue, r.attempt, r.accepted, r.revision = c.due, 0, s.accepted, s.index
	b.due, b.lastError = c.due, ""
	s.table.index.refs[r.profile]++
	return f.change(&t, &r, &b)
}

func (f *FSM) complete(t *target, c *command) Result {
	if r, ok := f.delivered(t, c); !ok {
		return r
	}
	f.settle(t, Fired, false)
	return Result{Revision: f.s.index}
}

func (f *FSM) retry(t *target, c *command) Result {
	s := f.s
	if r, ok := s.validDue(c.due, false); !ok {
		return r
	}
	if r, ok := f.delivered(t, c); !ok {
		return r
	}
	r, b := t.record, s.table.body(&t.record)
	r.nextDue, r.revision, b.lastError = c.due, s.index, cutError(c.errorText)
	if r.attempt < 1<<32-1 {
		r.attempt++
	}
	s.table.index.refs[r.profile]++
	return f.change(t, &r, &b)
}

// delivered says that the target is still at the delivery that a command settles, which no epoch to come can have handed out.
func (f *FSM) delivered(t *target, c *command) (Result, bool) {
	if r, ok := validKey(t.namespace, t.id); !ok {
		return r, false
	}
	if !t.pending || t.record.revision != c.revision || t.record.attempt != c.attempt {
		return stale(t), false
	}
	if c.tokenEpoch > f.s.epoch {
		return forged(t, c.tokenEpoch, f.s.epoch), false
	}
	return Result{}, true
}

// forged is the answer to a token of an epoch that has not been.
func forged(t *target, tokenEpoch, epoch uint64) Result {
	return Result{Code: StaleToken, Revision: t.record.revision, Detail: "its epoch " + revisionText(tokenEpoch) + " has not been, it is " + revisionText(epoch)}
}

func stale(t *target) Result {
	if !t.pending {
		return Result{Code: StaleToken, Detail: "no such timer is pending"}
	}
	r := &t.record
	return Result{Code: StaleToken, Revision: r.revision, Detail: "revision " + revisionText(r.revision) + ", attempt " + revisionText(uint64(r.attempt))}
}

// cutError cuts a text to MaxErrorBytes of valid UTF-8.
func cutError(text string) string {
	return strings.ToValidUTF8(text[:min(len(text), MaxErrorBytes)], "")
}
