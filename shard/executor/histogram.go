package executor

import (
	"math/bits"
	"sync/atomic"
)

// The buckets of a Histogram: eight to every power of two, so a bound is at most an eighth above the value; the last one
// ends at about 19 hours.
const (
	subBits    = 3
	subBuckets = 1 << subBits
	buckets    = subBuckets * (37 - subBits)
)

// Histogram counts durations in microseconds in fixed buckets, without a lock. The zero value is ready.
type Histogram struct {
	counts [buckets]atomic.Uint64
	sum    atomic.Int64
	max    atomic.Int64
}

// Observe counts a duration in microseconds; below 0 counts as 0.
func (h *Histogram) Observe(micros int64) {
	micros = max(0, micros)
	h.counts[bucketOf(micros)].Add(1)
	h.sum.Add(micros)
	for {
		old := h.max.Load()
		if micros <= old || h.max.CompareAndSwap(old, micros) {
			return
		}
	}
}

// Snapshot copies what was counted; values that are observed meanwhile may be in it in part.
func (h *Histogram) Snapshot() HistogramSnapshot {
	s := HistogramSnapshot{Counts: make([]uint64, buckets), Sum: h.sum.Load(), Max: h.max.Load()}
	for i := range h.counts {
		s.Counts[i] = h.counts[i].Load()
		s.Count += s.Counts[i]
	}
	return s
}

// HistogramSnapshot is a copy of a Histogram, in microseconds.
type HistogramSnapshot struct {
	// Counts holds the number of values in each bucket; BucketBound says where a bucket ends.
	Counts []uint64
	Count  uint64
	// Sum and Max are of the values themselves.
	Sum, Max int64
}

// BucketBound is the highest value in microseconds that bucket i counts; the last one counts all that is longer too.
func BucketBound(i int) int64 {
	if i < subBuckets {
		return int64(i)
	}
	shift := i/subBuckets - 1
	return int64(subBuckets+i%subBuckets+1)<<shift - 1
}

// Quantile is an upper bound, in microseconds, of the share q (0 to 1) of the values; 0 if there are none.
func (s HistogramSnapshot) Quantile(q float64) int64 {
	rank := uint64(q * float64(s.Count))
	var seen uint64
	for i, n := range s.Counts {
		seen += n
		if n > 0 && seen > rank {
			return min(BucketBound(i), s.Max)
		}
	}
	return s.Max
}

// Merge adds what another snapshot counted.
func (s *HistogramSnapshot) Merge(o HistogramSnapshot) {
	if s.Counts == nil {
		s.Counts = make([]uint64, buckets)
	}
	for i, n := range o.Counts {
		s.Counts[i] += n
	}
	s.Count += o.Count
	s.Sum += o.Sum
	s.Max = max(s.Max, o.Max)
}

func bucketOf(micros int64) int {
	if micros < subBuckets {
		return int(micros)
	}
	shift := bits.Len64(uint64(micros)) - 1 - subBits
	return min(buckets-1, (shift+1)*subBuckets+int(micros>>shift)-subBuckets)
}
