package executor

import (
	"slices"
	"testing"
)

// The list against a sorted slice, with entries in order, out of order and stale.
func TestReadyListModel(t *testing.T) {
	t.Parallel()
	r := seeded(t)
	for range 50 {
		l := &readyList{}
		var want []readyEntry
		dead := map[uint64]bool{}
		base := int64(0)
		for i := uint64(1); i < 2000; i++ {
			switch r.IntN(5) {
			case 0, 1, 2:
				base += r.Int64N(3)
				e := readyEntry{due: base, accepted: i, revision: i, slot: uint32(i)}
				if r.IntN(4) == 0 {
					e.due -= r.Int64N(50)
				}
				l.push(e)
				at, _ := slices.BinarySearchFunc(want, e, func(a, b readyEntry) int {
					if a.before(b) {
						return -1
					}
					return 1
				})
				want = slices.Insert(want, at, e)
			case 3:
				got, ok := l.head()
				if ok != (len(want) > 0) || ok && got != want[0] {
					t.Fatalf("head %v, want %v", got, want)
				}
				if ok {
					l.pop()
					if dead[got.revision] {
						l.stale--
					}
					want = want[1:]
				}
			case 4:
				if len(want) == 0 {
					continue
				}
				if e := want[r.IntN(len(want))]; !dead[e.revision] {
					dead[e.revision] = true
					l.stale++
				}
				before := l.len()
				l.dropStale(func(e readyEntry) bool { return !dead[e.revision] })
				if l.len() < before {
					want = slices.DeleteFunc(want, func(e readyEntry) bool { return dead[e.revision] })
				}
			}
			if l.len() != len(want) {
				t.Fatalf("len %d, want %d", l.len(), len(want))
			}
		}
	}
}

// Memory goes back after a flood, of entries in order and out of order, and of slots.
func TestMemoryGoesBack(t *testing.T) {
	t.Parallel()
	l := &readyList{}
	const flood = 20_000
	for i := range int64(flood) {
		l.push(readyEntry{due: i})
		l.push(readyEntry{due: -i})
	}
	for l.len() > 1 {
		l.pop()
	}
	kept := cap(l.heap)
	for _, c := range l.fifo.chunks {
		kept += cap(c)
	}
	if kept > heapKept+2*fifoChunkMax {
		t.Errorf("a list with one entry keeps room for %d", kept)
	}

	var table slotTable
	for i := range uint32(flood) {
		table.put(i, slotState{state: stateReady})
		table.put(i, slotState{state: stateOut})
	}
	if table.count[stateOut] != flood || table.len() != flood {
		t.Fatalf("counts %v", table.count)
	}
	for i := range uint32(flood) {
		table.clear(i)
		table.clear(i)
	}
	pages := len(table.spare)
	for _, p := range table.pages {
		if p != nil {
			pages++
		}
	}
	if table.len() != 0 || pages > sparePages {
		t.Errorf("an empty table keeps %d pages, counts %v", pages, table.count)
	}
	table.put(77, slotState{state: stateHeld})
	if s := table.get(77); s == nil || *s != (slotState{state: stateHeld}) || table.get(78) != nil {
		t.Errorf("a page that is used again is not clean: %+v", s)
	}
}

func TestHistogram(t *testing.T) {
	t.Parallel()
	for _, v := range []int64{0, 1, 7, 8, 9, 15, 16, 17, 100, 1000, 12345, 1 << 20, 1<<36 - 1} {
		i := bucketOf(v)
		if v > BucketBound(i) || i > 0 && v <= BucketBound(i-1) {
			t.Errorf("%d is in bucket %d, which ends at %d", v, i, BucketBound(i))
		}
		if i > 8 && float64(BucketBound(i)) > float64(v)*1.125+1 {
			t.Errorf("bucket %d of %d ends at %d", i, v, BucketBound(i))
		}
	}
	if bucketOf(1<<62) != buckets-1 {
		t.Error("a value beyond the last bucket is not in it")
	}
	var h Histogram
	for i := range int64(1000) {
		h.Observe(i)
	}
	h.Observe(-5)
	s := h.Snapshot()
	if s.Count != 1001 || s.Max != 999 || s.Sum != 999*500 {
		t.Fatalf("%d values, max %d, sum %d", s.Count, s.Max, s.Sum)
	}
	for _, q := range []float64{0.5, 0.99, 1} {
		if got, want := float64(s.Quantile(q)), q*1000; got < want*0.99-1 || got > want*1.13 {
			t.Errorf("quantile %v is %v", q, got)
		}
	}
	s.Merge(s)
	if s.Count != 2002 || (HistogramSnapshot{}).Quantile(0.5) != 0 {
		t.Error("merge or empty quantile")
	}
}
