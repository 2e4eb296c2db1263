package webhook

import (
	"context"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/carillon-timers/carillon/shard/executor"
)

// counts is what a Poster counts.
type counts struct {
	took                            [outcomes]executor.Histogram
	settled, stale, unsettled, lost atomic.Uint64
	panics                          atomic.Uint64
}

func (c *counts) observe(o Outcome, took time.Duration) { c.took[o].Observe(took.Microseconds()) }

// OutcomeStats is how often a post came to an outcome, and how long those took, from the start to the head of the answer.
type OutcomeStats struct {
	Outcome Outcome
	Took    executor.HistogramSnapshot
}

// Stats is what a Poster has done since its start, and what it is at.
type Stats struct {
	// Outcomes are in the order of their numbers.
	Outcomes []OutcomeStats
	// Settled answers are on a majority; Stale ones came too late; Unsettled ones were given up at the end of their leases or
	// at a stop. Lost counts posts of at-most-once timers that failed.
	Settled, Stale, Unsettled, Lost uint64
	Panics                          uint64
	// Hosts are known, Failing ones have not answered three times in a row, Waiting ones wait for others because MaxTotal is
	// reached, Limited ones because of their rate.
	Hosts, Failing, Waiting, Limited int
	// Active deliveries are being posted or settled.
	Active int
}

// Stats counts.
func (p *Poster) Stats() Stats {
	c := &p.counts
	s := Stats{
		Settled: c.settled.Load(), Stale: c.stale.Load(), Unsettled: c.unsettled.Load(), Lost: c.lost.Load(), Panics: c.panics.Load(),
	}
	for o := range outcomes {
		s.Outcomes = append(s.Outcomes, OutcomeStats{o, c.took[o].Snapshot()})
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	s.Hosts, s.Waiting, s.Active = len(p.hosts), len(p.line), p.active
	for _, h := range p.hosts {
		if h.failures >= failingAfter {
			s.Failing++
		}
		if h.alarm {
			s.Limited++
		}
	}
	return s
}

// logEvery is how often a line about one class of failure is written.
const logEvery = 10 * time.Second

// logs writes a line for each class of failure now and then, with how many it stands for.
type logs struct {
	config *Config // set before sharing

	mu      sync.Mutex
	classes [outcomes + 1]logClass // guarded by mu; the last is for what could not be settled
}

type logClass struct {
	at     time.Time
	silent int
}

// due says whether a line is to be written, and how many were not since the last.
func (l *logs) due(class Outcome) (silent int, now bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	c, at := &l.classes[class], l.config.Monotonic()
	if !c.at.IsZero() && at.Sub(c.at) < logEvery {
		c.silent++
		return 0, false
	}
	silent, c.at, c.silent = c.silent, at, 0
	return silent, true
}

// failed tells of a post that failed. Of the URL it says the host alone: the rest may hold a secret.
func (l *logs) failed(j *job, v verdict, took time.Duration) {
	silent, now := l.due(v.outcome)
	if !now {
		return
	}
	level := slog.LevelWarn
	if v.outcome == Returned {
		level = slog.LevelInfo
	}
	l.config.Logger.Log(context.Background(), level, "webhook failed", "outcome", v.outcome.String(), "host", j.host.name, "namespace", j.Record.Namespace,
		"timer", j.Record.ID, "attempt", j.Token.Attempt+1, "took", took, "error", cleanText(v.text), "more_since_last_line", silent)
}

func (l *logs) unsettled(err error) {
	if silent, now := l.due(outcomes); now {
		l.config.Logger.Warn("a webhook's outcome could not be settled: its lease ends, and it is posted again", "error", err, "more_since_last_line", silent)
	}
}
