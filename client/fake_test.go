package client_test

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/health"
	healthv1 "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/keepalive"
	"google.golang.org/grpc/status"
	"google.golang.org/grpc/test/bufconn"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/carillon-timers/carillon/client"
	carillonv1 "github.com/carillon-timers/carillon/proto/carillon/v1"
)

// cluster is a cluster in memory: it keeps timers in a map and answers as the hooks of a test say. It knows nothing of
// Raft; what it proves is what the client does with the answers.
type cluster struct {
	shards int

	mu      sync.Mutex
	nodes   map[string]*node                        // guarded by mu, as all below
	leaders []string                                // by shard
	timers  map[string]*carillonv1.TimerStatus      // by ID
	answers map[string]*carillonv1.ScheduleResponse // by request ID
	seen    []seen
	applied int
	dials   map[string]int // by address
	// previewed is the last request of a preview, asked the last of each other method that a test looks at.
	previewed *carillonv1.PreviewRequest
	asked     map[string]proto.Message
	// letters are the dead letters in order; stuck are the keys of those that stay dead.
	letters []*carillonv1.DeadLetter
	stuck   map[string]bool
	// looks is how many timers a list looks at for a page; 0 means all.
	looks int
	// item is asked before a schedule or cancel is applied; an error is the item's answer.
	item func(n *node, id string) *carillonv1.ItemError
	// call is asked before a batch is applied, reply afterwards: an error is the answer to the whole call.
	call, reply func(n *node, method string) error
	// accepted hears of each timer that was accepted.
	accepted func(t *carillonv1.Timer)
}

// seen is one item that a node got.
type seen struct {
	node, method, id, requestID string
	delay                       time.Duration
	at                          time.Time
	batch                       int // how many items came with it, itself included
}

// node is one of its nodes, at the address of its ID.
type node struct {
	carillonv1.UnimplementedTimersServer
	carillonv1.UnimplementedDeliveriesServer
	carillonv1.UnimplementedClusterServer
	c          *cluster
	id         string
	advertised string

	listener *bufconn.Listener // guarded by cluster.mu, as all below
	server   *grpc.Server
	alive    bool
	work     *workState

	frozen atomic.Bool  // it answers nothing and keeps its connections
	slow   atomic.Int64 // how long it takes for a batch, in nanoseconds
}

func newCluster(t *testing.T, shards int, ids ...string) *cluster {
	c := &cluster{
		shards: shards, nodes: make(map[string]*node), leaders: make([]string, shards),
		dials: make(map[string]int), asked: make(map[string]proto.Message),
		timers: make(map[string]*carillonv1.TimerStatus), answers: make(map[string]*carillonv1.ScheduleResponse),
	}
	for _, id := range ids {
		c.start(id)
	}
	for s := range c.leaders {
		c.leaders[s] = ids[s%len(ids)]
	}
	if t != nil {
		t.Cleanup(c.stopAll)
	}
	return c
}

// start adds a node, or starts a killed one again.
func (c *cluster) start(id string) *node {
	c.mu.Lock()
	defer c.mu.Unlock()
	n := c.nodes[id]
	if n == nil {
		n = &node{c: c, id: id, advertised: id + ":7400", work: newWorkState()}
		c.nodes[id] = n
	}
	n.alive = true
	n.listener = bufconn.Listen(1 << 20)
	n.server = grpc.NewServer(grpc.KeepaliveEnforcementPolicy(keepalive.EnforcementPolicy{
		MinTime: 10 * time.Second, PermitWithoutStream: true, // as the real one
	}), grpc.UnaryInterceptor(n.thaw))
	healthv1.RegisterHealthServer(n.server, health.NewServer())
	carillonv1.RegisterTimersServer(n.server, n)
	carillonv1.RegisterDeliveriesServer(n.server, n)
	carillonv1.RegisterClusterServer(n.server, n)
	server, listener := n.server, n.listener
	go server.Serve(listener)
	return n
}

