package main

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"
)

// Violation is a broken promise, with the timer that shows it.
type Violation struct {
	Promise, ID, Text string
	Story             []Event
}

// String is the violation and the timer's story.
func (v Violation) String() string {
	var b strings.Builder
	fmt.Fprintf(&b, "%s: timer %s: %s\n", v.Promise, v.ID, v.Text)
	for _, e := range v.Story {
		fmt.Fprintf(&b, "    %s\n", e)
	}
	return b.String()
}

// Report is the judgement of a run.
type Report struct {
	Scheduled, Unknown, Refused     int
	Cancelled, Firing, Fired        int
	Deliveries, Nacks, Duplicates   int
	LatenessP50, LatenessP99, Worst time.Duration
	WorstID                         string
	// Ticks are due times of repeats that were acked, Letters dead letters, Onces at-most-once timers and Unrung those of them that never arrived.
	Ticks, Letters, Onces, Unrung int
	Violations                    []Violation
}

// Judge checks the history of a run that has healed and drained:
//
//	P2  no delivery starts before its due time, by the leader's clock and by ours
//	P3  what was accepted and not cancelled was delivered until it was acked
//	P4  after CANCELLED nothing is handed out; what was CANCELLED was not out; what is FIRED was acked
//	P6  the fence of one timer only grows
//	    what was refused is never delivered, and a due time is one that was asked for
//	P10 a timer that is at most once arrives once or not at all
//	    what sorts.go says of repeats and dead letters
//
// Deliveries beyond the first that follow neither a nack nor a lease without an answer are counted as duplicates; at-least-once
// allows them.
func Judge(events []Event) Report {
	stories := map[string][]Event{}
	var ids []string
	for _, e := range events {
		if e.Kind == Fault {
			continue
		}
		id := parent(e.ID)
		if stories[id] == nil {
			ids = append(ids, id)
		}
		stories[id] = append(stories[id], e)
	}
	var r Report
	var lateness []time.Duration
	for _, id := range ids {
		s := newStory(id, stories[id])
		s.count(&r)
		if s.schedule.Sort != Plain {
			s.judgeSort(&r)
			continue
		}
		s.judge(&r)
		if late, ok := s.lateness(); ok {
			lateness = append(lateness, late)
			if late > r.Worst {
				r.Worst, r.WorstID = late, id
			}
		}
	}
	slices.Sort(lateness)
	if n := len(lateness); n > 0 {
		r.LatenessP50, r.LatenessP99 = lateness[n/2], lateness[n*99/100]
	}
	return r
}

// story is all that happened to one timer, in order of time.
type story struct {
	id         string
	all        []Event
	schedule   Event
	moves      []Event // reschedules that did not fail
	cancel     Event   // zero if there was none
	deliveries []Event
	unanswered int // deliveries that were nacked or not answered
	letters    []Event
	redriven   bool
}

func newStory(id string, events []Event) *story {
	slices.SortStableFunc(events, func(a, b Event) int { return cmp.Compare(a.Start, b.Start) })
	s := &story{id: id, all: events}
	for _, e := range events {
		switch e.Kind {
		case Schedule:
			s.schedule = e
		case Reschedule:
			if e.Outcome != Failed {
				s.moves = append(s.moves, e)
			}
		case Cancel:
			s.cancel = e
		case Letter:
			s.letters = append(s.letters, e)
		case Redrive:
			s.redriven = s.redriven || e.Outcome == OK
		case Deliver:
			s.deliveries = append(s.deliveries, e)
			if !e.acked() {
				s.unanswered++
			}
		}
	}
	slices.SortStableFunc(s.deliveries, func(a, b Event) int {
		return cmp.Or(cmp.Compare(a.HandedOut, b.HandedOut), cmp.Compare(a.Epoch, b.Epoch), cmp.Compare(a.Start, b.Start))
	})
	return s
}

func (s *story) count(r *Report) {
	switch s.schedule.Outcome {
	case OK:
		r.Scheduled++
	case Unknown:
		r.Unknown++
	default:
		r.Refused++
	}
	switch s.cancel.Answer {
	case "cancelled":
		r.Cancelled++
	case "firing":
		r.Firing++
	case "fired":
		r.Fired++
	}
	r.Deliveries += len(s.deliveries)
	r.Nacks += s.unanswered
	if extra := len(s.deliveries) - 1 - s.unanswered; extra > 0 && s.schedule.Sort == Plain {
		r.Duplicates += extra
	}
}

