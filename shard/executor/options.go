package executor

import (
	"log/slog"
	"time"

	"github.com/carillon-timers/carillon/raftfsm"
)

// Limits of the loop. A turn is bounded by them, so that neither a flood of ops nor an overdue pile delays a deadline of
// another shard by more than about a millisecond.
const (
	// fireSlice is how many due slots one shard takes from its wheel in a turn, fireBudget how many all shards together.
	fireSlice  = 256
	fireBudget = 1024
	// opsSlice is how many ops one shard applies to its wheel in a turn, opsBudget how many all shards together.
	opsSlice  = 1024
	opsBudget = 4096
	// readyBudget is how many queues are found ready before the Deliverer is told of them and the turn ends.
	readyBudget = 8
	// rearmSlice is how many slots of a former epoch one shard re-arms in a turn.
	rearmSlice = 1024
	// handOutSlice is how many timers Take asks the table for at once.
	handOutSlice = 256

	// sleepMax bounds a sleep, so that the wall clock is read at least that often.
	sleepMax = time.Second
	// leaseRetry is how long a shard that leads without holding its lease waits before it looks again.
	leaseRetry = 20 * time.Millisecond
	// panicRetry is how long a shard waits until it tells a Deliverer that panicked again.
	panicRetry = time.Second

	// readyRearmMax bounds how far a slot that waits in a ready list is re-armed, in milliseconds (unless its lease is longer).
	readyRearmMax = 5 * 60_000
	// heldRearmMax is the same for a slot that a command in flight holds.
	heldRearmMax = 5_000
	// settleAgainMax bounds the wait before a lapsed lease whose settling was lost is settled again, in milliseconds.
	settleAgainMax = 10_000

	// DefaultWorkers is the size of the pool of a loop.
	DefaultWorkers = 8
)

// Table is what the executor asks of the replicated state; *raftfsm.FSM is one. Its lock is a leaf: the methods are called
// under the lock of an Exec.
type Table interface {
	// Describe appends one DueInfo for each slot, in order.
	Describe(slots []uint32, out []raftfsm.DueInfo) []raftfsm.DueInfo
	// HandOut decides about each ref at an instant in Unix milliseconds, in order, and marks as handed out under the epoch what
	// it gives.
	HandOut(epoch uint64, now int64, refs []raftfsm.Ref, out []raftfsm.Handed) []raftfsm.Handed
	// Record returns what lies in a slot; nil if it is free.
	Record(slot uint32) *raftfsm.Record
	// Locate appends a ref for each token: the slot of its timer, with revision 0 if the delivery is settled.
	Locate(tokens []raftfsm.Token, out []raftfsm.Ref) []raftfsm.Ref
}

// LoopOptions are the options of a loop.
type LoopOptions struct {
	// Now is the wall clock; default time.Now.
	Now func() time.Time
	// Workers is the number of goroutines that share the baton; default DefaultWorkers, at least 2. A Deliverer that blocks
	// in Ready keeps one of them.
	Workers int
	// Sleeper is how the loop waits; default NewFDSleeper on Linux and NewTimerSleeper elsewhere. In testing/synctest it must
	// be NewTimerSleeper.
	Sleeper Sleeper
	// Logger is for what the loop survives: a Deliverer that panics, a clock that runs back. Default slog.Default().
	Logger *slog.Logger
}

// Options are the options of one shard's Exec. The clock is the loop's.
type Options struct {
	// Table is the shard's state; it may be set later, by SetTable, before the first op and before Lead.
	Table Table
	// Shard is the number of the shard.
	Shard uint32
	// Deliverer learns what is ready. It should return at once; see Loop.
	Deliverer Deliverer
	// LeaseHeld says whether the leader may fire: it heard of a quorum within its lease. It must be quick and is called
	// without a lock of the executor's. Default: always.
	LeaseHeld func() bool
	// Settle takes commands to be proposed: the Retry of leases that lapsed, and what follows from verdicts of the table (Advance,
	// Expire, Complete ahead). It never blocks, and says whether it took them. If they are lost they come again. done, if it is
	// not nil, is called under no lock with their results when all of them are applied here, or never. Default: dropped.
	Settle func(cmds []*raftfsm.Command, done func([]raftfsm.Result)) bool
}

func (o LoopOptions) withDefaults() LoopOptions {
	if o.Now == nil {
		o.Now = time.Now
	}
	if o.Workers <= 0 {
		o.Workers = DefaultWorkers
	}
	o.Workers = max(2, o.Workers)
	if o.Sleeper == nil {
		o.Sleeper = defaultSleeper()
	}
	if o.Logger == nil {
		o.Logger = slog.Default()
	}
	return o
}

func (o Options) withDefaults() Options {
	if o.LeaseHeld == nil {
		o.LeaseHeld = func() bool { return true }
	}
	if o.Settle == nil {
		o.Settle = func([]*raftfsm.Command, func([]raftfsm.Result)) bool { return false }
	}
	return o
}