// thaw holds calls while the node is frozen, also those that ask whether it is there, and batches as long as it is slow.
func (n *node) thaw(ctx context.Context, request any, call *grpc.UnaryServerInfo, handle grpc.UnaryHandler) (any, error) {
	if strings.HasSuffix(call.FullMethod, "Batch") {
		time.Sleep(time.Duration(n.slow.Load()))
	}
	for n.frozen.Load() && ctx.Err() == nil {
		time.Sleep(10 * time.Millisecond)
	}
	if ctx.Err() != nil {
		return nil, ctx.Err()
	}
	return handle(ctx, request)
}

// kill takes a node away: its connections break.
func (c *cluster) kill(id string) {
	c.mu.Lock()
	n := c.nodes[id]
	server := n.server
	n.alive, n.listener, n.server = false, nil, nil
	c.mu.Unlock()
	if server != nil {
		server.Stop()
	}
}

func (c *cluster) stopAll() {
	c.mu.Lock()
	ids := slices.Collect(maps.Keys(c.nodes))
	c.mu.Unlock()
	for _, id := range ids {
		c.kill(id)
	}
}

// lead makes a node lead every shard; "" means none does.
func (c *cluster) lead(id string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for s := range c.leaders {
		c.leaders[s] = id
	}
}

// dial is the dialer of a client.
func (c *cluster) dial(ctx context.Context, addr string) (net.Conn, error) {
	c.mu.Lock()
	c.dials[addr]++
	n := c.nodes[strings.TrimSuffix(addr, ":7400")]
	var l *bufconn.Listener
	if n != nil {
		l = n.listener
	}
	c.mu.Unlock()
	if l == nil {
		return nil, errors.New("connection refused")
	}
	return l.DialContext(ctx)
}

func (c *cluster) config(addrs ...string) client.Config {
	return client.Config{
		Addrs: addrs, Name: "test",
		DialOptions: []grpc.DialOption{grpc.WithContextDialer(c.dial)},
	}
}

func (c *cluster) client(t *testing.T, addrs ...string) *client.Client {
	t.Helper()
	if len(addrs) == 0 {
		addrs = []string{"n1:7400"}
	}
	cl, err := client.Dial(t.Context(), c.config(addrs...))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { cl.Close() })
	return cl
}

// hook sets the hooks of the cluster.
func (c *cluster) hook(set func(c *cluster)) {
	c.mu.Lock()
	defer c.mu.Unlock()
	set(c)
}

// took returns what the nodes got, and forgets it.
func (c *cluster) took() []seen {
	c.mu.Lock()
	defer c.mu.Unlock()
	list := c.seen
	c.seen = nil
	return list
}

func (n *node) ScheduleBatch(_ context.Context, r *carillonv1.ScheduleBatchRequest) (*carillonv1.ScheduleBatchResponse, error) {
	if r.GetAtomic() {
		return n.atomicSchedule(r)
	}
	if err := n.ask(n.c.call, "schedule"); err != nil {
		return nil, err
	}
	response := &carillonv1.ScheduleBatchResponse{}
	for _, item := range r.GetItems() {
		t := item.GetTimer()
		n.c.note(seen{n.id, "schedule", t.GetId(), item.GetRequestId(), t.GetDelay().AsDuration(), time.Now(), len(r.GetItems())})
		result := &carillonv1.ScheduleResult{}
		if fault := n.fault(t.GetId()); fault != nil {
			result.Outcome = &carillonv1.ScheduleResult_Error{Error: fault}
		} else if ok := n.c.schedule(item); ok != nil {
			result.Outcome = &carillonv1.ScheduleResult_Ok{Ok: ok}
		} else {
			result.Outcome = &carillonv1.ScheduleResult_Error{Error: fault409()}
		}
		response.Results = append(response.Results, result)
	}
	return response, n.ask(n.c.reply, "schedule")
}

