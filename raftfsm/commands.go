package raftfsm

import (
	"strconv"
	"strings"

	"github.com/carillon-timers/carillon/wheel"
)

// Values of Schedule.if_exists.
const (
	ifExistsFail    = 0
	ifExistsReplace = 1
	ifExistsKeep    = 2
)

// All methods here are called with mu held.

// once runs a write with a request ID only if it is not remembered, and remembers it if it is OK.
func (f *FSM) once(c *command, write func() Result) Result {
	var r Result
	key, again := f.again(c, &r)
	if again {
		return r
	}
	r = write()
	f.keep(c, key, &r)
	return r
}

// again answers a write that is remembered.
func (f *FSM) again(c *command, r *Result) (key requestHashes, again bool) {
	if len(c.requestID) == 0 {
		return key, false
	}
	key = c.request
	if !c.keyed {
		key = c.requestKey()
	}
	it, ok := f.s.findRequest(key)
	if ok {
		*r = it.result()
	}
	return key, ok
}

// keep remembers a write with a request ID that is OK.
func (f *FSM) keep(c *command, key requestHashes, r *Result) {
	if len(c.requestID) > 0 && r.Code == OK {
		f.s.remember(&requestItem{
			high: key[0], low: key[1], revision: r.Revision, due: r.Due, at: f.s.clock, answer: r.Answer,
		})
	}
}

func revisionText(revision uint64) string { return strconv.FormatUint(revision, 10) }

// schedule writes its result where it stays: a Result is long, and this is the command that comes most.
func (f *FSM) schedule(e *entry, c *command, r *Result) {
	if refused := f.s.validSchedule(e, c); refused != nil {
		*r = *refused
		return
	}
	key, again := f.again(c, r)
	if !again {
		f.scheduleNow(e, c, r)
		f.keep(c, key, r)
	}
}

func (f *FSM) scheduleNow(e *entry, c *command, result *Result) {
	s := f.s
	t := target{namespace: c.namespace, id: c.id, hash: c.hash}
	s.look(&t)
	if r := scheduleDecided(&t, c); r != nil {
		*result = *r
		return
	}
	var r record
	var b body
	if t.pending {
		f.recordOf(e, c, &r, &b)
		f.change(&t, &r, &b)
	} else {
		if seq, ok := s.findFinished(&t); ok {
			s.forget(seq)
		}
		f.recordOf(e, c, &r, &b)
		f.add(&t, &r, &b)
	}
	result.Revision, result.Due = r.revision, r.nextDue
}

// scheduleDecided is the result of a schedule that changes nothing; nil if it does.
func scheduleDecided(t *target, c *command) *Result {
	old := &t.record
	switch {
	case !t.pending && c.expected != 0:
		return &Result{Code: RevisionMismatch, Detail: revisionText(0)}
	case !t.pending:
		return nil
	case c.expected != 0 && c.expected != old.revision:
		return &Result{Code: RevisionMismatch, Revision: old.revision, Detail: revisionText(old.revision)}
	case c.ifExists == ifExistsKeep:
		return &Result{Revision: old.revision, Due: old.nextDue, Answer: AnswerKept}
	case c.ifExists == ifExistsFail:
		return &Result{Code: AlreadyExists, Revision: old.revision, Detail: revisionText(old.revision)}
	}
	return nil
}

// add puts a new timer in the target's place. Its profile has been counted.
func (f *FSM) add(t *target, r *record, c *body) {
	f.s.insert(t, r, c)
	f.lead.occupy(t)
	f.arm(t.slot, r)
}

// change puts a changed timer in the target's place. Its profile has been counted.
func (f *FSM) change(t *target, r *record, c *body) Result {
	f.s.replace(t, r, c)
	f.lead.changed(t.slot)
	f.arm(t.slot, r)
	return Result{Revision: r.revision, Due: r.nextDue}
}

// arm pushes what follows from a record that has come into a slot. One that is parked is not in the wheel; one that expires
// is looked at when it does.
func (f *FSM) arm(slot uint32, r *record) {
	op := Op{Kind: Arm, Slot: slot, When: wheel.Tick(r.nextDue)}
	switch p := &f.s.table.profiles[r.profile]; {
	case p.parked:
		op = Op{Kind: Disarm, Slot: slot}
	case p.extra:
		if expiry := f.s.table.glance(r).expiry; expiry != 0 {
			op.When = min(op.When, wheel.Tick(expiry))
		}
	}
	f.ops = append(f.ops, op)
}

