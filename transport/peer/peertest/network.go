// Package peertest is a network in memory for tests: streams with delay, cuts, freezes and refusals, on channels and
// timers only, so that it works in a synctest bubble. Only tests import it.
//
// A network must be made inside the bubble that uses it.
package peertest

import (
	"context"
	"net"
	"sync"
	"syscall"
	"time"
)

// windowBytes is how much one direction of a stream holds before its writer waits, like a socket's buffers.
const windowBytes = 256 << 10

// backlog is how many connections a listener holds that have not been accepted.
const backlog = 128

// Network joins hosts, each named by the address it listens at.
type Network struct {
	mu        sync.Mutex
	cond      *sync.Cond                  // on mu; broadcast at every change
	listeners map[string]*listener        // guarded by mu
	cut       map[[2]string]bool          // guarded by mu; by ordered pair
	frozen    map[string]bool             // guarded by mu
	dead      map[string]bool             // guarded by mu; killed and not listening again
	silent    map[string]bool             // guarded by mu; dials to it get no answer
	delay     map[[2]string]time.Duration // guarded by mu; one way
	conns     map[*Conn]struct{}          // guarded by mu
	dials     int                         // guarded by mu
}

// New makes a network without hosts.
func New() *Network {
	n := &Network{
		listeners: map[string]*listener{}, cut: map[[2]string]bool{}, frozen: map[string]bool{},
		dead: map[string]bool{}, silent: map[string]bool{}, delay: map[[2]string]time.Duration{}, conns: map[*Conn]struct{}{},
	}
	n.cond = sync.NewCond(&n.mu)
	return n
}

// pair is the key of a link in both directions.
func pair(a, b string) [2]string {
	if a > b {
		a, b = b, a
	}
	return [2]string{a, b}
}

// Listen makes addr a host that accepts connections until the listener is closed; then dials are refused.
func (n *Network) Listen(addr string) (net.Listener, error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.listeners[addr] != nil {
		return nil, &net.OpError{Op: "listen", Net: "mem", Addr: address(addr), Err: syscall.EADDRINUSE}
	}
	delete(n.dead, addr)
	l := &listener{n: n, addr: addr}
	n.listeners[addr] = l
	return l, nil
}

// Dial connects to addr from a host without a name, which cannot be cut off.
func (n *Network) Dial(ctx context.Context, addr string) (net.Conn, error) {
	return n.dial(ctx, "", addr)
}

// Dialer returns the dialling function of a host.
func (n *Network) Dialer(from string) func(ctx context.Context, addr string) (net.Conn, error) {
	return func(ctx context.Context, addr string) (net.Conn, error) { return n.dial(ctx, from, addr) }
}

// dial waits while the link is cut or the host is silent; a host that does not listen refuses.
func (n *Network) dial(ctx context.Context, from, to string) (net.Conn, error) {
	fail := func(err error) error { return &net.OpError{Op: "dial", Net: "mem", Addr: address(to), Err: err} }
	stop := context.AfterFunc(ctx, func() {
		n.mu.Lock()
		defer n.mu.Unlock()
		n.cond.Broadcast()
	})
	defer stop()
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.dead[from] {
		return nil, fail(syscall.ENETDOWN)
	}
	n.dials++
	trip := 2 * n.delay[pair(from, to)]
	if trip > 0 {
		n.mu.Unlock()
		t := time.NewTimer(trip)
		select {
		case <-t.C:
		case <-ctx.Done():
		}
		t.Stop()
		n.mu.Lock()
	}
	for {
		if ctx.Err() != nil {
			return nil, fail(context.Cause(ctx))
		}
		if !n.cut[pair(from, to)] && !n.silent[to] && !n.frozen[from] {
			l := n.listeners[to]
			if l == nil {
				return nil, fail(syscall.ECONNREFUSED)
			}
			if len(l.queue) < backlog {
				a, b := n.connect(from, to)
				l.queue = append(l.queue, b)
				n.cond.Broadcast()
				return a, nil
			}
		}
		n.cond.Wait()
	}
}

func (n *Network) connect(from, to string) (*Conn, *Conn) {
	ab, ba := &stream{n: n, from: from, to: to}, &stream{n: n, from: to, to: from}
	a := &Conn{n: n, in: ba, out: ab, local: from, remote: to}
	b := &Conn{n: n, in: ab, out: ba, local: to, remote: from}
	n.conns[a], n.conns[b] = struct{}{}, struct{}{}
	return a, b
}

