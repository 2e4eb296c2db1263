package transport

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"net"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/test/bufconn"

	carillonv1 "github.com/carillon-timers/carillon/proto/carillon/v1"
	"github.com/carillon-timers/carillon/raftfsm"
	"github.com/carillon-timers/carillon/shard"
	"github.com/carillon-timers/carillon/shard/executor"
)

// fakeBackend keeps what it was given in memory. Its answers are OK unless a hook says otherwise.
type fakeBackend struct {
	// onApply answers a command; nil means OK. Set before sharing.
	onApply func(ctx context.Context, cmd *raftfsm.Command) Outcome
	// onList answers List. Set before sharing.
	onList func(q raftfsm.ListQuery) (raftfsm.ListPage, error)
	// onGet answers Get, onShard ListShard, onForecast Forecast, onExtend ExtendLease. Set before sharing.
	onGet      func(id string) (raftfsm.Status, error)
	onShard    func(s int, q raftfsm.ListQuery) (raftfsm.ListPage, error)
	onForecast func(q raftfsm.ForecastQuery) ([]raftfsm.ForecastRow, error)
	onExtend   func(tokens []raftfsm.Token, leases []int64) ([]int64, error)
	// onStatus answers Status. Set before sharing.
	onStatus func(ctx context.Context) (*carillonv1.StatusResponse, error)

	mu sync.Mutex
	// commands are all that were applied, in order; calls counts the calls; guarded by mu.
	commands []*raftfsm.Command
	calls    int
	// shards has the shards of the calls of ApplyShard; guarded by mu.
	shards []int
	// timers are what was scheduled and not cancelled; guarded by mu.
	timers map[string]*raftfsm.Record
	// revision grows; guarded by mu.
	revision uint64
}

func (b *fakeBackend) Apply(ctx context.Context, cmds []*raftfsm.Command) []Outcome {
	b.mu.Lock()
	b.commands = append(b.commands, cmds...)
	b.calls++
	b.mu.Unlock()
	out := make([]Outcome, len(cmds))
	for i, cmd := range cmds {
		if b.onApply != nil {
			out[i] = b.onApply(ctx, cmd)
			continue
		}
		out[i] = b.keep(cmd)
	}
	return out
}

func (b *fakeBackend) ApplyShard(ctx context.Context, s int, cmd *raftfsm.Command) Outcome {
	b.mu.Lock()
	b.shards = append(b.shards, s)
	b.mu.Unlock()
	return b.Apply(ctx, []*raftfsm.Command{cmd})[0]
}

func (b *fakeBackend) keep(cmd *raftfsm.Command) Outcome {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.revision++
	r := raftfsm.Result{Revision: b.revision}
	if s := cmd.GetSchedule(); s != nil {
		if b.timers == nil {
			b.timers = make(map[string]*raftfsm.Record)
		}
		b.timers[s.Id] = &raftfsm.Record{Namespace: s.Namespace, ID: s.Id, Queue: s.Queue, Due: s.DueMs, NextDue: s.DueMs, Revision: b.revision}
		r.Due = s.DueMs
	}
	if c := cmd.GetCancel(); c != nil {
		if b.timers[c.Id] == nil {
			return Outcome{Err: shard.ErrNotFound}
		}
		delete(b.timers, c.Id)
		r.Answer = raftfsm.AnswerCancelled
	}
	if c := cmd.GetReschedule(); c != nil {
		if b.timers[c.Id] == nil {
			return Outcome{Err: shard.ErrNotFound}
		}
		r.Due = c.DueMs
	}
	return Outcome{Result: r}
}

