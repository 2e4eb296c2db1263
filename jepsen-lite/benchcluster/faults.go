package main

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"syscall"
	"time"

	"github.com/carillon-timers/carillon/client"
	"github.com/carillon-timers/carillon/jepsen-lite/local"
)

const (
	// faultAhead is how long before its due time a timer of a fault's load is scheduled.
	faultAhead = 5 * time.Second
	// faultRate is how many timers a second fall due meanwhile.
	faultRate = "1000"
	// spreadLimit bounds how long the leaderships may take to be spread before a fault.
	spreadLimit = 20 * time.Second
)

// kill is T9 by the connection: a node's process dies at once and stays away.
func (s *session) kill(ctx context.Context) error {
	return s.fault(ctx, "T9", "kill -9 of a node that leads %d of %d shards", 400, 150,
		func(n *local.Node) error { n.Kill(); return nil },
		func(n *local.Node) error { return n.Start() })
}

// freeze is T9 by heartbeats: a node stops answering, but its connections stay.
func (s *session) freeze(ctx context.Context) error {
	return s.fault(ctx, "T9", "freeze (SIGSTOP) of a node that leads %d of %d shards", 1500, 0,
		func(n *local.Node) error { n.Signal(syscall.SIGSTOP); return nil },
		func(n *local.Node) error { n.Signal(syscall.SIGCONT); return nil })
}

// planned is T10: a node is stopped in order and started again.
func (s *session) planned(ctx context.Context) error {
	return s.fault(ctx, "T10", "SIGTERM and restart of a node that leads %d of %d shards", 200, 50,
		func(n *local.Node) error {
			n.Stop()
			return n.Start()
		}, func(*local.Node) error { return nil })
}

// fault lets timers fire at a steady rate, strikes the node that leads most shards in the middle of it, heals it after
// the load, and reports how late the latest timer was.
func (s *session) fault(ctx context.Context, target, what string, goal, stretch float64, strike, heal func(*local.Node) error) error {
	node, leads, err := s.busiest(ctx)
	if err != nil {
		return err
	}
	var (
		report local.Report
		bench  sync.WaitGroup
		failed error
	)
	length := max(2*s.duration, 6*time.Second)
	bench.Go(func() {
		report, failed = s.bench(ctx, "failover", "--rate", faultRate, "--duration", length.String(), "--ahead", faultAhead.String())
	})
	err = local.Pause(ctx, faultAhead+length/3)
	if err == nil {
		s.log("%s, which leads %d shards, is struck", node.Name, leads)
		err = strike(node)
	}
	bench.Wait()
	if err := errors.Join(err, failed, heal(node)); err != nil {
		return err
	}
	ready, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	if err := s.cluster.WaitReady(ready); err != nil {
		return err
	}
	title := fmt.Sprintf(what, leads, s.shards)
	s.add(
		row{Target: target, What: title + ", at 1k fires/s: worst lateness", Value: report.Measure("lateness").Max, Unit: "ms", Goal: goal, Stretch: stretch},
		row{Target: target, What: "lost by it", Value: float64(report.Fires.Lost), Zero: true},
	)
	return nil
}

// busiest waits until the leaderships are spread and returns the node that leads most shards.
func (s *session) busiest(ctx context.Context) (*local.Node, int, error) {
	c, err := client.Dial(ctx, client.Config{Addrs: s.cluster.Addrs()})
	if err != nil {
		return nil, 0, err
	}
	defer c.Close()
	fair := s.shards / len(s.cluster.Nodes)
	for end := time.Now().Add(spreadLimit); ; {
		shards, err := c.Shards(ctx)
		leads := map[string]int{}
		for _, shard := range shards {
			leads[shard.Leader]++
		}
		busiest, least := s.cluster.Nodes[0], len(shards)
		for _, n := range s.cluster.Nodes {
			if leads[n.Name] > leads[busiest.Name] {
				busiest = n
			}
			least = min(least, leads[n.Name])
		}
		late := time.Now().After(end)
		switch {
		case err == nil && (least >= fair || late && leads[busiest.Name] > 0):
			return busiest, leads[busiest.Name], nil
		case late:
			return nil, 0, errors.Join(errors.New("no node leads a shard"), err)
		}
		if err := local.Pause(ctx, 100*time.Millisecond); err != nil {
			return nil, 0, err
		}
	}
}
