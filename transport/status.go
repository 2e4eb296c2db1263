package transport

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
	"google.golang.org/protobuf/types/known/durationpb"

	carillonv1 "github.com/carillon-timers/carillon/proto/carillon/v1"
	"github.com/carillon-timers/carillon/raftfsm"
	"github.com/carillon-timers/carillon/shard"
)

// This file alone maps the errors that a caller can act on to gRPC codes, and back.

// Domain is the domain of each ErrorInfo.
const Domain = "carillon"

// Reasons of an ErrorInfo: stable, part of the contract.
const (
	ReasonNotFound         = "TIMER_NOT_FOUND"
	ReasonAlreadyExists    = "TIMER_ALREADY_EXISTS"
	ReasonRevisionMismatch = "REVISION_MISMATCH"
	ReasonInvalidField     = "INVALID_FIELD"
	ReasonLimitReached     = "LIMIT_REACHED"
	ReasonNotLeader        = "NOT_LEADER"
	ReasonOutcomeUnknown   = "OUTCOME_UNKNOWN"
	ReasonNotSupported     = "NOT_SUPPORTED"
	// ReasonUnavailable: the shard cannot be reached or the node is stopping; the call was not applied.
	ReasonUnavailable = "SHARD_UNAVAILABLE"
	// ReasonStaleToken: the delivery's token is old; nothing was changed.
	ReasonStaleToken = "STALE_TOKEN"
	ReasonPaused     = "TIMER_PAUSED"
	ReasonNotPaused  = "TIMER_NOT_PAUSED"
	// ReasonNotPending: the timer is finished; the metadata state says how.
	ReasonNotPending = "TIMER_NOT_PENDING"
)

// maxStatusBytes cuts the text of an error: it travels in a header.
const maxStatusBytes = 1 << 10

// fault is an error on its way to a client.
type fault struct {
	code     codes.Code
	reason   string
	metadata map[string]string
	message  string
	retry    time.Duration
}

// ItemError is the error of an atomic batch: that of the first item that fails.
type ItemError struct {
	// Item is the place of the item in the batch.
	Item int
	Err  error
}

func atItem(i int, err error) error { return &ItemError{i, err} }

func (e *ItemError) Error() string { return fmt.Sprintf("items[%d]: %v", e.Item, e.Err) }

func (e *ItemError) Unwrap() error { return e.Err }

// faultOf maps an error. One that is not in the closed set is INTERNAL.
func faultOf(err error) fault {
	f := classify(err)
	if item, ok := errors.AsType[*ItemError](err); ok && f.reason != "" {
		if f.metadata == nil {
			f.metadata = make(map[string]string, 1)
		}
		f.metadata["item"] = strconv.Itoa(item.Item)
	}
	f.message = cutText(err.Error(), maxStatusBytes)
	for k, v := range f.metadata {
		f.metadata[k] = cutText(v, maxStatusBytes)
	}
	return f
}

func classify(err error) fault {
	var (
		revision  *shard.RevisionError
		invalid   *shard.InvalidError
		missing   *shard.NotSupportedError
		overload  *shard.OverloadedError
		notLeader *shard.NotLeaderError
		finished  *shard.NotPendingError
	)
	switch {
	case errors.Is(err, shard.ErrNotFound):
		return fault{code: codes.NotFound, reason: ReasonNotFound}
	case errors.Is(err, shard.ErrAlreadyExists):
		return fault{code: codes.AlreadyExists, reason: ReasonAlreadyExists}
	case errors.As(err, &revision):
		return fault{code: codes.FailedPrecondition, reason: ReasonRevisionMismatch, metadata: map[string]string{
			"expected": strconv.FormatUint(revision.Expected, 10), "actual": strconv.FormatUint(revision.Actual, 10)}}
	case errors.Is(err, shard.ErrStaleToken):
		return fault{code: codes.FailedPrecondition, reason: ReasonStaleToken}
	case errors.Is(err, shard.ErrPaused):
		return fault{code: codes.FailedPrecondition, reason: ReasonPaused}
	case errors.Is(err, shard.ErrNotPaused):
		return fault{code: codes.FailedPrecondition, reason: ReasonNotPaused}
	case errors.As(err, &finished):
		return fault{code: codes.FailedPrecondition, reason: ReasonNotPending, metadata: map[string]string{
			"state": carillonv1.State(finished.State).String()}}
	case errors.As(err, &invalid):
		return fault{code: codes.InvalidArgument, reason: ReasonInvalidField, metadata: map[string]string{
			"field": invalid.Field, "value": invalid.Value, "limit": invalid.Limit}}
	case errors.As(err, &missing):
		return fault{code: codes.Unimplemented, reason: ReasonNotSupported, metadata: map[string]string{"field": missing.Field}}
	case errors.As(err, &overload):
		return fault{code: codes.ResourceExhausted, reason: ReasonLimitReached, retry: overload.RetryAfter, metadata: map[string]string{
			"limit": overload.Limit, "retry_after_ms": strconv.FormatInt(overload.RetryAfter.Milliseconds(), 10)}}
	case errors.Is(err, shard.ErrUnknown):
		return fault{code: codes.Unknown, reason: ReasonOutcomeUnknown}
	case errors.As(err, &notLeader):
		return fault{code: codes.Unavailable, reason: ReasonNotLeader, metadata: map[string]string{
			"leader": notLeader.Leader, "address": notLeader.Addr}}
	case errors.Is(err, shard.ErrUnavailable):
		return fault{code: codes.Unavailable, reason: ReasonUnavailable}
	case errors.Is(err, context.DeadlineExceeded): // a write may be applied or not
		return fault{code: codes.DeadlineExceeded, reason: ReasonOutcomeUnknown}
	case errors.Is(err, context.Canceled):
		return fault{code: codes.Canceled, reason: ReasonOutcomeUnknown}
	}
	return fault{code: codes.Internal}
}

