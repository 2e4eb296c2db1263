package raftfsm

import (
	"strconv"
	"sync"

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
	// IsPaused and NotPaused: the timer is, or is not; nothing was changed.
	IsPaused
	NotPaused
	// NotPending: the timer is finished; Answer is its State.
	NotPending
)

// Answers of Cancel (in Result.Answer), of Schedule with if-exists keep, of Redrive and of Purge.
const (
	AnswerCancelled uint32 = 1
	AnswerFiring    uint32 = 2
	AnswerFired     uint32 = 3

	AnswerKept uint32 = 1
	// AnswerMore is that of Redrive and Purge: letters are left.
	AnswerMore uint32 = 1
)

// Result is what one command came to.
type Result struct {
	Code     Code
	Revision uint64
	// Due is the next due time in Unix milliseconds (Schedule, Reschedule, Resume, Retry); of Redrive and Purge the number of
	// letters that were redriven or purged.
	Due int64
	// Answer is one of the answers, or the State with NotPending. Of an Atomic that was refused it is the place of the command that
	// Code and Detail are about.
	Answer uint32
	// Detail says more about a refusal: the current revision, the field.
	Detail string
	// Items are the results of the parts of an Atomic, or of the letters of a Redrive or Purge, which Key names. A repetition of
	// a Redrive or Purge by its request ID has none.
	Items []Result
	Key   string
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
	room    *[]Result
}

// resultRooms are those that were released, shared by all shards, see rooms.
var resultRooms = sync.Pool{New: func() any { return new([]Result) }}

// takeResults makes room for n results, all of them zero.
func (a *Applied) takeResults(n int) {
	a.room = resultRooms.Get().(*[]Result)
	if cap(*a.room) < n {
		*a.room = make([]Result, n)
	}
	a.Results = (*a.room)[:n]
}

// Release gives the room of Results to the Apply of another entry: call it when nobody looks at them any more, once. Without it the
// collector has more to do, that is all.
func (a *Applied) Release() {
	clear(a.Results)
	resultRooms.Put(a.room)
	a.Results, a.room = nil, nil
}

// State is how far a timer has come; the numbers are those of carillon.v1.State.
type State uint8

// States of a timer.
const (
	Pending   State = 1
	Firing    State = 2
	Fired     State = 3
	Cancelled State = 4
	Paused    State = 5
	Dead      State = 6
	Expired   State = 7
)

// String is the name of the state in lower case.
func (s State) String() string {
	names := [...]string{Pending: "pending", Firing: "firing", Fired: "fired", Cancelled: "cancelled", Paused: "paused", Dead: "dead", Expired: "expired"}
	if int(s) < len(names) && names[s] != "" {
		return names[s]
	}
	return "state " + strconv.Itoa(int(s))
}

// Record is a pending timer as a reader is given it: a copy, which he may keep. That of a dead letter has the namespace NUL and
// the timer's, and the letter's key as its ID; Extra.Dead tells the rest.
type Record struct {
	// Queue is NUL and scheme://host:port if the timer is for a webhook.
	Namespace, ID, Queue string
	Payload              []byte
	ContentType          string
	// Headers and Labels are sorted by key.
	Headers, Labels []Pair
	Retry           RetryPolicy
	// Due is the due time, Unix milliseconds; NextDue is when the next delivery may start (Due, or the end of a back-off).
	Due, NextDue int64
	// Accepted is the place in the order of acceptance on this shard: of the schedule, or of the last change that gave it
	// another due time.
	Accepted uint64
	// Revision is the log index of the last change.
	Revision uint64
	// Attempt counts the failed deliveries.
	Attempt   uint32
	Created   int64
	LastError string
	// Extra is what few timers have; nil if there is nothing.
	Extra *logv1.Extra
}

// Pair is a header or a label.
type Pair struct{ Key, Value string }

// RetryPolicy is how deliveries are repeated, in milliseconds.
type RetryPolicy struct {
	Lease, InitialBackoff, MaxBackoff int64
	Multiplier                        float64
	// MaxAttempts is the number of attempts after which the timer is dead; 0 means no limit.
	MaxAttempts uint32
}

// Status is a timer as a reader sees it. For a finished timer Record holds no payload, headers or labels, and of Extra only
// the failures, shorter; for a Dead one, while its letter is there, the last error and what the letter's Extra tells.
type Status struct {
	Record *Record
	State  State
	// FinishedAt is when it was finished, Unix milliseconds; 0 while it is pending.
	FinishedAt int64
	// HandedAt is when the last delivery was handed out (of a finished timer, or while State is Firing), Unix milliseconds, and
	// HandedEpoch under which epoch; 0 if that is not known.
	HandedAt    int64
	HandedEpoch uint64
	// Fired counts the due times of a repeat that were settled.
	Fired int64
	// Reigns are the last epochs, oldest first; only Get fills them. They are shared: read only.
	Reigns []Reign
}

