package peer

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/hashicorp/raft"
)

// Mux carries all groups of one node. Make it with New, start it with Run.
type Mux struct {
	c     Config       // set before sharing
	log   *slog.Logger // set before sharing
	stats counters
	gate  gate
	pacer pacer
	sends chan struct{} // holds a token per snapshot being sent
	// handlers is set before Run.
	handlers   [256]route
	handshakes atomic.Int32
	base       atomic.Pointer[context.Context] // of Run; nil before

	mu      sync.Mutex
	running bool                       // guarded by mu
	started bool                       // guarded by mu
	wg      sync.WaitGroup             // Add only while running, under mu
	links   map[string]*link           // guarded by mu
	groups  map[uint32]*groupTransport // guarded by mu
	conns   map[*conn]struct{}         // guarded by mu
}

// New makes a mux; it neither listens nor dials before Run.
func New(c Config) *Mux {
	c = c.withDefaults()
	return &Mux{
		c: c, log: c.Logger, gate: newGate(c.Handlers, c.GroupHandlers), pacer: pacer{rate: c.SnapshotRate},
		sends: make(chan struct{}, c.SnapshotSends), links: map[string]*link{},
		groups: map[uint32]*groupTransport{}, conns: map[*conn]struct{}{},
	}
}

// Run accepts connections on ln and dials on demand until ctx ends; then it closes everything and returns when all
// its goroutines have returned, handlers included. It returns nil when ctx has ended it, and may be called once.
func (m *Mux) Run(ctx context.Context, ln net.Listener) error {
	if err := m.c.Validate(); err != nil {
		return err
	}
	// Connections end after the listener, so that a peer that sees the loss and dials is refused, not left hanging.
	inner, cancel := context.WithCancelCause(context.WithoutCancel(ctx))
	defer cancel(ErrClosed)
	m.mu.Lock()
	if m.started {
		m.mu.Unlock()
		return fmt.Errorf("run peer mux a second time: %w", ErrClosed)
	}
	m.started, m.running = true, true
	m.base.Store(&inner)
	m.mu.Unlock()
	stop := context.AfterFunc(ctx, func() { _ = ln.Close() })
	defer stop()
	err := m.accept(ctx, ln)
	_ = ln.Close()
	m.mu.Lock()
	m.running = false
	conns := slices.Collect(maps.Keys(m.conns))
	m.mu.Unlock()
	cancel(ErrClosed)
	for _, c := range conns {
		c.close(ErrClosed) // a writer may be waiting for a peer that does not read
	}
	m.wg.Wait()
	return err
}

var closedContext = func() context.Context {
	ctx, cancel := context.WithCancelCause(context.Background())
	cancel(ErrClosed)
	return ctx
}()

// context is Run's; before Run it is one that has ended.
func (m *Mux) context() context.Context {
	if p := m.base.Load(); p != nil {
		return *p
	}
	return closedContext
}

// spawn starts a goroutine that Run waits for; false means that the mux does not run.
func (m *Mux) spawn(f func()) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	if !m.running {
		return false
	}
	m.wg.Go(f)
	return true
}

// accept takes connections until ctx ends or the listener is closed.
func (m *Mux) accept(ctx context.Context, ln net.Listener) error {
	pause := time.Duration(0)
	for {
		nc, err := ln.Accept()
		switch {
		case ctx.Err() != nil:
			if err == nil {
				_ = nc.Close()
			}
			return nil
		case errors.Is(err, net.ErrClosed):
			return fmt.Errorf("accept peers: %w", err)
		case err != nil:
			pause = min(max(2*pause, 5*time.Millisecond), time.Second)
			m.log.Error("accept peer connection", "error", err, "pause", pause)
			sleep(ctx, pause)
			continue
		}
		pause = 0
		if m.handshakes.Add(1) > maxHandshakes {
			m.handshakes.Add(-1)
			m.stats.refused.Add(1)
			m.log.Error("peer connection refused: too many handshakes under way", "limit", maxHandshakes)
			_ = nc.Close()
			continue
		}
		m.stats.accepted.Add(1)
		if !m.spawn(func() { m.welcome(m.context(), nc) }) {
			_ = nc.Close()
		}
	}
}

// welcome does the handshake with a connection that came in, and puts it to its use.
func (m *Mux) welcome(ctx context.Context, nc net.Conn) {
	stop := guard(ctx, nc)
	own := m.identity()
	br, h, err := m.receive(nc)
	m.handshakes.Add(-1)
	if !stop() || err != nil {
		_ = nc.Close()
		if err != nil && ctx.Err() == nil {
			m.stats.refused.Add(1)
			m.log.Warn("peer connection refused", "from", h.self.node, "remote", nc.RemoteAddr(), "error", err)
		}
		return
	}
	switch h.kind {
	case kindSnapshot:
		m.receiveSnapshot(ctx, nc, br, h)
	case kindOnce:
		_, err = m.open(nc, br, nil, own, h.self, false)
	default:
		_, err = m.open(nc, br, m.linkTo(h.self.node), own, h.self, false)
	}
	if err != nil {
		_ = nc.Close()
	}
}

// dial connects and introduces this node. Either node is set, and resolved, or addr.
func (m *Mux) dial(ctx context.Context, kind connKind, node, addr string) (net.Conn, *bufio.Reader, identity, error) {
	m.stats.dials.Add(1)
	nc, br, remote, err := m.tryDial(ctx, kind, node, addr)
	if err != nil {
		m.stats.dialErrors.Add(1)
		if ctx.Err() != nil && m.context().Err() != nil {
			err = ErrClosed
		}
	}
	return nc, br, remote, err
}

func (m *Mux) tryDial(ctx context.Context, kind connKind, node, addr string) (net.Conn, *bufio.Reader, identity, error) {
	if node != "" {
		var ok bool
		if addr, ok = m.c.Resolve(node); !ok {
			return nil, nil, identity{}, ErrUnknownNode
		}
	}
	nc, err := m.c.Dial(ctx, addr)
	if err != nil {
		return nil, nil, identity{}, fmt.Errorf("dial %s: %w", addr, err)
	}
	stop := guard(ctx, nc)
	br, remote, err := m.introduce(nc, kind, node)
	if !stop() && err == nil {
		err = context.Cause(ctx)
	}
	if err != nil {
		_ = nc.Close()
		return nil, nil, identity{}, fmt.Errorf("dial %s: %w", addr, err)
	}
	return nc, br, remote, nil
}

func (m *Mux) linkTo(node string) *link {
	m.mu.Lock()
	defer m.mu.Unlock()
	l := m.links[node]
	if l == nil {
		l = newLink(m, node)
		m.links[node] = l
	}
	return l
}

// Group opens the Raft transport of a group: shards by their number, the directory at 65,535. Its LocalAddr is the
// node ID, and so are the addresses that it is given. It takes heartbeats to Raft's main loop and has pre-vote and
// pipeline. Close, or a second Group with the same number, ends it; so a replica that is opened again cannot share
// requests with one that was abandoned.
func (m *Mux) Group(group uint32) raft.Transport {
	g := newGroup(m, group)
	m.mu.Lock()
	old := m.groups[group]
	m.groups[group] = g
	m.mu.Unlock()
	if old != nil {
		old.shut()
	}
	return g
}

func (m *Mux) groupOf(group uint32) *groupTransport {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.groups[group]
}
