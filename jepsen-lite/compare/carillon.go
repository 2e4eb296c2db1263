package main

import (
	"context"
	"fmt"

	"github.com/carillon-timers/carillon/client"
	"github.com/carillon-timers/carillon/jepsen-lite/local"
)

// carillon is three server processes, at the defaults but for the shards.
type carillon struct {
	binary  string
	shards  int
	cluster *local.Cluster
	client  *client.Client
}

const carillonQueue = "compare"

func (c *carillon) Title() string { return fmt.Sprintf("Carillon, 3 nodes, %d shards", c.shards) }

func (c *carillon) Start(ctx context.Context, dir string) (err error) {
	if c.cluster, err = local.NewCluster(c.binary, dir, 3, c.shards, "--log-level", "warn"); err != nil {
		return err
	}
	if err := c.cluster.Start(); err != nil {
		return err
	}
	if err := c.cluster.WaitReady(ctx); err != nil {
		return err
	}
	c.client, err = client.Dial(ctx, client.Config{Addrs: c.cluster.Addrs()})
	return err
}

func (c *carillon) Schedule(ctx context.Context, timers []timer) error {
	if len(timers) == 1 {
		_, err := c.client.Schedule(ctx, carillonTimer(timers[0]))
		return err
	}
	list := make([]client.Timer, len(timers))
	for i, t := range timers {
		list[i] = carillonTimer(t)
	}
	_, err := c.client.ScheduleBatch(ctx, list)
	return err
}

func carillonTimer(t timer) client.Timer {
	return client.Timer{ID: t.id, Due: t.due, Queue: carillonQueue, Payload: t.payload}
}

func (c *carillon) Work(ctx context.Context, handle func(string)) error {
	return c.client.Work(ctx, carillonQueue, func(_ context.Context, d client.Delivery) error {
		handle(d.ID)
		return nil
	}, client.WorkOptions{Concurrency: 256})
}

// KillLeader kills the node that leads most shards.
func (c *carillon) KillLeader(ctx context.Context) error {
	shards, err := c.client.Shards(ctx)
	if err != nil {
		return err
	}
	leads := map[string]int{}
	for _, s := range shards {
		leads[s.Leader]++
	}
	busiest := c.cluster.Nodes[0]
	for _, n := range c.cluster.Nodes {
		if leads[n.Name] > leads[busiest.Name] {
			busiest = n
		}
	}
	busiest.Kill()
	return nil
}

func (c *carillon) Stop() {
	if c.client != nil {
		_ = c.client.Close() // never fails
	}
	if c.cluster != nil {
		c.cluster.Stop()
	}
}
