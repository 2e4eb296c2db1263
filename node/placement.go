package node

import (
	"context"
	"errors"
	"fmt"
	"time"
)

const (
	// dutiesEvery is how often the directory's leader looks whether members have moved, beside when gossip says so.
	dutiesEvery = 500 * time.Millisecond
	// tellWait bounds how long a change of what this node says in gossip is waited for.
	tellWait = time.Second
)

// place opens the replicas that the committed map gives to this node. Those that have been opened here before it opens at
// once: the map gave them to this node, and the shard's own Raft knows whether they still count.
func (n *Node) place(ctx context.Context) error {
	id := n.identity.get()
	for _, s := range id.shards() {
		if id.Replicas[fmt.Sprint(s)] == storeOpened {
			n.replicas.ensure(s, nil)
		}
	}
	for {
		state, changed := n.fsm.look()
		if state.formed() {
			if err := n.accept(state); err != nil {
				return err
			}
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return nil
		}
	}
}

// accept acts on a committed state.
func (n *Node) accept(state *clusterState) error {
	id := n.identity.get()
	if state.ClusterID != id.ClusterID {
		return fmt.Errorf("the directory is that of cluster %s, this node belongs to %s", state.ClusterID, id.ClusterID)
	}
	if me, known := state.Members[n.config.ID]; known && me.Disk != id.DiskUUID {
		return wipedError(n.config.ID, me.Disk, id.DiskUUID)
	}
	if err := n.checkShards(state.Shards); err != nil {
		return err
	}
	if err := n.identity.remember(state.places()); err != nil {
		return err
	}
	mine := state.shardsOf(n.config.ID)
	if err := n.identity.beginShards(mine); err != nil {
		return err
	}
	for _, s := range mine {
		n.replicas.ensure(s, state.replicas(s))
	}
	n.gossip.tell(tellWait, func(m *nodeMeta) { m.Cluster, m.Expect, m.Shards = state.ClusterID, 0, 0 })
	return nil
}

// duties does what the leader of the directory owes the cluster: it creates it, and keeps the members' addresses.
func (n *Node) duties(ctx context.Context) error {
	tick := time.NewTicker(dutiesEvery)
	defer tick.Stop()
	said := ""
	for {
		select {
		case <-tick.C:
		case <-n.gossip.wake:
		case <-ctx.Done():
			return nil
		}
		d := n.dir.Load()
		if d == nil || !d.leads() {
			continue
		}
		err := n.lead(ctx, d)
		if err == nil {
			said = ""
		} else if words := err.Error(); words != said && ctx.Err() == nil {
			said = words // once for each trouble
			n.log.Warn("the directory's leader cannot do its duties", "error", err)
		}
	}
}

func (n *Node) lead(ctx context.Context, d *directory) error {
	state, _ := n.fsm.look()
	if !state.formed() {
		if err := d.barrier(ctx); err != nil {
			return err
		}
		if state, _ = n.fsm.look(); !state.formed() {
			return n.createCluster(ctx, d)
		}
	}
	var errs []error
	for id, live := range n.gossip.peers() {
		old, known := state.Members[id]
		if !known || old.Disk != live.Disk || live.Cluster != "" && live.Cluster != state.ClusterID {
			continue // only a registration makes a member
		}
		now := old
		now.Boot, now.Version = live.Boot, live.Version
		now.Client, now.Peer, now.Gossip, now.HTTPAddr = live.Client, live.Peer, live.Gossip, live.HTTP
		if now != old {
			errs = append(errs, putMember(ctx, d, now))
		}
	}
	return errors.Join(errs...)
}

// readiness says why the node is not ready; nil when it belongs to a cluster, follows the directory, and each of its
// shards has a leader with which it has caught up.
func (n *Node) readiness() error {
	if n.stopping.Load() {
		return errors.New("stopping")
	}
	d := n.dir.Load()
	state, _ := n.fsm.look()
	switch {
	case d == nil:
		return errors.New("does not belong to a cluster yet")
	case n.fsm.err() != nil:
		return n.fsm.err()
	case !state.formed():
		return errors.New("the directory has not told its state yet")
	case d.leader() == "":
		return errors.New("the directory has no leader")
	}
	if _, known := state.Members[n.config.ID]; !known {
		return errors.New("the directory does not list this node yet")
	}
	for _, s := range state.shardsOf(n.config.ID) {
		r := n.replicas.get(s)
		if r == nil {
			return fmt.Errorf("shard %d is not open", s)
		}
		if failed := r.failed.Load(); failed != nil {
			return fmt.Errorf("shard %d has failed: %s", s, *failed)
		}
		open := r.open.Load()
		if open == nil {
			return fmt.Errorf("shard %d is not open", s)
		}
		if open.Status().Leader == "" {
			return fmt.Errorf("shard %d has no leader", s)
		}
		if !r.caughtUp.Load() {
			return fmt.Errorf("shard %d has not caught up with its leader", s)
		}
	}
	return nil
}

const (
	readinessEvery = time.Second
	readinessFirst = 25 * time.Millisecond // until the node is ready for the first time
	// twinPatience is how long another process may be seen under this node's ID: that of the run before is, for a second.
	twinPatience = 10 * time.Second
)

// watchReadiness keeps what grpc.health.v1 says, and looks out for a second process under this node's ID.
func (n *Node) watchReadiness(ctx context.Context) error {
	wait, was := readinessFirst, false
	for ctx.Err() == nil {
		if twin, ok := n.gossip.twin(); ok && twin.Boot < n.boot && n.mono().Sub(twin.Since) > twinPatience {
			return fmt.Errorf("node ID %s is in use by the process at %s: its data folder must have been copied", n.config.ID, twin.Peer)
		}
		n.noteCaughtUp(ctx)
		err := n.readiness()
		if is := err == nil; is != was {
			was = is
			n.server.SetServing(is)
			if is && wait == readinessFirst {
				wait = readinessEvery
				close(n.ready)
			}
			n.log.Info("readiness", "ready", is, "reason", err)
		}
		sleep(ctx, wait)
	}
	return nil
}
