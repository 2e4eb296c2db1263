package peer

import (
	"context"
	"fmt"
	"net"
	"runtime"
	"time"
)

// Who has something small to send, and finds that nobody writes, writes it: that saves waking the writer. What would have to
// wait for the socket, and what was queued meanwhile, is left to the writer.

// tryWriter returns how to write to nc what it takes without waiting, nil if there is no way.
func tryWriter(nc net.Conn) func([]byte) (int, error) {
	if t, ok := nc.(interface{ TryWrite(b []byte) (int, error) }); ok {
		return t.TryWrite
	}
	return socketWriter(nc)
}

// write is the writer's loop. It sleeps until it is given a turn.
func (c *conn) write() {
	for {
		select {
		case <-c.out.wake:
			if err := c.turn(); err != nil {
				c.close(fmt.Errorf("write: %w", err))
				return
			}
		case <-c.ctx.Done():
			c.close(context.Cause(c.ctx))
			return
		}
	}
}

// turn writes until nothing is queued.
func (c *conn) turn() error {
	if len(c.left) == 0 {
		runtime.Gosched() // others are about to send, too: one system call for all
	}
	for {
		if len(c.left) == 0 {
			c.fill()
		}
		if err := c.writeLeft(); err != nil {
			return err
		}
		if c.out.rest() {
			return nil
		}
	}
}

// writeLeft writes what is left of the buffer, within DeadAfter.
func (c *conn) writeLeft() error {
	if len(c.left) == 0 {
		return nil
	}
	if c.try != nil {
		n, err := c.try(c.left)
		if c.left = c.left[n:]; err != nil || len(c.left) == 0 {
			return err
		}
	}
	_ = c.nc.SetWriteDeadline(now().Add(c.m.c.DeadAfter))
	_, err := c.nc.Write(c.left)
	if c.try != nil {
		_ = c.nc.SetWriteDeadline(noDeadline) // try would fail when it has passed
	}
	c.left = nil
	return err
}

// flush is one turn of a goroutine that has something to send. It does not wait for the socket.
func (c *conn) flush() {
	runtime.Gosched() // others are about to send, too: one system call for all
	c.fill()
	n, err := c.try(c.left)
	if err != nil {
		c.close(fmt.Errorf("write: %w", err))
		return
	}
	c.left = c.left[n:]
	c.out.pass(len(c.left) > 0)
}

// fill takes from the outbox about as much as one system call should write.
func (c *conn) fill() {
	present := now().Sub(c.since)
	if present-time.Duration(c.written.Swap(int64(present))) >= c.pause() {
		c.buf = nil // it may be large, and the connection has nothing to do
	}
	if c.buf == nil {
		c.buf = make([]byte, 0, idleBuffer)
	}
	c.buf = c.buf[:0]
	frames := uint64(0)
	for len(c.buf) < flushBytes {
		var more bool
		if c.buf, more = c.out.frame(c.buf); !more {
			break
		}
		frames++
	}
	c.left = c.buf
	c.m.stats.framesOut.Add(frames)
	c.m.stats.bytesOut.Add(uint64(len(c.buf)))
}

// pause is how long a connection is silent at the most.
func (c *conn) pause() time.Duration { return c.m.c.DeadAfter / 3 }

// keepAlive runs when a connection may have been silent for too long, and says that this end lives.
func (c *conn) keepAlive() {
	silent := now().Sub(c.since) - time.Duration(c.written.Load())
	next := c.pause() - silent
	if next <= 0 {
		c.sign(typePing, 0)
		next = c.pause()
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.closed {
		c.pingTimer.Reset(next)
	}
}
