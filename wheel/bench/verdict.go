package main

import "fmt"

// results are the figures that the targets are about.
var results struct {
	million, tenThousand map[string]figures // by engine, deadlines uniform over an hour
	big                  figures            // the wheel with ten million
	stall                float64            // us; the longest Advance with a million timers in one tick
	late                 realTime
}

// target is one figure, what it must be, and what it would be if all went as well as it can.
type target struct {
	name, unit   string
	value        float64 // 0 is not measured
	limit, ideal float64
	atLeast      bool // the value must be at least the limit, not at most
}

func (t target) met(limit float64) string {
	if limit == 0 {
		return ""
	}
	met := t.value <= limit
	if t.atLeast {
		met = t.value >= limit
	}
	if met {
		return "yes"
	}
	return "**no**"
}

func (t target) row() string {
	sign, ideal := "<=", ""
	if t.atLeast {
		sign = ">="
	}
	if t.ideal > 0 {
		ideal = fmt.Sprintf("%s %g", sign, t.ideal)
	}
	if t.value == 0 {
		return fmt.Sprintf("| %s | not measured | %s %g | | %s | |", t.name, sign, t.limit, ideal)
	}
	return fmt.Sprintf("| %s | %s %s | %s %g | %s | %s | %s |", t.name, short(t.value), t.unit, sign, t.limit, t.met(t.limit), ideal, t.met(t.ideal))
}

// printVerdict prints which targets were met.
func printVerdict() {
	fmt.Print("\nTargets, for two cores, and what would be ideal\n\n")
	fmt.Println("| figure | measured | target | met | ideal | met |\n|---|---|---|---|---|---|")
	missed := 0
	for _, t := range append(append(wheelTargets(), memoryTargets()...), lateTargets()...) {
		fmt.Println(t.row())
		if t.value == 0 || t.met(t.limit) != "yes" {
			missed++
		}
	}
	if missed == 0 {
		fmt.Println("\nAll targets are met.")
	} else {
		fmt.Printf("\n%d targets are not met or were not measured.\n", missed)
	}
}

func wheelTargets() []target {
	m, w := results.million["wheel"], results.tenThousand["wheel"]
	goTimers, russell := results.million["Go timers"], results.million["RussellLuo/timingwheel"]
	return []target{
		{name: "10^6 timers over an hour: add into reused entries", unit: "ns", value: m.refill, limit: 90, ideal: 55},
		{name: "10^6 timers over an hour: move", unit: "ns", value: m.move, limit: 150, ideal: 70},
		{name: "10^6 timers over an hour: remove", unit: "ns", value: m.remove, limit: 80, ideal: 45},
		{name: "10^6 timers over an hour: expire", unit: "ns", value: m.fresh, limit: 180, ideal: 80},
		{name: "10^6 timers over an hour: expire after all were moved", unit: "ns", value: m.churned, limit: 180, ideal: 80},
		{name: "10^6, Go's timers against the wheel: add into reused entries", unit: "times", value: over(goTimers.refill, m.refill), limit: 6, atLeast: true},
		{name: "10^6, Go's timers against the wheel: move", unit: "times", value: over(goTimers.move, m.move), limit: 3, atLeast: true},
		{name: "10^6, Go's timers against the wheel: remove", unit: "times", value: over(goTimers.remove, m.remove), limit: 4, atLeast: true},
		{name: "10^6, RussellLuo/timingwheel against the wheel: expire", unit: "times", value: over(russell.fresh, m.fresh), limit: 15, atLeast: true},
		{name: "10^4 timers, warm: add into reused entries", unit: "ns", value: w.refill, limit: 40, ideal: 15},
		{name: "10^4 timers, warm: move", unit: "ns", value: w.move, limit: 45, ideal: 20},
		{name: "10^4 timers, warm: remove", unit: "ns", value: w.remove, limit: 30, ideal: 12},
		{name: "10^4 timers, warm: expire", unit: "ns", value: w.fresh, limit: 150, ideal: 80},
		{name: "10^4 timers, warm: expire after all were moved", unit: "ns", value: w.churned, limit: 150, ideal: 80},
	}
}

func memoryTargets() []target {
	return []target{
		{name: "memory at 10^6", unit: "bytes a timer", value: results.million["wheel"].bytes, limit: 48, ideal: 40},
		{name: "memory at 10^7", unit: "bytes a timer", value: results.big.bytes, limit: 48, ideal: 40},
		{name: "a full cycle of the collector at 10^7", unit: "ms of CPU", value: results.big.gc, limit: 2, ideal: 1},
		{name: "longest Advance with 10^6 in one tick", unit: "us", value: results.stall, limit: 500, ideal: 100},
	}
}

// lateTargets are about hand-outs in real time, with a million timers pending.
func lateTargets() []target {
	var ts []target
	for _, shards := range []int{1, 16} {
		for _, c := range []struct {
			rate     int
			p50, p99 float64
		}{{10_000, 60, 600}, {50_000, 120, 1000}} {
			m := results.late[lateName(1_000_000, shards, c.rate)]
			of := fmt.Sprintf("lateness, %d fires/s, shards %d", c.rate, shards)
			ts = append(ts, target{name: of + ": p50", unit: "us", value: m["p50-us"], limit: c.p50, ideal: 20},
				target{name: of + ": p99", unit: "us", value: m["p99-us"], limit: c.p99, ideal: 150})
		}
	}
	return append(ts, target{name: "idle, 10^6 far timers", unit: "% of a core", value: results.late["Idle"]["cpu-%"], limit: 0.1, ideal: 0.02})
}

// short writes three digits, or all of a whole number.
func short(v float64) string {
	if v >= 100 {
		return fmt.Sprintf("%.0f", v)
	}
	return fmt.Sprintf("%.3g", v)
}

func over(a, b float64) float64 {
	if b == 0 {
		return 0
	}
	return a / b
}
