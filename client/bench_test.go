package client_test

import (
	"context"
	"fmt"
	"net"
	"sync/atomic"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/carillon-timers/carillon/client"
	carillonv1 "github.com/carillon-timers/carillon/proto/carillon/v1"
	"github.com/carillon-timers/carillon/proto/codec"
)

// quickNode answers at once, with as little work as it can: what is measured is the client.
type quickNode struct {
	carillonv1.UnimplementedTimersServer
	carillonv1.UnimplementedDeliveriesServer
	carillonv1.UnimplementedClusterServer
	addr    string
	results []*carillonv1.ScheduleResult
	cancels []*carillonv1.CancelResult
}

func (n *quickNode) Members(context.Context, *carillonv1.MembersRequest) (*carillonv1.MembersResponse, error) {
	return &carillonv1.MembersResponse{Shards: 16, Members: []*carillonv1.Member{{Id: "n1", ClientAddr: n.addr, Alive: true}}}, nil
}

func (n *quickNode) Shards(context.Context, *carillonv1.ShardsRequest) (*carillonv1.ShardsResponse, error) {
	r := &carillonv1.ShardsResponse{}
	for i := range 16 {
		r.Shards = append(r.Shards, &carillonv1.Shard{Id: int32(i), Leader: "n1", Epoch: 1})
	}
	return r, nil
}

func (n *quickNode) ScheduleBatch(_ context.Context, r *carillonv1.ScheduleBatchRequest) (*carillonv1.ScheduleBatchResponse, error) {
	return &carillonv1.ScheduleBatchResponse{Results: n.results[:len(r.Items)]}, nil
}

func (n *quickNode) CancelBatch(_ context.Context, r *carillonv1.CancelBatchRequest) (*carillonv1.CancelBatchResponse, error) {
	return &carillonv1.CancelBatchResponse{Results: n.cancels[:len(r.Items)]}, nil
}

// Work sends what it has credit for.
func (n *quickNode) Work(s carillonv1.Deliveries_WorkServer) error {
	token, payload := make([]byte, 60), make([]byte, 100)
	next := 0
	for {
		m, err := s.Recv()
		if err != nil {
			return nil
		}
		answer := &carillonv1.WorkResponse{}
		for _, t := range append(m.Acks, m.Returns...) {
			answer.Settled = append(answer.Settled, &carillonv1.Settled{Token: t, Outcome: carillonv1.SettleOutcome_SETTLE_OUTCOME_DONE})
		}
		now := timestamppb.Now()
		end := &timestamppb.Timestamp{Seconds: now.Seconds + 30}
		for range m.Credits {
			next++
			answer.Deliveries = append(answer.Deliveries, &carillonv1.Delivery{
				Namespace: "default", Id: fmt.Sprintf("bench-abcdefgh/%09d", next), Queue: "bench-abcdefgh", Payload: payload, Due: now, HandedOut: now,
				LeaseEnd: end, Token: fmt.Appendf(nil, "%s%012d", token[:48], next), Epoch: 1, Revision: int64(next), Attempt: 1,
			})
		}
		if err := s.Send(answer); err != nil {
			return err
		}
	}
}

// quickClient is a client of such a node, over the loopback.
func quickClient(b *testing.B) *client.Client {
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		b.Fatal(err)
	}
	n := &quickNode{addr: ln.Addr().String()}
	at := timestamppb.Now()
	for range 1000 {
		n.results = append(n.results, &carillonv1.ScheduleResult{Outcome: &carillonv1.ScheduleResult_Ok{
			Ok: &carillonv1.ScheduleResponse{Due: at, Revision: 1 << 40, Shard: 3}}})
		n.cancels = append(n.cancels, &carillonv1.CancelResult{Outcome: &carillonv1.CancelResult_Ok{
			Ok: &carillonv1.CancelResponse{Outcome: carillonv1.CancelOutcome_CANCEL_OUTCOME_CANCELLED, Revision: 1 << 40}}})
	}
	server := grpc.NewServer(grpc.ForceServerCodecV2(codec.New()))
	carillonv1.RegisterTimersServer(server, n)
	carillonv1.RegisterDeliveriesServer(server, n)
	carillonv1.RegisterClusterServer(server, n)
	go server.Serve(ln)
	c, err := client.Dial(b.Context(), client.Config{Addrs: []string{n.addr}})
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() {
		c.Close()
		server.Stop()
	})
	return c
}

func quickTimer(i int) client.Timer {
	return client.Timer{ID: fmt.Sprintf("bench-abcdefgh/%09d", i), Queue: "bench-abcdefgh", Due: time.Now().Add(time.Hour), Payload: make([]byte, 100)}
}

// BenchmarkScheduleBatch is a call of 500 timers; ns, bytes and allocations are those of one timer, with those of the node.
func BenchmarkScheduleBatch(b *testing.B) {
	c := quickClient(b)
	timers := make([]client.Timer, 500)
	for i := range timers {
		timers[i] = quickTimer(i)
	}
	b.ReportAllocs()
	b.ResetTimer()
	for n := 0; n < b.N; n += len(timers) {
		if _, err := c.ScheduleBatch(b.Context(), timers); err != nil {
			b.Fatal(err)
		}
	}
}

// BenchmarkSchedule is one timer a call, from 64 callers.
func BenchmarkSchedule(b *testing.B) {
	c := quickClient(b)
	t := quickTimer(1)
	b.ReportAllocs()
	b.SetParallelism(32)
	b.RunParallel(func(pb *testing.PB) {
		for pb.Next() {
			if _, err := c.Schedule(b.Context(), t); err != nil {
				b.Error(err)
				return
			}
		}
	})
}

// BenchmarkCancelBatch is BenchmarkScheduleBatch for cancels.
func BenchmarkCancelBatch(b *testing.B) {
	c := quickClient(b)
	items := make([]client.Cancellation, 500)
	for i := range items {
		items[i].ID = quickTimer(i).ID
	}
	b.ReportAllocs()
	b.ResetTimer()
	for n := 0; n < b.N; n += len(items) {
		if _, err := c.CancelBatch(b.Context(), items); err != nil {
			b.Fatal(err)
		}
	}
}

// BenchmarkWork is deliveries to handlers that do nothing, each acked and settled.
func BenchmarkWork(b *testing.B) {
	c := quickClient(b)
	b.ReportAllocs()
	ctx, cancel := context.WithCancel(b.Context())
	defer cancel()
	var done atomic.Int64
	err := c.Work(ctx, "bench-abcdefgh", func(context.Context, client.Delivery) error {
		if done.Add(1) == int64(b.N) {
			cancel()
		}
		return nil
	}, client.WorkOptions{Concurrency: 256})
	if err != nil {
		b.Fatal(err)
	}
}
