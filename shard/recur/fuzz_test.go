package recur

import (
	"errors"
	"strings"
	"testing"
)

// Whatever the expression, the zone and the instant: no panic, an error with its field or a next time that is later, and
// with it a text for people.
func FuzzCron(f *testing.F) {
	for _, expr := range []string{"0 9 * * 1-5", "*/7 */2 29 2 */3", "@every 1500ms", "@hourly", "5/15 * * JAN-MAR SUN", "0 0 0 1 1 *", "* * * * * *",
		"", "TZ=", "CRON_TZ=UTC * * * * *", "@", "@every", "\x00", "1-2-3/4/5 * * * *", "59 59 23 31 12 7"} {
		f.Add(expr, "America/New_York", int64(1_772_900_000_000), int64(5))
	}
	f.Add("0 0 29 2 */7", "Pacific/Apia", int64(MaxMillis), int64(-1))
	f.Add("*/30 * * * *", "../x", int64(MinMillis), int64(1<<62))
	f.Fuzz(func(t *testing.T, expr, zone string, from, more int64) {
		r, err := Cron(expr, zone)
		if err != nil {
			var invalid *Error
			if !errors.As(err, &invalid) || invalid.Limit == "" || invalid.Field != "cron" && invalid.Field != "zone" {
				t.Fatalf("%q: %v", expr, err)
			}
			return
		}
		s := Series{Rule: r, Start: MinMillis, End: MaxMillis}
		if _, ok := s.Next(0); !ok && r.period == 0 {
			t.Fatalf("%q was accepted and is never due", expr)
		}
		for _, after := range []int64{from, more, from ^ more, MinMillis, MaxMillis} {
			for range 20 {
				due, ok := s.Next(after)
				if !ok {
					break
				}
				if due <= after || due < MinMillis || due > MaxMillis {
					t.Fatalf("%q in %q: after %d comes %d", expr, zone, after, due)
				}
				if l := r.Local(due); l.Time == "" || l.Zone == "" || strings.ContainsAny(l.Note, "\n") {
					t.Fatalf("%q in %q: %d is shown as %+v", expr, zone, due, l)
				}
				after = due
			}
		}
		turn := s.Turn(Policy{Misfire: MisfireAll, Max: 5, MaxLateMillis: more}, Armed{Due: from, Now: from + more>>30})
		for i, due := range turn.Fire {
			if i > 0 && due <= turn.Fire[i-1] || !turn.Ended && due >= turn.Next {
				t.Fatalf("%q: %+v", expr, turn)
			}
		}
	})
}
