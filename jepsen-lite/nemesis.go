package main

import (
	"context"
	"fmt"
	"math/rand/v2"
	"syscall"
	"time"

	"github.com/carillon-timers/carillon/client"
	"github.com/carillon-timers/carillon/jepsen-lite/local"
)

// Nemesis breaks the cluster while the workload runs.
type Nemesis struct {
	Cluster *local.Cluster
	Client  *client.Client
	History *History
	Random  *rand.Rand
	Log     func(format string, args ...any)
	// Aim is told a second ahead when a leader will be hit; nil if nobody needs to know.
	Aim func(at time.Time)
}

// blow is one way to hurt a node, and the way back.
type blow struct {
	name         string
	strike, heal func(n *Nemesis, ctx context.Context, p *local.Node) error
}

// The blows that hit the leader of a random shard again and again.
var (
	// kill: SIGKILL, and a new start.
	kill = blow{"kill -9", func(_ *Nemesis, _ context.Context, p *local.Node) error { p.Kill(); return nil }, (*Nemesis).restart}
	// term: SIGTERM, so that it hands its leaderships over and ends, and a new start.
	term = blow{"SIGTERM", func(_ *Nemesis, _ context.Context, p *local.Node) error { p.Stop(); return nil }, (*Nemesis).restart}
	// freeze: SIGSTOP, so that it wakes up as a leader of the past, and SIGCONT.
	freeze = blow{"SIGSTOP", signalling(syscall.SIGSTOP), signalling(syscall.SIGCONT)}
)

func signalling(sig syscall.Signal) func(*Nemesis, context.Context, *local.Node) error {
	return func(_ *Nemesis, _ context.Context, p *local.Node) error { p.Signal(sig); return nil }
}

// HitLeaders strikes the leader of a random shard, leaves it for one to three seconds, and heals it; again and again.
func (n *Nemesis) HitLeaders(ctx context.Context, b blow, times int) error {
	for i := range times {
		shard, leader, err := n.someLeader(ctx)
		if err != nil {
			return err
		}
		if err := n.aim(ctx); err != nil {
			return err
		}
		n.fault("%s %s, the leader of shard %d (%d of %d)", b.name, leader.Name, shard, i+1, times)
		if err := b.strike(n, ctx, leader); err != nil {
			return err
		}
		if err := n.rest(ctx); err != nil {
			return err
		}
		if err := b.heal(n, ctx, leader); err != nil {
			return err
		}
		n.fault("%s is healed", leader.Name)
		if err := n.rest(ctx); err != nil {
			return err
		}
	}
	return nil
}

// aim says that a leader will be hit in a second, and waits for that instant.
func (n *Nemesis) aim(ctx context.Context) error {
	if n.Aim == nil {
		return nil
	}
	at := time.Now().Add(time.Second)
	n.Aim(at)
	return local.Pause(ctx, time.Until(at))
}

// rest waits for one to three seconds.
func (n *Nemesis) rest(ctx context.Context) error {
	return local.Pause(ctx, time.Second+time.Duration(n.Random.Int64N(int64(2*time.Second))))
}

// KillBusiest waits, kills the node that leads most shards and starts it again after two seconds; it returns when the
// node leads again.
func (n *Nemesis) KillBusiest(ctx context.Context, wait time.Duration) error {
	if err := local.Pause(ctx, wait); err != nil {
		return err
	}
	leads, err := n.leads(ctx)
	if err != nil {
		return err
	}
	busiest := n.Cluster.Nodes[0]
	for _, p := range n.Cluster.Nodes {
		if leads[p.Name] > leads[busiest.Name] {
			busiest = p
		}
	}
	n.fault("kill -9 %s, which leads %d shards", busiest.Name, leads[busiest.Name])
	busiest.Kill()
	if err := local.Pause(ctx, 2*time.Second); err != nil {
		return err
	}
	if err := n.restart(ctx, busiest); err != nil {
		return err
	}
	for {
		if leads, err = n.leads(ctx); err == nil && leads[busiest.Name] > 0 {
			n.fault("%s leads %d shards again", busiest.Name, leads[busiest.Name])
			return nil
		}
		if err := local.Pause(ctx, 100*time.Millisecond); err != nil {
			return fmt.Errorf("%s does not lead again: %w", busiest.Name, err)
		}
	}
}

// KillAll waits, kills all nodes at once and starts them again after the pause.
func (n *Nemesis) KillAll(ctx context.Context, wait, down time.Duration) error {
	if err := local.Pause(ctx, wait); err != nil {
		return err
	}
	n.fault("kill -9 of all nodes")
	for _, p := range n.Cluster.Nodes {
		p.Kill()
	}
	if err := local.Pause(ctx, down); err != nil {
		return err
	}
	n.fault("start all nodes")
	if err := n.Cluster.Start(); err != nil {
		return err
	}
	if err := n.Cluster.WaitReady(ctx); err != nil {
		return err
	}
	n.fault("all nodes are ready")
	return nil
}

func (n *Nemesis) restart(ctx context.Context, p *local.Node) error {
	n.fault("start %s", p.Name)
	if err := p.Start(); err != nil {
		return err
	}
	return p.WaitReady(ctx)
}

func (n *Nemesis) fault(format string, args ...any) {
	text := fmt.Sprintf(format, args...)
	now := time.Now().UnixNano()
	n.History.Add(Event{Kind: Fault, Start: now, End: now, Answer: text})
	n.Log("%s", text)
}

// someLeader picks a random shard and the process that leads it.
func (n *Nemesis) someLeader(ctx context.Context) (int, *local.Node, error) {
	for {
		shards, err := n.Client.Shards(ctx)
		if err == nil && len(shards) > 0 {
			shard := shards[n.Random.IntN(len(shards))]
			if p := n.node(shard.Leader); p != nil && p.Up() {
				return shard.ID, p, nil
			}
		}
		if err := local.Pause(ctx, 50*time.Millisecond); err != nil {
			return 0, nil, fmt.Errorf("no shard has a leader: %w", err)
		}
	}
}

// node finds a node by its ID; nil if there is none.
func (n *Nemesis) node(id string) *local.Node {
	for _, p := range n.Cluster.Nodes {
		if p.Name == id {
			return p
		}
	}
	return nil
}

// leads counts the shards that each node leads.
func (n *Nemesis) leads(ctx context.Context) (map[string]int, error) {
	shards, err := n.Client.Shards(ctx)
	if err != nil {
		return nil, fmt.Errorf("ask for the shards: %w", err)
	}
	leads := map[string]int{}
	for _, s := range shards {
		leads[s.Leader]++
	}
	return leads, nil
}
