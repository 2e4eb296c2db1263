package wheel

import (
	"math/rand/v2"
	"slices"
	"testing"
)

// crowd is a wheel with n entries at one tick of level 1, and small limits.
func crowd(n int, when Tick) (*Wheel, []Handle) {
	w := New(0)
	w.limits = limits{work: 2 * chunkLen, aheadBig: 1, aheadMin: 1, aheadEach: 1, stale: 0, sweep: 0}
	hs := make([]Handle, n)
	for i := range hs {
		hs[i] = w.Add(when, uint64(i))
	}
	return w, hs
}

// TestSweepMeetsMove lets a slot be moved down while the sweep is in the middle of it: the sweep must not go on in
// chunks that have been freed.
func TestSweepMeetsMove(t *testing.T) {
	t.Parallel()
	for gap := range 12 {
		w, hs := crowd(20*chunkLen, 300)
		r := rand.New(rand.NewPCG(uint64(gap), 1))
		r.Shuffle(len(hs), func(i, j int) { hs[i], hs[j] = hs[j], hs[i] })
		for !w.sweep.on || w.sweep.si != slotOf(1, 300) || w.sweep.cur == w.slots[w.sweep.si].head {
			w.Remove(hs[0])
			hs = hs[1:]
		}
		for range gap {
			w.Remove(hs[0])
			hs = hs[1:]
		}
		due := make([]Due, 8)
		for more := true; more; {
			_, more = w.Advance(260, due)
			w.Remove(hs[0])
			hs = hs[1:]
			check(t, w)
		}
		got := collect(t, w, 300, 16)
		if len(got) != len(hs) || !slices.IsSorted(refs(got)) {
			t.Fatalf("gap %d: %d entries came, want %d", gap, len(got), len(hs))
		}
	}
}

// TestSweepTakesTheRest lets the sweep empty a slot of which a part was moved ahead: that part must still come.
func TestSweepTakesTheRest(t *testing.T) {
	t.Parallel()
	w, hs := crowd(20*chunkLen, 300)
	w.Advance(200, nil)
	ahead := int(w.slots[slotOf(0, 300)].n)
	if ahead == 0 || w.slots[slotOf(1, 300)].n == 0 {
		t.Fatalf("%d elements were moved ahead of %d", ahead, len(hs))
	}
	for _, h := range hs[ahead:] {
		w.Remove(h)
	}
	w.purge()
	check(t, w)
	late := w.Add(300, 1<<20)
	if next, ok := w.Next(); next > 300 || !ok {
		t.Fatalf("Next is %d, %v", next, ok)
	}
	got := collect(t, w, 300, 16)
	if len(got) != ahead+1 || got[ahead].Ref != 1<<20 {
		t.Fatalf("%d entries came, want %d and the one added late (%x)", len(got), ahead, late)
	}
}

// TestRestDoesNotOvertake leaves one entry of a block, due later than the part that was moved ahead: it must neither come
// first nor take time past the others.
func TestRestDoesNotOvertake(t *testing.T) {
	t.Parallel()
	w, hs := crowd(chunkLen, 300)
	w.limits.few = 8
	w.Add(310, 1<<20)
	w.Advance(200, nil)
	if ahead, rest := w.slots[slotOf(0, 300)].n, w.slots[slotOf(1, 300)].n; ahead != chunkLen || rest != 1 {
		t.Fatalf("%d elements were moved ahead and %d are left", ahead, rest)
	}
	got := collect(t, w, 400, 16)
	if len(got) != len(hs)+1 || !slices.IsSorted(refs(got)) {
		t.Fatalf("%d entries of %d came, the first is %v", len(got), len(hs)+1, got[0])
	}
	check(t, w)
}
