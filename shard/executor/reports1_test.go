package executor

import (
	"fmt"
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

// Chains of short timers that arm themselves again stopped for good after thousands of rounds: between "empty" and "asleep" a
// wake-up was lost (RussellLuo/timingwheel #5).
func TestShortChainsGoOn(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		const rounds = 2000
		r := startRig(t, func(r *rig, src Source, q Queue) {
			for _, d := range src.Take(q, 100) {
				r.table.remove(d.Record.ID, d.Token.Revision)
				r.mu.Lock()
				r.got = append(r.got, d)
				r.mu.Unlock()
				r.in(d.Record.ID, 6*time.Millisecond)
			}
		})
		r.table.lead(1)
		r.exec.Lead(1)
		for i := range 8 {
			r.in(fmt.Sprint(i), time.Duration(i)*time.Millisecond)
		}
		time.Sleep(rounds * 6 * time.Millisecond)
		count := map[string]int{}
		r.mu.Lock()
		defer r.mu.Unlock()
		for _, d := range r.got {
			count[d.Record.ID]++
		}
		for i := range 8 {
			if n := count[fmt.Sprint(i)]; n < rounds-10 || n > rounds+10 {
				t.Errorf("chain %d has %d rounds of %d", i, n, rounds)
			}
		}
	})
}
