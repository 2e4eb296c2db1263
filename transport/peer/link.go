package peer

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"sync"
	"syscall"
	"time"
)

// redials are the instants after a loss at which the node is dialled again.
var redials = [...]time.Duration{0, 2 * time.Millisecond, 10 * time.Millisecond, 40 * time.Millisecond}

// link is what this node knows of one other node: its connection, and when to dial.
type link struct {
	m    *Mux
	node string

	mu       sync.Mutex
	active   *conn         // guarded by mu; new requests go here
	dialling bool          // guarded by mu
	changed  chan struct{} // guarded by mu; closed when a dial ends or active is set
	failures int           // guarded by mu; dials in a row
	retryAt  time.Time     // guarded by mu; not dialled before
	flaps    int           // guarded by mu; connections in a row that broke soon
	lastErr  error         // guarded by mu; of the last dial
	boot     string        // guarded by mu; the newest boot seen
	gone     string        // guarded by mu; the last boot reported as gone
}

func newLink(m *Mux, node string) *link {
	return &link{m: m, node: node, changed: make(chan struct{})}
}

// get returns the connection to use. It dials if there is none, waits for a dial under way, and fails at once while
// the last failed dial is too recent.
func (l *link) get(ctx context.Context) (*conn, error) {
	for {
		if l.m.context().Err() != nil {
			return nil, ErrClosed
		}
		l.mu.Lock()
		if c := l.active; c != nil {
			l.mu.Unlock()
			return c, nil
		}
		if !l.dialling {
			if wait := l.retryAt.Sub(now()); wait > 0 {
				err := l.lastErr
				l.mu.Unlock()
				return nil, fmt.Errorf("next dial in %v: %w", wait.Round(time.Millisecond), err)
			}
			l.dialling = true
			if !l.m.spawn(l.dialOnce) {
				l.dialling = false
				l.mu.Unlock()
				return nil, ErrClosed
			}
		}
		changed := l.changed
		l.mu.Unlock()
		select {
		case <-changed:
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		}
	}
}

// await waits until there is a connection, through any number of failed dials, or until ctx ends.
func (l *link) await(ctx context.Context) error {
	for {
		_, err := l.get(ctx)
		if err == nil || ctx.Err() != nil || errors.Is(err, ErrClosed) {
			return err
		}
		l.mu.Lock()
		changed, wait := l.changed, l.retryAt.Sub(now())
		l.mu.Unlock()
		next := time.NewTimer(max(wait, time.Millisecond))
		select {
		case <-changed:
		case <-next.C:
		case <-ctx.Done():
		}
		next.Stop()
	}
}

// notify wakes all that wait for a change; l.mu is held.
func (l *link) notify() {
	close(l.changed)
	l.changed = make(chan struct{})
}

func (l *link) dialOnce() {
	l.ended(l.dial())
}

// ended notes the end of a dial, or of a row of them.
func (l *link) ended(err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.dialling = false
	l.lastErr = err
	if err == nil || l.active != nil {
		l.failures = 0
	} else {
		l.pause()
	}
	l.notify()
}

// pause sets the instant of the next dial after a failure; l.mu is held.
func (l *link) pause() {
	c := &l.m.c
	wait := min(c.BackoffMin<<min(l.failures, 20), c.BackoffMax)
	l.failures++
	l.retryAt = now().Add(wait - time.Duration(rand.Int64N(int64(wait)/4+1)))
}

// dial opens a connection and adds it.
func (l *link) dial() error {
	m := l.m
	ctx, cancel := context.WithTimeout(m.context(), m.c.DialTimeout)
	defer cancel()
	own := m.identity()
	nc, br, remote, err := m.dial(ctx, kindPeer, l.node, "")
	if err != nil {
		m.log.Debug("dial peer", "node", l.node, "error", err)
		return err
	}
	_, err = m.open(nc, br, l, own, remote, true)
	return err
}

