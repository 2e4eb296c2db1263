package shard

import (
	"errors"
	"log/slog"
	"sync"

	logv1 "github.com/carillon-timers/carillon/proto/carillonlog/v1"
	"github.com/carillon-timers/carillon/raftfsm"
	"github.com/carillon-timers/carillon/shard/recur"
)

// repeats computes the due times of repeats for the table (raftfsm.Repeats), over package recur. The table asks while it holds its
// lock: one question costs about 50 ns if the due time that has come is the only one, and some 0.1 ms to find the newest 100 of
// a long outage.
type repeats struct {
	log *slog.Logger // set before sharing

	mu sync.Mutex
	// young and old hold the parsed cron rules; when young is full it becomes old, so a rule that is in use is never parsed
	// twice in a row. Guarded by mu.
	young, old map[ruleText]*recur.Rule
}

type ruleText struct{ cron, zone string }

// rulesKept bounds the parsed rules: twice as many, of some 200 bytes each, are kept.
const rulesKept = 4096

func newRepeats(log *slog.Logger) *repeats {
	return &repeats{log: log, young: make(map[ruleText]*recur.Rule)}
}

// Next implements raftfsm.Repeats. A fixed delay counts from the instant, if it is not before the start.
func (c *repeats) Next(r *logv1.Repeat, after int64) (int64, bool) {
	s, ok := c.series(r)
	switch {
	case !ok:
		return 0, false
	case r.FixedDelay && after >= s.Start:
		s.Start = min(after, recur.MaxMillis-r.EveryMs)
	}
	return s.Next(after)
}

// Turn implements raftfsm.Repeats.
func (c *repeats) Turn(r *logv1.Repeat, now int64) raftfsm.Turn {
	s, ok := c.series(r)
	if !ok {
		return raftfsm.Turn{Ended: true}
	}
	if r.FixedDelay && r.TickMs <= now {
		// Nothing is due between, since the next due time counts from the answer to this one.
		turn := raftfsm.Turn{}
		if limit := latenessOf(r); limit <= 0 || now-r.TickMs <= limit {
			turn.Fire = []int64{r.TickMs}
		}
		turn.Next, ok = c.Next(r, now)
		turn.Ended = !ok
		return turn
	}
	turn := s.CatchUp(policyOf(r), recur.Armed{Due: r.TickMs, Now: now})
	return raftfsm.Turn{Fire: turn.Fire, Next: turn.Next, Ended: turn.Ended}
}

// Values of Repeat.misfire, as of carillon.v1.Misfire; what is none of them is ONE.
const (
	misfireNone = 2
	misfireAll  = 3
)

// latenessOf is how late a due time may be taken up, in milliseconds; 0 means any lateness.
func latenessOf(r *logv1.Repeat) int64 {
	if r.MaxLateMs <= 0 && r.Misfire == misfireNone {
		return recur.OnTimeMillis
	}
	return r.MaxLateMs
}

func policyOf(r *logv1.Repeat) recur.Policy {
	p := recur.Policy{Max: int(r.MaxCatchUp), MaxLateMillis: r.MaxLateMs}
	switch r.Misfire {
	case misfireNone:
		p.Misfire = recur.MisfireNone
	case misfireAll:
		p.Misfire = recur.MisfireAll
	}
	return p
}

// series is the repeat as recur knows it; false if there is no such rule.
func (c *repeats) series(r *logv1.Repeat) (recur.Series, bool) {
	s := recur.Series{Start: r.StartMs, End: recur.MaxMillis}
	if r.HasEnd {
		s.End = r.EndMs
	}
	if r.Cron == "" {
		rule, err := recur.Every(r.EveryMs, "")
		s.Rule = rule
		return s, err == nil
	}
	s.Rule = c.rule(ruleText{r.Cron, r.Zone})
	return s, s.Rule != nil
}

// rule returns a parsed cron rule, nil if it is none.
func (c *repeats) rule(text ruleText) *recur.Rule {
	c.mu.Lock()
	defer c.mu.Unlock()
	rule, ok := c.young[text]
	if ok {
		return rule
	}
	if rule, ok = c.old[text]; !ok {
		rule = c.parse(text)
	}
	if len(c.young) >= rulesKept {
		c.old, c.young = c.young, make(map[ruleText]*recur.Rule)
	}
	c.young[text] = rule
	return rule
}

// parse reads a rule. A time zone that this binary does not know was accepted by one with newer time zones: the timer goes on by UTC,
// until a newer binary leads, instead of ending.
func (c *repeats) parse(text ruleText) *recur.Rule {
	rule, err := recur.Cron(text.cron, text.zone)
	var refused *recur.Error
	if errors.As(err, &refused) && refused.Field == "zone" {
		c.log.Error("shard: a repeat has a time zone that this version does not know; it is taken for UTC until a newer version leads",
			"zone", text.zone, "embedded", recur.ZoneVersion())
		rule, err = recur.Cron(text.cron, "")
	}
	if err != nil {
		c.log.Error("shard: a repeat has a cron expression that this version cannot read", "error", err)
		return nil
	}
	return rule
}
