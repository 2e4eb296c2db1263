package peer

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hashicorp/raft"

	"github.com/carillon-timers/carillon/transport/peer/peertest"
)

// Each end checks, and the dialler learns why.
func TestHandshakeRefusals(t *testing.T) {
	for _, c := range []struct {
		name   string
		change func(a, b *Config)
		want   uint8
		text   string
	}{
		{"clusters", func(_, b *Config) { b.ClusterID = func() string { return "d" } }, RefusedCluster,
			`node "b" is of cluster "d", node "a" of cluster "c"`},
		{"another node answers", func(a, _ *Config) { a.Resolve = func(string) (string, bool) { return "b", true } }, RefusedNode,
			`node "b" was addressed as "x" by node "a"`},
		{"the same ID twice", func(a, _ *Config) { a.NodeID = "b" }, RefusedSelf, `both ends call themselves node "b"`},
	} {
		synctest.Test(t, func(t *testing.T) {
			n := peertest.New()
			a := newHost(t, n, "a", func(a *Config) { c.change(a, new(Config)) })
			b := newHost(t, n, "b", func(b *Config) { c.change(new(Config), b) })
			handlers(b.m)
			ln, err := n.Listen("a")
			if err != nil {
				t.Fatal(err)
			}
			b.run(n)
			defer b.stop()
			ctx, cancel := context.WithCancel(context.Background())
			go func() { a.done <- a.m.Run(ctx, ln) }()
			a.cancel = cancel
			defer a.stop()
			synctest.Wait()
			target := "b"
			switch c.want {
			case RefusedNode:
				target = "x"
			case RefusedSelf:
				_, err = a.m.CallAddr(t.Context(), "b", methodJoin, 0, nil)
			}
			if c.want != RefusedSelf {
				_, err = a.m.Call(t.Context(), target, methodEcho, 0, nil)
			}
			var he *HandshakeError
			if !errors.As(err, &he) || he.Code != c.want || !strings.Contains(he.Message, c.text) {
				t.Errorf("%s: %v", c.name, err)
			}
			var ce *CallError
			if !errors.As(err, &ce) || ce.Sent {
				t.Errorf("%s: the error says that the call was sent", c.name)
			}
			synctest.Wait()
			if s := b.m.Stats(); s.Refused != 1 {
				t.Errorf("%s: stats %+v", c.name, s)
			}
		})
	}
}

// The dialler's own checks, for an acceptor that does not check.
func TestJudge(t *testing.T) {
	t.Parallel()
	own := identity{cluster: "c", node: "a", boot: "1"}
	good := identity{cluster: "c", node: "b"}
	for _, c := range []struct {
		name   string
		w      welcome
		expect string
		want   uint8
	}{
		{"good", welcome{protocol: 1, self: good}, "b", 0},
		{"by address", welcome{protocol: 1, self: good}, "", 0},
		{"of no cluster yet", welcome{protocol: 1, self: identity{node: "b"}}, "b", 0},
		{"protocol", welcome{protocol: 9, self: good}, "b", RefusedVersion},
		{"node", welcome{protocol: 1, self: good}, "x", RefusedNode},
		{"nobody", welcome{protocol: 1}, "", RefusedNode},
		{"cluster", welcome{protocol: 1, self: identity{cluster: "d", node: "b"}}, "b", RefusedCluster},
		{"refusal", welcome{code: 77, message: "m"}, "b", 77},
	} {
		err := judgeWelcome(own, c.w, c.expect)
		var he *HandshakeError
		if c.want == 0 && err != nil || c.want != 0 && (!errors.As(err, &he) || he.Code != c.want) {
			t.Errorf("%s: %v", c.name, err)
		}
	}
	if err := judge(own, hello{min: 5, max: 9, kind: kindPeer, self: good}); err == nil || err.Code != RefusedVersion {
		t.Errorf("versions 5 to 9: %v", err)
	}
	if err := judge(own, hello{min: 1, max: 9, kind: kindPeer, self: good}); err != nil {
		t.Errorf("versions 1 to 9: %v", err)
	}
	if err := judge(own, hello{min: 1, max: 1, kind: kindPeer}); err == nil || err.Code != RefusedNode {
		t.Errorf("no node ID: %v", err)
	}
}

