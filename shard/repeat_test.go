package shard

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"
	"time"

	logv1 "github.com/carillon-timers/carillon/proto/carillonlog/v1"
	"github.com/carillon-timers/carillon/raftfsm"
	"github.com/carillon-timers/carillon/shard/executor"
)

// Values of Repeat.overlap, as of carillon.v1.Overlap.
const (
	overlapSkip  = 1
	overlapOne   = 2
	overlapAllow = 3
)

// repeat is a timer that repeats; its first due time is the leader's to find.
func repeat(id string, r *logv1.Repeat) *raftfsm.Command {
	c := schedule(id, time.Time{})
	s := c.GetSchedule()
	s.DueMs, s.First, s.Extra = 0, true, &logv1.Extra{Repeat: r}
	s.Retry.LeaseMs = 1000
	if r.Misfire == 0 {
		r.Misfire = 1
	}
	if r.Overlap == 0 {
		r.Overlap = overlapSkip
	}
	return c
}

// ledger notes, for each due time of a repeat, who was given it and how often it was acked.
type ledger struct {
	mu    sync.Mutex
	given map[string]map[int64][]raftfsm.Token
	acked map[string]map[int64]int
	// maybe are due times with an ack whose outcome was unknown.
	maybe map[int64]bool
}

func newLedger() *ledger {
	return &ledger{given: map[string]map[int64][]raftfsm.Token{}, acked: map[string]map[int64]int{}, maybe: map[int64]bool{}}
}

// acked has all deliveries acked at once, and returns the ledger of them.
func (c *cluster) acked() *ledger {
	l := newLedger()
	c.sink.answer(func(d executor.Delivery) {
		l.give(d)
		c.propose(completeOf(d))
	})
	return l
}

// tickOf is the repeat and the due time that a delivery is of, also that of a child.
func tickOf(d executor.Delivery) (string, int64) {
	if r := d.Record.Extra.GetRepeat(); r != nil {
		return d.Record.ID, r.TickMs
	}
	var id string
	var tick int64
	if _, err := fmt.Sscanf(d.Record.ID, "{%1s}@%d", &id, &tick); err != nil {
		return d.Record.ID, d.Record.Due
	}
	return id, tick
}

func (l *ledger) give(d executor.Delivery) {
	l.mu.Lock()
	defer l.mu.Unlock()
	id, tick := tickOf(d)
	if l.given[id] == nil {
		l.given[id], l.acked[id] = map[int64][]raftfsm.Token{}, map[int64]int{}
	}
	l.given[id][tick] = append(l.given[id][tick], d.Token)
}

func (l *ledger) ack(d executor.Delivery) {
	l.mu.Lock()
	defer l.mu.Unlock()
	id, tick := tickOf(d)
	l.acked[id][tick]++
}

func (l *ledger) doubt(d executor.Delivery) {
	l.mu.Lock()
	defer l.mu.Unlock()
	_, tick := tickOf(d)
	l.maybe[tick] = true
}

func (l *ledger) ticks(id string) []int64 {
	l.mu.Lock()
	defer l.mu.Unlock()
	var ticks []int64
	for tick := range l.given[id] {
		ticks = append(ticks, tick)
	}
	slices.Sort(ticks)
	return ticks
}

// check fails if a due time was acked twice, or the tokens of its deliveries do not grow.
func (l *ledger) check(t *testing.T) {
	t.Helper()
	for id, ticks := range l.given {
		for tick, tokens := range ticks {
			if n := l.acked[id][tick]; n > 1 || n == 0 && !l.maybe[tick] {
				t.Errorf("due time %d of %s was acked %d times, with %+v", tick, id, n, tokens)
			}
			for i, token := range tokens[1:] {
				if compareTokens(tokens[i], token) >= 0 {
					t.Errorf("due time %d of %s: token %+v came after %+v", tick, id, token, tokens[i])
				}
			}
		}
	}
}

func compareTokens(a, b raftfsm.Token) int {
	return slices.Compare([]uint64{a.Epoch, a.Revision, uint64(a.Attempt)}, []uint64{b.Epoch, b.Revision, uint64(b.Attempt)})
}

// unruly flips the leadership, cuts leaders off and restarts replicas until the time is over.
func (c *cluster) unruly(t *testing.T, rnd *rand.Rand, length time.Duration) {
	for start := time.Now(); time.Since(start) < length; {
		leader := c.leader()
		switch rnd.IntN(3) {
		case 0:
			_ = leader.shard.Transfer(t.Context(), "")
		case 1:
			c.cut(leader)
			c.leader(leader)
			c.heal()
		case 2:
			if err := leader.stop(); err != nil {
				t.Error(err)
			}
			time.Sleep(time.Duration(rnd.IntN(1500)) * time.Millisecond)
			leader.restart()
		}
		time.Sleep(time.Duration(rnd.IntN(2000)) * time.Millisecond)
	}
}

