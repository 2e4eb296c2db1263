package peer

import (
	"context"
	"errors"
	"slices"
	"sync"
	"time"

	"github.com/hashicorp/raft"
)

// pipeline sends AppendEntries of one group to one node without waiting for the answers. It stays on one connection,
// so that the requests arrive in order; when that ends, so does the pipeline, and Raft falls back to single requests.
// It has no goroutine: Raft has each future as soon as its request is sent, and waits in it for the answer.
type pipeline struct {
	g       *groupTransport
	c       *conn
	done    chan raft.AppendFuture
	observe func(raft.AppendFuture) // set before the first request; may be nil
	over    chan struct{}           // closed when reason is set
	detach  func() bool             // set before sharing; ends the watch over the group's end

	mu      sync.Mutex
	reason  error           // guarded by mu; why no request is taken any more
	waiting []*appendFuture // guarded by mu; those without an answer, oldest first
	timer   *time.Timer     // guarded by mu; rings at rings, nil before the first request
	rings   time.Time       // guarded by mu; no later than the first deadline in waiting; zero if the timer is not set
}

var _ raft.AppendPipeline = (*pipeline)(nil)

// AppendEntriesPipeline implements raft.Transport.
func (g *groupTransport) AppendEntriesPipeline(_ raft.ServerID, target raft.ServerAddress) (raft.AppendPipeline, error) {
	ctx, cancel := context.WithTimeout(g.ctx, g.m.c.CallTimeout)
	defer cancel()
	c, err := g.m.linkTo(string(target)).get(ctx)
	if err != nil {
		return nil, &CallError{Node: string(target), Err: err}
	}
	// One more than the channel holds is in Raft's hands, and one in the sender's.
	p := &pipeline{
		g: g, c: c, done: make(chan raft.AppendFuture, g.m.c.PipelineDepth-2), over: make(chan struct{}),
	}
	p.detach = context.AfterFunc(g.ctx, func() { p.end(context.Cause(g.ctx)) })
	return p, nil
}

// AppendEntries implements raft.AppendPipeline. It waits while PipelineDepth requests are in flight, and fails once one has
// failed or was turned down: Raft reads no answer after that one.
func (p *pipeline) AppendEntries(
	args *raft.AppendEntriesRequest, resp *raft.AppendEntriesResponse,
) (raft.AppendFuture, error) {
	cutEntries(args, p.g.m.c.AppendBytes)
	size := appendSize(args)
	timeout := p.g.timeoutOf(size)
	f := &appendFuture{p: p, start: now(), args: args, resp: resp}
	f.deadline = f.start.Add(timeout)
	f.call = call{message: message{typ: typeAppendEntries, group: p.g.id}, then: f, done: make(chan struct{})}
	f.payload = encodeAppendEntries(appendMillis(newPayload(size+4), timeout), args)
	err := p.enter(f)
	if err != nil {
		return nil, err
	}
	if len(f.payload) > p.g.m.c.MaxMessage {
		err = ErrTooLarge
	} else {
		err = p.c.begin(&f.call, lane{class: classRaft, group: p.g.id})
	}
	if err != nil {
		p.leave(f)
		p.g.m.stats.callErrors.Add(1)
		return nil, &CallError{Node: p.c.remote.node, Err: err}
	}
	select {
	case p.done <- f:
	case <-p.over:
	}
	if err := p.refusal(); err != nil {
		p.c.abort(&f.call, err) // it may have been sent after all that was in flight was failed
		return nil, err
	}
	return f, nil
}

// enter notes a request before it is sent; an error is why it must not be.
func (p *pipeline) enter(f *appendFuture) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.reason != nil {
		return p.reason
	}
	f.soon = len(p.waiting) > 0 // a sender that is ahead of the answers
	p.waiting = append(p.waiting, f)
	p.ring(f.deadline, f.start)
	return nil
}

// ring sets the timer for a deadline, unless it rings before. Called with mu held.
func (p *pipeline) ring(deadline, present time.Time) {
	if !p.rings.IsZero() && !deadline.Before(p.rings) {
		return
	}
	p.rings = deadline
	if p.timer == nil {
		p.timer = time.AfterFunc(deadline.Sub(present), p.sweep)
		return
	}
	p.timer.Reset(deadline.Sub(present))
}

