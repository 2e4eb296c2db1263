package executor

import (
	"sync/atomic"
	"time"
)

// Sleeper is a way to wait for a deadline: NewTimerSleeper, or on Linux NewFDSleeper.
type Sleeper interface {
	// newAlarm makes an alarm; the error says that the system has none left.
	newAlarm() (alarm, error)
	// newSharp makes one that may spend some processor time to ring closer to its time.
	newSharp() (alarm, error)
}

// alarm is a clock that rings once for each time that it was set.
type alarm interface {
	// set makes it ring in d, not at the time that was set before; any goroutine may call it. After close it does nothing.
	set(d time.Duration)
	// stop takes back what was set, if it has not been waited for.
	stop()
	// wait returns when it rings; at once if it rang since the last wait, and at times for no reason. One goroutine at a
	// time calls it.
	wait()
	// close gives back what the system lent; nobody waits then.
	close() error
}

// NewTimerSleeper sleeps on a time.Timer. It works everywhere and in testing/synctest, and is half a millisecond late on
// the average, because the runtime's poller waits in whole milliseconds.
func NewTimerSleeper() Sleeper { return timerSleeper{} }

type timerSleeper struct{}

func (timerSleeper) newAlarm() (alarm, error) {
	t := time.NewTimer(time.Hour)
	t.Stop()
	return timerAlarm{t}, nil
}

func (s timerSleeper) newSharp() (alarm, error) { return s.newAlarm() }

type timerAlarm struct{ t *time.Timer }

func (a timerAlarm) set(d time.Duration) { a.t.Reset(d) }
func (a timerAlarm) stop()               { a.t.Stop() }
func (a timerAlarm) wait()               { <-a.t.C }
func (a timerAlarm) close() error        { a.t.Stop(); return nil }

// bed is where the baton holder sleeps. A wake is never lost: one that comes while nobody sleeps makes the next sleep
// return at once.
type bed struct {
	alarm alarm
	// woken is 1 from a wake until the sleep that it ends.
	woken atomic.Uint32
	// asleep is 1 while a wake must ring the alarm: set by the sleeper after it set the alarm for its own deadline, taken by
	// the one wake that rings it.
	asleep atomic.Uint32
}

// sleep returns when d has passed or wake was called since the last sleep returned; at times for no reason. One goroutine
// at a time calls it. The order is what keeps a wake from being lost: set the alarm, say so, look for a wake that came
// before, wait. A wake after that sees asleep and sets the alarm to ring at once, and nothing sets it back before the wait
// is over.
func (b *bed) sleep(d time.Duration) {
	if b.woken.Swap(0) == 1 {
		return
	}
	b.alarm.set(d)
	b.asleep.Store(1)
	if b.woken.Swap(0) == 0 {
		b.alarm.wait()
	}
	b.asleep.Store(0)
	// A wake up to here is answered by this return: its caller published what it woke us for before.
	b.woken.Store(0)
}

// wake may be called by any goroutine. It does not wait, and makes a system call only if somebody sleeps.
func (b *bed) wake() {
	b.woken.Store(1)
	if b.asleep.Load() == 1 && b.asleep.CompareAndSwap(1, 0) {
		b.alarm.set(0)
	}
}
