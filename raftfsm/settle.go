package raftfsm

import (
	"fmt"

	logv1 "github.com/carillon-timers/carillon/proto/carillonlog/v1"
)

// All methods here are called with mu held.

// edit is a pending timer that a command is about to change.
type edit struct {
	record record
	body   body
	// extra is what few timers have, for the command to change. It is never nil.
	extra *logv1.Extra
}

func (s *state) edit(t *target) *edit {
	e := &edit{record: t.record, body: s.table.body(&t.record)}
	if e.extra = e.body.more(); e.extra == nil {
		e.extra = &logv1.Extra{}
	}
	return e
}

// put writes the edited timer in the target's place, under a new revision.
func (f *FSM) put(t *target, e *edit) Result {
	s := f.s
	e.record.revision = s.index
	e.body.extra = encodeExtra(e.extra)
	p := s.table.profiles[e.record.profile]
	p.mark(e.extra)
	e.record.profile = s.table.intern(s.seed, &p)
	return f.change(t, &e.record, &e.body)
}

// accept gives the timer a new due time, and a new place in the order of acceptance.
func (s *state) accept(e *edit, due int64) {
	s.accepted++
	e.record.accepted, e.record.nextDue, e.body.due = s.accepted, due, due
}

// renew forgets the failed attempts.
func (e *edit) renew() {
	e.record.attempt, e.body.lastError, e.extra.Failures = 0, "", nil
}

// keepLeft notes how much time is left of a timer that is frozen.
func (s *state) keepLeft(e *edit) {
	if e.extra.Frozen {
		e.extra.LeftMs = max(0, e.record.nextDue-s.clock)
	}
}

func (f *FSM) complete(t *target, c *command) Result {
	if r := f.delivered(t, c); r != nil {
		return *r
	}
	l := life{handed: c.handed, epoch: c.tokenEpoch}
	if !f.s.table.profiles[t.record.profile].extra {
		if c.ahead {
			return Result{Code: StaleToken, Revision: t.record.revision, Detail: "it is not at-most-once"}
		}
		f.settle(t, Fired, false, l)
		return Result{Revision: f.s.index}
	}
	e := f.s.edit(t)
	l.failures = e.extra.Failures
	if c.ahead && (!e.extra.AtMostOnce || e.extra.Paused || c.tokenEpoch != f.s.epoch) {
		return Result{Code: StaleToken, Revision: t.record.revision, Detail: "it is not to be completed ahead"}
	}
	if e.extra.Repeat == nil {
		f.settle(t, Fired, false, l)
		return Result{Revision: f.s.index}
	}
	if r := known(c.next()); r != nil {
		return *r
	}
	return f.goOn(t, e, c.next(), Fired, l)
}

// known refuses a command about a repeat whose leader did not know where it goes on: its table was behind.
func known(n *logv1.Next) *Result {
	if n == nil {
		return &Result{Code: StaleEpoch, Detail: "the leader did not know that the timer repeats: nothing was changed"}
	}
	return validNext(n)
}

// goOn moves a repeat on from a due time that was settled. If nothing follows, it ends as told.
func (f *FSM) goOn(t *target, e *edit, n *logv1.Next, how State, l life) Result {
	r := e.extra.Repeat
	r.Fired++
	l.fired = r.Fired
	if !e.lasts(n) {
		f.settle(t, how, false, l)
		return Result{Revision: f.s.index}
	}
	f.move(e, n)
	return f.put(t, e)
}

// lasts says that a repeat goes on.
func (e *edit) lasts(n *logv1.Next) bool {
	r := e.extra.Repeat
	if n.Ended || r.MaxCount > 0 && r.Fired >= r.MaxCount {
		return false
	}
	return e.extra.ExpiryMs == 0 || n.DueMs < e.extra.ExpiryMs
}

// move gives a repeat its next due time. A paused one stays paused.
func (f *FSM) move(e *edit, n *logv1.Next) {
	r := e.extra.Repeat
	r.TickMs, r.BacklogMs = n.TickMs, n.BacklogMs
	f.s.accept(e, n.DueMs)
	e.renew()
	e.extra.OutRevision = 0
	f.s.keepLeft(e)
}

func (f *FSM) retry(t *target, c *command) Result {
	s := f.s
	if r := s.validDue(c.due, false); r != nil && !c.returned {
		return *r
	}
	if r := f.delivered(t, c); r != nil {
		return *r
	}
	e := s.edit(t)
	e.extra.OutRevision = 0
	if c.returned {
		return f.put(t, e)
	}
	if e.record.attempt < 1<<32-1 {
		e.record.attempt++
	}
	e.body.lastError = cutError(c.errorText, MaxErrorBytes)
	e.fail(&logv1.Failure{AtMs: s.clock, Epoch: c.tokenEpoch, HandedMs: c.handed, Error: c.errorText, Lapsed: c.lapsed})
	l := life{handed: c.handed, epoch: c.tokenEpoch, fired: e.extra.Repeat.GetFired(), failures: e.extra.Failures}
	most := s.table.profiles[e.record.profile].maxAttempts
	switch {
	case c.dead:
		return f.die(t, e, c, deadRefused, l)
	case most > 0 && e.record.attempt >= most:
		return f.die(t, e, c, deadAttempts, l)
	case e.extra.ExpiryMs != 0 && c.due >= e.extra.ExpiryMs:
		t.record.attempt = e.record.attempt
		f.settle(t, Expired, false, l)
		return Result{Revision: s.index}
	}
	e.record.nextDue = c.due
	s.keepLeft(e)
	return f.put(t, e)
}

