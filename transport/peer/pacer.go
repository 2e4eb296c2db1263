package peer

import (
	"context"
	"sync"
	"time"
)

// pacer spaces out bytes to a rate, over all who use it.
type pacer struct {
	rate int // bytes per second

	mu   sync.Mutex
	free time.Time // guarded by mu; when the next bytes may go
}

// wait returns when n more bytes may go; false means that ctx has ended.
func (p *pacer) wait(ctx context.Context, n int) bool {
	p.mu.Lock()
	present := now()
	if p.free.Before(present) {
		p.free = present
	}
	d := p.free.Sub(present)
	p.free = p.free.Add(time.Duration(n) * time.Second / time.Duration(p.rate))
	p.mu.Unlock()
	return sleep(ctx, d)
}

// chunk is how much is sent at once: an eighth of a second's worth, at most a fragment.
func (p *pacer) chunk() int { return min(max(p.rate/8, 4<<10), fragmentBytes) }