func (n *node) CancelBatch(_ context.Context, r *carillonv1.CancelBatchRequest) (*carillonv1.CancelBatchResponse, error) {
	if r.GetAtomic() {
		return n.atomicCancel(r)
	}
	if err := n.ask(n.c.call, "cancel"); err != nil {
		return nil, err
	}
	response := &carillonv1.CancelBatchResponse{}
	for _, item := range r.GetItems() {
		n.c.note(seen{n.id, "cancel", item.GetId(), item.GetRequestId(), 0, time.Now(), len(r.GetItems())})
		result := &carillonv1.CancelResult{}
		if fault := n.fault(item.GetId()); fault != nil {
			result.Outcome = &carillonv1.CancelResult_Error{Error: fault}
		} else if ok := n.c.cancel(item.GetId()); ok != nil {
			result.Outcome = &carillonv1.CancelResult_Ok{Ok: ok}
		} else {
			result.Outcome = &carillonv1.CancelResult_Error{Error: fault404()}
		}
		response.Results = append(response.Results, result)
	}
	return response, n.ask(n.c.reply, "cancel")
}

func (n *node) Reschedule(_ context.Context, r *carillonv1.RescheduleRequest) (*carillonv1.RescheduleResponse, error) {
	n.c.note(seen{n.id, "reschedule", r.GetId(), r.GetRequestId(), r.GetDelay().AsDuration(), time.Now(), 1})
	if err := n.ask(n.c.call, "reschedule"); err != nil {
		return nil, err
	}
	n.c.mu.Lock()
	defer n.c.mu.Unlock()
	t := n.c.timers[r.GetId()]
	if t == nil {
		return nil, fail(codes.NotFound, "TIMER_NOT_FOUND", nil)
	}
	due := timestamppb.New(time.Now().Add(r.GetDelay().AsDuration()))
	t.Timer.When, t.NextDue = &carillonv1.Timer_Due{Due: due}, due
	t.Revision++
	return &carillonv1.RescheduleResponse{Due: due, Revision: t.Revision}, nil
}

func (n *node) Get(_ context.Context, r *carillonv1.GetRequest) (*carillonv1.GetResponse, error) {
	n.c.note(seen{n.id, "get", r.GetId(), "", 0, time.Now(), 1})
	if err := n.ask(n.c.call, "get"); err != nil {
		return nil, err
	}
	n.c.mu.Lock()
	defer n.c.mu.Unlock()
	if t := n.c.timers[r.GetId()]; t != nil {
		return &carillonv1.GetResponse{Timer: proto.CloneOf(t)}, nil
	}
	return nil, fail(codes.NotFound, "TIMER_NOT_FOUND", nil)
}

func (n *node) Status(context.Context, *carillonv1.StatusRequest) (*carillonv1.StatusResponse, error) {
	return &carillonv1.StatusResponse{ClusterId: "c", NodeId: n.id, Shards: int32(n.c.shards), Ready: true, Now: timestamppb.Now()}, nil
}

func (n *node) Members(context.Context, *carillonv1.MembersRequest) (*carillonv1.MembersResponse, error) {
	n.c.mu.Lock()
	defer n.c.mu.Unlock()
	response := &carillonv1.MembersResponse{Shards: int32(n.c.shards)}
	for _, m := range n.c.nodes {
		response.Members = append(response.Members, &carillonv1.Member{Id: m.id, ClientAddr: m.advertised, Alive: m.alive})
	}
	return response, nil
}

func (n *node) Shards(context.Context, *carillonv1.ShardsRequest) (*carillonv1.ShardsResponse, error) {
	n.c.mu.Lock()
	defer n.c.mu.Unlock()
	response := &carillonv1.ShardsResponse{}
	for s, l := range n.c.leaders {
		response.Shards = append(response.Shards, &carillonv1.Shard{Id: int32(s), Leader: l})
	}
	return response, nil
}

func (n *node) ask(hook func(*node, string) error, method string) error {
	n.c.mu.Lock()
	defer n.c.mu.Unlock()
	if hook == nil {
		return nil
	}
	return hook(n, method)
}

func (n *node) fault(id string) *carillonv1.ItemError {
	n.c.mu.Lock()
	defer n.c.mu.Unlock()
	if n.c.item == nil {
		return nil
	}
	return n.c.item(n, id)
}

func (c *cluster) note(s seen) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.seen = append(c.seen, s)
}

