package shard

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	logv1 "github.com/carillon-timers/carillon/proto/carillonlog/v1"
	"github.com/carillon-timers/carillon/raftfsm"
	"github.com/carillon-timers/carillon/shard/executor"
	"github.com/hashicorp/raft"
	"google.golang.org/protobuf/proto"
)

// cluster is three replicas of one shard in one process, over Raft's in-memory transport and in-memory stores that outlive a
// restart. Its methods may be called from any goroutine of the bubble.
type cluster struct {
	t      testing.TB
	nodes  []*node
	config func(*Config)
	deps   func(*Deps)
	now    func() time.Time
	// serve starts a node's own transport and sets its peers; nil is Raft's transport in memory.
	serve func(n *node, ctx context.Context) (wait func())
	sink  *sink
	log   *slog.Logger
	// ended says that the story is over.
	ended atomic.Bool
}

// node is one of them.
type node struct {
	c         *cluster
	id        string
	transport *raft.InmemTransport
	peers     raft.Transport
	served    func()        // stops and waits for peers
	hears     time.Duration // how much later than others it hears of a peer that is lost; overNetwork's
	log       *faultyLog
	stable    *faultyStable
	snaps     *memSnapshots

	shard *Shard
	// current is shard, for others than the story's own goroutine.
	current atomic.Pointer[Shard]
	loop    *executor.Loop
	cancel  context.CancelFunc
	wg      sync.WaitGroup
	err     error // of Run, once wg is waited for
}

// inBubble runs a story with a cluster of n replicas, and stops it. It fails if a goroutine is left.
func inBubble(t *testing.T, n int, story func(*testing.T, *cluster), change ...func(*cluster)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t, n, change...)
		defer c.end()
		c.start()
		story(t, c)
	})
}

func newCluster(t testing.TB, n int, change ...func(*cluster)) *cluster {
	c := &cluster{t: t, config: func(*Config) {}, deps: func(*Deps) {}, log: slog.New(slog.DiscardHandler)}
	c.sink = &sink{c: c}
	if testing.Verbose() {
		c.log = slog.New(slog.NewTextHandler(t.Output(), &slog.HandlerOptions{Level: slog.LevelInfo}))
	}
	for _, f := range change {
		f(c)
	}
	for i := range n {
		store := raft.NewInmemStore()
		node := &node{c: c, id: fmt.Sprintf("n%d", i+1), snaps: &memSnapshots{}}
		node.log, node.stable = &faultyLog{LogStore: store}, &faultyStable{StableStore: store}
		c.nodes = append(c.nodes, node)
	}
	return c
}

func (c *cluster) start() {
	c.t.Helper()
	var servers []raft.Server
	for _, n := range c.nodes {
		servers = append(servers, raft.Server{ID: raft.ServerID(n.id), Address: raft.ServerAddress(n.id)})
	}
	for _, n := range c.nodes {
		n.open()
		if err := n.shard.Bootstrap(servers); err != nil {
			c.t.Fatal(err)
		}
	}
	for _, n := range c.nodes {
		n.run()
	}
}

// stop ends all replicas and checks what must hold then.
// end stops all replicas and waits for the acks on their way, which nobody needs any more.
func (c *cluster) end() {
	c.ended.Store(true)
	c.stop()
	c.sink.quiet()
}

func (c *cluster) stop() {
	for _, n := range c.nodes {
		n.stop()
	}
}

// open opens the replica and connects it with the others.
func (n *node) open() {
	n.c.t.Helper()
	_, n.transport = raft.NewInmemTransportWithTimeout(raft.ServerAddress(n.id), 200*time.Millisecond)
	n.peers, n.served = n.transport, func() {}
	if n.c.serve != nil {
		ctx, cancel := context.WithCancel(context.Background())
		wait := n.c.serve(n, ctx)
		n.served = func() { cancel(); wait() }
	}
	n.loop = executor.NewLoop(executor.LoopOptions{Now: n.c.now, Sleeper: executor.NewTimerSleeper(), Logger: n.c.log, Workers: 2})
	config := DefaultConfig()
	config.ID, config.Node, config.Boot = 7, n.id, "boot"
	n.c.config(&config)
	deps := Deps{
		Transport: n.peers, Stores: &Stores{Log: n.log, Stable: n.stable, Snapshots: n.snaps},
		Loop: n.loop, Deliverer: n.c.sink, Logger: n.c.log.With("node", n.id),
		Addr: func(node string) string { return node + ":7400" },
	}
	n.c.deps(&deps)
	var err error
	if n.shard, err = Open(config, deps); err != nil {
		n.c.t.Fatal(err)
	}
	n.current.Store(n.shard)
	n.c.heal()
}

func (n *node) run() {
	ctx, cancel := context.WithCancel(context.Background())
	n.cancel = cancel
	loopCtx, stopLoop := context.WithCancel(context.Background())
	n.wg.Go(func() {
		defer stopLoop()
		n.err = n.shard.Run(ctx)
	})
	n.wg.Go(func() { _ = n.loop.Run(loopCtx) })
}

