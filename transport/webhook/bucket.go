package webhook

import "time"

// bucket bounds a rate: so many a second, evenly, and up to a tenth of that at once after a pause. The zero value bounds
// nothing. Guarded by Poster.mu.
type bucket struct {
	perSecond, burst int
	tokens           float64
	at               time.Time // when tokens was right
}

func newBucket(perSecond int) bucket {
	burst := max(1, perSecond/10)
	return bucket{perSecond: perSecond, burst: burst, tokens: float64(burst)}
}

// allow takes up to n tokens; if there is none it says how long until there is.
func (b *bucket) allow(now time.Time, n int) (taken int, wait time.Duration) {
	if b.perSecond == 0 {
		return n, 0
	}
	if !b.at.IsZero() {
		b.tokens = min(float64(b.burst), b.tokens+now.Sub(b.at).Seconds()*float64(b.perSecond))
	}
	b.at = now
	taken = min(n, int(b.tokens))
	if taken == 0 {
		return 0, time.Duration((1-b.tokens)/float64(b.perSecond)*float64(time.Second)).Round(time.Microsecond) + time.Microsecond
	}
	b.tokens -= float64(taken)
	return taken, 0
}

// giveBack returns tokens that were not used.
func (b *bucket) giveBack(n int) {
	b.tokens = min(float64(b.burst), b.tokens+float64(n))
}