// settleAll waits until nothing is pending any more.
func (c *cluster) settleAll(t *testing.T) {
	t.Helper()
	for range 1200 {
		if c.leader().shard.Status().Pending == 0 {
			return
		}
		time.Sleep(100 * time.Millisecond)
	}
	left := c.leader().shard.Status()
	t.Errorf("%d timers are stranded: %+v", left.Pending, left.Executor)
}

// forgetful acks deliveries; of one in two the ack, or the answer to it, gets lost.
func (c *cluster) forgetful(l *ledger) func(executor.Delivery) {
	return func(d executor.Delivery) {
		l.give(d)
		if c.sink.lose() {
			return
		}
		// An ack whose outcome was unknown is repeated: then a stale token says that the first has been applied, or that another
		// delivery was acked.
		results, failed, err := c.try(time.Minute, completeOf(d))
		switch {
		case err == nil && results[0].Code == raftfsm.OK:
			l.ack(d)
		case failed > 0:
			l.doubt(d)
		}
	}
}

// Leadership flips, leaders are cut off, replicas restart and half of the acks get lost: no due time of a repeat is lost, and
// none goes on after it was acked. Each is delivered until one ack is OK, under tokens that grow.
func TestRepeatsLoseNoDueTime(t *testing.T) {
	t.Parallel()
	inBubble(t, 3, func(t *testing.T, c *cluster) {
		l := newLedger()
		c.sink.answer(c.forgetful(l))
		c.leader()
		start := time.Now().UnixMilli() + 1000
		rules := map[string]*logv1.Repeat{
			// A delivery is settled before the next due time, so that none overlap.
			"a": {EveryMs: 25_000, StartMs: start, Misfire: 1},
			"b": {EveryMs: 30_000, StartMs: start + 333, Misfire: misfireAll, MaxCatchUp: 1000},
			"c": {Cron: "*/30 * * * * *", Zone: "Europe/Berlin", StartMs: start},
			// They do overlap, and each is a timer of its own.
			"d": {EveryMs: 700, StartMs: start, Misfire: misfireAll, MaxCatchUp: 1000, Overlap: overlapAllow},
		}
		c.propose(repeat("a", rules["a"]), repeat("b", rules["b"]), repeat("c", rules["c"]), repeat("d", rules["d"]))
		end := start + 120_000
		c.unruly(t, rand.New(rand.NewPCG(5, 6)), 125*time.Second)
		time.Sleep(40 * time.Second)
		c.sink.answer(func(d executor.Delivery) {
			l.give(d)
			if c.propose(completeOf(d))[0].Code == raftfsm.OK {
				l.ack(d)
			}
		})
		time.Sleep(5 * time.Second)
		c.propose(cancelOf("a"), cancelOf("b"), cancelOf("c"), cancelOf("d"))
		c.settleAll(t)
		c.sink.quiet()
		for id, rule := range rules {
			var want []int64
			for tick, ok := newRepeats(c.log).Next(rule, start-1); ok && tick <= end; tick, ok = newRepeats(c.log).Next(rule, tick) {
				want = append(want, tick)
			}
			got := l.ticks(id)
			got = got[:min(len(got), len(want))]
			if !slices.Equal(got, want) {
				t.Errorf("%s: got %v, want %v", id, got, want)
			}
		}
		for id, ticks := range l.given { // what was given last may have been cancelled before its ack
			for tick := range ticks {
				if tick > end {
					delete(l.given[id], tick)
				}
			}
		}
		l.check(t)
		c.inStep()
	}, func(c *cluster) { c.sink.rnd = rand.New(rand.NewPCG(7, 8)) })
}

