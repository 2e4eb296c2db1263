package node

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/carillon-timers/carillon/shard"
	"github.com/carillon-timers/carillon/transport/peer"
)

// Methods of the peer port. A number never gets another meaning.
const (
	// methodPledge: logv1.Pledge -> logv1.PledgeGiven.
	methodPledge peer.Method = 1
	// methodRegister: logv1.DirectoryMember -> logv1.Registered.
	methodRegister peer.Method = 2
	// methodReport: nothing -> logv1.NodeReport.
	methodReport peer.Method = 3
	// methodApply, of a shard: logv1.CommandList -> logv1.ResultList.
	methodApply peer.Method = 4
	// methodGet, of a shard: logv1.Read -> logv1.TimerRead.
	methodGet peer.Method = 5
	// methodList, of a shard: logv1.PageRead -> logv1.Page.
	methodList peer.Method = 6
	// methodForecast, of a shard: logv1.ForecastRead -> logv1.ForecastCounts.
	methodForecast peer.Method = 7
	// methodExtend, of a shard: logv1.ExtendLease -> logv1.LeaseExtended.
	methodExtend peer.Method = 8
)

// Kinds of errors on the peer port. A number never gets another meaning.
const (
	kindOther       uint8 = 1
	kindNotLeader   uint8 = 2 // detail: leader, zero byte, client address
	kindOverloaded  uint8 = 3 // detail: retry-after in ms (uvarint), limit
	kindUnknown     uint8 = 4
	kindUnavailable uint8 = 5
	kindNotFound    uint8 = 6
	// kindRefused: the answer will stay the same; the asking node must not go on.
	kindRefused uint8 = 7
	kindInvalid uint8 = 8 // detail: field, zero byte, value, zero byte, limit
)

// errRefused: another node has refused this one for good.
var errRefused = errors.New("refused by the cluster")

// toRemote gives an error the form in which it travels.
func toRemote(err error) error {
	var notLeader *shard.NotLeaderError
	var overloaded *shard.OverloadedError
	var bad *shard.InvalidError
	remote := &peer.RemoteError{Kind: kindOther, Message: err.Error()}
	switch {
	case errors.As(err, &notLeader):
		remote.Kind, remote.Detail = kindNotLeader, []byte(notLeader.Leader+"\x00"+notLeader.Addr)
	case errors.As(err, &overloaded):
		remote.Kind = kindOverloaded
		remote.Detail = append(binary.AppendUvarint(nil, uint64(overloaded.RetryAfter.Milliseconds())), overloaded.Limit...)
	case errors.As(err, &bad):
		remote.Kind, remote.Detail = kindInvalid, []byte(strings.Join([]string{bad.Field, bad.Value, bad.Limit}, "\x00"))
	case errors.Is(err, shard.ErrUnknown):
		remote.Kind = kindUnknown
	case errors.Is(err, shard.ErrUnavailable), errors.Is(err, context.Canceled), errors.Is(err, context.DeadlineExceeded):
		// A shard returns the context's error only while nothing has been sent.
		remote.Kind = kindUnavailable
	case errors.Is(err, shard.ErrNotFound):
		remote.Kind = kindNotFound
	case errors.Is(err, errRefused), errors.Is(err, errOtherCluster), errors.Is(err, errDiskChanged):
		remote.Kind = kindRefused
	}
	return remote
}

// fromRemote turns what travelled back into the error that it was; other errors stay as they are.
func fromRemote(err error) error {
	var remote *peer.RemoteError
	if !errors.As(err, &remote) {
		return err
	}
	switch remote.Kind {
	case kindNotLeader:
		leader, addr, _ := strings.Cut(string(remote.Detail), "\x00")
		return &shard.NotLeaderError{Leader: leader, Addr: addr}
	case kindOverloaded:
		ms, n := binary.Uvarint(remote.Detail)
		if n <= 0 {
			return &shard.OverloadedError{Limit: remote.Message, RetryAfter: time.Second}
		}
		return &shard.OverloadedError{Limit: string(remote.Detail[n:]), RetryAfter: time.Duration(ms) * time.Millisecond}
	case kindInvalid:
		if parts := strings.SplitN(string(remote.Detail), "\x00", 3); len(parts) == 3 {
			return &shard.InvalidError{Field: parts[0], Value: parts[1], Limit: parts[2]}
		}
	case kindUnknown:
		return shard.ErrUnknown
	case kindUnavailable:
		return shard.ErrUnavailable
	case kindNotFound:
		return shard.ErrNotFound
	case kindRefused:
		return &refusal{remote.Message}
	}
	return err
}

// refusal carries the words of the node that refused.
type refusal struct{ words string }

func (r *refusal) Error() string { return r.words }

// Is makes it an errRefused.
func (r *refusal) Is(target error) bool { return target == errRefused }

// writeError says of a write that was sent to another node whether it may have been applied.
func writeError(err error) error {
	var remote *peer.RemoteError
	if errors.As(err, &remote) {
		switch remote.Kind {
		case kindNotLeader, kindOverloaded, kindUnknown, kindUnavailable, kindNotFound, kindInvalid:
			return fromRemote(err)
		case peer.KindBusy:
			return &shard.OverloadedError{Limit: remote.Message, RetryAfter: busyRetry}
		case peer.KindNoMethod, peer.KindNotMember, peer.KindNoGroup:
			return fmt.Errorf("%w: %w", shard.ErrUnavailable, err)
		}
		return fmt.Errorf("%w: %w", shard.ErrUnknown, err)
	}
	var call *peer.CallError
	if errors.As(err, &call) && !call.Sent {
		return fmt.Errorf("%w: %w", shard.ErrUnavailable, err)
	}
	return fmt.Errorf("%w: %w", shard.ErrUnknown, err)
}

// readError is the same for a read, which may always be tried again.
func readError(err error) error {
	err = writeError(err)
	if errors.Is(err, shard.ErrUnknown) {
		return fmt.Errorf("%w: %s", shard.ErrUnavailable, err.Error())
	}
	return err
}

// busyRetry is when a node that serves all the calls that it can is asked again.
const busyRetry = 50 * time.Millisecond