// recordOf fills in the two parts of a new timer.
func (f *FSM) recordOf(e *entry, c *command, r *record, b *body) {
	s := f.s
	s.accepted++
	r.nextDue, r.accepted, r.revision, r.profile = c.due, s.accepted, s.index, s.profileOf(c)
	b.id, b.due, b.created, b.payload, b.extra = c.id, c.due, s.clock, c.payload, encodeExtra(c.extra())
	b.headers, b.labels = s.pairsOf(e, c)
}

// profileOf counts one more use of what the command shares with others.
func (s *state) profileOf(c *command) uint32 {
	p := profileOf(c.namespace, c.queue, c.contentType, policyOf(c.retry))
	if x := c.extra(); x != nil {
		p.mark(x)
	}
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
	if r := validKey(t.namespace, t.id); r != nil {
		return *r
	}
	if r := validRequestID(c.requestID); r != nil {
		return *r
	}
	handed := t.pending && f.lead.wasHanded(t.slot)
	r := f.once(c, func() Result { return f.cancelNow(t, c) })
	// Only a released hold lets a timer be handed out between Stamp and here. The one who waits is told; what is
	// remembered is what all replicas know.
	if handed && r.Code == OK && !f.s.unchanged(t) {
		r.Answer = AnswerFiring
	}
	return r
}

func (f *FSM) cancelNow(t *target, c *command) Result {
	s := f.s
	if r := s.cancelDecided(t, c); r != nil {
		return *r
	}
	firing, l := c.firing, life{}
	if s.table.profiles[t.record.profile].extra {
		x := s.edit(t).extra
		firing, l.fired, l.failures = firing || x.OutRevision != 0, x.GetRepeat().GetFired(), x.Failures
	}
	f.settle(t, Cancelled, firing, l)
	if firing {
		return Result{Revision: s.index, Answer: AnswerFiring}
	}
	return Result{Revision: s.index, Answer: AnswerCancelled}
}

// cancelDecided is the result of a cancel that changes nothing; nil if it does.
func (s *state) cancelDecided(t *target, c *command) *Result {
	if t.pending {
		return t.record.expect(c.expected)
	}
	it := s.finishedItem(t)
	switch {
	case it == nil:
		return &Result{Code: NotFound}
	case it.state == Dead || it.state == Expired:
		r := s.notPending(t)
		return &r
	}
	return &Result{Revision: it.revision, Answer: it.answer()}
}

// expect refuses a revision that is not the record's; 0 is any.
func (r *record) expect(revision uint64) *Result {
	if revision == 0 || revision == r.revision {
		return nil
	}
	return &Result{Code: RevisionMismatch, Revision: r.revision, Detail: revisionText(r.revision)}
}

// notPending is the answer to a change of a timer that is not there, or finished.
func (s *state) notPending(t *target) Result {
	it := s.finishedItem(t)
	if it == nil {
		return Result{Code: NotFound}
	}
	return Result{Code: NotPending, Revision: it.revision, Answer: uint32(it.state), Detail: it.state.String()}
}

// settle takes a pending timer out of the table.
func (f *FSM) settle(t *target, how State, firing bool, l life) {
	f.s.finish(t, how, firing, l)
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

// forged is the answer to a token of an epoch that has not been.
func forged(t *target, tokenEpoch, epoch uint64) *Result {
	return &Result{Code: StaleToken, Revision: t.record.revision, Detail: "its epoch " + revisionText(tokenEpoch) + " has not been, it is " + revisionText(epoch)}
}

func stale(t *target) *Result {
	if !t.pending {
		return &Result{Code: StaleToken, Detail: "no such timer is pending"}
	}
	r := &t.record
	return &Result{Code: StaleToken, Revision: r.revision, Detail: "revision " + revisionText(r.revision) + ", attempt " + revisionText(uint64(r.attempt))}
}

// cutError cuts a text to so many bytes of valid UTF-8.
func cutError(text string, most int) string {
	return strings.ToValidUTF8(text[:min(len(text), most)], "")
}
