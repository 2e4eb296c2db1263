package node

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/carillon-timers/carillon/shard"
	"github.com/carillon-timers/carillon/shard/ring"
	"github.com/carillon-timers/carillon/transport/peer"

	logv1 "github.com/carillon-timers/carillon/proto/carillonlog/v1"
)

const (
	formEvery   = 100 * time.Millisecond // how often formation looks again when nothing wakes it
	formTimeout = 3 * time.Second        // bounds one call of formation
	// rivalPatience is how long a process of this node's ID with another disk is believed to be one that has just died.
	rivalPatience = 4 * time.Second
	sayEvery      = 5 * time.Second // how often the reason for waiting is logged
)

// formation brings a node into its cluster: with data it goes on where it was; else it joins the cluster that gossip
// shows, answers the pledge of the node that creates one, or, as the lowest of those that are expected, creates it.
type formation struct {
	n       *Node
	said    string    // touched by run alone
	saidAt  time.Time // touched by run alone
	pledged chan struct{}
}

// run returns when the node belongs to a cluster and its replica of the directory is open; an error means that the node
// must not go on.
func (f *formation) run(ctx context.Context) error {
	for ctx.Err() == nil {
		done, err := f.step(ctx)
		if done || err != nil {
			return err
		}
		timer := time.NewTimer(formEvery)
		select {
		case <-timer.C:
		case <-f.pledged:
		case <-ctx.Done():
		}
		timer.Stop()
	}
	return nil
}

func (f *formation) step(ctx context.Context) (done bool, err error) {
	if rival, ok := f.n.gossip.twin(); ok && rival.Boot < f.n.boot && rival.Disk != f.n.identity.get().DiskUUID {
		if f.n.mono().Sub(rival.Since) > rivalPatience {
			return false, fmt.Errorf("node ID %s is in use by the process at %s, with another disk: give this node another --id", f.n.config.ID, rival.Peer)
		}
		f.say("waiting to see whether another process lives under this node's ID", "at", rival.Peer)
		return false, nil
	}
	id := f.n.identity.get()
	switch {
	case id.Directory == storeOpened:
		return true, f.n.openDirectory(nil)
	case id.Pledge != nil && id.Pledge.Proposer == f.n.config.ID:
		return f.create(ctx, id)
	case id.ClusterID != "":
		return true, f.n.openDirectory(nil)
	}
	peers := f.n.gossip.peers()
	for _, name := range sortedKeys(peers) {
		if p := peers[name]; p.Cluster != "" && name != f.n.config.ID {
			return f.join(ctx, name)
		}
	}
	switch {
	case !f.n.gossip.tried.Load(): // a seed may know a cluster
		return false, nil
	case f.n.config.BootstrapExpect > 0:
		return f.propose(ctx, peers)
	}
	f.say("waiting for a node of the cluster to be seen", "join", f.n.config.Join)
	return false, nil
}

// say logs why the node waits: at once if the reason is new, else every few seconds.
func (f *formation) say(reason string, args ...any) {
	now := f.n.mono()
	if reason == f.said && now.Sub(f.saidAt) < sayEvery {
		return
	}
	f.said, f.saidAt = reason, now
	f.n.log.Info(reason, args...)
}

// propose starts a cluster if this node is the lowest of exactly as many as are expected, and all say the same.
func (f *formation) propose(ctx context.Context, peers map[string]alivePeer) (bool, error) {
	c := f.n.config
	var nodes, differ []string
	for _, name := range sortedKeys(peers) {
		p := peers[name]
		if p.Expect == 0 {
			continue
		}
		nodes = append(nodes, name)
		if p.Expect != c.BootstrapExpect || p.Shards != f.n.wantShards() {
			differ = append(differ, fmt.Sprintf("%s expects %d nodes and %d shards", name, p.Expect, p.Shards))
		}
	}
	switch {
	case len(differ) > 0:
		f.say("cannot create the cluster: "+strings.Join(differ, ", "), "expect", c.BootstrapExpect, "shards", f.n.wantShards())
	case len(nodes) != c.BootstrapExpect:
		f.say("waiting for the nodes that create the cluster", "expect", c.BootstrapExpect, "seen", nodes)
	case nodes[0] != c.ID:
		f.say("waiting for "+nodes[0]+" to create the cluster", "nodes", nodes)
	default:
		uuid, err := newUUID()
		if err != nil {
			return false, err
		}
		pledge := &pledgeRecord{Proposer: c.ID, Nodes: nodes, Replicas: min(ReplicasPerShard, len(nodes))}
		if err := f.n.identity.belong(uuid, f.n.wantShards(), pledge); errors.Is(err, errOtherCluster) {
			return false, nil // pledged to another in this moment
		} else if err != nil {
			return false, err
		}
		f.n.log.Info("creating the cluster", "cluster", uuid, "nodes", nodes, "shards", f.n.wantShards())
		return f.create(ctx, f.n.identity.get())
	}
	return false, nil
}

