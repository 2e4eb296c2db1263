package peer

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"runtime/debug"
	"sync"
	"time"
)

// Method names a kind of call between nodes.
type Method uint8

// Handler serves a call from a node. ctx ends with the caller's deadline, when the caller gives up, and when the
// connection is lost; a handler must return soon after. body is the handler's to keep. An error travels as text, a
// *RemoteError with its kind and detail.
type Handler func(ctx context.Context, from string, group uint32, body []byte) ([]byte, error)

type route struct {
	handler Handler
	joining bool
}

// Handle sets the handler of a method for nodes of the same cluster. It is called before Run.
func (m *Mux) Handle(method Method, h Handler) { m.handlers[method] = route{handler: h} }

// HandleJoin sets the handler of a method that is also served while either end belongs to no cluster yet. It is
// called before Run.
func (m *Mux) HandleJoin(method Method, h Handler) {
	m.handlers[method] = route{handler: h, joining: true}
}

// Call asks a node and returns its answer. The error is a *RemoteError if the node has answered with one, else a
// *CallError, whose Sent says whether the node may have seen the request. Without a deadline in ctx, CallTimeout is
// taken. body may be used again when Call has returned.
func (m *Mux) Call(ctx context.Context, node string, method Method, group uint32, body []byte) ([]byte, error) {
	if node == m.c.NodeID {
		return nil, &CallError{Node: node, Err: ErrSelf}
	}
	ctx, cancel := m.withDeadline(ctx)
	defer cancel()
	l := lane{class: classCall, group: group}
	b, err := m.roundTrip(ctx, node, typeCall, l, m.encodeCall(ctx, method, body))
	if err != nil {
		return nil, err
	}
	return parseResponse(b)
}

// CallAddr is Call to whatever node listens at addr, over a connection of its own. Only methods set by HandleJoin
// are sure to be served. It returns ErrSelf inside the *CallError if that node is this one.
func (m *Mux) CallAddr(ctx context.Context, addr string, method Method, group uint32, body []byte) ([]byte, error) {
	ctx, cancel := m.withDeadline(ctx)
	defer cancel()
	b, err := m.callAddr(ctx, addr, lane{class: classCall, group: group}, m.encodeCall(ctx, method, body))
	if err != nil {
		m.stats.callErrors.Add(1)
		var ce *CallError
		if errors.As(err, &ce) {
			ce.Node = addr
			return nil, ce
		}
		return nil, &CallError{Node: addr, Err: err}
	}
	return parseResponse(b)
}

func (m *Mux) callAddr(ctx context.Context, addr string, l lane, payload []byte) ([]byte, error) {
	if len(payload) > m.c.MaxMessage {
		return nil, ErrTooLarge
	}
	if err := m.context().Err(); err != nil {
		return nil, ErrClosed
	}
	dctx, cancel := context.WithTimeout(ctx, m.c.DialTimeout)
	defer cancel()
	defer context.AfterFunc(m.context(), cancel)()
	own := m.identity()
	nc, br, remote, err := m.dial(dctx, kindOnce, "", addr)
	if err != nil {
		return nil, err
	}
	c, err := m.open(nc, br, nil, own, remote, true)
	if err != nil {
		return nil, err
	}
	defer c.close(errReplaced)
	p, err := c.start(typeCall, l, payload)
	if err != nil {
		return nil, err
	}
	return c.wait(ctx, p)
}

// withDeadline gives ctx the default deadline if it has none.
func (m *Mux) withDeadline(ctx context.Context) (context.Context, context.CancelFunc) {
	if _, ok := ctx.Deadline(); ok {
		return ctx, func() {}
	}
	return context.WithTimeout(ctx, m.c.CallTimeout)
}

// appendTimeout appends what is left until the deadline of ctx, in milliseconds.
func (m *Mux) appendTimeout(b []byte, ctx context.Context) []byte {
	left := m.c.CallTimeout
	if d, ok := ctx.Deadline(); ok {
		left = d.Sub(now())
	}
	return appendMillis(b, left)
}