func (b *fakeBackend) Get(_ context.Context, _, id string) (raftfsm.Status, error) {
	if b.onGet != nil {
		return b.onGet(id)
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	r := b.timers[id]
	if r == nil {
		return raftfsm.Status{}, shard.ErrNotFound
	}
	return raftfsm.Status{Record: r, State: raftfsm.Pending}, nil
}

func (b *fakeBackend) List(_ context.Context, q raftfsm.ListQuery) (raftfsm.ListPage, error) {
	if b.onList == nil {
		return raftfsm.ListPage{}, nil
	}
	return b.onList(q)
}

func (b *fakeBackend) ListShard(_ context.Context, s int, q raftfsm.ListQuery) (raftfsm.ListPage, error) {
	if b.onShard == nil {
		return raftfsm.ListPage{}, nil
	}
	return b.onShard(s, q)
}

// Count counts what one List finds.
func (b *fakeBackend) Count(ctx context.Context, q raftfsm.ListQuery) (int64, error) {
	page, err := b.List(ctx, q)
	return int64(len(page.Timers)), err
}

func (b *fakeBackend) Forecast(_ context.Context, q raftfsm.ForecastQuery) ([]raftfsm.ForecastRow, error) {
	if b.onForecast == nil {
		return nil, nil
	}
	return b.onForecast(q)
}

func (b *fakeBackend) ExtendLease(_ context.Context, tokens []raftfsm.Token, leases []int64) ([]int64, error) {
	if b.onExtend == nil {
		return make([]int64, len(tokens)), nil
	}
	return b.onExtend(tokens, leases)
}

func (b *fakeBackend) Shards() int { return 16 }

func (b *fakeBackend) Status(ctx context.Context) (*carillonv1.StatusResponse, error) {
	if b.onStatus != nil {
		return b.onStatus(ctx)
	}
	return &carillonv1.StatusResponse{NodeId: "n1"}, nil
}

func (b *fakeBackend) Members(context.Context) (*carillonv1.MembersResponse, error) {
	return &carillonv1.MembersResponse{Shards: 16}, nil
}

func (b *fakeBackend) ShardList(context.Context) (*carillonv1.ShardsResponse, error) {
	return &carillonv1.ShardsResponse{MapVersion: 7}, nil
}

// applied returns the commands so far.
func (b *fakeBackend) applied() []*raftfsm.Command {
	b.mu.Lock()
	defer b.mu.Unlock()
	return append([]*raftfsm.Command(nil), b.commands...)
}

// fakeSource is the ready lists of one shard.
type fakeSource struct {
	shard uint32
	// leaseEnd is that of each delivery; onTake runs when Take has decided what it gives. Set before sharing.
	leaseEnd int64
	onTake   func()

	mu sync.Mutex
	// ready has the records of each queue in order; guarded by mu.
	ready map[executor.Queue][]*raftfsm.Record
	// asked counts the calls of Take; guarded by mu.
	asked int
	// inside is the number of calls of Take at this moment, and crowded is true if it was ever above one; guarded by mu.
	inside  int
	crowded bool
}

func newSource(shard uint32) *fakeSource {
	return &fakeSource{shard: shard, leaseEnd: 1 << 60, ready: make(map[executor.Queue][]*raftfsm.Record)}
}

func (s *fakeSource) Shard() uint32 { return s.shard }

func (s *fakeSource) Take(q executor.Queue, limit int) []executor.Delivery {
	s.mu.Lock()
	s.inside++
	s.asked++
	s.crowded = s.crowded || s.inside > 1
	n := min(limit, len(s.ready[q]))
	batch := s.ready[q][:n]
	s.ready[q] = s.ready[q][n:]
	s.mu.Unlock()
	if s.onTake != nil {
		s.onTake()
	}
	out := make([]executor.Delivery, n)
	for i, r := range batch {
		out[i] = executor.Delivery{Record: r, HandedOut: 5, LeaseEnd: s.leaseEnd, Token: raftfsm.Token{
			Shard: s.shard, Epoch: 3, Revision: r.Revision, Attempt: r.Attempt, HandedOut: 5, Namespace: r.Namespace, ID: r.ID}}
	}
	s.mu.Lock()
	s.inside--
	s.mu.Unlock()
	return out
}

// Waiting implements peeker.
func (s *fakeSource) Waiting(q executor.Queue) bool { return s.left(q) > 0 }

// add puts n timers into the queue's ready list, named by the shard and their number from first on, and announces them.
func (s *fakeSource) add(h *Hub, q executor.Queue, first, n int) {
	s.mu.Lock()
	for i := first; i < first+n; i++ {
		s.ready[q] = append(s.ready[q], &raftfsm.Record{
			Namespace: q.Namespace, ID: fmt.Sprintf("s%d-%06d", s.shard, i), Queue: q.Name, Payload: []byte("payload"),
			Due: int64(i), NextDue: int64(i), Revision: uint64(i + 1)})
	}
	s.mu.Unlock()
	h.Ready(s, q)
}

func (s *fakeSource) left(q executor.Queue) int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.ready[q])
}

