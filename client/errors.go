package client

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	carillonv1 "github.com/carillon-timers/carillon/proto/carillon/v1"
)

// The errors that a caller can act on, for errors.Is.
var (
	// ErrNotFound: no such timer.
	ErrNotFound = errors.New("timer not found")
	// ErrAlreadyExists: a pending timer has the ID, and the if-exists policy is fail.
	ErrAlreadyExists = errors.New("timer already exists")
	// ErrUnknown: the context ended, or the server failed, while it was not known whether the write had been applied; repeat
	// it with the same request ID, or read the timer.
	ErrUnknown = errors.New("outcome unknown")
	// ErrUnavailable: no node could serve the call before the context ended; nothing was changed.
	ErrUnavailable = errors.New("cluster unavailable")
	// ErrClosed: the client is closed.
	ErrClosed = errors.New("client closed")
	// ErrPaused: the timer is paused, and the call is not for paused ones. Nothing was changed.
	ErrPaused = errors.New("timer is paused")
	// ErrNotPaused: Resume of a timer that is not paused. Nothing was changed.
	ErrNotPaused = errors.New("timer is not paused")
	// ErrNotPending: the call is for pending timers, and this one is not; a *NotPendingError says what it is. Nothing was
	// changed.
	ErrNotPending = errors.New("timer is not pending")
	// ErrStale: the delivery's token is old: its lease ended, the leader changed, or an answer or a change came first.
	ErrStale = errors.New("the delivery is not held any more")
	// ErrLeaseEnded is the cause of a handler's context that ended because the delivery's lease did.
	ErrLeaseEnded = errors.New("the delivery's lease ended")
)

// InvalidError names a field (as the contract spells it), its value and the limit that it breaks; nothing was changed.
type InvalidError struct{ Field, Value, Limit string }

func (e *InvalidError) Error() string {
	if e.Value == "" {
		return fmt.Sprintf("%s is not valid: %s", e.Field, e.Limit)
	}
	return fmt.Sprintf("%s %s is not valid: %s", e.Field, e.Value, e.Limit)
}

// RevisionError says that the expected revision is not the timer's; nothing was changed.
type RevisionError struct{ Expected, Actual int64 }

func (e *RevisionError) Error() string {
	return fmt.Sprintf("expected revision %d does not match the timer's revision %d", e.Expected, e.Actual)
}

// NotPendingError is ErrNotPending with the state that the timer has.
type NotPendingError struct{ State string }

func (e *NotPendingError) Error() string { return ErrNotPending.Error() + ": it is " + e.State }

// Is makes it ErrNotPending.
func (e *NotPendingError) Is(target error) bool { return target == ErrNotPending }

// AtomicError says which item of an atomic batch failed, counted from 0; nothing was changed. It unwraps to the item's
// error.
type AtomicError struct {
	Item int
	Err  error
}

func (e *AtomicError) Error() string {
	return fmt.Sprintf("nothing was changed: item %d: %v", e.Item, e.Err)
}

// Unwrap returns the item's error.
func (e *AtomicError) Unwrap() error { return e.Err }

// NotSupportedError names a field or call that the server's version does not serve.
type NotSupportedError struct{ Field string }

func (e *NotSupportedError) Error() string { return e.Field + " is not supported by this version" }

// OverloadedError names the limit that was reached; nothing was changed. RetryAfter is what the server asked to wait, 0
// if it did not say.
type OverloadedError struct {
	Limit      string
	RetryAfter time.Duration
}

func (e *OverloadedError) Error() string {
	if e.RetryAfter > 0 {
		return fmt.Sprintf("limit reached: %s; retry after %v", e.Limit, e.RetryAfter.Round(time.Millisecond))
	}
	return "limit reached: " + e.Limit
}

// StatusError is any other answer of a server. If a write was cut short by it (an internal error), it comes with ErrUnknown.
type StatusError struct {
	Code    codes.Code
	Message string
}

func (e *StatusError) Error() string { return e.Message }

// broken says that the server did not refuse but fail, at some point of its work.
func (e *StatusError) broken() bool {
	return e.Code == codes.Internal || e.Code == codes.Unknown || e.Code == codes.DataLoss
}

// notLeaderError: not applied; the leader and its address are empty if the node knows none.
type notLeaderError struct{ leader, addr string }

func (e *notLeaderError) Error() string {
	if e.leader == "" {
		return "the shard has no leader"
	}
	return "the shard's leader is " + e.leader + " at " + e.addr
}

// unavailableError: the node could not be asked, or could not answer.
type unavailableError struct {
	message string
	maybe   bool // the call may have been applied
	silent  bool // the node itself did not answer
}

func (e *unavailableError) Error() string { return e.message }

// The domain and the reasons of google.rpc.ErrorInfo, as the contract lists them.
const (
	errorDomain         = "carillon"
	reasonNotFound      = "TIMER_NOT_FOUND"
	reasonAlreadyExists = "TIMER_ALREADY_EXISTS"
	reasonRevision      = "REVISION_MISMATCH"
	reasonInvalid       = "INVALID_FIELD"
	reasonLimit         = "LIMIT_REACHED"
	reasonNotLeader     = "NOT_LEADER"
	reasonUnknown       = "OUTCOME_UNKNOWN"
	reasonNotSupported  = "NOT_SUPPORTED"
	reasonUnavailable   = "SHARD_UNAVAILABLE"
	reasonStale         = "STALE_TOKEN"
	reasonPaused        = "TIMER_PAUSED"
	reasonNotPaused     = "TIMER_NOT_PAUSED"
	reasonNotPending    = "TIMER_NOT_PENDING"
)

