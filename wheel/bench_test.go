package wheel

import (
	"fmt"
	"math/rand/v2"
	"testing"
)

// benchStart is an uneven instant of 2027.
const benchStart Tick = 1_800_000_123_457

func benchSizes(b *testing.B, f func(b *testing.B, whens []Tick)) {
	for _, n := range []int{10_000, 100_000, 1_000_000} {
		b.Run(fmt.Sprintf("pending=%d", n), func(b *testing.B) {
			r := rand.New(rand.NewPCG(1, 1))
			whens := make([]Tick, n)
			for i := range whens {
				whens[i] = benchStart + 1 + Tick(r.IntN(3_600_000))
			}
			f(b, whens)
		})
	}
}

func load(whens []Tick) (*Wheel, []Handle) {
	w, hs := New(benchStart), make([]Handle, len(whens))
	for i, when := range whens {
		hs[i] = w.Add(when, uint64(i))
	}
	return w, hs
}

// perTimer reports the time of one turn over all timers.
func perTimer(b *testing.B, whens []Tick) {
	b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/float64(len(whens)), "ns/timer")
	b.ReportMetric(0, "ns/op")
}

// BenchmarkAdd fills an empty wheel with timers that are due within the hour.
func BenchmarkAdd(b *testing.B) {
	benchSizes(b, func(b *testing.B, whens []Tick) {
		hs := make([]Handle, len(whens))
		for b.Loop() {
			w := New(benchStart)
			for i, when := range whens {
				hs[i] = w.Add(when, uint64(i))
			}
		}
		perTimer(b, whens)
	})
}

// BenchmarkMove moves all timers to random other ticks, in random order.
func BenchmarkMove(b *testing.B) {
	benchSizes(b, func(b *testing.B, whens []Tick) {
		w, hs := load(whens)
		rand.New(rand.NewPCG(2, 1)).Shuffle(len(hs), func(i, j int) { hs[i], hs[j] = hs[j], hs[i] })
		for turn := 0; b.Loop(); turn++ {
			for i := range hs {
				if i%64 == 0 {
					w.Warm(hs[i:min(i+64, len(hs))])
				}
				w.Move(hs[i], whens[(i+turn)%len(whens)])
			}
		}
		perTimer(b, whens)
	})
}

// BenchmarkRemove removes all timers in random order.
func BenchmarkRemove(b *testing.B) {
	benchSizes(b, func(b *testing.B, whens []Tick) {
		for b.Loop() {
			b.StopTimer()
			w, hs := load(whens)
			rand.New(rand.NewPCG(2, 1)).Shuffle(len(hs), func(i, j int) { hs[i], hs[j] = hs[j], hs[i] })
			b.StartTimer()
			for i := range hs {
				if i%64 == 0 {
					w.Warm(hs[i:min(i+64, len(hs))])
				}
				w.Remove(hs[i])
			}
		}
		perTimer(b, whens)
	})
}

// BenchmarkExpire goes from tick to tick until all timers have been emitted.
func BenchmarkExpire(b *testing.B) {
	benchSizes(b, func(b *testing.B, whens []Tick) {
		due := make([]Due, 256)
		for b.Loop() {
			b.StopTimer()
			w, _ := load(whens)
			b.StartTimer()
			for t, ok := w.Next(); ok; t, ok = w.Next() {
				for more := true; more; {
					_, more = w.Advance(t, due)
				}
			}
		}
		perTimer(b, whens)
	})
}
