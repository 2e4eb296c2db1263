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

// anew is a schedule that replaces what is there, and is no repetition of another request.
func anew(cmd *raftfsm.Command, request string) *raftfsm.Command {
	return with(cmd, func(s *logv1.Schedule) { s.IfExists, s.RequestId = 1, []byte(request) })
}

// skewed gives the loop and the entries of all replicas a clock that can be set, and skew is how far it is ahead.
func skewed(skew *atomic.Int64) (now func() time.Time, change func(*cluster)) {
	now = func() time.Time { return time.Now().Add(time.Duration(skew.Load())) }
	return now, func(c *cluster) {
		c.now = now
		c.deps = func(d *Deps) { d.Now = now }
	}
}

// restartAll stops all replicas, and starts them after a while.
func (c *cluster) restartAll(t *testing.T, away time.Duration) {
	t.Helper()
	for _, n := range c.nodes {
		if err := n.stop(); err != nil {
			t.Error(err)
		}
	}
	time.Sleep(away)
	for _, n := range c.nodes {
		n.open()
	}
	for _, n := range c.nodes {
		n.run()
	}
}

// lateOf is how late each timer was first handed out.
func (s *sink) lateOf() map[string]time.Duration {
	late := map[string]time.Duration{}
	for _, d := range s.all() {
		if _, again := late[d.Record.ID]; !again {
			late[d.Record.ID] = time.Duration(d.HandedOut-d.Record.Due) * time.Millisecond
		}
	}
	return late
}

// A restart added the time that it took to each delay that was left (beanstalkd/beanstalkd #62), lost what fell due meanwhile, or
// fired it only after the next publish (rabbitmq/rabbitmq-delayed-message-exchange #25, #55, #288).
func TestRestartMovesNoDueTime(t *testing.T) {
	t.Parallel()
	inBubble(t, 3, func(t *testing.T, c *cluster) {
		c.sink.answer(func(d executor.Delivery) { c.propose(completeOf(d)) })
		c.leader()
		for i := range 20 {
			c.propose(after(fmt.Sprint("down", i), 20*time.Second+time.Duration(i)*time.Second), after(fmt.Sprint("up", i), 90*time.Second))
		}
		c.restartAll(t, time.Minute)
		began := time.Now()
		time.Sleep(5 * time.Second) // nobody asks for anything
		if n := len(c.sink.lateOf()); n != 20 {
			t.Errorf("%d of 20 that fell due meanwhile were fired", n)
		}
		time.Sleep(time.Minute)
		late := c.sink.lateOf()
		for i := range 20 {
			if l := late[fmt.Sprint("up", i)]; l < 0 || l > 2*time.Millisecond {
				t.Errorf("up%d, due after the restart, was %v late", i, l)
			}
		}
		if len(late) != 40 {
			t.Errorf("%d of 40 were fired %v after the restart", len(late), time.Since(began))
		}
		c.sink.quiet()
		c.inStep()
	})
}

// Timers of one owner were all taken for due as soon as one was (microsoft/durabletask-mssql #50), and firing the one scheduled
// last took the others away (nats-io/nats-server #8423).
func TestNeighboursAreLeftAlone(t *testing.T) {
	t.Parallel()
	inBubble(t, 3, func(t *testing.T, c *cluster) {
		c.sink.answer(func(d executor.Delivery) { c.propose(completeOf(d)) })
		c.leader()
		for _, seconds := range []int{20, 15, 10, 1} {
			c.propose(after(fmt.Sprintf("{owner}%02d", seconds), time.Duration(seconds)*time.Second))
		}
		time.Sleep(9 * time.Second)
		page, err := c.leader().shard.List(t.Context(), raftfsm.ListQuery{Namespace: "default", Prefix: "{owner}"})
		var left []string
		for _, s := range page.Timers {
			if s.State == raftfsm.Pending {
				left = append(left, s.Record.ID)
			}
		}
		if want := []string{"{owner}10", "{owner}15", "{owner}20"}; err != nil || !slices.Equal(left, want) || len(c.sink.all()) != 1 {
			t.Errorf("after 9 s %d were fired, %v are left, %v", len(c.sink.all()), left, err)
		}
		time.Sleep(12 * time.Second)
		for id, late := range c.sink.lateOf() {
			if late < 0 || late > 2*time.Millisecond {
				t.Errorf("%s was %v late", id, late)
			}
		}
		if got := c.sink.all(); len(got) != 4 {
			t.Errorf("%d deliveries of 4 timers", len(got))
		}
		c.sink.quiet()
	})
}

// A timer that armed itself again every 10 s came later and later (netty/netty #1959).
func TestChainDoesNotDrift(t *testing.T) {
	t.Parallel()
	inBubble(t, 1, func(t *testing.T, c *cluster) {
		const links = 120
		c.sink.answer(func(d executor.Delivery) {
			var n int
			if _, err := fmt.Sscanf(d.Record.ID, "link%d", &n); err != nil {
				t.Error(err)
			}
			cmds := []*raftfsm.Command{completeOf(d)}
			if n++; n < links {
				cmds = append(cmds, schedule(fmt.Sprint("link", n), time.UnixMilli(d.Record.Due+10_000)))
			}
			c.propose(cmds...)
		})
		c.leader()
		first := time.Now().Add(time.Second)
		c.propose(schedule("link0", first))
		time.Sleep(links * 10 * time.Second)
		c.sink.quiet()
		got := c.sink.all()
		for i, d := range got {
			if late := d.HandedOut - first.UnixMilli() - int64(i)*10_000; late < 0 || late > 2 {
				t.Errorf("link %d was %d ms late", i, late)
			}
		}
		if len(got) != links {
			t.Errorf("%d deliveries of %d links", len(got), links)
		}
	})
}

