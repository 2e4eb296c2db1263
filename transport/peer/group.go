package peer

import (
	"context"
	"io"
	"sync"
	"time"

	"github.com/hashicorp/raft"
)

var (
	_ raft.Transport   = (*groupTransport)(nil)
	_ raft.WithPreVote = (*groupTransport)(nil)
	_ raft.WithClose   = (*groupTransport)(nil)
)

// groupTransport is the raft.Transport of one group. It has no WithPeers: Raft does not call it, and the peers of a
// node are reached through Resolve.
type groupTransport struct {
	m      *Mux
	id     uint32
	consum chan raft.RPC
	ctx    context.Context // ends with Close
	cancel context.CancelCauseFunc
	wake   chan struct{} // holds at most one signal for the feeder

	mu     sync.Mutex
	queue  []*inbound // guarded by mu
	bytes  int        // guarded by mu; of the queue
	active bool       // guarded by mu; a feeder runs
	// slots holds what Raft has taken: the last request, whose answer may be on its way, and the next. The channels are read
	// and replaced by the feeder alone.
	slots [2]slot
	timer *time.Timer // guarded by mu; wakes the feeder at rings; nil before the first request
	rings time.Time   // guarded by mu; no later than the first deadline in queue and slots; zero if the timer is not set
}

func newGroup(m *Mux, id uint32) *groupTransport {
	g := &groupTransport{m: m, id: id, consum: make(chan raft.RPC), wake: make(chan struct{}, 1)}
	for i := range g.slots {
		g.slots[i].answer = make(chan raft.RPCResponse, 1)
	}
	g.ctx, g.cancel = context.WithCancelCause(context.Background())
	return g
}

// Consumer implements raft.Transport.
func (g *groupTransport) Consumer() <-chan raft.RPC { return g.consum }

// LocalAddr implements raft.Transport: the node's ID.
func (g *groupTransport) LocalAddr() raft.ServerAddress { return raft.ServerAddress(g.m.c.NodeID) }

// EncodePeer implements raft.Transport: an address is a node ID.
func (g *groupTransport) EncodePeer(_ raft.ServerID, addr raft.ServerAddress) []byte {
	return []byte(addr)
}

// DecodePeer implements raft.Transport.
func (g *groupTransport) DecodePeer(b []byte) raft.ServerAddress { return raft.ServerAddress(b) }

// SetHeartbeatHandler implements raft.Transport and does nothing: the handler would change Raft's term and state
// beside its main loop (hashicorp/raft#695). Heartbeats go through the consumer channel.
func (g *groupTransport) SetHeartbeatHandler(func(raft.RPC)) {}

// Close ends the transport: pending calls fail, requests are answered with KindNoGroup.
func (g *groupTransport) Close() error {
	g.m.mu.Lock()
	if g.m.groups[g.id] == g {
		delete(g.m.groups, g.id)
	}
	g.m.mu.Unlock()
	g.shut()
	return nil
}

func (g *groupTransport) shut() { g.cancel(raft.ErrTransportShutdown) }

// timeoutOf is CallTimeout and a second per MiB.
func (g *groupTransport) timeoutOf(bytes int) time.Duration {
	return g.m.c.CallTimeout + time.Duration(bytes>>10)*time.Second>>10
}

// request does one Raft call. encode appends the request.
func (g *groupTransport) request(
	target raft.ServerAddress, typ frameType, l lane, size int, encode func([]byte) []byte, resp any,
) error {
	ctx, cancel := context.WithTimeout(g.ctx, g.timeoutOf(size))
	defer cancel()
	payload := encode(g.m.appendTimeout(newPayload(size+4), ctx))
	b, err := g.m.roundTrip(ctx, string(target), typ, l, payload)
	if err != nil {
		return err
	}
	return g.decode(b, resp)
}

func (g *groupTransport) decode(b []byte, resp any) error {
	body, err := parseResponse(b)
	if err != nil {
		return err
	}
	return decodeRaftResponse(body, resp)
}

// laneOf puts heartbeats, and what else has no entries, before the bulk; with entries the order must be kept.
func (g *groupTransport) laneOf(args *raft.AppendEntriesRequest) lane {
	if isHeartbeat(args) {
		return lane{urgent: true, group: g.id}
	}
	return lane{class: classRaft, group: g.id}
}

