package wheel

import (
	"fmt"
	"runtime"
	"slices"
	"testing"
)

// collect advances to now and returns all that comes out, through a buffer of the given size.
func collect(t *testing.T, w *Wheel, now Tick, room int) []Due {
	t.Helper()
	due := make([]Due, room)
	var out []Due
	for calls := 0; ; calls++ {
		n, more := w.Advance(now, due)
		out = append(out, due[:n]...)
		if !more {
			return out
		}
		if calls > 1_000_000 {
			t.Fatalf("Advance(%d) does not end", now)
		}
	}
}

func refs(due []Due) []uint64 {
	var out []uint64
	for _, d := range due {
		out = append(out, d.Ref)
	}
	return out
}

func check(t *testing.T, w *Wheel) {
	t.Helper()
	if err := w.Check(); err != nil {
		t.Fatal(err)
	}
}

// TestTutorialOrder is the example with which most texts on timing wheels begin: six timers of different delays.
func TestTutorialOrder(t *testing.T) {
	t.Parallel()
	const now = 1_800_000_000_000
	w := New(now)
	for i, delay := range []Tick{9, 3, 5, 1, 25, 12} {
		w.Add(now+delay, uint64(i))
	}
	place := make([]int, 6)
	for i, d := range collect(t, w, now+30, 2) {
		place[d.Ref] = i + 1
	}
	if want := []int{4, 2, 3, 1, 6, 5}; !slices.Equal(place, want) {
		t.Fatalf("delays 9, 3, 5, 1, 25, 12 came out as %v, want %v", place, want)
	}
}

// TestTurns puts one entry before, on and after the turn of each level, as well as a whole turn and half of one away,
// from origins just below powers of two, and advances tick by tick around each: none may come early, late, or twice.
// A wheel that takes the slot of the present for that of a whole turn later fires a turn early.
func TestTurns(t *testing.T) {
	t.Parallel()
	for _, shift := range []int{8, 16, 24, 30, 31, 32, 36, 40} {
		for _, back := range []Tick{1, 2, 3, 255, 256, 257} {
			origin := Tick(1)<<shift - back
			w := New(origin)
			var whens []Tick
			for l := 1; l <= levels; l++ {
				turn := Tick(1) << (levelBits * l)
				for _, base := range []Tick{origin, origin&^(turn-1) + turn, origin&^(turn-1) + 2*turn} {
					for _, d := range []Tick{-1, 0, 1, turn/2 - 1, turn / 2, turn - 1, turn, turn + 1} {
						if when := base + d; when >= origin {
							whens = append(whens, when)
							w.Add(when, uint64(when))
						}
					}
				}
			}
			check(t, w)
			slices.Sort(whens)
			for _, when := range whens {
				if got := collect(t, w, when-1, 3); len(got) > 0 {
					t.Fatalf("origin %d: %v came before %d", origin, got, when)
				}
				check(t, w)
				for i, d := range collect(t, w, when, 3) {
					if d.When != when || d.Ref != uint64(when) {
						t.Fatalf("origin %d: entry %d of %d is %v", origin, i, when, d)
					}
				}
			}
			if w.Len() != 0 {
				t.Fatalf("origin %d: %d entries are left", origin, w.Len())
			}
		}
	}
}

// TestSlideOverTurns keeps a window of timers ahead of the present, which goes on tick by tick over turns of the lower levels.
func TestSlideOverTurns(t *testing.T) {
	t.Parallel()
	for _, shift := range []int{16, 24, 30, 31, 32, 36, 40} {
		origin := Tick(1)<<shift - 700
		w := New(origin)
		for now := origin; now < origin+1400; now++ {
			for _, d := range []Tick{1, 255, 256, 257, 300} {
				w.Add(now+d, uint64(now+d))
			}
			for _, d := range collect(t, w, now, 4) {
				if d.When != now || d.Ref != uint64(now) {
					t.Fatalf("origin %d: at %d came %v", origin, now, d)
				}
			}
			if now%64 == 0 {
				check(t, w)
			}
		}
	}
}

