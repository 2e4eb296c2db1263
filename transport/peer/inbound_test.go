package peer

import (
	"context"
	"errors"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hashicorp/raft"

	"github.com/carillon-timers/carillon/transport/peer/peertest"
)

// Whoever asks gets the answer to their own request, whether Raft takes requests at once, late or in bursts.
func TestAnswersFindTheirRequests(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a, b := two(t, peertest.New(), nil)
		defer b.stop()
		defer a.stop()
		defer serve(b.m.Group(1), func(rpc raft.RPC) {
			if i := rpc.Command.(*raft.AppendEntriesRequest).Entries[0].Index; i%5 == 0 {
				time.Sleep(time.Duration(i%3) * time.Millisecond)
			}
			ok(rpc)
		})()
		g := a.m.Group(1)
		var wg sync.WaitGroup
		for w := range uint64(8) {
			wg.Go(func() {
				for i := range uint64(200) {
					index := 1 + w + 8*i
					var resp raft.AppendEntriesResponse
					if err := g.AppendEntries("", "b", entries(index, 10), &resp); err != nil || resp.LastLog != index {
						t.Errorf("request %d: %+v, %v", index, resp, err)
					}
					time.Sleep(time.Duration(i%4) * 100 * time.Microsecond)
				}
			})
		}
		wg.Wait()
		if s := b.m.Stats(); s.Expired != 0 || s.Busy != 0 || s.Inbound != 0 {
			t.Errorf("stats %+v", s)
		}
	})
}

// Requests that Raft took and never answers do not stop those behind them for longer than their deadline, and what it says
// after that goes to nobody.
func TestUnansweredRequestsGiveWay(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a, b := two(t, peertest.New(), nil)
		defer b.stop()
		defer a.stop()
		var mu sync.Mutex
		var held []raft.RPC
		defer serve(b.m.Group(1), func(rpc raft.RPC) {
			mu.Lock()
			defer mu.Unlock()
			if len(held) < 2 {
				held = append(held, rpc)
				return
			}
			ok(rpc)
		})()
		g := a.m.Group(1)
		start := time.Now()
		var wg sync.WaitGroup
		for range 2 {
			wg.Go(func() {
				err := g.AppendEntries("", "b", entries(1, 10), new(raft.AppendEntriesResponse))
				if took := time.Since(start); !errors.Is(err, context.DeadlineExceeded) || took != 5*time.Second {
					t.Errorf("a request that is not answered: %v after %v", err, took)
				}
			})
			synctest.Wait()
		}
		time.Sleep(time.Second)
		var resp raft.AppendEntriesResponse
		if err := g.AppendEntries("", "b", entries(7, 10), &resp); err != nil || resp.LastLog != 7 {
			t.Errorf("behind them: %+v, %v", resp, err)
		}
		wg.Wait()
		for _, rpc := range held {
			rpc.Respond(&raft.AppendEntriesResponse{Term: 66}, nil)
		}
		for i := uint64(8); i < 12; i++ {
			if err := g.AppendEntries("", "b", entries(i, 10), &resp); err != nil || resp.LastLog != i {
				t.Errorf("after late answers: %+v, %v", resp, err)
			}
		}
	})
}
