package peer

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

// openPipeline opens a pipeline of group 1 from a to b.
func openPipeline(t *testing.T, a *host) *pipeline {
	t.Helper()
	p, err := a.m.Group(1).AppendEntriesPipeline("", "b")
	if err != nil {
		t.Fatal(err)
	}
	return p.(*pipeline)
}

// inFlight counts the requests without an answer, as the pipeline and as its connection has them.
func inFlight(p *pipeline) (waiting, pending int) {
	p.mu.Lock()
	waiting = len(p.waiting)
	p.mu.Unlock()
	p.c.mu.Lock()
	defer p.c.mu.Unlock()
	return waiting, len(p.c.pending)
}

// no answers a request with success false.
func no(rpc raft.RPC) { rpc.Respond(&raft.AppendEntriesResponse{Term: 1}, nil) }

// Raft reads no answer after the first that is no success, and its sender may have looked at that last before it sends more. A
// pipeline that let it wait for room then stopped the replication to that follower for good.
func TestPipelineRefusesAfterTheFirstFailure(t *testing.T) {
	for name, answer := range map[string]func(raft.RPC){
		"no success": no,
		"newer term": func(rpc raft.RPC) { rpc.Respond(&raft.AppendEntriesResponse{Term: 9, Success: true}, nil) },
		"error":      func(rpc raft.RPC) { rpc.Respond(nil, errors.New("broken")) },
	} {
		synctest.Test(t, func(t *testing.T) {
			a, b := two(t, peertest.New(), nil)
			defer b.stop()
			defer a.stop()
			defer serve(b.m.Group(1), answer)()
			p := openPipeline(t, a)
			defer func() { _ = p.Close() }()
			var last error
			var wg sync.WaitGroup
			sent := 0
			wg.Go(func() {
				for ; last == nil && sent < 20; sent++ {
					_, last = p.AppendEntries(entries(uint64(sent+1), 10), new(raft.AppendEntriesResponse))
				}
			})
			f := <-p.Consumer()
			_ = f.Response() // and then Raft's decoder returns
			wg.Wait()
			if last == nil || sent > p.g.m.c.PipelineDepth+1 {
				t.Errorf("%s: after %d requests: %v", name, sent, last)
			}
			synctest.Wait()
			if n, _ := inFlight(p); n != 0 {
				t.Errorf("%s: %d requests still wait", name, n)
			}
		})
	}
}

// Whoever waits in a future is woken at once when the pipeline or the group is closed, and finds a blank answer.
func TestPipelineEndsItsFutures(t *testing.T) {
	for name, c := range map[string]struct {
		end  func(p *pipeline)
		want error
	}{
		"pipeline": {func(p *pipeline) { _ = p.Close() }, raft.ErrPipelineShutdown},
		"group":    {func(p *pipeline) { _ = p.g.Close() }, raft.ErrTransportShutdown},
	} {
		synctest.Test(t, func(t *testing.T) {
			a, b := two(t, peertest.New(), nil)
			defer b.stop()
			defer a.stop()
			b.m.Group(1) // nobody consumes
			p := openPipeline(t, a)
			start := time.Now()
			var wg sync.WaitGroup
			wg.Go(func() {
				for i := uint64(1); ; i++ {
					if _, err := p.AppendEntries(entries(i, 10), &raft.AppendEntriesResponse{Success: true}); err != nil {
						if !errors.Is(err, c.want) {
							t.Errorf("%s: the sender: %v", name, err)
						}
						return
					}
				}
			})
			wg.Go(func() {
				f := <-p.Consumer()
				if r := f.Response(); r.Success || !errors.Is(f.Error(), c.want) {
					t.Errorf("%s: %+v, %v", name, r, f.Error())
				}
			})
			synctest.Wait()
			if n, _ := inFlight(p); n != a.m.c.PipelineDepth {
				t.Errorf("%s: %d requests in flight, want %d", name, n, a.m.c.PipelineDepth)
			}
			c.end(p)
			wg.Wait()
			if took := time.Since(start); took != 0 {
				t.Errorf("%s: ended after %v", name, took)
			}
			if _, err := p.AppendEntries(entries(9, 10), new(raft.AppendEntriesResponse)); !errors.Is(err, c.want) {
				t.Errorf("%s: after the end: %v", name, err)
			}
			synctest.Wait()
			if waiting, pending := inFlight(p); waiting != 0 || pending != 0 {
				t.Errorf("%s: %d futures waiting, %d calls pending", name, waiting, pending)
			}
		})
	}
}

// Each request fails at its own deadline, though one timer watches them all, and though the other end lives.
func TestPipelineDeadlines(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a, b := two(t, peertest.New(), nil)
		defer b.stop()
		defer a.stop()
		defer serve(b.m.Group(1), func(rpc raft.RPC) {
			if rpc.Command.(*raft.AppendEntriesRequest).Entries[0].Index == 1 {
				ok(rpc)
			}
		})()
		p := openPipeline(t, a)
		defer func() { _ = p.Close() }()
		start := time.Now()
		var fs []raft.AppendFuture
		for i, size := range []int{10, 4 << 20, 10} { // 5 s, and 4 s more for 4 MiB
			f, err := p.AppendEntries(entries(uint64(i+1), size), new(raft.AppendEntriesResponse))
			if err != nil {
				t.Fatal(err)
			}
			fs = append(fs, f)
			<-p.Consumer()
			time.Sleep(500 * time.Millisecond)
		}
		if err := fs[0].Error(); err != nil {
			t.Error(err)
		}
		for _, c := range []struct {
			f  raft.AppendFuture
			at time.Duration
		}{{fs[2], 6 * time.Second}, {fs[1], 9500 * time.Millisecond}} {
			var ce *CallError
			err := c.f.Error()
			took := time.Since(start).Truncate(time.Millisecond)
			if !errors.Is(err, context.DeadlineExceeded) || !errors.As(err, &ce) || !ce.Sent || took != c.at {
				t.Errorf("%v after %v, want the deadline at %v", err, took, c.at)
			}
		}
	})
}