// TestOrderOverLevels gives entries of one tick from ever nearer, so that the first lie in the far list and the last in
// level 0; some are moved away and back, which puts them last. They must come out in the order of insertion.
func TestOrderOverLevels(t *testing.T) {
	t.Parallel()
	const due = Tick(5)<<40 + 123_456_789
	w := New(0)
	var want []uint64
	ref := uint64(0)
	var hs []Handle
	for _, ahead := range []Tick{due, 1 << 41, 1 << 40, 1 << 39, 1<<32 + 5, 1 << 31, 1 << 24, 1 << 23, 70_000, 40_000, 300, 200, 100, 3, 1, 0} {
		if got := collect(t, w, due-ahead-1, 8); len(got) > 0 {
			t.Fatalf("%v came early at %d", got, due-ahead)
		}
		for range 50 {
			hs = append(hs, w.Add(due, ref))
			want = append(want, ref)
			ref++
		}
		back := hs[len(hs)/2]
		w.Move(back, due+5)
		w.Move(back, due)
		r, _ := w.Ref(back)
		want = append(slices.DeleteFunc(want, func(v uint64) bool { return v == r }), r)
		check(t, w)
	}
	if got := refs(collect(t, w, due, 7)); !slices.Equal(got, want) {
		t.Fatalf("order is %v, want %v", got, want)
	}
}

// TestMoveToSameTick counts as an insertion: the entry goes behind the others of its tick.
func TestMoveToSameTick(t *testing.T) {
	t.Parallel()
	for _, delay := range []Tick{-5, 0, 3, 300, 70_000, 1 << 30, 1 << 42} {
		w := New(1000)
		h := w.Add(1000+delay, 1)
		w.Add(1000+delay, 2)
		w.Move(h, 1000+delay)
		if got := refs(collect(t, w, 1000+max(delay, 0), 9)); !slices.Equal(got, []uint64{2, 1}) {
			t.Fatalf("delay %d: order is %v", delay, got)
		}
	}
}

// TestPast gives ticks that have passed: they come with the next Advance, even to an earlier time, oldest first and
// before what has just become due.
func TestPast(t *testing.T) {
	t.Parallel()
	w := New(1000)
	collect(t, w, 2000, 4)
	w.Add(2001, 9)
	for i, when := range []Tick{1999, 1500, 2000, 1500, 0} {
		w.Add(when, uint64(i))
	}
	if next, ok := w.Next(); next > 2000 || !ok {
		t.Fatalf("Next is %d, %v with past entries", next, ok)
	}
	if got := refs(collect(t, w, 10, 2)); !slices.Equal(got, []uint64{4, 1, 3, 0, 2}) || w.Now() != 2000 {
		t.Fatalf("past entries came as %v, Now is %d", got, w.Now())
	}
	w.Add(1, 10)
	if got := refs(collect(t, w, 2001, 2)); !slices.Equal(got, []uint64{10, 9}) {
		t.Fatalf("then came %v", got)
	}
}

// TestStaleHandles uses handles after their entry has gone, also when the place is in use again and when its slab was given back.
func TestStaleHandles(t *testing.T) {
	t.Parallel()
	w := New(0)
	var hs []Handle
	for i := range 40 * entryLen {
		hs = append(hs, w.Add(Tick(1000+i%7), uint64(i)))
	}
	collect(t, w, 2000, 64)
	for i := range hs {
		w.Add(Tick(3000+i%7), uint64(i))
	}
	for _, h := range append(hs, 0, 1<<32-1, 1<<63, 3<<32|1<<31) {
		_, removed := w.Remove(h)
		_, found := w.Ref(h)
		if removed || found || w.Move(h, 5) {
			t.Fatalf("handle %x was accepted", h)
		}
	}
	w.Warm(hs)
	if w.Len() != len(hs) {
		t.Fatalf("Len is %d, want %d", w.Len(), len(hs))
	}
}

// TestMemoryComesBack floods the wheel, by expiry and by removal; afterwards it must be small again.
func TestMemoryComesBack(t *testing.T) {
	const n = 500_000
	for _, how := range []string{"expire", "remove"} {
		w := New(0)
		hs := make([]Handle, n)
		for i := range hs {
			hs[i] = w.Add(Tick(1+i*13%3_600_000), uint64(i))
		}
		full := w.entryAt.slabN + w.chunkAt.slabN
		if how == "remove" {
			for _, h := range hs {
				w.Remove(h)
			}
		}
		for now := Tick(0); now < 4_000_000; now += 1000 {
			collect(t, w, now, 256)
		}
		check(t, w)
		if left := w.entryAt.slabN + w.chunkAt.slabN; left > 12 || w.elems > defaults.stale {
			t.Fatalf("%s: %d of %d slabs are left, %d elements", how, left, full, w.elems)
		}
		h := w.Add(5_000_000, 7)
		if ref, ok := w.Ref(h); ref != 7 || !ok {
			t.Fatalf("%s: then Ref is %d, %v", how, ref, ok)
		}
	}
}

