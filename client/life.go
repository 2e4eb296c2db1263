package client

import (
	"context"
	"time"

	carillonv1 "github.com/carillon-timers/carillon/proto/carillon/v1"
)

// life bounds a joined call: by its context, by CallTimeout if that has no deadline, and by the client's end. It is
// withDeadline without a context of its own, which costs more than all else that a call does here.
type life struct {
	c       *Client
	ctx     context.Context
	end     time.Time // of a call whose context has no deadline
	timer   *time.Timer
	timeout <-chan time.Time // of the timer
}

func (c *Client) callOf(ctx context.Context, started time.Time) *life {
	l := &life{c: c, ctx: ctx}
	if _, ok := ctx.Deadline(); !ok {
		l.end = started.Add(c.cfg.CallTimeout)
		l.timer = time.NewTimer(c.cfg.CallTimeout)
		l.timeout = l.timer.C
	}
	return l
}

func (l *life) stop() {
	if l.timer != nil {
		l.timer.Stop()
	}
}

// wait returns true when done is closed, false if the call ends before.
func (l *life) wait(done <-chan struct{}) bool {
	select {
	case <-done:
		return true
	case <-l.ctx.Done():
	case <-l.c.base.Done():
	case <-l.timeout:
		l.timeout = over
	}
	select {
	case <-done:
		return true
	default:
		return false
	}
}

// over is a time-out that has passed.
var over = func() <-chan time.Time {
	c := make(chan time.Time)
	close(c)
	return c
}()

// sleep waits, or returns why the call has ended.
func (l *life) sleep(d time.Duration) error {
	if why := l.ended(); why != nil || d <= 0 {
		return why
	}
	pause := time.NewTimer(d)
	defer pause.Stop()
	select {
	case <-pause.C:
		return nil
	case <-l.ctx.Done():
	case <-l.c.base.Done():
	case <-l.timeout:
		l.timeout = over
	}
	return l.ended()
}

// ended is why the call has ended, nil if it has not.
func (l *life) ended() error {
	if l.c.base.Err() != nil {
		return context.Cause(l.c.base)
	}
	if l.ctx.Err() != nil {
		return context.Cause(l.ctx)
	}
	select {
	case <-l.timeout:
		l.timeout = over
		return context.DeadlineExceeded
	default:
		return nil
	}
}

// noAddress says why nothing is connected: a call on a broken connection tells.
func (l *life) noAddress() error {
	ctx, cancel := l.ctx, context.CancelFunc(func() {})
	if l.timer != nil {
		ctx, cancel = context.WithDeadline(ctx, l.end)
	}
	defer cancel()
	return l.c.noAddress(ctx)
}

// picker picks connections for the items of a call: for each shard once.
type picker struct {
	r      *router
	shards int
	picked []*endpoint // by shard, if there are several items
}

func (r *router) picker(items int) picker {
	r.mu.Lock()
	p := picker{r: r, shards: len(r.leaders)}
	r.mu.Unlock()
	if items > 1 {
		p.picked = make([]*endpoint, p.shards)
	}
	return p
}

// of gives the timer's shard, and the connection for it: nil if there is none.
func (p *picker) of(namespace, id string) (shard int, e *endpoint) {
	if p.shards == 0 {
		return anyNode, p.r.pick(anyNode)
	}
	shard = carillonv1.ShardOf(namespace, id, p.shards)
	if p.picked == nil {
		return shard, p.r.pick(shard)
	}
	if p.picked[shard] == nil {
		p.picked[shard] = p.r.pick(shard)
	}
	return shard, p.picked[shard]
}
