package wheel

import "testing"

// Stop had to be called in a loop, for a timer on its way between two buckets escaped a single call (RussellLuo/timingwheel #30).
func TestOneRemoveIsEnoughDuringAMove(t *testing.T) {
	t.Parallel()
	for _, at := range []Tick{0, 127, 150, 200, 254, 255, 256, 299} {
		w, hs := crowd(20*chunkLen, 300)
		w.Advance(at, nil)
		for i, h := range hs {
			if _, ok := w.Remove(h); !ok {
				t.Fatalf("at %d: entry %d of %d is not found", at, i, len(hs))
			}
		}
		check(t, w)
		if got := collect(t, w, 1000, 16); len(got) != 0 || w.Len() != 0 {
			t.Fatalf("at %d: %d came although they were removed", at, len(got))
		}
	}
}

// Timers of later turns were looked at in each turn, so what was far made what is near slow (netty/netty #1115).
func TestFarTimersCostNothing(t *testing.T) {
	t.Parallel()
	const far, day = 100_000, Tick(86_400_000)
	w := New(0)
	for i := range far {
		w.Add(day+Tick(i), 1<<40)
	}
	moved, came := 0, 0
	buf := make([]Due, 64)
	for now := Tick(0); now < 60_000; now++ {
		w.Add(now+500, uint64(now))
		before := w.slots
		n, more := w.Advance(now, buf)
		if moved += movedElements(&before, &w.slots); more {
			t.Fatalf("at %d there is more", now)
		}
		if came += n; n > 1 {
			t.Fatalf("at %d came %d", now, n)
		}
	}
	if came != 59_500 || moved > 3*60_000 {
		t.Fatalf("%d came, %d were moved", came, moved)
	}
}
