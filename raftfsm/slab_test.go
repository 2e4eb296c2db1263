package raftfsm

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"reflect"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"testing"

	logv1 "github.com/carillon-timers/carillon/proto/carillonlog/v1"
)

// bulky is a timer of odd size: mostly small, sometimes as large as the default limit, with texts of its own or shared ones.
func bulky(rng *rand.Rand, id string) *logv1.Schedule {
	size := rng.IntN(300)
	switch rng.IntN(40) {
	case 0:
		size = rng.IntN(DefaultPayloadBytes + 1)
	case 1, 2, 3:
		size = rng.IntN(ownSlab + 200)
	case 4, 5:
		size = 0
	}
	c := &logv1.Schedule{
		Namespace: []string{"default", "other"}[len(id)%2], Id: id, DueMs: rng.Int64N(1000), IfExists: ifExistsReplace,
		Queue: fmt.Sprint("q", rng.IntN(4)), Payload: make([]byte, size),
	}
	for i := range c.Payload {
		c.Payload[i] = byte(rng.Uint32())
	}
	if rng.IntN(4) == 0 {
		c.Queue, c.ContentType = fmt.Sprint("rare", rng.IntN(1000)), "text/plain"
		c.Headers = []*logv1.Pair{{Key: "a", Value: id}, {Key: "b"}}
	}
	if rng.IntN(4) == 0 {
		c.Labels = []*logv1.Pair{{Key: "k", Value: string(bytes.Repeat([]byte{'v'}, rng.IntN(300)))}}
		c.Retry = &logv1.RetryPolicy{LeaseMs: 1000 + rng.Int64N(5)}
	}
	return c
}

// slabModel keeps beside an FSM what was scheduled, and records that were given out, with copies of them.
type slabModel struct {
	*testing.T
	rng       *rand.Rand
	r         *replica
	want      map[string]*logv1.Schedule
	given     []*Record
	copies    []Record
	snapshots []*Snapshot
	frozen    [][]byte
}

func TestSlabModel(t *testing.T) {
	for _, seed := range []uint64{1, 2} {
		t.Run(fmt.Sprintf("seed=%d", seed), func(t *testing.T) {
			t.Parallel()
			m := &slabModel{T: t, rng: rand.New(rand.NewPCG(seed, 5)), r: newReplica(t, Options{MaxFinished: 20}), want: map[string]*logv1.Schedule{}}
			for round := range 90 {
				m.round(round)
			}
			if table := &m.r.f.s.table; table.heap.moved == 0 || table.copied == 0 {
				t.Fatalf("%d bytes moved, %d pages copied: the test needs some", table.heap.moved, table.copied)
			}
			m.empty()
		})
	}
}

// round applies an entry, then looks at some of everything.
func (m *slabModel) round(round int) {
	e := &logv1.Entry{Epoch: 1, ClockMs: int64(round)}
	for range 1 + m.rng.IntN(40) {
		id := fmt.Sprint(m.rng.IntN(150), "x"[:m.rng.IntN(2)])
		c := bulky(m.rng, id)
		old := m.want[id]
		switch n := m.rng.IntN(10); {
		case old == nil || n < 5 && round/30%2 == 0:
			e.Commands = append(e.Commands, scheduleOf(c))
			m.want[id] = c
		case n < 8:
			e.Commands = append(e.Commands, &Command{Kind: &logv1.Command_Cancel{Cancel: &logv1.Cancel{Namespace: c.Namespace, Id: id}}})
			delete(m.want, id)
		default:
			e.Commands = append(e.Commands, &Command{Kind: &logv1.Command_Reschedule{Reschedule: &logv1.Reschedule{Namespace: c.Namespace, Id: id, DueMs: c.DueMs}}})
			old.DueMs = c.DueMs
		}
	}
	for i, result := range m.r.apply(e).Results {
		if result.Code != OK {
			m.Fatalf("%s: %s", nameOf(e.Commands[i]), resultText(result))
		}
	}
	m.retry()
	m.look()
	if round%7 == 0 {
		m.snapshot()
	}
	if round%40 == 0 {
		m.r.same(m.r.restored())
	}
}

