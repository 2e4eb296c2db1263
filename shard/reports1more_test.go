package shard

import (
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	logv1 "github.com/carillon-timers/carillon/proto/carillonlog/v1"
	"github.com/carillon-timers/carillon/raftfsm"
	"github.com/carillon-timers/carillon/shard/executor"
)

// A job that was deleted and created again under its name caught up with all that its predecessor would have run meanwhile
// (jobrunr/jobrunr #899).
func TestRepeatCreatedAnewSharesNothing(t *testing.T) {
	t.Parallel()
	inBubble(t, 1, func(t *testing.T, c *cluster) {
		l := c.acked()
		c.leader()
		r := func() *logv1.Repeat { return &logv1.Repeat{EveryMs: 1000, Misfire: misfireAll, MaxCatchUp: 1000} }
		c.propose(repeat("r", r()))
		time.Sleep(10 * time.Second)
		c.propose(cancelOf("r"))
		time.Sleep(30 * time.Second)
		before, again := len(l.ticks("r")), time.Now().UnixMilli()
		c.propose(anew(repeat("r", r()), "again"))
		time.Sleep(5500 * time.Millisecond)
		c.sink.quiet()
		ticks := l.ticks("r")
		if n := len(ticks) - before; before < 9 || n < 5 || n > 6 || ticks[before] < again {
			t.Errorf("fired %d times, then %d times: %v", before, n, ticks)
		}
	})
}

// A calendar timer that was edited fired at once, for the new rule had a due time since its last run (systemd/systemd #16732).
func TestChangedRuleCountsFromNow(t *testing.T) {
	t.Parallel()
	var skew atomic.Int64
	now, change := skewed(&skew)
	inBubble(t, 1, func(t *testing.T, c *cluster) {
		c.sink.answer(func(d executor.Delivery) { c.propose(completeOf(d)) })
		c.leader()
		c.propose(repeat("r", &logv1.Repeat{Cron: "0 23 * * *"}))
		time.Sleep(5 * time.Second) // 23:00 has passed
		if n := len(c.sink.all()); n != 1 {
			t.Errorf("fired %d times at 23:00", n)
		}
		skew.Add(int64(13 * time.Hour))
		time.Sleep(2 * time.Second)
		result := c.propose(anew(repeat("r", &logv1.Repeat{Cron: "0 10 * * *"}), "changed"))[0]
		time.Sleep(10 * time.Second)
		c.sink.quiet()
		if want := millisOf(t, "2027-06-03T10:00:00Z"); result.Due != want || len(c.sink.all()) != 1 {
			t.Errorf("at %v: due at %v, fired %d times", now().UTC(), time.UnixMilli(result.Due).UTC(), len(c.sink.all()))
		}
	}, func(c *cluster) {
		skew.Store(int64(time.Until(time.UnixMilli(millisOf(t, "2027-06-01T22:59:58Z")))))
		change(c)
	})
}

// Delays of more than 2^32 ms were delivered at once (rabbitmq/rabbitmq-delayed-message-exchange #23, #227,
// cloudamqp/lavinmq #1781).
func TestFarTimersComeAtTheirTime(t *testing.T) {
	t.Parallel()
	var skew atomic.Int64
	now, change := skewed(&skew)
	inBubble(t, 1, func(t *testing.T, c *cluster) {
		c.sink.answer(func(d executor.Delivery) { c.propose(completeOf(d)) })
		c.leader()
		var dues []int64
		for _, far := range []int64{1 << 31, 1 << 32, 1 << 36, 1 << 40} {
			for d := range int64(3) {
				r := c.propose(after(fmt.Sprint(far, d), time.Duration(far+d-1)*time.Millisecond))[0]
				if ahead := r.Due - now().UnixMilli(); ahead < far+d-1 || ahead > far+d+1 || c.stateOf(t, fmt.Sprint(far, d)).Record.Due != r.Due {
					t.Errorf("2^n=%d: due in %d, %+v", far, ahead, r)
				}
				dues = append(dues, r.Due)
			}
		}
		time.Sleep(time.Minute)
		slices.Sort(dues)
		for i := 0; i < len(dues); i += 3 {
			skew.Add((dues[i] - 3000 - now().UnixMilli()) * 1e6)
			time.Sleep(2 * time.Second)
			if n := len(c.sink.all()); n != i {
				t.Errorf("%d were fired a second before %d is due", n, i)
			}
			time.Sleep(2 * time.Second)
			if n := len(c.sink.all()); n != i+3 {
				t.Errorf("%d were fired a second after %d was due", n, i+2)
			}
		}
		c.sink.quiet()
	}, change)
}