// A lost connection fails all that is in flight, at once and in any number, and none of it counts as an answer.
func TestPipelineLossWithRequestsInFlight(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := peertest.New()
		a, b := two(t, n, func(c *Config) { c.PipelineDepth = 16 })
		defer b.stop()
		defer a.stop()
		defer serve(b.m.Group(1), func(rpc raft.RPC) {
			if rpc.Command.(*raft.AppendEntriesRequest).Entries[0].Index <= 3 {
				ok(rpc)
			}
		})()
		p := openPipeline(t, a)
		defer func() { _ = p.Close() }()
		var seen []uint64
		p.Observe(func(f raft.AppendFuture) { seen = append(seen, f.Response().LastLog) })
		for i := uint64(1); i <= 14; i++ {
			if _, err := p.AppendEntries(entries(i, 10), new(raft.AppendEntriesResponse)); err != nil {
				t.Fatal(err)
			}
		}
		synctest.Wait()
		n.Break("a", "b")
		for i := uint64(1); i <= 14; i++ {
			f := <-p.Consumer()
			err := f.Error()
			if i <= 3 && (err != nil || f.Response().LastLog != i) || i > 3 && (!errors.Is(err, ErrConnLost) || f.Response().Success) {
				t.Errorf("request %d: %v, %+v", i, err, f.Response())
			}
		}
		if fmt.Sprint(seen) != "[1 2 3]" {
			t.Errorf("observed %v", seen)
		}
	})
}

// Who observes a pipeline knows of an answer before Raft has it.
func TestPipelineObservesFirst(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a, b := two(t, peertest.New(), nil)
		defer b.stop()
		defer a.stop()
		defer serve(b.m.Group(1), ok)()
		p := openPipeline(t, a)
		defer func() { _ = p.Close() }()
		var mu sync.Mutex
		seen := map[uint64]time.Time{}
		p.Observe(func(f raft.AppendFuture) {
			mu.Lock()
			defer mu.Unlock()
			if f.Error() != nil || !f.Response().Success {
				t.Errorf("observed %+v, %v", f.Response(), f.Error())
			}
			seen[f.Request().Entries[0].Index] = f.Start()
		})
		for i := uint64(1); i <= 100; i++ {
			if _, err := p.AppendEntries(entries(i, 10), new(raft.AppendEntriesResponse)); err != nil {
				t.Fatal(err)
			}
			f := <-p.Consumer()
			_ = f.Response()
			mu.Lock()
			start, found := seen[i]
			mu.Unlock()
			if !found || !start.Equal(f.Start()) {
				t.Errorf("the answer to %d is there, and was not observed", i)
			}
		}
	})
}

// Pipelines are closed, and connections break, while requests go out and answers come in: each future that Raft was given ends,
// in order, and nothing is left. Run with -race.
func TestPipelineStress(t *testing.T) {
	for round := range 40 {
		synctest.Test(t, func(t *testing.T) {
			n := peertest.New()
			n.Delay("a", "b", time.Duration(round%3)*50*time.Microsecond)
			a, b := two(t, n, nil)
			stop := serve(b.m.Group(1), ok)
			p := openPipeline(t, a)
			p.Observe(func(raft.AppendFuture) {})
			stopped := make(chan struct{})
			var wg sync.WaitGroup
			wg.Go(func() {
				for i := uint64(1); ; i++ {
					if _, err := p.AppendEntries(entries(i, int(i%5)*10_000), new(raft.AppendEntriesResponse)); err != nil {
						return
					}
					if i%7 == 0 {
						time.Sleep(10 * time.Microsecond)
					}
				}
			})
			wg.Go(func() {
				for next := uint64(1); ; next++ {
					select {
					case f := <-p.Consumer():
						if r := f.Response(); r.LastLog != next && f.Error() == nil {
							t.Errorf("answer %d in the place of %d", r.LastLog, next)
						}
						if f.Error() != nil {
							return
						}
					case <-stopped:
						return
					}
				}
			})
			time.Sleep(time.Duration(round) * 37 * time.Microsecond)
			switch round % 4 {
			case 0:
				_ = p.Close()
			case 1:
				n.Break("a", "b")
			case 2:
				_ = p.g.Close()
			default:
				p.c.drain(true)
			}
			synctest.Wait()
			_ = p.Close()
			close(stopped)
			wg.Wait()
			synctest.Wait()
			if waiting, pending := inFlight(p); waiting != 0 || pending != 0 {
				t.Errorf("%d futures, %d calls left", waiting, pending)
			}
			a.stop()
			b.stop()
			stop()
		})
	}
}