// TestCancelledTimersLeaveNoTrace removes nearly all of many timers long before they are due, without letting time
// go on: elements that nobody needs any more must not pile up (a wheel that waits for their slots keeps them for hours).
func TestCancelledTimersLeaveNoTrace(t *testing.T) {
	t.Parallel()
	w := New(0)
	for i := range 300_000 {
		h := w.Add(Tick(3_600_000+i), uint64(i))
		if i%100 != 0 {
			w.Remove(h)
		}
	}
	for h, i := w.Add(1, 1), 0; i < 300_000; i++ {
		w.Move(h, Tick(7_200_000+i))
	}
	if limit := 3*w.Len() + 4*defaults.stale; w.elems > limit {
		t.Fatalf("%d elements for %d entries", w.elems, w.Len())
	}
	check(t, w)
}

// TestSlabMadeAnew lets stale elements lie in the lists while the slab of their entries is given back and made anew:
// the new entries must not be taken for the old ones.
func TestSlabMadeAnew(t *testing.T) {
	t.Parallel()
	w := New(0)
	w.limits.stale = 1 << 30
	const n = 20 * entryLen
	hs := make([]Handle, n)
	for i := range hs {
		hs[i] = w.Add(5000, 1)
	}
	for _, h := range hs {
		w.Remove(h)
	}
	if w.elems != n || w.entryAt.slabN > 3 {
		t.Fatalf("%d elements and %d slabs are left", w.elems, w.entryAt.slabN)
	}
	for i := range hs {
		hs[i] = w.Add(Tick(9000), 2)
	}
	check(t, w)
	if got := collect(t, w, 8999, 256); len(got) > 0 {
		t.Fatalf("%d entries came early, the first is %v", len(got), got[0])
	}
}

// TestStampsComeRound lets the stamps of an entry come round while an old element with the first stamp lies where the
// new one goes: the old one, which lies before another entry, must be gone.
func TestStampsComeRound(t *testing.T) {
	t.Parallel()
	w := New(0)
	h := w.Add(500, 1) // stamp 0
	w.Add(500, 2)
	w.find(h).stamp = noStamp - 1
	w.place(300, element{idx: uint32(h), stamp: noStamp - 1})
	w.Move(h, 500) // stamp 0 again
	check(t, w)
	if got := refs(collect(t, w, 1000, 4)); !slices.Equal(got, []uint64{2, 1}) {
		t.Fatalf("got %v", got)
	}
}

// TestGenerationsRunOut retires a place rather than let an old handle match again.
func TestGenerationsRunOut(t *testing.T) {
	t.Parallel()
	w := New(0)
	first := w.Add(10, 1)
	w.entry(uint32(first)).gen = 1<<32 - 1
	last := Handle(uint32(first)) | Handle(1<<32-1)<<32
	if _, ok := w.Remove(last); !ok || w.Len() != 0 {
		t.Fatalf("Remove: %v, Len %d", ok, w.Len())
	}
	for range 2 * 64 { // places are taken a word at a time
		if h := w.Add(10, 2); uint32(h) == uint32(first) {
			t.Fatalf("place %d is used again", uint32(h))
		}
	}
	check(t, w)
}

// TestBoundedWork lets a million timers fall into one tick and counts what a single Advance does: it may not handle
// more than 8,192 elements, and other timers that fall due meanwhile come in their own tick.
func TestBoundedWork(t *testing.T) {
	t.Parallel()
	const n, due = 200_000, Tick(70_000)
	w := New(0)
	for i := range n {
		w.Add(due, uint64(i))
	}
	buf := make([]Due, 256)
	got := 0
	for now := Tick(0); got < n; now++ {
		if now < due {
			w.Add(now, 1<<40)
		}
		for more := true; more; {
			before := w.slots
			var k int
			k, more = w.Advance(now, buf)
			if moved := movedElements(&before, &w.slots); moved > 8192+chunkLen {
				t.Fatalf("Advance(%d) moved %d elements", now, moved)
			}
			for _, d := range buf[:k] {
				if d.Ref != 1<<40 {
					if d.Ref != uint64(got) || now != due {
						t.Fatalf("at %d came %v, want the timer %d", now, d, got)
					}
					got++
				} else if d.When != now {
					t.Fatalf("at %d came %v", now, d)
				}
			}
			if now < due && more {
				t.Fatalf("Advance(%d) wants to be called again: the slot was not moved ahead", now)
			}
		}
	}
	if next, ok := w.Next(); ok {
		t.Fatalf("Next is %d on an empty wheel", next)
	}
}