// A cancel said that it had worked, and the handler ran none the less (eclipse-vertx/vert.x #2912).
func TestCancelAtTheDueTime(t *testing.T) {
	t.Parallel()
	inBubble(t, 3, func(t *testing.T, c *cluster) {
		c.sink.answer(func(d executor.Delivery) {
			time.Sleep(20 * time.Millisecond) // many a cancel comes while the delivery is out
			c.propose(completeOf(d))
		})
		for _, n := range c.nodes { // a commit takes some milliseconds
			slow := func() { time.Sleep(3 * time.Millisecond) }
			n.log.slow.Store(&slow)
		}
		c.leader()
		due := time.Now().Add(5 * time.Second)
		for i := range 400 {
			c.propose(schedule(fmt.Sprint(i), due.Add(time.Duration(i)*10*time.Millisecond)))
		}
		var mu sync.Mutex
		answers := map[string]raftfsm.Result{}
		var clients sync.WaitGroup
		for client := range 8 {
			clients.Go(func() {
				for i := client; i < 400; i += 8 {
					at := due.Add(time.Duration(i)*10*time.Millisecond - time.Duration(i*37%25-5)*time.Millisecond)
					time.Sleep(time.Until(at))
					r := c.propose(cancelOf(fmt.Sprint(i)))[0]
					mu.Lock()
					answers[fmt.Sprint(i)] = r
					mu.Unlock()
				}
			})
		}
		clients.Wait()
		time.Sleep(10 * time.Second)
		c.sink.quiet()
		late := c.sink.lateOf()
		count := map[uint32]int{}
		for id, r := range answers {
			_, came := late[id]
			if count[r.Answer]++; r.Code != raftfsm.OK || came == (r.Answer == raftfsm.AnswerCancelled) {
				t.Errorf("%s: delivered %t, the cancel says %+v", id, came, r)
			}
		}
		if len(count) < 2 || count[raftfsm.AnswerCancelled] == 0 || len(answers) != 400 {
			t.Errorf("the story has no race: %v", count)
		}
		c.inStep()
	})
}

// Clocks that were some milliseconds apart made what was handed over look not due yet, and be put off (dimagi/commcare-hq #21751).
func TestClocksApart(t *testing.T) {
	t.Parallel()
	inBubble(t, 3, func(t *testing.T, c *cluster) {
		c.sink.answer(func(d executor.Delivery) { c.propose(completeOf(d)) })
		c.leader()
		start := time.Now()
		for i := range 200 {
			c.propose(schedule(fmt.Sprint(i), start.Add(time.Duration(2000+i*100)*time.Millisecond)))
		}
		for range 10 {
			time.Sleep(2 * time.Second)
			_ = c.leader().shard.Transfer(t.Context(), "")
		}
		time.Sleep(10 * time.Second)
		c.sink.quiet()
		came := map[string]bool{}
		for _, d := range c.sink.all() {
			came[d.Record.ID] = true
			if late := d.at.UnixMilli() - d.Record.Due; d.HandedOut < d.Record.Due || late > 1500 {
				t.Errorf("%s came %d ms late, attempt %d", d.Record.ID, late, d.Token.Attempt)
			}
		}
		if len(came) != 200 {
			t.Errorf("%d of 200 came", len(came))
		}
		c.inStep()
	}, func(c *cluster) {
		clock := func(i int) func() time.Time {
			apart := time.Duration(i%3-1) * 300 * time.Millisecond
			return func() time.Time { return time.Now().Add(apart) }
		}
		opened := 0
		c.now = clock(0)
		c.deps = func(d *Deps) {
			d.Now = clock(opened)
			opened++
			c.now = clock(opened)
		}
	})
}