// add takes a new connection in and picks the one to use. Both ends pick the same: a newer boot over an older, then
// the one dialled by the node with the lower ID, then the newer. The others are drained.
func (l *link) add(c *conn) {
	l.mu.Lock()
	old := l.active
	keep := old != nil && old.remote.boot == c.remote.boot && old.dialledBy() < c.dialledBy()
	lost := ""
	if l.boot != "" && l.boot != c.remote.boot && l.gone != l.boot {
		lost, l.gone = l.boot, l.boot
	}
	l.boot = c.remote.boot
	if l.gone == l.boot {
		l.gone = "" // only its listener was
	}
	if !keep {
		l.active = c
	}
	l.failures, l.retryAt, l.lastErr = 0, time.Time{}, nil
	l.notify()
	l.mu.Unlock()
	switch {
	case keep:
		c.drain(true)
	case old != nil && old.remote.boot != c.remote.boot:
		old.drainNow()
	case old != nil:
		old.drain(true)
	}
	if lost != "" {
		l.report(lost, true)
	}
}

// dialledBy is the ID of the node that dialled.
func (c *conn) dialledBy() string {
	if c.dialled {
		return c.m.c.NodeID
	}
	return c.remote.node
}

// drainNow ends a connection to a process that is gone.
func (c *conn) drainNow() {
	c.mu.Lock()
	c.draining = true
	c.mu.Unlock()
	c.close(errReplaced)
}

// demote takes a connection out of use that is still open.
func (l *link) demote(c *conn) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.active == c {
		l.active = nil
	}
}

// remove takes out a connection that has ended; a loss starts the immediate re-dials.
func (l *link) remove(c *conn, drained bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.active != c {
		return
	}
	l.active = nil
	if drained || l.dialling {
		return
	}
	if now().Sub(c.since) >= l.m.c.BackoffMax {
		l.flaps = 0
	} else if l.flaps++; l.flaps > flapsMax {
		l.lastErr = fmt.Errorf("%d connections in a row broke at once: %w", l.flaps, ErrConnLost)
		l.failures = max(l.failures, l.flaps-1)
		l.pause()
		return
	}
	boot := c.remote.boot
	l.dialling = l.m.spawn(func() { l.redial(boot) })
}

// redial dials a node whose connection has broken, and reports it if that fails.
func (l *link) redial(boot string) {
	start := now()
	refused := false
	var err error
	for _, at := range redials {
		if !sleep(l.m.context(), at-now().Sub(start)) {
			l.ended(ErrClosed)
			return
		}
		if l.connected() {
			break // the node has dialled us
		}
		if err = l.dial(); err == nil {
			l.m.stats.reconnects.Add(1)
			break
		}
		refused = errors.Is(err, syscall.ECONNREFUSED)
		if errors.Is(err, context.DeadlineExceeded) || errors.Is(err, os.ErrDeadlineExceeded) {
			break
		}
	}
	l.ended(err)
	if l.m.context().Err() != nil || l.connected() {
		return
	}
	l.lost(boot, refused)
}

// lost reports a loss, once per boot if the boot is known to be gone.
func (l *link) lost(boot string, refused bool) {
	l.mu.Lock()
	known := l.gone == boot
	if refused {
		l.gone = boot
	}
	l.mu.Unlock()
	if known {
		return
	}
	l.m.log.Warn("peer lost", "node", l.node, "boot", boot, "refused", refused)
	if l.m.c.OnPeerLost != nil {
		l.m.c.OnPeerLost(l.node, boot, refused)
	}
}

// report calls the hook from a goroutine of its own.
func (l *link) report(boot string, refused bool) {
	l.m.log.Info("peer restarted", "node", l.node, "boot", boot)
	if l.m.c.OnPeerLost != nil {
		l.m.spawn(func() { l.m.c.OnPeerLost(l.node, boot, refused) })
	}
}

func (l *link) connected() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.active != nil
}

// sleep waits for d; false means that ctx has ended.
func sleep(ctx context.Context, d time.Duration) bool {
	if d <= 0 {
		return ctx.Err() == nil
	}
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return true
	case <-ctx.Done():
		return false
	}
}