// TestLateTurnIsBounded jumps to a turn at which a large slot must be moved down, with no time to do it ahead: each call
// still does its share only.
func TestLateTurnIsBounded(t *testing.T) {
	t.Parallel()
	w := New(0)
	for i := range 50_000 {
		w.Add(300, uint64(i))
	}
	calls := 0
	for more := true; more; calls++ {
		before := w.slots
		_, more = w.Advance(299, nil)
		if moved := movedElements(&before, &w.slots); moved > 8192+chunkLen {
			t.Fatalf("call %d moved %d elements", calls, moved)
		}
		check(t, w)
	}
	if calls < 6 {
		t.Fatalf("it took %d calls", calls)
	}
}

func movedElements(before, after *[slotsAll]slot) int {
	out := 0
	for i := range before {
		out += max(0, int(before[i].n)-int(after[i].n))
	}
	return out
}

// TestFewWakeUps follows Next from timer to timer: a lone timer costs one call, however far it is.
func TestFewWakeUps(t *testing.T) {
	t.Parallel()
	for _, delay := range []Tick{1, 255, 256, 65_536, 100_000, 1 << 25, 1 << 33, 3_000_000_000_000} {
		w := New(1_800_000_000_000)
		w.Add(1_800_000_000_000+delay, 1)
		calls := 0
		for ; w.Len() > 0; calls++ {
			next, ok := w.Next()
			if !ok {
				t.Fatalf("delay %d: Next has nothing", delay)
			}
			collect(t, w, next, 1)
		}
		if limit := 1 + b2i(delay > 1<<40)*2; calls > limit {
			t.Fatalf("delay %d took %d calls", delay, calls)
		}
	}
}

// TestRemovedWakeNoOne removes timers that lie alone in their slots: Next must not name their ticks.
func TestRemovedWakeNoOne(t *testing.T) {
	t.Parallel()
	w := New(0)
	for _, when := range []Tick{3, 50, 300, 70_000, 1 << 25, 1 << 33} {
		w.Remove(w.Add(when, 1))
	}
	w.Add(1<<34, 2)
	if next, ok := w.Next(); next != 1<<34 || !ok {
		t.Fatalf("Next is %d, %v", next, ok)
	}
	check(t, w)
}

// TestFewWakeUpsForMany is the same for many timers on one tick just after a turn of several levels: the wheel asks to
// be called while it moves them ahead, but not for ever.
func TestFewWakeUpsForMany(t *testing.T) {
	t.Parallel()
	const n, due = 20_000, Tick(1 << 24)
	w := New(1000)
	for i := range n {
		w.Add(due+Tick(i%2), uint64(i))
	}
	calls, late := 0, 0
	for ; w.Len() > 0; calls++ {
		next, _ := w.Next()
		late += b2i(next < due && calls > 1000)
		collect(t, w, next, n)
	}
	if late > 0 || calls > 1000 {
		t.Fatalf("%d calls, %d of them early and beyond measure", calls, late)
	}
}

// TestExtremes gives ticks at the ends of the range.
func TestExtremes(t *testing.T) {
	t.Parallel()
	w := New(0)
	for i, when := range []Tick{1<<63 - 1, MaxTick, MaxTick - 1, -1 << 63, 100 * 365 * 86_400_000} {
		w.Add(when, uint64(i))
	}
	check(t, w)
	got := fmt.Sprint(refs(collect(t, w, 200*365*86_400_000, 9)))
	got += fmt.Sprint(refs(collect(t, w, MaxTick-1, 9)), refs(collect(t, w, 1<<63-1, 9)))
	if got != "[3 4][2] [0 1]" {
		t.Fatalf("came out as %s", got)
	}
	check(t, w)
}

// TestNoGarbage holds adding, moving, removing and expiring to the arena: no allocation once it is warm.
func TestNoGarbage(t *testing.T) {
	w := New(0)
	due := make([]Due, 64)
	now := Tick(0)
	turn := func() {
		for i := range 200 {
			h := w.Add(now+Tick(i*37%5000), 1)
			if i%3 == 0 {
				w.Move(h, now+Tick(i))
			}
			if i%4 == 0 {
				w.Remove(h)
			}
		}
		now += 700
		for more := true; more; {
			_, more = w.Advance(now, due)
		}
	}
	for range 50 {
		turn()
	}
	runtime.GC()
	if a := testing.AllocsPerRun(50, turn); a > 0 {
		t.Fatalf("%v allocations per turn", a)
	}
}
