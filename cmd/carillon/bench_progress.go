package main

import (
	"context"
	"fmt"
	"io"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"time"
)

const (
	progressEvery = 200 * time.Millisecond
	progressWidth = 24
)

// progress shows how far a bench is, on one line of a terminal. The zero value counts and shows nothing.
type progress struct {
	done atomic.Int64
	w    io.Writer // nil: nothing is shown; set before sharing
}

// newProgress shows on w if that is a terminal.
func newProgress(w io.Writer) *progress {
	p := &progress{}
	if f, ok := w.(*os.File); ok {
		if info, err := f.Stat(); err == nil && info.Mode()&os.ModeCharDevice != 0 {
			p.w = w
		}
	}
	return p
}

// during runs f while it shows the step's progress: by the count of what is done, or by time if that is further.
func (p *progress) during(ctx context.Context, step string, count int64, limit time.Duration, f func()) {
	p.done.Store(0)
	if p.w == nil {
		f()
		return
	}
	ctx, cancel := context.WithCancel(ctx)
	var shower sync.WaitGroup
	shower.Go(func() { p.show(ctx, step, count, limit) })
	f()
	cancel()
	shower.Wait()
}

func (p *progress) show(ctx context.Context, step string, count int64, limit time.Duration) {
	ticker := time.NewTicker(progressEvery)
	defer ticker.Stop()
	began := time.Now()
	widest := 0
	for {
		select {
		case <-ctx.Done():
			fmt.Fprintf(p.w, "\r%s\r", strings.Repeat(" ", widest))
			return
		case now := <-ticker.C:
			line := progressLine(step, p.done.Load(), count, now.Sub(began), limit)
			widest = max(widest, len(line))
			fmt.Fprintf(p.w, "\r%-*s", widest, line)
		}
	}
}

// progressLine is a bar with the share that is done, by count (0: no limit) or by time (0: no limit).
func progressLine(step string, done, count int64, elapsed, limit time.Duration) string {
	share := 0.0
	if count > 0 {
		share = float64(done) / float64(count)
	}
	if limit > 0 {
		share = max(share, float64(elapsed)/float64(limit))
	}
	share = min(share, 1)
	full := int(share * progressWidth)
	bar := strings.Repeat("#", full) + strings.Repeat(".", progressWidth-full)
	rate := int64(0)
	if elapsed > 0 {
		rate = int64(float64(done) / elapsed.Seconds())
	}
	return fmt.Sprintf("%-9s [%s] %3.0f%%  %s  %s/s  %.0fs", step, bar, 100*share, thousands(done), thousands(rate), elapsed.Seconds())
}