// isHeartbeat reports whether a request carries no more than a term and a leader.
func isHeartbeat(r *raft.AppendEntriesRequest) bool {
	return len(r.Entries) == 0 && r.PrevLogEntry == 0 && r.PrevLogTerm == 0 && r.LeaderCommitIndex == 0
}

// awaitPeer is how long AppendEntries waits for a node that cannot be reached before it fails.
const awaitPeer = time.Minute

// AppendEntries implements raft.Transport. While the node cannot be reached it waits, for a minute at most. Raft doubles its
// own wait with each failure, so failing at once would leave a node that was down for some seconds without entries for about
// as long again after it is back: a node that looks well, but does not count for a majority.
func (g *groupTransport) AppendEntries(
	_ raft.ServerID, target raft.ServerAddress, args *raft.AppendEntriesRequest, resp *raft.AppendEntriesResponse,
) error {
	ctx, cancel := context.WithTimeout(g.ctx, awaitPeer)
	err := g.m.linkTo(string(target)).await(ctx)
	cancel()
	if err != nil {
		g.m.stats.callErrors.Add(1)
		return &CallError{Node: string(target), Err: err}
	}
	cutEntries(args, g.m.c.AppendBytes)
	return g.request(target, typeAppendEntries, g.laneOf(args), appendSize(args),
		func(b []byte) []byte { return encodeAppendEntries(b, args) }, resp)
}

// RequestVote implements raft.Transport.
func (g *groupTransport) RequestVote(
	_ raft.ServerID, target raft.ServerAddress, args *raft.RequestVoteRequest, resp *raft.RequestVoteResponse,
) error {
	return g.request(target, typeVote, lane{urgent: true, group: g.id}, 256,
		func(b []byte) []byte { return encodeVote(b, args) }, resp)
}

// RequestPreVote implements raft.WithPreVote.
func (g *groupTransport) RequestPreVote(
	_ raft.ServerID, target raft.ServerAddress, args *raft.RequestPreVoteRequest, resp *raft.RequestPreVoteResponse,
) error {
	return g.request(target, typePreVote, lane{urgent: true, group: g.id}, 256,
		func(b []byte) []byte { return encodePreVote(b, args) }, resp)
}

// TimeoutNow implements raft.Transport.
func (g *groupTransport) TimeoutNow(
	_ raft.ServerID, target raft.ServerAddress, args *raft.TimeoutNowRequest, resp *raft.TimeoutNowResponse,
) error {
	return g.request(target, typeTimeoutNow, lane{urgent: true, group: g.id}, 256,
		func(b []byte) []byte { return appendHeader(b, &args.RPCHeader) }, resp)
}

// InstallSnapshot implements raft.Transport.
func (g *groupTransport) InstallSnapshot(
	_ raft.ServerID, target raft.ServerAddress, args *raft.InstallSnapshotRequest, resp *raft.InstallSnapshotResponse,
	data io.Reader,
) error {
	err := g.sendSnapshot(string(target), args, resp, data)
	if err != nil {
		g.m.stats.snapshotErrors.Add(1)
		return err
	}
	g.m.stats.snapshotsSent.Add(1)
	return nil
}

// Campaign makes the replica stand for election at once, as TimeoutNow from a leader would. It returns when Raft has taken it.
func (g *groupTransport) Campaign(ctx context.Context) error {
	id := []byte(g.m.c.NodeID)
	answer := make(chan raft.RPCResponse, 1)
	rpc := raft.RPC{
		Command:  &raft.TimeoutNowRequest{RPCHeader: raft.RPCHeader{ProtocolVersion: raft.ProtocolVersionMax, ID: id, Addr: id}},
		RespChan: answer,
	}
	select {
	case g.consum <- rpc:
	case <-ctx.Done():
		return ctx.Err()
	case <-g.ctx.Done():
		return context.Cause(g.ctx)
	}
	select {
	case response := <-answer:
		return response.Error
	case <-ctx.Done():
		return ctx.Err()
	case <-g.ctx.Done():
		return context.Cause(g.ctx)
	}
}
