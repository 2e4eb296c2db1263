package executor

import (
	"math"
	"time"

	logv1 "github.com/carillon-timers/carillon/proto/carillonlog/v1"
	"github.com/carillon-timers/carillon/raftfsm"
	"github.com/carillon-timers/carillon/wheel"
)

// step is what the baton holder does with one shard in a turn. It leaves in hand.next and hand.busy when it wants the
// next one.
func (e *Exec) step(now reading, w *work) {
	h := &e.hand
	h.mu.Lock()
	defer h.mu.Unlock()
	e.dirty.Store(false)
	h.next, h.busy = never, false
	if h.removed {
		return
	}
	term, leading, earlier := e.look(w)
	h.busy = e.applyOps(now, w)
	e.rearmEarlier(earlier)
	if len(h.former) > 0 {
		e.rearmFormer()
		h.busy = true
	}
	switch {
	case !leading:
		e.retryAt.Store(0)
	case h.caughtUp && len(h.former) == 0:
		e.advance(now, term, w)
	}
	e.stats.armed.Store(int64(h.wheel.Len()))
	e.stats.backlog.Store(int64(len(h.ops) - h.opsAt + e.feed.Len()))
}

// look takes over what other goroutines left for the baton holder, and notices a change of role.
func (e *Exec) look(w *work) (term uint64, leading bool, earlier []uint32) {
	h := &e.hand
	e.mu.Lock()
	defer e.mu.Unlock()
	earlier, e.rearm = e.rearm, nil
	for _, q := range e.news {
		w.ready = append(w.ready, call{exec: e, queue: q})
	}
	e.news = e.news[:0]
	h.former = append(h.former, e.former...)
	e.former = nil
	if h.term != e.term {
		h.term, h.drained, h.caughtUp = e.term, false, false
	}
	return e.term, e.leading, earlier
}

// applyOps applies a slice of what was pushed to the wheel. It says whether there may be more.
func (e *Exec) applyOps(now reading, w *work) bool {
	h := &e.hand
	if h.opsAt == len(h.ops) {
		if cap(h.ops) > opsKept {
			h.ops = nil
		}
		e.waiting.Store(0)
		h.ops, h.opsAt, h.drained = e.feed.Drain(h.ops[:0]), 0, true
		if len(h.ops) == 0 {
			h.caughtUp = true
			return false
		}
	}
	n := min(len(h.ops)-h.opsAt, opsSlice)
	h.slot = h.slot[:0]
	for _, op := range h.ops[h.opsAt : h.opsAt+n] {
		e.apply(op, now)
	}
	h.opsAt += n
	w.ops += n
	e.reconcile()
	h.caughtUp = h.caughtUp || h.drained && h.opsAt == len(h.ops)
	return true
}

// opsKept is the largest batch of ops whose memory is used again.
const opsKept = 1 << 16

func (e *Exec) apply(op raftfsm.Op, now reading) {
	h := &e.hand
	switch op.Kind {
	case raftfsm.Arm:
		for int(op.Slot) >= len(h.handles) {
			h.handles = append(h.handles, 0)
		}
		e.arm(op.Slot, op.When)
		h.slot = append(h.slot, op.Slot)
	case raftfsm.Disarm:
		if int(op.Slot) < len(h.handles) {
			h.wheel.Remove(h.handles[op.Slot])
			h.handles[op.Slot] = 0
		}
		h.slot = append(h.slot, op.Slot)
	case raftfsm.Reset:
		h.wheel = wheel.New(wheel.Tick(now.millis))
		h.handles, h.slot = nil, h.slot[:0]
		h.former, h.formerAt = nil, 0
		h.drained, h.caughtUp = false, false
		e.reset()
	}
}

// reset forgets all slots, because the table was restored. What is due comes out of the wheel anew, and in order.
func (e *Exec) reset() {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.firing.Store(false)
	e.limit = 0
	e.slots, e.lists, e.former, e.rearm = new(slotTable), make(map[Queue]*readyList), nil, nil
	e.unaskAll()
}

// arm puts a slot into the wheel or moves it there.
func (e *Exec) arm(slot uint32, when wheel.Tick) {
	h := &e.hand
	if !h.wheel.Move(h.handles[slot], when) {
		h.handles[slot] = h.wheel.Add(when, uint64(slot))
	}
}

