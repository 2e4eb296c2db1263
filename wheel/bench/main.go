// Command bench compares the wheel and its queue with other ways to do their work, all in one run, and prints
// Markdown tables. Figures are CPU time, so that what else runs on the machine blurs them less.
package main

import (
	"flag"
	"fmt"
	"math"
	"os"
	"runtime"
	"slices"
	"strings"
	"testing"
)

type contender struct {
	name string
	make func(int) engine
	slow bool // one run must do
}

var engines = []contender{
	{name: "wheel", make: newOurs},
	{name: "container/heap", make: newHeap},
	{name: "wheel with rounds", make: newRounds, slow: true},
	{name: "Go timers", make: newGoTimers},
	{name: "RussellLuo/timingwheel", make: newRussell},
}

var (
	minN = flag.Int("min", 10_000, "the least timers pending")
	maxN = flag.Int("max", 1_000_000, "the most timers pending; 10000000 needs 3 GB")
	runs = flag.Int("runs", 3, "runs with deadlines over an hour, of which the least figures count; other distributions are run once")
	what = flag.String("what", "wheel,big,cross,stall,queue,late", "the tables to print; with all of them, a last one says which targets are met")
	only = flag.String("dist", "", "one distribution of deadlines: hour, exp30s, burst or year (default all)")
	self = flag.Bool("self", false, "leave the other engines out")

	apart = flag.String("apart", "", "a single measurement, as this program starts it in a process of its own")
)

// main runs everything as one test, since only a test can open a bubble whose clock jumps.
func main() {
	match := func(string, string) (bool, error) { return true, nil }
	testing.Main(match, []testing.InternalTest{{Name: "bench", F: run}}, nil, nil)
}

func run(t *testing.T) {
	if *apart != "" {
		measureHere(t, *apart)
		os.Exit(0) // there is no test to report
	}
	fmt.Printf("%s %s/%s, %d CPUs\n", runtime.Version(), runtime.GOOS, runtime.GOARCH, runtime.NumCPU())
	tables := strings.Split(*what, ",")
	if *self {
		engines = engines[:1]
	}
	for _, t := range []struct {
		name  string
		print func()
	}{
		{"late", printLate}, // first, while the machine is as quiet as it was found
		{"wheel", printEngines},
		{"big", printBig},
		{"cross", func() { printCrossing(t) }},
		{"stall", printStall},
		{"queue", printQueues},
	} {
		if slices.Contains(tables, t.name) {
			t.print()
		}
	}
	if *what == flag.Lookup("what").DefValue {
		printVerdict()
	}
	os.Exit(0)
}

const header = "| engine | add | add again | move | remove | expire after churn | expire | bytes | GC cycle, CPU ms | GC pause, us |\n" +
	"|---|---|---|---|---|---|---|---|---|---|"

// printEngines prints a table for each number of timers and distribution.
func printEngines() {
	for n := *minN; n <= *maxN; n *= 10 {
		for _, d := range dists {
			if *only != "" && d.name != *only {
				continue
			}
			fmt.Printf("\n%d timers, %s; CPU ns for each, and how many times ours\n\n%s\n", n, d.name, header)
			all := map[string]figures{}
			for _, e := range engines {
				all[e.name] = measureRuns(e, d, n)
				printRow(e.name, all[e.name], all["wheel"])
			}
			switch {
			case d.name == "hour" && n == 10_000:
				results.tenThousand = all
			case d.name == "hour" && n == 1_000_000:
				results.million = all
			}
		}
	}
}

// measureRuns measures an engine, several times if the deadlines are those that the targets are about.
func measureRuns(e contender, d dist, n int) figures {
	f := measureApart(e, d, n, n <= 1_000_000) // more would take minutes
	for i := 1; i < *runs && d.name == "hour" && !e.slow; i++ {
		f.least(measureApart(e, d, n, false))
	}
	return f
}

// printBig prints the wheel's figures with ten million timers.
func printBig() {
	const n = 10_000_000
	fmt.Printf("\n%d timers, hour\n\n%s\n", n, header)
	results.big = measureApart(engines[0], dists[0], n, false)
	printRow("wheel", results.big, results.big)
}

func printRow(name string, f, ours figures) {
	fmt.Printf("| %s | %s | %s | %s | %s | %s | %s | %.0f | %.1f | %.0f |\n", name, ratio(f.add, ours.add),
		ratio(f.refill, ours.refill), ratio(f.move, ours.move), ratio(f.remove, ours.remove),
		ratio(f.churned, ours.churned), ratio(f.fresh, ours.fresh), f.bytes, f.gc, f.pause)
}

func ratio(v, ours float64) string {
	switch {
	case v == 0 || math.IsInf(v, 0):
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
			f := measure(t, mk, dists[0], n, false)
			return f.refill + f.move + f.remove + f.fresh
		}
		w, h := sum(newOurs), sum(newHeap)
		fmt.Printf("| %d | %.0f | %.0f | %.2f |\n", n, w, h, h/w)
	}
}
