package shard

import (
	"context"
	"slices"
	"sync"
	"time"

	"github.com/hashicorp/raft"
)

// lease knows when a majority of the voters last answered this leader: for each the time at which the message that it
// answered was SENT. So a leader that was frozen, or cut off, knows at once that what it knows is old.
type lease struct {
	self    raft.ServerID
	timeout time.Duration
	// now is a clock with a wall and a monotonic reading. Both must agree that the lease is young: the monotonic clock stops
	// while a machine is suspended, the wall clock can be set back.
	now func() time.Time
	// voters lists the servers of the latest configuration.
	voters func() []raft.Server

	mu sync.Mutex
	// What follows is guarded by mu.
	term     uint64
	contacts map[raft.ServerID]time.Time
	// majority is the time since which a majority, with this leader, has been in contact; zero if it has not.
	majority time.Time
	// alone: this leader is the majority.
	alone bool
	// changed is closed when majority moves.
	changed chan struct{}
}

func newLease(self raft.ServerID, timeout time.Duration, now func() time.Time, voters func() []raft.Server) *lease {
	return &lease{self: self, timeout: timeout, now: now, voters: voters, changed: make(chan struct{})}
}

// enter forgets the contacts of other terms.
func (l *lease) enter(term uint64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.enterLocked(term)
	l.count()
}

func (l *lease) enterLocked(term uint64) {
	if term > l.term {
		l.term, l.contacts, l.majority, l.alone = term, map[raft.ServerID]time.Time{}, time.Time{}, false
	}
}

// note takes down that the server accepted a message of the term that was sent at sent.
func (l *lease) note(server raft.ServerID, term uint64, sent time.Time) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.enterLocked(term)
	if term == l.term && sent.After(l.contacts[server]) {
		l.contacts[server] = sent
		l.count()
	}
}

// count computes majority. Called with mu held.
func (l *lease) count() {
	var others []time.Time
	voters, self := 0, 0
	for _, server := range l.voters() {
		switch {
		case server.Suffrage != raft.Voter:
		case server.ID == l.self:
			voters, self = voters+1, 1
		default:
			voters++
			others = append(others, l.contacts[server.ID])
		}
	}
	need := voters/2 + 1 - self
	l.alone = voters > 0 && need <= 0
	before := l.majority
	l.majority = time.Time{}
	if need > 0 && need <= len(others) {
		slices.SortFunc(others, func(a, b time.Time) int { return b.Compare(a) })
		l.majority = others[need-1]
	}
	if l.alone || l.majority.After(before) {
		close(l.changed)
		l.changed = make(chan struct{})
	}
}

// held says whether a majority has been in contact, in the term, within the lease.
func (l *lease) held(term uint64) bool { return l.heldAt(term, l.now()) }

// heldAt is held at a time that was just read of the lease's clock.
func (l *lease) heldAt(term uint64, now time.Time) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if term != l.term {
		return false
	}
	if l.alone {
		return true
	}
	return !l.majority.IsZero() && now.Sub(l.majority) < l.timeout && now.Round(0).Sub(l.majority.Round(0)) < l.timeout
}