// A node without a cluster is served for joining alone; when it has got its ID, its open connection serves all.
func TestJoining(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := peertest.New()
		var cluster atomic.Value
		cluster.Store("")
		a, b := two(t, n, func(c *Config) {
			if c.NodeID == "a" {
				c.ClusterID = func() string { return cluster.Load().(string) }
			}
		})
		defer b.stop()
		defer a.stop()
		got, err := a.m.CallAddr(t.Context(), "b", methodJoin, 0, []byte("!"))
		if err != nil || string(got) != "welcome a !" {
			t.Fatalf("join by address: %q, %v", got, err)
		}
		if _, err := a.m.CallAddr(t.Context(), "a", methodJoin, 0, nil); !errors.Is(err, ErrSelf) {
			t.Errorf("join at itself: %v", err)
		}
		if _, err := a.m.Call(t.Context(), "b", methodJoin, 0, nil); err != nil {
			t.Errorf("join by node: %v", err)
		}
		notMember := func(what string, err error) {
			t.Helper()
			var re *RemoteError
			if !errors.As(err, &re) || re.Kind != KindNotMember {
				t.Errorf("%s before it is a member: %v", what, err)
			}
		}
		defer serve(b.m.Group(1), ok)()
		g := a.m.Group(1)
		_, err = a.m.Call(t.Context(), "b", methodEcho, 0, nil)
		notMember("call", err)
		_, err = b.m.Call(t.Context(), "a", methodEcho, 0, nil)
		notMember("call back", err)
		notMember("raft", g.AppendEntries("", "b", heartbeat(1), new(raft.AppendEntriesResponse)))
		notMember("snapshot", g.InstallSnapshot("", "b", &raft.InstallSnapshotRequest{}, new(raft.InstallSnapshotResponse), nil))
		dials := n.Dials()
		cluster.Store("c")
		echo(t, a, "b")
		echo(t, b, "a")
		if err := g.AppendEntries("", "b", heartbeat(1), new(raft.AppendEntriesResponse)); err != nil {
			t.Error(err)
		}
		if n.Dials() != dials {
			t.Error("becoming a member took a new connection")
		}
	})
}

// A node that gets another cluster's ID than its peer is cut off, and refused from then on.
func TestJoinedElsewhere(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := peertest.New()
		var cluster atomic.Value
		cluster.Store("")
		a, b := two(t, n, func(c *Config) {
			if c.NodeID == "a" {
				c.ClusterID = func() string { return cluster.Load().(string) }
			}
		})
		defer b.stop()
		defer a.stop()
		if _, err := a.m.Call(t.Context(), "b", methodJoin, 0, nil); err != nil {
			t.Fatal(err)
		}
		cluster.Store("other")
		if _, err := a.m.Call(t.Context(), "b", methodJoin, 0, nil); err == nil {
			t.Error("a call on the old connection was served")
		}
		time.Sleep(3 * time.Second)
		var he *HandshakeError
		if _, err := a.m.Call(t.Context(), "b", methodJoin, 0, nil); !errors.As(err, &he) || he.Code != RefusedCluster {
			t.Errorf("a call afterwards: %v", err)
		}
	})
}

// Whatever comes in, before or after the handshake, ends its own connection with a named error and nothing else.
func TestGarbageEndsItsConnection(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := peertest.New()
		a, b := two(t, n, nil)
		defer b.stop()
		defer a.stop()
		echo(t, a, "b")
		raw := func() net.Conn {
			nc, err := n.Dial(t.Context(), "b")
			if err != nil {
				t.Fatal(err)
			}
			return nc
		}
		ended := func(what string, nc net.Conn) {
			t.Helper()
			_ = nc.SetReadDeadline(time.Now().Add(2 * time.Second))
			b := make([]byte, 4096)
			for {
				_, err := nc.Read(b)
				var ne net.Error
				if errors.As(err, &ne) && ne.Timeout() {
					t.Errorf("%s: the connection stays open", what)
				}
				if err != nil {
					break
				}
			}
			_ = nc.Close()
		}
		nc := raw()
		_, _ = fmt.Fprint(nc, "GET / HTTP/1.1\r\nHost: example.org\r\n\r\n")
		ended("another protocol", nc)
		nc = raw()
		ended("nothing at all", nc)
		self := identity{cluster: "c", node: "z", boot: "1"}
		for name, frame := range map[string][]byte{
			"bad checksum":         append(appendFrame(nil, header{typ: typePing}, nil, nil)[:23], 0xff),
			"request without time": appendFrame(nil, header{typ: typeVote}, nil, []byte{1}),
			"bad vote":             appendFrame(nil, header{typ: typeVote}, nil, []byte{1, 0, 0, 0, 9}),
			"empty call":           appendFrame(nil, header{typ: typeCall}, nil, []byte{1, 0, 0, 0}),
			"second hello":         appendFrame(nil, header{typ: typeHello}, nil, nil),
			"bad identity":         appendFrame(nil, header{typ: typeIdentify}, nil, []byte{200}),
		} {
			before := b.m.Stats().BadFrames
			nc := raw()
			_, _ = nc.Write(appendFrame(nil, header{typ: typeHello}, nil, encodeHello(hello{min: 1, max: 1, kind: kindPeer, self: self})))
			_, _ = nc.Write(frame)
			ended(name, nc)
			synctest.Wait()
			if got := b.m.Stats().BadFrames - before; got != 1 {
				t.Errorf("%s: %d bad frames counted", name, got)
			}
		}
		echo(t, a, "b")
		if s := a.m.Stats(); s.Lost != 0 {
			t.Errorf("the good connection was touched: %+v", s)
		}
	})
}