// schedule applies; nil means that a timer has the ID.
func (c *cluster) schedule(r *carillonv1.ScheduleRequest) *carillonv1.ScheduleResponse {
	c.mu.Lock()
	defer c.mu.Unlock()
	if again := c.answers[r.GetRequestId()]; again != nil {
		return again
	}
	t := proto.CloneOf(r.GetTimer())
	if c.timers[t.GetId()] != nil && r.GetIfExists() <= carillonv1.IfExists_IF_EXISTS_FAIL {
		return nil
	}
	due := t.GetDue()
	if due == nil && t.GetWhen() == nil { // a repeat's own
		due = timestamppb.New(time.Now().Add(max(t.GetRepeat().GetEvery().AsDuration(), time.Minute)))
		t.When = &carillonv1.Timer_Due{Due: due}
	}
	if due == nil {
		due = timestamppb.New(time.Now().Add(t.GetDelay().AsDuration()))
		t.When = &carillonv1.Timer_Due{Due: due}
	}
	c.applied++
	if c.accepted != nil {
		c.accepted(t)
	}
	shard := int32(carillonv1.ShardOf(t.GetNamespace(), t.GetId(), c.shards))
	ok := &carillonv1.ScheduleResponse{Due: due, Revision: int64(c.applied), Shard: shard}
	c.answers[r.GetRequestId()] = ok
	c.timers[t.GetId()] = &carillonv1.TimerStatus{
		Timer: t, State: carillonv1.State_STATE_PENDING, Revision: ok.Revision, NextDue: due, Created: timestamppb.Now(), Shard: shard,
	}
	return ok
}

// cancel applies; nil means that there is no such timer.
func (c *cluster) cancel(id string) *carillonv1.CancelResponse {
	c.mu.Lock()
	defer c.mu.Unlock()
	t := c.timers[id]
	if t == nil {
		return nil
	}
	outcome := carillonv1.CancelOutcome_CANCEL_OUTCOME_CANCELLED
	if t.State == carillonv1.State_STATE_FIRED {
		outcome = carillonv1.CancelOutcome_CANCEL_OUTCOME_FIRED
	} else {
		t.State = carillonv1.State_STATE_CANCELLED
	}
	return &carillonv1.CancelResponse{Outcome: outcome, Revision: t.Revision}
}

// fail is an error as the server sends it.
func fail(code codes.Code, reason string, metadata map[string]string, more ...*errdetails.RetryInfo) error {
	s := status.New(code, reason)
	s, _ = s.WithDetails(&errdetails.ErrorInfo{Domain: "carillon", Reason: reason, Metadata: metadata})
	for _, m := range more {
		s, _ = s.WithDetails(m)
	}
	return s.Err()
}

func retryIn(d time.Duration) *errdetails.RetryInfo {
	return &errdetails.RetryInfo{RetryDelay: durationpb.New(d)}
}

// fault is the error of an item.
func fault(code codes.Code, reason string, metadata map[string]string) *carillonv1.ItemError {
	return &carillonv1.ItemError{Code: int32(code), Message: reason, Reason: reason, Metadata: metadata}
}

func fault404() *carillonv1.ItemError { return fault(codes.NotFound, "TIMER_NOT_FOUND", nil) }

func fault409() *carillonv1.ItemError { return fault(codes.AlreadyExists, "TIMER_ALREADY_EXISTS", nil) }

func notLeader(leader string) *carillonv1.ItemError {
	addr := ""
	if leader != "" {
		addr = leader + ":7400"
	}
	return fault(codes.Unavailable, "NOT_LEADER", map[string]string{"leader": leader, "address": addr})
}

// onlyLeaders is an item hook: a node refuses what it does not lead and says who does.
func onlyLeaders(n *node, id string) *carillonv1.ItemError {
	leader := n.c.leaders[carillonv1.ShardOf("default", id, n.c.shards)]
	if leader == n.id {
		return nil
	}
	return notLeader(leader)
}

func ids(prefix string, n int) []string {
	list := make([]string, n)
	for i := range list {
		list[i] = fmt.Sprintf("%s%05d", prefix, i)
	}
	return list
}