// since waits until a majority has accepted, in the term, a message that was sent at from or later.
func (l *lease) since(ctx context.Context, term uint64, from time.Time) error {
	for {
		l.mu.Lock()
		over, reached, changed := l.term != term, l.alone || !l.majority.Before(from), l.changed
		l.mu.Unlock()
		switch {
		case over:
			return ErrUnavailable
		case reached:
			return nil
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// contactTransport notes for the lease what is answered. Heartbeats that arrive go to Raft's own loop: beside it, as
// Raft's fast path would have it, they change the term without the loop's knowledge.
type contactTransport struct {
	raft.Transport
	votes raft.WithPreVote
	lease *lease
	// pipelines are the goroutines that pass answers on.
	pipelines *sync.WaitGroup
	// flushed is the last entry that is flushed here; no message may say that more is committed.
	flushed func() uint64
	// refused is told why a transfer of leadership could not be asked for.
	refused func(error)
}

// SetHeartbeatHandler does nothing.
func (t *contactTransport) SetHeartbeatHandler(func(raft.RPC)) {}

// Close closes the transport, if it can be closed.
func (t *contactTransport) Close() error {
	if c, ok := t.Transport.(raft.WithClose); ok {
		return c.Close()
	}
	return nil
}

func (t *contactTransport) RequestPreVote(id raft.ServerID, target raft.ServerAddress, args *raft.RequestPreVoteRequest, resp *raft.RequestPreVoteResponse) error {
	return t.votes.RequestPreVote(id, target, args, resp)
}

func (t *contactTransport) AppendEntries(id raft.ServerID, target raft.ServerAddress, args *raft.AppendEntriesRequest, resp *raft.AppendEntriesResponse) error {
	t.boundCommit(args)
	sent := t.lease.now()
	err := t.Transport.AppendEntries(id, target, args, resp)
	if err == nil {
		t.answered(id, args, resp, sent)
	}
	return err
}

// boundCommit lowers the commit index of a message to the last entry that the message proves to be the same on both sides, as
// the Raft paper's figure 2 has it. Raft v1.8.0 does not: it reads the commit index after it has chosen the entries, and
// the follower bounds it by the end of its own log. A message made on a busy machine then committed, on a deposed leader, entries
// that were about to be overwritten. Nor does a message say that an entry is committed that this leader has not flushed (see unflushed). Heartbeats,
// which Raft sends again and again from the same memory, are not written to.
func (t *contactTransport) boundCommit(args *raft.AppendEntriesRequest) {
	if bound := min(args.PrevLogEntry+uint64(len(args.Entries)), t.flushed()); args.LeaderCommitIndex > bound {
		args.LeaderCommitIndex = bound
	}
}

func (t *contactTransport) answered(id raft.ServerID, args *raft.AppendEntriesRequest, resp *raft.AppendEntriesResponse, sent time.Time) {
	if resp.Success && resp.Term <= args.Term {
		t.lease.note(id, args.Term, sent)
	}
}

func (t *contactTransport) TimeoutNow(id raft.ServerID, target raft.ServerAddress, args *raft.TimeoutNowRequest, resp *raft.TimeoutNowResponse) error {
	err := t.Transport.TimeoutNow(id, target, args, resp)
	if err != nil {
		t.refused(err)
	}
	return err
}

func (t *contactTransport) AppendEntriesPipeline(id raft.ServerID, target raft.ServerAddress) (raft.AppendPipeline, error) {
	inner, err := t.Transport.AppendEntriesPipeline(id, target)
	if err != nil {
		return nil, err
	}
	if o, ok := inner.(observable); ok {
		o.Observe(func(f raft.AppendFuture) { t.answered(id, f.Request(), f.Response(), f.Start()) })
		return &boundPipeline{inner, t}, nil
	}
	p := &contactPipeline{AppendPipeline: inner, t: t, id: id, out: make(chan raft.AppendFuture, MaxInFlight), closed: make(chan struct{})}
	t.pipelines.Go(p.forward)
	return p, nil
}

// observable is a pipeline that tells of each request that was answered before it passes the answer on. Observe is called
// before the first request.
type observable interface {
	Observe(answered func(raft.AppendFuture))
}

// boundPipeline is a pipeline whose answers are noted elsewhere.
type boundPipeline struct {
	raft.AppendPipeline
	t *contactTransport
}

func (p *boundPipeline) AppendEntries(args *raft.AppendEntriesRequest, resp *raft.AppendEntriesResponse) (raft.AppendFuture, error) {
	p.t.boundCommit(args)
	return p.AppendPipeline.AppendEntries(args, resp)
}

// contactPipeline passes the answers of a pipeline on that cannot be observed.
type contactPipeline struct {
	raft.AppendPipeline
	t      *contactTransport
	id     raft.ServerID
	out    chan raft.AppendFuture
	closed chan struct{}
	once   sync.Once
}

func (p *contactPipeline) Consumer() <-chan raft.AppendFuture { return p.out }

func (p *contactPipeline) AppendEntries(args *raft.AppendEntriesRequest, resp *raft.AppendEntriesResponse) (raft.AppendFuture, error) {
	p.t.boundCommit(args)
	return p.AppendPipeline.AppendEntries(args, resp)
}

func (p *contactPipeline) Close() error {
	p.once.Do(func() { close(p.closed) })
	return p.AppendPipeline.Close()
}

// forward ends when the pipeline is closed.
func (p *contactPipeline) forward() {
	in := p.AppendPipeline.Consumer()
	for {
		var f raft.AppendFuture
		select {
		case f = <-in:
		case <-p.closed:
			return
		}
		if f == nil {
			return
		}
		if f.Error() == nil {
			p.t.answered(p.id, f.Request(), f.Response(), f.Start())
		}
		select {
		case p.out <- f:
		case <-p.closed:
			return
		}
	}
}
