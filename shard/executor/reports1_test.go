package executor

import (
	"fmt"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

// Each insert set the timer of the next expiry anew, so a steady rate of inserts put all of them off (nats-io/nats-server #7344).
func TestInsertsPutNothingOff(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		r := startRig(t, nil)
		r.table.lead(1)
		r.exec.Lead(1)
		for i := range 1000 {
			r.in(fmt.Sprint("due", i), time.Second+time.Duration(i)*10*time.Millisecond)
		}
		for i := range 12_000 {
			r.in(fmt.Sprint("far", i), time.Hour)
			time.Sleep(time.Millisecond)
		}
		r.mu.Lock()
		defer r.mu.Unlock()
		if len(r.got) != 1000 {
			t.Errorf("%d of 1000 came under 1,000 inserts/s", len(r.got))
		}
		for _, d := range r.got {
			if late := d.HandedOut - d.Record.Due; late < 0 || late > 1 {
				t.Errorf("%s was %d ms late", d.Record.ID, late)
			}
		}
	})
}

// A chain of short timers that armed themselves again stopped for good after thousands of rounds: between "empty" and "asleep" a
// wake-up was lost (RussellLuo/timingwheel #5).
func TestShortChainGoesOn(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		const rounds = 3000
		var answers sync.WaitGroup
		r := startRig(t, func(r *rig, src Source, q Queue) {
			for _, d := range src.Take(q, 100) {
				r.table.remove(d.Record.ID, d.Token.Revision)
				r.mu.Lock()
				n := len(r.got) + 1
				r.got = append(r.got, d)
				r.mu.Unlock()
				answers.Go(func() {
					time.Sleep(time.Duration(n%3) * 100 * time.Microsecond) // the loop is asleep, or about to be
					if n < rounds {
						r.in("a", 6*time.Millisecond)
					}
				})
			}
		})
		r.table.lead(1)
		r.exec.Lead(1)
		r.in("a", 0)
		time.Sleep(rounds * 7 * time.Millisecond)
		answers.Wait()
		r.mu.Lock()
		defer r.mu.Unlock()
		if n := len(r.got); n != rounds {
			t.Errorf("%d rounds of %d", n, rounds)
		}
	})
}
