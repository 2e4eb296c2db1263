package transport

import (
	"context"
	"errors"
	"fmt"
	"reflect"
	"strings"
	"testing"
	"time"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"github.com/carillon-timers/carillon/raftfsm"
	"github.com/carillon-timers/carillon/shard"
)

// statusCases is the whole set of errors that a caller can act on.
var statusCases = []struct {
	err    error
	code   codes.Code
	reason string
}{
	{shard.ErrNotFound, codes.NotFound, "TIMER_NOT_FOUND"},
	{shard.ErrAlreadyExists, codes.AlreadyExists, "TIMER_ALREADY_EXISTS"},
	{shard.ErrStaleToken, codes.FailedPrecondition, "STALE_TOKEN"},
	{shard.ErrUnknown, codes.Unknown, "OUTCOME_UNKNOWN"},
	{shard.ErrUnavailable, codes.Unavailable, "SHARD_UNAVAILABLE"},
	{&shard.RevisionError{Expected: 4, Actual: 1<<63 + 5}, codes.FailedPrecondition, "REVISION_MISMATCH"},
	{&shard.InvalidError{Field: "id", Value: `""`, Limit: "1 to 255 bytes"}, codes.InvalidArgument, "INVALID_FIELD"},
	{&shard.NotSupportedError{Field: "repeat"}, codes.Unimplemented, "NOT_SUPPORTED"},
	{&shard.OverloadedError{Limit: "pending of shard 3", RetryAfter: 250 * time.Millisecond}, codes.ResourceExhausted, "LIMIT_REACHED"},
	{&shard.NotLeaderError{Leader: "n2", Addr: "10.0.0.2:7400"}, codes.Unavailable, "NOT_LEADER"},
	{&shard.NotLeaderError{}, codes.Unavailable, "NOT_LEADER"},
	{shard.ErrPaused, codes.FailedPrecondition, "TIMER_PAUSED"},
	{shard.ErrNotPaused, codes.FailedPrecondition, "TIMER_NOT_PAUSED"},
	{&shard.NotPendingError{State: raftfsm.Fired}, codes.FailedPrecondition, "TIMER_NOT_PENDING"},
	{context.DeadlineExceeded, codes.DeadlineExceeded, "OUTCOME_UNKNOWN"},
	{context.Canceled, codes.Canceled, "OUTCOME_UNKNOWN"},
}

// same says whether got stands for the same error as want: the same sentinel, or the same type with the same fields.
func same(got, want error) bool {
	if errors.Is(got, want) {
		return true
	}
	for err := got; err != nil; err = errors.Unwrap(err) {
		if reflect.DeepEqual(err, want) {
			return true
		}
	}
	return false
}

func TestEachErrorGoesToItsStatusAndBack(t *testing.T) {
	t.Parallel()
	for _, c := range statusCases {
		for _, err := range []error{c.err, fmt.Errorf("propose to shard 3: %w", c.err)} {
			wire, merr := proto.Marshal(StatusOf(err).Proto())
			if merr != nil {
				t.Fatal(merr)
			}
			p := StatusOf(nil).Proto()
			if uerr := proto.Unmarshal(wire, p); uerr != nil {
				t.Fatal(uerr)
			}
			s := status.FromProto(p)
			info := infoOf(t, s)
			if s.Code() != c.code || info.Reason != c.reason || info.Domain != "carillon" || s.Message() != err.Error() {
				t.Errorf("%v: got %v %v %q, want %v %s", err, s.Code(), info, s.Message(), c.code, c.reason)
			}
			if back := ErrorOf(s); !same(back, c.err) || !strings.Contains(back.Error(), c.err.Error()) {
				t.Errorf("%v came back as %v", err, back)
			}
			item := itemErrorOf(err)
			if codes.Code(item.Code) != c.code || item.Reason != c.reason || item.Message != err.Error() {
				t.Errorf("%v as an item: got %v", err, item)
			}
			if back := ErrorOfItem(item); !same(back, c.err) {
				t.Errorf("%v came back from an item as %v", err, back)
			}
		}
	}
}

// The error of an atomic batch names the item and stays the error that it is.
func TestItemOfAnAtomicBatch(t *testing.T) {
	t.Parallel()
	s := StatusOf(&ItemError{3, &shard.RevisionError{Expected: 4, Actual: 5}})
	info := infoOf(t, s)
	if info.Reason != "REVISION_MISMATCH" || info.Metadata["item"] != "3" || info.Metadata["actual"] != "5" {
		t.Errorf("got %v", info)
	}
	var item *ItemError
	var revision *shard.RevisionError
	if err := ErrorOf(s); !errors.As(err, &item) || item.Item != 3 || !errors.As(err, &revision) || revision.Actual != 5 {
		t.Errorf("came back as %v", err)
	}
}

func infoOf(t *testing.T, s *status.Status) *errdetails.ErrorInfo {
	t.Helper()
	for _, d := range s.Details() {
		if info, ok := d.(*errdetails.ErrorInfo); ok {
			return info
		}
	}
	t.Fatalf("%v has no ErrorInfo", s)
	return nil
}

func TestOverloadSaysWhenToRetry(t *testing.T) {
	t.Parallel()
	for _, d := range StatusOf(&shard.OverloadedError{Limit: "x", RetryAfter: 1500 * time.Millisecond}).Details() {
		if retry, ok := d.(*errdetails.RetryInfo); ok {
			if got := retry.RetryDelay.AsDuration(); got != 1500*time.Millisecond {
				t.Errorf("got %v, want 1.5 s", got)
			}
			return
		}
	}
	t.Error("no RetryInfo")
}

func TestStatusOfOtherErrors(t *testing.T) {
	t.Parallel()
	if got := StatusOf(nil).Code(); got != codes.OK {
		t.Errorf("nil: %v", got)
	}
	if got := ErrorOf(status.New(codes.OK, "")); got != nil {
		t.Errorf("OK came back as %v", got)
	}
	if got := ErrorOfItem(nil); got != nil {
		t.Errorf("no item error came back as %v", got)
	}
	if got := StatusOf(errors.New("disk on fire")).Code(); got != codes.Internal {
		t.Errorf("an unknown error: %v", got)
	}
	if got := StatusOf(fmt.Errorf("asked: %w", status.Error(codes.DataLoss, "x"))).Code(); got != codes.DataLoss {
		t.Errorf("a status: %v", got)
	}
	if got := status.Code(ErrorOf(status.New(codes.PermissionDenied, "no"))); got != codes.PermissionDenied {
		t.Errorf("a status that stands for none of ours: %v", got)
	}
	// The unknown outcome counts even where the deadline was its cause: the caller must keep the request ID.
	if got := infoOf(t, StatusOf(fmt.Errorf("%w: %w", shard.ErrUnknown, context.DeadlineExceeded))); got.Reason != "OUTCOME_UNKNOWN" {
		t.Errorf("got %v", got)
	}
	long := StatusOf(&shard.InvalidError{Field: strings.Repeat("é", 5000) + "\xff", Value: "\xfe"})
	if _, err := proto.Marshal(long.Proto()); err != nil || len(long.Message()) > maxStatusBytes {
		t.Errorf("a long text that is not UTF-8: %d bytes, %v", len(long.Message()), err)
	}
}
