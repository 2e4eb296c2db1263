package executor

import (
	"math"
	"sync/atomic"
	"time"
)

// never is the tick of what does not happen.
const never = math.MaxInt64

// clock turns the wall clock into service time, which never goes back: when the wall clock does, service time stands
// still until the wall clock has passed it again.
type clock struct {
	now   func() time.Time
	start time.Time // set before sharing
	// sleepMax bounds a sleep; set before sharing.
	sleepMax time.Duration
	// service is the highest Unix millisecond that was read.
	service atomic.Int64
	// lastNanos is the baton holder's last reading of the wall clock; touched by the baton holder alone.
	lastNanos int64
	// steps counts how often the wall clock was seen to run back.
	steps atomic.Uint64
}

// reading is one look at the clock.
type reading struct {
	// millis is the service time, nanos the wall clock, in Unix time.
	millis, nanos int64
	// since is the time since the loop was made, on the monotonic clock if there is one.
	since time.Duration
}

func newClock(now func() time.Time) *clock {
	c := &clock{now: now, start: now(), sleepMax: sleepMax}
	c.service.Store(floorMillis(c.start.UnixNano()))
	return c
}

// read may be called by any goroutine.
func (c *clock) read() reading {
	t := c.now()
	nanos := t.UnixNano()
	raw := floorMillis(nanos)
	for {
		last := c.service.Load()
		if raw <= last {
			return reading{last, nanos, t.Sub(c.start)}
		}
		if c.service.CompareAndSwap(last, raw) {
			return reading{raw, nanos, t.Sub(c.start)}
		}
	}
}

// turn is read for the baton holder, which alone can tell a clock that ran back from two goroutines that read it in
// another order than they looked at service. It says whether the clock ran back since the last turn, and how far.
func (c *clock) turn() (r reading, ranBack time.Duration) {
	r = c.read()
	if r.nanos < c.lastNanos {
		ranBack = time.Duration(c.lastNanos - r.nanos)
		c.steps.Add(1)
	}
	c.lastNanos = r.nanos
	return r, ranBack
}

// since is the time since the loop was made, on the monotonic clock if there is one.
func (c *clock) since() time.Duration { return c.now().Sub(c.start) }

// until is how long to sleep until the wall clock shows the tick: at least 0, at most sleepMax.
func (c *clock) until(tick int64) time.Duration {
	nanos := c.now().UnixNano()
	ahead := tick - floorMillis(nanos)
	switch {
	case ahead <= 0:
		return 0
	case ahead > c.sleepMax.Milliseconds():
		return c.sleepMax
	}
	return min(time.Duration(tick*1e6-nanos), c.sleepMax)
}

func floorMillis(nanos int64) int64 {
	m := nanos / 1e6
	if nanos%1e6 < 0 {
		m--
	}
	return m
}
