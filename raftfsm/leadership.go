package raftfsm

import (
	"cmp"
	"slices"
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
	// notes has one word for each slot of the table.
	notes []note
	// absent counts the holds on timers that are not in the table (a schedule on its way, or a second command after the
	// first has taken the timer away). A timer that comes takes its holds over.
	absent map[timerKey]note
	holds  holds
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

func (l *leadership) note(slot uint32) note {
	if int(slot) >= len(l.notes) {
		return 0
	}
	return l.notes[slot]
}

func (l *leadership) wasHanded(slot uint32) bool { return l.note(slot)&noteOut != 0 }

// hold takes a hold on the target for one command.
func (l *leadership) hold(t *target) uint64 {
	if t.record != nil {
		l.notes[t.slot]++
	} else {
		if l.absent == nil {
			l.absent = map[timerKey]note{}
		}
		l.absent[timerKey{t.namespace, t.id}]++
	}
	return l.holds.take()
}

// lift ends a hold of an epoch, and says that nothing holds the target any more.
func (l *leadership) lift(epoch, number uint64, t *target) bool {
	if number == 0 || epoch != l.epoch || !l.holds.end(number) {
		return false
	}
	if t.record != nil {
		l.notes[t.slot]--
		return l.notes[t.slot]&noteHeld == 0
	}
	key := timerKey{t.namespace, t.id}
	if l.absent[key]--; l.absent[key] == 0 {
		delete(l.absent, key)
	}
	return false
}

// occupy is called when a timer has come into a slot.
func (l *leadership) occupy(t *target) {
	if int(t.slot) == len(l.notes) {
		l.notes = append(l.notes, 0)
	}
	l.notes[t.slot] = 0
	if len(l.absent) > 0 {
		key := timerKey{t.namespace, t.id}
		l.notes[t.slot] = l.absent[key]
		delete(l.absent, key)
	}
}

// changed is called when the record in a slot has a new revision, which nobody has been given.
func (l *leadership) changed(slot uint32) { l.notes[slot] &= noteHeld }

// vacate is called when a timer has left its slot.
func (l *leadership) vacate(t *target) {
	if held := l.notes[t.slot] & noteHeld; held > 0 {
		if l.absent == nil {
			l.absent = map[timerKey]note{}
		}
		l.absent[timerKey{t.namespace, t.id}] = held
	}
	l.notes[t.slot] = 0
}

// reset forgets all notes; the table has so many slots.
func (l *leadership) reset(slots uint32) {
	l.notes = slices.Grow(l.notes[:0], int(slots))[:slots]
	clear(l.notes)
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
	var slots []uint32
	for slot, n := range f.lead.notes {
		if n == 0 {
			continue
		}
		f.lead.notes[slot] = change(n)
		if n&(noteHanded|noteHeld) != 0 {
			slots = append(slots, uint32(slot))
		}
	}
	slices.SortFunc(slots, func(a, b uint32) int { return compareDue(f.s.table.at(a), f.s.table.at(b)) })
	for _, slot := range slots {
		f.ops = append(f.ops, f.s.arm(slot, f.s.table.at(slot)))
	}
}

func compareDue(a, b *Record) int {
	if a.NextDue != b.NextDue {
		return cmp.Compare(a.NextDue, b.NextDue)
	}
	return cmp.Compare(a.Accepted, b.Accepted)
}

// Describe appends one DueInfo for each slot to out.
func (f *FSM) Describe(slots []uint32, out []DueInfo) []DueInfo {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, slot := range slots {
		r := f.s.table.at(slot)
		if r == nil {
			out = append(out, DueInfo{Ref: Ref{Slot: slot}})
			continue
		}
		n := f.lead.note(slot)
		out = append(out, DueInfo{
			Ref: Ref{Slot: slot, Revision: r.Revision}, OK: true, Namespace: r.Namespace, Queue: r.Queue,
			NextDue: r.NextDue, Accepted: r.Accepted, Attempt: r.Attempt, Lease: r.Retry.Lease,
			Handed: n&noteHanded != 0, Held: n&noteHeld != 0,
		})
	}
	return out
}

// HandOut appends one record for each ref to out and notes that it is handed out. It appends nil for a ref that is stale,
// held or handed out already, and for all of them if the epoch is not the one that is led, or is over.
func (f *FSM) HandOut(epoch uint64, refs []Ref, out []*Record) []*Record {
	f.mu.Lock()
	defer f.mu.Unlock()
	leads := epoch != 0 && epoch == f.lead.led && epoch >= f.s.epoch
	for _, ref := range refs {
		r := f.s.table.at(ref.Slot)
		if !leads || r == nil || r.Revision != ref.Revision || f.lead.notes[ref.Slot]&(noteHanded|noteHeld) != 0 {
			out = append(out, nil)
			continue
		}
		f.lead.notes[ref.Slot] |= noteHanded | noteOut
		out = append(out, r)
	}
	return out
}

// Record returns the record in a slot; nil if the slot is free.
func (f *FSM) Record(slot uint32) *Record {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.s.table.at(slot)
}
