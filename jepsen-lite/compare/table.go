package main

import (
	"fmt"
	"math"
	"strconv"
	"strings"
)

// result is what one system came to; Rates are those of loads.
type result struct {
	Title string    `json:"title"`
	Rates []float64 `json:"schedules_per_second"`
	Rate  float64   `json:"fires_per_second"`
	Fires fires     `json:"fires"`
	// Failover is what became of the timers while a node was killed; nil if the system has no failover of its own.
	Failover *fires `json:"failover,omitempty"`
}

// afterKill is a value of the failover; not a number if there was none.
func afterKill(value func(fires) float64) func(result) float64 {
	return func(r result) float64 {
		if r.Failover == nil {
			return math.NaN()
		}
		return value(*r.Failover)
	}
}

// markdown is one table: a column for each system, and for all but the first one the first one's ratio to it.
func markdown(machine string, results []result) string {
	var b strings.Builder
	fmt.Fprintf(&b, "%s.\n\n| |", machine)
	for i, r := range results {
		fmt.Fprintf(&b, " %s |", r.Title)
		if i > 0 {
			b.WriteString(" ratio |")
		}
	}
	b.WriteString("\n|---|" + strings.Repeat("---:|", 2*len(results)-1) + "\n")
	line := func(name string, value func(result) float64, ratios bool) {
		fmt.Fprintf(&b, "| %s |", name)
		for i, r := range results {
			fmt.Fprintf(&b, " %s |", number(value(r)))
			switch {
			case i > 0 && ratios:
				fmt.Fprintf(&b, " %s |", ratio(value(results[0]), value(r)))
			case i > 0:
				b.WriteString(" |")
			}
		}
		b.WriteString("\n")
	}
	for i, l := range loads {
		line(l.name, func(r result) float64 { return r.Rates[i] }, true)
	}
	rate := fmt.Sprintf(" at %s fires/s", number(results[0].Rate))
	at := rate + ", ms"
	line("lateness p50"+at, func(r result) float64 { return r.Fires.P50 }, true)
	line("lateness p99"+at, func(r result) float64 { return r.Fires.P99 }, true)
	line("lateness, greatest"+at, func(r result) float64 { return r.Fires.Max }, true)
	line("early", func(r result) float64 { return float64(r.Fires.Early) }, false)
	line("lost", func(r result) float64 { return float64(r.Fires.Lost) }, false)
	line("delivered twice", func(r result) float64 { return float64(r.Fires.Twice) }, false)
	line("kill -9 of the leader"+rate+": worst lateness, ms", afterKill(func(f fires) float64 { return f.Max }), true)
	line("lost by it", afterKill(func(f fires) float64 { return float64(f.Lost) }), false)
	if len(results) > 1 {
		fmt.Fprintf(&b, "\nRatios are %s to the system left of them: more is better for rates, less for lateness.\n", results[0].Title)
	}
	return b.String()
}

// ratio of a to b; a dash if there is none.
func ratio(a, b float64) string {
	if !(a > 0 && b > 0) {
		return "-"
	}
	return strconv.FormatFloat(a/b, 'g', 2, 64) + "x"
}

// number shows three digits or whole numbers with commas.
func number(v float64) string {
	switch {
	case math.IsNaN(v):
		return "-"
	case v >= 100:
		text := strconv.FormatFloat(v, 'f', 0, 64)
		for i := len(text) - 3; i > 0; i -= 3 {
			text = text[:i] + "," + text[i:]
		}
		return text
	case v == float64(int(v)):
		return strconv.Itoa(int(v))
	}
	return strconv.FormatFloat(v, 'f', 2, 64)
}
