package node

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"net"
	"slices"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/protobuf/types/known/timestamppb"

	carillonv1 "github.com/carillon-timers/carillon/proto/carillon/v1"
	logv1 "github.com/carillon-timers/carillon/proto/carillonlog/v1"
	"github.com/carillon-timers/carillon/raftfsm"
	"github.com/carillon-timers/carillon/transport"
)

// stateShard is the state of a shard without its group.
type stateShard struct {
	fakeShard
	fsm *raftfsm.FSM
}

func (s *stateShard) List(_ context.Context, q raftfsm.ListQuery) (raftfsm.ListPage, error) {
	return s.fsm.List(q), nil
}

func (s *stateShard) Forecast(_ context.Context, q raftfsm.ForecastQuery) ([]raftfsm.ForecastRow, error) {
	return s.fsm.Forecast(q)
}

const (
	benchShards = 16
	benchTimers = 1_000_000
)

// benchStates are the shards of a cluster with a million pending timers: 100 bytes of payload, two labels of which one is
// the same for a thousandth, 100 queues, due within an hour.
func benchStates(b *testing.B) []*stateShard {
	b.Helper()
	shards, entries := make([]*stateShard, benchShards), make([]*logv1.Entry, benchShards)
	index := make([]uint64, benchShards)
	for s := range shards {
		shards[s], entries[s] = &stateShard{fsm: raftfsm.New(raftfsm.Options{Shard: uint32(s)})}, &logv1.Entry{Epoch: 1, ClockMs: 1}
	}
	flush := func(s int) {
		index[s]++
		if _, err := shards[s].fsm.Apply(index[s], raftfsm.EncodeEntry(entries[s], nil)); err != nil {
			b.Fatal(err)
		}
		entries[s].Commands = entries[s].Commands[:0]
	}
	for i := range benchTimers {
		id := fmt.Sprintf("order-%011d/expire", i)
		s := carillonv1.ShardOf("default", id, benchShards)
		entries[s].Commands = append(entries[s].Commands, &logv1.Command{Kind: &logv1.Command_Schedule{Schedule: &logv1.Schedule{
			Namespace: "default", Id: id, DueMs: int64(i) * 7919 % 3_600_000, Queue: fmt.Sprint("q", i%100), Payload: make([]byte, 100),
			Labels: []*logv1.Pair{{Key: "customer", Value: fmt.Sprint("c", i%1000)}, {Key: "kind", Value: "order"}},
		}}})
		if len(entries[s].Commands) == 1000 {
			flush(s)
		}
	}
	for s := range shards {
		flush(s)
	}
	return shards
}

// BenchmarkFirstPage is the first page of a list over a million pending timers, from a client's call to its answer over
// the loopback: 16 shards in this process, without their groups. A linearizable read adds a round trip to a majority.
// It must stay under 50 ms.
func BenchmarkFirstPage(b *testing.B) {
	states := benchStates(b)
	r := newFakeNet().router("n1", benchShards, "n1")
	r.local = func(s int) localShard { return states[s] }
	conn := serveBackend(b, &backend{router: r, n: &Node{fsm: formedFSM()}})
	timers, cluster := carillonv1.NewTimersClient(conn), carillonv1.NewClusterClient(conn)
	for _, c := range []struct {
		name   string
		limit  int32
		prefix string
		filter *carillonv1.Filter
	}{
		{"100", 100, "", nil},
		{"1000", 1000, "", nil},
		{"prefix", 100, "order-0000077", nil},
		{"label", 100, "", &carillonv1.Filter{Labels: map[string]string{"customer": "c7"}}},
		{"label that none has", 100, "", &carillonv1.Filter{Labels: map[string]string{"customer": "nobody"}}},
		{"queue", 100, "", &carillonv1.Filter{Queue: "q7"}},
		{"state that none has", 100, "", &carillonv1.Filter{States: []carillonv1.State{carillonv1.State_STATE_FIRING}}},
		{"due range", 100, "", &carillonv1.Filter{DueFrom: timestamppb.New(time.UnixMilli(1000)), DueBefore: timestamppb.New(time.UnixMilli(5000))}},
	} {
		b.Run(c.name, func(b *testing.B) {
			found := 0
			took := make([]time.Duration, 0, b.N)
			for b.Loop() {
				began := time.Now()
				page, err := timers.List(b.Context(), &carillonv1.ListRequest{Limit: c.limit, Prefix: c.prefix, Filter: c.filter})
				if err != nil {
					b.Fatal(err)
				}
				found, took = len(page.Timers), append(took, time.Since(began))
			}
			slices.Sort(took)
			b.ReportMetric(float64(found), "timers")
			b.ReportMetric(took[len(took)-1].Seconds()*1000, "ms-max")
		})
	}
	b.Run("count", func(b *testing.B) {
		for b.Loop() {
			if got, err := timers.Count(b.Context(), &carillonv1.CountRequest{}); err != nil || got.Count != benchTimers {
				b.Fatal(got, err)
			}
		}
	})
	b.Run("forecast", func(b *testing.B) {
		for b.Loop() {
			got, err := cluster.Forecast(b.Context(), &carillonv1.ForecastRequest{From: timestamppb.New(time.UnixMilli(0))})
			if err != nil || len(got.Series) != 100 {
				b.Fatal(len(got.Series), err)
			}
		}
	})
}

// formedFSM is the directory of a cluster that exists.
func formedFSM() *directoryFSM {
	fsm := newDirectoryFSM(slog.New(slog.NewTextHandler(io.Discard, nil)))
	fsm.state = &clusterState{ClusterID: "c", Shards: benchShards}
	return fsm
}

// serveBackend serves the backend on a port of the loopback and connects to it.
func serveBackend(b *testing.B, back transport.Backend) *grpc.ClientConn {
	b.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		b.Fatal(err)
	}
	c := transport.DefaultConfig()
	c.Now, c.Logger = time.Now, slog.New(slog.NewTextHandler(io.Discard, nil))
	ctx, cancel := context.WithCancel(context.Background())
	ran := make(chan error, 1)
	go func() { ran <- transport.NewServer(c, back).Run(ctx, ln) }()
	conn, err := grpc.NewClient(ln.Addr().String(), grpc.WithTransportCredentials(insecure.NewCredentials()))
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
	return conn
}
