package node

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"sync"
	"sync/atomic"
	"time"

	logv1 "github.com/carillon-timers/carillon/proto/carillonlog/v1"
	"github.com/carillon-timers/carillon/shard/executor"
	"github.com/carillon-timers/carillon/shard/segment"
	"github.com/carillon-timers/carillon/transport"
	"github.com/carillon-timers/carillon/transport/peer"
)

// Node is one process of a cluster.
type Node struct {
	config Config
	deps   Deps
	log    *slog.Logger
	now    func() time.Time // the wall clock, which may be wrong or jump
	mono   func() time.Time // for durations
	boot   string           // this run of the process; a later run has a greater one

	// Set by open, before anything else runs.
	identity  *identity
	segments  *segment.Log // nil with bolt
	gossip    *gossip
	mux       *peer.Mux
	server    *transport.Server
	router    *router
	metrics   *metrics
	http      *httpServer // nil without an HTTP address
	loops     []*executor.Loop
	webhooks  *webhooks
	replicas  *replicaSet
	formation *formation
	listeners listeners
	addrs     atomic.Pointer[Addrs]
	advertise Addrs

	fsm      *directoryFSM
	dir      atomic.Pointer[directory] // nil until the node belongs to a cluster
	stopping atomic.Bool

	listening, ready chan struct{} // closed once
	fail             context.CancelCauseFunc
	parts            sync.WaitGroup
	ran              atomic.Bool
}

// Addrs are the addresses on which a node listens, host:port.
type Addrs struct{ Client, Peer, Gossip, HTTP string }

// New builds a node; Run opens and runs it. The config is checked here, the disk and the network in Run.
func New(c Config, d Deps) (*Node, error) {
	if err := c.Validate(); err != nil {
		return nil, err
	}
	if d.Now == nil {
		d.Now = time.Now
	}
	if d.Logger == nil {
		d.Logger = slog.Default()
	}
	if d.Listen == nil {
		d.Listen = net.Listen
	}
	n := &Node{
		config: c, deps: d, now: d.Now, mono: time.Now, log: d.Logger.With("self", c.ID),
		boot:      fmt.Sprintf("%016x", d.Now().UnixNano()),
		listening: make(chan struct{}), ready: make(chan struct{}),
	}
	n.fsm = newDirectoryFSM(n.log)
	n.formation = &formation{n: n, pledged: make(chan struct{}, 1)}
	return n, nil
}

// Listening is closed when all listeners are open, which is before the node is ready.
func (n *Node) Listening() <-chan struct{} { return n.listening }

// Ready is closed when the node was ready for the first time: it belongs to a cluster and each of its shards has a leader.
func (n *Node) Ready() <-chan struct{} { return n.ready }

// Addrs returns the real addresses; empty before Listening is closed.
func (n *Node) Addrs() Addrs {
	if a := n.addrs.Load(); a != nil {
		return *a
	}
	return Addrs{}
}

// Run opens the node and runs it until the context ends; then it stops in bounded time. The error says why the node did
// not start, or stopped by itself. It can be called once.
func (n *Node) Run(ctx context.Context) error {
	if n.ran.Swap(true) {
		return errors.New("node: Run was called before")
	}
	if err := n.open(); err != nil {
		return fmt.Errorf("node %s: %w", n.config.ID, errors.Join(err, n.closeOpened()))
	}
	ctx, fail := context.WithCancelCause(ctx)
	defer fail(nil)
	n.fail = fail
	running := n.startParts()
	close(n.listening)
	n.log.Info("node started", "addrs", n.Addrs(), "boot", n.boot, "version", n.config.Version)
	<-ctx.Done()
	cause := context.Cause(ctx)
	n.log.Info("node stops", "reason", cause)
	err := n.stop(running)
	var failed *partError
	if errors.As(cause, &failed) { // else it was asked to stop
		err = errors.Join(cause, err)
	}
	if err != nil {
		return fmt.Errorf("node %s: %w", n.config.ID, err)
	}
	return nil
}

// partError says which part of the node could not go on, and why.
type partError struct {
	part  string
	cause error
}

func (e *partError) Error() string { return e.part + ": " + e.cause.Error() }

func (e *partError) Unwrap() error { return e.cause }

// part is something that runs until it is stopped.
type part struct {
	name   string
	cancel context.CancelFunc
	done   chan struct{} // closed when it has ended
	err    error         // of its end after it was told to stop; set before done is closed
}

// start runs a part; if it ends with an error before it was stopped, the node stops.
func (n *Node) start(name string, run func(ctx context.Context) error) *part {
	ctx, cancel := context.WithCancel(context.Background())
	p := &part{name: name, cancel: cancel, done: make(chan struct{})}
	n.parts.Go(func() {
		defer close(p.done)
		err := run(ctx)
		switch {
		case err == nil:
		case ctx.Err() == nil:
			n.fail(&partError{name, err})
		case !errors.Is(err, context.Canceled):
			p.err = fmt.Errorf("%s: %w", name, err)
		}
	})
	return p
}

