package main

import (
	"math"
	"math/rand/v2"
	"runtime"
	"runtime/debug"
	"slices"
	"syscall"
	"testing"
	"unsafe"
)

// cpuNow is the CPU time of this process in ns, its collector's included.
func cpuNow() int64 { return clock(2) }

// threadNow is the CPU time of this thread in ns.
func threadNow() int64 { return clock(3) }

// clock reads CLOCK_PROCESS_CPUTIME_ID (2) or CLOCK_THREAD_CPUTIME_ID (3); getrusage counts whole scheduler ticks only.
func clock(id uintptr) int64 {
	var t syscall.Timespec
	if _, _, e := syscall.RawSyscall(syscall.SYS_CLOCK_GETTIME, id, uintptr(unsafe.Pointer(&t)), 0); e != 0 {
		panic(e)
	}
	return t.Nano()
}

// dist is a distribution of deadlines.
type dist struct {
	name string
	draw func(r *rand.Rand) int64 // ms after start
}

var dists = []dist{
	{"hour", func(r *rand.Rand) int64 { return 1 + r.Int64N(3_600_000) }},
	{"exp30s", func(r *rand.Rand) int64 { return 1 + int64(r.ExpFloat64()*30_000) }},
	{"burst", func(*rand.Rand) int64 { return 600_000 }},
	{"year", func(r *rand.Rand) int64 { return 1 + r.Int64N(365*86_400_000) }},
}

func draw(d dist, n int, seed uint64) []int64 {
	r := rand.New(rand.NewPCG(seed, 1))
	whens := make([]int64, n)
	for i := range whens {
		whens[i] = start + d.draw(r)
	}
	return whens
}

func sequence(n int) []uint32 {
	ids := make([]uint32, n)
	for i := range ids {
		ids[i] = uint32(i)
	}
	return ids
}

func shuffled(n int, seed uint64) []uint32 {
	ids := sequence(n)
	rand.New(rand.NewPCG(seed, 2)).Shuffle(n, func(i, j int) { ids[i], ids[j] = ids[j], ids[i] })
	return ids
}

// figures are CPU ns per timer, and bytes; 0 is not measured.
type figures struct {
	add, move, remove, refill, churned, fresh float64
	bytes                                     float64
	gc, pause                                 float64 // CPU ms of a forced cycle; us for which it stops the program
}

func (f *figures) all() []*float64 {
	return []*float64{&f.add, &f.move, &f.remove, &f.refill, &f.churned, &f.fresh, &f.bytes, &f.gc, &f.pause}
}

// least keeps of each figure the smaller one.
func (f *figures) least(g figures) {
	others := g.all()
	for i, p := range f.all() {
		if v := *others[i]; *p == 0 || v > 0 && v < *p {
			*p = v
		}
	}
}

// collect forces cycles of the collector and returns the least CPU time of one, since whatever else runs can only add
// to it, and the median of the pauses.
func collect() (cpu, pause float64) {
	const cycles = 7
	var cpus, pauses [cycles]float64
	var m runtime.MemStats
	for i := range cycles {
		runtime.ReadMemStats(&m)
		before := m.PauseTotalNs
		cpus[i] = perOp(1, runtime.GC) / 1e6
		runtime.ReadMemStats(&m)
		pauses[i] = float64(m.PauseTotalNs-before) / 1e3
	}
	slices.Sort(pauses[:])
	return slices.Min(cpus[:]), pauses[cycles/2]
}

// settleHeap runs the collector until nothing is left to sweep and returns the live heap.
func settleHeap() uint64 {
	var m runtime.MemStats
	runtime.GC()
	runtime.GC()
	runtime.ReadMemStats(&m)
	return m.HeapAlloc
}

// perOp times f, which does n operations.
func perOp(n int, f func()) float64 {
	began := cpuNow()
	f()
	return float64(cpuNow()-began) / float64(n)
}

// measure takes an engine through its life with n timers. Small n are repeated for a measurable time. Engines with
// goroutines expire only if a bubble for that is wanted.
func measure(t *testing.T, mk func(int) engine, d dist, n int, bubble bool) figures {
	debug.FreeOSMemory()
	whens, again := draw(d, n, 1), draw(d, n, 2)
	all, some := sequence(n), shuffled(n, 3)
	var f figures
	before := settleHeap()
	e := mk(n)
	f.add = perOp(n, func() { e.add(all, whens) })
	f.bytes = (float64(settleHeap()) - float64(before)) / float64(n)
	f.bytes -= 8 // the table of handles or pointers is the caller's
	f.gc, f.pause = collect()
	turns := max(2, 400_000/n)
	f.remove, f.refill = churn(e, some[:n/2], whens, turns/2)
	f.move = perOp(turns*n, func() {
		for k := range turns {
			if k&1 == 0 {
				e.move(some, again)
			} else {
				e.move(some, whens)
			}
		}
	})
	if f.churned = churnedExpire(e, some, again); f.churned > 0 {
		f.fresh = freshExpire(mk, all, whens)
	}
	if c, ok := e.(closer); ok {
		c.close()
		if bubble {
			f.fresh = bubbleExpire(t, mk, all, whens)
		}
	}
	runtime.KeepAlive(e)
	return f
}

// churn removes and adds ids in turn.
func churn(e engine, ids []uint32, whens []int64, turns int) (remove, refill float64) {
	for range turns {
		remove += perOp(len(ids), func() { e.remove(ids) })
		refill += perOp(len(ids), func() { e.add(ids, whens[:len(ids)]) })
	}
	return remove / float64(turns), refill / float64(turns)
}

// churnedExpire lets all timers expire after they were moved about; 0 if the engine cannot.
func churnedExpire(e engine, ids []uint32, whens []int64) float64 {
	began := cpuNow()
	got := e.expire()
	if got <= 0 {
		return 0
	}
	return float64(cpuNow()-began) / float64(got)
}

// freshExpire lets timers expire that were never touched since they were added; the least of a few runs.
func freshExpire(mk func(int) engine, ids []uint32, whens []int64) float64 {
	least := math.Inf(1)
	for range min(max(1, 400_000/len(ids)), 20) {
		e := mk(len(ids))
		e.add(ids, whens)
		began := cpuNow()
		got := e.expire()
		least = min(least, float64(cpuNow()-began)/float64(got))
	}
	return least
}