// create collects the pledges of all, and only then gives the directory its first configuration. It goes on where an
// earlier start was cut off: nothing has been bootstrapped before every pledge is on its disk.
func (f *formation) create(ctx context.Context, id *identityData) (bool, error) {
	if _, err := f.n.collectPledges(ctx, id); err != nil {
		f.say("waiting for the pledges of the nodes that create the cluster: "+err.Error(), "cluster", id.ClusterID)
		return false, nil
	}
	return true, f.n.openDirectory(id.Pledge.Nodes)
}

// join asks a node of the cluster, and then the one that leads the directory, to become a member.
func (f *formation) join(ctx context.Context, at string) (bool, error) {
	ctx, cancel := context.WithTimeout(ctx, formTimeout)
	defer cancel()
	body, err := f.n.self().proto().MarshalVT()
	if err != nil {
		return false, err
	}
	var answer []byte
	for range 3 { // the node that was seen, the one it names as the leader, and once more
		answer, err = f.n.callNode(ctx, at, methodRegister, body)
		var moved *shard.NotLeaderError
		if !errors.As(err, &moved) || moved.Leader == "" {
			break
		}
		at = moved.Leader
	}
	if errors.Is(err, errRefused) {
		return false, fmt.Errorf("the cluster refuses this node: %w", err)
	}
	registered := &logv1.Registered{}
	if err == nil {
		err = registered.UnmarshalVT(answer)
	}
	if err != nil {
		f.say("waiting to be admitted by the cluster: "+err.Error(), "asked", at)
		return false, nil
	}
	if err := f.n.checkShards(int(registered.Shards)); err != nil {
		return false, err
	}
	if err := f.n.identity.belong(registered.ClusterId, int(registered.Shards), nil); err != nil {
		return false, err
	}
	return true, f.n.openDirectory(nil)
}

// collectPledges asks every node that creates the cluster, and returns them as members.
func (n *Node) collectPledges(ctx context.Context, id *identityData) ([]member, error) {
	ctx, cancel := context.WithTimeout(ctx, formTimeout)
	defer cancel()
	body, err := (&logv1.Pledge{
		ClusterId: id.ClusterID, Proposer: id.Pledge.Proposer, Nodes: id.Pledge.Nodes,
		Shards: uint32(id.Shards), Replicas: uint32(id.Pledge.Replicas),
	}).MarshalVT()
	if err != nil {
		return nil, err
	}
	members, errs := make([]member, len(id.Pledge.Nodes)), make([]error, len(id.Pledge.Nodes))
	var all sync.WaitGroup
	for i, node := range id.Pledge.Nodes {
		if node == n.config.ID {
			members[i] = n.self()
			continue
		}
		all.Go(func() {
			members[i], errs[i] = n.askPledge(ctx, node, body)
		})
	}
	all.Wait()
	for i := range members {
		members[i].Voter = i < MaxDirectoryVoters
	}
	return members, errors.Join(errs...)
}

// callNode calls a node that may not belong to this cluster yet.
func (n *Node) callNode(ctx context.Context, node string, method peer.Method, body []byte) ([]byte, error) {
	addr, ok := n.resolve(node)
	if !ok {
		return nil, fmt.Errorf("%w: the address of %s is not known", shard.ErrUnavailable, node)
	}
	answer, err := n.mux.CallAddr(ctx, addr, method, directoryGroup, body)
	return answer, fromRemote(err)
}

func (n *Node) askPledge(ctx context.Context, node string, body []byte) (member, error) {
	answer, err := n.callNode(ctx, node, methodPledge, body)
	if err != nil {
		return member{}, fmt.Errorf("%s: %w", node, err)
	}
	given := &logv1.PledgeGiven{}
	if err := given.UnmarshalVT(answer); err != nil {
		return member{}, fmt.Errorf("%s: %w", node, err)
	}
	if given.Member.GetNodeId() != node {
		return member{}, fmt.Errorf("%s: the answer is from %q", node, given.Member.GetNodeId())
	}
	return memberFromProto(given.Member), nil
}

// onPledge writes the pledge to the disk before it answers; a second cluster is refused.
func (n *Node) onPledge(_ context.Context, from string, _ uint32, body []byte) ([]byte, error) {
	p := &logv1.Pledge{}
	if err := p.UnmarshalVT(body); err != nil {
		return nil, toRemote(err)
	}
	if err := n.checkPledge(p); err != nil {
		n.log.Warn("a pledge was refused", "from", from, "cluster", p.ClusterId, "error", err)
		return nil, toRemote(err)
	}
	record := &pledgeRecord{Proposer: p.Proposer, Nodes: p.Nodes, Replicas: int(p.Replicas)}
	if err := n.identity.belong(p.ClusterId, int(p.Shards), record); err != nil {
		n.log.Warn("a pledge was refused", "from", from, "cluster", p.ClusterId, "error", err)
		return nil, toRemote(err)
	}
	select {
	case n.formation.pledged <- struct{}{}:
	default:
	}
	answer, err := (&logv1.PledgeGiven{Member: n.self().proto()}).MarshalVT()
	if err != nil {
		return nil, toRemote(err)
	}
	return answer, nil
}

