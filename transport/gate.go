package transport

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"slices"
	"sync/atomic"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/mem"
	"google.golang.org/grpc/peer"
	"google.golang.org/grpc/status"

	carillonv1 "github.com/carillon-timers/carillon/proto/carillon/v1"
	"github.com/carillon-timers/carillon/raftfsm"
	"github.com/carillon-timers/carillon/shard"
)

// This file brings the batches to the desk before they are decoded.

// gated are the methods that have to pass the desk.
var gated = []string{"ScheduleBatch", "CancelBatch"}

// timersDesc is the service of timers with the gate in front of its batches.
func (s *Server) timersDesc() *grpc.ServiceDesc {
	desc := carillonv1.Timers_ServiceDesc
	desc.Methods = slices.Clone(desc.Methods)
	for i := range desc.Methods {
		m := &desc.Methods[i]
		if slices.Contains(gated, m.MethodName) {
			m.Handler = s.gate("/"+desc.ServiceName+"/"+m.MethodName, m.Handler)
		}
	}
	return &desc
}

// gate is a method's handler behind the desk.
func (s *Server) gate(method string, handler grpc.MethodHandler) grpc.MethodHandler {
	info := &grpc.UnaryServerInfo{FullMethod: method}
	return func(srv any, ctx context.Context, dec func(any) error, interceptor grpc.UnaryServerInterceptor) (any, error) {
		refuse := func(err error) (any, error) {
			return interceptor(ctx, nil, info, func(context.Context, any) (any, error) { return nil, err })
		}
		caller := callerOf(ctx, method)
		if err := s.hold(ctx, caller); err != nil {
			return refuse(err)
		}
		raw := &rawMessage{}
		defer raw.free()
		if err := dec(raw); err != nil {
			return nil, err
		}
		if raw.size() > lightBytes {
			v, err := s.desk.enter(ctx, s.stopping.Done(), raw.items(), raw.size())
			if err != nil {
				caller.note(s.config.Now(), err)
				return refuse(err)
			}
			defer v.leave()
			v.encoded = raw.data.Len()
			ctx = context.WithValue(ctx, visitKey{}, v)
		}
		resp, err := handler(srv, ctx, raw.decode, interceptor)
		caller.note(s.config.Now(), err)
		return resp, err
	}
}

// visitKey is the key of a *visit in the context of its call.
type visitKey struct{}

// decoded ends the turn of a call that has been decoded and checked.
func decoded(ctx context.Context) {
	if v, ok := ctx.Value(visitKey{}).(*visit); ok {
		v.endTurn()
	}
}

// encodedSize is the size of a batch in protobuf: as it came, or, over HTTP, as it would have come.
func encodedSize(ctx context.Context, batch interface{ SizeVT() int }) int {
	if v, ok := ctx.Value(visitKey{}).(*visit); ok && v.encoded > 0 {
		return v.encoded
	}
	return batch.SizeVT()
}

// maxHeld is how many calls of one method are held at one time for one connection; more are refused at once. What they have sent by then lies
// in memory, as far as the window of their stream goes.
const maxHeld = 256

// hold lets a caller wait that was told to come back later and did not: its call is not read before.
func (s *Server) hold(ctx context.Context, c *caller) error {
	wait := c.left(s.config.Now())
	if wait == 0 {
		return nil
	}
	s.counts.held.Add(1)
	defer c.held.Add(-1)
	if c.held.Add(1) > maxHeld {
		return &shard.OverloadedError{Limit: fmt.Sprintf("%d calls of this connection came back before their time", maxHeld), RetryAfter: wait}
	}
	timer := time.NewTimer(wait)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-s.stopping.Done():
		return errStopping
	case <-ctx.Done():
		return ctx.Err()
	}
}

// caller is who calls one method from the other end of a connection. A nil one is never held.
type caller struct {
	// notBefore is when it may come back, in Unix nanoseconds; 0 if it was not refused.
	notBefore atomic.Int64
	// held counts the calls that are held.
	held atomic.Int64
}

// left is how long the caller has yet to wait: at most lastRetry. More would say that the clock was set back, which ends the wait.
func (c *caller) left(now time.Time) time.Duration {
	if c == nil {
		return 0
	}
	if wait := time.Duration(c.notBefore.Load() - now.UnixNano()); wait > 0 && wait <= lastRetry {
		return wait
	}
	return 0
}

// note remembers a refusal of the whole call, unless it was told of a longer wait before.
func (c *caller) note(now time.Time, err error) {
	if c == nil || err == nil {
		return
	}
	var overload *shard.OverloadedError
	if errors.As(err, &overload) || errors.As(ErrorOf(status.Convert(err)), &overload) {
		c.notBefore.Store(now.Add(max(c.left(now), min(overload.RetryAfter, lastRetry))).UnixNano())
	}
}

// callerOf is nil for a call that came over HTTP.
func callerOf(ctx context.Context, method string) *caller {
	if p, ok := peer.FromContext(ctx); ok {
		if addr, ok := p.Addr.(*callerAddr); ok {
			return addr.caller(method)
		}
	}
	return nil
}

// rawMessage is a request as it came: in protobuf or, over HTTP, in JSON.
type rawMessage struct {
	data mem.BufferSlice
	json []byte
}

func (r *rawMessage) size() int { return r.data.Len() + len(r.json) }

func (r *rawMessage) free() {
	r.data.Free()
	r.data, r.json = nil, nil
}

// decode makes the request of it, and can do so once.
func (r *rawMessage) decode(v any) error {
	defer r.free()
	if r.json != nil {
		return decodeJSON(r.json, v)
	}
	if err := newCodec().Unmarshal(r.data, v); err != nil {
		return status.Errorf(codes.Internal, "grpc: failed to unmarshal the received message: %v", err)
	}
	return nil
}

// jsonItemBytes is about the least that an item takes in JSON.
const jsonItemBytes = 64

// items is about how many items the batch has, at most raftfsm.MaxBatchItems, since more are refused: from the size of those in its first buffer, so that nothing is copied for it.
func (r *rawMessage) items() int {
	if r.json != nil {
		return min(max(1, len(r.json)/jsonItemBytes), raftfsm.MaxBatchItems)
	}
	var first []byte
	if len(r.data) > 0 {
		first = r.data[0].ReadOnlyData()
	}
	n, seen := 0, 0
	for b := first; len(b) > 0; n++ {
		tag, k := binary.Uvarint(b)
		if k <= 0 || tag&7 != 2 { // not a message; what is no protobuf the decoder finds out
			break
		}
		size, l := binary.Uvarint(b[k:])
		if l <= 0 || size > uint64(len(b)-k-l) {
			break
		}
		b = b[k+l+int(size):]
		seen = len(first) - len(b)
	}
	if n == 0 {
		return 1
	}
	return min(n*r.size()/seen, raftfsm.MaxBatchItems)
}