// stop ends the part and waits for it as long as ctx lasts.
func (p *part) stop(ctx context.Context) error {
	p.cancel()
	select {
	case <-p.done:
		return p.err
	case <-ctx.Done():
		return fmt.Errorf("%s did not stop in time", p.name)
	}
}

// running are the parts of a node, in the order in which they are stopped.
type running struct {
	log        *part // nil with bolt
	clients    *part
	webhooks   *part
	background []*part
	seeds      *part
	loops      []*part
	replicas   *part
	peers      *part
	http       *part
}

func (n *Node) startParts() running {
	r := running{
		log:      n.startLog(),
		peers:    n.start("peer port", func(ctx context.Context) error { return n.mux.Run(ctx, n.listeners.peer) }),
		clients:  n.start("client port", func(ctx context.Context) error { return n.server.Run(ctx, n.listeners.client) }),
		webhooks: n.start("webhooks", n.webhooks.Run),
		replicas: n.start("replicas", n.replicas.run),
	}
	r.seeds = n.start("seeds", func(ctx context.Context) error { n.gossip.join(ctx, n.config.RejoinEvery, n.seeds); return nil })
	for i, loop := range n.loops {
		r.loops = append(r.loops, n.start(fmt.Sprintf("timer loop %d", i), loop.Run))
	}
	if n.http != nil {
		r.http = n.start("HTTP", func(ctx context.Context) error { return n.http.run(ctx, n.listeners.http) })
	}
	r.background = []*part{
		n.start("formation", n.formation.run),
		n.start("placement", n.place),
		n.start("directory duties", n.duties),
		n.start("balance", n.balance),
		n.start("readiness", n.watchReadiness),
		n.start("webhook secrets", n.webhooks.watch),
		n.start("collector", n.pace),
	}
	return r
}

// wantShards is the shard count with which this node would create a cluster.
func (n *Node) wantShards() int {
	if n.config.Shards == 0 {
		return DefaultShards
	}
	return n.config.Shards
}

// checkShards refuses a start that says another shard count than the cluster has.
func (n *Node) checkShards(stored int) error {
	if n.config.Shards != 0 && n.config.Shards != stored {
		return fmt.Errorf("the cluster has %d shards, which never changes; this start says %d: say %d or nothing", stored, n.config.Shards, stored)
	}
	return nil
}

// self is this node as a member.
func (n *Node) self() member {
	return member{
		ID: n.config.ID, Disk: n.identity.get().DiskUUID, Boot: n.boot, Version: n.config.Version,
		Client: n.advertise.Client, Peer: n.advertise.Peer, Gossip: n.advertise.Gossip, HTTPAddr: n.advertise.HTTP,
	}
}

// shards is the cluster's shard count; 0 before the cluster is formed.
func (n *Node) shards() int {
	if state, _ := n.fsm.look(); state.formed() {
		return state.Shards
	}
	// After a restart the shards are open before the directory has told its state again.
	if id := n.identity.get(); len(id.Replicas) > 0 {
		return id.Shards
	}
	return 0
}

// seeds are the gossip addresses to try: what the config lists, and where members were last.
func (n *Node) seeds() []string {
	var seeds []string
	for _, s := range n.config.Join {
		seeds = append(seeds, withPort(s, defaultGossipPort))
	}
	places := n.identity.get().Members
	for _, id := range sortedKeys(places) {
		if id != n.config.ID {
			seeds = append(seeds, places[id].Gossip)
		}
	}
	return seeds
}

// resolve finds a node's peer address: where it lives now, else where it was last.
func (n *Node) resolve(node string) (string, bool) {
	if p, ok := n.gossip.find(node); ok {
		return p.Peer, true
	}
	p := n.identity.get().Members[node]
	return p.Peer, p.Peer != ""
}

// clientAddr finds a node's client address; empty if it is not known.
func (n *Node) clientAddr(node string) string {
	if p, ok := n.gossip.find(node); ok {
		return p.Client
	}
	state, _ := n.fsm.look()
	return state.Members[node].Client
}

// alive tells whether gossip sees the node, and sees it stay.
func (n *Node) alive(node string) bool {
	p, ok := n.gossip.find(node)
	return ok && !p.Leaving
}

// openDirectory opens this node's replica of the directory; nodes are given by the node that creates the cluster.
func (n *Node) openDirectory(nodes []string) error {
	first, err := n.identity.beginDirectory()
	if err != nil {
		return err
	}
	if !first {
		nodes = nil
	}
	store, err := n.directoryStore()
	if err != nil {
		return err
	}
	d, err := openDirectory(directoryOptions{
		store:  store,
		config: n.config, dir: n.identity.directoryDir(), transport: n.mux.Group(directoryGroup), fsm: n.fsm, log: n.log, mono: n.mono,
		bootstrap: nodes, opened: n.identity.endDirectory,
	})
	if err != nil {
		return err
	}
	n.dir.Store(d)
	return nil
}

// putMember brings a member's new word to the directory.
func putMember(ctx context.Context, d *directory, m member) error {
	return d.propose(ctx, &logv1.DirectoryEntry{Kind: &logv1.DirectoryEntry_PutMember{PutMember: m.proto()}})
}
