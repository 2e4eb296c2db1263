package node

import (
	"context"
	"encoding/json"
	"fmt"
	"log"
	"log/slog"
	"maps"
	"net"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/hashicorp/memberlist"
)

// nodeMeta is what a node tells of itself in gossip; memberlist takes 512 bytes of it, so the keys are short.
type nodeMeta struct {
	ID      string `json:"i"`
	Boot    string `json:"b"`
	Disk    string `json:"d"`
	Cluster string `json:"k,omitempty"` // set once the cluster is formed
	Client  string `json:"c"`
	Peer    string `json:"p"`
	HTTP    string `json:"h,omitempty"`
	Version string `json:"v,omitempty"`
	Expect  int    `json:"e,omitempty"`
	Shards  int    `json:"s,omitempty"`
	Leaving bool   `json:"l,omitempty"`
}

// alivePeer is one process that gossip sees.
type alivePeer struct {
	nodeMeta
	Gossip string
	// Since is when this process was first seen here.
	Since time.Time
}

// gossip finds the other nodes and their addresses, and nothing else: what it says is a rumour.
type gossip struct {
	self   string // memberlist's name of this process: node ID, "#", boot ID
	nodeID string
	log    *slog.Logger
	now    func() time.Time
	wake   chan struct{} // holds at most one signal: something has changed

	mu    sync.Mutex
	alive map[string]alivePeer // guarded by mu: by memberlist's name; written by its callbacks
	meta  nodeMeta             // guarded by mu

	list  atomic.Pointer[memberlist.Memberlist] // set by start
	tried atomic.Bool                           // every seed has been asked once

	stopped atomic.Bool // memberlist has been shut down
}

func newGossip(meta nodeMeta, now func() time.Time, log *slog.Logger) *gossip {
	return &gossip{
		self: meta.ID + "#" + meta.Boot, nodeID: meta.ID, log: log, now: now, meta: meta,
		wake: make(chan struct{}, 1), alive: map[string]alivePeer{},
	}
}

// start opens memberlist on the address; its goroutines end in stop.
func (g *gossip) start(bind, advertise string) (string, error) {
	if n := g.maxMetaBytes(); n > memberlist.MetaMaxSize {
		return "", fmt.Errorf("gossip: node ID, addresses and version take %d bytes, at most %d fit: use shorter host names", n, memberlist.MetaMaxSize)
	}
	c := memberlist.DefaultLocalConfig()
	var err error
	if c.BindAddr, c.BindPort, err = resolveGossip(bind); err != nil {
		return "", fmt.Errorf("gossip address: %w", err)
	}
	if c.AdvertiseAddr, c.AdvertisePort, err = resolveGossip(advertise); err != nil {
		return "", fmt.Errorf("gossip address to advertise: %w", err)
	}
	c.Name = g.self
	c.ProbeInterval, c.ProbeTimeout = 200*time.Millisecond, 100*time.Millisecond
	c.SuspicionMult, c.SuspicionMaxTimeoutMult, c.AwarenessMaxMultiplier = 3, 3, 2
	c.GossipInterval, c.TCPTimeout, c.EnableCompression = 50*time.Millisecond, 2*time.Second, false
	c.Delegate, c.Events, c.Alive = (*gossipDelegate)(g), (*gossipDelegate)(g), (*gossipDelegate)(g)
	c.Logger = log.New((*gossipLog)(g), "", 0)
	list, err := memberlist.Create(c)
	if err != nil {
		return "", fmt.Errorf("gossip on %s: %w", bind, err)
	}
	g.list.Store(list)
	return net.JoinHostPort(c.BindAddr, strconv.Itoa(c.BindPort)), nil
}

// resolveGossip turns host:port into the IP that memberlist demands.
func resolveGossip(addr string) (string, int, error) {
	host, port, err := splitPort(addr)
	if err != nil {
		return "", 0, err
	}
	if host == "" {
		return "0.0.0.0", port, nil
	}
	ip, err := net.ResolveIPAddr("ip", host)
	if err != nil {
		return "", 0, err
	}
	return ip.String(), port, nil
}

func splitPort(addr string) (string, int, error) {
	host, text, err := net.SplitHostPort(addr)
	if err != nil {
		return "", 0, err
	}
	port, err := net.LookupPort("tcp", text)
	return host, port, err
}

// join keeps asking the seeds until one answers, and then all that are not seen every so often, so that groups that a
// cut has parted find each other again. It returns when ctx ends.
func (g *gossip) join(ctx context.Context, every time.Duration, seeds func() []string) {
	wait := 100 * time.Millisecond
	for ctx.Err() == nil {
		seen := g.addrs()
		targets := slices.DeleteFunc(seeds(), func(a string) bool { return seen[a] })
		for _, target := range targets { // one by one: one that does not answer takes two seconds
			if ctx.Err() != nil {
				return
			}
			if _, err := g.list.Load().Join([]string{target}); err != nil {
				g.log.Debug("gossip: join", "target", target, "error", err)
			}
		}
		g.tried.Store(true)
		if len(g.addrs()) > 1 || len(targets) == 0 {
			wait = every
		} else {
			wait = min(2*wait, every)
		}
		sleep(ctx, wait)
	}
}

// addrs are the gossip addresses that are seen, this node's own among them.
func (g *gossip) addrs() map[string]bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	seen := make(map[string]bool, len(g.alive))
	for _, p := range g.alive {
		seen[p.Gossip] = true
	}
	return seen
}

// peers returns the living process of each node ID, this node's own too; of two processes with one ID the one that
// started last counts.
func (g *gossip) peers() map[string]alivePeer {
	g.mu.Lock()
	defer g.mu.Unlock()
	peers := make(map[string]alivePeer, len(g.alive))
	for _, p := range g.alive {
		if old, ok := peers[p.ID]; !ok || p.Boot > old.Boot {
			peers[p.ID] = p
		}
	}
	return peers
}

