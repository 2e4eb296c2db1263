package node

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	carillonv1 "github.com/carillon-timers/carillon/proto/carillon/v1"
	logv1 "github.com/carillon-timers/carillon/proto/carillonlog/v1"
	"github.com/carillon-timers/carillon/raftfsm"
	"github.com/carillon-timers/carillon/shard"
	"github.com/carillon-timers/carillon/transport/peer"
)

// fakeShard answers what it is told to.
type fakeShard struct {
	err     error
	leader  string // who leads, as it knows
	page    raftfsm.ListPage
	rows    []raftfsm.ForecastRow
	mu      sync.Mutex
	applied []string // guarded by mu; IDs in the order of their arrival
}

func (f *fakeShard) Leader() string { return f.leader }

func (f *fakeShard) Propose(_ context.Context, cmds []*raftfsm.Command) ([]raftfsm.Result, error) {
	if f.err != nil {
		return nil, f.err
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	results := make([]raftfsm.Result, len(cmds))
	for i, c := range cmds {
		f.applied = append(f.applied, c.GetCancel().Id)
		results[i] = raftfsm.Result{Revision: uint64(len(f.applied))}
	}
	return results, nil
}

func (f *fakeShard) Submit(cmds []*raftfsm.Command, done func([]raftfsm.Result, error)) (func(error), error) {
	results, err := f.Propose(context.Background(), cmds)
	if err == nil {
		done(results, nil)
	}
	return func(error) {}, err
}

func (f *fakeShard) Get(_ context.Context, namespace, id string) (raftfsm.Status, error) {
	if f.err != nil {
		return raftfsm.Status{}, f.err
	}
	return raftfsm.Status{State: raftfsm.Pending, Record: &raftfsm.Record{Namespace: namespace, ID: id, Payload: []byte("p")}}, nil
}

func (f *fakeShard) List(context.Context, raftfsm.ListQuery) (raftfsm.ListPage, error) {
	return f.page, f.err
}

func (f *fakeShard) Forecast(context.Context, raftfsm.ForecastQuery) ([]raftfsm.ForecastRow, error) {
	return f.rows, f.err
}

// ExtendLease ends each lease at its length, and finds stale what has no length.
func (f *fakeShard) ExtendLease(_ context.Context, _ []raftfsm.Token, leases []int64) ([]int64, error) {
	return leases, f.err
}

// fakeNet is a set of nodes with a router each; a call between them goes through the forms in which it would travel.
type fakeNet struct {
	mu     sync.Mutex
	shards map[string]*fakeShard // guarded by mu: "node/shard"
	down   map[string]error      // guarded by mu: what a call to the node comes to
	calls  []string              // guarded by mu: to whom
}

func newFakeNet() *fakeNet {
	return &fakeNet{shards: map[string]*fakeShard{}, down: map[string]error{}}
}

func (f *fakeNet) set(node string, s int, is *fakeShard) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.shards[fmt.Sprint(node, "/", s)] = is
}

func (f *fakeNet) get(node string, s int) localShard {
	f.mu.Lock()
	defer f.mu.Unlock()
	if is := f.shards[fmt.Sprint(node, "/", s)]; is != nil {
		return is
	}
	return nil
}

func (f *fakeNet) router(self string, shards int, replicas ...string) *router {
	return &router{
		self: self, limit: time.Second, now: time.Now, shards: func() int { return shards },
		replicas: func(int) []string { return replicas },
		local:    func(s int) localShard { return f.get(self, s) },
		alive:    func(string) bool { return true },
		call:     f.call,
	}
}

func (f *fakeNet) call(ctx context.Context, node string, method peer.Method, group uint32, body []byte) ([]byte, error) {
	f.mu.Lock()
	f.calls = append(f.calls, node)
	err := f.down[node]
	f.mu.Unlock()
	if err != nil {
		return nil, err
	}
	local := f.get(node, int(group))
	if local == nil {
		return nil, toRemote(&shard.NotLeaderError{})
	}
	switch method {
	case methodApply:
		list := &logv1.CommandList{}
		if err := list.UnmarshalVT(body); err != nil {
			return nil, err
		}
		results, err := local.Propose(ctx, list.Commands)
		if err != nil {
			return nil, toRemote(err)
		}
		return resultsToProto(results).MarshalVT()
	case methodGet:
		r := &logv1.Read{}
		if err := r.UnmarshalVT(body); err != nil {
			return nil, err
		}
		status, err := local.Get(ctx, r.Namespace, r.Id)
		if err != nil {
			return nil, toRemote(err)
		}
		return statusToProto(status).MarshalVT()
	}
	return f.read(ctx, local, method, body)
}

