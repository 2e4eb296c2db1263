package peer

import (
	"bytes"
	"context"
	"errors"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/carillon-timers/carillon/transport/peer/peertest"
)

const (
	methodEcho Method = iota
	methodFail
	methodPanic
	methodHang
	methodJoin
	methodPlain
	methodBig
)

// handlers sets the methods of the tests.
func handlers(m *Mux) {
	m.Handle(methodEcho, func(_ context.Context, from string, _ uint32, b []byte) ([]byte, error) {
		return append([]byte(from+":"), b...), nil
	})
	m.Handle(methodFail, func(_ context.Context, _ string, group uint32, _ []byte) ([]byte, error) {
		return nil, &RemoteError{Kind: 7, Message: "no", Detail: []byte{byte(group)}}
	})
	m.Handle(methodPanic, func(context.Context, string, uint32, []byte) ([]byte, error) { panic("ouch") })
	m.Handle(methodHang, func(ctx context.Context, _ string, _ uint32, _ []byte) ([]byte, error) {
		<-ctx.Done()
		return nil, ctx.Err()
	})
	m.HandleJoin(methodJoin, func(_ context.Context, from string, _ uint32, b []byte) ([]byte, error) {
		return append([]byte("welcome "+from+" "), b...), nil
	})
	m.Handle(methodBig, func(context.Context, string, uint32, []byte) ([]byte, error) { return make([]byte, 1<<20), nil })
	m.Handle(methodPlain, func(context.Context, string, uint32, []byte) ([]byte, error) {
		return nil, errors.New("plain text")
	})
}

// two starts hosts "a" and "b" with the handlers.
func two(t *testing.T, n *peertest.Network, change func(*Config)) (a, b *host) {
	t.Helper()
	a, b = newHost(t, n, "a", change), newHost(t, n, "b", change)
	handlers(a.m)
	handlers(b.m)
	return a.run(n), b.run(n)
}

func TestCall(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := peertest.New()
		a, b := two(t, n, nil)
		defer b.stop()
		defer a.stop()
		ctx := t.Context()
		got, err := a.m.Call(ctx, "b", methodEcho, 3, []byte("hi"))
		if err != nil || string(got) != "a:hi" {
			t.Fatalf("call: %q, %v", got, err)
		}
		got, err = b.m.Call(ctx, "a", methodEcho, 3, []byte("ho"))
		if err != nil || string(got) != "b:ho" {
			t.Fatalf("call back: %q, %v", got, err)
		}
		if c := n.Conns("a"); c != 1 {
			t.Errorf("%d connections for both directions, want 1", c)
		}
		big := bytes.Repeat([]byte("0123456789"), 1<<20)
		got, err = a.m.Call(ctx, "b", methodEcho, 3, big)
		if err != nil || !bytes.Equal(got[2:], big) {
			t.Fatalf("big call: %d bytes, %v", len(got), err)
		}
		var re *RemoteError
		if _, err = a.m.Call(ctx, "b", methodFail, 9, nil); !errors.As(err, &re) || re.Kind != 7 || re.Detail[0] != 9 {
			t.Errorf("remote error: %#v", err)
		}
		if _, err = a.m.Call(ctx, "b", methodPlain, 9, nil); !errors.As(err, &re) || re.Kind != KindPlain || re.Message != "plain text" {
			t.Errorf("plain error: %#v", err)
		}
		if _, err = a.m.Call(ctx, "b", methodPanic, 9, nil); !errors.As(err, &re) || re.Kind != KindPanic {
			t.Errorf("panic: %#v", err)
		}
		if _, err = a.m.Call(ctx, "b", 99, 9, nil); !errors.As(err, &re) || re.Kind != KindNoMethod {
			t.Errorf("no method: %#v", err)
		}
		if _, err = a.m.Call(ctx, "a", methodEcho, 9, nil); !errors.Is(err, ErrSelf) {
			t.Errorf("self: %v", err)
		}
	})
}

// A caller that gives up, or is lost, ends its handler; the error says that the request was sent.
func TestCallEndsItsHandler(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := peertest.New()
		a, b := two(t, n, nil)
		defer b.stop()
		defer a.stop()
		for _, c := range []struct {
			name string
			end  func(cancel context.CancelFunc)
			want error
			took time.Duration
		}{
			{"cancel", func(cancel context.CancelFunc) { cancel() }, context.Canceled, 0},
			{"deadline", func(context.CancelFunc) {}, context.DeadlineExceeded, 2 * time.Second},
			{"loss", func(context.CancelFunc) { n.Break("a", "b") }, ErrConnLost, 0},
		} {
			ctx, cancel := context.WithTimeout(t.Context(), 2*time.Second)
			errs := make(chan error, 1)
			go func() {
				_, err := a.m.Call(ctx, "b", methodHang, 1, nil)
				errs <- err
			}()
			synctest.Wait()
			if got := b.m.Stats().Handlers; got != 1 {
				t.Errorf("%s: %d handlers run", c.name, got)
			}
			start := time.Now()
			c.end(cancel)
			err := <-errs
			var ce *CallError
			if took := time.Since(start); !errors.Is(err, c.want) || !errors.As(err, &ce) || !ce.Sent || took != c.took {
				t.Errorf("%s: %v after %v", c.name, err, took)
			}
			synctest.Wait()
			if got := b.m.Stats().Handlers; got != 0 {
				t.Errorf("%s: %d handlers still run", c.name, got)
			}
			cancel()
		}
	})
}

