package raftfsm

import (
	"math"

	logv1 "github.com/carillon-timers/carillon/proto/carillonlog/v1"
)

// guardMillis is how far the clock of the leader before may have been ahead of this one's (the clock guard).
const guardMillis = 500

// Stamp makes commands ready for one log entry under the epoch and returns the clock for that entry, Unix milliseconds: now,
// or the last clock if now is behind it. It writes into the commands: delays become due times (rounded up, never early),
// Cancel and Pause learn whether the timer may have been handed out, Retry gets the due time of its next attempt, a timer with a
// window its place in it, and whatever moves a repeat where it goes on.
//
// rejected has one place for each command; one that is not nil is the command's result, and the command is not to be
// proposed: a token that is known to be old (StaleToken), or a delay or a repeat out of range (Invalid).
//
// Cancel, Pause, Complete, Retry, Advance and Expire hold their timer: HandOut gives it to nobody until the command is applied or released, or
// another epoch begins. So each command that was stamped and not rejected must be proposed under this epoch, or given
// to ReleaseHolds.
func (f *FSM) Stamp(epoch uint64, nowMs int64, cmds []*Command) (clock int64, rejected []*Result) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.lead.clock = max(nowMs, f.lead.clock, f.s.clock)
	if epoch > f.lead.epoch && epoch >= f.s.epoch {
		f.enter(epoch)
		f.push()
	}
	f.lead.spawns = spawns{}
	rejected = make([]*Result, len(cmds))
	f.stampAhead(cmds)
	for i, c := range cmds {
		rejected[i] = f.stamp(epoch, c)
	}
	f.s.load.forgetPlaced()
	return f.lead.clock, rejected
}

func (f *FSM) stamp(epoch uint64, c *Command) *Result {
	switch k := c.Kind.(type) {
	case *logv1.Command_Schedule:
		return f.stampSchedule(k.Schedule)
	case *logv1.Command_Reschedule:
		if k.Reschedule.Now {
			return nil
		}
		return f.stampDue(&k.Reschedule.DueMs, &k.Reschedule.DelayMs, &k.Reschedule.IsDelay)
	case *logv1.Command_Cancel:
		t := f.s.find(space(k.Cancel.Namespace), k.Cancel.Id)
		k.Cancel.Firing = t.pending && f.mayBeOut(epoch, &t)
		k.Cancel.Hold = f.hold(epoch, &t)
	case *logv1.Command_Pause:
		t := f.s.find(space(k.Pause.Namespace), k.Pause.Id)
		k.Pause.Firing = t.pending && f.mayBeOut(epoch, &t)
		k.Pause.Hold = f.hold(epoch, &t)
	case *logv1.Command_Resume:
		t := f.s.find(space(k.Resume.Namespace), k.Resume.Id)
		k.Resume.Next, k.Resume.Revision = f.resumed(&t), t.record.revision
	case *logv1.Command_Complete:
		return f.stampComplete(epoch, k.Complete)
	case *logv1.Command_Retry:
		return f.stampRetry(epoch, k.Retry)
	case *logv1.Command_Advance:
		return f.stampAdvance(epoch, k.Advance)
	case *logv1.Command_Expire:
		t := f.s.find(space(k.Expire.Namespace), k.Expire.Id)
		if r := f.staleVerdict(epoch, &t, k.Expire.Revision, k.Expire.Attempt); r != nil {
			return r
		}
		k.Expire.Hold = f.hold(epoch, &t)
	case *logv1.Command_Atomic:
		return f.stampAtomic(epoch, k.Atomic)
	}
	return nil
}

// stampAtomic stamps the commands of a batch; one that is refused refuses all.
func (f *FSM) stampAtomic(epoch uint64, m *logv1.Atomic) *Result {
	for i, part := range m.Commands {
		if r := f.stamp(epoch, part); r != nil {
			f.release(m.Commands[:i])
			r.Answer = uint32(i)
			return r
		}
	}
	return nil
}

func (f *FSM) stampComplete(epoch uint64, c *logv1.Complete) *Result {
	t := f.s.find(space(c.Namespace), c.Id)
	if r := f.staleToken(epoch, &t, c.Revision, c.Attempt, c.TokenEpoch); r != nil {
		return r
	}
	if c.Ahead {
		if r := f.staleVerdict(epoch, &t, c.Revision, c.Attempt); r != nil {
			return r
		}
		if c.TokenEpoch != epoch {
			return &Result{Code: StaleToken, Detail: "its epoch " + revisionText(c.TokenEpoch) + " is over"}
		}
	}
	c.Next = nil
	if f.repeats(&t, c.Revision, c.Attempt) {
		c.Next = f.settled(&t)
	}
	c.Hold = f.hold(epoch, &t)
	return nil
}

func (f *FSM) stampRetry(epoch uint64, c *logv1.Retry) *Result {
	t := f.s.find(space(c.Namespace), c.Id)
	if r := f.staleToken(epoch, &t, c.Revision, c.Attempt, c.TokenEpoch); r != nil {
		return r
	}
	if r := f.stampAgain(&t, c); r != nil {
		return r
	}
	c.Next = nil
	if f.repeats(&t, c.Revision, c.Attempt) {
		most := f.s.table.profiles[t.record.profile].maxAttempts
		if c.Dead || most > 0 && c.Attempt+1 >= most {
			c.Next = f.settled(&t)
		}
	}
	c.Hold = f.hold(epoch, &t)
	return nil
}

