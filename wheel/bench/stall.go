package main

import (
	"fmt"
	"runtime"
	"slices"
	"time"

	"github.com/carillon-timers/carillon/wheel"
)

// printStall loads a million timers into one tick, lets time go by tick by tick and shows the longest single call.
func printStall() {
	const n = 1_000_000
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	fmt.Print("\nA million timers in one tick: CPU time of the longest Advance, of all calls and of 99.9 % of them\n\n")
	fmt.Println("| ticks ahead | calls | longest | 99.9 % | emitted, after the tick began |\n|---|---|---|---|---|")
	for _, ahead := range []wheel.Tick{200, 1_000, 70_000, 600_000} {
		w := wheel.New(start)
		for i := range n {
			w.Add(start+ahead, uint64(i))
		}
		var due [256]wheel.Due
		var calls []time.Duration
		var drain time.Duration
		got := 0
		for now := wheel.Tick(start); got < n; now++ {
			for more := true; more; {
				began := threadNow()
				k, again := w.Advance(now, due[:])
				took := time.Duration(threadNow() - began)
				calls = append(calls, took)
				if now >= start+ahead {
					drain += took
				}
				got, more = got+k, again
			}
		}
		slices.Sort(calls)
		results.stall = max(results.stall, float64(calls[len(calls)-1].Nanoseconds())/1e3)
		fmt.Printf("| %d | %d | %v | %v | %v |\n", ahead, len(calls), calls[len(calls)-1].Round(time.Microsecond),
			calls[len(calls)*999/1000].Round(100*time.Nanosecond), drain.Round(100*time.Microsecond))
	}
}
