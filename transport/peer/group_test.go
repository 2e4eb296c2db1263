package peer

//lint:file-ignore SA1019 Raft still sends and reads the deprecated fields.

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hashicorp/raft"

	"github.com/carillon-timers/carillon/transport/peer/peertest"
)

// ok answers any Raft request well; AppendEntries with the index of its last entry.
func ok(rpc raft.RPC) {
	switch r := rpc.Command.(type) {
	case *raft.AppendEntriesRequest:
		resp := &raft.AppendEntriesResponse{Term: r.Term, Success: true}
		if n := len(r.Entries); n > 0 {
			resp.LastLog = r.Entries[n-1].Index
		}
		rpc.Respond(resp, nil)
	case *raft.RequestVoteRequest:
		rpc.Respond(&raft.RequestVoteResponse{Term: r.Term, Granted: true}, nil)
	case *raft.RequestPreVoteRequest:
		rpc.Respond(&raft.RequestPreVoteResponse{Term: r.Term, Granted: true}, nil)
	case *raft.TimeoutNowRequest:
		rpc.Respond(&raft.TimeoutNowResponse{}, nil)
	}
}

func heartbeat(term uint64) *raft.AppendEntriesRequest {
	return &raft.AppendEntriesRequest{RPCHeader: testHeader, Term: term, Leader: []byte("a")}
}

func entries(index uint64, size int) *raft.AppendEntriesRequest {
	return &raft.AppendEntriesRequest{
		RPCHeader: testHeader, Term: 1, PrevLogEntry: index - 1, PrevLogTerm: 1,
		Entries: []*raft.Log{{Index: index, Term: 1, Data: make([]byte, size)}},
	}
}

// Raft's handler for heartbeats changes term and state beside the main loop (hashicorp/raft#695). A heartbeat must
// come out of the consumer channel like everything else, and the handler must never be called.
func TestHeartbeatsGoThroughTheConsumer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a, b := two(t, peertest.New(), nil)
		defer b.stop()
		defer a.stop()
		g := b.m.Group(1)
		g.SetHeartbeatHandler(func(raft.RPC) { t.Error("the heartbeat handler was called") })
		var seen []any
		defer serve(g, func(rpc raft.RPC) { seen = append(seen, rpc.Command); ok(rpc) })()
		if !isHeartbeat(heartbeat(5)) {
			t.Fatal("the test's heartbeat is none")
		}
		var resp raft.AppendEntriesResponse
		if err := a.m.Group(1).AppendEntries("", "b", heartbeat(5), &resp); err != nil || resp.Term != 5 {
			t.Fatalf("heartbeat: %+v, %v", resp, err)
		}
		if len(seen) != 1 || !isHeartbeat(seen[0].(*raft.AppendEntriesRequest)) {
			t.Errorf("the consumer saw %+v", seen)
		}
	})
}

// Raft commits up to the leader's commit index whatever is at the end of the follower's log, also entries that the message
// does not match. So no message may arrive with a commit index behind its last entry, also when entries were cut off it.
func TestCommitNoFurtherThanTheMessage(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a, b := two(t, peertest.New(), func(c *Config) { c.AppendBytes = 1000 })
		defer b.stop()
		defer a.stop()
		var seen []*raft.AppendEntriesRequest
		defer serve(b.m.Group(1), func(rpc raft.RPC) {
			seen = append(seen, rpc.Command.(*raft.AppendEntriesRequest))
			ok(rpc)
		})()
		const prev = 25
		long := entries(prev+1, 800)
		long.Entries = append(long.Entries, entries(prev+2, 800).Entries...)
		none := &raft.AppendEntriesRequest{RPCHeader: testHeader, Term: 1, PrevLogEntry: prev, PrevLogTerm: 1}
		behind := entries(prev+1, 10)
		want := []uint64{prev + 1, prev, prev - 5}
		for i, r := range []*raft.AppendEntriesRequest{long, none, behind} {
			r.LeaderCommitIndex = 40
			if r == behind {
				r.LeaderCommitIndex = prev - 5
			}
			var resp raft.AppendEntriesResponse
			if err := a.m.Group(1).AppendEntries("", "b", r, &resp); err != nil {
				t.Fatal(err)
			}
			if got := seen[i].LeaderCommitIndex; got != want[i] {
				t.Errorf("message %d arrived with commit index %d and %d entries after %d, want %d", i, got, len(seen[i].Entries), prev, want[i])
			}
		}
	})
}

