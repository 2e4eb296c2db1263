package segment

import (
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/hashicorp/raft"
	raftboltdb "github.com/hashicorp/raft-boltdb/v2"
	"go.etcd.io/bbolt"
)

type store interface {
	raft.LogStore
	raft.StableStore
}

// stores opens a store for each group, as a node does; close closes all of them.
func segmentStores(b testing.TB, dir string, groups int) (all []store, closeAll func()) {
	l, err := Open(filepath.Join(dir, "log"), Options{Logger: quietly})
	if err != nil {
		b.Fatal(err)
	}
	r := start(l)
	for id := range groups {
		all = append(all, l.Group(uint32(id)))
	}
	return all, func() {
		if err := r.stop(); err != nil {
			b.Fatal(err)
		}
	}
}

func boltStores(b testing.TB, dir string, groups int) (all []store, closeAll func()) {
	var closers []func() error
	for id := range groups {
		s, err := raftboltdb.New(raftboltdb.Options{
			Path: filepath.Join(dir, fmt.Sprint(id, ".db")), BoltOptions: &bbolt.Options{NoFreelistSync: true, FreelistType: bbolt.FreelistMapType},
		})
		if err != nil {
			b.Fatal(err)
		}
		all, closers = append(all, s), append(closers, s.Close)
	}
	return all, func() {
		for _, c := range closers {
			if err := c(); err != nil {
				b.Fatal(err)
			}
		}
	}
}

var kinds = []struct {
	name string
	open func(b testing.TB, dir string, groups int) ([]store, func())
}{{"bolt", boltStores}, {"segment", segmentStores}}

// entryWith is an entry of so many joined commands of about 200 bytes.
func entryWith(i uint64, commands int) *raft.Log {
	return &raft.Log{Index: i, Term: 3, Data: make([]byte, 200*commands), AppendedAt: time.Unix(1, 0)}
}

// BenchmarkAppend stores entries of one call each; ns/op is per entry, over all groups.
func BenchmarkAppend(b *testing.B) {
	for _, commands := range []int{1, 64, 1000} {
		for _, groups := range []int{1, 16, 64} {
			for _, k := range kinds {
				b.Run(fmt.Sprintf("commands=%d/groups=%d/%s", commands, groups, k.name), func(b *testing.B) {
					all, closeAll := k.open(b, b.TempDir(), groups)
					var next atomic.Int64
					b.ResetTimer()
					var callers sync.WaitGroup
					for _, s := range all {
						callers.Go(func() {
							for i := uint64(1); next.Add(1) <= int64(b.N); i++ {
								if err := s.StoreLog(entryWith(i, commands)); err != nil {
									b.Error(err)
									return
								}
								if i%512 == 0 && i > 1024 {
									if err := s.DeleteRange(1, i-1024); err != nil {
										b.Error(err)
									}
								}
							}
						})
					}
					callers.Wait()
					b.ReportMetric(float64(b.N*commands)/b.Elapsed().Seconds(), "commands/s")
					b.StopTimer()
					closeAll()
				})
			}
		}
	}
}

// BenchmarkOpen opens 16 groups of 2,048 entries of 10 commands each.
func BenchmarkOpen(b *testing.B) {
	for _, k := range kinds {
		b.Run(k.name, func(b *testing.B) {
			dir := b.TempDir()
			all, closeAll := k.open(b, dir, 16)
			fillGroups(b, all, 2048, 10)
			closeAll()
			b.ResetTimer()
			for range b.N {
				all, closeAll := k.open(b, dir, 16)
				for _, s := range all {
					if last, err := s.LastIndex(); last != 2048 || err != nil {
						b.Fatal(last, err)
					}
				}
				b.StopTimer()
				closeAll()
				b.StartTimer()
			}
		})
	}
}

func fillGroups(b *testing.B, all []store, entries uint64, commands int) {
	b.Helper()
	var callers sync.WaitGroup
	for _, s := range all {
		callers.Go(func() {
			for i := uint64(1); i <= entries; i += 64 {
				var batch []*raft.Log
				for k := i; k < i+64; k++ {
					batch = append(batch, entryWith(k, commands))
				}
				if err := s.StoreLogs(batch); err != nil {
					b.Error(err)
				}
			}
		})
	}
	callers.Wait()
}

// BenchmarkDeleteRange removes 65,536 entries while another call appends to the same group: it reports the longest append
// and the time of the removal.
func BenchmarkDeleteRange(b *testing.B) {
	for _, k := range kinds {
		b.Run(k.name, func(b *testing.B) {
			const entries = 65536
			var worst, removal []float64
			for range b.N {
				all, closeAll := k.open(b, b.TempDir(), 1)
				fillGroups(b, all, entries, 1)
				done := make(chan error, 1)
				longest := time.Duration(0)
				var remover sync.WaitGroup
				remover.Go(func() {
					began := time.Now()
					done <- all[0].DeleteRange(1, entries-1024)
					removal = append(removal, time.Since(began).Seconds()*1e3)
				})
				var err error
				for i, going := uint64(entries+1), true; going; i++ {
					began := time.Now()
					if stored := all[0].StoreLog(entryWith(i, 1)); stored != nil {
						b.Fatal(stored)
					}
					longest = max(longest, time.Since(began))
					select {
					case err = <-done:
						going = false
					default:
					}
				}
				remover.Wait()
				worst = append(worst, longest.Seconds()*1e3)
				closeAll()
				if err = errors.Join(err); err != nil {
					b.Fatal(err)
				}
			}
			b.ReportMetric(slices.Max(worst), "longest-append-ms")
			b.ReportMetric(slices.Max(removal), "removal-ms")
		})
	}
}

// BenchmarkRead reads the newest entries and old ones.
func BenchmarkRead(b *testing.B) {
	for _, k := range kinds {
		for name, newest := range map[string]bool{"newest": true, "old": false} {
			b.Run(name+"/"+k.name, func(b *testing.B) {
				all, closeAll := k.open(b, b.TempDir(), 1)
				fillGroups(b, all, 2048, 64)
				b.ResetTimer()
				for i := range b.N {
					at := uint64(1 + i%64)
					if newest {
						at = uint64(2048 - i%64)
					}
					if err := all[0].GetLog(at, new(raft.Log)); err != nil {
						b.Fatal(err)
					}
				}
				b.StopTimer()
				closeAll()
			})
		}
	}
}
