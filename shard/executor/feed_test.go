package executor

import (
	"fmt"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

// What hurries must end the holder's rest whenever it comes: before the rest, while it is begun, or during it. Each producer
// waits until its push was seen, so the feed runs empty all the time, and a wake-up that is lost leaves the holder asleep.
func TestNoHurryIsLost(t *testing.T) {
	for procs, rounds := range map[int]int64{1: 10_000, 2: 350_000, 4: 350_000} { // with one processor each round takes a sleep
		t.Run(fmt.Sprint(procs), func(t *testing.T) {
			defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(procs))
			const producers = 3
			l := NewLoop(LoopOptions{Logger: quiet})
			var err error
			if l.baton.bed.alarm, err = l.o.Sleeper.newSharp(); err != nil {
				t.Fatal(err)
			}
			defer l.baton.bed.alarm.close()
			l.running.Store(true)
			var published, seen [producers]atomic.Int64
			var all sync.WaitGroup
			var left atomic.Int32
			left.Store(producers)
			for p := range producers {
				all.Go(func() {
					for i := int64(1); i <= rounds; i++ {
						published[p].Store(i)
						l.pushed(0)
						for seen[p].Load() != i {
							runtime.Gosched()
						}
					}
					left.Add(-1)
					l.pushed(0)
				})
			}
			for left.Load() > 0 {
				l.baton.kicked.Store(0) // as a turn begins
				l.soonest.Store(never)
				for p := range producers {
					seen[p].Store(published[p].Load())
				}
				start := time.Now()
				l.rest(10 * time.Second)
				if time.Since(start) > 5*time.Second {
					t.Error("a push that hurries was lost")
				}
			}
			all.Wait()
		})
	}
}
