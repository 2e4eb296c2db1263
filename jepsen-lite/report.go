package main

import (
	"fmt"
	"strings"
	"time"
)

// Table is the report as a person reads it.
func (r Report) Table() string {
	var b strings.Builder
	row := func(name, format string, args ...any) {
		fmt.Fprintf(&b, "  %-22s %s\n", name, fmt.Sprintf(format, args...))
	}
	verdict := "GREEN"
	if len(r.Violations) > 0 {
		verdict = fmt.Sprintf("RED: %d violations", len(r.Violations))
	}
	fmt.Fprintf(&b, "\n%s\n", verdict)
	row("timers accepted", "%d (outcome unknown %d, refused %d)", r.Scheduled, r.Unknown, r.Refused)
	row("cancels", "%d cancelled, %d firing, %d fired", r.Cancelled, r.Firing, r.Fired)
	row("deliveries", "%d, of them %d nacked or left unanswered on purpose, %d duplicates", r.Deliveries, r.Nacks, r.Duplicates)
	row("repeats", "%d due times acked", r.Ticks)
	row("dead letters", "%d", r.Letters)
	row("at most once", "%d, of them %d never arrived", r.Onces, r.Unrung)
	row("lateness", "p50 %v, p99 %v, worst %v (%s)", r.LatenessP50.Round(10*time.Microsecond), r.LatenessP99.Round(100*time.Microsecond),
		r.Worst.Round(time.Millisecond), r.WorstID)
	return b.String()
}
