package raftfsm

import "math/bits"

// noteCell is the note of one slot; without a note it is free.
type noteCell struct {
	slot uint32
	note note
	// handed is when what is noted as handed out was, Unix milliseconds.
	handed int64
}

// noteTable keeps the notes by slot, open addressed with linear probing: most pending timers have none, and those that have one come
// and go. Guarded by FSM.mu.
type noteTable struct {
	// cells are a power of two, or none.
	cells []noteCell
	used  int
}

// minNotes is the least number of cells that are not none.
const minNotes = 16

func (t *noteTable) home(slot uint32) int {
	return int(slot * 0x9E3779B9 >> (33 - bits.Len(uint(len(t.cells)))))
}

// find is the cell of a slot, or the free one where it would be. There must be cells.
func (t *noteTable) find(slot uint32) int {
	i := t.home(slot)
	for t.cells[i].note != 0 && t.cells[i].slot != slot {
		i = (i + 1) & (len(t.cells) - 1)
	}
	return i
}

func (t *noteTable) at(slot uint32) note {
	if t.used == 0 {
		return 0
	}
	return t.cells[t.find(slot)].note
}

// handedAt notes when a slot, which has a note, was handed out; when reads it.
func (t *noteTable) handedAt(slot uint32, at int64) { t.cells[t.find(slot)].handed = at }

func (t *noteTable) when(slot uint32) int64 { return t.cells[t.find(slot)].handed }

func (t *noteTable) set(slot uint32, to note) {
	if t.used == 0 && to == 0 {
		return
	}
	if (t.used+1)*4 > len(t.cells)*3 {
		t.resize(max(minNotes, 2*len(t.cells)))
	}
	i := t.find(slot)
	switch c := &t.cells[i]; {
	case to == 0 && c.note != 0:
		t.remove(i)
	case to == 0:
	case c.note == 0:
		*c = noteCell{slot: slot, note: to}
		t.used++
	default:
		c.note = to
	}
}

// remove frees a cell. The cells behind it move up.
func (t *noteTable) remove(i int) {
	mask := len(t.cells) - 1
	for j := (i + 1) & mask; t.cells[j].note != 0; j = (j + 1) & mask {
		// The cell at j may fill the hole at i if its home is not between them.
		if (j-t.home(t.cells[j].slot))&mask >= (j-i)&mask {
			t.cells[i], i = t.cells[j], j
		}
	}
	t.cells[i] = noteCell{}
	if t.used--; len(t.cells) > minNotes && t.used*8 < len(t.cells) {
		t.resize(len(t.cells) / 2)
	}
}

func (t *noteTable) resize(cells int) {
	old := t.cells
	t.cells = make([]noteCell, cells)
	for i := range old {
		if old[i].note != 0 {
			t.cells[t.find(old[i].slot)] = old[i]
		}
	}
}

// each calls f for all slots that have a note; f changes none.
func (t *noteTable) each(f func(slot uint32, n note)) {
	for i := range t.cells {
		if c := &t.cells[i]; c.note != 0 {
			f(c.slot, c.note)
		}
	}
}
