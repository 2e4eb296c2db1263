package main

import (
	"fmt"
	"os"
	"os/exec"
	"strconv"
	"strings"
)

// realTime holds what the executor's benchmarks reported: by name, without "Benchmark", and unit.
type realTime map[string]map[string]float64

func lateName(pending, shards, rate int) string {
	return fmt.Sprintf("Lateness/pending=%d/shards=%d/rate=%d", pending, shards, rate)
}

// runLate runs the executor's benchmarks in real time, in a process of their own: the heap of this one would be in the figures.
func runLate(pattern string) (realTime, error) {
	cmd := exec.Command("go", "test", "-run", "^$", "-bench", pattern, "-benchtime", "1x", "./shard/executor")
	cmd.Dir = "../.."
	cmd.Stderr = os.Stderr
	out, err := cmd.Output()
	if err != nil {
		return nil, fmt.Errorf("%v: %w\n%s", cmd.Args, err, out)
	}
	r := realTime{}
	for line := range strings.Lines(string(out)) {
		f := strings.Fields(line)
		if len(f) < 4 || !strings.HasPrefix(f[0], "Benchmark") {
			continue
		}
		name := strings.TrimPrefix(f[0], "Benchmark")
		if i := strings.LastIndexByte(name, '-'); i > 0 {
			name = name[:i] // the number of processors
		}
		r[name] = map[string]float64{}
		for i := 2; i+1 < len(f); i += 2 {
			if r[name][f[i+1]], err = strconv.ParseFloat(f[i], 64); err != nil {
				return nil, fmt.Errorf("%q: %w", line, err)
			}
		}
	}
	return r, nil
}

// printLate prints how late timers are handed out in real time, and before that what the machine allows: how late a
// thread is that does nothing but wait for the next millisecond.
func printLate() {
	late, err := runLate("^Benchmark(Sleep|Lateness|Idle)$")
	if err != nil {
		fmt.Printf("\nReal time was not measured: %v\n", err)
		return
	}
	results.late = late
	fmt.Print("\nReal time: us after the due time at which a consumer that has credit holds the timer, and CPU time; none was early\n\n")
	fmt.Println("| what | p50 | p99 | p99.9 | max | out of the wheel, p50 | CPU of a core |\n|---|---|---|---|---|---|---|")
	for _, s := range []struct{ name, key string }{
		{"the machine: time.Timer, next millisecond", "Sleep/timer"},
		{"the machine: timerfd, next millisecond", "Sleep/native"},
		{"the same as the executor uses it, with a lead", "Sleep/sharp"},
	} {
		if m := late[s.key]; m != nil {
			fmt.Printf("| %s | %.0f | %.0f | %.0f | %.0f | | |\n", s.name, m["p50-us"], m["p99-us"], m["p99.9-us"], m["max-us"])
		}
	}
	for _, pending := range []int{100_000, 1_000_000} {
		for _, shards := range []int{1, 16} {
			for _, rate := range []int{1_000, 10_000, 50_000} {
				m := late[lateName(pending, shards, rate)]
				fmt.Printf("| %d pending, shards %d, %d/s | %.0f | %.0f | %.0f | %.0f | %.0f | %.1f %% |\n", pending, shards, rate,
					m["p50-us"], m["p99-us"], m["p99.9-us"], m["max-us"], m["wheel-p50-us"], m["cpu-%"])
			}
		}
	}
	fmt.Printf("\nIdle with 10^6 far timers in 16 shards: %.3f %% of a core.\n", late["Idle"]["cpu-%"])
}
