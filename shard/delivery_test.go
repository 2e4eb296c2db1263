package shard

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"sync/atomic"
	"testing"
	"time"

	logv1 "github.com/carillon-timers/carillon/proto/carillonlog/v1"
	"github.com/carillon-timers/carillon/raftfsm"
	"github.com/carillon-timers/carillon/shard/executor"
)

func with(cmd *raftfsm.Command, change func(*logv1.Schedule)) *raftfsm.Command {
	change(cmd.GetSchedule())
	return cmd
}

func pauseOf(id string, freeze bool) *raftfsm.Command {
	return &raftfsm.Command{Kind: &logv1.Command_Pause{Pause: &logv1.Pause{Id: id, Freeze: freeze}}}
}

func resumeOf(id string) *raftfsm.Command {
	return &raftfsm.Command{Kind: &logv1.Command_Resume{Resume: &logv1.Resume{Id: id}}}
}

// stateOf reads a timer from the leader.
func (c *cluster) stateOf(t *testing.T, id string) raftfsm.Status {
	t.Helper()
	status, err := c.leader().shard.Get(t.Context(), "", id)
	if err != nil {
		t.Fatalf("get %s: %v", id, err)
	}
	return status
}

// letters reads all dead letters.
func (c *cluster) letters(t *testing.T) []raftfsm.Status {
	t.Helper()
	page, err := c.leader().shard.List(t.Context(), raftfsm.ListQuery{Dead: true})
	if err != nil || page.More {
		t.Fatalf("list of dead letters: more %t, %v", page.More, err)
	}
	return page.Timers
}

// Each timer that fails three times becomes one dead letter, whatever the leadership does and whichever answers get lost; all of
// them are redriven in one call, and fire again.
func TestDeadLettersAreExact(t *testing.T) {
	t.Parallel()
	inBubble(t, 3, func(t *testing.T, c *cluster) {
		const timers = 200
		c.sink.answer(func(d executor.Delivery) {
			if c.sink.lose() {
				return // the lease lapses
			}
			_, _, _ = c.try(time.Minute, retryOf(d, "cannot"))
		})
		c.leader()
		rnd := rand.New(rand.NewPCG(1, 3))
		for i := range timers {
			c.propose(with(after(fmt.Sprint(i), time.Duration(rnd.IntN(30_000))*time.Millisecond), func(s *logv1.Schedule) {
				s.Retry.MaxAttempts, s.Retry.LeaseMs = 3, 1000
			}))
		}
		c.unruly(t, rnd, 40*time.Second)
		c.settleAll(t)
		seen := map[string]bool{}
		for _, letter := range c.letters(t) {
			dead := letter.Record.Extra.GetDead()
			if seen[dead.GetId()] || dead.GetAttempts() != 3 || len(letter.Record.Extra.Failures) != 3 || letter.State != raftfsm.Dead {
				t.Errorf("seen before: %t: %+v", seen[dead.GetId()], letter.Record)
			}
			seen[dead.GetId()] = true
			attempt := uint32(0)
			for _, d := range c.sink.all() {
				if d.Record.ID == dead.GetId() {
					attempt = max(attempt, d.Token.Attempt)
				}
			}
			if attempt != 2 {
				t.Errorf("%s died after attempt %d", dead.GetId(), attempt)
			}
		}
		if status := c.leader().shard.Status().State; len(seen) != timers || status.Dead != timers {
			t.Errorf("%d of %d are dead: %+v", len(seen), timers, status)
		}
		c.sink.quiet()
		before := len(c.sink.all())
		r := c.propose(&raftfsm.Command{Kind: &logv1.Command_Redrive{Redrive: &logv1.Redrive{Namespace: "default", Limit: 1000}}})[0]
		if r.Code != raftfsm.OK || len(r.Items) != timers || r.Answer != 0 {
			t.Fatalf("redrive: %d items, %+v", len(r.Items), r.Code)
		}
		time.Sleep(500 * time.Millisecond)
		if n := len(c.sink.all()) - before; n != timers || len(c.letters(t)) != 0 {
			t.Errorf("%d of %d were fired after the redrive, %d letters are left", n, timers, len(c.letters(t)))
		}
		c.inStep()
	}, func(c *cluster) { c.sink.rnd = rand.New(rand.NewPCG(4, 5)) })
}

