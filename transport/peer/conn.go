package peer

import (
	"bufio"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"sync"
	"sync/atomic"
	"time"
)

var noDeadline time.Time

// call is a request that waits for its answer.
type call struct {
	message
	then interface{ settled() } // nil, or told before done is closed; it must not wait
	done chan struct{}          // closed when body or err is set
	body []byte                 // of the response; set before done is closed
	err  error                  // set before done is closed
}

// settle wakes who waits for the call. It is called once, by who has taken it out of pending.
func (p *call) settle() {
	if p.then != nil {
		p.then.settled()
	}
	close(p.done)
}

// conn is one connection in use, in both directions.
type conn struct {
	m       *Mux
	nc      net.Conn
	in      *reassembler // touched by the reader alone
	out     *outbox
	link    *link // nil for a connection of one call
	remote  identity
	dialled bool
	since   time.Time
	ctx     context.Context // ends, with the cause, when the connection does
	cancel  context.CancelCauseFunc
	gone    chan struct{} // closed when the link knows of the end

	try     func([]byte) (int, error) // set before sharing; writes what it can without waiting; nil if the connection has no such thing
	buf     []byte                    // touched by whose turn it is to write
	left    []byte                    // touched by whose turn it is to write; the end of buf that the socket did not take
	written atomic.Int64              // when something was written, as the time after since

	mu          sync.Mutex
	lastID      uint64                        // guarded by mu
	pending     map[uint64]*call              // guarded by mu
	serving     map[uint64]context.CancelFunc // guarded by mu
	cluster     string                        // guarded by mu; what the remote node belongs to
	announced   string                        // guarded by mu; what it knows that we belong to
	draining    bool                          // guarded by mu; starts nothing new
	toldDrained bool                          // guarded by mu
	peerDrained bool                          // guarded by mu
	drainTimer  *time.Timer                   // guarded by mu
	pingTimer   *time.Timer                   // guarded by mu
	closed      bool                          // guarded by mu
}

// open makes a connection of what a handshake has left, adds it to its link and starts its reader and writer. It
// fails only when the mux stops.
func (m *Mux) open(nc net.Conn, br *bufio.Reader, l *link, own, remote identity, dialled bool) (*conn, error) {
	c := &conn{
		m: m, nc: nc, link: l, remote: remote, dialled: dialled, since: now(),
		out:     newOutbox(m.c.GroupQueue, m.c.GroupQueueBytes),
		pending: map[uint64]*call{}, serving: map[uint64]context.CancelFunc{}, gone: make(chan struct{}),
		cluster: remote.cluster, announced: own.cluster,
	}
	limitUnsent(nc)
	c.try = tryWriter(nc)
	c.out.direct = c.try != nil
	c.in = newReassembler(&deadlineReader{c: c, r: nc, ahead: br}, m.c.MaxMessage)
	c.ctx, c.cancel = context.WithCancelCause(m.context())
	c.mu.Lock()
	c.pingTimer = time.AfterFunc(c.pause(), c.keepAlive)
	c.mu.Unlock()
	m.mu.Lock()
	m.conns[c] = struct{}{}
	m.mu.Unlock()
	if l != nil {
		l.add(c) // before anything is read: who was called by a node can call it back
	}
	if !m.spawn(c.write) {
		c.close(ErrClosed)
		return nil, ErrClosed
	}
	m.spawn(c.read)
	return c, nil
}

// deadlineReader reads what the handshake has read ahead, then the connection, each time within DeadAfter and a sixteenth of it
// at the most: the deadline is not moved with each read.
type deadlineReader struct {
	c     *conn
	r     net.Conn
	ahead *bufio.Reader
	moved time.Time // when the deadline was
}

func (d *deadlineReader) Read(p []byte) (int, error) {
	if d.ahead != nil {
		if n := d.ahead.Buffered(); n > 0 {
			return d.ahead.Read(p[:min(n, len(p))])
		}
		d.ahead = nil
	}
	dead := d.c.m.c.DeadAfter
	if present := now(); present.Sub(d.moved) > dead/16 {
		_ = d.r.SetReadDeadline(present.Add(dead + dead/16))
		d.moved = present
	}
	n, err := d.r.Read(p)
	if n == 0 && errors.Is(err, os.ErrDeadlineExceeded) {
		err = fmt.Errorf("%w for %v", errSilent, dead)
	}
	return n, err
}