func (s *story) judge(r *Report) {
	fail := func(promise, format string, args ...any) {
		r.Violations = append(r.Violations, Violation{promise, s.id, fmt.Sprintf(format, args...), s.all})
	}
	if s.schedule.Outcome != OK && s.schedule.Outcome != Unknown && len(s.deliveries) > 0 {
		fail("P3 durable", "was refused and is delivered all the same")
	}
	if s.schedule.Outcome == OK && s.mustRing() {
		switch {
		case len(s.deliveries) == 0:
			fail("P3 at least once", "was accepted and never delivered")
		case !slices.ContainsFunc(s.deliveries, Event.acked):
			fail("P3 at least once", "was not delivered again until it was acked")
		}
	}
	s.judgeTimes(fail)
	s.judgeCancel(fail)
	s.judgeFence(fail)
}

// mustRing is false if a cancel took the timer away, or may have.
func (s *story) mustRing() bool {
	if s.cancel.Kind == "" || s.cancel.Outcome == Failed {
		return true
	}
	return s.cancel.Outcome == OK && (s.cancel.Answer == "fired" || s.cancel.Answer == "not found")
}

type failFunc func(promise, format string, args ...any)

func (s *story) judgeTimes(fail failFunc) {
	for _, d := range s.deliveries {
		if d.HandedOut < d.Due {
			fail("P2 never early", "handed out %d ms before it was due", d.Due-d.HandedOut)
		}
		if received := d.Start / int64(time.Millisecond); received < d.Due {
			fail("P2 never early", "received %d ms before it was due", d.Due-received)
		}
		if !s.wasAsked(d.Due) {
			fail("P5 one timer, one state", "rang for %s, which nobody asked for", clock(d.Due))
		}
		for _, m := range s.moves {
			if m.Outcome == OK && d.HandedOut > m.End/int64(time.Millisecond)+1 && d.Due != m.Due && !s.movedAfter(m) {
				fail("P5 one timer, one state", "rang for %s after it was moved to %s", clock(d.Due), clock(m.Due))
			}
		}
	}
}

// wasAsked tells whether some call asked for this due time; a call of unknown outcome may have asked for any.
func (s *story) wasAsked(due int64) bool {
	if s.schedule.Outcome == Unknown || s.schedule.Due == due {
		return true
	}
	return slices.ContainsFunc(s.moves, func(m Event) bool { return m.Outcome == Unknown || m.Due == due })
}

func (s *story) movedAfter(m Event) bool {
	return slices.ContainsFunc(s.moves, func(o Event) bool { return o.End > m.Start && (o.Start != m.Start || o.End != m.End) })
}

func (s *story) judgeCancel(fail failFunc) {
	if s.cancel.Outcome != OK {
		return
	}
	switch s.cancel.Answer {
	case "cancelled":
		for _, d := range s.deliveries {
			if d.HandedOut > s.cancel.End/int64(time.Millisecond) {
				fail("P4 cancel is final", "handed out after CANCELLED was answered")
			} else if s.unanswered == 0 {
				fail("P4 cancel is final", "answered CANCELLED though it had been handed out")
			}
		}
	case "fired":
		if !slices.ContainsFunc(s.deliveries, Event.acked) {
			fail("P4 cancel is final", "answered FIRED though nobody acked it")
		}
	case "not found":
		if s.schedule.Outcome == OK && s.cancel.Start > s.schedule.End {
			fail("P1 durable", "was accepted, then not found")
		}
	}
	for _, d := range s.deliveries {
		if s.cancel.Answer != "cancelled" && d.HandedOut > s.cancel.End/int64(time.Millisecond) {
			fail("P4 cancel is final", "handed out after %s was answered", strings.ToUpper(s.cancel.Answer))
		}
	}
}

func (s *story) judgeFence(fail failFunc) {
	for i := 1; i < len(s.deliveries); i++ {
		a, b := s.deliveries[i-1], s.deliveries[i]
		if order := cmp.Or(cmp.Compare(a.Epoch, b.Epoch), cmp.Compare(a.Revision, b.Revision), cmp.Compare(a.Attempt, b.Attempt)); order >= 0 {
			fail("P6 fenced", "the fence did not grow from (%d, %d, %d) to (%d, %d, %d)", a.Epoch, a.Revision, a.Attempt, b.Epoch, b.Revision, b.Attempt)
		}
	}
}

// lateness is how long after its due time the timer first reached a worker; only of timers that were due after they
// were accepted.
func (s *story) lateness() (time.Duration, bool) {
	if len(s.deliveries) == 0 {
		return 0, false
	}
	first := s.deliveries[0]
	for _, d := range s.deliveries {
		if d.Start < first.Start {
			first = d
		}
	}
	due := max(first.Due*int64(time.Millisecond), s.schedule.Start)
	for _, m := range s.moves {
		due = max(due, min(m.End, first.Start))
	}
	return time.Duration(first.Start - due), true
}
