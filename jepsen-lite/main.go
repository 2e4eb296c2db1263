// Command jepsen-lite starts a real cluster, breaks it while timers fall due, records what the clients saw, and judges
// it. It exits with 1 if a promise was broken, and prints the story of each timer that shows it.
package main

import (
	"context"
	"flag"
	"fmt"
	"math/rand/v2"
	"os"
	"os/signal"
	"syscall"
	"time"
)

func main() {
	var o Options
	flag.StringVar(&o.Binary, "binary", "bin/carillon", "the `carillon` to run")
	flag.StringVar(&o.Scenario, "scenario", "kills", "kills, terms, freezes: SIGKILL, SIGTERM or SIGSTOP to the leader of a random shard, again and again; busiest: SIGKILL to the node that leads most shards, once; all: to all nodes at once")
	flag.IntVar(&o.Kills, "kills", 20, "how often a leader is hit (scenarios kills, terms, freezes)")
	flag.IntVar(&o.Rate, "rate", 200, "timers a second")
	flag.IntVar(&o.Timers, "timers", 10_000, "timers in all (scenarios busiest and all)")
	flag.IntVar(&o.Shards, "shards", 16, "shards of the cluster")
	flag.StringVar(&o.Out, "out", "", "where the logs and the history go (a temporary directory if empty, removed when green)")
	flag.Uint64Var(&o.Seed, "seed", uint64(time.Now().UnixNano()), "seed of the run")
	flag.DurationVar(&o.Timeout, "timeout", 10*time.Minute, "gives up after this")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	ctx, cancel := context.WithTimeout(ctx, o.Timeout)
	defer cancel()
	o.Random = rand.New(rand.NewPCG(o.Seed, 1))
	green, err := Run(ctx, o)
	if err != nil {
		fmt.Fprintln(os.Stderr, "jepsen-lite:", err)
		os.Exit(1)
	}
	if !green {
		os.Exit(1)
	}
}
