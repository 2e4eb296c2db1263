package shard

import (
	"errors"
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

// take makes the next flight of what waits; nil if there is nothing to send or the window is full.
func (p *proposer) take() *flight {
	p.mu.Lock()
	defer p.mu.Unlock()
	switch {
	case p.begin && (p.role == opening || p.role == pausing):
		p.begin = false
	case p.role != leading || p.head == nil || len(p.flights) >= p.s.c.InFlight:
		return nil
	}
	p.sequence++
	f := &flight{
		sequence: p.sequence, epoch: p.epoch, begin: p.role != leading, sentAt: p.s.d.Monotonic(),
	}
	p.flights[f.sequence] = f
	if f.begin {
		return f
	}
	for bytes := 0; p.head != nil && len(f.items) < raftfsm.MaxEntryCommands; {
		c := p.head
		size := c.sizes[c.next]
		if bytes+size > raftfsm.MaxEntryBytes && len(f.items) > 0 {
			break
		}
		bytes += size
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

// form stamps the commands, answers those that are not to be proposed, and encodes the rest. It returns nil if nothing is
// left to send.
func (p *proposer) form(f *flight) []byte {
	rejected := make([]*raftfsm.Result, len(f.cmds))
	sound := make([]*raftfsm.Command, 0, len(f.cmds))
	at := make([]int, 0, len(f.cmds))
	for i, cmd := range f.cmds {
		if rejected[i] = malformed(cmd); rejected[i] == nil {
			sound, at = append(sound, cmd), append(at, i)
		}
	}
	clock, refused := p.s.fsm.Stamp(f.epoch, p.s.d.Now().UnixMilli(), sound)
	entry := logv1.Entry{Epoch: f.epoch, ClockMs: clock, Proposer: p.s.incarnation, Sequence: f.sequence}
	items := make([]item, 0, len(f.items))
	for i, cmd := range sound {
		if rejected[at[i]] = refused[i]; refused[i] == nil {
			entry.Commands = append(entry.Commands, cmd)
			items = append(items, f.items[at[i]])
		}
	}
	if f.begin {
		entry.Begin = &logv1.Begin{Node: p.s.c.Node, Boot: p.s.c.Boot}
	}
	var data []byte
	if f.begin || len(entry.Commands) > 0 {
		data = raftfsm.EncodeEntry(&entry, make([]byte, 0, 64+entry.SizeVT()))
	}
	sent := p.formed(f, items, entry.Commands, rejected)
	p.tell()
	if !sent {
		// Leadership has changed meanwhile, or nothing is left.
		p.s.fsm.ReleaseHolds(entry.Commands)
		return nil
	}
	return data
}

// formed notes what has become of the commands of a flight, and says whether it is to be sent.
func (p *proposer) formed(f *flight, items []item, cmds []*raftfsm.Command, rejected []*raftfsm.Result) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	_, flying := p.flights[f.sequence]
	send := flying && (f.begin || len(cmds) > 0)
	for i, it := range f.items {
		it.call.forming--
		if rejected[i] == nil {
			it.call.sent = it.call.sent || send
			continue
		}
		p.counts.Rejected++
		it.call.results[it.at] = *rejected[i]
		p.close(it.call)
	}
	for i, it := range f.items {
		if rejected[i] == nil && !send {
			it.call.open--
			p.fail(it.call, p.s.notLeader())
		}
		if it.call.doomed != nil {
			p.fail(it.call, it.call.doomed)
		}
	}
	f.items, f.cmds, f.formed = items, cmds, true
	if flying && !send {
		p.land(f)
	}
	if send {
		p.counts.Entries++
		p.counts.Commands += uint64(len(cmds))
	}
	return send
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
	delete(p.flights, f.sequence)
	if len(p.flights) == 0 && p.drained != nil {
		close(p.drained)
		p.drained = nil
	}
	p.signal()
}

// applied completes the waiters of an entry that this replica has applied. Called by the goroutine that applies.
func (p *proposer) applied(a raftfsm.Applied) {
	if a.Proposer != p.s.incarnation {
		return
	}
	p.mu.Lock()
	var lost []*raftfsm.Command
	for sequence, f := range p.flights {
		// Entries are handed to Raft, and come into the log, in the order of their sequence: one that was passed over was
		// refused and never comes.
		if sequence < a.Sequence {
			lost = append(lost, f.cmds...)
			p.crash(f, errLost)
		}
	}
	if f := p.flights[a.Sequence]; f != nil {
		for i, it := range f.items {
			it.call.results[it.at] = a.Results[i]
			it.call.stale = it.call.stale || a.Stale
			it.call.applied = it.call.applied || !a.Stale
			p.close(it.call)
		}
		p.land(f)
	}
	p.mu.Unlock()
	p.tell()
	if len(lost) > 0 {
		p.s.fsm.ReleaseHolds(lost)
	}
}

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
	defer p.mu.Unlock()
	if p.role == stopped {
		return
	}
	same := p.epoch == epoch && next != following && next != stopped
	p.role, p.epoch = next, epoch
	p.begin = next == opening
	if !same {
		p.failAll(why)
	}
	p.signal()
}

// failAll fails all waiters: what is in flight is unknown, what waits was not applied. Called with mu held.
func (p *proposer) failAll(why error) {
	for _, f := range p.flights {
		p.crash(f, ErrUnknown)
	}
	for p.head != nil {
		p.fail(p.head, why)
	}
}

// flush fails all waiters of a leader that no majority answers. What is in flight may still be applied.
func (p *proposer) flush() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.failAll(ErrUnavailable)
}

// again asks for another entry that opens the epoch: the one before may have been refused.
func (p *proposer) again() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.role == opening || p.role == pausing {
		p.begin = true
		p.signal()
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
	for _, f := range p.flights {
		if !found || f.sentAt.Before(at) {
			at, found = f.sentAt, true
		}
	}
	return at, found
}

func (p *proposer) stats() ProposerStats {
	p.mu.Lock()
	defer p.mu.Unlock()
	stats := p.counts
	stats.Queued, stats.QueuedBytes, stats.InFlight = p.queued, p.queuedBytes, len(p.flights)
	return stats
}
