package peer

import (
	"context"
	"errors"
	"fmt"
	"io"
	"sync"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hashicorp/raft"

	"github.com/carillon-timers/carillon/transport/peer/peertest"
)

func echo(t *testing.T, from *host, to string) {
	t.Helper()
	if _, err := from.m.Call(t.Context(), to, methodEcho, 0, []byte("x")); err != nil {
		t.Errorf("%s calls %s: %v", from.m.c.NodeID, to, err)
	}
}

// A connection refuses requests from the moment at which it begins to end; its link is told a little later. A call that comes in
// between spent its three tries on that one connection.
func TestCallWhileAConnectionEnds(t *testing.T) {
	for name, begin := range map[string]func(*conn) (end func()){
		"draining": func(c *conn) func() {
			c.mu.Lock()
			defer c.mu.Unlock()
			c.draining = true
			return func() { c.close(errReplaced) }
		},
		"closing": func(c *conn) func() {
			c.mu.Lock() // close has set closed and waits for the lock again
			c.closed = true
			c.mu.Unlock()
			return func() {
				c.mu.Lock()
				c.closed = false
				c.mu.Unlock()
				c.close(errReplaced)
			}
		},
	} {
		synctest.Test(t, func(t *testing.T) {
			a, b := two(t, peertest.New(), nil)
			defer b.stop()
			defer a.stop()
			echo(t, a, "b")
			end := begin(a.m.linkTo("b").active)
			var calls sync.WaitGroup
			calls.Go(func() { echo(t, a, "b") })
			time.Sleep(time.Millisecond)
			end()
			calls.Wait()
			if t.Failed() {
				t.Log(name)
			}
		})
	}
}

// Both dial at once, over links of different delays: no call is lost, and one connection remains, the one that the
// lower ID has dialled.
func TestBothDialAtOnce(t *testing.T) {
	for _, delay := range []time.Duration{0, time.Millisecond, 30 * time.Millisecond} {
		for _, lead := range []time.Duration{-delay, -delay / 2, 0, delay / 2, delay} {
			synctest.Test(t, func(t *testing.T) {
				n := peertest.New()
				n.Delay("a", "b", delay)
				a, b := two(t, n, nil)
				defer b.stop()
				defer a.stop()
				var wg sync.WaitGroup
				for range 10 {
					wg.Go(func() { time.Sleep(max(0, -lead)); echo(t, a, "b") })
					wg.Go(func() { time.Sleep(max(0, lead)); echo(t, b, "a") })
				}
				wg.Wait()
				time.Sleep(time.Second)
				if c := n.Conns("a"); c != 1 {
					t.Errorf("delay %v, lead %v: %d connections", delay, lead, c)
				}
				before := n.Dials()
				echo(t, a, "b")
				echo(t, b, "a")
				if n.Dials() != before {
					t.Errorf("delay %v, lead %v: dialled again", delay, lead)
				}
				if la, lb := a.m.linkTo("b").active, b.m.linkTo("a").active; la.dialled == lb.dialled || n.Dials() == 2 && !la.dialled {
					t.Errorf("delay %v, lead %v: a uses one dialled by %s, b by %s", delay, lead, la.dialledBy(), lb.dialledBy())
				}
				if s := a.m.Stats(); s.Lost != 0 || s.CallErrors != 0 {
					t.Errorf("delay %v, lead %v: stats %+v", delay, lead, s)
				}
			})
		}
	}
}

// A suspended peer: its calls end by their deadline or when it has been silent for DeadAfter; calls to others go on.
func TestHungPeer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := peertest.New()
		a, b := two(t, n, nil)
		c := newHost(t, n, "c", nil)
		handlers(c.m)
		c.run(n)
		defer c.stop()
		defer b.stop()
		defer a.stop()
		d := newHost(t, n, "d", nil).run(n)
		echo(t, a, "b")
		echo(t, d, "b")
		n.Freeze("b")
		start := time.Now()
		// A writer that waits for the suspended peer does not hold up the end.
		go func() { _, _ = d.m.Call(t.Context(), "b", methodEcho, 0, make([]byte, 4<<20)) }()
		synctest.Wait()
		d.stop()
		if took := time.Since(start); took > 0 {
			t.Errorf("stopping took %v", took)
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		_, err := a.m.Call(ctx, "b", methodEcho, 0, nil)
		if took := time.Since(start); !errors.Is(err, context.DeadlineExceeded) || took != time.Second {
			t.Errorf("call with a deadline of 1 s: %v after %v", err, took)
		}
		echo(t, a, "c")
		_, err = a.m.Call(t.Context(), "b", methodEcho, 0, nil)
		took := time.Since(start)
		if !errors.Is(err, errSilent) || !errors.Is(err, ErrConnLost) || took < 3*time.Second || took > 4*time.Second {
			t.Errorf("call without a deadline: %v after %v", err, took)
		}
		time.Sleep(5 * time.Second)
		n.Thaw("b")
		time.Sleep(2 * time.Second)
		echo(t, a, "b")
	})
}

