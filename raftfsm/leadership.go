package raftfsm

import (
	"cmp"
	"slices"
	"strings"
)

// leadership is what the leader's side notes beside the table: what has been handed out, and what is held because a
// command that would settle it is on its way. Nothing of it is replicated, and no result that is kept depends on it. Guarded by FSM.mu.
type leadership struct {
	// led is the epoch under which timers may be handed out; 0 if none.
	led uint64
	// epoch is the one that the notes belong to.
	epoch uint64
	// clock is the last that Stamp gave, so that entries on their way do not run back.
	clock int64
	notes noteTable
	// absent counts the holds on timers that are not in the table (a schedule on its way, or a second command after the
	// first has taken the timer away). A timer that comes takes its holds over.
	absent map[timerKey]note
	holds  holds
	// spawns is what one call of Stamp has let become timers.
	spawns spawns
}

// note is the flags of a slot and, below them, the number of commands that hold it.
type note uint32

const (
	// noteHanded: this revision was handed out since Lead. noteOut: it was handed out under the epoch, also before a Follow.
	noteHanded note = 1 << 31
	noteOut    note = 1 << 30
	noteHeld   note = noteOut - 1
)

type timerKey struct{ namespace, id string }

// key is the target's, with texts of its own.
func (t *target) key() timerKey { return timerKey{strings.Clone(t.namespace), strings.Clone(t.id)} }

// holds numbers the holds; a number is used once in the life of the process. Which of them are open is kept for the span
// from the oldest open one on, since they end about in order.
type holds struct {
	// last is the last number given.
	last uint64
	// open[i] is about the number last-len(open)+1+i; those before head have ended.
	open []bool
	head int
}

func (h *holds) take() uint64 {
	if h.head > 1024 && h.head*2 > len(h.open) {
		h.open = h.open[:copy(h.open, h.open[h.head:])]
		h.head = 0
	}
	h.open = append(h.open, true)
	h.last++
	return h.last
}

// end closes a hold and says whether it was open.
func (h *holds) end(number uint64) bool {
	i := number - (h.last - uint64(len(h.open)) + 1) // wraps if it is older than the span
	if i >= uint64(len(h.open)) || !h.open[i] {
		return false
	}
	h.open[i] = false
	for h.head < len(h.open) && !h.open[h.head] {
		h.head++
	}
	return true
}

func (h *holds) endAll() { h.open, h.head = h.open[:0], 0 }

func (l *leadership) wasHanded(slot uint32) bool { return l.notes.at(slot)&noteOut != 0 }

// hold takes a hold on the target for one command.
func (l *leadership) hold(t *target) uint64 {
	if t.pending {
		l.notes.set(t.slot, l.notes.at(t.slot)+1)
	} else {
		if l.absent == nil {
			l.absent = map[timerKey]note{}
		}
		l.absent[t.key()]++
	}
	return l.holds.take()
}

// lift ends a hold of an epoch, and says that nothing holds the target any more.
func (l *leadership) lift(epoch, number uint64, t *target) bool {
	if number == 0 || epoch != l.epoch || !l.holds.end(number) {
		return false
	}
	if t.pending {
		n := l.notes.at(t.slot) - 1
		l.notes.set(t.slot, n)
		return n&noteHeld == 0
	}
	key := timerKey{t.namespace, t.id}
	if n := l.absent[key]; n > 1 {
		l.absent[t.key()] = n - 1
	} else {
		delete(l.absent, key)
	}
	return false
}

// occupy is called when a timer has come into a slot.
func (l *leadership) occupy(t *target) {
	held := note(0)
	if len(l.absent) > 0 {
		key := timerKey{t.namespace, t.id}
		held = l.absent[key]
		delete(l.absent, key)
	}
	l.notes.set(t.slot, held)
}

// changed is called when the record in a slot has a new revision, which nobody has been given.
func (l *leadership) changed(slot uint32) { l.notes.set(slot, l.notes.at(slot)&noteHeld) }

// vacate is called when a timer has left its slot.
func (l *leadership) vacate(t *target) {
	if held := l.notes.at(t.slot) & noteHeld; held > 0 {
		if l.absent == nil {
			l.absent = map[timerKey]note{}
		}
		l.absent[t.key()] = held
	}
	l.notes.set(t.slot, 0)
}

// reset forgets all notes.
func (l *leadership) reset() {
	l.notes = noteTable{}
	clear(l.absent)
	l.holds.endAll()
}

// Lead allows handing out under the epoch. What was noted under another epoch is forgotten, and the slots concerned are
// armed again; commands that were stamped under this epoch before Lead stay held.
func (f *FSM) Lead(epoch uint64) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.enter(epoch)
	f.lead.led = epoch
	f.push()
}

// Follow ends handing out. What was handed out counts as due again and is armed; what a command on its way holds stays
// held until the command is applied or released, or until another epoch.
func (f *FSM) Follow() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.lead.led = 0
	f.rearm(func(n note) note { return n &^ noteHanded })
	f.push()
}