func (n *Node) checkPledge(p *logv1.Pledge) error {
	switch id := n.identity.get(); {
	case id.ClusterID != "" && id.ClusterID == p.ClusterId:
		return nil // asked again
	case p.ClusterId == "" || p.Shards < 1 || p.Shards > MaxShards || !slices.Contains(p.Nodes, n.config.ID) || !slices.Contains(p.Nodes, p.Proposer):
		return errors.New("the pledge has no meaning")
	case n.config.BootstrapExpect != len(p.Nodes):
		return fmt.Errorf("%s expects %d nodes, not %d", n.config.ID, n.config.BootstrapExpect, len(p.Nodes))
	case n.wantShards() != int(p.Shards):
		return fmt.Errorf("%s expects %d shards, not %d", n.config.ID, n.wantShards(), p.Shards)
	}
	return nil
}

// onRegister admits a node as a member that listens to the directory. Only the leader of the directory can; the others
// say who that is. What can be refused for good is refused by any.
func (n *Node) onRegister(ctx context.Context, from string, _ uint32, body []byte) ([]byte, error) {
	p := &logv1.DirectoryMember{}
	if err := p.UnmarshalVT(body); err != nil {
		return nil, toRemote(err)
	}
	m := memberFromProto(p)
	m.Voter = false
	answer, err := n.register(ctx, m)
	if err != nil {
		n.log.Debug("a node was not admitted", "node", m.ID, "from", from, "error", err)
		return nil, toRemote(err)
	}
	return answer, nil
}

func (n *Node) register(ctx context.Context, m member) ([]byte, error) {
	if err := validNodeID(m.ID); err != nil {
		return nil, fmt.Errorf("%w: %w", errRefused, err)
	}
	d := n.dir.Load()
	if d == nil {
		return nil, shard.ErrUnavailable
	}
	state, _ := n.fsm.look()
	if old, known := state.Members[m.ID]; known {
		if old.Disk != m.Disk {
			return nil, wipedError(m.ID, old.Disk, m.Disk)
		}
		m.Voter = old.Voter
	}
	if !d.leads() {
		return nil, &shard.NotLeaderError{Leader: d.leader()}
	}
	if err := n.checkAddresses(m); err != nil {
		return nil, err
	}
	if !state.formed() {
		return nil, errUnformed
	}
	if err := putMember(ctx, d, m); err != nil {
		return nil, err
	}
	if err := d.admit(ctx, m.ID); err != nil {
		return nil, err
	}
	n.log.Info("a node was admitted", "node", m.ID, "peer", m.Peer)
	return (&logv1.Registered{ClusterId: state.ClusterID, Shards: uint32(state.Shards)}).MarshalVT()
}

// checkAddresses refuses a node that says it is reached where another node that lives is: it would be a member that nobody
// can reach. Where a member was, and is no more, another may be.
func (n *Node) checkAddresses(m member) error {
	living := []member{n.self()}
	for _, p := range n.gossip.peers() {
		living = append(living, member{ID: p.ID, Client: p.Client, Peer: p.Peer})
	}
	for _, other := range living {
		if other.ID == m.ID {
			continue
		}
		for _, a := range []struct{ name, ours, theirs string }{{"client", m.Client, other.Client}, {"peer", m.Peer, other.Peer}} {
			if a.ours == a.theirs && a.ours != "" {
				return fmt.Errorf("%w: its %s address %s is that of %s: give each node an address of its own", errRefused, a.name, a.ours, other.ID)
			}
		}
	}
	return nil
}

func wipedError(node, known, disk string) error {
	return fmt.Errorf("%w: %s is known with disk %s, not %s: its data folder was lost or replaced, and a voter that has forgotten its votes "+
		"could vote twice in one term; restore the folder, or start with an empty one under a new ID", errDiskChanged, node, known, disk)
}

// createCluster commits settings, members and the first placement: the duty of the directory's leader while the state is
// empty.
func (n *Node) createCluster(ctx context.Context, d *directory) error {
	id := n.identity.get()
	if id.Pledge == nil {
		return errUnformed
	}
	members, err := n.collectPledges(ctx, id)
	if err != nil {
		return fmt.Errorf("create the cluster: %w", err)
	}
	placement, err := ring.Place(id.Pledge.Nodes, id.Shards, id.Pledge.Replicas)
	if err != nil {
		return fmt.Errorf("create the cluster: %w", err)
	}
	create := &logv1.CreateCluster{ClusterId: id.ClusterID, Shards: uint32(id.Shards), Replicas: uint32(id.Pledge.Replicas)}
	for _, m := range members {
		create.Members = append(create.Members, m.proto())
	}
	for _, nodes := range placement {
		create.Placement = append(create.Placement, &logv1.ShardReplicas{Nodes: nodes})
	}
	err = d.propose(ctx, &logv1.DirectoryEntry{Kind: &logv1.DirectoryEntry_Create{Create: create}})
	if errors.Is(err, errFormed) {
		return nil
	}
	return err
}