// Reign is an epoch, the node that led it, and the clock of its first entry, Unix milliseconds.
type Reign struct {
	Epoch uint64
	Node  string
	Begun int64
}

// Op tells the owner of the wheel what Apply did to one slot of the table. Ops are pushed in the order of the log, under
// the lock of the table.
type Op struct {
	// When is the tick at which the slot falls due, or its timer expires, if that is earlier (Arm).
	When wheel.Tick
	Slot uint32
	Kind OpKind
}

// OpKind is what happened to the slot.
type OpKind uint8

// Kinds of Op.
const (
	// Arm: the slot holds a timer to be looked at at When; a slot that was armed is moved.
	Arm OpKind = iota + 1
	// Disarm: the slot is free, or its timer is parked (paused, or a dead letter).
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
	// OK is false if the slot is free, or its timer is parked: its Disarm has been pushed.
	OK               bool
	Namespace, Queue string
	NextDue          int64
	Accepted         uint64
	Attempt          uint32
	Lease            int64
	// Handed is true if the revision has been handed out under the present epoch; Held if a command that would settle it is on its way.
	Handed, Held bool
	// Parked is true for a paused timer and for a dead letter.
	Parked bool
	// Spawns is true for a repeat with overlap allow: it is never handed out, Advance makes timers of its due times.
	Spawns bool
	// Expiry is when the timer expires, Unix milliseconds: at that instant and later it is not handed out. 0 means never.
	Expiry int64
}

// Verdict is what HandOut decides about a timer.
type Verdict uint8

// Verdicts of HandOut. Only Give notes something and hands the timer out; Stamp takes the holds for what follows from the others.
const (
	// Refused: the ref is stale, held, handed out already or parked, or the epoch does not lead.
	Refused Verdict = iota
	// Give: it is handed out.
	Give
	// PastExpiry: propose Expire.
	PastExpiry
	// Missed: due times of a repeat have been missed, or it Spawns: propose Advance.
	Missed
	// Ahead: it is at-most-once: propose Complete with ahead, and hand it out once that is applied.
	Ahead
)

// Handed is the answer to one ref. Record is nil if it was refused.
type Handed struct {
	Record  *Record
	Verdict Verdict
}

// Repeats computes the due times of repeats. Only a leader asks, in Stamp and HandOut, so replicas need not agree on time
// zones. It is asked under the lock of the table and must be quick.
type Repeats interface {
	// Next is the first due time on the grid after the instant, Unix milliseconds; false if there is none.
	Next(r *logv1.Repeat, after int64) (int64, bool)
	// Turn says what to fire of the due times from r.TickMs to now by the misfire policy.
	Turn(r *logv1.Repeat, now int64) Turn
}

// Turn is what follows from due times that have come.
type Turn struct {
	// Fire are the due times to fire, oldest first; none if the first is later than now.
	Fire []int64
	// Next is the first due time after now; it counts only unless Ended.
	Next  int64
	Ended bool
}

// ListQuery asks for pending timers in the order of their IDs, or for dead letters in the order in which they died.
type ListQuery struct {
	Namespace, Prefix string
	// After is the last ID (or key) of the page before.
	After string
	// Limit is at most MaxPageItems; the page also ends at MaxPageBytes.
	Limit int
	// Filter chooses timers; all that is set must fit. nil is none.
	Filter *logv1.Filter
	// Look is how many timers are looked at, at most; 0, or more than MaxLook, means MaxLook.
	Look int
	// Count asks for the number only.
	Count bool
	// Dead asks for dead letters; of prefix and filter only the queue counts.
	Dead bool
}

// ListPage is a page; More says that there is another one, and Last is the ID (or key) after which it begins. A page may be
// short, or empty, and have another one behind it.
type ListPage struct {
	Timers []Status
	More   bool
	Last   string
	// Count is how many timers fit, if that was asked for.
	Count int64
}

// ForecastQuery asks what falls due when.
type ForecastQuery struct {
	// Namespace and Queue choose timers; empty means all.
	Namespace, Queue string
	// From is the beginning of the first step, Step the length of each, Unix milliseconds.
	From, Step int64
	// Steps is at most MaxForecastSteps.
	Steps int
	// Rows bounds the rows; 0, or more than MaxForecastRows, means MaxForecastRows.
	Rows int
}

// ForecastRow counts the timers of one queue.
type ForecastRow struct {
	Namespace, Queue string
	// Before and After count what lies before the first and behind the last step, Counts what lies in each.
	Before, After int64
	Counts        []int64
	// Paused timers are in no other count.
	Paused int64
}

// Stats counts what a shard keeps.
type Stats struct {
	// Pending counts neither paused timers nor dead letters.
	Pending, Paused, Dead, Finished, Requests int
	// PayloadBytes are those of all of them.
	PayloadBytes        int64
	AppliedIndex, Epoch uint64
	// Clock is the clock of the last entry, EpochClock that of the entry that opened the epoch.
	Clock, EpochClock int64
}
