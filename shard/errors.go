package shard

import (
	"errors"
	"fmt"
	"time"

	"github.com/carillon-timers/carillon/raftfsm"
)

// The errors that a caller can act on. transport/status.go alone maps them to gRPC codes and back.
var (
	// ErrNotFound: no such timer.
	ErrNotFound = errors.New("timer not found")
	// ErrAlreadyExists: a pending timer has the ID, and the if-exists policy is fail.
	ErrAlreadyExists = errors.New("timer already exists")
	// ErrStaleToken: the delivery's token is old; nothing was changed.
	ErrStaleToken = errors.New("stale delivery token")
	// ErrPaused: the timer is paused; nothing was changed. ErrNotPaused: it is not.
	ErrPaused    = errors.New("timer is paused")
	ErrNotPaused = errors.New("timer is not paused")
	// ErrUnknown: the write may or may not have been applied; retry with the same request ID.
	ErrUnknown = errors.New("outcome unknown")
	// ErrUnavailable: the shard cannot be reached or is stopping; not applied, retry.
	ErrUnavailable = errors.New("shard unavailable")
)

// RevisionError says that the expected revision is not the timer's; nothing was changed.
type RevisionError struct{ Expected, Actual uint64 }

func (e *RevisionError) Error() string {
	return fmt.Sprintf("expected_revision %d does not match the timer's revision %d", e.Expected, e.Actual)
}

// NotPendingError says that the timer is finished, and how; nothing was changed.
type NotPendingError struct{ State raftfsm.State }

func (e *NotPendingError) Error() string {
	how := map[raftfsm.State]string{
		raftfsm.Fired: "has fired", raftfsm.Cancelled: "was cancelled", raftfsm.Dead: "is dead", raftfsm.Expired: "has expired",
	}[e.State]
	if how == "" {
		how = fmt.Sprintf("is in state %d", e.State)
	}
	return "timer " + how
}

// InvalidError names a field, its value and the limit that it breaks; nothing was changed.
type InvalidError struct{ Field, Value, Limit string }

func (e *InvalidError) Error() string {
	return fmt.Sprintf("%s: %s is not valid: %s", e.Field, e.Value, e.Limit)
}

// NotSupportedError names a field or call of the contract that this version does not serve yet.
type NotSupportedError struct{ Field string }

func (e *NotSupportedError) Error() string { return e.Field + " is not supported by this version" }

// OverloadedError names the limit that is reached; not applied, retry after RetryAfter.
type OverloadedError struct {
	Limit      string
	RetryAfter time.Duration
}

func (e *OverloadedError) Error() string {
	return fmt.Sprintf("limit reached: %s; retry after %v", e.Limit, e.RetryAfter.Round(time.Millisecond))
}

// NotLeaderError says that this replica does not lead the shard; not applied, retry at the leader (empty if unknown).
type NotLeaderError struct{ Leader, Addr string }

func (e *NotLeaderError) Error() string {
	if e.Leader == "" {
		return "not the leader; no leader is known"
	}
	return fmt.Sprintf("not the leader; %s at %s leads", e.Leader, e.Addr)
}
