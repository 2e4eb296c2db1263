package shard

import (
	"errors"
	"slices"
	"time"

	logv1 "github.com/carillon-timers/carillon/proto/carillonlog/v1"
	"github.com/carillon-timers/carillon/raftfsm"
)

// errLost says that an entry never came into the log. Not applied.
var errLost = errors.Join(ErrUnavailable, errors.New("the entry was refused"))

// send is the sender: the one goroutine that makes entries and hands them to Raft, in the order of their sequence. It ends
// when quit is closed and Raft is shut down.
func (p *proposer) send(quit <-chan struct{}) {
	for {
		f := p.take()
		if f == nil {
			select {
			case <-p.wake:
				continue
			case <-quit:
				return
			}
		}
		data := p.form(f)
		if data == nil {
			continue
		}
		// Without a time-out: Raft's loop takes it, or Raft is shut down. The future is left alone, since it may never
		// resolve; an entry that is refused is found out in applied, by the change of leadership, or by the watchdog.
		p.s.raft.Load().Apply(data, 0)
	}
}

// ready says whether there is an entry to be made, and room for it in the window. Called with mu held.
func (p *proposer) ready() bool {
	if p.begin && (p.role == opening || p.role == pausing) {
		return true
	}
	return p.role == leading && p.head != nil && len(p.flights) < p.s.c.InFlight
}

// prompt wakes the sender if there is something for it to do. Called with mu held, after whatever may have changed that.
func (p *proposer) prompt() {
	if p.ready() {
		p.signal()
	}
}

// take makes the next flight of what waits; nil if there is nothing to send or the window is full.
func (p *proposer) take() *flight {
	p.mu.Lock()
	defer p.mu.Unlock()
	if !p.ready() {
		return nil
	}
	p.sequence++
	f := &flight{}
	if last := len(p.spare) - 1; last >= 0 {
		f, p.spare = p.spare[last], p.spare[:last]
	}
	f.sequence, f.epoch, f.begin, f.sentAt = p.sequence, p.epoch, p.role != leading, p.s.d.Monotonic()
	p.flights = append(p.flights, f)
	if f.begin {
		p.begin = false
		return f
	}
	for p.head != nil && len(f.items) < raftfsm.MaxEntryCommands {
		c := p.head
		size := c.sizes[c.next]
		if f.bytes+size > raftfsm.MaxEntryBytes && len(f.items) > 0 {
			break
		}
		f.bytes += size
		f.items = append(f.items, item{c, c.next})
		f.cmds = append(f.cmds, c.cmds[c.next])
		c.forming++
		c.open++
		c.next++
		p.queued--
		p.queuedBytes -= size
		if c.next == len(c.cmds) {
			p.unqueue(c)
		}
	}
	return f
}

// refusal is the answer to a command of a flight that is not proposed.
type refusal struct {
	item
	result raftfsm.Result
}

// drop takes the commands out of a flight for which why has an answer, and adds the answers to refused.
func (f *flight) drop(refused []refusal, why func(i int) *raftfsm.Result) []refusal {
	kept := 0
	for i, it := range f.items {
		if r := why(i); r != nil {
			refused = append(refused, refusal{it, *r})
			continue
		}
		f.items[kept], f.cmds[kept] = it, f.cmds[i]
		kept++
	}
	f.items, f.cmds = f.items[:kept], f.cmds[:kept]
	return refused
}

// form stamps the commands, answers those that are not to be proposed, and encodes the rest. It returns nil if nothing is
// left to send.
func (p *proposer) form(f *flight) []byte {
	refused := f.drop(nil, func(i int) *raftfsm.Result { return malformed(f.cmds[i]) })
	clock, stamped := p.s.fsm.Stamp(f.epoch, p.s.d.Now().UnixMilli(), f.cmds)
	refused = f.drop(refused, func(i int) *raftfsm.Result { return stamped[i] })
	cmds := f.cmds
	entry := logv1.Entry{Epoch: f.epoch, ClockMs: clock, Proposer: p.s.incarnation, Sequence: f.sequence, Commands: cmds}
	if f.begin {
		entry.Begin = &logv1.Begin{Node: p.s.c.Node, Boot: p.s.c.Boot}
	}
	var data []byte
	if f.begin || len(cmds) > 0 {
		data = raftfsm.EncodeEntry(&entry, make([]byte, 0, entryOverhead+f.bytes))
	}
	if !p.formed(f, refused) {
		// Leadership has changed meanwhile, or nothing is left.
		p.s.fsm.ReleaseHolds(cmds)
		return nil
	}
	return data
}

// entryOverhead is what an entry takes beside its commands.
const entryOverhead = 64

// formed notes what has become of the commands of a flight, and says whether it is to be sent.
func (p *proposer) formed(f *flight, refused []refusal) bool {
	p.mu.Lock()
	defer p.unlock()
	send := !f.landed && (f.begin || len(f.cmds) > 0)
	for _, it := range f.items {
		it.call.forming--
		it.call.sent = it.call.sent || send
	}
	for _, r := range refused {
		r.call.forming--
		p.counts.Rejected++
		r.call.results[r.at] = r.result
		p.close(r.call)
	}
	for _, it := range f.items {
		if !send {
			it.call.open--
			p.fail(it.call, p.s.notLeader())
		}
		p.failDoomed(it.call)
	}
	for _, r := range refused {
		p.failDoomed(r.call)
	}
	f.formed = true
	switch {
	case send:
		p.counts.Entries++
		p.counts.Commands += uint64(len(f.cmds))
	case !f.landed:
		p.land(f)
	}
	return send
}

