package peer

import (
	"bytes"
	"errors"
	"io"
	"sync"
	"testing"
	"testing/iotest"
	"testing/synctest"
	"time"

	"github.com/hashicorp/raft"

	"github.com/carillon-timers/carillon/transport/peer/peertest"
)

func install(size int) *raft.InstallSnapshotRequest {
	return &raft.InstallSnapshotRequest{RPCHeader: testHeader, SnapshotVersion: 1, Term: 1, Size: int64(size)}
}

// pattern is size bytes that do not repeat within a fragment.
func pattern(size int) []byte {
	b := make([]byte, size)
	for i := range b {
		b[i] = byte(i ^ i>>8 ^ i>>16)
	}
	return b
}

// take reads a snapshot as Raft does and answers.
func take(got *[]byte, pause time.Duration) func(raft.RPC) {
	return func(rpc raft.RPC) {
		if rpc.Reader == nil {
			ok(rpc)
			return
		}
		b, err := io.ReadAll(rpc.Reader)
		*got = b
		time.Sleep(pause)
		rpc.Respond(&raft.InstallSnapshotResponse{Term: 1, Success: err == nil}, err)
	}
}

// The bytes arrive, at the rate that is set, and a restore may take longer than a stall.
func TestSnapshotRate(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a, b := two(t, peertest.New(), func(c *Config) { c.SnapshotRate = 1 << 20 })
		defer b.stop()
		defer a.stop()
		var got []byte
		defer serve(b.m.Group(1), take(&got, 25*time.Second))()
		want := pattern(3<<20 + 17)
		start := time.Now()
		var resp raft.InstallSnapshotResponse
		g := a.m.Group(1)
		if err := g.InstallSnapshot("", "b", install(len(want)), &resp, bytes.NewReader(want)); err != nil || !resp.Success {
			t.Fatalf("install: %+v, %v", resp, err)
		}
		if took := time.Since(start); took < 28*time.Second-200*time.Millisecond || took > 29*time.Second {
			t.Errorf("3 MiB at 1 MiB/s and a restore of 25 s took %v", took)
		}
		if !bytes.Equal(got, want) {
			t.Errorf("got %d bytes that differ from the %d sent", len(got), len(want))
		}
		if err := g.InstallSnapshot("", "b", install(0), &resp, bytes.NewReader(nil)); err != nil || len(got) != 0 {
			t.Errorf("an empty snapshot: %v, %d bytes", err, len(got))
		}
		if s := a.m.Stats(); s.SnapshotsSent != 2 || s.SnapshotBytes != uint64(len(want)) {
			t.Errorf("stats %+v", s)
		}
	})
}

// Snapshots of several groups share the rate, two at a time, and heartbeats go on beside them.
func TestSnapshotsShareTheRate(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := peertest.New()
		a, b := two(t, n, func(c *Config) { c.SnapshotRate = 1 << 20 })
		defer b.stop()
		defer a.stop()
		var wg sync.WaitGroup
		start := time.Now()
		for i := range uint32(6) {
			var got []byte
			defer serve(b.m.Group(i), take(&got, 0))()
			wg.Go(func() {
				g := a.m.Group(i)
				if err := g.InstallSnapshot("", "b", install(1<<20), new(raft.InstallSnapshotResponse), bytes.NewReader(pattern(1<<20))); err != nil {
					t.Error(err)
				}
			})
		}
		defer serve(b.m.Group(9), ok)()
		g := a.m.Group(9)
		for range 50 {
			at := time.Now()
			if err := g.AppendEntries("", "b", heartbeat(1), new(raft.AppendEntriesResponse)); err != nil || time.Since(at) > 0 {
				t.Fatalf("heartbeat: %v after %v", err, time.Since(at))
			}
			// The shared one, two that send, and such as wait for their answer.
			if c := n.Conns("a"); c > 5 {
				t.Fatalf("%d connections", c)
			}
			time.Sleep(100 * time.Millisecond)
		}
		wg.Wait()
		if took := time.Since(start); took < 5800*time.Millisecond || took > 7*time.Second {
			t.Errorf("6 MiB at 1 MiB/s took %v", took)
		}
	})
}

// Each way in which a snapshot can fail ends it on both sides within a stall, with its reason.
func TestSnapshotFailures(t *testing.T) {
	const size = 4 << 20
	type scene struct {
		n    *peertest.Network
		a, b *host
		g    *groupTransport
	}
	for _, c := range []struct {
		name  string
		data  io.Reader
		serve bool
		act   func(s scene)
		want  error
		limit time.Duration
	}{
		{"the file cannot be read", iotest.ErrReader(errors.New("disk")), true, nil, errSource, time.Second},
		{"the file is short", bytes.NewReader(pattern(size / 2)), true, nil, io.ErrUnexpectedEOF, 10 * time.Second},
		{"the follower's raft stands still", nil, false, nil, errStalled, 15 * time.Second},
		{"the follower is suspended", nil, true, func(s scene) { s.n.Freeze("b") }, errStalled, 15 * time.Second},
		{"the follower dies", nil, true, func(s scene) { s.n.Kill("b") }, nil, 2 * time.Second},
		{"the group is closed here", nil, true, func(s scene) { _ = s.g.Close() }, raft.ErrTransportShutdown, 2 * time.Second},
		{"the mux stops here", nil, true, func(s scene) { s.a.cancel() }, ErrClosed, 2 * time.Second},
	} {
		synctest.Test(t, func(t *testing.T) {
			s := scene{n: peertest.New()}
			s.a, s.b = two(t, s.n, func(c *Config) { c.SnapshotRate = 1 << 20 })
			defer func() { s.b.cancel(); <-s.b.done }()
			defer s.a.stop()
			follower := s.b.m.Group(1)
			var got []byte
			if c.serve {
				defer serve(follower, take(&got, 0))()
			}
			s.g = s.a.m.Group(1).(*groupTransport)
			data := c.data
			if data == nil {
				data = bytes.NewReader(pattern(size))
			}
			if c.act != nil {
				time.AfterFunc(time.Second, func() { c.act(s) })
			}
			start := time.Now()
			err := s.g.InstallSnapshot("", "b", install(size), new(raft.InstallSnapshotResponse), data)
			if took := time.Since(start); err == nil || c.want != nil && !errors.Is(err, c.want) || took > c.limit {
				t.Errorf("%s: %v after %v, want %v within %v", c.name, err, took, c.want, c.limit)
			}
			time.Sleep(15 * time.Second)
			synctest.Wait()
			if len(got) == size {
				t.Errorf("%s: the follower got it all", c.name)
			}
		})
	}
}

// What Raft says against a snapshot reaches the leader, though it is still sending.
func TestSnapshotRefusedByRaft(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a, b := two(t, peertest.New(), nil)
		defer b.stop()
		defer a.stop()
		defer serve(b.m.Group(1), func(rpc raft.RPC) {
			rpc.Respond(nil, errors.New("no room"))
		})()
		data := pattern(8 << 20)
		err := a.m.Group(1).InstallSnapshot("", "b", install(len(data)), new(raft.InstallSnapshotResponse), bytes.NewReader(data))
		var re *RemoteError
		if !errors.As(err, &re) || re.Message != "no room" {
			t.Errorf("install: %v", err)
		}
		if s := a.m.Stats(); s.SnapshotErrors != 1 {
			t.Errorf("stats %+v", s)
		}
	})
}
