package recur

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"
)

// walker is the slow truth: it goes through real time minute by minute and looks at the clock of package time.
type walker struct {
	location *time.Location
	expr     []string // five fields
	reached  int64    // the latest local minute that the clock has shown
}

func newWalker(location *time.Location, expr string, from time.Time) *walker {
	w := &walker{location: location, expr: strings.Fields(expr)}
	w.reached = w.local(from)
	for back := range 3 * 24 * 60 {
		w.reached = max(w.reached, w.local(from.Add(-time.Duration(back)*time.Minute)))
	}
	return w
}

// local is the minute that the clock on the wall shows.
func (w *walker) local(t time.Time) int64 {
	_, offset := t.In(w.location).Zone()
	return floorDiv(t.Unix()+int64(offset), 60)
}

// due tells whether the minute is due; it must be asked for each one in turn.
func (w *walker) due(t time.Time) bool {
	local := w.local(t)
	if w.expr[1][0] == '*' {
		return w.matches(local)
	}
	due := false
	for ; w.reached < local; w.reached++ {
		due = due || w.matches(w.reached+1)
	}
	return due
}

func (w *walker) matches(local int64) bool {
	t := time.Unix(local*60, 0).UTC()
	if !holds(w.expr[0], t.Minute(), 0, 59) || !holds(w.expr[1], t.Hour(), 0, 23) || !holds(w.expr[3], int(t.Month()), 1, 12) {
		return false
	}
	day, weekday := holds(w.expr[2], t.Day(), 1, 31), holds(w.expr[4], int(t.Weekday()), 0, 6)
	if w.expr[2][0] != '*' && w.expr[4][0] != '*' {
		return day || weekday
	}
	return day && weekday
}

// holds reads a field of numbers again for each question.
func holds(field string, v, low, high int) bool {
	for _, item := range strings.Split(field, ",") {
		span, step, stepped := strings.Cut(item, "/")
		a, b := low, high
		if span != "*" {
			from, to, isRange := strings.Cut(span, "-")
			a, _ = strconv.Atoi(from)
			if b = a; isRange {
				b, _ = strconv.Atoi(to)
			} else if stepped {
				b = high
			}
		}
		n := 1
		if stepped {
			n, _ = strconv.Atoi(step)
		}
		if v >= a && v <= b && (v-a)%n == 0 {
			return true
		}
	}
	return false
}

// randomField makes a field; often it is a star.
func randomField(r *rand.Rand, low, high int) string {
	pick := func() int { return low + r.IntN(high-low+1) }
	switch r.IntN(6) {
	case 0, 1:
		return "*"
	case 2:
		return fmt.Sprintf("*/%d", 1+r.IntN(high-low))
	case 3:
		a, b := pick(), pick()
		return fmt.Sprintf("%d-%d", min(a, b), max(a, b))
	case 4:
		return fmt.Sprintf("%d,%d", pick(), pick())
	}
	return strconv.Itoa(pick())
}

func randomExpr(r *rand.Rand) string {
	hour := randomField(r, 0, 23)
	if r.IntN(2) == 0 { // when clocks change
		hour = strconv.Itoa(r.IntN(4))
	}
	day, month := randomField(r, 1, 31), randomField(r, 1, 12)
	if r.IntN(2) == 0 {
		day, month = "*", "*"
	}
	return strings.Join([]string{randomField(r, 0, 59), hour, day, month, randomField(r, 0, 6)}, " ")
}

// Rules at random, around changes of the clock, against the walker.
func TestAgainstWalker(t *testing.T) {
	t.Parallel()
	changes := []struct{ zone, at string }{
		{"America/New_York", "2026-03-08T07:00:00Z"}, {"America/New_York", "2026-11-01T06:00:00Z"},
		{"Europe/Berlin", "2026-03-29T01:00:00Z"}, {"Europe/Berlin", "2026-10-25T01:00:00Z"},
		{"Australia/Lord_Howe", "2026-10-03T15:30:00Z"}, {"Australia/Lord_Howe", "2026-04-04T15:00:00Z"}, // half an hour
		{"America/Sao_Paulo", "2018-11-04T03:00:00Z"}, {"Asia/Beirut", "2026-03-28T22:00:00Z"}, // no midnight
		{"America/Havana", "2026-03-08T05:00:00Z"}, {"Africa/Cairo", "2026-04-23T22:00:00Z"},
		{"Asia/Beirut", "2026-10-24T21:00:00Z"},                                                 // midnight twice: the day before comes again
		{"Pacific/Apia", "2011-12-30T10:00:00Z"}, {"Pacific/Kwajalein", "1993-08-21T12:00:00Z"}, // a day is left out
		{"Antarctica/Troll", "2026-03-29T01:00:00Z"}, {"Antarctica/Troll", "2026-10-25T01:00:00Z"}, // two hours
		{"Asia/Pyongyang", "2018-05-04T15:00:00Z"}, {"Africa/Casablanca", "2026-02-15T02:00:00Z"},
		{"Pacific/Chatham", "2026-04-04T14:00:00Z"}, {"America/St_Johns", "2010-11-07T02:31:00Z"}, // at 00:01
		{"Europe/Dublin", "2300-03-25T01:00:00Z"}, {"America/Santiago", "2028-12-31T12:00:00Z"}, // beyond the tables; a leap year's end
		{"Asia/Manila", "1990-07-28T16:00:00Z"}, {"Antarctica/Casey", "2018-03-10T20:00:00Z"},
	}
	seed := uint64(time.Now().UnixNano())
	r := rand.New(rand.NewPCG(seed, 0))
	found := 0
	for i := range 250 {
		change := changes[i%len(changes)]
		expr := randomExpr(r)
		c, err := Cron(expr, change.zone)
		if err != nil { // it may never match
			continue
		}
		from := time.UnixMilli(millis(t, change.at)).Add(-time.Duration(r.IntN(30*60)) * time.Minute).UTC()
		end := from.Add(48 * time.Hour)
		var want []string
		w := newWalker(c.Zone().location, expr, from)
		for at := from.Add(time.Minute); !at.After(end); at = at.Add(time.Minute) {
			if w.due(at) {
				want = append(want, at.Format(time.RFC3339))
			}
		}
		var got []string
		s := Series{Rule: c, Start: MinMillis, End: end.UnixMilli()}
		for due, ok := s.Next(from.UnixMilli()); ok; due, ok = s.Next(due) {
			got = append(got, time.UnixMilli(due).UTC().Format(time.RFC3339))
		}
		if found += len(want); !slices.Equal(got, want) {
			t.Fatalf("seed %d: %q in %s from %v: got %v, want %v", seed, expr, change.zone, from, got, want)
		}
	}
	if found < 100 {
		t.Errorf("seed %d: only %d due times", seed, found)
	}
}

// No two changes of a clock come so close that the look back over them misses one.
func TestClocksStayWithinBounds(t *testing.T) {
	t.Parallel()
	for name := range zoneFiles() {
		z, err := LoadZone(name)
		if err != nil {
			t.Fatal(err)
		}
		until := daysBefore(2101, 1) * secondsPerDay
		for at := daysBefore(1800, 1) * secondsPerDay; at < until; {
			s := z.at(at)
			if s.start > at || s.end <= at {
				t.Fatalf("%s: %d is not within %+v", name, at, s)
			}
			if s.offset > 16*3600 || s.offset < -16*3600 {
				t.Errorf("%s: offset %d", name, s.offset)
			}
			at = s.end
		}
	}
}