// An at-most-once timer is never handed out twice, under any flip, cut or restart, and is gone in the end; of a repeat no due time
// is. While the leadership is handed over in peace none is lost.
func TestAtMostOnceIsNeverTwice(t *testing.T) {
	t.Parallel()
	t.Run("violence", func(t *testing.T) {
		t.Parallel()
		inBubble(t, 3, func(t *testing.T, c *cluster) {
			rnd := c.scheduleOnce()
			c.unruly(t, rnd, 45*time.Second)
			if lost := c.countOnce(t); lost > onceTimers/5 {
				t.Errorf("%d of %d were handed out to nobody", lost, onceTimers)
			}
		})
	})
	t.Run("peace", func(t *testing.T) {
		t.Parallel()
		inBubble(t, 3, func(t *testing.T, c *cluster) {
			c.scheduleOnce()
			for range 30 {
				_ = c.leader().shard.Transfer(t.Context(), "")
				time.Sleep(1500 * time.Millisecond)
			}
			if lost := c.countOnce(t); lost > 0 {
				t.Errorf("%d were handed out to nobody", lost)
			}
		})
	})
}

// onceTimers is how many at-most-once timers a story has: 100 of them are due times of one repeat.
const onceTimers = 400

func (c *cluster) scheduleOnce() *rand.Rand {
	c.leader()
	rnd := rand.New(rand.NewPCG(6, 7))
	for i := range onceTimers - 100 {
		c.propose(with(after(fmt.Sprint(i), time.Duration(rnd.IntN(40_000))*time.Millisecond), func(s *logv1.Schedule) {
			s.Extra = &logv1.Extra{AtMostOnce: true}
		}))
	}
	every := repeat("r", &logv1.Repeat{EveryMs: 300, MaxCount: 100})
	every.GetSchedule().Extra.AtMostOnce = true
	c.propose(every)
	return rnd
}

// countOnce fails if one was handed out twice, and returns how many were not at all.
func (c *cluster) countOnce(t *testing.T) (lost int) {
	t.Helper()
	c.settleAll(t)
	time.Sleep(time.Second)
	seen := map[string]int{}
	for _, d := range c.sink.all() {
		id, tick := tickOf(d.Delivery)
		if d.Record.Extra.GetRepeat() != nil {
			id = fmt.Sprint(id, "@", tick)
		}
		if seen[id]++; seen[id] > 1 {
			t.Errorf("%s was handed out %d times, at last with %+v", id, seen[id], d.Token)
		}
	}
	if fired := c.stateOf(t, "r"); fired.State != raftfsm.Fired || fired.Fired != 100 {
		t.Errorf("the repeat: %+v", fired)
	}
	c.inStep()
	return onceTimers - len(seen)
}

// Without a consumer a timer expires on time, counts no attempt, and costs the others nothing; one that fails expires when its next
// attempt would come too late; what was acked in time has fired.
func TestExpiry(t *testing.T) {
	t.Parallel()
	inBubble(t, 3, func(t *testing.T, c *cluster) {
		c.sink.close("q")
		c.sink.answer(func(d executor.Delivery) {
			if d.Record.ID == "acked" {
				c.propose(completeOf(d))
			}
		})
		c.leader()
		start := time.Now()
		expiring := func(id, queue string, expiry time.Duration) *raftfsm.Command {
			return with(schedule(id, start.Add(time.Second)), func(s *logv1.Schedule) {
				s.Queue, s.Extra = queue, &logv1.Extra{ExpiryMs: start.Add(expiry).UnixMilli()}
				s.Retry.LeaseMs, s.Retry.InitialBackoffMs, s.Retry.MaxBackoffMs = 1000, 60_000, 60_000
			})
		}
		c.propose(expiring("waits", "q", 5*time.Second), expiring("acked", "other", 5*time.Second), expiring("lapses", "other", 30*time.Second))
		time.Sleep(time.Until(start.Add(4990 * time.Millisecond)))
		if s := c.stateOf(t, "waits"); s.State != raftfsm.Pending || s.Record.Attempt != 0 {
			t.Errorf("before its expiry: %+v", s)
		}
		if s := c.stateOf(t, "lapses"); s.State != raftfsm.Expired {
			t.Errorf("with a next attempt after its expiry: %+v", s)
		}
		time.Sleep(20 * time.Millisecond)
		if s := c.stateOf(t, "waits"); s.State != raftfsm.Expired || s.FinishedAt < start.Add(5*time.Second).UnixMilli() {
			t.Errorf("after its expiry: %+v", s)
		}
		if s := c.stateOf(t, "acked"); s.State != raftfsm.Fired {
			t.Errorf("acked in time: %+v", s)
		}
		c.sink.open("q")
		time.Sleep(time.Minute)
		if n := len(c.sink.all()); n != 2 {
			t.Errorf("%d deliveries, want those of acked and lapses", n)
		}
		c.inStep()
	})
}