// retry moves a timer to its next attempt, with an error text.
func (m *slabModel) retry() {
	for id, c := range m.want {
		st, _ := m.r.f.Get(c.Namespace, id)
		k := &logv1.Retry{Namespace: c.Namespace, Id: id, Revision: st.Record.Revision, Attempt: st.Record.Attempt, DueMs: c.DueMs + 7, Error: "went wrong"}
		m.r.apply(&logv1.Entry{Epoch: 1, Commands: []*Command{{Kind: &logv1.Command_Retry{Retry: k}}}})
		st, _ = m.r.f.Get(c.Namespace, id)
		if r := st.Record; r.LastError != "went wrong" || r.NextDue != r.Due+7 || r.Due != c.DueMs {
			m.Fatalf("after a retry %s is %+v", id, r)
		}
		return
	}
}

// look compares what readers are given with what was scheduled, and keeps some of it.
func (m *slabModel) look() {
	if st := m.r.f.Stats(); st.Pending != len(m.want) {
		m.Fatalf("%d are pending, want %d", st.Pending, len(m.want))
	}
	for id, c := range m.want {
		st, ok := m.r.f.Get(c.Namespace, id)
		r := st.Record
		if !ok || !bytes.Equal(r.Payload, c.Payload) || r.Queue != c.Queue || r.ContentType != c.ContentType || r.Due != c.DueMs ||
			!slices.Equal(r.Headers, pairsIn(c.Headers)) || !slices.Equal(r.Labels, pairsIn(c.Labels)) {
			m.Fatalf("%s is %+v, want %+v", id, r, c)
		}
		if m.rng.IntN(20) == 0 {
			m.given = append(m.given, r)
			copied := *r
			copied.Payload, copied.Headers, copied.Labels = slices.Clone(r.Payload), slices.Clone(r.Headers), slices.Clone(r.Labels)
			m.copies = append(m.copies, copied)
		}
	}
	for i, r := range m.given {
		if !reflect.DeepEqual(*r, m.copies[i]) {
			m.Fatalf("a record that was given out has changed: %+v, was %+v", r, m.copies[i])
		}
	}
}

func pairsIn(pairs []*logv1.Pair) (out []Pair) {
	for _, p := range pairs {
		out = append(out, Pair{p.Key, p.Value})
	}
	return out
}

// snapshot verifies the oldest of a few snapshots, which were taken many compactions ago, and takes a new one.
func (m *slabModel) snapshot() {
	if len(m.snapshots) == 4 {
		var b writeBuffer
		if _, err := m.snapshots[0].WriteTo(&b); err != nil || !bytes.Equal(b, m.frozen[0]) {
			m.Fatalf("a snapshot of index %d changed: %v", m.snapshots[0].Index(), err)
		}
		m.snapshots[0].Release()
		m.snapshots, m.frozen = m.snapshots[1:], m.frozen[1:]
	}
	s, err := m.r.f.Snapshot()
	if err != nil {
		m.Fatal(err)
	}
	m.snapshots, m.frozen = append(m.snapshots, s), append(m.frozen, snapshotBytes(m.T, m.r.f))
}

// empty cancels all: what is left are a head and a few empty slices.
func (m *slabModel) empty() {
	for id, c := range m.want {
		m.r.apply(&logv1.Entry{Epoch: 1, Commands: []*Command{{Kind: &logv1.Command_Cancel{Cancel: &logv1.Cancel{Namespace: c.Namespace, Id: id}}}}})
	}
	table := &m.r.f.s.table
	for n, b := range table.slabs {
		if b != nil && uint32(n) != table.heap.head {
			m.Fatalf("slab %d of %d bytes is left in an empty table", n, len(b))
		}
	}
	for n, p := range table.pages {
		if p != nil {
			m.Fatalf("page %d is left in an empty table", n)
		}
	}
	if len(table.profiles) > 0 {
		m.Fatalf("%d profiles are left in an empty table", len(table.profiles))
	}
}