// stop stops the replica and returns what Run returned.
func (n *node) stop() error {
	n.cancel()
	n.wg.Wait()
	n.served()
	return n.err
}

func (n *node) restart() {
	n.c.t.Helper()
	n.open()
	n.run()
}

// heal connects everybody with everybody.
func (c *cluster) heal() {
	for _, a := range c.nodes {
		for _, b := range c.nodes {
			if a != b && a.transport != nil && b.transport != nil {
				a.transport.Connect(raft.ServerAddress(b.id), b.transport)
			}
		}
	}
}

// cut cuts a node off from the others, both ways.
func (c *cluster) cut(n *node) {
	for _, other := range c.nodes {
		if other != n {
			other.transport.Disconnect(raft.ServerAddress(n.id))
			n.transport.Disconnect(raft.ServerAddress(other.id))
		}
	}
}

// leader waits until a replica fires, other than those given.
func (c *cluster) leader(not ...*node) *node {
	c.t.Helper()
	for range 2000 {
		for _, n := range c.nodes {
			if !slices.Contains(not, n) && n.shard.mayFire() {
				return n
			}
		}
		time.Sleep(10 * time.Millisecond)
	}
	c.t.Fatal("no leader in 20 s")
	return nil
}

// propose applies commands as a client does: it looks for the leader, and repeats after an unknown outcome.
func (c *cluster) propose(cmds ...*raftfsm.Command) []raftfsm.Result {
	c.t.Helper()
	results, _, err := c.try(time.Minute, cmds...)
	if err != nil {
		if !c.ended.Load() {
			c.t.Errorf("propose: %v", err)
		}
		return make([]raftfsm.Result, len(cmds))
	}
	return results
}

// try is propose that may fail, after a time. It also tells how many of its attempts failed.
func (c *cluster) try(limit time.Duration, cmds ...*raftfsm.Command) (results []raftfsm.Result, failed int, err error) {
	start := time.Now()
	for i := 0; time.Since(start) < limit; i++ {
		copies := make([]*raftfsm.Command, len(cmds))
		for k, cmd := range cmds {
			copies[k] = proto.CloneOf(cmd)
		}
		results, err = c.nodes[i%len(c.nodes)].current.Load().Propose(context.Background(), copies)
		var notLeader *NotLeaderError
		var overloaded *OverloadedError
		switch {
		case err == nil:
			return results, failed, nil
		case errors.As(err, &notLeader), errors.Is(err, ErrUnavailable), errors.Is(err, ErrUnknown), errors.As(err, &overloaded):
			if c.ended.Load() {
				return nil, failed, err
			}
			failed++
			time.Sleep(5 * time.Millisecond)
		default:
			return nil, failed, err
		}
	}
	return nil, failed, err
}

// inStep waits until all replicas have applied the same and compares their states.
func (c *cluster) inStep() {
	c.t.Helper()
	type state struct{ index, hash uint64 }
	var states []state
	for range 30000 {
		states = states[:0]
		for _, n := range c.nodes {
			index, hash := n.shard.fsm.HashAt()
			states = append(states, state{index, hash})
		}
		if !slices.ContainsFunc(states, func(s state) bool { return s.index != states[0].index }) {
			break
		}
		time.Sleep(10 * time.Millisecond)
	}
	if slices.ContainsFunc(states, func(s state) bool { return s != states[0] }) {
		c.t.Errorf("the replicas differ: %+v", states)
		for _, n := range c.nodes {
			var state strings.Builder
			if snapshot, err := n.shard.fsm.Snapshot(); err == nil {
				_, _ = snapshot.WriteTo(&state)
				snapshot.Release()
			}
			c.t.Logf("%s: %+v\n%q\n%s", n.id, n.shard.fsm.Stats(), state.String(), n.logLines())
		}
	}
	for _, n := range c.nodes {
		if err := n.shard.fsm.Check(); err != nil {
			c.t.Errorf("%s: %v", n.id, err)
		}
	}
}

// logLines shows a replica's log, an entry a line.
func (n *node) logLines() string {
	var b strings.Builder
	first, _ := n.log.FirstIndex()
	last, _ := n.log.LastIndex()
	for i := first; i <= last; i++ {
		var entry raft.Log
		err := n.log.GetLog(i, &entry)
		decoded, _ := raftfsm.DecodeEntry(entry.Data)
		fmt.Fprintf(&b, "%d term %d type %d %v: %v\n", i, entry.Term, entry.Type, err, decoded)
	}
	return b.String()
}

// sink is the consumer: it takes whatever is ready, at once, and keeps it. With an ack it answers.
type sink struct {
	c  *cluster
	wg sync.WaitGroup
	mu sync.Mutex
	// ack is called for each delivery, in a goroutine of its own; nil never acks. Guarded by mu.
	ack func(executor.Delivery)
	// got is guarded by mu.
	got []delivery
	// closed are queues from which nobody takes. Guarded by mu.
	closed map[string]bool
	// stopped and rnd are guarded by mu.
	stopped bool
	rnd     *rand.Rand
}

