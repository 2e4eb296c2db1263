package peer

import (
	"context"
	"fmt"
	"time"

	"github.com/hashicorp/raft"
)

// inbound is a Raft request on its way to its group and back.
type inbound struct {
	c        *conn
	h        header
	command  any
	bytes    int
	deadline time.Time
}

// slot is a request that Raft has taken; its answer comes on a channel that is used again.
type slot struct {
	in     *inbound // guarded by the group's mu; nil: free
	answer chan raft.RPCResponse
}

// serveRaft queues a Raft request at its group. Damage is an error; all else is answered.
func (c *conn) serveRaft(h header, timeout time.Duration, body []byte) error {
	command, err := decodeRaftRequest(h.typ, body)
	if err != nil {
		return fmt.Errorf("type %d: %w", h.typ, err)
	}
	if r, ok := command.(*raft.AppendEntriesRequest); ok {
		boundCommit(r)
	}
	if !c.member() {
		c.respondError(h, c.m.notMember())
		return nil
	}
	g := c.m.groupOf(h.group)
	if g == nil {
		c.respondError(h, c.m.noGroup(h.group))
		return nil
	}
	in := &inbound{c: c, h: h, command: command, bytes: len(body), deadline: now().Add(timeout)}
	if err := g.enqueue(in); err != nil {
		c.m.stats.busy.Add(1)
		c.respondError(h, err)
	}
	return nil
}

// boundCommit lowers a message's commit index to the last entry that the message proves to be the same on both sides, as the
// Raft paper's figure 2 has it. Raft v1.8.0 bounds it by the end of the follower's log instead, and takes entries that are
// about to be overwritten for committed: the leader reads its commit index after it has chosen the entries, and cutEntries
// leaves some of them out.
func boundCommit(r *raft.AppendEntriesRequest) {
	r.LeaderCommitIndex = min(r.LeaderCommitIndex, r.PrevLogEntry+uint64(len(r.Entries)))
}

func (m *Mux) noGroup(group uint32) *RemoteError {
	return &RemoteError{Kind: KindNoGroup, Message: fmt.Sprintf("node %q has no group %d open", m.c.NodeID, group)}
}

// enqueue hands a request to Raft, if Raft waits for one, or queues it; the error is of KindBusy. It never waits.
func (g *groupTransport) enqueue(in *inbound) error {
	g.mu.Lock()
	defer g.mu.Unlock()
	if len(g.queue) >= g.m.c.GroupQueue || len(g.queue) > 0 && g.bytes+in.bytes > g.m.c.GroupQueueBytes {
		return &RemoteError{Kind: KindBusy, Message: fmt.Sprintf(
			"the queue of group %d on node %q is full: %d requests, %d bytes", g.id, g.m.c.NodeID, len(g.queue), g.bytes)}
	}
	g.ring(in.deadline)
	if !g.active {
		g.active = g.m.spawn(g.feed)
	}
	if len(g.queue) == 0 && g.offer(in) {
		return nil // the feeder waits for the answers of all slots
	}
	g.queue = append(g.queue, in)
	g.bytes += in.bytes
	if g.slots[0].in == nil && g.slots[1].in == nil {
		g.signal() // else the next answer wakes the feeder
	}
	return nil
}

// offer gives Raft a request if it waits for one and a slot is free. Called with mu held.
func (g *groupTransport) offer(in *inbound) bool {
	for i := range g.slots {
		s := &g.slots[i]
		if s.in != nil {
			continue
		}
		select {
		case g.consum <- raft.RPC{Command: in.command, RespChan: s.answer}:
			s.in = in
			return true
		default:
			return false
		}
	}
	return false
}

// signal wakes the feeder.
func (g *groupTransport) signal() {
	select {
	case g.wake <- struct{}{}:
	default:
	}
}

// ring has the feeder woken at a deadline, unless it is woken before. Called with mu held.
func (g *groupTransport) ring(deadline time.Time) {
	if !g.rings.IsZero() && !deadline.Before(g.rings) {
		return
	}
	g.rings = deadline
	if g.timer == nil {
		g.timer = time.AfterFunc(deadline.Sub(now()), g.signal)
		return
	}
	g.timer.Reset(deadline.Sub(now()))
}

