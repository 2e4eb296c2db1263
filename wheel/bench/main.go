// Command bench compares the wheel and its queue with other ways to do their work, all in one run, and prints
// Markdown tables. Figures are CPU time, so that what else runs on the machine blurs them less.
package main

import (
	"flag"
	"fmt"
	"os"
	"runtime"
	"slices"
	"strings"
	"testing"
)

var engines = []struct {
	name string
	make func(int) engine
}{
	{"wheel", newOurs},
	{"container/heap", newHeap},
	{"wheel with rounds", newRounds},
	{"Go timers", newGoTimers},
	{"RussellLuo/timingwheel", newRussell},
}

var (
	minN = flag.Int("min", 10_000, "the least timers pending")
	maxN = flag.Int("max", 1_000_000, "the most timers pending; 10000000 needs 3 GB")
	what = flag.String("what", "wheel,cross,stall,queue", "the tables to print")
	only = flag.String("dist", "", "one distribution of deadlines: hour, exp30s, burst or year (default all)")
	self = flag.Bool("self", false, "leave the other engines out")
)

// main runs everything as one test, since only a test can open a bubble whose clock jumps.
func main() {
	match := func(string, string) (bool, error) { return true, nil }
	testing.Main(match, []testing.InternalTest{{Name: "bench", F: run}}, nil, nil)
}

func run(t *testing.T) {
	fmt.Printf("%s %s/%s, %d CPUs\n", runtime.Version(), runtime.GOOS, runtime.GOARCH, runtime.NumCPU())
	tables := strings.Split(*what, ",")
	if *self {
		engines = engines[:1]
	}
	for _, t := range []struct {
		name  string
		print func()
	}{
		{"wheel", func() { printEngines(t) }},
		{"cross", func() { printCrossing(t) }},
		{"stall", printStall},
		{"queue", printQueues},
	} {
		if slices.Contains(tables, t.name) {
			t.print()
		}
	}
	os.Exit(0) // there is no test to report
}

// printEngines prints a table for each number of timers and distribution.
func printEngines(t *testing.T) {
	for n := *minN; n <= *maxN; n *= 10 {
		for _, d := range dists {
			if *only != "" && d.name != *only {
				continue
			}
			fmt.Printf("\n%d timers, %s; CPU ns for each, and how many times ours\n\n", n, d.name)
			fmt.Println("| engine | add | add again | move | remove | expire after churn | expire | bytes | GC cycle, CPU ms |")
			fmt.Println("|---|---|---|---|---|---|---|---|---|")
			var ours figures
			for i, e := range engines {
				f := measure(t, e.make, d, n)
				if i == 0 {
					ours = f
				}
				fmt.Printf("| %s | %s | %s | %s | %s | %s | %s | %.0f | %.1f |\n", e.name, ratio(f.add, ours.add),
					ratio(f.refill, ours.refill), ratio(f.move, ours.move), ratio(f.remove, ours.remove),
					ratio(f.churned, ours.churned), ratio(f.fresh, ours.fresh), f.bytes, f.gc)
			}
		}
	}
}

func ratio(v, ours float64) string {
	switch {
	case v == 0:
		return "n/a"
	case v == ours:
		return fmt.Sprintf("**%.0f**", v)
	}
	return fmt.Sprintf("%.0f (%.1fx)", v, v/ours)
}

// printCrossing shows from how many timers on the wheel is cheaper than a heap.
func printCrossing(t *testing.T) {
	fmt.Print("\nHeap against wheel: CPU ns of add + move + remove + expire for one timer, deadlines uniform over an hour\n\n")
	fmt.Println("| timers | wheel | container/heap | heap / wheel |\n|---|---|---|---|")
	for n := 16; n <= 1<<20; n *= 4 {
		sum := func(mk func(int) engine) float64 {
			f := measure(t, mk, dists[0], n)
			return f.refill + f.move + f.remove + f.fresh
		}
		w, h := sum(newOurs), sum(newHeap)
		fmt.Printf("| %d | %.0f | %.0f | %.2f |\n", n, w, h, h/w)
	}
}