// read serves the other reads.
func (f *fakeNet) read(ctx context.Context, local localShard, method peer.Method, body []byte) ([]byte, error) {
	switch method {
	case methodForecast:
		rows, err := local.Forecast(ctx, raftfsm.ForecastQuery{})
		if err != nil {
			return nil, toRemote(err)
		}
		return forecastToProto(rows).MarshalVT()
	case methodExtend:
		tokens, leases, err := extensionsFromBytes(body)
		if err != nil {
			return nil, err
		}
		ends, err := local.ExtendLease(ctx, tokens, leases)
		if err != nil {
			return nil, toRemote(err)
		}
		return (&logv1.LeaseExtended{EndMs: ends}).MarshalVT()
	}
	p := &logv1.PageRead{}
	if err := p.UnmarshalVT(body); err != nil {
		return nil, err
	}
	page, err := local.List(ctx, queryFromProto(p))
	if err != nil {
		return nil, toRemote(err)
	}
	return pageToProto(page).MarshalVT()
}

func cancelCommand(id string) *raftfsm.Command {
	return &raftfsm.Command{Kind: &logv1.Command_Cancel{Cancel: &logv1.Cancel{Namespace: "default", Id: id}}}
}

// Each command comes to the shard of its timer, and each answer to its place.
func TestApplyGroupsByShard(t *testing.T) {
	t.Parallel()
	const shards = 4
	f := newFakeNet()
	all := make([]*fakeShard, shards)
	for s := range all {
		all[s] = &fakeShard{}
		f.set([]string{"n1", "n2"}[s%2], s, all[s])
	}
	var commands []*raftfsm.Command
	for i := range 100 {
		commands = append(commands, cancelCommand(fmt.Sprint("t", i)))
	}
	r := f.router("n1", shards, "n1", "n2")
	for i, o := range r.Apply(t.Context(), commands) {
		id := fmt.Sprint("t", i)
		if o.Err != nil {
			t.Fatalf("%s: %v", id, o.Err)
		}
		s := all[carillonv1.ShardOf("default", id, shards)]
		if s.applied[o.Revision-1] != id {
			t.Errorf("%s got the answer of %s", id, s.applied[o.Revision-1])
		}
	}
}

// The first call to a leader that is not known follows the hint; the next goes there at once.
func TestRouteFollowsHintsAndRemembers(t *testing.T) {
	t.Parallel()
	f := newFakeNet()
	f.set("n1", 0, &fakeShard{err: &shard.NotLeaderError{Leader: "n3"}})
	f.set("n2", 0, &fakeShard{err: &shard.NotLeaderError{Leader: "n3"}})
	f.set("n3", 0, &fakeShard{})
	r := f.router("n1", 1, "n1", "n2", "n3")
	for range 2 {
		if o := r.Apply(t.Context(), []*raftfsm.Command{cancelCommand("t")}); o[0].Err != nil {
			t.Fatal(o[0].Err)
		}
	}
	if want := []string{"n3", "n3"}; !slices.Equal(f.calls, want) {
		t.Errorf("called %v, want %v", f.calls, want)
	}
	// A node without a replica of the shard asks the replicas.
	far := f.router("n9", 1, "n1", "n2", "n3")
	status, err := far.Get(t.Context(), "default", "t")
	if err != nil || status.Record.ID != "t" || string(status.Record.Payload) != "p" {
		t.Errorf("got %+v, %v", status, err)
	}
}

// A leader hung: what it was sent before had no known outcome, and calls went on to it although this node's own replica led by then.
func TestRouteLeavesAHungLeader(t *testing.T) {
	t.Parallel()
	f := newFakeNet()
	own := &fakeShard{err: &shard.NotLeaderError{Leader: "n2"}}
	f.set("n1", 0, own)
	f.set("n2", 0, &fakeShard{})
	f.set("n3", 0, &fakeShard{})
	r := f.router("n1", 1, "n1", "n2", "n3")
	apply := func() error { return r.Apply(t.Context(), []*raftfsm.Command{cancelCommand("t")})[0].Err }
	if err := apply(); err != nil || r.leader(0) != "n2" {
		t.Fatalf("%v, %q is noted", err, r.leader(0))
	}
	f.down["n2"] = &peer.CallError{Node: "n2", Sent: true, Err: peer.ErrConnLost}
	own.leader = "n3"
	if err := apply(); err != nil {
		t.Errorf("%v: asked the noted one, not the one that its replica knows", err)
	}
	own.leader = ""
	r.learn(0, "n2")
	if err := apply(); !errors.Is(err, shard.ErrUnknown) || r.leader(0) != "" {
		t.Errorf("%v, %q is noted", err, r.leader(0))
	}
	own.leader, own.err = "n1", nil
	r.learn(0, "n2")
	if err := apply(); err != nil || len(own.applied) != 1 {
		t.Errorf("%v, %v here", err, own.applied)
	}
}

