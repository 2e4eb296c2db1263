//go:build unix

package peer

import (
	"context"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"runtime"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/hashicorp/raft"
)

// tcpPair starts two muxes on loopback.
func tcpPair(b testing.TB) (x, y *Mux) {
	b.Helper()
	addrs := map[string]string{}
	var lns []net.Listener
	for _, id := range []string{"a", "b"} {
		ln, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			b.Fatal(err)
		}
		addrs[id] = ln.Addr().String()
		lns = append(lns, ln)
	}
	var muxes []*Mux
	for i, id := range []string{"a", "b"} {
		m := New(Config{
			NodeID: id, BootID: "1", ClusterID: func() string { return "c" },
			Resolve: func(n string) (string, bool) { return addrs[n], true },
		})
		ctx, cancel := context.WithCancel(context.Background())
		done := make(chan error, 1)
		go func() { done <- m.Run(ctx, lns[i]) }()
		for m.base.Load() == nil {
			runtime.Gosched()
		}
		b.Cleanup(func() {
			cancel()
			if err := <-done; err != nil {
				b.Error(err)
			}
		})
		muxes = append(muxes, m)
	}
	return muxes[0], muxes[1]
}

// networkPair makes two of Raft's own transports on loopback.
func networkPair(b testing.TB) (x, y *raft.NetworkTransport, target raft.ServerAddress) {
	b.Helper()
	var ts []*raft.NetworkTransport
	for range 2 {
		tr, err := raft.NewTCPTransportWithLogger("127.0.0.1:0", nil, 3, 5*time.Second, hclog.NewNullLogger())
		if err != nil {
			b.Fatal(err)
		}
		b.Cleanup(func() { _ = tr.Close() })
		ts = append(ts, tr)
	}
	return ts[0], ts[1], ts[1].LocalAddr()
}

// roundTrips measures AppendEntries with some goroutines over some groups; trip does one in a group.
func roundTrips(b *testing.B, size, groups, workers int, transports, followers []raft.Transport, target raft.ServerAddress) {
	for _, f := range followers {
		b.Cleanup(serve(f, ok))
	}
	b.SetBytes(int64(size))
	b.ReportAllocs()
	b.ResetTimer()
	used := cpu()
	var wg sync.WaitGroup
	for w := range workers {
		wg.Go(func() {
			tr := transports[w%groups]
			args := entries(7, size)
			for i := w; i < b.N; i += workers {
				if err := tr.AppendEntries("b", target, args, new(raft.AppendEntriesResponse)); err != nil {
					b.Error(err)
					return
				}
			}
		})
	}
	wg.Wait()
	b.ReportMetric(float64(cpu()-used)/float64(b.N), "cpu-ns/op")
	b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "trips/s")
}

// cpu is the processor time that this process has used: unlike wall time it bears a machine that is busy elsewhere.
func cpu() time.Duration {
	var u syscall.Rusage
	_ = syscall.Getrusage(syscall.RUSAGE_SELF, &u)
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

// BenchmarkAppendEntries compares this transport with Raft's NetworkTransport, in which each group has a transport of
// its own, in one run.
func BenchmarkAppendEntries(b *testing.B) {
	for _, c := range []struct{ size, groups, workers int }{
		{100, 1, 1}, {100, 16, 64}, {64 << 10, 1, 1}, {64 << 10, 16, 32}, {1 << 20, 4, 4},
	} {
		name := fmt.Sprintf("%dB/groups=%d/workers=%d", c.size, c.groups, c.workers)
		b.Run(name+"/peer", func(b *testing.B) {
			x, y := tcpPair(b)
			var ts, fs []raft.Transport
			for g := range c.groups {
				ts, fs = append(ts, x.Group(uint32(g))), append(fs, y.Group(uint32(g)))
			}
			roundTrips(b, c.size, c.groups, c.workers, ts, fs, "b")
		})
		b.Run(name+"/network", func(b *testing.B) {
			var ts, fs []raft.Transport
			var targets []raft.ServerAddress
			for range c.groups {
				x, y, target := networkPair(b)
				ts, fs, targets = append(ts, &aimed{x, target}), append(fs, y), append(targets, target)
			}
			roundTrips(b, c.size, c.groups, c.workers, ts, fs, targets[0])
		})
	}
}

// aimed sends to the follower of its own group.
type aimed struct {
	*raft.NetworkTransport
	target raft.ServerAddress
}

func (a *aimed) AppendEntries(
	id raft.ServerID, _ raft.ServerAddress, args *raft.AppendEntriesRequest, resp *raft.AppendEntriesResponse,
) error {
	return a.NetworkTransport.AppendEntries(id, a.target, args, resp)
}

// BenchmarkPipeline compares the pipelines, one group, entries of 1 KiB.
func BenchmarkPipeline(b *testing.B) {
	run := func(b *testing.B, tr raft.Transport, follower raft.Transport, target raft.ServerAddress) {
		b.Cleanup(serve(follower, ok))
		p, err := tr.AppendEntriesPipeline("b", target)
		if err != nil {
			b.Fatal(err)
		}
		defer func() { _ = p.Close() }()
		args := entries(7, 1024)
		b.ReportAllocs()
		b.ResetTimer()
		used := cpu()
		var wg sync.WaitGroup
		wg.Go(func() {
			for range b.N {
				if _, err := p.AppendEntries(args, new(raft.AppendEntriesResponse)); err != nil {
					b.Error(err)
				}
			}
		})
		for range b.N {
			if err := (<-p.Consumer()).Error(); err != nil {
				b.Fatal(err)
			}
		}
		wg.Wait()
		b.ReportMetric(float64(cpu()-used)/float64(b.N), "cpu-ns/op")
		b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "trips/s")
	}
	b.Run("peer", func(b *testing.B) {
		x, y := tcpPair(b)
		run(b, x.Group(1), y.Group(1), "b")
	})
	b.Run("network", func(b *testing.B) {
		x, y, target := networkPair(b)
		run(b, x, y, target)
	})
}