// Votes, pre-votes and the rest come through, Raft's errors as text.
func TestRequestsOfEveryKind(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a, b := two(t, peertest.New(), nil)
		defer b.stop()
		defer a.stop()
		gb := b.m.Group(1)
		stop := serve(gb, ok)
		ga := a.m.Group(1).(*groupTransport)
		var vote raft.RequestVoteResponse
		if err := ga.RequestVote("", "b", &raft.RequestVoteRequest{Term: 2}, &vote); err != nil || !vote.Granted || vote.Term != 2 {
			t.Errorf("vote: %+v, %v", vote, err)
		}
		var pre raft.RequestPreVoteResponse
		if err := ga.RequestPreVote("", "b", &raft.RequestPreVoteRequest{Term: 3}, &pre); err != nil || !pre.Granted || pre.Term != 3 {
			t.Errorf("pre-vote: %+v, %v", pre, err)
		}
		if err := ga.TimeoutNow("", "b", &raft.TimeoutNowRequest{}, &raft.TimeoutNowResponse{}); err != nil {
			t.Errorf("time-out now: %v", err)
		}
		stop()
		defer serve(gb, func(rpc raft.RPC) { rpc.Respond(nil, errors.New("raft says no")) })()
		var re *RemoteError
		err := ga.AppendEntries("", "b", entries(1, 10), &raft.AppendEntriesResponse{})
		if !errors.As(err, &re) || re.Message != "raft says no" {
			t.Errorf("raft's error: %v", err)
		}
		if err := a.m.Group(2).AppendEntries("", "b", entries(1, 10), &raft.AppendEntriesResponse{}); !errors.As(err, &re) || re.Kind != KindNoGroup {
			t.Errorf("a group that is not open: %v", err)
		}
		if got := string(ga.DecodePeer(ga.EncodePeer("r", "b"))) + string(ga.LocalAddr()); got != "ba" {
			t.Errorf("addresses: %q", got)
		}
	})
}

// Pipelined requests arrive and are answered in order, with several in flight.
func TestPipelineOrder(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := peertest.New()
		n.Delay("a", "b", 10*time.Millisecond)
		a, b := two(t, n, nil)
		defer b.stop()
		defer a.stop()
		var got []uint64
		defer serve(b.m.Group(1), func(rpc raft.RPC) {
			got = append(got, rpc.Command.(*raft.AppendEntriesRequest).Entries[0].Index)
			ok(rpc)
		})()
		p, err := a.m.Group(1).AppendEntriesPipeline("", "b")
		if err != nil {
			t.Fatal(err)
		}
		const count = 40
		start := time.Now()
		var wg sync.WaitGroup
		wg.Go(func() {
			for i := uint64(1); i <= count; i++ {
				size := 10
				if i%3 == 0 {
					size = 3 * fragmentBytes
				}
				if _, err := p.AppendEntries(entries(i, size), new(raft.AppendEntriesResponse)); err != nil {
					t.Error(err)
					return
				}
			}
		})
		for i := uint64(1); i <= count; i++ {
			f := <-p.Consumer()
			if err := f.Error(); err != nil || f.Response().LastLog != i || f.Request().Entries[0].Index != i {
				t.Fatalf("future %d: %+v, %v", i, f.Response(), err)
			}
		}
		wg.Wait()
		if took := time.Since(start); took > count*20*time.Millisecond/2 {
			t.Errorf("%d requests over a 20 ms trip took %v: no overlap", count, took)
		}
		for i, index := range got {
			if index != uint64(i+1) {
				t.Fatalf("arrived in the order %v", got)
			}
		}
		if err := p.Close(); err != nil {
			t.Error(err)
		}
		if _, err := p.AppendEntries(entries(1, 1), new(raft.AppendEntriesResponse)); !errors.Is(err, raft.ErrPipelineShutdown) {
			t.Errorf("after close: %v", err)
		}
	})
}

