package client

import (
	"context"
	"math/rand/v2"
	"slices"
	"sync"
	"time"

	"google.golang.org/grpc/connectivity"

	carillonv1 "github.com/carillon-timers/carillon/proto/carillon/v1"
)

// suspicion is how long an address that did not answer an attempt is passed over while another one is connected.
const suspicion = 2 * time.Second

// Instead of a shard, pick takes one of these.
const (
	anyNode   = -1 // any node does
	askedNode = -2 // what a node thinks is asked for: a configured address is meant, if one is connected
)

// router knows the addresses, the members and the leaders, and picks the connection for a call.
type router struct {
	open func(addr string) (*endpoint, error) // set once
	now  func() time.Time                     // set once

	mu        sync.Mutex
	endpoints map[string]*endpoint // by address; guarded by mu
	members   map[string]Member    // by node ID; guarded by mu
	leaders   []leader             // by shard; empty until the cluster is formed; guarded by mu
	changed   chan struct{}        // closed and replaced at each change of the above or of a connection; guarded by mu
}

// leader is who is believed to lead a shard.
type leader struct {
	node  string
	epoch int64
}

func newRouter(open func(addr string) (*endpoint, error), now func() time.Time) *router {
	return &router{
		open:      open,
		now:       now,
		endpoints: make(map[string]*endpoint),
		members:   make(map[string]Member),
		changed:   make(chan struct{}),
	}
}

// wait returns a channel that is closed at the next change.
func (r *router) wait() <-chan struct{} {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.changed
}

func (r *router) touch() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.touchLocked()
}

func (r *router) touchLocked() {
	close(r.changed)
	r.changed = make(chan struct{})
}

// add opens a connection to the address if there is none.
func (r *router) add(addr string, configured bool) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.addLocked(addr, configured)
}

func (r *router) addLocked(addr string, configured bool) error {
	if addr == "" || r.endpoints[addr] != nil {
		return nil
	}
	e, err := r.open(addr)
	if err != nil {
		return err
	}
	e.configured = configured
	r.endpoints[addr] = e
	r.touchLocked()
	return nil
}

// update takes what a node said about the cluster. What is older than what is known of a shard is left out.
func (r *router) update(members *carillonv1.MembersResponse, shards *carillonv1.ShardsResponse) {
	r.mu.Lock()
	known := make(map[string]Member, len(members.GetMembers()))
	for _, pb := range members.GetMembers() {
		m := memberOf(pb)
		known[m.ID] = m
		// An address that is not valid is met again when a call needs the node; the others serve meanwhile.
		_ = r.addLocked(m.ClientAddr, false)
	}
	r.members = known
	if n := int(members.GetShards()); n != len(r.leaders) {
		r.leaders = make([]leader, n)
	}
	for _, s := range shards.GetShards() {
		id := int(s.GetId())
		if id < 0 || id >= len(r.leaders) || s.GetLeader() == "" || s.GetEpoch() < r.leaders[id].epoch {
			continue
		}
		r.leaders[id] = leader{node: s.GetLeader(), epoch: s.GetEpoch()}
	}
	gone := r.dropLocked()
	r.touchLocked()
	r.mu.Unlock()
	for _, e := range gone {
		e.close()
	}
}

// dropLocked takes out the addresses that are neither configured nor a member's.
func (r *router) dropLocked() []*endpoint {
	var gone []*endpoint
	for addr, e := range r.endpoints {
		if e.configured || slices.ContainsFunc(r.memberList(), func(m Member) bool { return m.ClientAddr == addr }) {
			continue
		}
		delete(r.endpoints, addr)
		gone = append(gone, e)
	}
	return gone
}

// memberList is called with mu held.
func (r *router) memberList() []Member {
	list := make([]Member, 0, len(r.members))
	for _, m := range r.members {
		list = append(list, m)
	}
	return list
}

// alive returns the IDs of the members that are alive.
func (r *router) alive() []string {
	r.mu.Lock()
	defer r.mu.Unlock()
	var ids []string
	for id, m := range r.members {
		if m.Alive {
			ids = append(ids, id)
		}
	}
	return ids
}

// shardOf returns the shard of a timer, anyNode while the number of shards is not known.
func (r *router) shardOf(namespace, id string) int {
	r.mu.Lock()
	n := len(r.leaders)
	r.mu.Unlock()
	if n == 0 {
		return anyNode
	}
	return carillonv1.ShardOf(namespace, id, n)
}