// Timers that expire while leaders come and go are never handed out later than that, and all end.
func TestExpiryUnderFlips(t *testing.T) {
	t.Parallel()
	inBubble(t, 3, func(t *testing.T, c *cluster) {
		c.leader()
		rnd := rand.New(rand.NewPCG(8, 9))
		expiry := map[string]int64{}
		for i := range 200 {
			due := time.Now().Add(time.Duration(rnd.IntN(30_000)) * time.Millisecond)
			id := fmt.Sprint(i)
			expiry[id] = due.UnixMilli() + 1 + rnd.Int64N(3000)
			c.propose(with(schedule(id, due), func(s *logv1.Schedule) {
				s.Extra, s.Retry.LeaseMs = &logv1.Extra{ExpiryMs: expiry[id]}, 300
			}))
		}
		c.unruly(t, rnd, 35*time.Second)
		c.settleAll(t)
		for _, d := range c.sink.all() {
			if at := d.at.UnixMilli(); at >= expiry[d.Record.ID] {
				t.Errorf("%s was handed out %d ms after its expiry", d.Record.ID, at-expiry[d.Record.ID])
			}
		}
		c.inStep()
	})
}

// Pause keeps a timer from firing, also over a failover; resumed it fires at its time, at once if that has passed, or, frozen, when
// the time that was left is over.
func TestPause(t *testing.T) {
	t.Parallel()
	inBubble(t, 3, func(t *testing.T, c *cluster) {
		old := c.leader()
		start := time.Now()
		c.propose(after("past", 10*time.Second), after("ahead", 60*time.Second), after("frozen", 10*time.Second))
		time.Sleep(4 * time.Second)
		paused := time.Now()
		c.propose(pauseOf("past", false), pauseOf("ahead", false), pauseOf("frozen", true), pauseOf("frozen", true))
		time.Sleep(20 * time.Second)
		_ = old.shard.Transfer(t.Context(), "")
		time.Sleep(6 * time.Second)
		for _, id := range []string{"past", "ahead", "frozen"} {
			if s := c.stateOf(t, id); s.State != raftfsm.Paused {
				t.Errorf("%s: %+v", id, s)
			}
		}
		if s := c.leader().shard.Status(); s.State.Paused != 3 || s.Pending != 0 || s.Overdue != 0 {
			t.Errorf("%+v", s.State)
		}
		resumed := time.Now()
		for _, r := range c.propose(resumeOf("past"), resumeOf("ahead"), resumeOf("frozen"), resumeOf("frozen")) {
			if err := ErrOf(r); err != nil && !errors.Is(err, ErrNotPaused) {
				t.Errorf("resume: %v", err)
			}
		}
		time.Sleep(60 * time.Second)
		at := map[string]time.Time{}
		for _, d := range c.sink.all() {
			if d.Token.Attempt == 0 {
				at[d.Record.ID] = d.at
			}
		}
		left := start.Add(10 * time.Second).Sub(paused)
		for id, want := range map[string]time.Time{"past": resumed, "ahead": start.Add(60 * time.Second), "frozen": resumed.Add(left)} {
			if late := at[id].Sub(want); late < -50*time.Millisecond || late > 50*time.Millisecond {
				t.Errorf("%s came %v after it should", id, late)
			}
		}
		c.inStep()
	})
}

// A delivery that is out when its timer is paused may still be answered: its ack ends the timer, or moves the repeat, which stays
// paused; its nack counts; unanswered, the timer fires again when it is resumed.
func TestPauseDuringADelivery(t *testing.T) {
	t.Parallel()
	inBubble(t, 3, func(t *testing.T, c *cluster) {
		c.leader()
		c.propose(after("acked", time.Second), after("nacked", time.Second), after("silent", time.Second),
			repeat("repeat", &logv1.Repeat{EveryMs: 1000}))
		for c.leader(); len(c.sink.all()) < 4; {
			time.Sleep(10 * time.Millisecond)
		}
		out := map[string]executor.Delivery{}
		for _, d := range c.sink.all() {
			out[d.Record.ID] = d.Delivery
			if r := c.propose(pauseOf(d.Record.ID, false))[0]; r.Code != raftfsm.OK {
				t.Errorf("pause: %+v", r)
			}
		}
		time.Sleep(20 * time.Second) // longer than the leases
		for id, cmd := range map[string]*raftfsm.Command{
			"acked": completeOf(out["acked"]), "nacked": retryOf(out["nacked"], "busy"), "repeat": completeOf(out["repeat"]),
		} {
			if r := c.propose(cmd)[0]; r.Code != raftfsm.OK {
				t.Errorf("answer of %s: %+v", id, r)
			}
		}
		if again := c.propose(completeOf(out["repeat"]))[0]; again.Code != raftfsm.StaleToken {
			t.Errorf("a second ack: %+v", again)
		}
		if s := c.stateOf(t, "acked"); s.State != raftfsm.Fired {
			t.Errorf("acked: %+v", s)
		}
		if s := c.stateOf(t, "nacked"); s.State != raftfsm.Paused || s.Record.Attempt != 1 || s.Record.LastError != "busy" {
			t.Errorf("nacked: %+v, %+v", s, s.Record)
		}
		if s := c.stateOf(t, "repeat"); s.State != raftfsm.Paused || s.Record.Extra.GetRepeat().GetFired() != 1 {
			t.Errorf("repeat: %+v, %+v", s, s.Record)
		}
		time.Sleep(20 * time.Second)
		if n := len(c.sink.all()); n != 4 {
			t.Errorf("%d deliveries while all are paused", n)
		}
		c.propose(resumeOf("nacked"), resumeOf("silent"), resumeOf("repeat"))
		time.Sleep(500 * time.Millisecond)
		attempts := map[string]uint32{}
		for _, d := range c.sink.all()[4:] {
			attempts[d.Record.ID] = d.Token.Attempt
			if compareTokens(out[d.Record.ID].Token, d.Token) >= 0 {
				t.Errorf("token %+v after %+v", d.Token, out[d.Record.ID].Token)
			}
		}
		if len(attempts) != 3 || attempts["nacked"] != 1 || attempts["silent"] != 0 {
			t.Errorf("after the resume: %v", attempts)
		}
		c.inStep()
	})
}