type delivery struct {
	executor.Delivery
	at time.Time
	by executor.Source
}

func (s *sink) Ready(src executor.Source, q executor.Queue) {
	s.mu.Lock()
	closed := s.closed[q.Name]
	s.mu.Unlock()
	for !closed {
		taken := src.Take(q, 64)
		if len(taken) == 0 {
			return
		}
		s.mu.Lock()
		for _, d := range taken {
			s.got = append(s.got, delivery{d, time.Now(), src})
			if ack := s.ack; ack != nil && !s.stopped {
				s.wg.Go(func() { ack(d) })
			}
		}
		s.mu.Unlock()
	}
}

// close has nobody take from a queue.
func (s *sink) close(queue string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.closed = map[string]bool{queue: true}
}

// open has a consumer come for all queues.
func (s *sink) open(queue string) {
	s.mu.Lock()
	s.closed = nil
	s.mu.Unlock()
	for _, n := range s.c.nodes {
		s.Ready(n.shard.exec, executor.Queue{Namespace: "default", Name: queue})
	}
}

func (s *sink) all() []delivery {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.got)
}

// answer sets what is called for each delivery from now on.
func (s *sink) answer(ack func(executor.Delivery)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.ack = ack
}

// lose says that this ack gets lost.
func (s *sink) lose() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.rnd.IntN(2) == 0
}

// quiet acks no more and waits for those on their way.
func (s *sink) quiet() {
	s.mu.Lock()
	s.stopped = true
	s.mu.Unlock()
	s.wg.Wait()
}

// faultyLog is a log that can be made to stall or fail.
type faultyLog struct {
	raft.LogStore
	// gate holds writes back until it is closed; nil does not. fault fails them.
	gate  atomic.Pointer[chan struct{}]
	fault atomic.Pointer[error]
	// writes counts.
	writes atomic.Int64
	// slow is called in each write; nil does nothing.
	slow atomic.Pointer[func()]
}

func (l *faultyLog) StoreLogs(entries []*raft.Log) error {
	if gate := l.gate.Load(); gate != nil {
		<-*gate
	}
	if err := l.fault.Load(); err != nil {
		return *err
	}
	l.writes.Add(1)
	if slow := l.slow.Load(); slow != nil {
		(*slow)()
	}
	return l.LogStore.StoreLogs(entries)
}

// stall holds writes back until release is called.
func (l *faultyLog) stall() (release func()) {
	gate := make(chan struct{})
	l.gate.Store(&gate)
	return func() {
		l.gate.Store(nil)
		close(gate)
	}
}

func (l *faultyLog) StoreLog(entry *raft.Log) error { return l.StoreLogs([]*raft.Log{entry}) }

type faultyStable struct {
	raft.StableStore
	fault atomic.Pointer[error]
}

func (s *faultyStable) SetUint64(key []byte, value uint64) error {
	if err := s.fault.Load(); err != nil {
		return *err
	}
	return s.StableStore.SetUint64(key, value)
}

// Commands.

func schedule(id string, due time.Time) *raftfsm.Command {
	return &raftfsm.Command{Kind: &logv1.Command_Schedule{Schedule: &logv1.Schedule{
		Id: id, DueMs: due.UnixMilli(), Queue: "q", Payload: []byte("payload of " + id), RequestId: []byte(id),
		Retry: &logv1.RetryPolicy{LeaseMs: 5000, InitialBackoffMs: 100, MaxBackoffMs: 1000, Multiplier: 2},
	}}}
}

func after(id string, delay time.Duration) *raftfsm.Command {
	c := schedule(id, time.Time{})
	s := c.GetSchedule()
	s.DueMs, s.DelayMs, s.IsDelay = 0, delay.Milliseconds(), true
	return c
}

func cancelOf(id string) *raftfsm.Command {
	return &raftfsm.Command{Kind: &logv1.Command_Cancel{Cancel: &logv1.Cancel{Id: id, RequestId: []byte("cancel " + id)}}}
}

func completeOf(d executor.Delivery) *raftfsm.Command {
	return &raftfsm.Command{Kind: &logv1.Command_Complete{Complete: &logv1.Complete{
		Namespace: d.Token.Namespace, Id: d.Token.ID, Revision: d.Token.Revision, Attempt: d.Token.Attempt, TokenEpoch: d.Token.Epoch,
		HandedMs: d.Token.HandedOut,
	}}}
}

func retryOf(d executor.Delivery, why string) *raftfsm.Command {
	return &raftfsm.Command{Kind: &logv1.Command_Retry{Retry: &logv1.Retry{
		Namespace: d.Token.Namespace, Id: d.Token.ID, Revision: d.Token.Revision, Attempt: d.Token.Attempt, TokenEpoch: d.Token.Epoch,
		HandedMs: d.Token.HandedOut, Error: why,
	}}}
}

var _ io.Closer = (*Shard)(nil)