// learn takes the hint of a node that does not lead the shard.
func (r *router) learn(shard int, hint *notLeaderError) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if shard < 0 || shard >= len(r.leaders) || hint.leader == "" {
		return
	}
	r.leaders[shard].node = hint.leader
	if _, ok := r.members[hint.leader]; !ok && hint.addr != "" {
		r.members[hint.leader] = Member{ID: hint.leader, ClientAddr: hint.addr, Alive: true}
		_ = r.addLocked(hint.addr, false)
	}
}

// pick returns the connection for a call about the shard: the leader's if it is connected, else any. It returns nil if
// none is connected.
func (r *router) pick(shard int) *endpoint {
	r.mu.Lock()
	defer r.mu.Unlock()
	now := r.now()
	if shard >= 0 && shard < len(r.leaders) {
		if e := r.nodeLocked(r.leaders[shard].node); e != nil && !e.suspect(now) {
			return e
		}
	}
	if shard == askedNode {
		if e := r.anyLocked(now, true); e != nil {
			return e
		}
	}
	return r.anyLocked(now, false)
}

// anyLocked picks one of the connected addresses at random, one that is not suspect if possible.
func (r *router) anyLocked(now time.Time, configured bool) *endpoint {
	var good, bad []*endpoint
	for _, e := range r.endpoints {
		switch {
		case !e.ready() || configured && !e.configured:
		case e.suspect(now):
			bad = append(bad, e)
		default:
			good = append(good, e)
		}
	}
	if len(good) == 0 {
		good = bad
	}
	if len(good) == 0 {
		return nil
	}
	return good[rand.IntN(len(good))]
}

// node returns a connected way to the node itself: its advertised address, or a configured one that is known to lead to
// it; nil if there is none.
func (r *router) node(id string) *endpoint {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.nodeLocked(id)
}

func (r *router) nodeLocked(id string) *endpoint {
	m, ok := r.members[id]
	if !ok {
		return nil
	}
	if e := r.endpoints[m.ClientAddr]; e != nil && e.ready() {
		return e
	}
	for _, e := range r.endpoints {
		if e.node == id && e.ready() {
			return e
		}
	}
	return nil
}

// list returns all addresses, the connected ones first and of those the ones that answer, else in random order.
func (r *router) list() []*endpoint {
	r.mu.Lock()
	defer r.mu.Unlock()
	now := r.now()
	var all []*endpoint
	for _, e := range r.endpoints {
		all = append(all, e)
	}
	rand.Shuffle(len(all), func(i, j int) { all[i], all[j] = all[j], all[i] })
	slices.SortStableFunc(all, func(a, b *endpoint) int { return rank(a, now) - rank(b, now) })
	return all
}

// The order of list.
const (
	rankReady = iota
	rankSuspect
	rankConnecting
	rankFailed
)

func rank(e *endpoint, now time.Time) int {
	switch e.conn.GetState() {
	case connectivity.Ready:
		if e.suspect(now) {
			return rankSuspect
		}
		return rankReady
	case connectivity.TransientFailure, connectivity.Shutdown:
		return rankFailed
	}
	return rankConnecting
}

// unnamed returns the connected addresses that no member advertises: which node they lead to must be asked.
func (r *router) unnamed() []*endpoint {
	r.mu.Lock()
	defer r.mu.Unlock()
	var list []*endpoint
	for addr, e := range r.endpoints {
		advertised := slices.ContainsFunc(r.memberList(), func(m Member) bool { return m.ClientAddr == addr })
		if !advertised && e.ready() {
			list = append(list, e)
		}
	}
	return list
}

// name says which node an address leads to.
func (r *router) name(e *endpoint, node string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if e.node != node {
		e.node = node
		r.touchLocked()
	}
}

// blame marks an address that did not answer.
func (r *router) blame(e *endpoint) {
	e.suspectUntil.Store(r.now().Add(suspicion).UnixNano())
}

// awaitReady returns when an address is connected, or when all have failed to.
func (r *router) awaitReady(ctx context.Context) {
	for {
		changed := r.wait()
		if all := r.list(); rank(all[0], r.now()) != rankConnecting {
			return
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return
		}
	}
}
