package node

import (
	"context"
	"math"
	"os"
	"runtime"
	"runtime/debug"
	runtimemetrics "runtime/metrics"
	"sync"
	"time"
)

// What grows with the timers has no pointers, so a collection costs little, and the heap need not be free by half for it. The pacer
// gives the collector as much room above what lives as keeps its share of the processors at gcShare: little in quiet times,
// more under load.
const (
	// gcEvery is how often the room is looked at; gcSmooth is over how long the share is averaged.
	gcEvery  = time.Second
	gcSmooth = 4 * time.Second
	// gcShare is what the collector may take of all processors.
	gcShare = 0.01
	// The room is at least gcLeast and a tenth of what lives, which the scavenger leaves free anyway, at most gcMost or as much as lives, which is Go's default.
	gcLeast   = 32 << 20
	gcLeastOf = 10
	gcMost    = 128 << 20
	// gcPercent is Go's default of GOGC.
	gcPercent = 100
)

// gcSample is what the runtime tells of its collector.
type gcSample struct {
	// live is the bytes that the last collection found alive; 0 before the first.
	live uint64
	// spent is the processor time of all collections, in seconds.
	spent float64
	procs int
	// percent is GOGC as it is now.
	percent int
}

// gcPacer sets the room of the collector, which is the whole process's, for all nodes in the process.
type gcPacer struct {
	read   func() gcSample
	set    func(percent int) // debug.SetGCPercent
	chosen func() bool       // whether GOGC was set from outside
	clean  func()            // runtime.GC

	mu sync.Mutex
	// What follows is guarded by mu. holders is how many nodes run; off says that somebody else has chosen.
	holders int
	off     bool
	percent int
	last    gcSample
	lastAt  time.Time
	share   float64
	// busy says that the collector had work since the last quiet time.
	busy bool
}

// processGC is the pacer of this process.
var processGC = &gcPacer{
	read: readCollector, set: func(percent int) { debug.SetGCPercent(percent) }, clean: runtime.GC,
	chosen: func() bool { return os.Getenv("GOGC") != "" },
}

// pace runs the pacer while the node runs.
func (n *Node) pace(ctx context.Context) error {
	processGC.hold(n.mono())
	defer processGC.release()
	tick := time.NewTicker(gcEvery)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
			if processGC.look(n.mono()) {
				processGC.tidy()
			}
		}
	}
}

// hold begins to set the room, unless GOGC was set by the environment or by the program around; that may also choose later.
func (p *gcPacer) hold(now time.Time) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.holders++; p.holders > 1 {
		return
	}
	p.percent, p.share, p.last, p.lastAt = gcPercent, 0, p.read(), now
	p.off = p.chosen() || p.last.percent != gcPercent
}

// release gives Go's default back with the last node.
func (p *gcPacer) release() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.holders--; p.holders == 0 && !p.off && p.read().percent == p.percent {
		p.set(gcPercent)
	}
}

// look sets the room anew if it should be another by more than a tenth: to set it stops the world for a moment. It says whether a
// quiet time has begun: then one collection tells the scavenger what the load has left, which it would find out within two minutes.
func (p *gcPacer) look(now time.Time) (quiet bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	elapsed := now.Sub(p.lastAt)
	if p.off || elapsed < gcEvery*9/10 {
		return false // another node of this process has just looked
	}
	s := p.read()
	if p.off = s.percent != p.percent; p.off {
		return false // the program around has chosen meanwhile
	}
	share := (s.spent - p.last.spent) / (elapsed.Seconds() * float64(s.procs))
	p.share += (share - p.share) * min(1, elapsed.Seconds()/gcSmooth.Seconds())
	p.last, p.lastAt = s, now
	if s.live == 0 {
		return false
	}
	if percent := nextPercent(p.percent, s.live, p.share); abs(percent-p.percent)*10 > p.percent {
		p.set(percent)
		p.percent = percent
	}
	quiet = p.busy && p.share < gcShare/4
	p.busy = !quiet && (p.busy || p.share > gcShare/2)
	return quiet
}

// tidy collects once; that is not counted as work of the collector, or it would be followed by another.
func (p *gcPacer) tidy() {
	p.clean()
	p.mu.Lock()
	defer p.mu.Unlock()
	p.last.spent = p.read().spent
}

// nextPercent is the room in percent of what lives, after one of which the collector took a share of the processors: that is the
// smaller the more room there is.
func nextPercent(percent int, live uint64, share float64) int {
	room := float64(percent) / 100 * float64(live) * min(max(share/gcShare, 0.5), 2)
	least, most := max(gcLeast, float64(live)/gcLeastOf), max(gcMost, float64(live))
	return max(1, int(math.Round(min(max(room, least), most)/float64(live)*100)))
}

func abs(n int) int { return max(n, -n) }

// readCollector asks the runtime. What it tells is as of the end of the last collection.
func readCollector() gcSample {
	s := []runtimemetrics.Sample{{Name: "/gc/heap/live:bytes"}, {Name: "/cpu/classes/gc/total:cpu-seconds"}, {Name: "/gc/gogc:percent"}}
	runtimemetrics.Read(s)
	out := gcSample{procs: runtime.GOMAXPROCS(0)}
	if s[0].Value.Kind() == runtimemetrics.KindUint64 {
		out.live = s[0].Value.Uint64()
	}
	if s[1].Value.Kind() == runtimemetrics.KindFloat64 {
		out.spent = s[1].Value.Float64()
	}
	if s[2].Value.Kind() == runtimemetrics.KindUint64 {
		out.percent = int(s[2].Value.Uint64())
	}
	return out
}