// reconcile makes the executor forget what it knew of slots that ops have changed: the timer's lease was answered, or it
// was moved. It asks the table, because a slot may have been emptied, filled and even handed out again before the ops
// that say so came here.
func (e *Exec) reconcile() {
	h := &e.hand
	e.mu.Lock()
	defer e.mu.Unlock()
	known := h.slot[:0]
	for _, slot := range h.slot {
		if e.slots.get(slot) != nil {
			known = append(known, slot)
		}
	}
	if len(known) == 0 {
		return
	}
	h.infos = e.o.Table.Describe(known, h.infos[:0])
	e.forgetChanged(known, h.infos)
}

// rearmEarlier moves slots to where they are to leave the wheel (the end of a lease), earlier than it would bring them out.
func (e *Exec) rearmEarlier(slots []uint32) {
	if len(slots) == 0 {
		return
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	for _, slot := range slots {
		if s := e.slots.get(slot); s != nil && (s.state == stateOut || s.state == stateHeld) && e.armed(slot) {
			e.hand.wheel.Move(e.hand.handles[slot], wheel.Tick(s.at))
		}
	}
}

func (e *Exec) armed(slot uint32) bool {
	return int(slot) < len(e.hand.handles) && e.hand.handles[slot] != 0
}

// rearmFormer makes a slice of the slots that were ready, held or out in a former epoch due again. In which order does
// not matter: a new leader hands nothing out before all of them are in the ready lists, which sort.
func (e *Exec) rearmFormer() {
	h := &e.hand
	var more bool
	h.slot, h.formerAt, more = h.former[0].take(h.formerAt, rearmSlice, h.slot[:0])
	h.infos = e.o.Table.Describe(h.slot, h.infos[:0])
	for i := range h.infos {
		info := &h.infos[i]
		// Of a slot that is free or that the wheel does not hold an op is on its way.
		if info.OK && e.armed(h.slot[i]) {
			h.wheel.Move(h.handles[h.slot[i]], wheel.Tick(info.NextDue))
		}
	}
	if !more {
		h.former[0] = nil
		h.former, h.formerAt = h.former[1:], 0
	}
}

// advance brings a slice of what is due out of the wheel, if the leader holds its lease.
func (e *Exec) advance(now reading, term uint64, w *work) {
	h := &e.hand
	if !e.o.LeaseHeld() {
		e.retryAt.Store(int64(now.since + leaseRetry))
		return
	}
	n, more := h.wheel.Advance(wheel.Tick(now.millis), h.due[:])
	if n > 0 {
		e.emit(h.due[:n], now, term, w)
		w.fired += n
	}
	if more {
		h.busy = true
		if n > 0 {
			e.open(int64(h.due[n-1].When), term)
		}
		return
	}
	if next, ok := h.wheel.Next(); ok {
		h.next = max(int64(next), now.millis+1)
	}
	at := e.retryAt.Load()
	retry := at > 0 && int64(now.since) >= at && e.retryAt.CompareAndSwap(at, 0)
	if e.open(never, term) || retry {
		e.touchAll(term, w)
	}
}

// open lets Take hand out what is due before limit. The wheel brings out nothing earlier any more, but what is accepted
// late. It says whether that is everything, for the first time.
func (e *Exec) open(limit int64, term uint64) bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.term != term || e.limit == never {
		return false
	}
	e.limit = limit
	e.firing.Store(limit > 0)
	return limit == never
}

// touchAll has the Deliverer told of all queues that have something ready.
func (e *Exec) touchAll(term uint64, w *work) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.term != term {
		return
	}
	for _, l := range e.lists {
		e.touch(l, w)
	}
}

