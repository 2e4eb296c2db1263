package raftfsm

import (
	"maps"
	"math/rand/v2"
	"testing"
)

// Notes come and go in slots near each other and far away; a map is the model. A removal moves others, and must lose none.
func TestNotesModel(t *testing.T) {
	t.Parallel()
	for _, span := range []int{3, 40, 5000, 1 << 31} {
		rng := rand.New(rand.NewPCG(8, uint64(span)))
		var notes noteTable
		want := map[uint32]noteCell{}
		var seen []uint32
		for step := range 20_000 {
			slot := uint32(rng.IntN(span))
			if len(seen) > 0 && rng.IntN(2) == 0 {
				slot = seen[rng.IntN(len(seen))]
			}
			seen = append(seen, slot)
			to := note(rng.IntN(3))
			if step/2000%2 == 1 && rng.IntN(3) > 0 {
				to = 0
			}
			if notes.set(slot, to); to == 0 {
				delete(want, slot)
			} else {
				at := want[slot].handed
				if rng.IntN(2) == 0 {
					at = rng.Int64()
					notes.handedAt(slot, at)
				}
				want[slot] = noteCell{slot, to, at}
			}
			if got := notes.at(slot); got != to {
				t.Fatalf("step %d: slot %d has note %d, want %d", step, slot, got, to)
			}
			if step%500 > 0 {
				continue
			}
			if err := notes.check(); err != nil {
				t.Fatalf("step %d: %v", step, err)
			}
			got := map[uint32]noteCell{}
			notes.each(func(slot uint32, n note) { got[slot] = noteCell{slot, n, notes.when(slot)} })
			if !maps.Equal(got, want) {
				t.Fatalf("step %d: %d notes, want %d", step, len(got), len(want))
			}
		}
		for slot := range want {
			notes.set(slot, 0)
		}
		if notes.used != 0 || len(notes.cells) > 2*minNotes {
			t.Fatalf("%d notes in %d cells are left", notes.used, len(notes.cells))
		}
	}
}