func (g *groupTransport) waiting() int {
	g.mu.Lock()
	defer g.mu.Unlock()
	return len(g.queue)
}

// feed hands the requests that could not be handed over at once to Raft, in order, and all of its answers back, from the
// first request on until the group or the mux ends. Raft may have taken the next request while the answer to the last is on its way.
func (g *groupTransport) feed() {
	defer context.AfterFunc(g.ctx, g.signal)()
	defer context.AfterFunc(g.m.context(), g.signal)()
	for {
		consumer, rpc := g.next()
		select {
		case r := <-g.slots[0].answer:
			g.answered(0, r)
		case r := <-g.slots[1].answer:
			g.answered(1, r)
		case <-g.wake:
			if g.ctx.Err() != nil {
				g.refuse()
				return
			}
			if g.m.context().Err() != nil {
				return
			}
		case consumer <- rpc:
			g.taken()
		}
	}
}

// next drops what is too old and hands over what Raft takes at once. If Raft has nothing to answer and something is queued all
// the same, it returns that, to be offered until Raft takes it.
func (g *groupTransport) next() (chan<- raft.RPC, raft.RPC) {
	g.mu.Lock()
	defer g.mu.Unlock()
	present := now()
	if !g.rings.IsZero() && !present.Before(g.rings) {
		g.expire(present)
	}
	for len(g.queue) > 0 {
		in := g.queue[0]
		switch {
		case !present.Before(in.deadline):
			g.m.stats.expired.Add(1) // its caller has given up
		case g.offer(in):
		case g.slots[0].in == nil && g.slots[1].in == nil:
			return g.consum, raft.RPC{Command: in.command, RespChan: g.slots[0].answer}
		default:
			return nil, raft.RPC{}
		}
		g.pop()
	}
	return nil, raft.RPC{}
}

// pop takes the first request out of the queue. Called with mu held.
func (g *groupTransport) pop() *inbound {
	in := g.queue[0]
	g.queue[0] = nil
	if g.queue = g.queue[1:]; len(g.queue) == 0 {
		g.queue = nil
	}
	g.bytes -= in.bytes
	return in
}

// taken notes that Raft has taken what next returned.
func (g *groupTransport) taken() {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.slots[0].in = g.pop()
}

// expire gives up what is past its deadline: Raft may hold it still, but nobody waits for what it says. It has the feeder woken
// at the next deadline.
func (g *groupTransport) expire(present time.Time) {
	g.rings = time.Time{}
	for i := range g.slots {
		s := &g.slots[i]
		switch {
		case s.in == nil:
		case present.Before(s.in.deadline):
			g.ring(s.in.deadline)
		default:
			*s = slot{answer: make(chan raft.RPCResponse, 1)}
		}
	}
	for _, in := range g.queue {
		if present.Before(in.deadline) {
			g.ring(in.deadline)
		}
	}
}

// answered sends Raft's answer.
func (g *groupTransport) answered(i int, r raft.RPCResponse) {
	g.mu.Lock()
	in := g.slots[i].in
	g.slots[i].in = nil
	soon := g.slots[1-i].in != nil || len(g.queue) > 0
	g.mu.Unlock()
	in.reply(r, soon)
}

// refuse answers what waits when the group is closed.
func (g *groupTransport) refuse() {
	g.mu.Lock()
	rest := g.queue
	for i := range g.slots {
		if s := &g.slots[i]; s.in != nil {
			rest = append(rest, s.in)
			*s = slot{answer: make(chan raft.RPCResponse, 1)}
		}
	}
	g.queue, g.bytes, g.active, g.rings = nil, 0, false, time.Time{}
	if g.timer != nil {
		g.timer.Stop()
	}
	g.mu.Unlock()
	for _, in := range rest {
		in.c.respondError(in.h, g.m.noGroup(g.id))
	}
}

// reply sends Raft's answer. soon says that Raft has the next request already.
func (in *inbound) reply(r raft.RPCResponse, soon bool) {
	err := r.Error
	if err == nil {
		var b []byte
		if b, err = encodeRaftResponse(append(newPayload(256), responseOK), r.Response); err == nil {
			in.c.send(&message{typ: typeResponse, group: in.h.group, id: in.h.id, payload: b, soon: soon}, lane{urgent: true})
			return
		}
	}
	in.c.respondError(in.h, err)
}