// read is the reader's loop. It never waits for anything but the network.
func (c *conn) read() {
	for {
		frames, bytes := c.in.frames, c.in.bytes
		h, payload, err := c.in.next()
		c.m.stats.framesIn.Add(c.in.frames - frames)
		c.m.stats.bytesIn.Add(c.in.bytes - bytes)
		if err == nil {
			err = c.handle(h, payload)
		}
		if err != nil {
			c.close(err)
			return
		}
	}
}

// close ends the connection, once: all that is pending fails with err.
func (c *conn) close(err error) {
	c.mu.Lock()
	if c.closed {
		c.mu.Unlock()
		return
	}
	c.closed = true
	pending, serving, draining := c.pending, c.serving, c.draining
	c.pending, c.serving = nil, nil
	if c.drainTimer != nil {
		c.drainTimer.Stop()
	}
	c.pingTimer.Stop()
	c.mu.Unlock()
	c.cancel(err)
	c.out.close()
	_ = c.nc.Close()
	for _, cancel := range serving {
		cancel()
	}
	for _, p := range pending {
		p.err = fmt.Errorf("%w: %w", ErrConnLost, err)
		p.settle()
	}
	c.m.mu.Lock()
	delete(c.m.conns, c)
	c.m.mu.Unlock()
	c.report(err, draining)
	if c.link != nil {
		c.link.remove(c, draining)
	}
	close(c.gone)
}

// report logs why the connection has ended, if that is worth it.
func (c *conn) report(err error, draining bool) {
	bad := errors.Is(err, ErrBadFrame) || errors.Is(err, ErrTooLarge)
	if bad {
		c.m.stats.badFrames.Add(1)
		c.m.log.Error("peer connection closed for a bad frame", "node", c.remote.node, "error", err)
		return
	}
	if draining || c.link == nil || c.m.context().Err() != nil {
		return
	}
	c.m.stats.lost.Add(1)
	if errors.Is(err, io.EOF) {
		err = errors.New("closed by the other end")
	}
	c.m.log.Warn("peer connection lost", "node", c.remote.node, "boot", c.remote.boot, "error", err)
}

// start sends a request. An error means that nothing was sent; the payload is then still the caller's.
func (c *conn) start(typ frameType, l lane, payload []byte) (*call, error) {
	p := &call{message: message{typ: typ, group: l.group, payload: payload}, done: make(chan struct{})}
	if err := c.begin(p, l); err != nil {
		return nil, err
	}
	return p, nil
}

// begin sends a request that is made up but for its ID.
func (c *conn) begin(p *call, l lane) error {
	own, mine := c.m.c.ClusterID(), false
	c.mu.Lock()
	if c.closed || c.draining {
		defer c.mu.Unlock()
		if c.closed {
			return ErrConnLost
		}
		return errDraining
	}
	if own != c.announced {
		c.announced = own
		// Under the lock, so that no request overtakes it. It fails only when the connection ends.
		mine, _ = c.out.push(&message{typ: typeIdentify, payload: appendString(nil, own)}, lane{urgent: true})
	}
	c.lastID++
	p.id = c.lastID
	c.pending[p.id] = p
	c.mu.Unlock()
	turn, err := c.out.push(&p.message, l)
	if mine || turn {
		c.flush()
	}
	if err != nil {
		c.mu.Lock()
		delete(c.pending, p.id)
		c.mu.Unlock()
		if errors.Is(err, ErrQueueFull) {
			c.m.stats.queueFull.Add(1)
		}
	}
	return err
}

// sign sends a small urgent frame; a full urgent lane means that the node does not read, and ends the connection.
func (c *conn) sign(typ frameType, id uint64) {
	c.send(&message{typ: typ, id: id}, lane{urgent: true})
}

func (c *conn) send(m *message, l lane) {
	mine, err := c.out.push(m, l)
	if mine {
		c.flush()
	}
	if errors.Is(err, ErrQueueFull) {
		c.m.stats.queueFull.Add(1)
		c.close(fmt.Errorf("answers: %w", err))
	}
}

