package raftfsm

import logv1 "github.com/carillon-timers/carillon/proto/carillonlog/v1"

// What a leader computes for timers with a repeat or a window, before it proposes. All methods here are called with mu held.

func (f *FSM) stampSchedule(c *logv1.Schedule) *Result {
	if r := f.stampDue(&c.DueMs, &c.DelayMs, &c.IsDelay); r != nil {
		return r
	}
	x := c.Extra
	if x == nil {
		return nil
	}
	if x.Repeat != nil {
		if r := f.stampFirst(c, x.Repeat); r != nil {
			return r
		}
	}
	if x.WindowMs > 0 && x.WindowMs <= MaxWindowMillis && c.DueMs >= minDueMillis && c.DueMs-f.lead.clock <= MaxAheadMillis+1 {
		t := target{hash: f.s.hash(space(c.Namespace), c.Id)}
		c.DueMs = f.s.place(c.DueMs, x.WindowMs, x.ExpiryMs, t.hashOf(f.s.index))
	}
	return nil
}

// stampFirst finds the first due time of a repeat, unless the client has set it, and anchors a period without a start at it.
func (f *FSM) stampFirst(c *logv1.Schedule, r *logv1.Repeat) *Result {
	if f.o.Repeats == nil {
		return invalid("repeat", "not supported by this node")
	}
	if refused := validRule(c.Id, r); refused != nil {
		return refused
	}
	if c.First {
		due, ok := f.lead.clock+r.EveryMs+1, true // as after a delay
		if r.EveryMs == 0 || r.StartMs != 0 {
			due, ok = f.o.Repeats.Next(r, f.lead.clock)
		}
		if !ok {
			return invalid("repeat", "no due time after now, %d", f.lead.clock)
		}
		c.DueMs, c.First = due, false
	}
	if r.TickMs = c.DueMs; r.EveryMs > 0 && r.StartMs == 0 {
		if r.StartMs = r.TickMs; r.StartMs == 0 {
			r.StartMs = -r.EveryMs // the same grid: 0 is no start
		}
	}
	return nil
}

// repeats says that the target repeats, and is what a token is about.
func (f *FSM) repeats(t *target, revision uint64, attempt uint32) bool {
	return f.o.Repeats != nil && f.s.isAt(t, revision, attempt) && f.s.table.profiles[t.record.profile].extra && f.s.table.glance(&t.record).repeat != nil
}

// settled is where a repeat goes on from a due time whose delivery is settled now.
func (f *FSM) settled(t *target) *logv1.Next {
	e := f.s.edit(t)
	r, clock := e.extra.Repeat, f.lead.clock
	if r.FixedDelay {
		due := clock + r.EveryMs + 1
		return f.nextAt(t, e, due, !r.HasEnd || due <= r.EndMs)
	}
	due, ok := r.TickMs, true
	if e.body.due >= r.TickMs {
		due, ok = f.o.Repeats.Next(r, r.TickMs)
	} // else it was fired ahead of its time, which is still to come
	if !ok || due > clock || inBacklog(r, due) {
		n := f.nextAt(t, e, due, ok)
		if ok && inBacklog(r, due) {
			n.DueMs, n.BacklogMs = due, r.BacklogMs
		}
		return n
	}
	// It came while the delivery was out.
	if r.Overlap == overlapOne {
		newest := cloneRepeat(r)
		newest.TickMs, newest.Misfire, newest.MaxLateMs = due, misfireOne, 0
		if turn := f.o.Repeats.Turn(newest, clock); len(turn.Fire) > 0 {
			due = turn.Fire[len(turn.Fire)-1]
			return &logv1.Next{TickMs: due, DueMs: due, BacklogMs: due}
		}
	}
	due, ok = f.o.Repeats.Next(r, clock)
	return f.nextAt(t, e, due, ok)
}

// nextAt is a due time to come, placed in the window; not ok means that there is none.
func (f *FSM) nextAt(t *target, e *edit, due int64, ok bool) *logv1.Next {
	if !ok {
		return &logv1.Next{Ended: true}
	}
	n := &logv1.Next{TickMs: due, DueMs: due}
	if due > f.lead.clock {
		n.DueMs = f.s.place(due, e.extra.WindowMs, e.extra.ExpiryMs, t.hashOf(t.record.revision))
	}
	return n
}

// caughtUp is what follows from due times that have passed by an instant: those to fire, one after the other, or the next one.
func (f *FSM) caughtUp(t *target, e *edit, now int64) *logv1.Next {
	if r := e.extra.Repeat; r.FixedDelay {
		if r.TickMs <= now && !tooLate(r, now) {
			return &logv1.Next{TickMs: r.TickMs, DueMs: r.TickMs, BacklogMs: r.TickMs}
		}
		due := r.TickMs
		if due <= now {
			due = f.lead.clock + r.EveryMs + 1
		}
		return f.nextAt(t, e, due, !r.HasEnd || due <= r.EndMs)
	}
	turn := f.o.Repeats.Turn(e.extra.Repeat, now)
	if n := len(turn.Fire); n > 0 {
		// Also a single one is a backlog, which is not missed again however long this takes.
		return &logv1.Next{TickMs: turn.Fire[0], DueMs: turn.Fire[0], BacklogMs: turn.Fire[n-1]}
	}
	return f.nextAt(t, e, turn.Next, !turn.Ended)
}

