package raftfsm

const notePageSize = 64

type notePage struct {
	used  int
	notes [notePageSize]note
	// handed is when what is noted as handed out was, Unix milliseconds.
	handed [notePageSize]int64
}

// noteTable keeps the notes by slot, in pages that come and go with what they hold: most pending timers have none.
// Guarded by FSM.mu.
type noteTable struct {
	pages []*notePage
	// used is the number of pages; spare is an empty one.
	used  int
	spare *notePage
}

func (t *noteTable) at(slot uint32) note {
	n := slot / notePageSize
	if int(n) >= len(t.pages) || t.pages[n] == nil {
		return 0
	}
	return t.pages[n].notes[slot%notePageSize]
}

// handedAt notes when a slot, which has a note, was handed out; when reads it.
func (t *noteTable) handedAt(slot uint32, at int64) {
	t.pages[slot/notePageSize].handed[slot%notePageSize] = at
}

func (t *noteTable) when(slot uint32) int64 {
	return t.pages[slot/notePageSize].handed[slot%notePageSize]
}

func (t *noteTable) set(slot uint32, to note) {
	old := t.at(slot)
	if old == to {
		return
	}
	n := slot / notePageSize
	if int(n) >= len(t.pages) {
		t.pages = append(t.pages, make([]*notePage, int(n)+1-len(t.pages))...)
	}
	p := t.pages[n]
	if p == nil {
		if p, t.spare = t.spare, nil; p == nil {
			p = new(notePage)
		}
		t.pages[n] = p
		t.used++
	}
	p.notes[slot%notePageSize] = to
	switch {
	case old == 0:
		p.used++
	case to == 0:
		p.used--
	}
	if p.used > 0 {
		return
	}
	t.spare, t.pages[n] = p, nil
	if t.used--; t.used == 0 {
		t.pages = nil
	}
}

// each calls f for all slots that have a note; f may change it.
func (t *noteTable) each(f func(slot uint32, n note)) {
	for i, p := range t.pages {
		if p == nil {
			continue
		}
		for j, n := range p.notes {
			if n != 0 {
				f(uint32(i*notePageSize+j), n)
			}
		}
	}
}