// enter makes the notes those of the epoch. Called with mu held.
func (f *FSM) enter(epoch uint64) {
	if epoch == f.lead.epoch {
		return
	}
	f.rearm(func(note) note { return 0 })
	clear(f.lead.absent)
	f.lead.holds.endAll()
	f.lead.epoch = epoch
}

// rearm changes the notes and arms, in the order of (NextDue, Accepted), every slot that was handed out or held. Called with mu held.
func (f *FSM) rearm(change func(note) note) {
	type noted struct {
		slot   uint32
		note   note
		record record
	}
	var slots []noted
	f.lead.notes.each(func(slot uint32, n note) { slots = append(slots, noted{slot, n, f.s.table.at(slot)}) })
	slices.SortFunc(slots, func(a, b noted) int { return compareDue(&a.record, &b.record) })
	for i := range slots {
		t := &slots[i]
		f.lead.notes.set(t.slot, change(t.note))
		if t.note&(noteHanded|noteHeld) != 0 {
			f.arm(t.slot, &t.record)
		}
	}
}

func compareDue(a, b *record) int {
	if a.nextDue != b.nextDue {
		return cmp.Compare(a.nextDue, b.nextDue)
	}
	return cmp.Compare(a.accepted, b.accepted)
}

// Describe appends one DueInfo for each slot to out.
func (f *FSM) Describe(slots []uint32, out []DueInfo) []DueInfo {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.warm(slots)
	for _, slot := range slots {
		r := f.s.table.at(slot)
		if r.where == 0 {
			out = append(out, DueInfo{Ref: Ref{Slot: slot}})
			continue
		}
		n, p := f.lead.notes.at(slot), &f.s.table.profiles[r.profile]
		g := f.s.table.glance(&r)
		out = append(out, DueInfo{
			Ref: Ref{Slot: slot, Revision: r.revision}, OK: !p.parked, Namespace: p.namespace, Queue: p.queue,
			NextDue: r.nextDue, Accepted: r.accepted, Attempt: r.attempt, Lease: p.lease,
			Handed: n&noteHanded != 0, Held: n&noteHeld != 0, Parked: p.parked, Spawns: g.spawns, Expiry: g.expiry,
		})
	}
	return out
}

// warm loads what lies in the slots, in short loops as readAhead does. Called with mu held.
func (f *FSM) warm(slots []uint32) {
	sum := uint64(0)
	for _, slot := range slots {
		sum += uint64(f.s.table.where(slot))
	}
	for _, slot := range slots {
		if where := f.s.table.where(slot); where != 0 {
			sum += f.s.table.touch(where)
		}
	}
	f.touched = sum
}

// HandOut appends one Handed for each ref to out, and notes which timers it gives out, at an instant in Unix milliseconds. The
// records are the caller's own. All refs are Refused if the epoch is not the one that is led, or is over.
func (f *FSM) HandOut(epoch uint64, now int64, refs []Ref, out []Handed) []Handed {
	f.mu.Lock()
	defer f.mu.Unlock()
	leads := epoch != 0 && epoch == f.lead.led && epoch >= f.s.epoch
	for _, ref := range refs {
		// Load all records and blobs before the first is used, as readAhead does.
		if where := f.s.table.where(ref.Slot); where != 0 {
			f.touched += f.s.table.touchAll(where)
		}
	}
	for _, ref := range refs {
		r := f.s.table.at(ref.Slot)
		n := f.lead.notes.at(ref.Slot)
		if !leads || r.where == 0 || r.revision != ref.Revision || n&(noteHanded|noteHeld) != 0 {
			out = append(out, Handed{})
			continue
		}
		verdict := f.verdict(&r, now)
		if verdict == Refused {
			out = append(out, Handed{})
			continue
		}
		if verdict == Give {
			f.lead.notes.set(ref.Slot, n|noteHanded|noteOut)
			f.lead.notes.handedAt(ref.Slot, now)
		}
		out = append(out, Handed{Record: f.s.table.build(&r), Verdict: verdict})
	}
	return out
}

// verdict decides about a timer that could be handed out. Most have nothing to decide about.
func (f *FSM) verdict(r *record, now int64) Verdict {
	p := &f.s.table.profiles[r.profile]
	switch {
	case p.parked:
		return Refused
	case !p.extra:
		return Give
	}
	c := f.s.table.body(r)
	switch g := glanceAt(c.extra); {
	case g.expiry != 0 && now >= g.expiry:
		return PastExpiry
	case g.repeat != nil && (g.spawns || r.attempt == 0 && f.missed(&c, now)):
		return Missed
	case g.atMostOnce:
		return Ahead
	}
	return Give
}

// Record returns the timer in a slot; nil if the slot is free.
func (f *FSM) Record(slot uint32) *Record {
	f.mu.Lock()
	defer f.mu.Unlock()
	if r := f.s.table.at(slot); r.where != 0 {
		return f.s.table.build(&r)
	}
	return nil
}
