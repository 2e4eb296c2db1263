package recur

import "testing"

// What a repeat costs when it has been acked: its next due time.
func BenchmarkNext(b *testing.B) {
	for _, c := range []struct{ name, expr, zone string }{
		{"every", "@every 1500ms", ""},
		{"minutely", "* * * * *", "UTC"},
		{"workdays", "0 9 * * 1-5", "Europe/Berlin"},
		{"hourly", "0 * * * *", "America/New_York"},
		{"leapday", "0 0 29 2 *", "Europe/Berlin"},
		{"sparsest", "0 0 29 2 */6", "Europe/Berlin"},
		{"sparsest-hourly", "0 */23 29 2 */6", "Europe/Berlin"},
	} {
		b.Run(c.name, func(b *testing.B) {
			s := series(b, c.expr, c.zone)
			start, end := millis(b, "2026-11-30T00:00:00Z"), millis(b, "2126-01-01T00:00:00Z")
			b.ReportAllocs()
			for after := start; b.Loop(); {
				due, ok := s.Next(after)
				if after = due; !ok || due > end {
					after = start
				}
			}
		})
	}
}

func BenchmarkCron(b *testing.B) {
	b.ReportAllocs()
	for b.Loop() {
		if _, err := Cron("*/5 8-18 * JAN-JUN MON-FRI", "Europe/Berlin"); err != nil {
			b.Fatal(err)
		}
	}
}

// A catching up with the newest 100 of a month of minutes.
func BenchmarkTurn(b *testing.B) {
	s := series(b, "* * * * *", "Europe/Berlin")
	now := millis(b, "2026-11-30T00:00:30Z")
	b.ReportAllocs()
	for b.Loop() {
		if n := len(s.Turn(Policy{Misfire: MisfireAll, Max: 100}, Armed{now - 30*86_400_000, now}).Fire); n != 100 {
			b.Fatal(n)
		}
	}
}

// What a hand-out on time costs: the due time that has come, and no other.
func BenchmarkCatchUp(b *testing.B) {
	for _, c := range []struct{ name, expr string }{{"every", "@every 1500ms"}, {"minutely", "* * * * *"}} {
		b.Run(c.name, func(b *testing.B) {
			s := series(b, c.expr, "Europe/Berlin")
			due, _ := s.Next(millis(b, "2026-11-30T00:00:30Z"))
			b.ReportAllocs()
			for b.Loop() {
				if n := len(s.CatchUp(Policy{}, Armed{due, due + 2}).Fire); n != 1 {
					b.Fatal(n)
				}
			}
		})
	}
}
