package shard

import (
	"context"
	"fmt"
	"path/filepath"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/carillon-timers/carillon/raftfsm"
)

// BenchmarkPropose schedules timers on one group of three replicas in one process, each with a bolt file on disk. It reports
// schedules per second, the commands of an entry, and the median and the 99th percentile of the wait for the leader's disk.
func BenchmarkPropose(b *testing.B) {
	for _, callers := range []int{1, 64, 512, 4096} {
		b.Run(fmt.Sprint(callers), func(b *testing.B) {
			dir := b.TempDir()
			c := newCluster(b, 3, func(c *cluster) {
				c.config = func(c *Config) { c.Dir = filepath.Join(dir, c.Node) }
				c.deps = func(d *Deps) { d.Stores = nil }
			})
			c.start()
			defer c.stop()
			leader := c.leader()
			due := time.Now().Add(time.Hour)
			var next atomic.Int64
			var workers sync.WaitGroup
			before := leader.shard.Status().Proposer
			b.ReportAllocs()
			b.ResetTimer()
			for range callers {
				workers.Go(func() {
					for {
						i := next.Add(1)
						if i > int64(b.N) {
							return
						}
						cmd := schedule("timer-"+strconv.FormatInt(i, 10), due)
						cmd.GetSchedule().Payload = make([]byte, 100)
						if _, err := leader.shard.Propose(context.Background(), []*raftfsm.Command{cmd}); err != nil {
							b.Error(err)
							return
						}
					}
				})
			}
			workers.Wait()
			b.StopTimer()
			status := leader.shard.Status()
			b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "timers/s")
			b.ReportMetric(float64(b.N)/float64(status.Proposer.Entries-before.Entries), "commands/entry")
			b.ReportMetric(float64(status.Disk.Appends.Quantile(0.5)), "disk-p50-µs")
			b.ReportMetric(float64(status.Disk.Appends.Quantile(0.99)), "disk-p99-µs")
		})
	}
}
