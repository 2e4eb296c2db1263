package shard

import (
	"math/rand/v2"
	"slices"
	"sync"
	"testing"
	"time"

	logv1 "github.com/carillon-timers/carillon/proto/carillonlog/v1"
	"github.com/carillon-timers/carillon/raftfsm"
	"github.com/carillon-timers/carillon/shard/executor"
)

// MaxCount is exact, also while leadership flips: so many due times are acked, then the timer has fired.
func TestMaxCount(t *testing.T) {
	t.Parallel()
	inBubble(t, 3, func(t *testing.T, c *cluster) {
		l := newLedger()
		c.sink.answer(c.forgetful(l))
		c.leader()
		for i := range 5 {
			c.propose(repeat(string(rune('a'+i)), &logv1.Repeat{EveryMs: 2000, MaxCount: int64(3 + i)}))
		}
		c.unruly(t, rand.New(rand.NewPCG(9, 10)), 60*time.Second)
		c.settleAll(t)
		c.sink.quiet()
		for i := range 5 {
			id := string(rune('a' + i))
			acks := 0
			for _, n := range l.acked[id] {
				acks += n
			}
			status, err := c.leader().shard.Get(t.Context(), "", id)
			if acks > 3+i || err != nil || status.State != raftfsm.Fired || status.Fired != int64(3+i) {
				t.Errorf("%s: %d acks, %+v, %v", id, acks, status, err)
			}
		}
		c.inStep()
	}, func(c *cluster) { c.sink.rnd = rand.New(rand.NewPCG(11, 12)) })
}

// Through the nights in which the clocks of a real zone change: a time that does not exist is fired after the gap, one that exists
// twice once, and an hourly rule every real hour.
func TestDaylightSaving(t *testing.T) {
	t.Parallel()
	for name, night := range map[string]struct {
		begin         string
		fixed, hourly []string
	}{
		"gap": {"2027-03-27T22:30:00Z", []string{"01:00"}, []string{"23:15", "00:15", "01:15", "02:15"}},
		// 02:30 local is 00:30 UTC, then 01:30 UTC.
		"overlap": {"2027-10-30T22:30:00Z", []string{"00:30"}, []string{"23:15", "00:15", "01:15", "02:15"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var offset time.Duration
			now := func() time.Time { return time.Now().Add(offset) }
			inBubble(t, 1, func(t *testing.T, c *cluster) {
				got := map[string][]string{}
				var mu sync.Mutex
				c.sink.answer(func(d executor.Delivery) {
					mu.Lock()
					got[d.Record.ID] = append(got[d.Record.ID], now().UTC().Format("15:04"))
					mu.Unlock()
					c.propose(completeOf(d))
				})
				c.leader()
				c.propose(
					repeat("fixed", &logv1.Repeat{Cron: "30 2 * * *", Zone: "Europe/Berlin"}),
					repeat("hourly", &logv1.Repeat{Cron: "15 * * * *", Zone: "Europe/Berlin"}),
				)
				time.Sleep(4 * time.Hour)
				c.sink.quiet()
				if !slices.Equal(got["fixed"], night.fixed) || !slices.Equal(got["hourly"], night.hourly) {
					t.Errorf("got %v", got)
				}
			}, func(c *cluster) {
				offset = time.Until(time.UnixMilli(millisOf(t, night.begin)))
				c.now = now
				c.deps = func(d *Deps) { d.Now = now }
			})
		})
	}
}