// wait returns the answer, or why there is none.
func (c *conn) wait(ctx context.Context, p *call) ([]byte, error) {
	select {
	case <-p.done:
	case <-ctx.Done():
		if c.forget(p) {
			return nil, c.unanswered(ctx, p)
		}
		<-p.done // the answer has come at the same time
	}
	if p.err != nil {
		return nil, &CallError{Node: c.remote.node, Sent: !p.cancel(), Err: p.err}
	}
	return p.body, nil
}

func (c *conn) unanswered(ctx context.Context, p *call) error {
	sent := !p.cancel()
	if sent && p.typ == typeCall {
		c.sign(typeCancel, p.id)
	}
	c.settle()
	return &CallError{Node: c.remote.node, Sent: sent, Err: context.Cause(ctx)}
}

// forget takes a call out of pending; false means that it is or will be done.
func (c *conn) forget(p *call) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.pending[p.id] != p {
		return false
	}
	delete(c.pending, p.id)
	return true
}

// abort ends a call without an answer, if it has none yet; false means that it is or will be done, or was never sent.
func (c *conn) abort(p *call, err error) bool {
	if !c.forget(p) {
		return false
	}
	p.err = err
	p.settle()
	c.settle()
	return true
}

// handle does what a message asks for. An error ends the connection.
func (c *conn) handle(h header, payload []byte) error {
	switch h.typ {
	case typePing:
		return nil
	case typeResponse:
		c.answered(h.id, payload)
		return nil
	case typeCall, typeAppendEntries, typeVote, typePreVote, typeTimeoutNow:
		if len(payload) < 4 {
			return fmt.Errorf("%w: request without a deadline", ErrBadFrame)
		}
		timeout := time.Duration(binary.LittleEndian.Uint32(payload)) * time.Millisecond
		if h.typ == typeCall {
			return c.serveCall(h, timeout, payload[4:])
		}
		return c.serveRaft(h, timeout, payload[4:])
	case typeCancel:
		c.mu.Lock()
		cancel := c.serving[h.id]
		c.mu.Unlock()
		if cancel != nil {
			cancel()
		}
		return nil
	case typeIdentify:
		return c.identified(payload)
	case typeGoAway:
		c.drain(false)
		return nil
	case typeDrained:
		c.mu.Lock()
		c.peerDrained = true
		c.mu.Unlock()
		c.settle()
		return nil
	}
	return fmt.Errorf("%w: type %d on a peer connection", ErrBadFrame, h.typ)
}

func (c *conn) answered(id uint64, payload []byte) {
	c.mu.Lock()
	p := c.pending[id]
	delete(c.pending, id)
	draining := c.draining
	c.mu.Unlock()
	if p != nil {
		p.body = payload
		p.settle()
	}
	if draining {
		c.settle()
	}
}

func (c *conn) identified(payload []byte) error {
	d := &decoder{b: payload}
	remote := c.remote
	remote.cluster = d.name(maxNameBytes)
	if err := d.end(); err != nil {
		return err
	}
	if err := checkCluster(c.m.identity(), remote); err != nil {
		return err
	}
	c.mu.Lock()
	c.cluster = remote.cluster
	c.mu.Unlock()
	return nil
}

// member reports whether both ends belong to the same cluster.
func (c *conn) member() bool {
	own := c.m.c.ClusterID()
	c.mu.Lock()
	defer c.mu.Unlock()
	return own != "" && own == c.cluster
}

// drain stops new requests in both directions; the connection ends when none is pending, at the latest after
// CallTimeout. tell says that the other end does not know yet.
func (c *conn) drain(tell bool) {
	c.mu.Lock()
	if c.draining || c.closed {
		c.mu.Unlock()
		return
	}
	c.draining = true
	c.drainTimer = time.AfterFunc(c.m.c.CallTimeout, func() { c.close(errReplaced) })
	c.mu.Unlock()
	if tell {
		c.sign(typeGoAway, 0)
	}
	if c.link != nil {
		c.link.demote(c)
	}
	c.settle()
}

// settle ends a draining connection of which nobody waits for anything. The dialler closes it, when the acceptor has
// said that it is done.
func (c *conn) settle() {
	c.mu.Lock()
	idle := c.draining && !c.closed && len(c.pending) == 0
	tell := idle && !c.dialled && !c.toldDrained
	c.toldDrained = c.toldDrained || tell
	end := idle && c.dialled && c.peerDrained
	c.mu.Unlock()
	if tell {
		c.sign(typeDrained, 0)
	}
	if end {
		c.close(errReplaced)
	}
}
