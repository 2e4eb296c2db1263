package mpsc

import (
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
)

type item struct{ producer, n int }

// TestOrder pushes from many goroutines, singly and in batches: each producer's elements must come out in its order,
// none lost, none twice, and those of one PushN together.
func TestOrder(t *testing.T) {
	t.Parallel()
	const producers, each, batch = 8, 20_000, 16
	q := New[item]()
	var wg sync.WaitGroup
	for p := range producers {
		wg.Go(func() {
			var vs []item
			for n := range each {
				if p%2 == 0 {
					q.Push(item{p, n})
					continue
				}
				if vs = append(vs, item{p, n}); len(vs) == batch {
					q.PushN(vs)
					vs = vs[:0]
				}
			}
		})
	}
	var next [producers]int
	var buf []item
	for got := 0; got < producers*each; runtime.Gosched() {
		buf = q.Drain(buf)
		for i, v := range buf {
			if v.n != next[v.producer] {
				t.Fatalf("producer %d: got %d, want %d", v.producer, v.n, next[v.producer])
			}
			if v.producer%2 == 1 && v.n%batch > 0 && (i == 0 || buf[i-1] != item{v.producer, v.n - 1}) {
				t.Fatalf("producer %d: %d is torn from its batch", v.producer, v.n)
			}
			next[v.producer]++
		}
		got += len(buf)
	}
	wg.Wait()
	if q.Len() != 0 {
		t.Fatalf("Len is %d after all was taken", q.Len())
	}
}

// TestWakeOncePerEmpty holds the wake-up to its word: one call for the first push after an empty Drain, no other.
func TestWakeOncePerEmpty(t *testing.T) {
	t.Parallel()
	q := New[int]()
	wakes := 0
	q.OnWake(func() { wakes++ })
	for i, want := range []struct{ push, drain, wakes int }{
		{push: 3, drain: 1, wakes: 1}, // only a full Drain so far: the consumer will look again
		{push: 2, drain: 2, wakes: 1}, // the second Drain came back empty
		{push: 0, drain: 3, wakes: 1},
		{push: 1, drain: 0, wakes: 2},
		{push: 1, drain: 2, wakes: 2},
		{push: 4, drain: 0, wakes: 3},
	} {
		for n := range want.push {
			if n%2 == 0 {
				q.Push(n)
			} else {
				q.PushN([]int{n})
			}
		}
		q.PushN(nil)
		for range want.drain {
			q.Drain(nil)
		}
		if wakes != want.wakes {
			t.Fatalf("step %d: %d wake-ups, want %d", i, wakes, want.wakes)
		}
	}
}

// transitions lets the consumer sleep whenever it found the queue empty, while each producer waits until its element
// has come out: the queue runs empty all the time, and a lost wake-up leaves all of them asleep for ever.
func transitions(t *testing.T, procs, producers, each int) (sleeps int64) {
	prev := runtime.GOMAXPROCS(procs)
	defer runtime.GOMAXPROCS(prev)
	q := New[int]()
	awake := make(chan struct{}, 1)
	q.OnWake(func() {
		select {
		case awake <- struct{}{}:
		default:
		}
	})
	taken := make([]atomic.Int64, producers)
	var wg sync.WaitGroup
	for p := range producers {
		wg.Go(func() {
			for n := int64(1); n <= int64(each); n++ {
				q.Push(p)
				for taken[p].Load() < n {
					runtime.Gosched()
				}
			}
		})
	}
	var buf []int
	for got := 0; got < producers*each; {
		if buf = q.Drain(buf); len(buf) == 0 {
			sleeps++
			<-awake
			continue
		}
		got += len(buf)
		for _, p := range buf {
			taken[p].Add(1)
		}
	}
	wg.Wait()
	return sleeps
}

// TestNoLostWakeUp passes through millions of empty-to-nonempty transitions. If it hangs, a wake-up was lost.
func TestNoLostWakeUp(t *testing.T) {
	total := int64(0)
	for _, c := range []struct{ procs, producers, each int }{
		{1, 1, 500_000}, {2, 1, 500_000}, {4, 1, 250_000}, {1, 8, 50_000}, {2, 2, 250_000}, {8, 8, 50_000},
	} {
		each := c.each
		if raceEnabled {
			each /= 5
		}
		n := transitions(t, c.procs, c.producers, each)
		t.Logf("GOMAXPROCS %d, %d producers, %d elements: the consumer slept %d times", c.procs, c.producers, c.producers*each, n)
		total += n
	}
	t.Logf("%d transitions", total)
}

// TestMemoryComesBack floods the queue once; the large buffers must not stay.
func TestMemoryComesBack(t *testing.T) {
	t.Parallel()
	q := New[int]()
	for n := range 1 << 20 {
		q.Push(n)
	}
	var buf []int
	for range 2*keepTurns + 4 {
		buf = q.Drain(buf)
		q.Push(1)
	}
	if c := max(cap(buf), cap(q.buf)); c > keepCap {
		t.Fatalf("a buffer of %d elements is kept", c)
	}
}