// Half of the timers leave in a random order: what they took is given back but for a third of the rest, in bounded steps.
func TestSlabsShrink(t *testing.T) {
	t.Parallel()
	const n = 10_000
	rng := rand.New(rand.NewPCG(9, 9))
	f := New(Options{MaxFinished: 10})
	index := uint64(0)
	apply := func(cmds []*Command) {
		index++
		before := f.s.table.heap.moved
		if _, err := f.Apply(index, EncodeEntry(&logv1.Entry{Epoch: 1, Commands: cmds}, nil)); err != nil {
			t.Fatal(err)
		}
		if moved, most := f.s.table.heap.moved-before, uint64(compactBase+compactFactor*len(cmds)*200); moved > most+200 {
			t.Fatalf("an entry of %d commands moved %d bytes, want at most %d", len(cmds), moved, most)
		}
	}
	for i := range n {
		c := schedule(fmt.Sprint("timer-", i), 5).GetSchedule()
		c.Payload = make([]byte, 100)
		apply([]*Command{scheduleOf(c)})
	}
	full := f.s.table.heap.used
	order := rng.Perm(n)
	for i := 0; i < n/2; i += 10 {
		var cmds []*Command
		for _, k := range order[i : i+10] {
			cmds = append(cmds, cancel(fmt.Sprint("timer-", k)))
		}
		apply(cmds)
	}
	if used := f.s.table.heap.used; used > full/2*4/3+2*maxSlab {
		t.Fatalf("half of the timers take %d bytes of slabs, all took %d", used, full)
	}
	if err := f.Check(); err != nil {
		t.Fatal(err)
	}
}

// The heap after all have come and gone is nearly that of before. Not parallel: it looks at the heap of the process.
func TestMemoryIsGivenBack(t *testing.T) {
	const n = 30_000
	before := heapInUse()
	f := New(Options{MaxFinished: 10})
	for round := range 2 {
		for first := 0; first < n; first += 1000 {
			var cmds []*Command
			for i := range 1000 {
				c := schedule(fmt.Sprintf("order-%011d/expire", (first+i)*7919%n), 5).GetSchedule()
				c.Payload = make([]byte, 100)
				cmds = append(cmds, scheduleOf(c))
			}
			applyNext(t, f, cmds)
		}
		full := heapInUse() - before
		for first := 0; first < n; first += 1000 {
			var cmds []*Command
			for i := range 1000 {
				cmds = append(cmds, cancel(fmt.Sprintf("order-%011d/expire", (first+i)*104729%n)))
			}
			applyNext(t, f, cmds)
		}
		left := heapInUse() - before
		t.Logf("round %d: %d B per timer, %d B in all when they are gone", round, full/n, left)
		if full/n > 240 || left > full/6 {
			t.Fatalf("%d timers take %d bytes, and leave %d", n, full, left)
		}
	}
	runtime.KeepAlive(f)
}

func applyNext(t *testing.T, f *FSM, cmds []*Command) {
	t.Helper()
	a, err := f.Apply(f.Stats().AppliedIndex+1, EncodeEntry(&logv1.Entry{Epoch: 1, Commands: cmds}, nil))
	if err != nil {
		t.Fatal(err)
	}
	for i, r := range a.Results {
		if r.Code != OK {
			t.Fatalf("%s: %s", nameOf(cmds[i]), resultText(r))
		}
	}
}

func heapInUse() int64 {
	runtime.GC()
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc)
}

// Snapshots are written while slabs are compacted below them, and readers keep what they were given; run it with -race.
func TestSnapshotsDuringCompaction(t *testing.T) {
	t.Parallel()
	rng := rand.New(rand.NewPCG(21, 1))
	f := New(Options{MaxFinished: 20})
	var done atomic.Bool
	var group sync.WaitGroup
	group.Go(func() {
		defer done.Store(true)
		for index := range uint64(400) {
			e := &logv1.Entry{Epoch: 1, ClockMs: 1}
			for range 10 {
				c := bulky(rng, fmt.Sprint(rng.IntN(200)))
				c.Namespace = "default"
				e.Commands = append(e.Commands, scheduleOf(c), cancel(fmt.Sprint(rng.IntN(200))))
			}
			if _, err := f.Apply(index+1, EncodeEntry(e, nil)); err != nil {
				t.Error(err)
			}
		}
	})
	group.Go(func() {
		for !done.Load() {
			snapshotAndRestore(t, f)
		}
	})
	group.Go(func() {
		for !done.Load() {
			for _, st := range f.List(ListQuery{}).Timers {
				if got, ok := f.Get("default", st.Record.ID); ok && got.Record.Revision == st.Record.Revision && !bytes.Equal(got.Record.Payload, st.Record.Payload) {
					t.Errorf("%s has two payloads under one revision", st.Record.ID)
				}
			}
		}
	})
	group.Wait()
	if f.s.table.heap.moved == 0 {
		t.Fatal("nothing was compacted: the test needs some")
	}
	if err := f.Check(); err != nil {
		t.Fatal(err)
	}
}
