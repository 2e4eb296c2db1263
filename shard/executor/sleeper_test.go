package executor

import (
	"fmt"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

func sleepers(t *testing.T) map[string]*bed {
	beds := map[string]*bed{}
	for name, s := range map[string]Sleeper{"native": defaultSleeper(), "timer": NewTimerSleeper()} {
		a, err := s.newSharp()
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			if err := a.close(); err != nil {
				t.Error(err)
			}
		})
		beds[name] = &bed{alarm: a}
	}
	return beds
}

// Producers publish a number and wake; the sleeper, whose own time is a minute away, must see each of them. A wake-up that
// is lost leaves both waiting for the minute.
func TestNoWakeUpIsLost(t *testing.T) {
	for name, s := range sleepers(t) {
		for _, procs := range []int{1, 2} {
			t.Run(fmt.Sprintf("%s/procs=%d", name, procs), func(t *testing.T) {
				defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(procs))
				pingPong(t, s, 20_000)
			})
		}
	}
}

func pingPong(t *testing.T, s *bed, rounds int64) {
	const producers = 3
	var published, seen [producers]atomic.Int64
	var all sync.WaitGroup
	limit := time.Now().Add(2 * time.Second)
	var stop atomic.Bool
	for p := range producers {
		all.Go(func() {
			defer func() { stop.Store(true); s.wake() }()
			for i := int64(1); i <= rounds && time.Now().Before(limit); i++ {
				published[p].Store(i)
				s.wake()
				for spins := 0; seen[p].Load() != i; spins++ {
					if stop.Load() {
						return
					}
					if spins%64 == 63 {
						// A lost wake-up shows as a sleeper that sleeps on although something is published.
						if time.Since(limit) > 10*time.Second {
							t.Error("a wake-up was lost")
							stop.Store(true)
							s.wake()
							return
						}
					}
					runtime.Gosched()
				}
			}
		})
	}
	for !stop.Load() {
		s.sleep(time.Minute)
		for p := range producers {
			seen[p].Store(published[p].Load())
		}
	}
	all.Wait()
}

// The sleeper's own deadlines race with wake-ups; neither may make a later sleep longer than it is.
func TestSleepEnds(t *testing.T) {
	for name, s := range sleepers(t) {
		t.Run(name, func(t *testing.T) {
			stop := make(chan struct{})
			var waker sync.WaitGroup
			waker.Go(func() {
				for {
					select {
					case <-stop:
						return
					case <-time.After(50 * time.Microsecond):
						s.wake()
					}
				}
			})
			for begin := time.Now(); time.Since(begin) < 300*time.Millisecond; {
				s.sleep(60 * time.Microsecond)
			}
			close(stop)
			waker.Wait()
			s.sleep(time.Millisecond) // takes a wake-up that is left
			begin := time.Now()
			s.sleep(3 * time.Millisecond)
			if d := time.Since(begin); d < 3*time.Millisecond {
				t.Fatalf("slept %v of 3ms", d)
			}
			s.wake()
			s.wake()
			begin = time.Now()
			s.sleep(time.Minute)
			if d := time.Since(begin); d > 10*time.Second {
				t.Fatalf("slept %v though it was woken before", d)
			}
		})
	}
}
