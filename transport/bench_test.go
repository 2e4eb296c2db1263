package transport

import (
	"context"
	"fmt"
	"net"
	"sync/atomic"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	carillonv1 "github.com/carillon-timers/carillon/proto/carillon/v1"
	"github.com/carillon-timers/carillon/raftfsm"
	"github.com/carillon-timers/carillon/shard/executor"
)

// endlessSource always has more.
type endlessSource struct {
	record *raftfsm.Record
	next   atomic.Uint64
}

func (s *endlessSource) Shard() uint32 { return 0 }

func (s *endlessSource) Take(_ executor.Queue, limit int) []executor.Delivery {
	out := make([]executor.Delivery, limit)
	first := s.next.Add(uint64(limit)) - uint64(limit)
	for i := range out {
		out[i] = executor.Delivery{Record: s.record, LeaseEnd: 1 << 50, Token: raftfsm.Token{
			Epoch: 1, Revision: first + uint64(i), Namespace: s.record.Namespace, ID: s.record.ID}}
	}
	return out
}

// nothingBackend says OK to all.
type nothingBackend struct{ fakeBackend }

func (*nothingBackend) Apply(_ context.Context, cmds []*raftfsm.Command) []Outcome {
	return make([]Outcome, len(cmds))
}

// serveLoopback serves on a port of the loopback and gives one connection with our codec.
func serveLoopback(b *testing.B) (*Server, *grpc.ClientConn) {
	b.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		b.Fatal(err)
	}
	s := NewServer(testConfig(), &nothingBackend{})
	ctx, cancel := context.WithCancel(context.Background())
	ran := make(chan error, 1)
	go func() { ran <- s.Run(ctx, ln) }()
	conn, err := grpc.NewClient(ln.Addr().String(), grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithDefaultCallOptions(grpc.ForceCodecV2(newCodec())))
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() {
		if err := conn.Close(); err != nil {
			b.Error(err)
		}
		cancel()
		if err := <-ran; err != nil {
			b.Error(err)
		}
	})
	return s, conn
}

// BenchmarkWork is deliveries through the hub and one stream, each acked and settled.
func BenchmarkWork(b *testing.B) {
	for _, payload := range []int{64, 4096} {
		b.Run(fmt.Sprintf("payload=%d", payload), func(b *testing.B) {
			s, conn := serveLoopback(b)
			src := &endlessSource{record: &raftfsm.Record{Namespace: "default", ID: "order-42/expire", Queue: "q", Payload: make([]byte, payload)}}
			s.Hub().Ready(src, queueNamed("q"))
			w, err := carillonv1.NewDeliveriesClient(conn).Work(b.Context())
			if err != nil {
				b.Fatal(err)
			}
			if err := w.Send(&carillonv1.WorkRequest{Start: &carillonv1.WorkStart{Queue: "q"}, Credits: 4096}); err != nil {
				b.Fatal(err)
			}
			b.ReportAllocs()
			for done := 0; done < b.N; {
				msg, err := w.Recv()
				if err != nil {
					b.Fatal(err)
				}
				if len(msg.Deliveries) == 0 {
					continue
				}
				back := &carillonv1.WorkRequest{Credits: int32(len(msg.Deliveries))}
				for _, d := range msg.Deliveries {
					back.Acks = append(back.Acks, d.Token)
				}
				if err := w.Send(back); err != nil {
					b.Fatal(err)
				}
				done += len(msg.Deliveries)
			}
			b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "deliveries/s")
		})
	}
}

// BenchmarkSchedule is unary calls, with a backend that does nothing.
func BenchmarkSchedule(b *testing.B) {
	for _, callers := range []int{1, 64} {
		b.Run(fmt.Sprintf("callers=%d", callers), func(b *testing.B) {
			_, conn := serveLoopback(b)
			client := carillonv1.NewTimersClient(conn)
			b.ReportAllocs()
			b.SetParallelism(max(1, callers/2)) // for each of two cores
			b.RunParallel(func(pb *testing.PB) {
				r := &carillonv1.ScheduleRequest{Timer: goodTimer("order-42/expire"), RequestId: "r"}
				for pb.Next() {
					if _, err := client.Schedule(b.Context(), r); err != nil {
						b.Error(err)
						return
					}
				}
			})
			b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "calls/s")
		})
	}
}

// BenchmarkScheduleBatch is batches of 1,000.
func BenchmarkScheduleBatch(b *testing.B) {
	_, conn := serveLoopback(b)
	client := carillonv1.NewTimersClient(conn)
	r := &carillonv1.ScheduleBatchRequest{}
	for i := range 1000 {
		r.Items = append(r.Items, &carillonv1.ScheduleRequest{Timer: goodTimer(fmt.Sprint("order-", i)), RequestId: "r"})
	}
	b.ReportAllocs()
	for b.Loop() {
		if _, err := client.ScheduleBatch(b.Context(), r); err != nil {
			b.Fatal(err)
		}
	}
	b.ReportMetric(float64(b.N)*1000/b.Elapsed().Seconds(), "timers/s")
}

// BenchmarkHub is take alone, without a stream.
func BenchmarkHub(b *testing.B) {
	h, src := NewHub(), &endlessSource{record: &raftfsm.Record{Namespace: "default", ID: "x"}}
	h.Ready(src, queueNamed("q"))
	s := h.subscribe(queueNamed("q"))
	out := make([]executor.Delivery, 0, takeMax)
	b.ReportAllocs()
	for n := 0; n < b.N; n += takeMax {
		h.grant(s, takeMax)
		out = h.take(s, out[:0])
	}
}
