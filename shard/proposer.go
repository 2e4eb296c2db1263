package shard

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"time"

	logv1 "github.com/carillon-timers/carillon/proto/carillonlog/v1"
	"github.com/carillon-timers/carillon/raftfsm"
)

// role is how far this replica may propose.
type role int

const (
	// following: what comes is refused.
	following role = iota
	// opening: Raft has made this replica the leader, the entry that opens the epoch is not applied yet. What comes waits.
	opening
	// leading: what comes is sent.
	leading
	// pausing: leadership is being handed over. What comes waits until that has succeeded (then it is refused, with the new
	// leader's name) or failed.
	pausing
	// stopped: for good.
	stopped
)

// call is one Submit: its commands wait in the queue, then travel in one entry or several. Guarded by proposer.mu, but for
// done.
type call struct {
	cmds    []*raftfsm.Command
	sizes   []int
	results []raftfsm.Result
	// since is when it joined the queue.
	since time.Time
	// next is the first command that waits; open counts those that are in entries in flight.
	next, open int
	// sent says that a command of it was sent, applied that one was applied, stale that one came too late to change anything.
	sent, applied, stale bool
	failed               error
	// forming counts the commands that an entry is being made of: nobody else may touch them meanwhile. doomed is why the
	// call is to fail when that is done.
	forming int
	doomed  error
	// before and after are its neighbours in the queue; when it is settled after is the next that was.
	before, after *call
	queued        bool
	settled       bool
	// forget: nobody waits (what the executor proposes).
	forget bool
	// done, if it is not nil, is called once, under no lock, with the results or with the reason why there are none.
	done func([]raftfsm.Result, error)
	// oneSize and oneResult back sizes and results of a single command.
	oneSize   [1]int
	oneResult [1]raftfsm.Result
}

// flight is one log entry on its way. Its fields are the sender's until formed is set, then guarded by proposer.mu.
type flight struct {
	sequence uint64
	epoch    uint64
	begin    bool
	items    []item
	cmds     []*raftfsm.Command
	// bytes is about what the commands take in the entry.
	bytes  int
	sentAt time.Time
	// formed says that the entry has been made, landed that the flight is out of the window. Guarded by proposer.mu.
	formed, landed bool
}

// item is one command of a flight: the place of its result in its call.
type item struct {
	call *call
	at   int
}

// proposer joins commands to log entries (group commit): it sends at once while fewer than the window are in flight, else
// it collects; there is no linger. Calls are settled from Apply, and failed on a change of leadership, on stop, by ApplyTimeout
// and by who submitted them; Raft's futures are never waited for.
type proposer struct {
	s *Shard // set before sharing
	// wake holds at most one signal for the sender.
	wake chan struct{}

	mu sync.Mutex
	// What follows is guarded by mu.
	role  role
	epoch uint64
	// begin asks the sender for an entry that opens the epoch.
	begin    bool
	sequence uint64
	// flights are the entries in flight, by their sequence; spare are some that were.
	flights, spare []*flight
	// head and tail are the ends of the queue; queued and queuedBytes what it holds.
	head, tail          *call
	queued, queuedBytes int
	// settled and lastSettled are the ends of the list of calls whose done is to be called by who gives mu back.
	settled, lastSettled *call
	// expiry runs expire; armed says that it will.
	expiry *time.Timer
	armed  bool
	// drained is closed when nothing is in flight (Transfer).
	drained chan struct{}
	counts  ProposerStats
}

// ProposerStats is what the proposer counted and holds.
type ProposerStats struct {
	// Queued commands, of QueuedBytes, wait to be joined; InFlight entries wait for a majority.
	Queued, QueuedBytes, InFlight int
	// Entries and Commands were sent. Overloaded counts calls that a limit refused, Unknown calls whose outcome could not be
	// told, Rejected commands that were refused without an entry.
	Entries, Commands, Overloaded, Unknown, Rejected uint64
}

func newProposer(s *Shard) *proposer {
	return &proposer{s: s, wake: make(chan struct{}, 1)}
}

// Propose applies the commands, joined with others, and returns their results in order once a majority has them on disk and
// this replica has applied them. At most raftfsm.MaxBatchItems commands of MaxBatchBytes together (a larger single one is
// allowed); results tell of each command by itself, see ErrOf.
//
// An error is of the whole call: *NotLeaderError, *OverloadedError, *InvalidError or ErrUnavailable (nothing was applied),
// ErrUnknown (some or all may have been, or will be), or the context's error (nothing was sent). The commands belong to the
// shard from the call on; to repeat them after ErrUnknown, propose copies with the same request IDs.
func (s *Shard) Propose(ctx context.Context, cmds []*raftfsm.Command) ([]raftfsm.Result, error) {
	if len(cmds) == 0 {
		return nil, nil
	}
	var results []raftfsm.Result
	var failed error
	ended := make(chan struct{})
	abandon, err := s.Submit(cmds, func(r []raftfsm.Result, err error) {
		results, failed = r, err
		close(ended)
	})
	if err != nil {
		return nil, err
	}
	select {
	case <-ended:
	case <-ctx.Done():
		abandon(ctx.Err())
		<-ended
	}
	return results, failed
}

