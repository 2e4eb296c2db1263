package transport

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"

	carillonv1 "github.com/carillon-timers/carillon/proto/carillon/v1"
	logv1 "github.com/carillon-timers/carillon/proto/carillonlog/v1"
	"github.com/carillon-timers/carillon/raftfsm"
)

// A worker returns what it has not begun, refuses for good, and asks for more time.
func TestWorkReturnsRefusesAndExtends(t *testing.T) {
	t.Parallel()
	extended := make(chan []int64, 1)
	backend := &fakeBackend{onExtend: func(tokens []raftfsm.Token, leases []int64) ([]int64, error) {
		extended <- leases
		return make([]int64, len(tokens)), nil
	}}
	h := serve(t, testConfig(), backend)
	src := newSource(0)
	w := h.work("q", 3)
	src.add(h.server.Hub(), queueNamed("q"), 0, 3)
	got := w.take(3)
	w.send(&carillonv1.WorkRequest{
		Returns: [][]byte{got[0].Token}, Nacks: []*carillonv1.Nack{{Token: got[1].Token, Error: "never", Dead: true}},
		Extends: []*carillonv1.Extend{{Token: got[2].Token, Lease: durationpb.New(time.Minute)}, {Token: []byte("none of ours")}},
	})
	if settled := w.settled(2); settled[0].Outcome != carillonv1.SettleOutcome_SETTLE_OUTCOME_DONE || settled[1].Outcome != carillonv1.SettleOutcome_SETTLE_OUTCOME_DONE {
		t.Errorf("got %v", settled)
	}
	if leases := <-extended; len(leases) != 1 || leases[0] != 60_000 {
		t.Errorf("extended by %v", leases)
	}
	for _, cmd := range backend.applied() {
		switch r := cmd.GetRetry(); r.Id {
		case got[0].Id:
			if !r.Returned || r.Dead {
				t.Errorf("returned as %v", r)
			}
		case got[1].Id:
			if r.Returned || !r.Dead || r.Error != "never" {
				t.Errorf("refused as %v", r)
			}
		}
	}
}

// A shard whose leader hangs held up the acks of every other: a call of all shards waited for the slowest.
func TestAnswersOfAStuckShardHoldUpNoOther(t *testing.T) {
	t.Parallel()
	stuck := make(chan struct{})
	backend := &fakeBackend{onApply: func(_ context.Context, cmd *raftfsm.Command) Outcome {
		if strings.HasPrefix(cmd.GetComplete().GetId(), "s1-") {
			<-stuck
		}
		return Outcome{}
	}}
	h := serve(t, testConfig(), backend)
	one, two := newSource(1), newSource(2)
	w := h.work("q", 20)
	one.add(h.server.Hub(), queueNamed("q"), 0, 10)
	two.add(h.server.Hub(), queueNamed("q"), 0, 10)
	for _, d := range w.take(20) { // each in a message of its own, so that no number of calls is enough
		w.send(&carillonv1.WorkRequest{Acks: [][]byte{d.Token}})
	}
	shardOf := func(settled *carillonv1.Settled) uint32 {
		token, err := raftfsm.ParseToken(settled.Token)
		if err != nil {
			t.Fatal(err)
		}
		return token.Shard
	}
	for _, settled := range w.settled(10) {
		if shardOf(settled) != 2 {
			t.Error("settled in spite of all")
		}
	}
	close(stuck)
	for _, settled := range w.settled(10) {
		if shardOf(settled) != 1 {
			t.Error("settled twice")
		}
	}
}

// The same of leases: they lapsed on all shards while one hung.
func TestExtensionsOfAStuckShardHoldUpNoOther(t *testing.T) {
	t.Parallel()
	stuck, extended := make(chan struct{}), make(chan uint32, 20)
	backend := &fakeBackend{onExtend: func(tokens []raftfsm.Token, _ []int64) ([]int64, error) {
		for _, token := range tokens {
			if token.Shard == 1 {
				<-stuck
			}
			extended <- token.Shard
		}
		return make([]int64, len(tokens)), nil
	}}
	h := serve(t, testConfig(), backend)
	one, two := newSource(1), newSource(2)
	w := h.work("q", 2)
	one.add(h.server.Hub(), queueNamed("q"), 0, 1)
	two.add(h.server.Hub(), queueNamed("q"), 0, 1)
	r := &carillonv1.WorkRequest{}
	for _, d := range w.take(2) {
		r.Extends = append(r.Extends, &carillonv1.Extend{Token: d.Token})
	}
	w.send(r)
	if s := <-extended; s != 2 {
		t.Errorf("shard %d first", s)
	}
	close(stuck)
	if s := <-extended; s != 1 {
		t.Errorf("shard %d last", s)
	}
}

