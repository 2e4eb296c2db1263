package wheel

import (
	"cmp"
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"os"
	"slices"
	"strconv"
	"testing"
	"time"
)

// model is what a Wheel must look like from outside: a list sorted by tick and insertion.
type model struct {
	list []modelEntry
	seq  uint64
	now  Tick
}

type modelEntry struct {
	when Tick
	seq  uint64
	ref  uint64
	h    Handle
}

func (m *model) insert(when Tick, ref uint64, h Handle) {
	m.seq++
	e := modelEntry{min(when, MaxTick), m.seq, ref, h}
	i, _ := slices.BinarySearchFunc(m.list, e, func(a, b modelEntry) int {
		return cmp.Or(cmp.Compare(a.when, b.when), cmp.Compare(a.seq, b.seq))
	})
	m.list = slices.Insert(m.list, i, e)
}

// source feeds a run with choices: random ones, or a fuzzer's bytes.
type source interface {
	below(n int) int
	more() bool
}

type randSource struct {
	*rand.Rand
	left int
}

func (r *randSource) below(n int) int { return r.IntN(n) }
func (r *randSource) more() bool      { r.left--; return r.left >= 0 }

type byteSource []byte

func (b *byteSource) more() bool { return len(*b) > 0 }
func (b *byteSource) below(n int) int {
	if len(*b) == 0 {
		return 0
	}
	if n <= 256 || len(*b) < 4 {
		v := int((*b)[0])
		*b = (*b)[1:]
		return v % n
	}
	v := int(binary.LittleEndian.Uint32(*b))
	*b = (*b)[4:]
	return v % n
}

// run is one comparison of a Wheel with the model.
type run struct {
	src  source
	w    *Wheel
	m    model
	dead []Handle // handles that must be refused
	ref  uint64

	dense bool // many entries on few ticks
}

func newRun(src source, start Tick) *run {
	r := &run{src: src, w: New(start), m: model{now: start - 1}}
	if mode := src.below(3); mode > 0 {
		r.w.limits = limits{
			work: 1 + src.below(200), aheadBig: src.below(20), aheadMin: 1 + src.below(50), aheadEach: 1 + src.below(3),
			touch: src.below(100), few: src.below(9), stale: src.below(60), sweep: 1 + src.below(3),
		}
		r.dense = mode > 1
	}
	return r
}

// denseTick keeps to a few ticks, each with so many entries that their slots take several chunks.
func (r *run) denseTick() Tick {
	unit := Tick(1) << []int{0, 4, 8, 12, 16, 20, 24, 32, 40}[r.src.below(9)]
	return (r.w.Now()/unit + 1 + Tick(r.src.below(2))) * unit
}

// tick chooses a due tick: near, on both sides of a turn of some level, equal to one in use, past, or far away.
func (r *run) tick() Tick {
	if r.dense && r.src.below(16) > 0 {
		return r.denseTick()
	}
	now := r.w.Now()
	switch r.src.below(8) {
	case 0:
		return now + Tick(r.src.below(4))
	case 1:
		return now + Tick(r.src.below(600))
	case 2, 3:
		blk := Tick(1) << (8 * (1 + r.src.below(5)))
		return now&^(blk-1) + blk*Tick(r.src.below(4)) + Tick(r.src.below(5)) - 2
	case 4:
		if len(r.m.list) > 0 {
			return r.m.list[r.src.below(len(r.m.list))].when
		}
		return now + 1
	case 5:
		return now - Tick(r.src.below(50))
	case 6:
		return now + Tick(r.src.below(1<<30))<<r.src.below(14)
	default:
		return now + Tick(r.src.below(1<<20))
	}
}

// step does one operation on both sides.
func (r *run) step() error {
	op := r.src.below(16)
	if r.dense && op >= 12 && r.src.below(8) > 0 {
		op = r.src.below(11)
	}
	switch {
	case op < 5 || len(r.m.list) == 0 && op < 11:
		r.ref++
		when := r.tick()
		r.m.insert(when, r.ref, r.w.Add(when, r.ref))
	case op < 8:
		i := r.src.below(len(r.m.list))
		e := r.m.list[i]
		r.m.list = slices.Delete(r.m.list, i, i+1)
		if ref, ok := r.w.Remove(e.h); ref != e.ref || !ok {
			return fmt.Errorf("Remove(%x) = %d, %v, want %d", e.h, ref, ok, e.ref)
		}
		r.dead = append(r.dead, e.h)
	case op < 11:
		i := r.src.below(len(r.m.list))
		e := r.m.list[i]
		when := r.tick()
		r.m.list = slices.Delete(r.m.list, i, i+1)
		r.m.insert(when, e.ref, e.h)
		if !r.w.Move(e.h, when) {
			return fmt.Errorf("Move(%x) refused", e.h)
		}
	case op < 12 && len(r.dead) > 0:
		h := r.dead[r.src.below(len(r.dead))]
		_, removed := r.w.Remove(h)
		_, found := r.w.Ref(h)
		if removed || found || r.w.Move(h, r.tick()) {
			return fmt.Errorf("stale handle %x accepted", h)
		}
	case op < 15:
		return r.advance(r.target(), r.src.below(7))
	default:
		if len(r.m.list) > 0 {
			e := r.m.list[r.src.below(len(r.m.list))]
			if ref, ok := r.w.Ref(e.h); ref != e.ref || !ok {
				return fmt.Errorf("Ref(%x) = %d, %v, want %d", e.h, ref, ok, e.ref)
			}
		}
	}
	return r.next()
}

