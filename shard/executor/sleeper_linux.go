package executor

import (
	"fmt"
	"runtime"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"
)

// NewFDSleeper sleeps in a read of a timerfd; it wakes within tens of microseconds of its time.
func NewFDSleeper() Sleeper { return fdSleeper{} }

func defaultSleeper() Sleeper { return fdSleeper{} }

type fdSleeper struct{}

func (fdSleeper) newAlarm() (alarm, error) { return newFDAlarm() }

func (fdSleeper) newSharp() (alarm, error) {
	a, err := newFDAlarm()
	if err != nil {
		return nil, err
	}
	a.sharp = runtime.GOMAXPROCS(0) > 1
	return a, nil
}

func newFDAlarm() (*fdAlarm, error) {
	fd, err := unix.TimerfdCreate(unix.CLOCK_MONOTONIC, unix.TFD_CLOEXEC)
	if err != nil {
		return nil, fmt.Errorf("create timerfd: %w", err)
	}
	return &fdAlarm{fd: fd, start: time.Now()}, nil
}

// fdAlarm is a timerfd. The descriptor is blocking and unknown to the runtime's poller: through the poller a wake-up waits
// for a thread that happens to poll, which under load takes milliseconds.
//
// A wake-up takes its time: the interrupt, the idle processor, the scheduler. A sharp alarm learns how long that is, has
// itself woken so much earlier and spins for what is left.
type fdAlarm struct {
	start time.Time // set before sharing
	sharp bool      // set before sharing
	// due is when it is to ring, in nanoseconds since start; rings is when the descriptor does, if that was set by its sharp
	// waiter and not looked at yet, else 0.
	due, rings atomic.Int64
	// lead is how much earlier the descriptor rings, in nanoseconds.
	lead atomic.Int64

	// mu keeps one that comes late off a descriptor that was closed and may be somebody else's by now.
	mu sync.Mutex
	fd int // -1 when closed; written under mu, when nobody waits
}

const (
	// leadMax bounds the lead, and so the time spent spinning: 5 % of a core if each of 1,000 ticks a second has timers.
	leadMax = 50 * time.Microsecond
	// leadUp and leadDown are how the lead follows the time that wake-ups take; their ratio is what part of the wake-ups is
	// too late, a quarter.
	leadUp, leadDown = 750 * time.Nanosecond, 250 * time.Nanosecond
)

func (a *fdAlarm) set(d time.Duration) {
	d = max(d, 1) // 0 would stop it
	if !a.sharp {
		a.arm(d)
		return
	}
	now, lead := time.Since(a.start), time.Duration(a.lead.Load())
	a.due.Store(int64(now + d))
	if d <= lead {
		a.rings.Store(0)
		a.arm(1)
		return
	}
	a.rings.Store(int64(now + d - lead))
	a.arm(d - lead)
}

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
	a.read()
	if !a.sharp {
		return
	}
	now, lead := int64(time.Since(a.start)), a.lead.Load()
	if rings := a.rings.Swap(0); rings > 0 && now >= rings {
		a.learn(time.Duration(now - rings))
	}
	// If more than the lead is left it rang for no reason: a wake-up that was cut short set the descriptor only now.
	for left := a.due.Load() - now; left > 0 && left <= lead; left = a.due.Load() - now {
		now = int64(time.Since(a.start))
	}
}

// learn lets the lead follow the time that three of four wake-ups take at most.
func (a *fdAlarm) learn(took time.Duration) {
	lead := time.Duration(a.lead.Load())
	if took > lead {
		lead += leadUp
	} else {
		lead -= leadDown
	}
	a.lead.Store(int64(min(max(lead, 0), leadMax)))
}

func (a *fdAlarm) read() {
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
