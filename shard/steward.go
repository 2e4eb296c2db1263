package shard

import (
	"context"
	"sync"
	"sync/atomic"
	"time"

	"github.com/hashicorp/raft"
)

// wedgedAfter is how many election time-outs an entry may be in flight, while the lease is held, until the group counts as
// wedged: 6 s by default. Slow disks of followers can hold an entry up for seconds, and a restart would not make them faster.
const wedgedAfter = 12

// reign is the time in which this replica leads under one epoch: from its first entry being applied to the end of the term.
type reign struct {
	epoch uint64
	// ended is closed when it is over.
	ended chan struct{}
}

// steward follows Raft's leadership: it opens an epoch, starts the firing, and ends both.
type steward struct {
	s *Shard // set before sharing
	// wake holds at most one signal. Any signal means: the term may have changed.
	wake chan struct{}
	// begun is the epoch whose first entry was applied here last. Written by the goroutine that applies.
	begun atomic.Uint64
	// reign is nil unless this replica leads.
	reign atomic.Pointer[reign]

	// transferring says that leadership is being handed over, or that this has failed and proposing is not resumed yet.
	transferring atomic.Bool
	// resuming says that a transfer has failed: when another first entry is applied, proposing goes on.
	resuming atomic.Bool
	// refusals holds why a transfer was refused.
	refusals chan error
	// transfers lets one transfer happen at a time.
	transfers sync.Mutex

	// asked is the term for which an epoch was opened, askedAt when its first entry was sent last. Touched by run alone.
	asked   uint64
	askedAt time.Time
	// heldAt is when the lease was last seen held, movedAt when the replica was last seen to apply something, up to moved. Touched by
	// run alone.
	heldAt, movedAt time.Time
	moved           uint64
}

func newSteward(s *Shard) *steward {
	return &steward{s: s, wake: make(chan struct{}, 1), refusals: make(chan error, 1)}
}

// listen empties Raft's notifications, on which Raft's loop waits. What they say is old when it is read: the steward looks
// for itself.
func (w *steward) listen(notify <-chan bool, quit <-chan struct{}) {
	for {
		select {
		case <-notify:
			w.signal()
		case <-quit:
			return
		}
	}
}

func (w *steward) signal() {
	select {
	case w.wake <- struct{}{}:
	default:
	}
}

// began is called when the first entry of an epoch, which this replica proposed in the term that it names, is applied here.
func (w *steward) began(epoch uint64) {
	w.begun.Store(epoch)
	w.signal()
}

// run looks at Raft whenever it is told to, and a few times per time-out, until the context ends.
func (w *steward) run(ctx context.Context) {
	tick := time.NewTicker(w.s.c.HeartbeatTimeout / 2)
	defer tick.Stop()
	for {
		w.look()
		select {
		case <-w.wake:
		case <-tick.C:
		case <-ctx.Done():
			return
		}
	}
}

// look compares what Raft says with what this replica does.
func (w *steward) look() {
	w.s.disk.overdue()
	term, leads := leadsTerm(w.s.raft.Load())
	switch {
	case !leads:
		if w.asked != 0 {
			w.follow()
		}
	case term != w.asked:
		if w.asked != 0 {
			w.follow()
		}
		w.open(term)
	case w.reign.Load() == nil:
		if w.begun.Load() == term {
			w.lead(term)
		} else {
			w.repeat()
		}
	case w.resuming.Load():
		if w.begun.Load() == term {
			w.resume(term)
		} else {
			w.repeat()
		}
	}
	if w.reign.Load() != nil {
		w.watch(term)
	}
}

// leadsTerm reads the term and whether this replica leads in it. The two are read at different times, so the term is read
// again: it only grows, and if it is the same the replica was leader in it.
func leadsTerm(r *raft.Raft) (term uint64, leads bool) {
	for {
		term = r.CurrentTerm()
		leads = r.State() == raft.Leader
		if r.CurrentTerm() == term {
			return term, leads
		}
	}
}

// open proposes the first entry of the epoch. It is the barrier: when it is applied here, so is all that was committed
// before.
func (w *steward) open(term uint64) {
	w.asked, w.askedAt = term, w.s.d.Monotonic()
	w.s.lease.enter(term)
	w.s.proposer.become(opening, term, nil)
	w.s.log.Debug("shard: elected; opening the epoch", "epoch", term)
}

// repeat proposes the first entry again if the one before may have been refused.
func (w *steward) repeat() {
	if now := w.s.d.Monotonic(); now.Sub(w.askedAt) > w.s.c.ElectionTimeout {
		w.askedAt = now
		w.s.proposer.again()
	}
}

// lead starts to fire and to propose under the epoch.
func (w *steward) lead(epoch uint64) {
	w.heldAt = w.s.d.Monotonic()
	w.s.fsm.Lead(epoch)
	w.reign.Store(&reign{epoch, make(chan struct{})})
	w.s.exec.Lead(epoch)
	w.s.proposer.become(leading, epoch, nil)
	w.s.log.Info("shard: leads", "epoch", epoch)
}

// follow stops to fire and to propose.
func (w *steward) follow() {
	w.s.exec.Follow()
	if old := w.reign.Swap(nil); old != nil {
		close(old.ended)
		w.s.log.Info("shard: leads no more", "epoch", old.epoch)
	}
	w.s.fsm.Follow()
	w.endTransfer()
	w.asked = 0
	w.s.proposer.become(following, 0, w.s.notLeader())
}

// resume goes on after a transfer that failed.
func (w *steward) resume(epoch uint64) {
	w.endTransfer()
	w.s.proposer.become(leading, epoch, nil)
}

// endTransfer ends a transfer that has failed, once.
func (w *steward) endTransfer() {
	if w.resuming.Swap(false) {
		w.transferring.Store(false)
	}
}

// stop ends a reign for good. Called when run has returned.
func (w *steward) stop() {
	w.s.exec.Follow()
	if old := w.reign.Swap(nil); old != nil {
		close(old.ended)
	}
	w.s.fsm.Follow()
}

// watch looks after what is in flight. If no majority has answered for an election time-out (and Raft has not noticed: its
// loop waits for the disk, or the process was frozen) the waiters are told that the outcome is unknown. If the majority
// answers, the disk is not waited for, and yet an entry does not come through, the group is wedged and the replica stops.
func (w *steward) watch(term uint64) {
	now, limit := w.s.d.Monotonic(), w.s.c.ElectionTimeout
	if !w.s.lease.held(term) {
		if now.Sub(w.heldAt) > limit {
			w.s.proposer.flush()
		}
		return
	}
	w.heldAt = now
	if applied := w.s.applied.Load(); applied != w.moved {
		w.moved, w.movedAt = applied, now // it works off what came before
	}
	at, found := w.s.proposer.oldest()
	if !found || w.s.disk.writing() > limit {
		return
	}
	if wait := min(now.Sub(at), now.Sub(w.movedAt)); wait > wedgedAfter*limit {
		w.s.log.Error("shard: wedged: an entry is not applied though the majority answers; stopping the replica",
			"epoch", term, "waited", wait)
		w.s.fail(ErrWedged)
	}
}

// mayFire says whether this replica leads, holds its lease and is not handing leadership over.
func (s *Shard) mayFire() bool {
	r := s.steward.reign.Load()
	return r != nil && !s.steward.transferring.Load() && s.lease.held(r.epoch)
}