// staleVerdict refuses what follows from a verdict if the timer has changed or was handed out since.
func (f *FSM) staleVerdict(epoch uint64, t *target, revision uint64, attempt uint32) *Result {
	if epoch == f.s.epoch && (!t.pending || t.record.revision != revision || t.record.attempt != attempt) {
		return stale(t)
	}
	if t.pending && epoch == f.lead.epoch && f.lead.notes.at(t.slot)&noteHanded != 0 {
		return &Result{Code: StaleToken, Revision: t.record.revision, Detail: "it has been handed out"}
	}
	return nil
}

// stampDue turns a delay into a due time.
func (f *FSM) stampDue(due, delay *int64, isDelay *bool) *Result {
	if !*isDelay {
		return nil
	}
	at, r := f.after("delay", *delay)
	if r == nil {
		*due, *delay, *isDelay = at, 0, false
	}
	return r
}

// after is the first millisecond that is the delay away from now. The clock is a millisecond cut short, so unless there is
// nothing to wait for it takes one more not to be early.
func (f *FSM) after(field string, delay int64) (int64, *Result) {
	if delay < 0 || delay > MaxAheadMillis {
		return 0, invalid(field, "%d ms; 0 to %d are allowed", delay, int64(MaxAheadMillis))
	}
	if delay == 0 {
		return f.lead.clock, nil
	}
	return f.lead.clock + delay + 1, nil
}

// mayBeOut says that the present revision was handed out under the epoch, or may have been under the one before: it is older
// than the epoch and was due, within the guard, before the epoch began. Of an at-most-once repeat it is the due time before.
func (f *FSM) mayBeOut(epoch uint64, t *target) bool {
	if epoch == f.lead.epoch && f.lead.wasHanded(t.slot) {
		return true
	}
	switch g := f.s.table.glance(&t.record); {
	case g.spawns:
		return false // it never is
	case g.atMostOnce:
		// It is gone when it is handed out. Of a repeat, the due time before may be owed to a consumer still, also by a leader before.
		return g.fired
	}
	if epoch != f.s.epoch {
		// The entry that opens the epoch is not applied yet: its clock is at most the one given out now.
		return t.record.nextDue <= f.lead.clock+guardMillis
	}
	return t.record.revision < f.s.begun && t.record.nextDue <= f.s.epochClock+guardMillis
}

// staleToken refuses what is certain to be refused by Apply, and an older epoch's token once the timer has been handed out
// under this one. As long as the epoch's first entry is not applied the table may be behind, and nothing is certain.
func (f *FSM) staleToken(epoch uint64, t *target, revision uint64, attempt uint32, tokenEpoch uint64) *Result {
	if epoch != f.s.epoch {
		return nil
	}
	if !f.s.isAt(t, revision, attempt) {
		return stale(t)
	}
	if tokenEpoch > epoch {
		return forged(t, tokenEpoch, epoch)
	}
	if tokenEpoch < epoch && epoch == f.lead.epoch && f.lead.wasHanded(t.slot) {
		r := Result{Code: StaleToken, Revision: revision, Detail: "it has been handed out again under epoch " + revisionText(epoch)}
		return &r
	}
	return nil
}

// stampAgain finds out when the next attempt is due.
func (f *FSM) stampAgain(t *target, c *logv1.Retry) *Result {
	if c.Returned {
		c.DueMs = f.lead.clock // Apply leaves the due time as it is
		return nil
	}
	if c.HasDelay {
		at, r := f.after("retry delay", c.DelayMs)
		if r == nil {
			c.DueMs = at
		}
		return r
	}
	policy := policyOf(RetryPolicy{})
	if t.pending {
		policy = f.s.table.profiles[t.record.profile].policy()
	}
	c.DueMs = f.lead.clock + policy.backoff(c.Attempt, t.hashOf(c.Revision))
	return nil
}

// backoff is the wait after a failed delivery that had so many failures before it, spread over 90 to 110 % by salt; MaxBackoff is
// the longest of the spread.
func (p RetryPolicy) backoff(attempt uint32, salt uint64) int64 {
	const most = 1.1
	wait := min(float64(p.InitialBackoff)*math.Pow(p.Multiplier, float64(attempt)), float64(p.MaxBackoff)/most)
	spread := 0.9 + 0.2*float64(salt>>11)/float64(1<<53)
	return min(int64(math.Ceil(wait*spread)), p.MaxBackoff)
}

// hashOf spreads timers and their attempts; it is the leader's alone.
func (t *target) hashOf(revision uint64) uint64 { return (t.hash ^ revision) * 0x9E3779B97F4A7C15 }

// hold takes a hold for a command that is proposed under the epoch; 0 if the epoch is over, since the command will change nothing.
func (f *FSM) hold(epoch uint64, t *target) uint64 {
	if epoch != f.lead.epoch {
		return 0
	}
	return f.lead.hold(t)
}

// ReleaseHolds lifts the holds of commands that were stamped and will not be applied under their epoch, and arms the slots
// again. A command that may still be applied (its outcome is unknown while this replica leads on) is better left held:
// Apply, or the next epoch, lifts it; if it is released, its timer can be handed out before a Cancel takes effect.
func (f *FSM) ReleaseHolds(cmds []*Command) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.release(cmds)
	f.push()
}

// release is ReleaseHolds, called with mu held.
func (f *FSM) release(cmds []*Command) {
	for _, m := range cmds {
		switch m.Kind.(type) {
		case nil, *logv1.Command_Schedule, *logv1.Command_Reschedule:
			continue
		}
		var e entry
		c := e.command(m)
		c.hash = f.s.hash(c.namespace, c.id)
		f.liftOnly(f.lead.epoch, &c)
	}
}