// A queue without consumers, one whose consumer takes and never answers, and one that answers late delay no other: what is due
// there is handed out on its millisecond.
func TestQueuesDelayNoOther(t *testing.T) {
	t.Parallel()
	inBubble(t, 3, func(t *testing.T, c *cluster) {
		c.sink.close("nobody")
		var late atomic.Int64
		c.sink.answer(func(d executor.Delivery) {
			switch d.Record.Queue {
			case "good":
				late.Store(max(late.Load(), time.Now().UnixMilli()-d.Record.Due))
				c.propose(completeOf(d))
			case "slow":
				time.Sleep(20 * time.Second)
				c.propose(completeOf(d))
			}
		})
		c.leader()
		for batch := range 10 {
			var cmds []*raftfsm.Command
			for i := range 300 {
				cmds = append(cmds, with(after(fmt.Sprintf("%d-%d", batch, i), time.Second), func(s *logv1.Schedule) {
					s.Queue = []string{"nobody", "hung", "slow"}[i%3]
					s.Retry.LeaseMs, s.Retry.InitialBackoffMs = 2000, 1
				}))
			}
			c.propose(cmds...)
		}
		good := 0
		for range 60 {
			for i := range 5 {
				good++
				c.propose(with(after(fmt.Sprint("good", good), time.Duration(500+i)*time.Millisecond), func(s *logv1.Schedule) { s.Queue = "good" }))
			}
			time.Sleep(500 * time.Millisecond)
		}
		time.Sleep(time.Second)
		n := 0
		for _, d := range c.sink.all() {
			if d.Record.Queue == "good" {
				n++
			}
			if d.Record.Queue == "nobody" {
				t.Fatal("the story is broken: somebody takes")
			}
		}
		if n != good || late.Load() > 2 {
			t.Errorf("%d of %d were handed out, up to %d ms late", n, good, late.Load())
		}
		if s := c.stateOf(t, "0-0"); s.Record.Attempt != 0 {
			t.Errorf("an attempt was counted while nobody takes: %+v", s)
		}
		c.sink.quiet()
	})
}

// A consumer that works longer than its lease extends it, again and again, and its ack is good.
func TestExtendLease(t *testing.T) {
	t.Parallel()
	inBubble(t, 3, func(t *testing.T, c *cluster) {
		leader := c.leader()
		c.propose(after("a", time.Second))
		time.Sleep(2 * time.Second)
		d := c.sink.all()[0]
		tokens := []raftfsm.Token{d.Token}
		for range 20 {
			ends, err := leader.shard.ExtendLease(t.Context(), tokens, []int64{3000})
			if err != nil || ends[0] != time.Now().UnixMilli()+3000 {
				t.Fatalf("extend at %d: %v, %v", time.Now().UnixMilli(), ends, err)
			}
			time.Sleep(2900 * time.Millisecond)
		}
		if n := len(c.sink.all()); n != 1 {
			t.Fatalf("%d deliveries", n)
		}
		for _, n := range c.nodes {
			var notLeader *NotLeaderError
			if _, err := n.shard.ExtendLease(t.Context(), tokens, []int64{0}); n != leader && !errors.As(err, &notLeader) {
				t.Errorf("extend at a follower: %v", err)
			}
		}
		if r := c.propose(completeOf(d.Delivery))[0]; r.Code != raftfsm.OK {
			t.Errorf("ack: %+v", r)
		}
		if ends, err := leader.shard.ExtendLease(t.Context(), tokens, []int64{0}); err != nil || ends[0] != 0 {
			t.Errorf("extend after the ack: %v, %v", ends, err)
		}
	})
}
