package raftfsm

import (
	logv1 "github.com/carillon-timers/carillon/proto/carillonlog/v1"
	"github.com/carillon-timers/carillon/wheel"
)

// Command is one change of the state, as it lies in the log.
type Command = logv1.Command

// Code says what became of a command.
type Code uint32

// Codes of Apply. OK and the refusals are the outcome of a command that was applied in its turn.
const (
	OK Code = iota
	NotFound
	AlreadyExists
	RevisionMismatch
	// StaleToken: the delivery's token is old; nothing was changed.
	StaleToken
	// StaleEpoch: the entry was proposed under an epoch that is over; nothing was changed, retry.
	StaleEpoch
	// Invalid: the command is malformed (a client got past validation); nothing was changed.
	Invalid
)

// Answers of Cancel (in Result.Answer), and of Schedule with if-exists keep.
const (
	AnswerCancelled uint32 = 1
	AnswerFiring    uint32 = 2
	AnswerFired     uint32 = 3

	AnswerKept uint32 = 1
)

// Result is what one command came to.
type Result struct {
	Code     Code
	Revision uint64
	// Due is the next due time in Unix milliseconds (Schedule, Reschedule, Retry).
	Due    int64
	Answer uint32
	// Detail says more about a refusal: the current revision, the field.
	Detail string
}

// Applied is what Apply tells of one entry.
type Applied struct {
	Index    uint64
	Epoch    uint64
	Clock    int64
	Proposer uint64
	Sequence uint64
	// Begin is true for the entry that opens an epoch.
	Begin bool
	// Stale is true if the entry's epoch was over: all results are StaleEpoch.
	Stale   bool
	Results []Result
}

// State is how far a timer has come; the numbers are those of carillon.v1.State.
type State uint8

// States of a timer.
const (
	Pending   State = 1
	Firing    State = 2
	Fired     State = 3
	Cancelled State = 4
)

// Record is a pending timer as a reader is given it: a copy, which he may keep.
type Record struct {
	Namespace, ID, Queue string
	Payload              []byte
	ContentType          string
	// Headers and Labels are sorted by key.
	Headers, Labels []Pair
	Retry           RetryPolicy
	// Due is the due time, Unix milliseconds; NextDue is when the next delivery may start (Due, or the end of a back-off).
	Due, NextDue int64
	// Accepted is the place in the order of acceptance on this shard (of the schedule or of the last reschedule).
	Accepted uint64
	// Revision is the log index of the last change.
	Revision uint64
	// Attempt counts the failed deliveries.
	Attempt   uint32
	Created   int64
	LastError string
}

// Pair is a header or a label.
type Pair struct{ Key, Value string }

// RetryPolicy is how deliveries are repeated, in milliseconds.
type RetryPolicy struct {
	Lease, InitialBackoff, MaxBackoff int64
	Multiplier                        float64
}

// Status is a timer as a reader sees it. For a finished timer Record holds no payload, headers or labels.
type Status struct {
	Record *Record
	State  State
	// FinishedAt is when it was acked or cancelled, Unix milliseconds; 0 while it is pending.
	FinishedAt int64
}

// Op tells the owner of the wheel what Apply did to one slot of the table. Ops are pushed in the order of the log, under
// the lock of the table.
type Op struct {
	// When is the tick at which the slot falls due (Arm).
	When wheel.Tick
	Slot uint32
	Kind OpKind
}

// OpKind is what happened to the slot.
type OpKind uint8

// Kinds of Op.
const (
	// Arm: the slot holds a timer that falls due at When; a slot that was armed is moved.
	Arm OpKind = iota + 1
	// Disarm: the slot is free.
	Disarm
	// Reset: the table was thrown away (Restore); Arm follows for all that is in the new one, in the order of (NextDue,
	// Accepted).
	Reset
)

// Feed takes the ops; *mpsc.Queue[Op] is one. Push never waits for the consumer. The slice is the caller's again when it returns.
type Feed interface{ PushN(ops []Op) }

// Ref names a delivery-to-be: a slot and the revision that it had when it was looked at.
type Ref struct {
	Slot     uint32
	Revision uint64
}

// DueInfo describes a slot to the executor.
type DueInfo struct {
	Ref
	// OK is false if the slot is free.
	OK               bool
	Namespace, Queue string
	NextDue          int64
	Accepted         uint64
	Attempt          uint32
	Lease            int64
	// Handed is true if the revision has been handed out under the present epoch; Held if a command that would settle it is on its way.
	Handed, Held bool
}

// ListQuery asks for pending timers in the order of their IDs.
type ListQuery struct {
	Namespace, Prefix string
	// After is the last ID of the page before.
	After string
	// Limit is at most MaxPageItems; the page also ends at MaxPageBytes.
	Limit int
}

// ListPage is a page; More says that there is another one.
type ListPage struct {
	Timers []Status
	More   bool
}

// Stats counts what a shard keeps.
type Stats struct {
	Pending, Finished, Requests int
	PayloadBytes                int64
	AppliedIndex, Epoch         uint64
	// Clock is the clock of the last entry, EpochClock that of the entry that opened the epoch.
	Clock, EpochClock int64
}