// emit decides what becomes of slots that have come out of the wheel, and puts each of them into it again.
func (e *Exec) emit(due []wheel.Due, now reading, term uint64, w *work) {
	h := &e.hand
	micros := e.loop.clock.read().nanos / 1000
	h.slot = h.slot[:0]
	for _, d := range due {
		h.handles[d.Ref] = 0
		h.slot = append(h.slot, uint32(d.Ref))
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.term != term {
		for _, d := range due {
			e.arm(uint32(d.Ref), d.When)
		}
		return
	}
	h.infos = e.o.Table.Describe(h.slot, h.infos[:0])
	e.forgetChanged(h.slot, h.infos)
	for i := range h.infos {
		if info := &h.infos[i]; info.OK { // else its Disarm is on its way
			slot := h.slot[i]
			e.arm(slot, wheel.Tick(e.place(slot, info, now.millis, micros, w)))
		}
	}
}

// forgetChanged forgets slots whose timers have changed or gone. The caller holds mu. It is a pass of its own also because
// the cache misses of the states overlap in it.
func (e *Exec) forgetChanged(slots []uint32, infos []raftfsm.DueInfo) {
	for i := range infos {
		if s, info := e.slots.get(slots[i]), &infos[i]; s != nil && (!info.OK || info.Revision != s.revision) {
			e.forget(slots[i], s)
		}
	}
}

// place decides what becomes of one slot and returns when it is to come out of the wheel next. The caller holds mu.
func (e *Exec) place(slot uint32, info *raftfsm.DueInfo, now, micros int64, w *work) int64 {
	if info.Spawns || info.Expiry != 0 {
		if at, ok := e.unattended(slot, info, now, w); ok {
			return at
		}
	}
	if info.NextDue > now {
		return expiring(info, now, info.NextDue) // It was moved, and its Arm is on its way, or it is to expire before it is due.
	}
	s := e.slots.get(slot)
	switch {
	case s != nil && s.asked && s.at > now:
		return s.at
	case s != nil && s.state == stateOut:
		return e.lease(s, info, now, w)
	case s != nil && s.state == stateReady:
		// It waits for a consumer. Ask less and less often.
		e.touch(s.list, w)
		s.at = expiring(info, now, later(now, max(info.Lease, min(now-info.NextDue, readyRearmMax))))
		return s.at
	case info.Handed:
		return e.adopt(slot, info, now)
	case info.Held:
		at := later(now, min(info.Lease, heldRearmMax))
		if s != nil {
			s.at = at
		} else {
			e.slots.put(slot, slotState{revision: info.Revision, at: at, state: stateHeld})
		}
		return at
	}
	if s != nil {
		e.unask(s) // What it was held for was lost.
	}
	l := e.list(Queue{info.Namespace, info.Queue})
	at := expiring(info, now, later(now, info.Lease))
	late := min(max(0, micros-info.NextDue*1000), math.MaxUint32)
	l.push(readyEntry{info.Revision, info.NextDue, info.Accepted, slot, uint32(late)})
	e.slots.put(slot, slotState{revision: info.Revision, at: at, list: l, state: stateReady})
	e.touch(l, w)
	return at
}

// adopt takes over a slot that the table has handed out under this epoch although the executor does not know of it any
// more: Lead was called twice for one epoch. The table would not hand it out again, so its lease begins anew.
func (e *Exec) adopt(slot uint32, info *raftfsm.DueInfo, now int64) int64 {
	at := later(now, info.Lease)
	if record := e.o.Table.Record(slot); record != nil && record.Revision == info.Revision {
		e.slots.put(slot, slotState{revision: info.Revision, at: at, span: uint32(at - now), record: record, state: stateOut})
	}
	return at
}

// lease settles the lease of a slot that is out, if it is over; if that is lost it is settled again.
func (e *Exec) lease(s *slotState, info *raftfsm.DueInfo, now int64, w *work) int64 {
	if s.at > now {
		return s.at
	}
	if info.Held {
		return later(now, min(info.Lease, heldRearmMax)) // An answer is on its way.
	}
	e.stats.lapsed.Add(1)
	s.lapsed = true
	w.settle(e, &raftfsm.Command{Kind: &logv1.Command_Retry{Retry: &logv1.Retry{
		Namespace: s.record.Namespace, Id: s.record.ID, Revision: s.revision, Attempt: s.record.Attempt,
		TokenEpoch: e.epoch, HandedMs: s.handed(), Error: "lease lapsed", Lapsed: true,
	}}})
	s.moveEnd(later(now, min(info.Lease, settleAgainMax)))
	return s.at
}

// expiring is when a slot that has nothing to do before at is to leave the wheel: not later than it expires. One that is held is armed
// by the end of the hold.
func expiring(info *raftfsm.DueInfo, now, at int64) int64 {
	if info.Expiry == 0 || info.Held {
		return at
	}
	return min(at, max(info.Expiry, now+1))
}

// later adds milliseconds to a tick: at least one, so that nothing comes out of the wheel twice in one turn.
func later(now, millis int64) int64 {
	return now + max(1, millis)
}

// touch has the Deliverer told of a queue, once in a turn.
func (e *Exec) touch(l *readyList, w *work) {
	if l.touched == w.turn {
		return
	}
	l.touched = w.turn
	w.ready = append(w.ready, call{exec: e, queue: l.queue})
}

// retryWait is how long it is until retryAt, if it is set.
func (e *Exec) retryWait(now reading) (time.Duration, bool) {
	at := e.retryAt.Load()
	if at == 0 {
		return 0, false
	}
	return max(0, time.Duration(at)-now.since), true
}