// appendMillis appends how long the caller waits, in milliseconds, at least one.
func appendMillis(b []byte, left time.Duration) []byte {
	ms := min(max(left.Milliseconds(), 1), math.MaxUint32)
	return binary.LittleEndian.AppendUint32(b, uint32(ms))
}

func (m *Mux) encodeCall(ctx context.Context, method Method, body []byte) []byte {
	b := m.appendTimeout(newPayload(len(body)+5), ctx)
	b = append(b, byte(method))
	return append(b, body...)
}

// sendTries bounds how often a request is taken to another connection because the one at hand was ending.
const sendTries = 3

// roundTrip sends a request to a node and waits for the answer.
func (m *Mux) roundTrip(ctx context.Context, node string, typ frameType, l lane, payload []byte) ([]byte, error) {
	b, err := m.exchange(ctx, node, typ, l, payload)
	if err == nil {
		return b, nil
	}
	m.stats.callErrors.Add(1)
	var ce *CallError
	if errors.As(err, &ce) {
		return nil, err
	}
	return nil, &CallError{Node: node, Err: err}
}

func (m *Mux) exchange(ctx context.Context, node string, typ frameType, l lane, payload []byte) ([]byte, error) {
	if len(payload) > m.c.MaxMessage {
		return nil, fmt.Errorf("%w: %d bytes, the limit is %d", ErrTooLarge, len(payload), m.c.MaxMessage)
	}
	link := m.linkTo(node)
	for try := 1; ; try++ {
		c, err := link.get(ctx)
		if err != nil {
			return nil, err
		}
		p, err := c.start(typ, l, payload)
		if err == nil {
			return c.wait(ctx, p)
		}
		if errors.Is(err, ErrQueueFull) || try == sendTries {
			return nil, err
		}
		if err := c.leave(ctx, err); err != nil {
			return nil, err
		}
	}
}

