package executor

import (
	"math/rand/v2"
	"testing"
	"time"
)

func sharpAlarm(t *testing.T) *fdAlarm {
	fd, err := newFDAlarm()
	if err != nil {
		t.Fatal(err)
	}
	fd.sharp = true // also where there is one processor
	t.Cleanup(func() {
		if err := fd.close(); err != nil {
			t.Error(err)
		}
	})
	return fd
}

// A sharp alarm has itself woken before its time; it must not return before.
func TestSharpIsNotEarly(t *testing.T) {
	a := sharpAlarm(t)
	for i := range 200 {
		a.lead.Store(int64(leadMax)) // more than a wake-up takes on a quiet machine
		d := time.Duration(1+i%20) * 10 * time.Microsecond
		began := time.Now()
		a.set(d)
		a.wait()
		if took := time.Since(began); took < d {
			t.Fatalf("rang after %v instead of %v", took, d)
		}
	}
}

// A wake-up must end the spin, too: the sleeper's own time is a minute away, and so is its lead.
func TestWakeEndsSpin(t *testing.T) {
	a := sharpAlarm(t)
	b := bed{alarm: a}
	a.lead.Store(int64(2 * time.Minute))
	woken := make(chan struct{})
	go func() {
		b.sleep(time.Minute)
		close(woken)
	}()
	for b.asleep.Load() == 0 {
		<-time.After(time.Millisecond)
	}
	<-time.After(5 * time.Millisecond) // it spins now, or will see the wake-up before it does
	b.wake()
	select {
	case <-woken:
	case <-time.After(10 * time.Second):
		a.set(0)
		t.Fatal("the spin went on for 10 s after a wake-up")
	}
}

// A wake-up that loses the processor in the middle of set may ring after the next sleep began: that sleep ends for no
// reason, which is allowed, but must not spin until its own time.
func TestStrayRingDoesNotSpin(t *testing.T) {
	a := sharpAlarm(t)
	a.lead.Store(int64(leadMax))
	began := time.Now()
	a.set(20 * time.Second)
	a.arm(1)
	a.wait()
	if took := time.Since(began); took > 10*time.Second {
		t.Fatalf("it spun for %v", took)
	}
}

// The lead settles where three of four wake-ups are in time, and stays in its bounds.
func TestLeadFollowsWakeUps(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 1))
	for _, c := range []struct {
		name     string
		took     func() time.Duration
		min, max time.Duration
	}{
		{"even from 10 to 30 us", func() time.Duration { return 10_000 + time.Duration(r.IntN(20_000)) }, 22_000, 28_000},
		{"none", func() time.Duration { return 0 }, 0, leadUp},
		{"a busy machine", func() time.Duration { return time.Millisecond }, leadMax, leadMax},
	} {
		var a fdAlarm
		for range 1000 {
			a.learn(c.took())
			if lead := time.Duration(a.lead.Load()); lead < 0 || lead > leadMax {
				t.Fatalf("%s: the lead is %v", c.name, lead)
			}
		}
		if lead := time.Duration(a.lead.Load()); lead < c.min || lead > c.max {
			t.Errorf("%s: the lead settled at %v, want %v to %v", c.name, lead, c.min, c.max)
		}
	}
}