// After two minutes without a cluster each misfire policy fires what it says, and all go on on their grids.
func TestMisfiresAfterAnOutage(t *testing.T) {
	t.Parallel()
	inBubble(t, 3, func(t *testing.T, c *cluster) {
		l := c.acked()
		c.leader()
		start := time.Now().UnixMilli() + 1000
		every := func(misfire, most uint32, late int64) *logv1.Repeat {
			return &logv1.Repeat{EveryMs: 10_000, StartMs: start, Misfire: misfire, MaxCatchUp: most, MaxLateMs: late}
		}
		c.propose(
			repeat("one", every(1, 0, 0)), repeat("none", every(misfireNone, 0, 0)), repeat("all", every(misfireAll, 1000, 0)),
			repeat("few", every(misfireAll, 3, 0)), repeat("late", every(misfireAll, 1000, 35_000)),
		)
		at := func(until int64) { time.Sleep(time.Until(time.UnixMilli(start + until))) }
		at(15_000) // due times 0 and 10 s have been fired
		for _, n := range c.nodes {
			if err := n.stop(); err != nil {
				t.Error(err)
			}
		}
		at(125_000)
		for _, n := range c.nodes {
			n.open()
		}
		for _, n := range c.nodes {
			n.run()
		}
		c.leader()
		at(145_000)
		c.sink.quiet()
		for id, missed := range map[string][]int64{
			"one": {120}, "none": {}, "few": {100, 110, 120}, "late": {100, 110, 120},
			"all": {20, 30, 40, 50, 60, 70, 80, 90, 100, 110, 120},
		} {
			want := slices.Concat([]int64{0, 10}, missed, []int64{130, 140})
			var got []int64
			for _, tick := range l.ticks(id) {
				got = append(got, (tick-start)/1000)
			}
			if !slices.Equal(got, want) {
				t.Errorf("%s: got %v, want %v", id, got, want)
			}
		}
		c.inStep()
	})
}

// A consumer that takes 25 s for what comes every 10 s: by the overlap policy the due times that come meanwhile are dropped, the
// newest waits, or each is a timer of its own.
func TestOverlaps(t *testing.T) {
	t.Parallel()
	for overlap, want := range map[uint32][]int64{
		// Skip: 0 is out until 25, so 30 is the next; then 60.
		overlapSkip: {0, 30, 60, 90},
		// One: 20 waits until 25, 50 is the newest at 50.
		overlapOne: {0, 20, 50, 70, 100},
		// Allow: one consumer for each.
		overlapAllow: {0, 10, 20, 30, 40, 50, 60, 70, 80, 90, 100},
	} {
		t.Run(fmt.Sprint(overlap), func(t *testing.T) {
			t.Parallel()
			inBubble(t, 1, func(t *testing.T, c *cluster) {
				l, begun := newLedger(), time.Now()
				c.sink.answer(func(d executor.Delivery) {
					l.give(d)
					time.Sleep(25 * time.Second)
					if r := c.propose(completeOf(d))[0]; r.Code != raftfsm.OK && time.Since(begun) < 106*time.Second {
						t.Errorf("ack: %+v", r)
					}
				})
				c.leader()
				start := time.Now().UnixMilli() + 1000
				cmd := repeat("r", &logv1.Repeat{EveryMs: 10_000, StartMs: start, Overlap: overlap})
				cmd.GetSchedule().Retry.LeaseMs = 60_000
				c.propose(cmd)
				time.Sleep(106 * time.Second)
				c.propose(cancelOf("r"))
				c.settleAll(t)
				c.sink.quiet()
				var got []int64
				for _, tick := range l.ticks("r") {
					got = append(got, (tick-start)/1000)
				}
				if !slices.Equal(got, want) {
					t.Errorf("got %v, want %v", got, want)
				}
			})
		})
	}
}

// A period that is shorter than a commit takes: by its policies what comes meanwhile is left out, caught up with, or made into
// timers, and it goes on as fast as commits do.
func TestPeriodShorterThanACommit(t *testing.T) {
	t.Parallel()
	inBubble(t, 1, func(t *testing.T, c *cluster) {
		l := newLedger()
		c.sink.answer(func(d executor.Delivery) {
			l.give(d)
			if c.propose(completeOf(d))[0].Code == raftfsm.OK {
				l.ack(d)
			}
		})
		leader := c.leader()
		slow := func() { time.Sleep(40 * time.Millisecond) }
		leader.log.slow.Store(&slow)
		start := time.Now().UnixMilli() + 1000
		c.propose(
			repeat("a", &logv1.Repeat{EveryMs: 3, StartMs: start}),
			repeat("b", &logv1.Repeat{EveryMs: 10, StartMs: start, Overlap: overlapOne, Misfire: misfireNone}),
			repeat("c", &logv1.Repeat{EveryMs: 10, StartMs: start, Overlap: overlapAllow, Misfire: misfireAll, MaxCatchUp: 1000}),
		)
		time.Sleep(11 * time.Second)
		c.propose(cancelOf("a"), cancelOf("b"), cancelOf("c"))
		leader.log.slow.Store(nil)
		c.settleAll(t)
		c.sink.quiet()
		for id, least := range map[string]int{"a": 30, "b": 30, "c": 950} {
			ticks := l.ticks(id)
			if len(ticks) < least {
				t.Errorf("%s was fired %d times in 10 s", id, len(ticks))
			}
			for i, tick := range ticks {
				if id == "c" && tick != start+int64(i)*10 {
					t.Fatalf("due time %d of c is %d after the start", i, tick-start)
				}
			}
		}
	})
}

