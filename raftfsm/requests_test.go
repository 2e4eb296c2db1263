package raftfsm

import (
	"math"
	"math/rand/v2"
	"testing"
)

// A remembered write is packed against the first of its chunk: whatever its numbers are, and wherever in a chunk the window begins
// (after a restore), it must be read as it was written, also by a view of before that still reads while others follow.
func TestRequestsArePackedWithoutLoss(t *testing.T) {
	t.Parallel()
	rng := rand.New(rand.NewPCG(3, 4))
	odd := []int64{0, 1, -1, 1_700_000_000_000, math.MaxInt64, math.MinInt64, math.MaxInt64 - 1}
	number := func() int64 {
		if rng.IntN(3) == 0 {
			return odd[rng.IntN(len(odd))]
		}
		return rng.Int64N(1 << rng.IntN(63))
	}
	for _, begin := range []uint64{0, 100, requestSize - 1} {
		w := newRequestWindow(3 * requestSize)
		w.last, w.first = begin, begin+1
		want := map[uint64]requestItem{}
		var before requestView
		for n := range 5000 {
			it := requestItem{
				high: rng.Uint64(), low: rng.Uint64(), revision: uint64(number()), due: number(), at: number(),
				answer: []uint32{0, 1, math.MaxUint32}[rng.IntN(3)],
			}
			want[w.push(&it)] = it
			if n == 1300 {
				before = w.share()
			}
			for w.over() {
				w.pop()
			}
			if err := w.check(); err != nil {
				t.Fatal(err)
			}
		}
		after := w.share()
		for _, v := range []requestView{before, after} {
			count := uint64(0)
			_ = v.each(func(seq uint64, it *requestItem) error {
				if count++; *it != want[seq] || seq != v.first+count-1 {
					t.Errorf("write %d is %+v, was %+v", seq, *it, want[seq])
				}
				return nil
			})
			if count != v.last+1-v.first {
				t.Errorf("%d writes in %d..%d", count, v.first, v.last)
			}
		}
	}
}

// The keys of an entry are found two at a time, with what neighbours share found once: each must be what it is alone.
func TestRequestKeysOfAnEntry(t *testing.T) {
	t.Parallel()
	rng := rand.New(rand.NewPCG(5, 6))
	text := func(most int) string {
		b := make([]byte, rng.IntN(most))
		for i := range b {
			b[i] = byte(rng.Uint32())
		}
		return string(b)
	}
	s := newState(Options{}.withDefaults())
	for range 300 {
		cmds := make([]command, rng.IntN(9))
		want := 0
		for i := range cmds {
			c := &cmds[i]
			c.kind = commandKind(1 + rng.IntN(int(kindPurge)))
			c.namespace, c.id, c.now = []string{"default", "a", "b"}[rng.IntN(3)], text(60), rng.IntN(2) == 0
			if rng.IntN(4) > 0 {
				c.requestID = []byte(text(40))
			}
			if rng.IntN(20) == 0 {
				c.requestID = []byte(text(1000))
			}
			if len(c.requestID) > 0 && len(c.requestID)+len(c.id)+len(c.namespace) < 512 {
				want++
			}
		}
		if got := s.requestKeys(cmds); got != want {
			t.Fatalf("%d keys, want %d", got, want)
		}
		for i := range cmds {
			c := &cmds[i]
			if c.keyed && c.request != c.requestKey() {
				t.Fatalf("command %d of %d: %x, want %x", i, len(cmds), c.request, c.requestKey())
			}
		}
	}
}