// sweep fails what is past its deadline. One timer serves all requests of the pipeline: it is set anew when it has rung, not
// with each request.
func (p *pipeline) sweep() {
	present := now()
	var late []*appendFuture
	p.mu.Lock()
	p.rings = time.Time{}
	for _, f := range p.waiting {
		if present.Before(f.deadline) {
			p.ring(f.deadline, present)
		} else {
			late = append(late, f)
		}
	}
	p.mu.Unlock()
	for _, f := range late {
		p.c.abort(&f.call, context.DeadlineExceeded)
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, f := range late {
		if p.reason == nil && slices.Contains(p.waiting, f) {
			p.ring(present.Add(sweepAgain), present) // it is about to be sent, or to be answered
		}
	}
}

// sweepAgain is when a request is looked at again that was past its deadline and not on its way yet: the process was stopped.
const sweepAgain = 100 * time.Millisecond

// leave takes a request out of waiting.
func (p *pipeline) leave(f *appendFuture) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if i := slices.Index(p.waiting, f); i >= 0 {
		p.waiting = slices.Delete(p.waiting, i, i+1)
	}
}

// refusal is why no request is taken any more.
func (p *pipeline) refusal() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.reason
}

// refuse lets no more requests in.
func (p *pipeline) refuse(reason error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.reason == nil {
		p.reason = reason
		close(p.over)
	}
}

// Observe has f told of each request that was answered, before Raft has the answer. It must be called before the first
// request. f is called by the connection's reader and must not wait.
func (p *pipeline) Observe(f func(raft.AppendFuture)) { p.observe = f }

// Consumer implements raft.AppendPipeline. A future's Error and Response wait for the answer.
func (p *pipeline) Consumer() <-chan raft.AppendFuture { return p.done }

// Close implements raft.AppendPipeline: what is in flight fails.
func (p *pipeline) Close() error {
	p.detach()
	p.end(raft.ErrPipelineShutdown)
	return nil
}

// end fails what is in flight.
func (p *pipeline) end(reason error) {
	p.refuse(reason)
	p.mu.Lock()
	waiting := slices.Clone(p.waiting)
	if p.timer != nil {
		p.timer.Stop()
	}
	p.mu.Unlock()
	for _, f := range waiting {
		p.c.abort(&f.call, reason)
	}
}

// appendFuture implements raft.AppendFuture.
type appendFuture struct {
	call
	p        *pipeline
	start    time.Time
	deadline time.Time
	args     *raft.AppendEntriesRequest
	resp     *raft.AppendEntriesResponse
	failure  error // set before done is closed
}

// settled takes the answer, once, before anybody who waits for it is woken.
func (f *appendFuture) settled() {
	p := f.p
	err := f.err
	if err == nil {
		err = p.g.decode(f.body, f.resp)
	} else {
		err = &CallError{Node: p.c.remote.node, Sent: !f.cancel(), Err: err}
	}
	p.leave(f)
	switch {
	case err != nil:
		if !errors.Is(err, raft.ErrPipelineShutdown) {
			p.g.m.stats.callErrors.Add(1)
		}
		*f.resp = raft.AppendEntriesResponse{} // Raft looks at it without asking for the error
		f.failure = err
		p.refuse(err)
		return
	case !f.resp.Success || f.resp.Term > f.args.Term:
		p.refuse(raft.ErrPipelineShutdown)
	}
	if p.observe != nil {
		p.observe((*answered)(f))
	}
}

// Error implements raft.Future: it waits for the answer.
func (f *appendFuture) Error() error {
	<-f.done
	return f.failure
}

// Start implements raft.AppendFuture.
func (f *appendFuture) Start() time.Time { return f.start }

// Request implements raft.AppendFuture.
func (f *appendFuture) Request() *raft.AppendEntriesRequest { return f.args }

// Response implements raft.AppendFuture: it waits for the answer, because Raft does not ask for the error. It is blank if
// there is none.
func (f *appendFuture) Response() *raft.AppendEntriesResponse {
	<-f.done
	return f.resp
}

// answered is an appendFuture that has its answer, and waits for nothing.
type answered appendFuture

func (f *answered) Error() error                          { return f.failure }
func (f *answered) Start() time.Time                      { return f.start }
func (f *answered) Request() *raft.AppendEntriesRequest   { return f.args }
func (f *answered) Response() *raft.AppendEntriesResponse { return f.resp }