// Submit is Propose for one who does not wait here, so that a call to several shards needs no goroutine for each: done is called once
// with what Propose would return, maybe before Submit returns. It must be quick and wait for nothing, since the goroutine that
// applies may call it. If Submit returns an error done is not called. abandon ends the call with the reason, or with ErrUnknown if
// something of it was sent; done is called then too, soon.
func (s *Shard) Submit(cmds []*raftfsm.Command, done func([]raftfsm.Result, error)) (abandon func(why error), err error) {
	c, err := s.proposer.newCall(cmds)
	if err != nil {
		return nil, err
	}
	c.done = done
	if err := s.proposer.enqueue(c); err != nil {
		return nil, err
	}
	return func(why error) { s.proposer.abandon(c, why) }, nil
}

func (p *proposer) newCall(cmds []*raftfsm.Command) (*call, error) {
	if len(cmds) == 0 || len(cmds) > raftfsm.MaxBatchItems {
		return nil, &InvalidError{"batch", fmt.Sprintf("%d items", len(cmds)), fmt.Sprintf("1 to %d items", raftfsm.MaxBatchItems)}
	}
	c := &call{cmds: cmds}
	if c.sizes, c.results = c.oneSize[:], c.oneResult[:]; len(cmds) > 1 {
		c.sizes, c.results = make([]int, len(cmds)), make([]raftfsm.Result, len(cmds))
	}
	total := 0
	for i, cmd := range cmds {
		if cmd != nil {
			c.sizes[i] = cmd.SizeVT() + commandOverhead
		}
		total += c.sizes[i]
	}
	if total > raftfsm.MaxBatchBytes+len(cmds)*commandOverhead && len(cmds) > 1 {
		return nil, &InvalidError{"batch", fmt.Sprintf("%d bytes", total), fmt.Sprintf("at most %d bytes", raftfsm.MaxBatchBytes)}
	}
	return c, nil
}

// commandOverhead is what a command takes in an entry beside itself: the tag and the length, and what Stamp adds.
const commandOverhead = 24