// lostEvents collects what OnPeerLost is told.
type lostEvents struct {
	mu   sync.Mutex
	list []string // guarded by mu
}

func (l *lostEvents) hook(node, boot string, refused bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.list = append(l.list, fmt.Sprintf("%s %s %v", node, boot, refused))
}

func (l *lostEvents) all() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return fmt.Sprint(l.list)
}

// withLost makes host "a" report its losses.
func withLost(l *lostEvents) func(*Config) {
	return func(c *Config) {
		if c.NodeID == "a" {
			c.OnPeerLost = l.hook
		}
	}
}

// A process that is dead is known to be after 40 ms: all four dials are refused.
func TestPeerLostRefused(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := peertest.New()
		var lost lostEvents
		a, b := two(t, n, withLost(&lost))
		defer a.stop()
		echo(t, a, "b")
		before := n.Dials()
		n.Kill("b")
		if err := <-b.done; err == nil {
			t.Error("the killed host's listener ended without an error")
		}
		time.Sleep(39 * time.Millisecond)
		synctest.Wait()
		if got := lost.all(); got != "[]" {
			t.Errorf("after 39 ms: %s", got)
		}
		time.Sleep(time.Millisecond)
		synctest.Wait()
		if got, want := lost.all(), "[b b-boot1 true]"; got != want || n.Dials()-before != 4 {
			t.Errorf("after 40 ms: %s and %d dials, want %s and 4", got, n.Dials()-before, want)
		}
		_, err := a.m.Call(t.Context(), "b", methodEcho, 0, nil)
		var ce *CallError
		if !errors.Is(err, syscall.ECONNREFUSED) || !errors.As(err, &ce) || ce.Sent {
			t.Errorf("call to the dead: %v", err)
		}
	})
}

// A connection that breaks while the process lives is dialled again at once, and nothing is reported.
func TestPeerReconnects(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := peertest.New()
		var lost lostEvents
		a, b := two(t, n, withLost(&lost))
		defer b.stop()
		defer a.stop()
		for range 5 {
			echo(t, a, "b")
			n.Break("a", "b")
			synctest.Wait()
			echo(t, a, "b")
			echo(t, b, "a")
			time.Sleep(2 * time.Second)
		}
		if got := lost.all(); got != "[]" {
			t.Errorf("reported %s", got)
		}
		// A loss that the other end noticed first shows as a replacement.
		if s := a.m.Stats(); s.Lost == 0 || s.Lost > 5 || n.Conns("a") != 1 {
			t.Errorf("stats %+v, %d connections", s, n.Conns("a"))
		}
	})
}

// A peer behind a network that drops proves nothing.
func TestPeerLostSilent(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := peertest.New()
		var lost lostEvents
		a, b := two(t, n, withLost(&lost))
		defer b.stop()
		defer a.stop()
		echo(t, a, "b")
		n.Cut("a", "b")
		n.Break("a", "b")
		time.Sleep(3 * time.Second)
		if got, want := lost.all(), "[b b-boot1 false]"; got != want {
			t.Errorf("reported %s, want %s", got, want)
		}
		n.HealAll()
		time.Sleep(2 * time.Second)
		echo(t, a, "b")
	})
}

// A process that has been replaced by its next run is gone as well, however the old connection looks.
func TestPeerLostRestarted(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := peertest.New()
		var lost lostEvents
		a, b := two(t, n, withLost(&lost))
		defer a.stop()
		echo(t, a, "b")
		b.stop()
		b2 := newHost(t, n, "b", func(c *Config) { c.BootID = "b-boot2" })
		handlers(b2.m)
		b2.run(n)
		defer b2.stop()
		time.Sleep(100 * time.Millisecond)
		synctest.Wait()
		echo(t, b2, "a")
		echo(t, a, "b")
		if got, want := lost.all(), "[b b-boot1 true]"; got != want {
			t.Errorf("reported %s, want %s", got, want)
		}
	})
}