// target chooses where to advance to.
func (r *run) target() Tick {
	now := r.w.Now()
	switch r.src.below(8) {
	case 0:
		return now - Tick(r.src.below(10))
	case 1:
		if len(r.m.list) > 0 {
			return r.m.list[r.src.below(len(r.m.list))].when - Tick(r.src.below(2))
		}
	case 2:
		if t, ok := r.w.Next(); ok {
			return t
		}
	case 3:
		blk := Tick(1) << (8 * (1 + r.src.below(4)))
		return now&^(blk-1) + blk + Tick(r.src.below(3)) - 2
	case 4:
		return now + Tick(r.src.below(1<<20))
	case 5:
		return now + Tick(r.src.below(300))
	}
	return now + 1
}

// advance makes one call with a short buffer and compares what comes out; it may leave the wheel in the middle of a turn.
func (r *run) advance(now Tick, room int) error {
	limit := max(now, r.w.Now())
	due := make([]Due, room)
	n, more := r.w.Advance(now, due)
	for _, d := range due[:n] {
		if len(r.m.list) == 0 {
			return fmt.Errorf("Advance(%d) emitted %v, want nothing", now, d)
		}
		e := r.m.list[0]
		if d != (Due{e.when, e.ref}) {
			return fmt.Errorf("Advance(%d) emitted %v, want {%d %d}", now, d, e.when, e.ref)
		}
		if d.When > limit {
			return fmt.Errorf("Advance(%d) emitted %v early", now, d)
		}
		r.m.list = r.m.list[1:]
		r.dead = append(r.dead, e.h)
	}
	if !more && len(r.m.list) > 0 && r.m.list[0].when <= limit {
		return fmt.Errorf("Advance(%d) left %v", now, r.m.list[0])
	}
	if !more && r.w.Now() != limit {
		return fmt.Errorf("Advance(%d): Now is %d", now, r.w.Now())
	}
	if r.w.Now() < r.m.now {
		return fmt.Errorf("Advance(%d): Now went back from %d to %d", now, r.m.now, r.w.Now())
	}
	r.m.now = r.w.Now()
	return nil
}

// next compares Next and Len.
func (r *run) next() error {
	if r.w.Len() != len(r.m.list) {
		return fmt.Errorf("Len is %d, want %d", r.w.Len(), len(r.m.list))
	}
	t, ok := r.w.Next()
	if len(r.m.list) == 0 {
		return nil
	}
	if first := max(r.m.list[0].when, r.w.Now()); !ok || t > first {
		return fmt.Errorf("Next is %d, %v, but %d is due", t, ok, first)
	}
	return nil
}

// all runs to the end of the source, checking the invariants every few steps, and drains the wheel.
func (r *run) all(every int) error {
	for i := 0; r.src.more(); i++ {
		if err := r.step(); err != nil {
			return fmt.Errorf("step %d: %w", i, err)
		}
		if i%every == 0 {
			if err := r.w.Check(); err != nil {
				return fmt.Errorf("step %d: %w", i, err)
			}
		}
	}
	for calls := 0; len(r.m.list) > 0; calls++ {
		t, ok := r.w.Next()
		if !ok || calls > 1_000_000 {
			return fmt.Errorf("drain: Next is %d, %v with %d entries", t, ok, len(r.m.list))
		}
		if err := r.advance(t, 1+r.src.below(6)); err != nil {
			return fmt.Errorf("drain: %w", err)
		}
	}
	return r.w.Check()
}

func modelSeed(t *testing.T) uint64 {
	if s := os.Getenv("WHEEL_SEED"); s != "" {
		v, err := strconv.ParseUint(s, 10, 64)
		if err != nil {
			t.Fatal(err)
		}
		return v
	}
	return uint64(time.Now().UnixNano())
}

// TestModel compares the wheel with a sorted list on random operations. WHEEL_SEED repeats a run.
func TestModel(t *testing.T) {
	t.Parallel()
	seed := modelSeed(t)
	starts := []Tick{0, 1, 1<<16 - 3, 1<<24 - 3, 1<<32 - 3, 1_800_000_000_000, 1<<40 - 3}
	for k := range 120 {
		src := &randSource{rand.New(rand.NewPCG(seed, uint64(k))), 2000}
		if err := newRun(src, starts[k%len(starts)]).all(16); err != nil {
			t.Fatalf("WHEEL_SEED=%d, run %d: %v", seed, k, err)
		}
	}
}

// TestModelCheckEachStep is the same on short runs, with all invariants checked after each step.
func TestModelCheckEachStep(t *testing.T) {
	t.Parallel()
	seed := modelSeed(t)
	for k := range 20 {
		src := &randSource{rand.New(rand.NewPCG(seed, 1000+uint64(k))), 150}
		if err := newRun(src, Tick(k)<<(2*k)).all(1); err != nil {
			t.Fatalf("WHEEL_SEED=%d, run %d: %v", seed, k, err)
		}
	}
}

// FuzzModel lets the fuzzer choose the operations.
func FuzzModel(f *testing.F) {
	f.Add([]byte("\x00\x02\x01\x02\x03\x0d\x03\x01\x02\x05"), uint8(0))
	f.Add([]byte("0000000000 a few words that move, remove, add and advance"), uint8(16))
	f.Fuzz(func(t *testing.T, ops []byte, shift uint8) {
		if len(ops) > 4096 {
			return
		}
		src := byteSource(ops)
		if err := newRun(&src, Tick(1)<<(shift%45)-3).all(4); err != nil {
			t.Fatal(err)
		}
	})
}
