package client

import (
	"context"
	"math/rand/v2"
	"time"
)

// Back-off between attempts of a call: a failover takes about a second, and the caller waits for its end.
const (
	firstPause = 10 * time.Millisecond
	maxPause   = 500 * time.Millisecond
	// Overload is met with more patience.
	firstOverloadPause = 50 * time.Millisecond
	maxOverloadPause   = 5 * time.Second
	// Streams come back at this pace.
	firstStreamPause = 50 * time.Millisecond
	maxStreamPause   = 2 * time.Second
)

// pause is the wait after so many failures (0 is the first), jittered to 50 to 100 %.
func pause(failures int, first, most time.Duration) time.Duration {
	d := most
	if failures < 16 {
		d = min(first<<failures, most)
	}
	return jitter(d)
}

// jitter is 50 to 100 % of d.
func jitter(d time.Duration) time.Duration { return d/2 + rand.N(d/2+1) }

// sleep waits, or returns the cause of the context's end.
func sleep(ctx context.Context, d time.Duration) error {
	if d <= 0 {
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		return nil
	}
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}