// stands says that the due time of a repeat, as it stands, is nothing to catch up with: it is to come, or has been decided about.
func (e *edit) stands(now int64) bool {
	r := e.extra.Repeat
	return e.body.due < r.TickMs || e.body.due > now || inBacklog(r, r.TickMs)
}

// inBacklog says that a due time was missed and is to be fired all the same. A backlog of 0 is none: it does not reach back before 1970.
func inBacklog(r *logv1.Repeat, due int64) bool { return r.BacklogMs != 0 && due <= r.BacklogMs }

// resumed is where a paused repeat goes on; nil if it does not repeat, or Apply needs no leader to know.
func (f *FSM) resumed(t *target) *logv1.Next {
	if !t.pending || f.o.Repeats == nil || !f.s.table.profiles[t.record.profile].parked {
		return nil
	}
	e := f.s.edit(t)
	if e.extra.Repeat == nil || e.extra.Frozen || t.record.attempt > 0 || e.stands(f.lead.clock) {
		return nil
	}
	return f.caughtUp(t, e, e.lateness(f.lead.clock))
}

// lateness is the instant by which the due times of a repeat are judged: a window makes none of them late.
func (e *edit) lateness(now int64) int64 {
	r := e.extra.Repeat
	return max(r.TickMs, now-(e.body.due-r.TickMs))
}

// missed says that a repeat which falls due is not to be fired as it stands, but by its misfire policy. Due times of a backlog, and
// one that was fired ahead of its time, have been decided about.
func (f *FSM) missed(c *body, now int64) bool {
	if f.o.Repeats == nil {
		return false
	}
	e := edit{body: *c, extra: c.more()}
	r := e.extra.Repeat
	if e.stands(now) {
		return false
	}
	if r.FixedDelay {
		return tooLate(r, e.lateness(now))
	}
	r.MaxCatchUp = min(r.MaxCatchUp, 2) // what else was missed is for Stamp to find
	turn := f.o.Repeats.Turn(r, e.lateness(now))
	return len(turn.Fire) != 1 || turn.Fire[0] != r.TickMs
}

// onTimeMillis is how late a due time may be under misfire none, unless it has a bound of its own. It is that of shard/recur.
const onTimeMillis = 1000

// tooLate says that the misfire policy drops the due time of a repeat with a fixed delay, which never misses more than one.
func tooLate(r *logv1.Repeat, now int64) bool {
	limit := r.MaxLateMs
	if limit == 0 && r.Misfire == misfireNone {
		limit = onTimeMillis
	}
	return limit > 0 && now-r.TickMs > limit
}

// stampAdvance finds out what follows from due times that were missed or become timers.
func (f *FSM) stampAdvance(epoch uint64, c *logv1.Advance) *Result {
	t := f.s.find(space(c.Namespace), c.Id)
	if r := f.staleVerdict(epoch, &t, c.Revision, c.Attempt); r != nil {
		return r
	}
	c.Next, c.SpawnMs = nil, nil
	if f.repeats(&t, c.Revision, c.Attempt) {
		e := f.s.edit(&t)
		r, now := e.extra.Repeat, e.lateness(f.lead.clock)
		switch {
		case r.Overlap != overlapAllow:
			c.Next = f.caughtUp(&t, e, now)
		case e.body.due < r.TickMs: // fired ahead of its time, which is still to come
			c.SpawnMs = []int64{e.body.due}
			c.Next = f.nextAt(&t, e, r.TickMs, true)
		default:
			turn := f.o.Repeats.Turn(r, now)
			n := f.lead.spawns.take(&e.body, len(turn.Fire))
			if c.SpawnMs = turn.Fire[:n]; n < len(turn.Fire) {
				c.Next = &logv1.Next{TickMs: turn.Fire[n], DueMs: turn.Fire[n]} // it is due, and goes on there in the next entry
			} else {
				c.Next = f.nextAt(&t, e, turn.Next, !turn.Ended)
			}
		}
	}
	c.Hold = f.hold(epoch, &t)
	return nil
}

// spawns is what the due times of one entry that become timers take.
type spawns struct{ timers, bytes int }

// take is how many of so many due times may become timers in this entry: together no more than a batch may have, but of each repeat
// one at least.
func (s *spawns) take(c *body, most int) int {
	size := 1 + len(c.payload) + len(c.headers) + len(c.labels)
	n := min(most, max(1, min(MaxBatchItems-s.timers, (MaxBatchBytes-s.bytes)/size)))
	s.timers += n
	s.bytes += n * size
	return n
}
