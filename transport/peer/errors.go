package peer

import (
	"errors"
	"fmt"
)

// The errors that a caller can tell apart with errors.Is, most of them inside a *CallError.
var (
	// ErrClosed: the mux does not run, or runs no longer.
	ErrClosed = errors.New("peer mux is not running")
	// ErrSelf: the call is addressed to this node itself.
	ErrSelf = errors.New("the address is this node's own")
	// ErrUnknownNode: Resolve knows no address.
	ErrUnknownNode = errors.New("no address known for the node")
	// ErrConnLost: the connection broke while the call was pending.
	ErrConnLost = errors.New("peer connection lost")
	// ErrQueueFull: too much waits to be sent to the node; nothing of the call was sent.
	ErrQueueFull = errors.New("peer send queue is full")
	// ErrTooLarge: the message is larger than MaxMessage.
	ErrTooLarge = errors.New("peer message too large")
	// ErrBadFrame: what was read is not the protocol, or is damaged; the connection is closed.
	ErrBadFrame = errors.New("bad frame")
)

var (
	errDraining = errors.New("peer connection is draining")
	errReplaced = errors.New("peer connection replaced by a better one")
	errSilent   = errors.New("peer is silent")
	errStalled  = errors.New("snapshot transfer makes no progress")
)

// CallError says why a call got no answer from the node.
type CallError struct {
	// Node is the node's ID or, from CallAddr, the address.
	Node string
	// Sent says that some of the request may have reached the node, so that it may have had its effect. If it is false,
	// the node has seen nothing.
	Sent bool
	// Err is the reason: one of this package's errors, a *HandshakeError, or the context's.
	Err error
}

func (e *CallError) Error() string {
	if e.Sent {
		return fmt.Sprintf("call %s: no answer: %v", e.Node, e.Err)
	}
	return fmt.Sprintf("call %s: not sent: %v", e.Node, e.Err)
}

// Unwrap returns the reason.
func (e *CallError) Unwrap() error { return e.Err }

// Kinds of a RemoteError that this package sets itself. Handlers use 0 to 239.
const (
	// KindPlain: the handler returned an error that is no *RemoteError.
	KindPlain uint8 = 0
	// KindBusy: a queue or the handlers of the node or group are at their limit; the request was not served.
	KindBusy uint8 = 240
	// KindNoMethod: nobody handles the method; the request was not served.
	KindNoMethod uint8 = 241
	// KindNotMember: one side belongs to no cluster yet, and the request is not one for joining; it was not served.
	KindNotMember uint8 = 242
	// KindNoGroup: the node has no such Raft group open; the request was not served.
	KindNoGroup uint8 = 243
	// KindPanic: the handler panicked; what it did is unknown.
	KindPanic uint8 = 244
	// KindTooLarge: the answer is larger than MaxMessage; the request was served.
	KindTooLarge uint8 = 245
)

// RemoteError is an error that the other node answered. A handler returns one to set its kind and detail.
type RemoteError struct {
	Kind    uint8
	Message string
	// Detail is the handler's own, at most 64 KiB.
	Detail []byte
}

func (e *RemoteError) Error() string { return e.Message }

// HandshakeError says why one end refused the connection.
type HandshakeError struct {
	// Code is one of the Refused constants.
	Code uint8
	// Message names both sides' values.
	Message string
}

func (e *HandshakeError) Error() string { return "handshake refused: " + e.Message }

// Reasons of a HandshakeError.
const (
	// RefusedVersion: the two ends have no protocol version in common.
	RefusedVersion uint8 = 1
	// RefusedCluster: the two ends belong to different clusters.
	RefusedCluster uint8 = 2
	// RefusedNode: the node that answers is not the one that was addressed.
	RefusedNode uint8 = 3
	// RefusedSelf: the node has dialled itself, or another process uses its ID.
	RefusedSelf uint8 = 4
)