// BenchmarkGroups measures one small entry at a time on each of 16 pipelines between two nodes, with Raft's goroutines around
// them: one that sends, one that reads the answers, one that consumes.
func BenchmarkGroups(b *testing.B) {
	const groups = 16
	x, y := tcpPair(b)
	b.ReportAllocs()
	var wg sync.WaitGroup
	begin := make(chan struct{})
	for g := range groups {
		b.Cleanup(serve(y.Group(uint32(g)), ok))
		p, err := x.Group(uint32(g)).AppendEntriesPipeline("b", "b")
		if err != nil {
			b.Fatal(err)
		}
		b.Cleanup(func() { _ = p.Close() })
		count := (b.N + g) / groups
		next := make(chan struct{}, 1)
		args := entries(7, 500)
		wg.Go(func() {
			<-begin
			for range count {
				if _, err := p.AppendEntries(args, new(raft.AppendEntriesResponse)); err != nil {
					b.Error(err)
				}
				<-next
			}
		})
		wg.Go(func() {
			for range count {
				if f := <-p.Consumer(); !f.Response().Success {
					b.Error("no success")
				}
				next <- struct{}{}
			}
		})
	}
	b.ResetTimer()
	used := cpu()
	close(begin)
	wg.Wait()
	b.ReportMetric(float64(cpu()-used)/float64(b.N), "cpu-ns/op")
	b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "trips/s")
}

// BenchmarkFootprint reports what 64 groups between two nodes keep, after each group has sent bulk and heartbeats.
func BenchmarkFootprint(b *testing.B) {
	const groups = 64
	measure := func(b *testing.B, build func() (ts, fs []raft.Transport, target raft.ServerAddress)) {
		for range b.N {
			var before, after runtime.MemStats
			runtime.GC()
			runtime.ReadMemStats(&before)
			fds, goroutines := descriptors(), runtime.NumGoroutine()
			ts, fs, target := build()
			var wg sync.WaitGroup
			for i, tr := range ts {
				stop := serve(fs[i], ok)
				// A heartbeat while entries are under way: two connections of a NetworkTransport.
				for range 2 {
					wg.Go(func() {
						for range 50 {
							_ = tr.AppendEntries("b", target, entries(7, 1000), new(raft.AppendEntriesResponse))
						}
					})
				}
				b.Cleanup(stop)
			}
			wg.Wait()
			runtime.GC()
			runtime.ReadMemStats(&after)
			b.ReportMetric(float64(after.HeapInuse+after.StackInuse-before.HeapInuse-before.StackInuse)/(1<<20), "MiB")
			b.ReportMetric(float64(descriptors()-fds), "descriptors")
			b.ReportMetric(float64(runtime.NumGoroutine()-goroutines-groups), "goroutines")
		}
	}
	b.Run("peer", func(b *testing.B) {
		measure(b, func() (ts, fs []raft.Transport, target raft.ServerAddress) {
			x, y := tcpPair(b)
			for g := range groups {
				ts, fs = append(ts, x.Group(uint32(g))), append(fs, y.Group(uint32(g)))
			}
			return ts, fs, "b"
		})
	})
	b.Run("network", func(b *testing.B) {
		measure(b, func() (ts, fs []raft.Transport, target raft.ServerAddress) {
			for range groups {
				x, y, target := networkPair(b)
				ts, fs = append(ts, &aimed{x, target}), append(fs, y)
			}
			return ts, fs, ""
		})
	})
}

// descriptors counts this process's open files, 0 where that cannot be known.
func descriptors() int {
	list, err := os.ReadDir(filepath.FromSlash("/proc/self/fd"))
	if err != nil {
		return 0
	}
	return len(list)
}