// What may have been applied is never sent again; what was not is, until the limit.
func TestRouteRepeatsOnlyWhatWasNotApplied(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		for _, c := range []struct {
			name  string
			down  error
			want  error
			calls bool // more than one
		}{
			{"broken after it was sent", &peer.CallError{Node: "n2", Sent: true, Err: peer.ErrConnLost}, shard.ErrUnknown, false},
			{"never sent", &peer.CallError{Node: "n2", Err: peer.ErrConnLost}, shard.ErrUnavailable, true},
			{"the leader does not know", toRemote(shard.ErrUnknown), shard.ErrUnknown, false},
			{"the handler broke", &peer.RemoteError{Kind: peer.KindPanic}, shard.ErrUnknown, false},
			{"no such group there", &peer.RemoteError{Kind: peer.KindNoGroup}, shard.ErrUnavailable, true},
		} {
			f := newFakeNet()
			f.down["n2"] = c.down
			began := time.Now()
			o := f.router("n1", 1, "n2").Apply(t.Context(), []*raftfsm.Command{cancelCommand("t")})
			if !errors.Is(o[0].Err, c.want) {
				t.Errorf("%s: got %v, want %v", c.name, o[0].Err, c.want)
			}
			if took := time.Since(began); (len(f.calls) > 1) != c.calls || took > 1100*time.Millisecond {
				t.Errorf("%s: %d calls in %v", c.name, len(f.calls), took)
			}
		}
	})
}

// A failover under way: nobody leads for a while, then the other does. The call waits for it.
func TestRouteWaitsForALeader(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		f := newFakeNet()
		f.set("n1", 0, &fakeShard{err: &shard.NotLeaderError{}})
		f.down["n2"] = &peer.CallError{Node: "n2", Err: errors.New("connection refused")}
		f.set("n3", 0, &fakeShard{err: &shard.NotLeaderError{}})
		time.AfterFunc(600*time.Millisecond, func() { f.set("n3", 0, &fakeShard{}) })
		r := f.router("n1", 1, "n2", "n1", "n3")
		r.learn(0, "n2")
		if o := r.Apply(t.Context(), []*raftfsm.Command{cancelCommand("t")}); o[0].Err != nil {
			t.Error(o[0].Err)
		}
		// When none comes the answer says so, in time.
		f.set("n3", 0, &fakeShard{err: &shard.NotLeaderError{}})
		began := time.Now()
		o := r.Apply(t.Context(), []*raftfsm.Command{cancelCommand("t")})
		var notLeader *shard.NotLeaderError
		if !errors.As(o[0].Err, &notLeader) && !errors.Is(o[0].Err, shard.ErrUnavailable) {
			t.Errorf("got %v", o[0].Err)
		}
		if took := time.Since(began); took < time.Second || took > 1100*time.Millisecond {
			t.Errorf("gave up after %v, want 1s", took)
		}
	})
}

// The errors of package shard travel to another node and back as what they are.
func TestErrorsTravel(t *testing.T) {
	t.Parallel()
	for _, want := range []error{
		&shard.NotLeaderError{Leader: "n2", Addr: "h:7400"},
		&shard.OverloadedError{Limit: "queued", RetryAfter: 250 * time.Millisecond},
		&shard.InvalidError{Field: "batch", Value: "2000 items", Limit: "at most 1000 items"},
		shard.ErrUnknown, shard.ErrUnavailable, shard.ErrNotFound,
	} {
		if got := writeError(toRemote(want)); got.Error() != want.Error() {
			t.Errorf("got %v, want %v", got, want)
		}
	}
	for _, refused := range []error{errDiskChanged, errOtherCluster} {
		if got := fromRemote(toRemote(fmt.Errorf("say: %w", refused))); !errors.Is(got, errRefused) {
			t.Errorf("%v came back as %v", refused, got)
		}
	}
}