// Periods that were counted anew from each start never ran where restarts came more often (riverqueue/river #791,
// hibiken/asynq #308).
func TestRestartsDoNotPutOffARepeat(t *testing.T) {
	t.Parallel()
	inBubble(t, 3, func(t *testing.T, c *cluster) {
		l := c.acked()
		c.leader()
		first := c.propose(repeat("r", &logv1.Repeat{EveryMs: 60_000}))[0]
		for range 15 {
			time.Sleep(35 * time.Second)
			c.restartAll(t, 5*time.Second)
		}
		time.Sleep(10 * time.Second)
		c.sink.quiet()
		ticks := l.ticks("r")
		for i, tick := range ticks {
			if tick != first.Due+int64(i)*60_000 {
				t.Errorf("due time %d is %d ms after the first", i, tick-first.Due)
			}
		}
		if len(ticks) < 10 {
			t.Errorf("fired %d times in 10 minutes", len(ticks))
		}
	})
}

// All jobs of a window ran twice while a clock was put right (dkron-io/dkron #541).
func TestStepsOfTheClockFireNothingTwice(t *testing.T) {
	t.Parallel()
	var skew atomic.Int64
	now, change := skewed(&skew)
	inBubble(t, 3, func(t *testing.T, c *cluster) {
		c.sink.answer(func(d executor.Delivery) { c.propose(completeOf(d)) })
		c.leader()
		due := now().Add(5 * time.Second)
		for i := range 300 {
			c.propose(schedule(fmt.Sprint(i), due.Add(time.Duration(i)*10*time.Millisecond)))
		}
		time.Sleep(time.Until(due))
		for i := range 9 {
			skew.Store(int64(time.Second) * int64(i%3-1))
			time.Sleep(700 * time.Millisecond)
		}
		skew.Store(0)
		time.Sleep(5 * time.Second)
		c.sink.quiet()
		got := c.sink.all()
		if late := c.sink.lateOf(); len(late) != 300 || len(got) != 300 {
			t.Errorf("%d deliveries of %d timers, want 300", len(got), len(late))
		}
		for _, d := range got {
			if d.HandedOut < d.Record.Due {
				t.Errorf("%s came early", d.Record.ID)
			}
		}
	}, change)
}

// An hour's jump ahead made a job of 5 s run hundreds of times (robfig/cron #26, sidekiq-scheduler/sidekiq-scheduler #283).
func TestJumpAheadCatchesUpOnce(t *testing.T) {
	t.Parallel()
	var skew atomic.Int64
	_, change := skewed(&skew)
	inBubble(t, 3, func(t *testing.T, c *cluster) {
		l := c.acked()
		c.leader()
		c.propose(repeat("r", &logv1.Repeat{EveryMs: 5000}))
		for i := range 50 {
			c.propose(after(fmt.Sprint("once", i), time.Duration(i+1)*time.Minute))
		}
		time.Sleep(22 * time.Second)
		before := len(l.ticks("r"))
		skew.Store(int64(time.Hour))
		time.Sleep(20 * time.Second)
		c.sink.quiet()
		if n := len(l.ticks("r")) - before; n < 3 || n > 5 {
			t.Errorf("fired %d times in the 20 s after the jump", n)
		}
		if n := len(c.sink.all()) - len(l.ticks("r")); n != 50 {
			t.Errorf("%d deliveries of 50 timers that fell due", n)
		}
	}, change)
}

// Each change of a timer left the one before behind, which fired as well (apache/hertzbeat #4201).
func TestManyChangesFireOnce(t *testing.T) {
	t.Parallel()
	inBubble(t, 1, func(t *testing.T, c *cluster) {
		c.sink.answer(func(d executor.Delivery) { c.propose(completeOf(d)) })
		s := c.leader().shard
		c.propose(after("a", time.Minute))
		var clients sync.WaitGroup
		for client := range 4 {
			clients.Go(func() {
				for i := range 250 {
					due := 10_000 + (int64(i)*7919+int64(client)*104_729)%50_000
					c.propose(&raftfsm.Command{Kind: &logv1.Command_Reschedule{Reschedule: &logv1.Reschedule{
						Id: "a", DelayMs: due, IsDelay: true, RequestId: fmt.Appendf(nil, "%d-%d", client, i),
					}}})
				}
			})
		}
		clients.Wait()
		time.Sleep(2 * time.Second)
		last := c.stateOf(t, "a").Record.NextDue
		if st := s.Status(); st.Pending != 1 || st.Executor.Armed != 1 || len(c.sink.all()) != 0 {
			t.Errorf("%d pending, %d armed, %d fired", st.Pending, st.Executor.Armed, len(c.sink.all()))
		}
		time.Sleep(2 * time.Minute)
		c.sink.quiet()
		if got := c.sink.all(); len(got) != 1 || got[0].HandedOut < last || got[0].HandedOut > last+2 {
			t.Errorf("%d deliveries, the last change was to %d", len(got), last)
		}
	})
}