// When the connection breaks, what is in flight fails at once, and its response is blank: Raft reads that without
// asking for the error.
func TestPipelineLosesItsConnection(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := peertest.New()
		a, b := two(t, n, nil)
		defer b.stop()
		defer a.stop()
		b.m.Group(1) // nobody consumes
		p, err := a.m.Group(1).AppendEntriesPipeline("", "b")
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = p.Close() }()
		resp := &raft.AppendEntriesResponse{Success: true}
		if _, err := p.AppendEntries(entries(1, 10), resp); err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		start := time.Now()
		n.Break("a", "b")
		f := <-p.Consumer()
		if err := f.Error(); !errors.Is(err, ErrConnLost) || f.Response().Success || time.Since(start) > time.Millisecond {
			t.Errorf("after %v: %v, %+v", time.Since(start), err, f.Response())
		}
		if _, err := p.AppendEntries(entries(2, 10), resp); !errors.Is(err, ErrConnLost) {
			t.Errorf("next on the broken connection: %v", err)
		}
		var ce *CallError
		if !errors.As(f.Error(), &ce) || !ce.Sent {
			t.Errorf("the request was sent, the error says %+v", ce)
		}
	})
}

// A group whose consumer stands still fills its own queue and no other; what waits too long is dropped.
func TestSlowGroup(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a, b := two(t, peertest.New(), func(c *Config) {
			if c.NodeID == "b" {
				c.GroupQueue = 8
			}
		})
		defer b.stop()
		defer a.stop()
		slow := b.m.Group(1)
		defer serve(b.m.Group(2), ok)()
		g := a.m.Group(1)
		var wg sync.WaitGroup
		var mu sync.Mutex
		results := map[string]int{}
		for i := range 20 {
			wg.Go(func() {
				err := g.AppendEntries("", "b", entries(uint64(i+1), 10), new(raft.AppendEntriesResponse))
				var re *RemoteError
				kind := fmt.Sprint(err)
				switch {
				case errors.As(err, &re) && re.Kind == KindBusy:
					kind = "busy"
				case errors.Is(err, context.DeadlineExceeded):
					kind = "deadline"
				}
				mu.Lock()
				defer mu.Unlock()
				results[kind]++
			})
		}
		synctest.Wait()
		start := time.Now()
		if err := a.m.Group(2).AppendEntries("", "b", heartbeat(1), new(raft.AppendEntriesResponse)); err != nil || time.Since(start) > 0 {
			t.Errorf("the other group: %v after %v", err, time.Since(start))
		}
		wg.Wait()
		// Eight wait in the queue and one in the feeder's hand, if it came in time.
		if late := results["deadline"]; late < 8 || late > 9 || results["busy"] != 20-late {
			t.Errorf("results %v", results)
		}
		time.Sleep(time.Second)
		if s := b.m.Stats(); s.Expired != uint64(results["deadline"]) || s.Inbound != 0 {
			t.Errorf("stats %+v", s)
		}
		defer serve(slow, ok)()
		if err := g.AppendEntries("", "b", heartbeat(1), new(raft.AppendEntriesResponse)); err != nil {
			t.Errorf("when the consumer is back: %v", err)
		}
	})
}

