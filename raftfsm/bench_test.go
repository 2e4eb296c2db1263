//go:build unix

package raftfsm

import (
	"bytes"
	"flag"
	"fmt"
	"io"
	"math/rand/v2"
	"runtime"
	"slices"
	"syscall"
	"testing"
	"time"

	logv1 "github.com/carillon-timers/carillon/proto/carillonlog/v1"
)

// All figures are CPU time of the process, with its garbage collection, since wall time says little on a busy machine. The
// timers have IDs of 24 bytes like order-00000000123/expire in a random order, 100 bytes of payload, and due times over one
// hour. Run: go test -run '^$' -bench . -benchtime 3x ./raftfsm.

const benchPayload = 100

func benchEntry(epoch uint64, first, n int, order []int) []byte {
	e := &logv1.Entry{Epoch: epoch, ClockMs: 1}
	for i := range n {
		e.Commands = append(e.Commands, benchTimer(order[first+i]))
	}
	return EncodeEntry(e, nil)
}

func benchID(n int) string { return fmt.Sprintf("order-%011d/expire", n) }

func benchTimer(n int) *Command {
	c := schedule(benchID(n), int64(n)*7919%3_600_000).GetSchedule()
	c.Payload = make([]byte, benchPayload)
	if *requestsFlag {
		c.RequestId = []byte(fmt.Sprintf("request-%08x", n))
	}
	return scheduleOf(c)
}

// filled returns a state with n timers in a random order of IDs, and the bytes of heap that each takes.
func filled(b *testing.B, n int) (f *FSM, order []int, heap float64) {
	b.Helper()
	order = rand.New(rand.NewPCG(1, 1)).Perm(n + n/2)
	before := heapBytes()
	f = New(Options{})
	for first := 0; first < n; first += 1000 {
		if _, err := f.Apply(uint64(first/1000+1), benchEntry(1, first, min(1000, n-first), order)); err != nil {
			b.Fatal(err)
		}
	}
	return f, order, float64(heapBytes()-before) / float64(n)
}

// cpu is the CPU time that the process has used.
func cpu() time.Duration {
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		panic(err)
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

func heapBytes() int64 {
	runtime.GC()
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc)
}

var benchSizes = []int{100_000, 1_000_000}

var hugeFlag = flag.Bool("huge", false, "benchmarks of many sizes also take 10 million timers (2.5 GB)")

var requestsFlag = flag.Bool("requests", false, "the timers of benchmarks have request IDs, as the SDK's have")

// sizes are benchSizes, and the huge one if it is wanted.
func sizes() []int {
	if *hugeFlag {
		return append(slices.Clone(benchSizes), 10_000_000)
	}
	return benchSizes
}

// BenchmarkApply schedules into a table of that many pending, in entries of 1, 64 and 1000, and takes the timers out again
// outside the measured time.
func BenchmarkApply(b *testing.B) {
	for _, pending := range sizes() {
		f, order, heap := filled(b, pending)
		for _, size := range []int{1, 64, 1000} {
			b.Run(fmt.Sprintf("pending=%d/entry=%d", pending, size), func(b *testing.B) {
				benchApply(b, f, order[pending:], size)
				b.ReportMetric(heap, "B/timer")
			})
		}
		runtime.KeepAlive(f)
	}
}

func benchApply(b *testing.B, f *FSM, order []int, size int) {
	entries := min(len(order), 50_000) / size
	index := f.Stats().AppliedIndex
	var spent time.Duration
	timers := 0
	for b.Loop() {
		var data [][]byte
		for n := range entries {
			data = append(data, benchEntry(1, n*size, size, order))
		}
		runtime.GC()
		start := cpu()
		for _, d := range data {
			index++
			if _, err := f.Apply(index, d); err != nil {
				b.Fatal(err)
			}
		}
		spent += cpu() - start
		timers += entries * size
		index = benchComplete(b, f, order[:entries*size], index)
	}
	b.ReportMetric(float64(spent.Nanoseconds())/float64(timers), "cpu-ns/timer")
	b.ReportMetric(0, "ns/op")
}

// BenchmarkCollect measures a full collection of a heap that holds nothing but so many timers.
func BenchmarkCollect(b *testing.B) {
	for _, pending := range sizes() {
		b.Run(fmt.Sprintf("pending=%d", pending), func(b *testing.B) {
			f, _, heap := filled(b, pending)
			start := cpu()
			for b.Loop() {
				runtime.GC()
			}
			b.ReportMetric(float64((cpu()-start).Microseconds())/float64(b.N), "cpu-us/collection")
			b.ReportMetric(heap, "B/timer")
			runtime.KeepAlive(f)
		})
	}
}

// BenchmarkGivenBack lets all timers come and go and reports what is left of their heap.
func BenchmarkGivenBack(b *testing.B) {
	for _, pending := range benchSizes {
		b.Run(fmt.Sprintf("pending=%d", pending), func(b *testing.B) {
			for b.Loop() {
				before := heapBytes()
				f, order, heap := filled(b, pending)
				start := cpu()
				benchComplete(b, f, order[:pending], f.Stats().AppliedIndex)
				b.ReportMetric(float64((cpu()-start).Nanoseconds())/float64(pending), "cpu-ns/timer-out")
				b.ReportMetric(heap*float64(pending)/1e6, "MB-full")
				b.ReportMetric(float64(heapBytes()-before)/1e6, "MB-left")
				runtime.KeepAlive(f)
			}
		})
	}
}

