package main

import (
	"strings"
	"testing"
)

// sorted is a schedule of a sort at 0 ms that is due at 100, with a period of 50.
func sorted(sort Sort, change func(*Event)) Event {
	return at(Schedule, 0, 5, func(e *Event) {
		e.Sort, e.Due, e.Every = sort, 100, 50
		if change != nil {
			change(e)
		}
	})
}

// tick is the delivery of one due time of a repeat, acked, in time.
func tick(due int64, change func(*Event)) Event {
	return handed(due, due, 1, func(e *Event) {
		e.Revision = uint64(due)
		if change != nil {
			change(e)
		}
	})
}

func attempt(n int, acked bool) Event {
	return handed(100, 100+int64(n), 1, func(e *Event) { e.Attempt, e.Nacked, e.Revision = n, !acked, uint64(10*n) })
}

func TestJudgeSorts(t *testing.T) {
	t.Parallel()
	each := sorted(Each, func(e *Event) { e.Last = 210 })
	counted := sorted(Counted, func(e *Event) { e.Count = 2 })
	delayed := sorted(Delayed, func(e *Event) { e.Count = 2 })
	doomed := sorted(Doomed, nil)
	letter := at(Letter, 900, 900, func(e *Event) { e.Due, e.Attempt = 100, 3 })
	dying := []Event{doomed, attempt(1, false), attempt(2, false), attempt(3, false)}
	second := handed(100, 1000, 1, func(e *Event) { e.Revision = 90 })
	later := func(e *Event) { e.Epoch = 2 }
	child := func(e *Event) { e.ID = "{t}@" + "150" }
	for name, c := range map[string]struct {
		events []Event
		want   string
	}{
		"each":                      {[]Event{each, tick(100, nil), tick(150, nil), tick(200, nil)}, ""},
		"each, with timers":         {[]Event{each, tick(100, nil), tick(150, child), tick(200, nil)}, ""},
		"each, one missed":          {[]Event{each, tick(100, nil), tick(200, nil)}, "never rang"},
		"each, one unanswered":      {[]Event{each, tick(100, nil), tick(150, func(e *Event) { e.Nacked = true }), tick(200, nil)}, "until it was acked"},
		"each, off the grid":        {[]Event{each, tick(100, nil), tick(150, nil), tick(160, nil), tick(200, nil)}, "not on its grid"},
		"each, after the end":       {[]Event{each, tick(100, nil), tick(150, nil), tick(200, nil), tick(250, nil)}, "not on its grid"},
		"each, named wrongly":       {[]Event{each, tick(100, nil), tick(150, nil), tick(200, child)}, "rang for"},
		"early":                     {[]Event{each, tick(100, func(e *Event) { e.HandedOut = 99 }), tick(150, nil), tick(200, nil)}, "never early"},
		"fence stands still":        {[]Event{each, tick(100, nil), tick(100, func(e *Event) { e.HandedOut = 120 }), tick(150, nil), tick(200, nil)}, "fence did not grow"},
		"counted":                   {[]Event{counted, tick(100, nil), tick(200, nil)}, ""},
		"counted, too few":          {[]Event{counted, tick(100, nil)}, "rang for 1 due times, not 2"},
		"counted, too many":         {[]Event{counted, tick(100, nil), tick(150, nil), tick(200, nil)}, "rang for 3 due times, not 2"},
		"counted, out at a death":   {[]Event{counted, tick(100, func(e *Event) { e.Silent = true }), tick(200, later), tick(250, later)}, ""},
		"counted, ack lost":         {[]Event{counted, tick(100, nil), tick(200, later), tick(250, later)}, ""},
		"counted, one unanswered":   {[]Event{counted, tick(100, func(e *Event) { e.Silent = true }), tick(200, nil)}, "until it was acked"},
		"delayed":                   {[]Event{delayed, tick(100, nil), tick(155, nil)}, ""},
		"delayed, too soon":         {[]Event{delayed, tick(100, nil), tick(140, nil)}, "less than 50 ms after"},
		"doomed":                    {append(dying, letter), ""},
		"doomed, redriven":          {append(dying, letter, at(Redrive, 950, 960, nil), second), ""},
		"doomed, redriven, silent":  {append(dying, letter, at(Redrive, 950, 960, nil)), "never delivered"},
		"doomed, no letter":         {dying, "is 0 dead letters"},
		"doomed, two letters":       {append(dying, letter, letter), "is 2 dead letters"},
		"doomed, tried too often":   {append(dying, attempt(4, false), letter), "attempt 4"},
		"doomed, a wrong letter":    {append(dying, at(Letter, 900, 900, func(e *Event) { e.Due, e.Attempt = 100, 2 })), "tells of 2 attempts"},
		"doomed, never tried":       {[]Event{doomed, letter}, "without a first attempt"},
		"once":                      {[]Event{sorted(Once, nil), tick(100, nil)}, ""},
		"once, never":               {[]Event{sorted(Once, nil)}, ""},
		"once, twice":               {[]Event{sorted(Once, nil), tick(100, nil), tick(100, func(e *Event) { e.Epoch = 2 })}, "arrived 2 times"},
		"a refused one that rings":  {[]Event{sorted(Once, func(e *Event) { e.Outcome = Failed }), tick(100, nil)}, "was refused"},
		"an unknown one that rings": {[]Event{sorted(Once, func(e *Event) { e.Outcome = Unknown }), tick(100, nil)}, ""},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var text strings.Builder
			for _, v := range Judge(c.events).Violations {
				text.WriteString(v.String())
			}
			if c.want == "" && text.Len() > 0 || !strings.Contains(text.String(), c.want) {
				t.Errorf("got %q, want a violation with %q", text.String(), c.want)
			}
		})
	}
}
