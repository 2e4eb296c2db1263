package main

import (
	"math"
	"math/bits"
	"time"
)

// histogramSteps is how many buckets each doubling of a duration has: a percentile is at most 1/histogramSteps too high.
const histogramSteps = 256

// histogram counts durations in buckets that grow with them, so that its size does not depend on their number. Not safe
// for use by several goroutines: each has its own, and they are merged.
type histogram struct {
	counts   []uint64
	count    uint64
	min, max time.Duration
}

// bucket is the index of the bucket of d nanoseconds; negative durations count as 0.
func bucket(d time.Duration) int {
	n := uint64(max(d, 0))
	if n < histogramSteps {
		return int(n)
	}
	shift := bits.Len64(n) - bits.Len64(histogramSteps)
	return shift*histogramSteps + int(n>>shift)
}

// bucketTop is the largest duration of a bucket.
func bucketTop(i int) time.Duration {
	if i < 2*histogramSteps {
		return time.Duration(i)
	}
	shift := i/histogramSteps - 1
	low := uint64(i-shift*histogramSteps) << shift
	return time.Duration(min(low+1<<shift-1, math.MaxInt64))
}

func (h *histogram) add(d time.Duration) {
	i := bucket(d)
	if i >= len(h.counts) {
		h.counts = append(h.counts, make([]uint64, i+1-len(h.counts))...)
	}
	h.counts[i]++
	if h.count == 0 || d < h.min {
		h.min = d
	}
	if h.count == 0 || d > h.max {
		h.max = d
	}
	h.count++
}

func (h *histogram) merge(o *histogram) {
	if o.count == 0 {
		return
	}
	if n := len(o.counts); n > len(h.counts) {
		h.counts = append(h.counts, make([]uint64, n-len(h.counts))...)
	}
	for i, n := range o.counts {
		h.counts[i] += n
	}
	if h.count == 0 || o.min < h.min {
		h.min = o.min
	}
	if h.count == 0 || o.max > h.max {
		h.max = o.max
	}
	h.count += o.count
}

// quantile returns a duration that at least the share q (0 to 1) of all do not exceed; 0 if there are none.
func (h *histogram) quantile(q float64) time.Duration {
	if h.count == 0 {
		return 0
	}
	rank := max(uint64(math.Ceil(q*float64(h.count))), 1)
	for i, n := range h.counts {
		if n >= rank {
			return max(min(bucketTop(i), h.max), h.min)
		}
		rank -= n
	}
	return h.max
}

// measure is what one kind of operation came to.
type measure struct {
	Name string `json:"name"`
	// Count of timers that the operation was done for, without those that failed.
	Count   uint64  `json:"count"`
	Seconds float64 `json:"seconds"`
	Rate    float64 `json:"rate"`
	P50     float64 `json:"p50_ms"`
	P99     float64 `json:"p99_ms"`
	P999    float64 `json:"p999_ms"`
	Max     float64 `json:"max_ms"`
	Errors  uint64  `json:"errors"`
}

// newMeasure sums up: count timers in the elapsed time, with these durations.
func newMeasure(name string, count, errors uint64, elapsed time.Duration, h *histogram) measure {
	m := measure{
		Name: name, Count: count, Errors: errors, Seconds: elapsed.Seconds(), P50: ms(h.quantile(0.5)), P99: ms(h.quantile(0.99)),
		P999: ms(h.quantile(0.999)), Max: ms(h.max),
	}
	if elapsed > 0 {
		m.Rate = float64(count) / elapsed.Seconds()
	}
	return m
}

// ms is a duration in milliseconds, to the microsecond.
func ms(d time.Duration) float64 { return float64(d.Round(time.Microsecond).Microseconds()) / 1000 }