// harness is a running server with a client on an in-memory connection.
type harness struct {
	t          testing.TB
	server     *Server
	listener   *bufconn.Listener
	conn       *grpc.ClientConn
	timers     carillonv1.TimersClient
	deliveries carillonv1.DeliveriesClient
	cluster    carillonv1.ClusterClient
	// stop ends the server and waits for it; it may be called more than once.
	stop func()
}

func testConfig() Config {
	c := DefaultConfig()
	c.Now = time.Now
	c.Logger = slog.New(slog.NewTextHandler(io.Discard, nil))
	return c
}

func serve(t testing.TB, c Config, b Backend) *harness {
	t.Helper()
	h := &harness{t: t, server: NewServer(c, b), listener: bufconn.Listen(1 << 16)}
	ctx, cancel := context.WithCancel(context.Background())
	ran := make(chan error, 1)
	go func() { ran <- h.server.Run(ctx, h.listener) }()
	h.stop = sync.OnceFunc(func() {
		cancel()
		if err := <-ran; err != nil {
			t.Errorf("Run: %v", err)
		}
	})
	t.Cleanup(h.stop)
	h.conn = h.dial()
	h.timers = carillonv1.NewTimersClient(h.conn)
	h.deliveries = carillonv1.NewDeliveriesClient(h.conn)
	h.cluster = carillonv1.NewClusterClient(h.conn)
	return h
}

// dial opens one more connection.
func (h *harness) dial() *grpc.ClientConn {
	h.t.Helper()
	conn, err := grpc.NewClient("passthrough:///bufconn", grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) { return h.listener.DialContext(ctx) }))
	if err != nil {
		h.t.Fatal(err)
	}
	h.t.Cleanup(func() { _ = conn.Close() }) // closed twice where a test closes it
	return conn
}

// workClient is a worker's side of a Work stream.
type workClient struct {
	carillonv1.Deliveries_WorkClient
	t      testing.TB
	cancel context.CancelFunc
}

// work opens a stream on a queue with credits and takes the first heartbeat.
func (h *harness) work(queue string, credits int32) *workClient {
	h.t.Helper()
	return h.workOn(h.conn, queue, credits)
}

func (h *harness) workOn(conn *grpc.ClientConn, queue string, credits int32) *workClient {
	h.t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	h.t.Cleanup(cancel)
	stream, err := carillonv1.NewDeliveriesClient(conn).Work(ctx)
	if err != nil {
		h.t.Fatal(err)
	}
	w := &workClient{stream, h.t, cancel}
	w.send(&carillonv1.WorkRequest{Start: &carillonv1.WorkStart{Queue: queue, Worker: "w"}, Credits: credits})
	return w
}

func (w *workClient) send(r *carillonv1.WorkRequest) {
	w.t.Helper()
	if err := w.Send(r); err != nil {
		w.t.Fatal(err)
	}
}

// next returns the deliveries of the next message that has some.
func (w *workClient) next() []*carillonv1.Delivery {
	w.t.Helper()
	for {
		msg, err := w.Recv()
		if err != nil {
			w.t.Fatalf("Recv: %v", err)
		}
		if len(msg.Deliveries) > 0 {
			return msg.Deliveries
		}
	}
}

// take receives n deliveries.
func (w *workClient) take(n int) []*carillonv1.Delivery {
	w.t.Helper()
	var all []*carillonv1.Delivery
	for len(all) < n {
		all = append(all, w.next()...)
	}
	return all
}

// settled receives n answers.
func (w *workClient) settled(n int) []*carillonv1.Settled {
	w.t.Helper()
	var all []*carillonv1.Settled
	for len(all) < n {
		msg, err := w.Recv()
		if err != nil {
			w.t.Fatalf("Recv: %v", err)
		}
		all = append(all, msg.Settled...)
	}
	return all
}

func queueNamed(name string) executor.Queue {
	return executor.Queue{Namespace: raftfsm.DefaultNamespace, Name: name}
}