// fail notes a failed attempt.
func (e *edit) fail(failure *logv1.Failure) {
	x := e.extra
	if n := len(x.Failures); n >= maxFailures {
		x.Failures = x.Failures[n-maxFailures+1:]
	}
	failure.Error = cutError(failure.Error, maxFailureBytes)
	x.Failures = append(x.Failures, failure)
}

// die makes a dead letter of a timer whose last attempt has failed. One that repeats goes on without it.
func (f *FSM) die(t *target, e *edit, c *command, reason uint32, l life) Result {
	s, r := f.s, e.extra.Repeat
	child := false
	if r != nil {
		if refused := known(c.next()); refused != nil {
			return *refused
		}
		r.Fired++
		l.fired = r.Fired
		child = e.lasts(c.next())
	}
	f.bury(t, e, reason, child)
	if child {
		f.move(e, c.next())
		return f.put(t, e)
	}
	t.record.attempt = e.record.attempt
	f.settle(t, Dead, false, l)
	return Result{Revision: s.index}
}

// deadNamespace is where the dead letters of a namespace lie.
func deadNamespace(namespace string) string { return "\x00" + namespace }

// letterKey is the key of a dead letter: the order of the keys is that of the deaths.
func letterKey(revision uint64, place uint32) string {
	return fmt.Sprintf("%016x%08x", revision, place)
}

// bury puts a dead letter of the edited timer into the table. Its key is in the order of the deaths.
func (f *FSM) bury(t *target, e *edit, reason uint32, child bool) {
	s := f.s
	f.buried++
	key := letterKey(s.index, f.buried)
	x := &logv1.Extra{
		ExpiryMs: e.extra.ExpiryMs, AtMostOnce: e.extra.AtMostOnce, Webhook: e.extra.Webhook, WindowMs: e.extra.WindowMs,
		Failures: e.extra.Failures,
		Dead:     &logv1.Dead{Id: t.id, Reason: reason, AtMs: s.clock, Attempts: e.record.attempt, Child: child},
	}
	b := e.body
	b.id, b.extra = key, encodeExtra(x)
	if r := e.extra.Repeat; r != nil {
		b.due = r.TickMs
	}
	p := s.table.profiles[e.record.profile]
	p.namespace = deadNamespace(t.namespace)
	p.mark(x)
	s.accepted++
	r := record{nextDue: b.due, accepted: s.accepted, revision: s.index, attempt: e.record.attempt, profile: s.table.intern(s.seed, &p)}
	letter := s.find(p.namespace, key)
	s.insert(&letter, &r, &b)
}

// expire ends a timer whose expiry has passed by the clock of the log.
func (f *FSM) expire(t *target, c *command) Result {
	if r := f.undelivered(t, c); r != nil {
		return *r
	}
	e := f.s.edit(t)
	if x := e.extra; x.ExpiryMs == 0 || f.s.clock < x.ExpiryMs || x.Paused {
		return Result{Code: StaleToken, Revision: t.record.revision, Detail: "it has not expired"}
	}
	f.settle(t, Expired, false, life{fired: e.extra.Repeat.GetFired(), failures: e.extra.Failures})
	return Result{Revision: f.s.index}
}

// delivered says that the target is still at the delivery that a command settles, which no epoch to come can have handed out. A
// delivery that was out when its timer was paused still counts.
func (f *FSM) delivered(t *target, c *command) *Result {
	if r := validKey(t.namespace, t.id); r != nil {
		return r
	}
	if !f.s.isAt(t, c.revision, c.attempt) {
		return stale(t)
	}
	if c.tokenEpoch > f.s.epoch {
		return forged(t, c.tokenEpoch, f.s.epoch)
	}
	return nil
}

// isAt says that a token of the revision and attempt is good for the target.
func (s *state) isAt(t *target, revision uint64, attempt uint32) bool {
	if !t.pending || t.record.attempt != attempt {
		return false
	}
	p := &s.table.profiles[t.record.profile]
	if p.parked {
		return revision != 0 && s.edit(t).extra.OutRevision == revision
	}
	return t.record.revision == revision
}

// undelivered says that the target is still what a command is about that no delivery stands behind.
func (f *FSM) undelivered(t *target, c *command) *Result {
	if r := validKey(t.namespace, t.id); r != nil {
		return r
	}
	if !t.pending || t.record.revision != c.revision || t.record.attempt != c.attempt {
		return stale(t)
	}
	return nil
}
