package executor

import "time"

// Sleeper is how the baton holder waits. A Wake is never lost: one that comes while nobody sleeps makes the next Sleep
// return at once.
type Sleeper interface {
	// Sleep returns when d has passed or Wake was called since the last Sleep returned; at times for no reason. One
	// goroutine at a time calls it.
	Sleep(d time.Duration)
	// Wake may be called by any goroutine. It does not wait.
	Wake()
	// Close gives back what the system lent. Nobody sleeps then; a Wake that comes later does nothing.
	Close() error
}

// TimerSleeper sleeps on a time.Timer. It works everywhere and in testing/synctest, and is half a millisecond late on
// the average, because the runtime's poller waits in whole milliseconds.
type TimerSleeper struct {
	timer *time.Timer // touched by Sleep alone
	woken chan struct{}
}

// NewTimerSleeper makes a TimerSleeper.
func NewTimerSleeper() *TimerSleeper {
	t := time.NewTimer(time.Hour)
	t.Stop()
	return &TimerSleeper{timer: t, woken: make(chan struct{}, 1)}
}

// Sleep implements Sleeper.
func (s *TimerSleeper) Sleep(d time.Duration) {
	s.timer.Reset(d)
	select {
	case <-s.woken:
		s.timer.Stop()
	case <-s.timer.C:
	}
}

// Wake implements Sleeper.
func (s *TimerSleeper) Wake() {
	select {
	case s.woken <- struct{}{}:
	default:
	}
}

// Close implements Sleeper.
func (s *TimerSleeper) Close() error { return nil }