// answer is an error of a server in parts: of a gRPC status or of an item of a batch.
type answer struct {
	code     codes.Code
	message  string
	reason   string
	metadata map[string]string
	retry    time.Duration
}

// errorOf turns the error of a gRPC call into one of this package's.
func errorOf(err error) error {
	if err == nil {
		return nil
	}
	st, ok := status.FromError(err)
	if !ok {
		st = status.FromContextError(err)
	}
	a := answer{code: st.Code(), message: plain(st.Message())}
	for _, detail := range st.Details() {
		switch d := detail.(type) {
		case *errdetails.ErrorInfo:
			if d.GetDomain() == errorDomain {
				a.reason, a.metadata = d.GetReason(), d.GetMetadata()
			}
		case *errdetails.RetryInfo:
			a.retry = d.GetRetryDelay().AsDuration()
		}
	}
	return a.ofItem(a.error())
}

// ofItem adds which item of an atomic batch was refused; what can be tried again stays as it is.
func (a answer) ofItem(err error) error {
	var broken *StatusError
	if _, ok := a.metadata["item"]; !ok || retriable(err) || errors.As(err, &broken) {
		return err
	}
	return &AtomicError{Item: int(a.integer("item")), Err: err}
}

// itemErrorOf turns the error of one item of a batch into one of this package's.
func itemErrorOf(e *carillonv1.ItemError) error {
	a := answer{code: codes.Code(e.GetCode()), message: e.GetMessage(), reason: e.GetReason(), metadata: e.GetMetadata()}
	return a.error()
}

func (a answer) error() error {
	switch a.reason {
	case reasonNotFound:
		return ErrNotFound
	case reasonAlreadyExists:
		return ErrAlreadyExists
	case reasonRevision:
		return &RevisionError{Expected: a.integer("expected"), Actual: a.integer("actual")}
	case reasonInvalid:
		return &InvalidError{Field: a.metadata["field"], Value: a.metadata["value"], Limit: a.metadata["limit"]}
	case reasonLimit:
		if a.retry == 0 {
			a.retry = time.Duration(a.integer("retry_after_ms")) * time.Millisecond
		}
		return &OverloadedError{Limit: a.metadata["limit"], RetryAfter: a.retry}
	case reasonNotLeader:
		return &notLeaderError{leader: a.metadata["leader"], addr: a.metadata["address"]}
	case reasonUnavailable:
		return &unavailableError{message: a.message}
	case reasonUnknown:
		return &unavailableError{message: a.message, maybe: true}
	case reasonStale:
		return ErrStale
	case reasonPaused:
		return ErrPaused
	case reasonNotPaused:
		return ErrNotPaused
	case reasonNotPending:
		return notPending(a.metadata["state"])
	case reasonNotSupported:
		return &NotSupportedError{Field: a.metadata["field"]}
	}
	return a.errorOfCode()
}

// notPending takes the state as the contract or as a person spells it.
func notPending(state string) error {
	if state == "" {
		return ErrNotPending
	}
	return &NotPendingError{State: strings.ToLower(strings.TrimPrefix(state, "STATE_"))}
}

// errorOfCode judges an answer without a reason: it comes from gRPC itself or from something between us and the node.
func (a answer) errorOfCode() error {
	switch a.code {
	case codes.Unavailable, codes.DeadlineExceeded, codes.Canceled, codes.Aborted:
		return &unavailableError{message: a.message, maybe: true, silent: true}
	case codes.NotFound:
		return ErrNotFound
	case codes.AlreadyExists:
		return ErrAlreadyExists
	case codes.Unimplemented:
		if strings.Contains(a.message, "HTTP status code") {
			return &unavailableError{message: "no Carillon node answers here: " + a.message, silent: true}
		}
		return &NotSupportedError{Field: a.message}
	}
	return &StatusError{Code: a.code, Message: a.message}
}

func (a answer) integer(key string) int64 {
	n, _ := strconv.ParseInt(a.metadata[key], 10, 64)
	return n
}

// plain takes gRPC's own words out of a message: who reads it wants to know which address did not answer and why.
func plain(message string) string {
	for _, words := range []string{"connection error: desc = ", "transport: ", "Error while dialing: "} {
		message = strings.Replace(message, words, "", 1)
	}
	return strings.Trim(message, `"`)
}

// retriable says whether another attempt can help.
func retriable(err error) bool {
	switch err.(type) {
	case *notLeaderError, *unavailableError, *OverloadedError:
		return true
	}
	return false
}

// permanent says whether an error of a stream will be the same on every other one.
func permanent(err error) bool {
	switch e := err.(type) {
	case *InvalidError, *NotSupportedError:
		return true
	case *StatusError:
		return e.Code == codes.InvalidArgument || e.Code == codes.PermissionDenied || e.Code == codes.Unauthenticated
	}
	return false
}

// gaveUp is the error of a call whose context ended before an attempt succeeded.
func gaveUp(ctx context.Context, maybe bool, last error) error {
	return gaveUpBecause(context.Cause(ctx), maybe, last)
}

func gaveUpBecause(cause error, maybe bool, last error) error {
	if errors.Is(cause, ErrClosed) {
		if maybe {
			return fmt.Errorf("%w: %w", ErrUnknown, ErrClosed)
		}
		return ErrClosed
	}
	kind := ErrUnavailable
	var overloaded *OverloadedError
	switch {
	case maybe:
		kind = ErrUnknown
	case errors.As(last, &overloaded):
		kind = overloaded
	}
	if last == nil || last == error(overloaded) {
		return fmt.Errorf("%w (%w)", kind, cause)
	}
	return fmt.Errorf("%w (%w): %w", kind, cause, last)
}
