package peer

import (
	"context"
	"errors"
	"time"

	"github.com/hashicorp/raft"
)

// pipeline sends AppendEntries of one group to one node without waiting for the answers. It stays on one connection,
// so that the requests arrive in order; when that ends, so does the pipeline, and Raft falls back to single requests.
type pipeline struct {
	g        *groupTransport
	c        *conn
	inflight chan *appendFuture
	done     chan raft.AppendFuture
	observe  func(raft.AppendFuture) // set before the first request; may be nil
	ctx      context.Context         // ends with Close
	cancel   context.CancelCauseFunc
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
	// One more than the channel holds is in the collector's hands, and one in the sender's.
	p := &pipeline{
		g: g, c: c, inflight: make(chan *appendFuture, g.m.c.PipelineDepth-2), done: make(chan raft.AppendFuture),
	}
	p.ctx, p.cancel = context.WithCancelCause(g.ctx)
	if !g.m.spawn(p.collect) {
		return nil, &CallError{Node: string(target), Err: ErrClosed}
	}
	return p, nil
}

// AppendEntries implements raft.AppendPipeline. It waits while PipelineDepth requests are in flight.
func (p *pipeline) AppendEntries(
	args *raft.AppendEntriesRequest, resp *raft.AppendEntriesResponse,
) (raft.AppendFuture, error) {
	if p.ctx.Err() != nil {
		return nil, raft.ErrPipelineShutdown
	}
	cutEntries(args, p.g.m.c.AppendBytes)
	size := appendSize(args)
	ctx, cancel := context.WithTimeout(p.ctx, p.g.timeoutOf(size))
	payload := encodeAppendEntries(p.g.m.appendTimeout(newPayload(size+4), ctx), args)
	f := &appendFuture{start: now(), args: args, resp: resp, ctx: ctx, cancel: cancel, ready: make(chan struct{})}
	err := error(ErrTooLarge)
	if len(payload) <= p.g.m.c.MaxMessage {
		f.call, err = p.c.start(typeAppendEntries, lane{class: classRaft, group: p.g.id}, payload)
	}
	if err != nil {
		cancel()
		p.g.m.stats.callErrors.Add(1)
		return nil, &CallError{Node: p.c.remote.node, Err: err}
	}
	select {
	case p.inflight <- f:
		if p.ctx.Err() != nil {
			p.abandon() // the collector may have gone before it saw f
		}
		return f, nil
	case <-p.ctx.Done():
		p.c.forget(f.call)
		cancel()
		return nil, raft.ErrPipelineShutdown
	}
}

// Observe has f told of each request that was answered, before Consumer has it. It must be called before the first request;
// f must not wait.
func (p *pipeline) Observe(f func(raft.AppendFuture)) { p.observe = f }

// Consumer implements raft.AppendPipeline.
func (p *pipeline) Consumer() <-chan raft.AppendFuture { return p.done }

// Close implements raft.AppendPipeline: what is in flight fails.
func (p *pipeline) Close() error {
	p.cancel(raft.ErrPipelineShutdown)
	return nil
}

// collect completes the futures in the order of their requests.
func (p *pipeline) collect() {
	for {
		select {
		case f := <-p.inflight:
			f.finish(p)
			select {
			case p.done <- f:
			case <-p.ctx.Done():
				p.abandon()
				return
			case <-p.g.m.context().Done():
				return
			}
		case <-p.ctx.Done():
			p.abandon()
			return
		case <-p.g.m.context().Done():
			return
		}
	}
}

// abandon fails what a closed pipeline has in flight.
func (p *pipeline) abandon() {
	for {
		select {
		case f := <-p.inflight:
			f.finish(p)
		default:
			return
		}
	}
}

// appendFuture implements raft.AppendFuture.
type appendFuture struct {
	start  time.Time
	args   *raft.AppendEntriesRequest
	resp   *raft.AppendEntriesResponse
	call   *call
	ctx    context.Context
	cancel context.CancelFunc
	ready  chan struct{} // closed when err and resp are set
	err    error
}

func (f *appendFuture) finish(p *pipeline) {
	b, err := p.c.wait(f.ctx, f.call)
	if err == nil {
		err = p.g.decode(b, f.resp)
	}
	f.cancel()
	if err != nil && !errors.Is(err, raft.ErrPipelineShutdown) {
		p.g.m.stats.callErrors.Add(1)
	}
	if err != nil {
		*f.resp = raft.AppendEntriesResponse{} // Raft looks at it without asking for the error
	}
	f.err = err
	close(f.ready)
	if err == nil && p.observe != nil {
		p.observe(f)
	}
}

// Error implements raft.Future: it waits for the answer.
func (f *appendFuture) Error() error {
	<-f.ready
	return f.err
}

// Start implements raft.AppendFuture.
func (f *appendFuture) Start() time.Time { return f.start }

// Request implements raft.AppendFuture.
func (f *appendFuture) Request() *raft.AppendEntriesRequest { return f.args }

// Response implements raft.AppendFuture.
func (f *appendFuture) Response() *raft.AppendEntriesResponse { return f.resp }
