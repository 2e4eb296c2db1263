package transport

import (
	"context"
	"errors"
	"fmt"
	"math/bits"
	"runtime/debug"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
)

// LatencyBuckets is the number of buckets of a latency histogram: bucket i counts what took under 2^i microseconds and
// is not in a bucket before; the last one counts all that took longer.
const LatencyBuckets = 27

// codeCount is the number of gRPC codes.
const codeCount = int(codes.Unauthenticated) + 1

// call counts the calls of one method; all fields but the name are atomic.
type call struct {
	name    string
	running atomic.Int64
	codes   [codeCount]atomic.Uint64
	nanos   atomic.Int64
	buckets [LatencyBuckets]atomic.Uint64
}

// counters counts what is not a call's; all fields are atomic.
type counters struct {
	connections, workers                  atomic.Int64
	refused, refusedWorkers, refusedHTTP  atomic.Uint64
	held                                  atomic.Uint64
	panics                                atomic.Uint64
	sent, done, stale, failed, badTokens  atomic.Uint64
	givenBack, notGivenBack, stalledSends atomic.Uint64
}

// Stats is what the server has counted.
type Stats struct {
	// Methods has each method in the order of the names.
	Methods []MethodStats
	Hub     HubStats
	// Connections are open; RefusedConnections were over the limit.
	Connections        int64
	RefusedConnections uint64
	// Workers are the open Work streams; RefusedWorkers were over the limit.
	Workers        int64
	RefusedWorkers uint64
	// RefusedHTTP counts the calls over HTTP that were over the limit.
	RefusedHTTP uint64
	// WaitingBatches wait to be let in; RefusedBatches had waited too long, HeldCalls came before the time that their caller had been told.
	WaitingBatches            int
	RefusedBatches, HeldCalls uint64
	// Sent counts the deliveries written to streams.
	Sent uint64
	// Done, Stale and Failed count the answers of workers by their outcome; BadTokens are those of Stale that no
	// delivery can have carried.
	Done, Stale, Failed, BadTokens uint64
	// GivenBack counts the deliveries of broken streams that were sent to their next attempt, NotGivenBack those that
	// fall to the end of their lease.
	GivenBack, NotGivenBack uint64
	// StalledStreams were ended because their consumer did not read.
	StalledStreams uint64
	// Panics of handlers; each is a defect and logged.
	Panics uint64
}

// MethodStats is what was counted of one method.
type MethodStats struct {
	// Method is the full name, "/carillon.v1.Timers/Schedule".
	Method string
	// Running calls have not ended yet.
	Running int64
	// Codes counts the ended calls by their gRPC code.
	Codes [codeCount]uint64
	// Total is the time of all ended unary calls together, Latency their histogram.
	Total   time.Duration
	Latency [LatencyBuckets]uint64
}

// Stats reads the counters.
func (s *Server) Stats() Stats {
	c := &s.counts
	stats := Stats{
		Hub:                s.hub.Stats(),
		Connections:        c.connections.Load(),
		RefusedConnections: c.refused.Load(),
		Workers:            c.workers.Load(),
		RefusedWorkers:     c.refusedWorkers.Load(),
		RefusedHTTP:        c.refusedHTTP.Load(),
		HeldCalls:          c.held.Load(),
		Sent:               c.sent.Load(),
		Done:               c.done.Load(),
		Stale:              c.stale.Load(),
		Failed:             c.failed.Load(),
		BadTokens:          c.badTokens.Load(),
		GivenBack:          c.givenBack.Load(),
		NotGivenBack:       c.notGivenBack.Load(),
		StalledStreams:     c.stalledSends.Load(),
		Panics:             c.panics.Load(),
	}
	stats.WaitingBatches, stats.RefusedBatches = s.desk.stats()
	for _, m := range s.methods {
		one := MethodStats{Method: m.name, Running: m.running.Load(), Total: time.Duration(m.nanos.Load())}
		for i := range m.codes {
			one.Codes[i] = m.codes[i].Load()
		}
		for i := range m.buckets {
			one.Latency[i] = m.buckets[i].Load()
		}
		stats.Methods = append(stats.Methods, one)
	}
	slices.SortFunc(stats.Methods, func(a, b MethodStats) int { return strings.Compare(a.Method, b.Method) })
	return stats
}

// unary goes around each unary call: a deadline, the counters, the status of its error.
func (s *Server) unary(ctx context.Context, req any, info *grpc.UnaryServerInfo, handler grpc.UnaryHandler) (any, error) {
	if _, ok := ctx.Deadline(); !ok {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, s.config.CallTimeout)
		defer cancel()
	}
	m := s.methods[info.FullMethod]
	m.running.Add(1)
	start := s.config.Now()
	var resp any
	err := s.guarded(info.FullMethod, func() (err error) {
		resp, err = handler(ctx, req)
		return err
	})
	m.took(s.config.Now().Sub(start))
	if err = s.ended(m, err); err != nil {
		return nil, err
	}
	return resp, nil
}

// stream goes around each stream. All but Work, which ends itself in good order, are cancelled when the server stops.
func (s *Server) stream(srv any, ss grpc.ServerStream, info *grpc.StreamServerInfo, handler grpc.StreamHandler) error {
	m := s.methods[info.FullMethod]
	m.running.Add(1)
	if _, ours := srv.(*deliveries); !ours {
		ctx, cancel := context.WithCancel(ss.Context())
		defer cancel()
		defer context.AfterFunc(s.stopping, cancel)()
		ss = &endingStream{ss, ctx}
	}
	return s.ended(m, s.guarded(info.FullMethod, func() error { return handler(srv, ss) }))
}

// endingStream is a stream whose context ends with the server.
type endingStream struct {
	grpc.ServerStream
	ctx context.Context
}

func (s *endingStream) Context() context.Context { return s.ctx }

// errPanic is INTERNAL for the caller; what happened is in the log.
var errPanic = errors.New("the server has a defect; its log says more")

// guarded turns a panic into an error, so that one bad call does not end the node.
func (s *Server) guarded(where string, f func() error) (err error) {
	defer func() {
		if p := recover(); p != nil {
			s.counts.panics.Add(1)
			s.config.Logger.Error("panic in a gRPC handler", "in", where, "panic", fmt.Sprint(p), "stack", string(debug.Stack()))
			err = errPanic
		}
	}()
	return f()
}

// ended counts the end of a call and gives the error its status.
func (s *Server) ended(m *call, err error) error {
	m.running.Add(-1)
	status := StatusOf(err)
	m.codes[min(int(status.Code()), codeCount-1)].Add(1)
	if status.Code() == codes.Internal && !errors.Is(err, errPanic) {
		s.config.Logger.Error("gRPC call failed", "method", m.name, "err", err)
	}
	return status.Err()
}

func (m *call) took(d time.Duration) {
	d = max(d, 0) // a wall clock may run back
	m.nanos.Add(int64(d))
	m.buckets[min(bits.Len64(uint64(d.Microseconds())), LatencyBuckets-1)].Add(1)
}
