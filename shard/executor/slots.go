package executor

import (
	"math"

	"github.com/carillon-timers/carillon/raftfsm"
)

// slotState is what the executor knows of a slot that has come out of the wheel under the present epoch. The zero value
// is a slot that has not.
type slotState struct {
	revision uint64
	// at is, in ready and held, the tick at which the slot comes out of the wheel again; in out, the end of the lease.
	at int64
	// record is what was handed out (state out), or will be (ahead).
	record *raftfsm.Record
	// list is where the slot waits (state ready).
	list *readyList
	// span is how long before at it was handed out, in milliseconds (state out).
	span  uint32
	state stateKind
	// lapsed: its lease is over, and its Retry was proposed (state out). asked: another command was, and until at it is left alone
	// (state held); ahead: that is its completion.
	lapsed, asked, ahead bool
}

// handed is when the slot was handed out, Unix milliseconds (state out).
func (s *slotState) handed() int64 { return s.at - int64(s.span) }

// moveEnd moves the end of the lease (state out).
func (s *slotState) moveEnd(at int64) {
	s.span = uint32(min(max(0, at-s.handed()), math.MaxUint32))
	s.at = at
}

type stateKind uint8

const (
	// stateNone: the wheel holds the slot at the time at which it falls due.
	stateNone stateKind = iota
	// stateReady: in one ready list.
	stateReady
	// stateOut: handed out, its lease not settled.
	stateOut
	// stateHeld: due, but the table refused to hand it out, or another verdict has a command proposed: one that would settle it
	// is on its way.
	stateHeld
	stateKinds
)

const (
	slotPage = 64
	// sparePages is how many empty pages a table keeps: 2.5 KiB each.
	sparePages = 64
)

type slotPages struct {
	live  int
	slots [slotPage]slotState
}

// slotTable holds the states that are not none, by slot: a directory of pages that come and go with what they hold.
// Guarded by its Exec's mu, until it is handed to the baton holder as a former epoch's.
type slotTable struct {
	pages []*slotPages
	spare []*slotPages
	count [stateKinds]int
}

// get returns the state of a slot, or nil for none. The pointer is good until the next put or clear.
func (t *slotTable) get(slot uint32) *slotState {
	p := int(slot / slotPage)
	if p >= len(t.pages) || t.pages[p] == nil {
		return nil
	}
	s := &t.pages[p].slots[slot%slotPage]
	if s.state == stateNone {
		return nil
	}
	return s
}

// put sets the state of a slot; s.state is not none.
func (t *slotTable) put(slot uint32, s slotState) {
	p := int(slot / slotPage)
	if p >= len(t.pages) {
		t.pages = append(t.pages, make([]*slotPages, p+1-len(t.pages))...)
	}
	if t.pages[p] == nil {
		if n := len(t.spare); n > 0 {
			t.pages[p], t.spare[n-1], t.spare = t.spare[n-1], nil, t.spare[:n-1]
		} else {
			t.pages[p] = new(slotPages)
		}
	}
	page := t.pages[p]
	old := page.slots[slot%slotPage].state
	if old == stateNone {
		page.live++
	} else {
		t.count[old]--
	}
	t.count[s.state]++
	page.slots[slot%slotPage] = s
}

// clear makes the state of a slot none.
func (t *slotTable) clear(slot uint32) {
	s := t.get(slot)
	if s == nil {
		return
	}
	t.count[s.state]--
	*s = slotState{}
	p := slot / slotPage
	page := t.pages[p]
	if page.live--; page.live > 0 {
		return
	}
	t.pages[p] = nil
	if len(t.spare) < sparePages {
		t.spare = append(t.spare, page)
	}
}

// len is the number of slots whose state is not none.
func (t *slotTable) len() int {
	return t.count[stateReady] + t.count[stateOut] + t.count[stateHeld]
}

// take moves about limit slots out of the table into buf, beginning at page from; it returns where to go on, and false
// when there are none left.
func (t *slotTable) take(from, limit int, buf []uint32) (slots []uint32, next int, more bool) {
	for ; from < len(t.pages) && len(buf) < limit; from++ {
		page := t.pages[from]
		if page == nil {
			continue
		}
		for i := range page.slots {
			if page.slots[i].state != stateNone {
				buf = append(buf, uint32(from*slotPage+i))
			}
		}
		t.pages[from] = nil
	}
	return buf, from, from < len(t.pages)
}
