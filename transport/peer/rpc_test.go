package peer

import (
	"bytes"
	"context"
	"errors"
	"testing"
	"testing/synctest"

	"github.com/carillon-timers/carillon/transport/peer/peertest"
)

const (
	methodEcho Method = iota
	methodFail
	methodPanic
	methodHang
	methodJoin
	methodPlain
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