// failDoomed fails a call that was to end while an entry was made of its commands. Called with mu held.
func (p *proposer) failDoomed(c *call) {
	if c.doomed != nil {
		p.fail(c, c.doomed)
	}
}

// close notes that one command of a call has its result. Called with mu held.
func (p *proposer) close(c *call) {
	if c.open--; c.open > 0 || c.next < len(c.cmds) || c.settled || c.doomed != nil {
		return
	}
	if c.stale {
		c.failed = ErrUnavailable
		if c.applied {
			c.failed = ErrUnknown
		}
	}
	p.settle(c)
}

// land takes a flight out of the window. Called with mu held.
func (p *proposer) land(f *flight) {
	f.landed = true
	p.flights = slices.DeleteFunc(p.flights, func(g *flight) bool { return g == f })
	if len(p.flights) == 0 && p.drained != nil {
		close(p.drained)
		p.drained = nil
	}
	p.prompt()
}

// applied completes the calls of an entry that this replica has applied. Called by the goroutine that applies.
func (p *proposer) applied(a raftfsm.Applied) {
	if a.Proposer != p.s.incarnation {
		return
	}
	if lost := p.complete(a); len(lost) > 0 {
		p.s.fsm.ReleaseHolds(lost)
	}
}

// complete returns the commands of entries that will never be applied.
func (p *proposer) complete(a raftfsm.Applied) (lost []*raftfsm.Command) {
	p.mu.Lock()
	defer p.unlock()
	// Entries are handed to Raft, and come into the log, in the order of their sequence: one that was passed over was
	// refused and never comes.
	for len(p.flights) > 0 && p.flights[0].sequence < a.Sequence {
		f := p.flights[0]
		lost = append(lost, f.cmds...)
		p.crash(f, errLost)
	}
	if len(p.flights) == 0 || p.flights[0].sequence != a.Sequence {
		return lost
	}
	f := p.flights[0]
	for i, it := range f.items {
		it.call.results[it.at] = a.Results[i]
		it.call.stale = it.call.stale || a.Stale
		it.call.applied = it.call.applied || !a.Stale
		p.close(it.call)
	}
	p.land(f)
	p.reuse(f)
	return lost
}

// reuse keeps a flight that nobody knows any more for another entry. Called with mu held.
func (p *proposer) reuse(f *flight) {
	if len(p.spare) >= p.s.c.InFlight || cap(f.items) > maxSpareItems {
		return
	}
	clear(f.items)
	clear(f.cmds)
	*f = flight{items: f.items[:0], cmds: f.cmds[:0]}
	p.spare = append(p.spare, f)
}

// maxSpareItems bounds the commands for which a flight is kept.
const maxSpareItems = 64

// crash fails the waiters of a flight and takes it out of the window. Called with mu held.
func (p *proposer) crash(f *flight, why error) {
	p.land(f)
	if !f.formed {
		return // it is not sent, and formed fails its waiters
	}
	for _, it := range f.items {
		it.call.open--
		if errors.Is(why, ErrUnknown) {
			p.fail(it.call, why)
			continue
		}
		// It is certain that this command was not applied; the others of its call may have been.
		it.call.sent = it.call.sent && len(it.call.cmds) > 1
		p.fail(it.call, why)
	}
}

// become changes the role. Unless it goes on to lead under the same epoch, all waiters are failed.
func (p *proposer) become(next role, epoch uint64, why error) {
	p.mu.Lock()
	defer p.unlock()
	if p.role == stopped {
		return
	}
	same := p.epoch == epoch && next != following && next != stopped
	p.role, p.epoch = next, epoch
	p.begin = next == opening
	if !same {
		p.failAll(why)
	}
	if next == stopped && p.expiry != nil {
		p.expiry.Stop()
	}
	p.prompt()
}

// failAll fails all waiters: what is in flight is unknown, what waits was not applied. Called with mu held.
func (p *proposer) failAll(why error) {
	for len(p.flights) > 0 {
		p.crash(p.flights[0], ErrUnknown)
	}
	for p.head != nil {
		p.fail(p.head, why)
	}
}

// flush fails all waiters of a leader that no majority answers. What is in flight may still be applied.
func (p *proposer) flush() {
	p.mu.Lock()
	defer p.unlock()
	p.failAll(ErrUnavailable)
}

// again asks for another entry that opens the epoch: the one before may have been refused.
func (p *proposer) again() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.role == opening || p.role == pausing {
		p.begin = true
		p.prompt()
	}
}

// drain returns a channel that is closed when nothing is in flight.
func (p *proposer) drain() <-chan struct{} {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.drained == nil {
		p.drained = make(chan struct{})
	}
	done := p.drained
	if len(p.flights) == 0 {
		close(p.drained)
		p.drained = nil
	}
	return done
}

// oldest is when the oldest entry in flight was sent; false if there is none.
func (p *proposer) oldest() (at time.Time, found bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if len(p.flights) == 0 {
		return time.Time{}, false
	}
	return p.flights[0].sentAt, true
}

func (p *proposer) stats() ProposerStats {
	p.mu.Lock()
	defer p.mu.Unlock()
	stats := p.counts
	stats.Queued, stats.QueuedBytes, stats.InFlight = p.queued, p.queuedBytes, len(p.flights)
	return stats
}