// Repeats that make timers of their due times do so up to the limit of the shard, and go on by their misfire policy when there is room.
func TestSpawnsKeepTheLimit(t *testing.T) {
	t.Parallel()
	inBubble(t, 1, func(t *testing.T, c *cluster) {
		c.sink.close("q")
		s := c.leader().shard
		c.propose(repeat("r", &logv1.Repeat{EveryMs: 1000, Overlap: overlapAllow}))
		time.Sleep(time.Minute)
		if n := s.Status().Pending; n != 20 {
			t.Errorf("%d timers, the limit is 20", n)
		}
		if state := c.stateOf(t, "r"); state.State != raftfsm.Pending {
			t.Errorf("the repeat: %+v", state)
		}
		c.sink.answer(func(d executor.Delivery) { c.propose(completeOf(d)) })
		c.sink.open("q")
		time.Sleep(5500 * time.Millisecond)
		if n := len(c.sink.all()); n < 24 || n > 27 || s.Status().Pending > 3 {
			t.Errorf("%d were fired, %d are pending", n, s.Status().Pending)
		}
	}, func(c *cluster) { c.config = func(c *Config) { c.MaxPending = 20 } })
}

// A fixed delay counts from the ack.
func TestFixedDelay(t *testing.T) {
	t.Parallel()
	inBubble(t, 3, func(t *testing.T, c *cluster) {
		var mu sync.Mutex
		var acked []time.Time
		c.sink.answer(func(d executor.Delivery) {
			time.Sleep(1500 * time.Millisecond)
			c.propose(completeOf(d))
			mu.Lock()
			defer mu.Unlock()
			acked = append(acked, time.Now())
		})
		c.leader()
		cmd := repeat("r", &logv1.Repeat{EveryMs: 5000, FixedDelay: true, MaxCount: 5})
		cmd.GetSchedule().Retry.LeaseMs = 10_000
		first := c.propose(cmd)[0]
		c.settleAll(t)
		c.sink.quiet()
		got := c.sink.all()
		if len(got) != 5 || len(acked) != 5 || first.Code != raftfsm.OK {
			t.Fatalf("%d deliveries, %d acks, after %+v", len(got), len(acked), first)
		}
		for i, d := range got[1:] {
			if wait := d.at.Sub(acked[i]); wait < 5*time.Second || wait > 5010*time.Millisecond {
				t.Errorf("delivery %d came %v after the ack", i+1, wait)
			}
		}
	})
}

// A due time whose delivery fails is tried again although others have come meanwhile. After its last attempt it is a dead letter and
// the repeat goes on; redriven, it is a timer of its own.
func TestFailuresOfARepeat(t *testing.T) {
	t.Parallel()
	inBubble(t, 3, func(t *testing.T, c *cluster) {
		var start int64
		c.sink.answer(func(d executor.Delivery) {
			if _, tick := tickOf(d); tick == start && d.Record.Extra.GetRepeat() != nil {
				cmd := retryOf(d, "not now")
				cmd.GetRetry().HasDelay, cmd.GetRetry().DelayMs = true, 4500
				c.propose(cmd)
				return
			}
			c.propose(completeOf(d))
		})
		c.leader()
		start = time.Now().UnixMilli() + 1000
		cmd := repeat("r", &logv1.Repeat{EveryMs: 2000, StartMs: start})
		cmd.GetSchedule().Retry.MaxAttempts = 3
		c.propose(cmd)
		time.Sleep(14500 * time.Millisecond)
		var got []string
		for _, d := range c.sink.all() {
			_, tick := tickOf(d.Delivery)
			got = append(got, fmt.Sprintf("%d/%d", (tick-start)/1000, d.Token.Attempt))
		}
		if want := []string{"0/0", "0/1", "0/2", "10/0", "12/0"}; !slices.Equal(got, want) {
			t.Errorf("got %v, want %v", got, want)
		}
		letters := c.letters(t)
		if len(letters) != 1 || letters[0].Record.Extra.GetDead().GetId() != "r" || letters[0].Record.Due != start {
			t.Fatalf("letters: %+v", letters)
		}
		c.propose(&raftfsm.Command{Kind: &logv1.Command_Redrive{Redrive: &logv1.Redrive{Namespace: "default", Keys: []string{letters[0].Record.ID}}}})
		time.Sleep(100 * time.Millisecond)
		if last := c.sink.all()[len(got)]; last.Record.ID != fmt.Sprintf("{r}@%d", start) {
			t.Errorf("redriven as %+v", last.Record)
		}
		c.inStep()
	})
}
