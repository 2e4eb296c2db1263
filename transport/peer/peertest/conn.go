package peertest

import (
	"io"
	"net"
	"os"
	"time"
)

// now is the bubble's time.
func now() time.Time { return time.Now() }

// segment is what one Write has put in; it can be read from at.
type segment struct {
	at   time.Time
	data []byte
}

// stream is one direction of a connection. All fields are guarded by n.mu.
type stream struct {
	n        *Network
	from, to string
	segments []segment
	bytes    int
	closed   bool  // by the writer; what is in it can still be read
	gone     bool  // the reader has closed
	err      error // reset
}

// held reports whether nothing gets through.
func (s *stream) held() bool {
	return s.n.cut[pair(s.from, s.to)] || s.n.frozen[s.from] || s.n.frozen[s.to]
}

// Conn is one end of a connection in memory.
type Conn struct {
	n             *Network
	in, out       *stream
	local, remote string
	closed        bool     // guarded by n.mu
	read, write   deadline // guarded by n.mu
}

type deadline struct {
	at    time.Time
	timer *time.Timer
}

func (d *deadline) passed() bool { return !d.at.IsZero() && !now().Before(d.at) }

// set wakes everyone when the deadline comes.
func (d *deadline) set(n *Network, at time.Time) {
	d.at = at
	if d.timer != nil {
		d.timer.Stop()
		d.timer = nil
	}
	if !at.IsZero() {
		d.timer = n.wakeAt(at)
	}
	n.cond.Broadcast()
}

func (n *Network) wakeAt(at time.Time) *time.Timer {
	return time.AfterFunc(time.Until(at), func() {
		n.mu.Lock()
		defer n.mu.Unlock()
		n.cond.Broadcast()
	})
}

func (c *Conn) fail(op string, err error) error {
	return &net.OpError{Op: op, Net: "mem", Source: address(c.local), Addr: address(c.remote), Err: err}
}

// Read implements net.Conn.
func (c *Conn) Read(p []byte) (int, error) {
	c.n.mu.Lock()
	defer c.n.mu.Unlock()
	s := c.in
	var timer *time.Timer
	for {
		switch {
		case c.closed:
			return 0, c.fail("read", net.ErrClosed)
		case s.err != nil:
			return 0, c.fail("read", s.err)
		case c.read.passed():
			return 0, c.fail("read", os.ErrDeadlineExceeded)
		}
		if !s.held() {
			present := now()
			if len(s.segments) > 0 && !s.segments[0].at.After(present) {
				return s.take(p, present), nil
			}
			if len(s.segments) == 0 && s.closed {
				return 0, io.EOF
			}
			if len(s.segments) > 0 && timer == nil {
				timer = c.n.wakeAt(s.segments[0].at)
			}
		}
		c.n.cond.Wait()
		if timer != nil {
			timer.Stop()
			timer = nil
		}
	}
}

// take moves what has arrived into p.
func (s *stream) take(p []byte, present time.Time) int {
	n := 0
	for len(s.segments) > 0 && n < len(p) && !s.segments[0].at.After(present) {
		g := &s.segments[0]
		k := copy(p[n:], g.data)
		n += k
		if g.data = g.data[k:]; len(g.data) == 0 {
			s.segments = s.segments[1:]
		}
	}
	s.bytes -= n
	s.n.cond.Broadcast()
	return n
}

// Write implements net.Conn. It waits while the window is full.
func (c *Conn) Write(p []byte) (int, error) {
	c.n.mu.Lock()
	defer c.n.mu.Unlock()
	s := c.out
	written := 0
	for {
		switch {
		case c.closed:
			return written, c.fail("write", net.ErrClosed)
		case s.err != nil:
			return written, c.fail("write", s.err)
		case s.gone && !s.held():
			return written, c.fail("write", io.ErrClosedPipe)
		case c.write.passed():
			return written, c.fail("write", os.ErrDeadlineExceeded)
		case len(p) == 0:
			return written, nil
		}
		if n := s.put(p); n > 0 {
			written += n
			p = p[n:]
			continue
		}
		c.n.cond.Wait()
	}
}

// TryWrite writes what there is room for, without waiting, as a socket that does not block.
func (c *Conn) TryWrite(p []byte) (int, error) {
	c.n.mu.Lock()
	defer c.n.mu.Unlock()
	s := c.out
	switch {
	case c.closed:
		return 0, c.fail("write", net.ErrClosed)
	case s.err != nil:
		return 0, c.fail("write", s.err)
	case s.gone && !s.held():
		return 0, c.fail("write", io.ErrClosedPipe)
	case c.write.passed():
		return 0, c.fail("write", os.ErrDeadlineExceeded)
	}
	return s.put(p), nil
}

// put appends what there is room for.
func (s *stream) put(p []byte) int {
	room := min(windowBytes-s.bytes, len(p))
	if room <= 0 {
		return 0
	}
	at := now().Add(s.n.delay[pair(s.from, s.to)])
	s.segments = append(s.segments, segment{at: at, data: append([]byte(nil), p[:room]...)})
	s.bytes += room
	s.n.cond.Broadcast()
	return room
}

// Close implements net.Conn: the other end reads what was written, then the end.
func (c *Conn) Close() error {
	c.n.change(func() {
		if c.closed {
			return
		}
		c.closed = true
		c.out.closed = true
		c.in.gone = true
		c.read.set(c.n, time.Time{})
		c.write.set(c.n, time.Time{})
		delete(c.n.conns, c)
	})
	return nil
}

// LocalAddr implements net.Conn.
func (c *Conn) LocalAddr() net.Addr { return address(c.local) }

// RemoteAddr implements net.Conn.
func (c *Conn) RemoteAddr() net.Addr { return address(c.remote) }

// SetDeadline implements net.Conn.
func (c *Conn) SetDeadline(t time.Time) error {
	c.n.change(func() {
		c.read.set(c.n, t)
		c.write.set(c.n, t)
	})
	return nil
}

// SetReadDeadline implements net.Conn.
func (c *Conn) SetReadDeadline(t time.Time) error {
	c.n.change(func() { c.read.set(c.n, t) })
	return nil
}

// SetWriteDeadline implements net.Conn.
func (c *Conn) SetWriteDeadline(t time.Time) error {
	c.n.change(func() { c.write.set(c.n, t) })
	return nil
}