// change runs f under the lock and wakes everyone.
func (n *Network) change(f func()) {
	n.mu.Lock()
	defer n.mu.Unlock()
	f()
	n.cond.Broadcast()
}

// Cut holds back everything between two hosts: what is written waits, dials wait. Nothing is lost, as with TCP.
func (n *Network) Cut(a, b string) { n.change(func() { n.cut[pair(a, b)] = true }) }

// Heal undoes Cut.
func (n *Network) Heal(a, b string) { n.change(func() { delete(n.cut, pair(a, b)) }) }

// Isolate cuts a host off from all others that listen now.
func (n *Network) Isolate(host string) {
	n.change(func() {
		for addr := range n.listeners {
			if addr != host {
				n.cut[pair(host, addr)] = true
			}
		}
	})
}

// HealAll undoes every Cut, Freeze and Silence.
func (n *Network) HealAll() {
	n.change(func() {
		clear(n.cut)
		clear(n.frozen)
		clear(n.silent)
	})
}

// Freeze stops a host like a suspended process: dials to it succeed, and nothing goes in or out.
func (n *Network) Freeze(host string) { n.change(func() { n.frozen[host] = true }) }

// Thaw undoes Freeze.
func (n *Network) Thaw(host string) { n.change(func() { delete(n.frozen, host) }) }

// Silence makes dials to a host wait for ever, like a firewall that drops; open connections go on.
func (n *Network) Silence(host string) { n.change(func() { n.silent[host] = true }) }

// Delay sets the time that each way between two hosts takes, for what is written from now on.
func (n *Network) Delay(a, b string, d time.Duration) { n.change(func() { n.delay[pair(a, b)] = d }) }

// Break resets all connections between two hosts; both ends see it at once.
func (n *Network) Break(a, b string) {
	n.change(func() {
		for c := range n.conns {
			if pair(c.local, c.remote) == pair(a, b) {
				c.in.err, c.out.err = syscall.ECONNRESET, syscall.ECONNRESET
			}
		}
	})
}

// Kill ends a host like a process that dies: its listener is gone, its connections are reset, and it cannot dial until
// it listens again.
func (n *Network) Kill(host string) {
	n.change(func() {
		n.dead[host] = true
		if l := n.listeners[host]; l != nil {
			l.closed = true
			delete(n.listeners, host)
		}
		for c := range n.conns {
			if c.local == host || c.remote == host {
				c.in.err, c.out.err = syscall.ECONNRESET, syscall.ECONNRESET
			}
		}
	})
}

// Conns returns the number of open connections that have host as an end, each counted once.
func (n *Network) Conns(host string) int {
	n.mu.Lock()
	defer n.mu.Unlock()
	count := 0
	for c := range n.conns {
		if c.local == host {
			count++
		}
	}
	return count
}

// Dials returns how often anybody has dialled.
func (n *Network) Dials() int {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.dials
}

type address string

// Network implements net.Addr.
func (address) Network() string { return "mem" }

// String implements net.Addr.
func (a address) String() string { return string(a) }

type listener struct {
	n      *Network
	addr   string
	queue  []*Conn // guarded by n.mu
	closed bool    // guarded by n.mu
}

// Accept implements net.Listener.
func (l *listener) Accept() (net.Conn, error) {
	l.n.mu.Lock()
	defer l.n.mu.Unlock()
	for {
		if l.closed {
			return nil, &net.OpError{Op: "accept", Net: "mem", Addr: l.Addr(), Err: net.ErrClosed}
		}
		if len(l.queue) > 0 && !l.n.frozen[l.addr] {
			c := l.queue[0]
			l.queue = l.queue[1:]
			l.n.cond.Broadcast()
			return c, nil
		}
		l.n.cond.Wait()
	}
}

// Close implements net.Listener; connections that were not accepted are reset.
func (l *listener) Close() error {
	l.n.change(func() {
		if l.closed {
			return
		}
		l.closed = true
		if l.n.listeners[l.addr] == l {
			delete(l.n.listeners, l.addr)
		}
		for _, c := range l.queue {
			c.in.err, c.out.err = syscall.ECONNRESET, syscall.ECONNRESET
			delete(l.n.conns, c)
		}
		l.queue = nil
	})
	return nil
}

// Addr implements net.Listener.
func (l *listener) Addr() net.Addr { return address(l.addr) }

var _ net.Conn = (*Conn)(nil)
