package main

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"time"

	"github.com/carillon-timers/carillon/client"
	"github.com/carillon-timers/carillon/jepsen-lite/local"
)

// Options of a run.
type Options struct {
	Binary, Scenario, Out       string
	Kills, Rate, Timers, Shards int
	Seed                        uint64
	Timeout                     time.Duration
	Random                      *rand.Rand
}

// blows are the scenarios that hit leaders again and again.
var blows = map[string]blow{"kills": kill, "terms": term, "freezes": freeze}

// run is a run under way.
type run struct {
	Options
	cluster  *local.Cluster
	workload *Workload
	nemesis  *Nemesis
	history  *History
	started  time.Time
}

func (r *run) log(format string, args ...any) {
	fmt.Printf("%6.1fs  %s\n", time.Since(r.started).Seconds(), fmt.Sprintf(format, args...))
}

// Run does one run: load, heal, wait, read, judge. It returns whether all promises held.
func Run(ctx context.Context, o Options) (green bool, err error) {
	r := &run{Options: o, history: &History{}, started: time.Now()}
	kept := o.Out != ""
	if !kept {
		if r.Out, err = os.MkdirTemp("", "jepsen-lite-"); err != nil {
			return false, err
		}
		defer func() {
			if green {
				os.RemoveAll(r.Out)
			}
		}()
	} else if err := os.MkdirAll(r.Out, 0o755); err != nil {
		return false, err
	}
	r.log("scenario %s, seed %d, logs and history in %s", o.Scenario, o.Seed, r.Out)
	if err := r.setUp(ctx); err != nil {
		return false, err
	}
	defer r.cluster.Stop()
	if err := r.load(ctx); err != nil {
		return false, errors.Join(err, r.history.Save(filepath.Join(r.Out, "history.jsonl")))
	}
	return r.judge(), r.history.Save(filepath.Join(r.Out, "history.jsonl"))
}

// setUp starts the cluster and connects two clients: one that knows all nodes, and one that has to find them.
func (r *run) setUp(ctx context.Context) (err error) {
	if r.cluster, err = local.NewCluster(r.Binary, r.Out, 3, r.Shards); err != nil {
		return err
	}
	if err := r.cluster.Start(); err != nil {
		return err
	}
	ready, cancel := context.WithTimeout(ctx, 30*time.Second)
	defer cancel()
	if err := r.cluster.WaitReady(ready); err != nil {
		r.cluster.Stop()
		return err
	}
	r.log("three nodes are ready")
	var clients []*client.Client
	for _, addrs := range [][]string{r.cluster.Addrs(), r.cluster.Addrs()[:1]} {
		c, err := client.Dial(ctx, client.Config{Addrs: addrs})
		if err != nil {
			r.cluster.Stop()
			return err
		}
		clients = append(clients, c)
	}
	r.workload = &Workload{Clients: clients, History: r.history, Random: r.Random, Calls: 4096, Over: make(chan struct{})}
	if _, again := blows[r.Scenario]; again {
		r.workload.Rate, r.workload.Spread = r.Rate, 4*time.Second
		r.workload.Cancels, r.workload.Moves, r.workload.Nacks, r.workload.Silent = 10, 10, 5, 2
		r.workload.Special = &Special{
			Client: clients[0], History: r.history, Random: rand.New(rand.NewPCG(r.Seed, 3)), Rate: max(1, r.Rate/25),
		}
	} else { // all timers are accepted first and fall due over twenty seconds, in the middle of which the nemesis strikes
		r.workload.Rate, r.workload.Most = 5_000, r.Timers
		r.workload.Spread, r.workload.From = 20*time.Second, time.Now().Add(time.Second)
	}
	r.nemesis = &Nemesis{Cluster: r.cluster, Client: clients[0], History: r.history, Random: rand.New(rand.NewPCG(r.Seed, 2)), Log: r.log}
	if s := r.workload.Special; s != nil {
		r.nemesis.Aim = s.Aim
	}
	return nil
}

// load runs the workload and the nemesis, heals, and waits until what is due has been worked off.
func (r *run) load(ctx context.Context) error {
	working, stopWorking := context.WithCancel(ctx)
	worked := make(chan error, 1)
	go func() { worked <- r.workload.Work(working) }() // received below
	loading, stopLoading := context.WithCancel(ctx)
	loaded, special := make(chan int, 1), make(chan int, 1)
	go func() { loaded <- r.workload.Load(loading) }()             // received below
	go func() { special <- r.workload.Special.loadAny(loading) }() // received below

	err := r.attack(ctx)
	if r.workload.Most == 0 || err != nil {
		stopLoading()
	}
	plain := <-loaded
	stopLoading()
	r.log("%d timers scheduled, and %d repeats and the like", plain, <-special)
	if err == nil {
		err = r.drain(ctx)
	}
	close(r.workload.Over)
	stopWorking()
	return errors.Join(err, <-worked)
}

func (r *run) attack(ctx context.Context) error {
	if b, ok := blows[r.Scenario]; ok {
		return r.nemesis.HitLeaders(ctx, b, r.Kills)
	}
	switch r.Scenario {
	case "busiest":
		return r.nemesis.KillBusiest(ctx, 10*time.Second)
	case "all":
		return r.nemesis.KillAll(ctx, 10*time.Second, 3*time.Second)
	}
	return fmt.Errorf("scenario %q is none of kills, terms, freezes, busiest, all", r.Scenario)
}

// drain waits until the cluster keeps no pending timer, for at most a minute after the last one was due.
func (r *run) drain(ctx context.Context) error {
	if err := r.cluster.WaitReady(ctx); err != nil {
		return err
	}
	settled(ctx, r.workload.Clients[0], r.log)
	if r.workload.Special == nil {
		return nil
	}
	if err := r.workload.Special.ReadLetters(ctx, true); err != nil {
		return err
	}
	settled(ctx, r.workload.Clients[0], r.log)
	return r.workload.Special.ReadLetters(ctx, false) // none may be left, a second letter is a violation
}

func (r *run) judge() bool {
	report := Judge(r.history.Events())
	fmt.Println(report.Table())
	for i, v := range report.Violations {
		if i == 10 {
			fmt.Printf("and %d more\n", len(report.Violations)-i)
			break
		}
		fmt.Println(v)
	}
	return len(report.Violations) == 0
}