// A newer boot wins over a connection that looks alive and that the lower ID has dialled, which would win otherwise.
func TestNewerBootWins(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := peertest.New()
		b := newHost(t, n, "b", nil)
		handlers(b.m)
		b.run(n)
		defer b.stop()
		old, err := n.Dialer("a")(t.Context(), "b")
		if err != nil {
			t.Fatal(err)
		}
		self := identity{cluster: "c", node: "a", boot: "a-boot0"}
		_, _ = old.Write(appendFrame(nil, header{typ: typeHello}, nil, encodeHello(hello{min: 1, max: 1, kind: kindPeer, self: self})))
		synctest.Wait()
		l := b.m.linkTo("a")
		if l.active == nil || l.active.remote.boot != "a-boot0" {
			t.Fatal("the old boot is not connected")
		}
		a := newHost(t, n, "a", nil)
		handlers(a.m)
		a.run(n)
		defer a.stop()
		if err := l.dial(); err != nil {
			t.Fatal(err)
		}
		if got := l.active.remote.boot; got != "a-boot1" {
			t.Errorf("boot %q is in use", got)
		}
		echo(t, b, "a")
		if _, err := io.Copy(io.Discard, old); err != nil {
			t.Errorf("the old connection: %v", err)
		}
	})
}

// Dials to a dead node are spaced out, calls meanwhile fail at once, and a node that is back and dials us is reached
// without waiting.
func TestBackoff(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := peertest.New()
		a := newHost(t, n, "a", nil)
		handlers(a.m)
		a.run(n)
		defer a.stop()
		start := time.Now()
		calls := 0
		for ; time.Since(start) < 10*time.Second; time.Sleep(5 * time.Millisecond) {
			at := time.Now()
			if _, err := a.m.Call(t.Context(), "b", methodEcho, 0, nil); !errors.Is(err, syscall.ECONNREFUSED) || time.Since(at) > 0 {
				t.Fatalf("call to nobody: %v after %v", err, time.Since(at))
			}
			calls++
		}
		if got := n.Dials(); got < 12 || got > 25 {
			t.Errorf("%d dials for %d calls in 10 s", got, calls)
		}
		b := newHost(t, n, "b", nil)
		handlers(b.m)
		b.run(n)
		defer b.stop()
		echo(t, b, "a")
		echo(t, a, "b")
	})
}

// A node that accepts and hangs up at once is not dialled in a tight loop.
func TestFlapping(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := peertest.New()
		a := newHost(t, n, "a", nil).run(n)
		defer a.stop()
		ln, err := n.Listen("b")
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = ln.Close() }()
		b := newHost(t, n, "b", nil)
		go func() {
			for {
				nc, err := ln.Accept()
				if err != nil {
					return
				}
				_, _, _ = b.m.receive(nc)
				_ = nc.Close()
			}
		}()
		for start := time.Now(); time.Since(start) < 10*time.Second; time.Sleep(10 * time.Millisecond) {
			_, _ = a.m.Call(t.Context(), "b", methodEcho, 0, nil)
		}
		if got := n.Dials(); got > 30 {
			t.Errorf("%d dials in 10 s", got)
		}
	})
}

// The mux starts and stops with calls, groups and pipelines in full use, again and again, and leaves nothing behind.
func TestStopUnderLoad(t *testing.T) {
	for round := range 20 {
		synctest.Test(t, func(t *testing.T) {
			n := peertest.New()
			n.Delay("a", "b", time.Duration(round%4)*time.Millisecond)
			a, b := two(t, n, nil)
			stop := serve(b.m.Group(1), ok)
			g := a.m.Group(1)
			ctx, cancel := context.WithCancel(t.Context())
			var wg sync.WaitGroup
			work := func(f func()) {
				wg.Go(func() {
					for ctx.Err() == nil {
						f()
						time.Sleep(300 * time.Microsecond)
					}
				})
			}
			for range 4 {
				work(func() { _, _ = a.m.Call(ctx, "b", methodEcho, 1, make([]byte, 20_000)) })
				work(func() { _, _ = b.m.Call(ctx, "a", methodHang, 2, nil) })
				work(func() { _ = g.AppendEntries("", "b", entries(1, 1000), new(raft.AppendEntriesResponse)) })
			}
			work(func() {
				if p, err := g.AppendEntriesPipeline("", "b"); err == nil {
					_, _ = p.AppendEntries(entries(1, 1000), new(raft.AppendEntriesResponse))
					_ = p.Close()
				}
			})
			time.Sleep(time.Duration(round) * time.Millisecond)
			a.stop()
			time.Sleep(time.Duration(round%3) * time.Millisecond)
			b.stop()
			cancel()
			wg.Wait()
			stop()
			if _, err := a.m.Call(t.Context(), "b", methodEcho, 0, nil); !errors.Is(err, ErrClosed) {
				t.Errorf("call after the end: %v", err)
			}
			if c := n.Conns("a") + n.Conns("b"); c != 0 {
				t.Errorf("%d connections left", c)
			}
		})
	}
}
