package peer

import (
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
	answer   chan raft.RPCResponse
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
	in := &inbound{
		c: c, h: h, command: command, bytes: len(body), deadline: now().Add(timeout),
		answer: make(chan raft.RPCResponse, 1),
	}
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

// enqueue adds a request; the error is of KindBusy. It never waits.
func (g *groupTransport) enqueue(in *inbound) error {
	g.mu.Lock()
	defer g.mu.Unlock()
	if len(g.queue) >= g.m.c.GroupQueue || len(g.queue) > 0 && g.bytes+in.bytes > g.m.c.GroupQueueBytes {
		return &RemoteError{Kind: KindBusy, Message: fmt.Sprintf(
			"the queue of group %d on node %q is full: %d requests, %d bytes", g.id, g.m.c.NodeID, len(g.queue), g.bytes)}
	}
	g.queue = append(g.queue, in)
	g.bytes += in.bytes
	if !g.active {
		g.active = g.m.spawn(g.feed)
	}
	select {
	case g.wake <- struct{}{}:
	default:
	}
	return nil
}

// pop returns the first request, nil if there is none.
func (g *groupTransport) pop() *inbound {
	g.mu.Lock()
	defer g.mu.Unlock()
	if len(g.queue) == 0 {
		return nil
	}
	in := g.queue[0]
	g.queue[0] = nil
	if g.queue = g.queue[1:]; len(g.queue) == 0 {
		g.queue = nil
	}
	g.bytes -= in.bytes
	return in
}

func (g *groupTransport) waiting() int {
	g.mu.Lock()
	defer g.mu.Unlock()
	return len(g.queue)
}

// feed hands the requests to Raft in order, and its answers back, from the first request on until the group or the mux
// ends. Raft may have taken the next request while the answer to the last is on its way.
func (g *groupTransport) feed() {
	var next *inbound
	var unanswered []*inbound
	timer := time.NewTimer(time.Hour)
	defer timer.Stop()
	for {
		if next == nil {
			next = g.pop()
		}
		present := now()
		if next != nil && !present.Before(next.deadline) {
			g.m.stats.expired.Add(1) // its caller has given up
			next = nil
			continue
		}
		if len(unanswered) > 0 && !present.Before(unanswered[0].deadline) {
			unanswered = unanswered[1:] // Raft holds it still; nobody waits for what it says
			continue
		}
		if !g.step(&next, &unanswered, timer, present) {
			return
		}
	}
}

// step waits for one event: Raft takes next, Raft answers, a request comes, a deadline passes. False means the end.
func (g *groupTransport) step(next **inbound, unanswered *[]*inbound, timer *time.Timer, present time.Time) bool {
	var consumer chan<- raft.RPC
	var rpc raft.RPC
	var answer <-chan raft.RPCResponse
	var wake <-chan struct{}
	wait := time.Hour
	if n := *next; n != nil {
		consumer, rpc = g.consum, raft.RPC{Command: n.command, RespChan: n.answer}
		wait = n.deadline.Sub(present)
	} else {
		wake = g.wake
	}
	if u := *unanswered; len(u) > 0 {
		answer = u[0].answer
		wait = min(wait, u[0].deadline.Sub(present))
	}
	if wait < time.Hour {
		timer.Reset(wait) // else it may ring for what is over, which does no harm
	}
	select {
	case consumer <- rpc:
		*unanswered = append(*unanswered, *next)
		*next = nil
	case r := <-answer:
		(*unanswered)[0].reply(r)
		*unanswered = (*unanswered)[1:]
	case <-wake:
	case <-timer.C:
	case <-g.ctx.Done():
		g.refuse(append(*unanswered, *next))
		return false
	case <-g.m.context().Done():
		return false
	}
	return true
}

// refuse answers what waits when the group is closed.
func (g *groupTransport) refuse(rest []*inbound) {
	g.mu.Lock()
	rest = append(rest, g.queue...)
	g.queue, g.bytes, g.active = nil, 0, false
	g.mu.Unlock()
	for _, in := range rest {
		if in != nil {
			in.c.respondError(in.h, g.m.noGroup(g.id))
		}
	}
}

// reply sends Raft's answer.
func (in *inbound) reply(r raft.RPCResponse) {
	err := r.Error
	if err == nil {
		var b []byte
		if b, err = encodeRaftResponse(append(newPayload(256), responseOK), r.Response); err == nil {
			in.c.respond(in.h, b, lane{urgent: true})
			return
		}
	}
	in.c.respondError(in.h, err)
}