// statusError is an error that carries a status already.
type statusError interface {
	error
	GRPCStatus() *status.Status
}

// StatusOf is the gRPC status of an error; a status that the error carries already is kept.
func StatusOf(err error) *status.Status {
	if err == nil {
		return status.New(codes.OK, "")
	}
	if _, ok := errors.AsType[statusError](err); ok {
		return status.Convert(err)
	}
	f := faultOf(err)
	s := status.New(f.code, f.message)
	if f.reason == "" {
		return s
	}
	detailed, derr := s.WithDetails(&errdetails.ErrorInfo{Reason: f.reason, Domain: Domain, Metadata: f.metadata})
	if derr != nil {
		return s
	}
	if f.retry > 0 {
		if s, derr := detailed.WithDetails(&errdetails.RetryInfo{RetryDelay: durationpb.New(f.retry)}); derr == nil {
			return s
		}
	}
	return detailed
}

// itemErrorOf is the error of one item of a batch.
func itemErrorOf(err error) *carillonv1.ItemError {
	f := faultOf(err)
	return &carillonv1.ItemError{Code: int32(f.code), Message: f.message, Reason: f.reason, Metadata: f.metadata}
}

// ErrorOf turns the status of a call back into the error of the closed set that it stands for, nil for OK. A status
// that stands for none is returned as its own error.
func ErrorOf(s *status.Status) error {
	if s.Code() == codes.OK {
		return nil
	}
	f := fault{code: s.Code(), message: s.Message()}
	for _, d := range s.Details() {
		switch d := d.(type) {
		case *errdetails.ErrorInfo:
			if d.GetDomain() == Domain {
				f.reason, f.metadata = d.GetReason(), d.GetMetadata()
			}
		case *errdetails.RetryInfo:
			f.retry = d.GetRetryDelay().AsDuration()
		}
	}
	if err := f.err(); err != nil {
		return err
	}
	return s.Err()
}

// ErrorOfItem turns the error of one item of a batch back, nil for nil.
func ErrorOfItem(e *carillonv1.ItemError) error {
	if e == nil {
		return nil
	}
	f := fault{code: codes.Code(e.GetCode()), message: e.GetMessage(), reason: e.GetReason(), metadata: e.GetMetadata()}
	if ms, err := strconv.ParseInt(f.metadata["retry_after_ms"], 10, 64); err == nil {
		f.retry = time.Duration(ms) * time.Millisecond
	}
	if err := f.err(); err != nil {
		return err
	}
	return status.Error(f.code, f.message)
}

// err is the error that the fault was made of, nil if it is none of the closed set.
func (f fault) err() error {
	err := f.bare()
	item, ok := f.metadata["item"]
	if err == nil || !ok {
		return err
	}
	if i, perr := strconv.Atoi(item); perr == nil {
		return &ItemError{i, err}
	}
	return err
}

func (f fault) bare() error {
	switch f.code {
	case codes.DeadlineExceeded:
		return f.wrap(context.DeadlineExceeded)
	case codes.Canceled:
		return f.wrap(context.Canceled)
	}
	switch f.reason {
	case ReasonNotFound:
		return f.wrap(shard.ErrNotFound)
	case ReasonAlreadyExists:
		return f.wrap(shard.ErrAlreadyExists)
	case ReasonStaleToken:
		return f.wrap(shard.ErrStaleToken)
	case ReasonPaused:
		return f.wrap(shard.ErrPaused)
	case ReasonNotPaused:
		return f.wrap(shard.ErrNotPaused)
	case ReasonNotPending:
		return f.wrap(&shard.NotPendingError{State: raftfsm.State(carillonv1.State_value[f.metadata["state"]])})
	case ReasonOutcomeUnknown:
		return f.wrap(shard.ErrUnknown)
	case ReasonUnavailable:
		return f.wrap(shard.ErrUnavailable)
	case ReasonRevisionMismatch:
		return f.wrap(&shard.RevisionError{Expected: f.number("expected"), Actual: f.number("actual")})
	case ReasonInvalidField:
		return f.wrap(&shard.InvalidError{Field: f.metadata["field"], Value: f.metadata["value"], Limit: f.metadata["limit"]})
	case ReasonNotSupported:
		return f.wrap(&shard.NotSupportedError{Field: f.metadata["field"]})
	case ReasonLimitReached:
		return f.wrap(&shard.OverloadedError{Limit: f.metadata["limit"], RetryAfter: f.retry})
	case ReasonNotLeader:
		return f.wrap(&shard.NotLeaderError{Leader: f.metadata["leader"], Addr: f.metadata["address"]})
	}
	return nil
}

// wrap keeps the words of the other side where they say more than the error itself.
func (f fault) wrap(err error) error {
	if f.message == "" || f.message == err.Error() {
		return err
	}
	return fmt.Errorf("%w (%s)", err, f.message)
}

func (f fault) number(key string) uint64 {
	n, err := strconv.ParseUint(f.metadata[key], 10, 64)
	if err != nil {
		return 0 // another version's metadata: the reason still says enough
	}
	return n
}

// cutText makes a text fit to travel: valid UTF-8, at most limit bytes.
func cutText(s string, limit int) string {
	if len(s) > limit {
		s = s[:limit]
	}
	return strings.ToValidUTF8(s, "")
}
