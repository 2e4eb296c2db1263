package main

import (
	"strings"
	"testing"
	"time"
)

const ms = int64(time.Millisecond)

// at builds an event of timer "t" from milliseconds.
func at(kind Kind, start, end int64, change func(*Event)) Event {
	e := Event{Kind: kind, ID: "t", Start: start * ms, End: end * ms, Outcome: OK}
	if change != nil {
		change(&e)
	}
	return e
}

func due(millis int64) func(*Event) { return func(e *Event) { e.Due = millis } }

func answer(text string) func(*Event) { return func(e *Event) { e.Answer = text } }

// handed is a delivery of a timer that is due at `due`, handed out at `out` and received a millisecond later.
func handed(due, out int64, epoch uint64, change func(*Event)) Event {
	return at(Deliver, out+1, out+2, func(e *Event) {
		e.Due, e.HandedOut, e.Epoch, e.Revision, e.Attempt = due, out, epoch, 7, 1
		if change != nil {
			change(e)
		}
	})
}

// TestJudge shows that each promise is judged: a checker that never goes red proves nothing.
func TestJudge(t *testing.T) {
	t.Parallel()
	scheduled := at(Schedule, 0, 5, due(100))
	unknown := at(Schedule, 0, 5, func(e *Event) { e.Outcome = Unknown })
	for name, c := range map[string]struct {
		events []Event
		want   string // part of the violation; empty means green
	}{
		"delivered once":             {[]Event{scheduled, handed(100, 100, 1, nil)}, ""},
		"lost":                       {[]Event{scheduled}, "never delivered"},
		"unknown and never seen":     {[]Event{unknown}, ""},
		"unknown and delivered":      {[]Event{unknown, handed(100, 100, 1, nil)}, ""},
		"early by the leader":        {[]Event{scheduled, handed(100, 99, 1, nil)}, "handed out 1 ms before"},
		"early by our clock":         {[]Event{scheduled, handed(100, 100, 1, func(e *Event) { e.Start = 98 * ms })}, "received 2 ms before"},
		"left unanswered":            {[]Event{scheduled, handed(100, 100, 1, func(e *Event) { e.Silent = true })}, "until it was acked"},
		"nacked, never again":        {[]Event{scheduled, handed(100, 100, 1, func(e *Event) { e.Nacked = true })}, "until it was acked"},
		"duplicate is allowed":       {[]Event{scheduled, handed(100, 100, 1, nil), handed(100, 300, 2, nil)}, ""},
		"fence stands still":         {[]Event{scheduled, handed(100, 100, 1, nil), handed(100, 300, 1, nil)}, "fence did not grow"},
		"refused and delivered":      {[]Event{at(Schedule, 0, 5, func(e *Event) { e.Outcome, e.Due = Failed, 100 }), handed(100, 100, 1, nil)}, "refused"},
		"cancelled":                  {[]Event{scheduled, at(Cancel, 20, 25, answer("cancelled"))}, ""},
		"cancelled, then rung":       {[]Event{scheduled, at(Cancel, 20, 25, answer("cancelled")), handed(100, 100, 1, nil)}, "after CANCELLED"},
		"cancelled while out":        {[]Event{scheduled, handed(100, 100, 1, nil), at(Cancel, 120, 125, answer("cancelled"))}, "though it had been handed out"},
		"cancelled in a back-off":    {[]Event{scheduled, handed(100, 100, 1, func(e *Event) { e.Nacked = true }), at(Cancel, 120, 125, answer("cancelled"))}, ""},
		"firing":                     {[]Event{scheduled, handed(100, 100, 1, nil), at(Cancel, 101, 105, answer("firing"))}, ""},
		"firing, then rung again":    {[]Event{scheduled, handed(100, 100, 1, nil), at(Cancel, 101, 105, answer("firing")), handed(100, 300, 2, nil)}, "after FIRING"},
		"fired":                      {[]Event{scheduled, handed(100, 100, 1, nil), at(Cancel, 120, 125, answer("fired"))}, ""},
		"fired but nobody acked":     {[]Event{scheduled, handed(100, 100, 1, func(e *Event) { e.Nacked = true }), at(Cancel, 120, 125, answer("fired"))}, "nobody acked"},
		"cancel unknown, never rung": {[]Event{scheduled, at(Cancel, 20, 25, func(e *Event) { e.Outcome = Unknown })}, ""},
		"cancel refused, never rung": {[]Event{scheduled, at(Cancel, 20, 25, func(e *Event) { e.Outcome = Failed })}, "never delivered"},
		"accepted, then not found":   {[]Event{scheduled, at(Cancel, 20, 25, answer("not found"))}, "then not found"},
		"moved":                      {[]Event{scheduled, at(Reschedule, 20, 25, due(200)), handed(200, 200, 1, nil)}, ""},
		"moved, rung at the old due": {[]Event{scheduled, at(Reschedule, 20, 25, due(200)), handed(100, 100, 1, nil)}, "after it was moved"},
		"rung at a due nobody asked": {[]Event{scheduled, handed(90, 100, 1, nil)}, "nobody asked"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			report := Judge(c.events)
			var text strings.Builder
			for _, v := range report.Violations {
				text.WriteString(v.String())
			}
			if c.want == "" && text.Len() > 0 {
				t.Errorf("got violations, want none:\n%s", text.String())
			}
			if !strings.Contains(text.String(), c.want) {
				t.Errorf("got %q, want a violation with %q", text.String(), c.want)
			}
		})
	}
}

func TestJudgeCounts(t *testing.T) {
	t.Parallel()
	report := Judge([]Event{
		at(Schedule, 0, 5, due(100)),
		handed(100, 150, 1, func(e *Event) { e.Nacked = true }),
		handed(100, 400, 1, func(e *Event) { e.Revision = 9 }),
		handed(100, 500, 2, func(e *Event) { e.Revision = 9 }),
		{Kind: Fault, Answer: "kill n1"},
	})
	if report.Scheduled != 1 || report.Deliveries != 3 || report.Nacks != 1 || report.Duplicates != 1 {
		t.Errorf("got %+v, want 1 scheduled, 3 deliveries, 1 nack, 1 duplicate", report)
	}
	if want := 51 * time.Millisecond; report.Worst != want || report.WorstID != "t" {
		t.Errorf("worst lateness is %v of %q, want %v of \"t\"", report.Worst, report.WorstID, want)
	}
}
