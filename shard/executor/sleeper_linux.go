package executor

import (
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"
)

// fdSleeper blocks in a read of a timerfd. The descriptor is blocking and unknown to the runtime's poller: through the
// poller a wake-up waits for a thread that happens to poll, which under load takes milliseconds.
type fdSleeper struct {
	// woken is 1 from a Wake until the Sleep that it ends.
	woken atomic.Uint32
	// asleep is 1 while a Wake must fire the timer: set by the sleeper after it armed the timer for its own deadline, taken
	// by the one Wake that fires it.
	asleep atomic.Uint32
	// mu keeps a late Wake off a descriptor that was closed and may be somebody else's by now.
	mu sync.Mutex
	fd int // -1 when closed; written under mu, when nobody sleeps
}

// NewFDSleeper makes a Sleeper on a timerfd; it wakes within tens of microseconds of its time. The error is the system's:
// no more descriptors.
func NewFDSleeper() (Sleeper, error) {
	fd, err := unix.TimerfdCreate(unix.CLOCK_MONOTONIC, unix.TFD_CLOEXEC)
	if err != nil {
		return nil, fmt.Errorf("create timerfd: %w", err)
	}
	return &fdSleeper{fd: fd}, nil
}

func newSleeper() (Sleeper, error) { return NewFDSleeper() }

// Sleep implements Sleeper. The order is what keeps a Wake from being lost: arm, say so, look for a Wake that came
// before, block. A Wake after that sees asleep and fires the timer, and nothing arms it over before the read returns.
func (s *fdSleeper) Sleep(d time.Duration) {
	if s.woken.Swap(0) == 1 {
		return
	}
	if err := s.arm(max(d, 1)); err != nil {
		panic(fmt.Sprintf("executor: arm a timerfd of our own: %v", err))
	}
	s.asleep.Store(1)
	if s.woken.Swap(0) == 1 {
		s.asleep.Store(0)
		return
	}
	var expirations [8]byte
	for {
		_, err := unix.Read(s.fd, expirations[:])
		if err == nil {
			break
		}
		if err != unix.EINTR {
			panic(fmt.Sprintf("executor: read a timerfd of our own: %v", err))
		}
	}
	s.asleep.Store(0)
	// A Wake up to here is answered by this return: its caller published what it woke us for before.
	s.woken.Store(0)
}

// Wake implements Sleeper.
func (s *fdSleeper) Wake() {
	s.woken.Store(1)
	if s.asleep.Load() == 0 || !s.asleep.CompareAndSwap(1, 0) {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.fd >= 0 {
		// It cannot fail on a descriptor of ours; if it did, the sleep would end at its own time, a second at most.
		_ = s.arm(1)
	}
}

// Close implements Sleeper.
func (s *fdSleeper) Close() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.fd < 0 {
		return nil
	}
	err := unix.Close(s.fd)
	s.fd = -1
	return err
}

func (s *fdSleeper) arm(d time.Duration) error {
	spec := unix.ItimerSpec{Value: unix.NsecToTimespec(d.Nanoseconds())}
	return unix.TimerfdSettime(s.fd, 0, &spec, nil)
}