// find returns the living process of a node ID.
func (g *gossip) find(node string) (alivePeer, bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	var best alivePeer
	ok := false
	for _, p := range g.alive {
		if p.ID == node && (!ok || p.Boot > best.Boot) {
			best, ok = p, true
		}
	}
	return best, ok
}

// twin finds another process that is seen under this node's ID: the one before this, while gossip has not missed it, or one
// that must not be.
func (g *gossip) twin() (alivePeer, bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	for name, p := range g.alive {
		if name != g.self && p.ID == g.nodeID {
			return p, true
		}
	}
	return alivePeer{}, false
}

// tell changes what this node says of itself and spreads it; it waits for the spreading at most the given time.
func (g *gossip) tell(wait time.Duration, change func(m *nodeMeta)) {
	g.mu.Lock()
	old := g.meta
	change(&g.meta)
	same := old == g.meta
	g.mu.Unlock()
	list := g.list.Load()
	if same || list == nil {
		return
	}
	if err := list.UpdateNode(wait); err != nil {
		g.log.Debug("gossip: update", "error", err)
	}
}

// stop leaves, so that others need not suspect this node first, and ends memberlist's goroutines.
func (g *gossip) stop(wait time.Duration) error {
	list := g.list.Load()
	if list == nil {
		return nil
	}
	if err := list.Leave(wait); err != nil {
		g.log.Debug("gossip: leave", "error", err)
	}
	defer g.stopped.Store(true)
	return list.Shutdown()
}

func (g *gossip) encodeMeta() []byte {
	g.mu.Lock()
	defer g.mu.Unlock()
	raw, err := json.Marshal(g.meta)
	if err != nil {
		panic("node: gossip meta: " + err.Error()) // strings, numbers and bools always marshal
	}
	return raw
}

// maxMetaBytes is how long the meta can become.
func (g *gossip) maxMetaBytes() int {
	g.mu.Lock()
	m := g.meta
	g.mu.Unlock()
	m.Cluster, m.Leaving = strings.Repeat("0", uuidBytes), true
	raw, err := json.Marshal(m)
	if err != nil {
		panic("node: gossip meta: " + err.Error())
	}
	return len(raw)
}

// signal never waits.
func (g *gossip) signal() {
	select {
	case g.wake <- struct{}{}:
	default:
	}
}

// gossipDelegate is what memberlist calls, under its own lock: each method only touches a map of ours and signals.
type gossipDelegate gossip

// NotifyAlive keeps nodes of other clusters out.
func (d *gossipDelegate) NotifyAlive(n *memberlist.Node) error {
	var m nodeMeta
	if err := json.Unmarshal(n.Meta, &m); err != nil || m.ID == "" {
		return fmt.Errorf("gossip: %s is not one of ours", n.Name)
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if m.Cluster != "" && d.meta.Cluster != "" && m.Cluster != d.meta.Cluster {
		return fmt.Errorf("gossip: %s belongs to cluster %s, this node to %s", m.ID, m.Cluster, d.meta.Cluster)
	}
	return nil
}

// NotifyJoin and NotifyUpdate keep the newest word of a process.
func (d *gossipDelegate) NotifyJoin(n *memberlist.Node) {
	var m nodeMeta
	if err := json.Unmarshal(n.Meta, &m); err != nil || m.ID == "" {
		return
	}
	p := alivePeer{nodeMeta: m, Gossip: n.Address(), Since: d.now()}
	d.mu.Lock()
	if old, ok := d.alive[n.Name]; ok {
		p.Since = old.Since
	}
	d.alive[n.Name] = p
	d.mu.Unlock()
	(*gossip)(d).signal()
}

// NotifyUpdate is NotifyJoin.
func (d *gossipDelegate) NotifyUpdate(n *memberlist.Node) { d.NotifyJoin(n) }

// NotifyLeave forgets a process that left or died.
func (d *gossipDelegate) NotifyLeave(n *memberlist.Node) {
	d.mu.Lock()
	delete(d.alive, n.Name)
	d.mu.Unlock()
	(*gossip)(d).signal()
}

// NodeMeta is what this node says of itself; start has made sure that it fits.
func (d *gossipDelegate) NodeMeta(limit int) []byte {
	raw := (*gossip)(d).encodeMeta()
	if len(raw) > limit {
		d.log.Error("gossip: meta is too long", "bytes", len(raw), "limit", limit)
		return nil
	}
	return raw
}

// NotifyMsg, GetBroadcasts, LocalState and MergeRemoteState are not used.
func (*gossipDelegate) NotifyMsg([]byte)                { /* no messages of our own */ }
func (*gossipDelegate) GetBroadcasts(int, int) [][]byte { return nil }
func (*gossipDelegate) LocalState(bool) []byte          { return nil }
func (*gossipDelegate) MergeRemoteState([]byte, bool)   { /* no state of our own */ }

// gossipLog brings memberlist's lines to slog; a rumour's troubles are of interest only to who debugs. Some goroutines of
// memberlist end a little after its Shutdown: what they say then is dropped.
type gossipLog gossip

func (g *gossipLog) Write(line []byte) (int, error) {
	if !g.stopped.Load() {
		g.log.Debug(strings.TrimSpace(string(line)))
	}
	return len(line), nil
}

// sleep waits or ends with the context.
func sleep(ctx context.Context, d time.Duration) {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-ctx.Done():
	}
}

// sortedKeys of a map.
func sortedKeys[V any](m map[string]V) []string { return slices.Sorted(maps.Keys(m)) }