// enqueue puts the call at the end of the queue, unless the role or a limit forbids it.
func (p *proposer) enqueue(c *call) error {
	bytes, schedules := 0, 0
	for i, cmd := range c.cmds {
		bytes += c.sizes[i]
		schedules += adds(cmd)
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	now := p.s.d.Monotonic()
	switch p.role {
	case following:
		return p.s.notLeader()
	case stopped:
		return ErrUnavailable
	case leading:
		if !p.s.lease.heldAt(p.epoch, now) {
			return fmt.Errorf("%w: no majority answers", ErrUnavailable)
		}
	}
	if err := p.admit(len(c.cmds), bytes, schedules); err != nil {
		p.counts.Overloaded++
		return err
	}
	c.since, c.queued, c.before = now, true, p.tail
	if p.tail == nil {
		p.head = c
	} else {
		p.tail.after = c
	}
	p.tail = c
	p.queued += len(c.cmds)
	p.queuedBytes += bytes
	if !c.forget {
		p.expectBy(p.s.c.ApplyTimeout)
	}
	p.prompt()
	return nil
}

// admit checks the limits. Called with mu held.
func (p *proposer) admit(cmds, bytes, schedules int) error {
	c := &p.s.c
	// Waiting empties the queue one window after the other; this is about what one takes.
	retry := c.CommitTimeout / 20
	switch {
	case p.queued+cmds > c.MaxQueued:
		return &OverloadedError{fmt.Sprintf("%d commands wait on shard %d", c.MaxQueued, c.ID), retry}
	case p.queuedBytes+bytes > c.MaxQueuedBytes:
		return &OverloadedError{fmt.Sprintf("%d bytes of commands wait on shard %d", c.MaxQueuedBytes, c.ID), retry}
	case schedules > 0 && p.s.kept.Load()+int64(p.queued+schedules) > int64(c.MaxPending):
		return &OverloadedError{fmt.Sprintf("%d pending, paused and dead timers on shard %d", c.MaxPending, c.ID), time.Second}
	}
	return nil
}

// adds is how many timers a command may add to those that are kept.
func adds(cmd *raftfsm.Command) int {
	switch k := cmd.GetKind().(type) {
	case *logv1.Command_Schedule:
		return 1
	case *logv1.Command_Atomic:
		n := 0
		for _, part := range k.Atomic.GetCommands() {
			if part.GetSchedule() != nil {
				n++
			}
		}
		return n
	}
	return 0
}

// settleOwn takes commands from the executor, see executor.Options.Settle. It never waits; what cannot be taken comes again.
func (p *proposer) settleOwn(cmds []*raftfsm.Command, done func([]raftfsm.Result)) bool {
	var ended func([]raftfsm.Result, error)
	if done != nil {
		ended = func(results []raftfsm.Result, err error) {
			if err == nil {
				done(results)
			}
		}
	} else if p.s.kept.Load() >= int64(p.s.c.MaxPending) {
		// Repeats that make timers of their due times wait, as everything else that would add timers.
		cmds = slices.DeleteFunc(cmds, func(c *raftfsm.Command) bool { return c.GetAdvance() != nil })
	}
	for len(cmds) > 0 {
		n := min(len(cmds), raftfsm.MaxEntryCommands)
		c, err := p.newCall(cmds[:n:n])
		if err != nil {
			return false
		}
		c.forget, c.done = true, ended
		if p.enqueue(c) != nil {
			return false
		}
		cmds = cmds[n:]
	}
	return true
}

// unlock gives mu back and tells what waits for the calls that were settled under it.
func (p *proposer) unlock() {
	c := p.settled
	p.settled, p.lastSettled = nil, nil
	p.mu.Unlock()
	for c != nil {
		next := c.after
		c.after = nil
		if c.failed != nil {
			c.done(nil, c.failed)
		} else {
			c.done(c.results, nil)
		}
		c = next
	}
}

// signal wakes the sender.
func (p *proposer) signal() {
	select {
	case p.wake <- struct{}{}:
	default:
	}
}

// abandon ends a wait: what was not sent is taken out of the queue and fails with why; if something was sent the outcome is
// unknown.
func (p *proposer) abandon(c *call, why error) {
	p.mu.Lock()
	defer p.unlock()
	p.fail(c, why)
}

// expectBy makes expire run after so long, if it is not going to run before. Called with mu held.
func (p *proposer) expectBy(wait time.Duration) {
	switch {
	case p.armed:
	case p.expiry == nil:
		p.expiry = time.AfterFunc(wait, p.expire)
	default:
		p.expiry.Reset(wait)
	}
	p.armed = true
}

// expire fails the calls that are older than ApplyTimeout, but for the executor's own. In each flight and in the queue they are in
// the order in which they came, so it looks until one is younger.
func (p *proposer) expire() {
	limit := p.s.c.ApplyTimeout
	why := fmt.Errorf("%w: not sent within %v", ErrUnavailable, limit)
	p.mu.Lock()
	defer p.unlock()
	p.armed = false
	now := p.s.d.Monotonic()
	old := func(c *call) bool {
		if c.forget {
			return true
		}
		if left := limit - now.Sub(c.since); left > 0 {
			p.expectBy(left)
			return false
		}
		p.fail(c, why)
		return true
	}
	for _, f := range p.flights {
		if !f.formed {
			p.expectBy(limit / 1000) // its items are the sender's for so long
			continue
		}
		for _, it := range f.items {
			if !old(it.call) {
				break
			}
		}
	}
	for c := p.head; c != nil; {
		next := c.after
		if !old(c) {
			break
		}
		c = next
	}
}

// fail settles a call that will not get all its results: with why if nothing of it can have been applied, else with
// ErrUnknown. Called with mu held.
func (p *proposer) fail(c *call, why error) {
	if c.settled {
		return
	}
	p.unqueue(c)
	if c.forming > 0 {
		// The sender is writing into the commands. It is done in less than a millisecond, and then fails the call.
		c.doomed = why
		return
	}
	c.failed = why
	if c.sent {
		c.failed = ErrUnknown
	}
	p.settle(c)
}

// settle has done called when mu is given back. Called with mu held.
func (p *proposer) settle(c *call) {
	if c.settled {
		return
	}
	if c.failed == ErrUnknown && !c.forget {
		p.counts.Unknown++
	}
	c.settled = true
	switch {
	case c.done == nil:
		return
	case p.settled == nil:
		p.settled = c
	default:
		p.lastSettled.after = c
	}
	p.lastSettled = c
}

// unqueue takes what waits of the call out of the queue. Called with mu held.
func (p *proposer) unqueue(c *call) {
	if !c.queued {
		return
	}
	for _, size := range c.sizes[c.next:] {
		p.queued--
		p.queuedBytes -= size
	}
	if c.before == nil {
		p.head = c.after
	} else {
		c.before.after = c.after
	}
	if c.after == nil {
		p.tail = c.before
	} else {
		c.after.before = c.before
	}
	c.queued, c.before, c.after, c.next = false, nil, nil, len(c.cmds)
}