// benchComplete acks the timers.
func benchComplete(b *testing.B, f *FSM, order []int, index uint64) uint64 {
	for len(order) > 0 {
		n := min(1000, len(order))
		e := &logv1.Entry{Epoch: 1, ClockMs: 1}
		for _, t := range order[:n] {
			st, _ := f.Get("", benchID(t))
			e.Commands = append(e.Commands, complete(benchID(t), st.Record.Revision, 0, 1))
		}
		index++
		if _, err := f.Apply(index, EncodeEntry(e, nil)); err != nil {
			b.Fatal(err)
		}
		order = order[n:]
	}
	return index
}

// BenchmarkComplete stamps and acks in entries of 1000.
func BenchmarkComplete(b *testing.B) {
	for _, pending := range sizes() {
		b.Run(fmt.Sprintf("pending=%d", pending), func(b *testing.B) {
			f, order, _ := filled(b, pending)
			f.Lead(1)
			const n = 50_000
			var stamp, apply time.Duration
			for b.Loop() {
				index := f.Stats().AppliedIndex
				for first := 0; first < n; first += 1000 {
					e := &logv1.Entry{Epoch: 1, ClockMs: 1}
					for _, t := range order[first : first+1000] {
						st, _ := f.Get("", benchID(t))
						e.Commands = append(e.Commands, complete(benchID(t), st.Record.Revision, 0, 1))
					}
					start := cpu()
					f.Stamp(1, 1, e.Commands)
					stamp += cpu() - start
					data := EncodeEntry(e, nil)
					index++
					start = cpu()
					if _, err := f.Apply(index, data); err != nil {
						b.Fatal(err)
					}
					apply += cpu() - start
				}
				for first := 0; first < n; first += 1000 {
					index++
					if _, err := f.Apply(index, benchEntry(1, first, 1000, order)); err != nil {
						b.Fatal(err)
					}
				}
			}
			b.ReportMetric(float64(stamp.Nanoseconds())/float64(n*b.N), "stamp-ns/timer")
			b.ReportMetric(float64(apply.Nanoseconds())/float64(n*b.N), "apply-ns/timer")
			b.ReportMetric(0, "ns/op")
		})
	}
}

// BenchmarkMillion measures what is done to a whole table of a million.
func BenchmarkMillion(b *testing.B) {
	const n = 1_000_000
	f, order, _ := filled(b, n)
	b.Run("snapshot-stall", func(b *testing.B) {
		for b.Loop() {
			s, err := f.Snapshot()
			if err != nil {
				b.Fatal(err)
			}
			s.Release()
		}
	})
	b.Run("get", func(b *testing.B) {
		i := 0
		for b.Loop() {
			f.Get("default", benchID(order[i%n]))
			i++
		}
	})
	b.Run("list-first-page", func(b *testing.B) {
		for b.Loop() {
			if page := f.List(ListQuery{Prefix: "order-"}); len(page.Timers) != MaxPageItems {
				b.Fatal(len(page.Timers))
			}
		}
	})
	b.Run("hand-out", func(b *testing.B) { benchHandOut(b, f) })
	s, err := f.Snapshot()
	if err != nil {
		b.Fatal(err)
	}
	defer s.Release()
	b.Run("write", func(b *testing.B) {
		start := cpu()
		for b.Loop() {
			if _, err := s.WriteTo(io.Discard); err != nil {
				b.Fatal(err)
			}
		}
		b.ReportMetric(float64((cpu()-start).Nanoseconds())/float64(n*b.N), "cpu-ns/timer")
	})
	b.Run("restore", func(b *testing.B) {
		var file bytes.Buffer
		if _, err := s.WriteTo(&file); err != nil {
			b.Fatal(err)
		}
		start := cpu()
		for b.Loop() {
			if err := New(Options{}).Restore(bytes.NewReader(file.Bytes())); err != nil {
				b.Fatal(err)
			}
		}
		b.ReportMetric(float64((cpu()-start).Nanoseconds())/float64(n*b.N), "cpu-ns/timer")
		b.ReportMetric(float64(file.Len())/n, "file-B/timer")
	})
}

func benchHandOut(b *testing.B, f *FSM) {
	f.Lead(1)
	slots := make([]uint32, 64)
	var infos []DueInfo
	var refs []Ref
	var out []Handed
	next := uint32(0)
	start := cpu()
	for b.Loop() {
		for i := range slots {
			next = (next + 7919) % 1_000_000
			slots[i] = next
		}
		infos, refs = f.Describe(slots, infos[:0]), refs[:0]
		for _, d := range infos {
			refs = append(refs, d.Ref)
		}
		out = f.HandOut(1, 0, refs, out[:0])
	}
	b.ReportMetric(float64((cpu()-start).Nanoseconds())/float64(64*b.N), "cpu-ns/timer")
}
