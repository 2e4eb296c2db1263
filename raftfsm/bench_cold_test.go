//go:build linux

package raftfsm

import (
	"bytes"
	"compress/flate"
	"encoding/json"
	"flag"
	"fmt"
	"math/rand/v2"
	"runtime"
	"slices"
	"strconv"
	"syscall"
	"testing"
	"time"
	"unsafe"

	logv1 "github.com/carillon-timers/carillon/proto/carillonlog/v1"
)

var coldFlag = flag.Int("cold", 100_000, "how many timers are pending on all shards of BenchmarkCold")

// coldShards is how many shards BenchmarkCold has, coldEntries how many entries each gets in one turn, coldBlock how much memory is
// written between two entries.
const (
	coldShards  = 16
	coldEntries = 4
	coldBlock   = 2 << 20
)

// coldBench is what a node has in a cluster: many shards, whose entries come in turn, each after much other work. So an entry finds its
// shard, and the code of this package, in few caches.
type coldBench struct {
	shards [coldShards]coldShard
	ids    []int
	random *rand.Rand
	block  []uint64
	sum    uint64
	index  uint64
}

// coldShard is a shard and the slots that are armed in it, in a random order.
type coldShard struct {
	f     *FSM
	slots []uint32
}

func (s *coldShard) PushN(ops []Op) {
	for _, op := range ops {
		if op.Kind == Arm {
			s.slots = append(s.slots, op.Slot)
		}
	}
}

// newColdBench returns shards that have so many timers and windows of past ones.
func newColdBench(b *testing.B, pending int) *coldBench {
	b.Helper()
	hugePages(pending * 320)
	c := &coldBench{random: rand.New(rand.NewPCG(1, 1)), block: make([]uint64, coldBlock/8)}
	c.ids = c.random.Perm(2*pending + 1_000_000)
	for i := range c.shards {
		s := &c.shards[i]
		s.f = New(Options{Feed: s, MaxFinished: 16384, MaxRequests: 16384})
		s.f.Lead(1)
	}
	for range 16384 / 1000 {
		for i := range c.shards {
			c.apply(b, i, c.schedules(1000))
			c.apply(b, i, c.completes(i, 1000))
		}
	}
	for n := 0; n < pending; n += coldShards * 500 {
		for i := range c.shards {
			c.apply(b, i, c.schedules(min(500, (pending-n+coldShards-1)/coldShards)))
		}
	}
	runtime.GC()
	return c
}

// hugePages has so many bytes of the heap lie in huge pages, as the server has.
func hugePages(size int) {
	block := make([]byte, size)
	start := uintptr(unsafe.Pointer(unsafe.SliceData(block)))
	block = block[-start%(2<<20):]
	_ = syscall.Madvise(block[:len(block)/(2<<20)*(2<<20)], syscall.MADV_HUGEPAGE)
	runtime.KeepAlive(block)
	block = nil
	runtime.GC()
}

func (c *coldBench) schedules(n int) []byte {
	e := &logv1.Entry{Epoch: 1, ClockMs: 1_700_000_000_000}
	for range n {
		id := c.ids[0]
		c.ids = c.ids[1:]
		s := &logv1.Schedule{
			Namespace: "default", Id: "bench-52odzsfz/" + strconv.Itoa(id), DueMs: 1_700_000_000_000 + c.random.Int64N(3_600_000), Queue: "bench",
			Payload: make([]byte, benchPayload), RequestId: fmt.Appendf(nil, "%016x", c.random.Uint64()),
		}
		e.Commands = append(e.Commands, scheduleOf(s))
	}
	return EncodeEntry(e, nil)
}

// fires hands so many timers of a shard out, and returns the commands of their acks.
func (c *coldBench) fires(shard, n int) []*Command {
	s := &c.shards[shard]
	slots := make([]uint32, n)
	for i := range slots {
		at, last := c.random.IntN(len(s.slots)), len(s.slots)-1
		slots[i], s.slots[at] = s.slots[at], s.slots[last]
		s.slots = s.slots[:last]
	}
	return c.handOut(shard, slots)
}

func (c *coldBench) handOut(shard int, slots []uint32) (cmds []*Command) {
	f := c.shards[shard].f
	refs := make([]Ref, 0, len(slots))
	for _, d := range f.Describe(slots, nil) {
		refs = append(refs, d.Ref)
	}
	for _, h := range f.HandOut(1, 1, refs, nil) {
		cmds = append(cmds, complete(h.Record.ID, h.Record.Revision, 0, 1))
	}
	return cmds
}

func (c *coldBench) completes(shard, n int) []byte {
	e := &logv1.Entry{Epoch: 1, ClockMs: 1_700_000_000_000, Commands: c.fires(shard, n)}
	c.shards[shard].f.Stamp(1, 1, e.Commands)
	return EncodeEntry(e, nil)
}

func (c *coldBench) apply(b *testing.B, shard int, data []byte) time.Duration {
	c.index++
	start := time.Now()
	_, err := c.shards[shard].f.Apply(c.index, data)
	spent := time.Since(start)
	if err != nil {
		b.Fatal(err)
	}
	return spent
}

// work is what other parts of a server do meanwhile.
func (c *coldBench) work() {
	for i := 0; i < len(c.block); i += 8 {
		c.block[i] += c.sum
		c.sum += c.block[i]
	}
	var out bytes.Buffer
	w, _ := flate.NewWriter(&out, 1)
	text, _ := json.Marshal(map[string]any{"a": c.sum, "b": []int{1, 2, 3}, "c": time.Unix(int64(c.sum), 0)})
	_, _ = w.Write(text)
	_ = w.Close()
	var back map[string]any
	_ = json.Unmarshal(text, &back)
	c.sum += uint64(out.Len() + len(fmt.Sprint(back)))
}

// BenchmarkCold schedules and fires on many shards in turn, with other work in between. Figures are the median of the turns.
func BenchmarkCold(b *testing.B) {
	c := newColdBench(b, *coldFlag)
	for _, size := range []int{3, 64} {
		b.Run(fmt.Sprintf("pending=%d/entry=%d", *coldFlag, size), func(b *testing.B) {
			var schedule, hand, stamp, ack []float64
			per := func(d time.Duration) float64 { return float64(d.Nanoseconds()) / float64(coldShards*coldEntries*size) }
			for b.Loop() {
				var s, h, st, a time.Duration
				for range coldEntries {
					for i := range c.shards {
						data := c.schedules(size)
						c.work()
						s += c.apply(b, i, data)
					}
				}
				for range coldEntries {
					for i := range c.shards {
						c.work()
						start := time.Now()
						cmds := c.fires(i, size)
						h += time.Since(start)
						c.work()
						start = time.Now()
						c.shards[i].f.Stamp(1, 1, cmds)
						st += time.Since(start)
						data := EncodeEntry(&logv1.Entry{Epoch: 1, ClockMs: 1_700_000_000_000, Commands: cmds}, nil)
						c.work()
						a += c.apply(b, i, data)
					}
				}
				schedule, hand, stamp, ack = append(schedule, per(s)), append(hand, per(h)), append(stamp, per(st)), append(ack, per(a))
			}
			for _, f := range []struct {
				name string
				of   []float64
			}{{"schedule-ns", schedule}, {"hand-ns", hand}, {"stamp-ns", stamp}, {"ack-ns", ack}} {
				slices.Sort(f.of)
				b.ReportMetric(f.of[len(f.of)/2], f.name)
			}
			b.ReportMetric(0, "ns/op")
		})
	}
}
