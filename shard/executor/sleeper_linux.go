package executor

import (
	"fmt"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// NewFDSleeper sleeps in a read of a timerfd; it wakes within tens of microseconds of its time.
func NewFDSleeper() Sleeper { return fdSleeper{} }

func defaultSleeper() Sleeper { return fdSleeper{} }

type fdSleeper struct{}

func (fdSleeper) newAlarm() (alarm, error) {
	fd, err := unix.TimerfdCreate(unix.CLOCK_MONOTONIC, unix.TFD_CLOEXEC)
	if err != nil {
		return nil, fmt.Errorf("create timerfd: %w", err)
	}
	return &fdAlarm{fd: fd}, nil
}

// fdAlarm is a timerfd. The descriptor is blocking and unknown to the runtime's poller: through the poller a wake-up waits
// for a thread that happens to poll, which under load takes milliseconds.
type fdAlarm struct {
	// mu keeps one that comes late off a descriptor that was closed and may be somebody else's by now.
	mu sync.Mutex
	fd int // -1 when closed; written under mu, when nobody waits
}

func (a *fdAlarm) set(d time.Duration) { a.arm(max(d, 1)) } // 0 would stop it

func (a *fdAlarm) stop() { a.arm(0) }

func (a *fdAlarm) arm(d time.Duration) {
	spec := unix.ItimerSpec{Value: unix.NsecToTimespec(d.Nanoseconds())}
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.fd < 0 {
		return
	}
	if err := unix.TimerfdSettime(a.fd, 0, &spec, nil); err != nil {
		panic(fmt.Sprintf("executor: set a timerfd of our own: %v", err))
	}
}

func (a *fdAlarm) wait() {
	var expirations [8]byte
	for {
		_, err := unix.Read(a.fd, expirations[:])
		switch err {
		case nil:
			return
		case unix.EINTR:
		default:
			panic(fmt.Sprintf("executor: read a timerfd of our own: %v", err))
		}
	}
}

func (a *fdAlarm) close() error {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.fd < 0 {
		return nil
	}
	err := unix.Close(a.fd)
	a.fd = -1
	return err
}