// A heartbeat gets through while megabytes of entries are on a slow way, of its own group as of another.
func TestHeartbeatsOvertakeBulk(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := peertest.New()
		a, b := two(t, n, func(c *Config) { c.DeadAfter = 10 * time.Second; c.CallTimeout = 30 * time.Second })
		defer b.stop()
		defer a.stop()
		defer serve(b.m.Group(1), ok)()
		defer serve(b.m.Group(2), ok)()
		g2 := a.m.Group(2)
		if err := g2.AppendEntries("", "b", heartbeat(1), new(raft.AppendEntriesResponse)); err != nil {
			t.Fatal(err)
		}
		// A window of 256 KiB per 50 ms: 5 MiB/s.
		n.Delay("a", "b", 50*time.Millisecond)
		var wg sync.WaitGroup
		start := time.Now()
		g := a.m.Group(1)
		wg.Go(func() {
			if err := g.AppendEntries("", "b", entries(1, 8<<20), new(raft.AppendEntriesResponse)); err != nil {
				t.Error(err)
			}
			if took := time.Since(start); took < time.Second {
				t.Errorf("8 MiB took only %v; the test proves nothing", took)
			}
		})
		time.Sleep(500 * time.Millisecond)
		for name, tr := range map[string]raft.Transport{"another group": g2, "the same group": g} {
			at := time.Now()
			if err := tr.AppendEntries("", "b", heartbeat(1), new(raft.AppendEntriesResponse)); err != nil {
				t.Error(err)
			}
			if took := time.Since(at); took > 250*time.Millisecond {
				t.Errorf("the heartbeat of %s took %v", name, took)
			}
		}
		wg.Wait()
	})
}

// Closing a group fails its calls and answers those of others; opening it again makes a new one.
func TestGroupCloseAndReopen(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a, b := two(t, peertest.New(), nil)
		defer b.stop()
		defer a.stop()
		ga, gb := a.m.Group(1).(*groupTransport), b.m.Group(1).(*groupTransport)
		errs := make(chan error, 1)
		go func() { errs <- ga.AppendEntries("", "b", entries(1, 1), new(raft.AppendEntriesResponse)) }()
		synctest.Wait()
		if err := gb.Close(); err != nil {
			t.Fatal(err)
		}
		var re *RemoteError
		if err := <-errs; !errors.As(err, &re) || re.Kind != KindNoGroup {
			t.Errorf("the group was closed over there: %v", err)
		}
		gb2 := b.m.Group(1)
		go func() { errs <- ga.AppendEntries("", "b", entries(1, 1), new(raft.AppendEntriesResponse)) }()
		synctest.Wait()
		if err := ga.Close(); err != nil {
			t.Fatal(err)
		}
		if err := <-errs; !errors.Is(err, raft.ErrTransportShutdown) {
			t.Errorf("the group was closed here: %v", err)
		}
		defer serve(gb2, ok)()
		if err := a.m.Group(1).AppendEntries("", "b", entries(1, 1), new(raft.AppendEntriesResponse)); err != nil {
			t.Errorf("both opened again: %v", err)
		}
		if err := gb.Close(); err != nil || b.m.groupOf(1) != gb2 {
			t.Error("closing the old one again touched the new one")
		}
	})
}

// Nothing new starts on a draining connection, not even on a pipeline that has it; it ends, and the next call dials.
func TestDrainEndsPipelines(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := peertest.New()
		a, b := two(t, n, nil)
		defer b.stop()
		defer a.stop()
		defer serve(b.m.Group(1), ok)()
		p, err := a.m.Group(1).AppendEntriesPipeline("", "b")
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = p.Close() }()
		hang := make(chan error, 1)
		go func() {
			_, err := a.m.Call(t.Context(), "b", methodHang, 0, nil)
			hang <- err
		}()
		synctest.Wait()
		a.m.linkTo("b").active.drain(true)
		if _, err := p.AppendEntries(entries(1, 1), new(raft.AppendEntriesResponse)); !errors.Is(err, errDraining) {
			t.Errorf("pipeline on a draining connection: %v", err)
		}
		echo(t, a, "b")
		if c := n.Conns("a"); c != 2 {
			t.Errorf("%d connections, want the new one and the one that a call still waits on", c)
		}
		if err := <-hang; !errors.Is(err, context.DeadlineExceeded) && !errors.Is(err, ErrConnLost) {
			t.Errorf("the call on the draining connection: %v", err)
		}
		synctest.Wait()
		if c := n.Conns("a"); c != 1 {
			t.Errorf("%d connections when all is drained", c)
		}
	})
}