// The last attempt is marked; what is at-most-once has no lease, and is not given back when the stream breaks.
func TestLastAndAtMostOnce(t *testing.T) {
	t.Parallel()
	backend := &fakeBackend{}
	h := serve(t, testConfig(), backend)
	src := newSource(0)
	q := queueNamed("q")
	src.ready[q] = []*raftfsm.Record{
		{Namespace: "default", ID: "last", Queue: "q", Attempt: 2, Retry: raftfsm.RetryPolicy{MaxAttempts: 3}},
		{Namespace: "default", ID: "first", Queue: "q", Attempt: 1, Retry: raftfsm.RetryPolicy{MaxAttempts: 3}},
		{Namespace: "default", ID: "once", Queue: "q", Extra: &logv1.Extra{AtMostOnce: true}},
	}
	h.server.Hub().Ready(src, q)
	w := h.work("q", 3)
	got := w.take(3)
	if !got[0].Last || got[1].Last || got[2].Last {
		t.Errorf("last: %v %v %v", got[0].Last, got[1].Last, got[2].Last)
	}
	if got[0].LeaseEnd == nil || got[2].LeaseEnd != nil || got[2].Guarantee != carillonv1.Guarantee_GUARANTEE_AT_MOST_ONCE {
		t.Errorf("got %v", got[2])
	}
	w.cancel()
	h.stop()
	var given []string
	for _, cmd := range backend.applied() {
		given = append(given, cmd.GetRetry().Id)
	}
	slices.Sort(given)
	if !slices.Equal(given, []string{"first", "last"}) {
		t.Errorf("given back: %v", given)
	}
}

// What was taken and could not be sent comes back without an attempt that counts.
func TestUnsentIsReturned(t *testing.T) {
	t.Parallel()
	backend := &fakeBackend{}
	s := NewServer(testConfig(), backend)
	w := newWork(s, &brokenStream{ctx: t.Context()})
	w.worker, w.sub = "w", s.hub.subscribe(queueNamed("q"))
	s.hub.grant(w.sub, 10)
	newSource(0).add(s.hub, queueNamed("q"), 0, 2)
	if err := w.send(); !errors.Is(err, io.ErrClosedPipe) {
		t.Fatalf("got %v", err)
	}
	if err := w.giveBack(); err != nil {
		t.Fatal(err)
	}
	got := backend.applied()
	if len(got) != 2 || !got[0].GetRetry().Returned || !got[1].GetRetry().Returned {
		t.Errorf("got %v", got)
	}
}

// A worker with all its credits out is never said to have more, whatever the sender moves from credits to deliveries
// meanwhile. It was: what was taken between two readings was counted twice, and the stream was ended.
func TestOutstandingNeverCountsTwice(t *testing.T) {
	t.Parallel()
	s := NewServer(testConfig(), &fakeBackend{})
	for round := range 5 {
		w := newWork(s, &brokenStream{ctx: t.Context()})
		q := queueNamed(fmt.Sprint("q", round))
		w.sub = s.hub.subscribe(q)
		s.hub.grant(w.sub, MaxCredits)
		newSource(uint32(round)).add(s.hub, q, 0, MaxCredits)
		var sending sync.WaitGroup
		sending.Go(func() {
			for batch := s.hub.take(w.sub, nil); len(batch) > 0; batch = s.hub.take(w.sub, nil) {
				w.register(batch)
			}
		})
		for s.hub.outstanding(w.sub) > 0 {
			if n := w.outstanding(0); n > MaxCredits {
				t.Errorf("%d outstanding of %d", n, MaxCredits)
				break
			}
		}
		sending.Wait()
		s.hub.unsubscribe(w.sub)
	}
}

// brokenStream is a stream on which nothing can be sent.
type brokenStream struct {
	workStream
	ctx context.Context
}

func (b *brokenStream) Context() context.Context { return b.ctx }

func (*brokenStream) Send(*carillonv1.WorkResponse) error { return io.ErrClosedPipe }
