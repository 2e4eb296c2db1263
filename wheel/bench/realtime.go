package main

import (
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/RussellLuo/timingwheel"
)

// The engines in this file read the clock themselves. They are loaded in real time, with deadlines far enough away
// that few expire meanwhile; what their expiry costs is measured in a synctest bubble, whose clock jumps.

func delay(when int64) time.Duration { return time.Duration(when-start) * time.Millisecond }

var fired atomic.Int64

// closer is an engine with goroutines or timers of the runtime.
type closer interface{ close() }

func fire() { fired.Add(1) }

// goTimers are the runtime's timers.
type goTimers struct{ byID []*time.Timer }

func newGoTimers(n int) engine { return &goTimers{make([]*time.Timer, n)} }

func (g *goTimers) add(ids []uint32, whens []int64) {
	for k, id := range ids {
		g.byID[id] = time.AfterFunc(delay(whens[k]), fire)
	}
}

func (g *goTimers) move(ids []uint32, whens []int64) {
	for k, id := range ids {
		g.byID[id].Reset(delay(whens[k]))
	}
}

func (g *goTimers) remove(ids []uint32) {
	for _, id := range ids {
		g.byID[id].Stop()
		g.byID[id] = nil
	}
}

func (g *goTimers) close() {
	for _, t := range g.byID {
		if t != nil {
			t.Stop()
		}
	}
}

func (g *goTimers) expire() int { return -1 }

// russell is github.com/RussellLuo/timingwheel, a port of Kafka's wheel.
type russell struct {
	w    *timingwheel.TimingWheel
	byID []*timingwheel.Timer
}

func newRussell(n int) engine {
	r := &russell{timingwheel.NewTimingWheel(time.Millisecond, 256), make([]*timingwheel.Timer, n)}
	r.w.Start()
	return r
}

func (r *russell) add(ids []uint32, whens []int64) {
	for k, id := range ids {
		r.byID[id] = r.w.AfterFunc(delay(whens[k]), fire)
	}
}

func (r *russell) move(ids []uint32, whens []int64) {
	for k, id := range ids {
		r.byID[id].Stop()
		r.byID[id] = r.w.AfterFunc(delay(whens[k]), fire)
	}
}

func (r *russell) remove(ids []uint32) {
	for _, id := range ids {
		r.byID[id].Stop()
		r.byID[id] = nil
	}
}

func (r *russell) close()      { r.w.Stop() }
func (r *russell) expire() int { return -1 }

// bubbleExpire lets timers of an engine expire inside a synctest bubble and returns the CPU ns for each.
func bubbleExpire(t *testing.T, mk func(int) engine, ids []uint32, whens []int64) (ns float64) {
	last := time.Duration(0)
	for _, w := range whens {
		last = max(last, delay(w))
	}
	synctest.Test(t, func(*testing.T) {
		e := mk(len(ids))
		e.add(ids, whens)
		fired.Store(0)
		began := cpuNow()
		time.Sleep(last + time.Second)
		synctest.Wait()
		ns = float64(cpuNow()-began) / float64(fired.Load())
		e.(closer).close()
	})
	return ns
}