// leave makes sure that the link gives this connection, which has refused a request, to nobody any more: it has begun to end, and the
// link may not have been told yet.
func (c *conn) leave(ctx context.Context, refusal error) error {
	if errors.Is(refusal, errDraining) {
		c.link.demote(c)
		return nil
	}
	select {
	case <-c.gone:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// serveCall starts the handler of a call.
func (c *conn) serveCall(h header, timeout time.Duration, body []byte) error {
	if len(body) < 1 {
		return fmt.Errorf("%w: call without a method", ErrBadFrame)
	}
	m := c.m
	r := m.handlers[body[0]]
	switch {
	case r.handler == nil:
		c.respondError(h, &RemoteError{Kind: KindNoMethod, Message: fmt.Sprintf("no handler for method %d", body[0])})
		return nil
	case !r.joining && !c.member():
		c.respondError(h, c.m.notMember())
		return nil
	case !m.gate.enter(h.group):
		m.stats.busy.Add(1)
		c.respondError(h, &RemoteError{Kind: KindBusy, Message: fmt.Sprintf(
			"calls served at once are at their limit: %d, or %d for group %d", m.c.Handlers, m.c.GroupHandlers, h.group)})
		return nil
	}
	ctx, cancel := context.WithTimeout(c.ctx, timeout)
	c.mu.Lock()
	if !c.closed {
		c.serving[h.id] = cancel
	}
	c.mu.Unlock()
	ok := m.spawn(func() {
		answer, err := m.runHandler(ctx, r.handler, c.remote.node, h.group, body[1:])
		m.gate.leave(h.group) // before the answer: who has it may call again
		c.mu.Lock()
		delete(c.serving, h.id)
		c.mu.Unlock()
		late := err != nil && ctx.Err() != nil // nobody waits; an answer would only race with the caller's own deadline
		cancel()
		if !late {
			c.respondCall(h, answer, err)
		}
	})
	if !ok {
		cancel()
		m.gate.leave(h.group)
		return ErrClosed
	}
	return nil
}

func (m *Mux) notMember() *RemoteError {
	return &RemoteError{Kind: KindNotMember, Message: fmt.Sprintf(
		"node %q and the caller are not known to be of one cluster", m.c.NodeID)}
}

// runHandler calls a handler; a panic becomes an error.
func (m *Mux) runHandler(ctx context.Context, h Handler, from string, group uint32, body []byte) (b []byte, err error) {
	defer func() {
		if p := recover(); p != nil {
			m.stats.panics.Add(1)
			m.log.Error("peer handler panicked", "from", from, "group", group, "panic", p, "stack", string(debug.Stack()))
			b, err = nil, &RemoteError{Kind: KindPanic, Message: fmt.Sprintf("handler panicked: %v", p)}
		}
	}()
	return h(ctx, from, group, body)
}

func (c *conn) respondCall(h header, answer []byte, err error) {
	if err == nil && len(answer)+1 > c.m.c.MaxMessage {
		err = &RemoteError{Kind: KindTooLarge, Message: fmt.Sprintf(
			"the answer is %d bytes, the limit is %d", len(answer), c.m.c.MaxMessage)}
	}
	if err != nil {
		c.respondError(h, err)
		return
	}
	b := append(newPayload(len(answer)+1), responseOK)
	c.respond(h, append(b, answer...), lane{class: classResponse, group: h.group})
}

// Status bytes at the head of a response.
const (
	responseOK    = 0
	responseError = 1
)

// maxDetailBytes bounds the detail, maxTextBytes the message of an error that travels.
const (
	maxDetailBytes = 64 << 10
	maxTextBytes   = 4 << 10
)

func (c *conn) respondError(h header, err error) {
	c.respond(h, encodeError(newPayload(512), err), lane{urgent: true})
}

// encodeError appends a response that says err.
func encodeError(b []byte, err error) []byte {
	re := &RemoteError{}
	if !errors.As(err, &re) {
		re = &RemoteError{Kind: KindPlain, Message: err.Error()}
	}
	text, detail := re.Message, re.Detail
	if len(text) > maxTextBytes {
		text = text[:maxTextBytes]
	}
	if len(detail) > maxDetailBytes {
		detail = detail[:maxDetailBytes]
	}
	b = append(b, responseError, re.Kind)
	b = appendString(b, text)
	return appendBytes(b, detail)
}

func (c *conn) respond(h header, payload []byte, l lane) {
	if len(payload) > fragmentBytes && l.urgent {
		l = lane{class: classResponse, group: h.group}
	}
	c.send(&message{typ: typeResponse, group: h.group, id: h.id, payload: payload}, l)
}

// parseResponse splits a response into its body and its error.
func parseResponse(b []byte) ([]byte, error) {
	d := &decoder{b: b}
	switch d.byte() {
	case responseOK:
		if d.err == nil {
			return d.b, nil
		}
	case responseError:
		e := &RemoteError{Kind: d.byte(), Message: string(d.bytes()), Detail: d.bytes()}
		if d.end() == nil {
			return nil, e
		}
	default:
		d.fail("unknown status of a response")
	}
	return nil, d.err
}

// gate bounds what runs at once, in all and per group.
type gate struct {
	max, maxGroup int

	mu     *sync.Mutex
	total  int            // guarded by mu
	groups map[uint32]int // guarded by mu; only those with something running
}

func newGate(max, maxGroup int) gate {
	return gate{max: max, maxGroup: maxGroup, mu: new(sync.Mutex), groups: map[uint32]int{}}
}

func (g *gate) enter(group uint32) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.total >= g.max || g.groups[group] >= g.maxGroup {
		return false
	}
	g.total++
	g.groups[group]++
	return true
}

func (g *gate) leave(group uint32) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.total--
	if g.groups[group]--; g.groups[group] == 0 {
		delete(g.groups, group)
	}
}

func (g *gate) running() int {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.total
}