// Handlers are bounded per group and in all; what is beyond is turned away at once, and other groups go on.
func TestHandlerLimits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a, b := two(t, peertest.New(), func(c *Config) { c.Handlers, c.GroupHandlers = 5, 3 })
		defer b.stop()
		defer a.stop()
		ctx, cancel := context.WithCancel(t.Context())
		var wg sync.WaitGroup
		hang := func(group uint32, calls int) {
			for range calls {
				wg.Go(func() { _, _ = a.m.Call(ctx, "b", methodHang, group, nil) })
			}
			synctest.Wait()
		}
		busy := func(group uint32) bool {
			t.Helper()
			_, err := a.m.Call(t.Context(), "b", methodEcho, group, nil)
			var re *RemoteError
			if err != nil && (!errors.As(err, &re) || re.Kind != KindBusy) {
				t.Errorf("group %d: %v", group, err)
			}
			return err != nil
		}
		hang(1, 3)
		if !busy(1) || busy(2) {
			t.Error("group 1 is at its limit and group 2 is not")
		}
		hang(2, 2)
		if !busy(3) {
			t.Error("all handlers are taken")
		}
		cancel()
		wg.Wait()
		synctest.Wait()
		if busy(1) || busy(3) {
			t.Error("all handlers are free")
		}
		synctest.Wait()
		if s := b.m.Stats(); s.Busy != 2 || s.Handlers != 0 || len(b.m.gate.groups) != 0 {
			t.Errorf("stats %+v", s)
		}
	})
}

// A message beyond the limit is refused where it is made; the answer too.
func TestMessageLimit(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a, b := two(t, peertest.New(), func(c *Config) { c.MaxMessage = 1 << 20 })
		defer b.stop()
		defer a.stop()
		var ce *CallError
		if _, err := a.m.Call(t.Context(), "b", methodEcho, 0, make([]byte, 1<<20)); !errors.Is(err, ErrTooLarge) || !errors.As(err, &ce) || ce.Sent {
			t.Errorf("a call of 1 MiB: %v", err)
		}
		var re *RemoteError
		if _, err := a.m.Call(t.Context(), "b", methodBig, 0, nil); !errors.As(err, &re) || re.Kind != KindTooLarge {
			t.Errorf("an answer beyond 1 MiB: %v", err)
		}
		if _, err := a.m.Call(t.Context(), "b", methodEcho, 0, make([]byte, 1<<20-10)); err != nil {
			t.Errorf("just below: %v", err)
		}
	})
}

// Before Run and after it, calls fail with ErrClosed; a second Run too.
func TestNotRunning(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := peertest.New()
		a := newHost(t, n, "a", nil)
		if _, err := a.m.Call(t.Context(), "b", methodEcho, 0, nil); !errors.Is(err, ErrClosed) {
			t.Errorf("call before Run: %v", err)
		}
		if _, err := a.m.CallAddr(t.Context(), "b", methodEcho, 0, nil); !errors.Is(err, ErrClosed) {
			t.Errorf("call by address before Run: %v", err)
		}
		a.run(n)
		ln, err := n.Listen("other")
		if err != nil {
			t.Fatal(err)
		}
		if err := a.m.Run(t.Context(), ln); !errors.Is(err, ErrClosed) {
			t.Errorf("second Run: %v", err)
		}
		a.stop()
	})
}

func TestConfigValidate(t *testing.T) {
	t.Parallel()
	good := func() Config { c := DefaultConfig(); c.NodeID = "a"; return c }
	if err := good().Validate(); err != nil {
		t.Error(err)
	}
	if err := (Config{NodeID: "a"}).Validate(); err != nil {
		t.Errorf("zero values are defaults: %v", err)
	}
	for want, change := range map[string]func(*Config){
		"NodeID":        func(c *Config) { c.NodeID = "" },
		"BootID":        func(c *Config) { c.BootID = strings.Repeat("x", 256) },
		"CallTimeout":   func(c *Config) { c.CallTimeout = -1 },
		"BackoffMax":    func(c *Config) { c.BackoffMax = time.Millisecond },
		"MaxMessage":    func(c *Config) { c.MaxMessage = 10 },
		"PipelineDepth": func(c *Config) { c.PipelineDepth = 1 },
		"SnapshotRate":  func(c *Config) { c.SnapshotRate = 10 },
	} {
		c := good()
		change(&c)
		if err := c.Validate(); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v", want, err)
		}
	}
}
