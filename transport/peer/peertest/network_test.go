package peertest_test

import (
	"context"
	"errors"
	"io"
	"net"
	"os"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/carillon-timers/carillon/transport/peer/peertest"
)

// dialled returns both ends of a connection from "a" to "b".
func dialled(t *testing.T, n *peertest.Network) (a, b net.Conn) {
	t.Helper()
	ln, err := n.Listen("b")
	if err != nil {
		t.Fatal(err)
	}
	if a, err = n.Dialer("a")(t.Context(), "b"); err != nil {
		t.Fatal(err)
	}
	if b, err = ln.Accept(); err != nil {
		t.Fatal(err)
	}
	return a, b
}

func read(t *testing.T, c net.Conn, want string) {
	t.Helper()
	b := make([]byte, len(want))
	if _, err := io.ReadFull(c, b); err != nil || string(b) != want {
		t.Fatalf("read %q, %v; want %q", b, err, want)
	}
}

// What is cut off or frozen waits and is not lost; what is delayed comes when its time has passed.
func TestDelayCutFreeze(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := peertest.New()
		a, b := dialled(t, n)
		for _, c := range []struct {
			name     string
			on, off  func()
			takes    time.Duration
			released time.Duration
		}{
			{"delay", func() { n.Delay("a", "b", time.Second) }, func() { n.Delay("a", "b", 0) }, time.Second, time.Hour},
			{"cut", func() { n.Cut("b", "a") }, func() { n.Heal("a", "b") }, 3 * time.Second, 3 * time.Second},
			{"frozen reader", func() { n.Freeze("b") }, func() { n.Thaw("b") }, 3 * time.Second, 3 * time.Second},
			{"frozen writer", func() { n.Freeze("a") }, n.HealAll, 3 * time.Second, 3 * time.Second},
		} {
			c.on()
			timer := time.AfterFunc(c.released, c.off)
			start := time.Now()
			if _, err := a.Write([]byte("hello")); err != nil {
				t.Fatal(err)
			}
			read(t, b, "hello")
			if took := time.Since(start); took != c.takes {
				t.Errorf("%s: took %v, want %v", c.name, took, c.takes)
			}
			timer.Stop()
			c.off()
		}
	})
}

// Deadlines pass, also while a writer waits for room, and can be set again.
func TestDeadlines(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a, b := dialled(t, peertest.New())
		_ = b.SetReadDeadline(time.Now().Add(time.Second))
		start := time.Now()
		if _, err := b.Read(make([]byte, 1)); !errors.Is(err, os.ErrDeadlineExceeded) || time.Since(start) != time.Second {
			t.Errorf("read: %v after %v", err, time.Since(start))
		}
		_ = a.SetWriteDeadline(time.Now().Add(time.Second))
		written, err := a.Write(make([]byte, 1<<20))
		if !errors.Is(err, os.ErrDeadlineExceeded) || written != 256<<10 {
			t.Errorf("write: %d, %v", written, err)
		}
		_ = b.SetReadDeadline(time.Time{})
		if _, err := io.ReadFull(b, make([]byte, written)); err != nil {
			t.Error(err)
		}
	})
}

// The ends of a connection: closed, broken, killed; and who may dial whom.
func TestEnds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := peertest.New()
		a, b := dialled(t, n)
		_, _ = a.Write([]byte("last words"))
		_ = a.Close()
		read(t, b, "last words")
		if _, err := b.Read(make([]byte, 1)); err != io.EOF {
			t.Errorf("after the end: %v", err)
		}
		if _, err := b.Write([]byte("x")); err == nil {
			t.Error("a write to a closed end went well")
		}
		_ = b.Close()
		if c := n.Conns("a") + n.Conns("b"); c != 0 {
			t.Errorf("%d connections left", c)
		}
		c, err := n.Dialer("c")(t.Context(), "b")
		if err != nil {
			t.Fatal(err)
		}
		n.Kill("b")
		if _, err := c.Read(make([]byte, 1)); !errors.Is(err, syscall.ECONNRESET) {
			t.Errorf("read from the dead: %v", err)
		}
		if _, err := n.Dial(t.Context(), "b"); !errors.Is(err, syscall.ECONNREFUSED) {
			t.Errorf("dial to the dead: %v", err)
		}
		if _, err := n.Dialer("b")(t.Context(), "a"); err == nil {
			t.Error("the dead can dial")
		}
		n.Silence("b")
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if _, err := n.Dial(ctx, "b"); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("dial to the silent: %v", err)
		}
	})
}
