package transport

import (
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"

	"github.com/carillon-timers/carillon/shard/executor"
)

func ids(ds []executor.Delivery) []string {
	out := make([]string, len(ds))
	for i, d := range ds {
		out[i] = d.Record.ID
	}
	return out
}

func TestHubRemembersSourcesUntilAConsumerComes(t *testing.T) {
	t.Parallel()
	h, q := NewHub(), queueNamed("q")
	a := newSource(1)
	a.add(h, q, 0, 3)
	a.add(h, q, 3, 2)
	if a.asked != 0 || h.Stats().Unattended != 1 {
		t.Errorf("asked %d times without a consumer; %+v", a.asked, h.Stats())
	}
	s := h.subscribe(q)
	if got := h.take(s, nil); len(got) != 0 || a.asked != 0 {
		t.Errorf("without credit: got %v", ids(got))
	}
	h.grant(s, 4)
	if got := ids(h.take(s, nil)); fmt.Sprint(got) != "[s1-000000 s1-000001 s1-000002 s1-000003]" {
		t.Errorf("got %v", got)
	}
	if got := h.take(s, nil); len(got) != 0 { // no credit is left
		t.Errorf("got %v", ids(got))
	}
	h.grant(s, 10)
	if got := ids(h.take(s, nil)); fmt.Sprint(got) != "[s1-000004]" || h.outstanding(s) != 9 {
		t.Errorf("got %v, %d credits left", got, h.outstanding(s))
	}
	h.unsubscribe(s)
	if st := h.Stats(); st != (HubStats{Taken: 5}) {
		t.Errorf("an empty queue is not forgotten: %+v", st)
	}
}

func TestHubAsksSourcesInTurn(t *testing.T) {
	t.Parallel()
	h, q := NewHub(), queueNamed("q")
	sources := []*fakeSource{newSource(0), newSource(1), newSource(2)}
	for _, src := range sources {
		src.add(h, q, 0, 1000)
	}
	s := h.subscribe(q)
	h.grant(s, 10_000)
	for turn := range 9 {
		got := h.take(s, nil)
		if len(got) != takeMax || got[0].Token.Shard != uint32(turn%3) {
			t.Fatalf("turn %d: %d from shard %d", turn, len(got), got[0].Token.Shard)
		}
	}
	// Small lists are gathered into one turn.
	small := queueNamed("small")
	for _, src := range sources {
		src.add(h, small, 0, 2)
	}
	s = h.subscribe(small)
	h.grant(s, 100)
	if got := ids(h.take(s, nil)); len(got) != 6 {
		t.Errorf("got %v", got)
	}
}

func TestHubSubscribersShareInTurn(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		h, q := NewHub(), queueNamed("q")
		src := newSource(1)
		var got [4]atomic.Int64
		subs := make([]*subscriber, len(got))
		for i := range subs {
			subs[i] = h.subscribe(q)
			h.grant(subs[i], 1000)
			go func() {
				for {
					batch := h.take(subs[i], nil)
					got[i].Add(int64(len(batch)))
					if len(batch) > 0 || !h.await(subs[i]) {
						continue
					}
					if _, ok := <-subs[i].wake; !ok {
						return
					}
				}
			}()
			synctest.Wait()
		}
		for i := range 400 { // one by one
			src.add(h, q, i, 1)
			synctest.Wait()
		}
		for i := range got {
			if n := got[i].Load(); n != 100 {
				t.Errorf("subscriber %d got %d of 400", i, n)
			}
			close(subs[i].wake)
		}
	})
}

// What comes while a source is asked must not be lost: asking and adding race here.
func TestHubLosesNothing(t *testing.T) {
	t.Parallel()
	const perSource, sources, subscribers = 20_000, 3, 3
	h, q := NewHub(), queueNamed("q")
	srcs := make([]*fakeSource, sources)
	var adders, takers sync.WaitGroup
	for n := range srcs {
		srcs[n] = newSource(uint32(n))
		adders.Go(func() {
			for i := 0; i < perSource; i += 5 {
				srcs[n].add(h, q, i, 5)
			}
		})
	}
	var total atomic.Int64
	done := make(chan struct{})
	var next [subscribers][sources]int
	for i := range subscribers {
		s := h.subscribe(q)
		takers.Go(func() {
			for {
				h.grant(s, 7)
				batch := h.take(s, nil)
				for _, d := range batch { // in order from each source
					if rev := int(d.Token.Revision); rev <= next[i][d.Token.Shard] {
						t.Errorf("revision %d after %d", rev, next[i][d.Token.Shard])
					} else {
						next[i][d.Token.Shard] = rev
					}
				}
				if len(batch) > 0 {
					if total.Add(int64(len(batch))) == perSource*sources {
						close(done)
					}
					continue
				}
				if !h.await(s) {
					continue
				}
				select {
				case <-s.wake:
				case <-done:
					return
				}
			}
		})
	}
	adders.Wait()
	takers.Wait()
	for _, src := range srcs {
		if src.left(q) != 0 || src.crowded {
			t.Errorf("shard %d: %d left, crowded %v", src.shard, src.left(q), src.crowded)
		}
	}
}

func TestHubPassesAWakeOnWhenASubscriberLeaves(t *testing.T) {
	t.Parallel()
	h, q := NewHub(), queueNamed("q")
	a, b, src := h.subscribe(q), h.subscribe(q), newSource(1)
	h.grant(a, 5)
	h.grant(b, 5)
	<-a.wake // of the grant
	<-b.wake
	if !h.await(a) || !h.await(b) {
		t.Fatal("nothing is ready yet")
	}
	src.add(h, q, 0, 1) // wakes a, which leaves before it looks
	h.unsubscribe(a)
	select {
	case <-b.wake:
	default:
		t.Error("the other one is not woken")
	}
	if got := ids(h.take(b, nil)); len(got) != 1 {
		t.Errorf("got %v", got)
	}
	if got := h.take(a, nil); len(got) != 0 {
		t.Errorf("one that has left got %v", ids(got))
	}
}

// A source that becomes ready while it is asked, after it has looked, is asked again.
func TestHubReadyWhileAsked(t *testing.T) {
	t.Parallel()
	h, q, src := NewHub(), queueNamed("q"), newSource(1)
	src.onTake = func() {
		if src.left(q) == 0 && src.asked == 1 {
			src.add(h, q, 1, 1)
		}
	}
	src.add(h, q, 0, 1)
	s := h.subscribe(q)
	h.grant(s, 10)
	if got := ids(h.take(s, nil)); fmt.Sprint(got) != "[s1-000000 s1-000001]" {
		t.Errorf("got %v", got)
	}
	if st := h.Stats(); st.Taken != 2 || st.Credits != 8 {
		t.Errorf("got %+v", st)
	}
}

func TestHubForgetsAShard(t *testing.T) {
	t.Parallel()
	h, gone, kept := NewHub(), newSource(1), newSource(2)
	gone.add(h, queueNamed("a"), 0, 1)
	gone.add(h, queueNamed("b"), 0, 1)
	kept.add(h, queueNamed("b"), 0, 1)
	h.Forget(1)
	if n := h.Stats().Queues; n != 1 {
		t.Errorf("%d queues are remembered, want 1", n)
	}
	s := h.subscribe(queueNamed("b"))
	h.grant(s, 5)
	if got := ids(h.take(s, nil)); fmt.Sprint(got) != "[s2-000000]" || gone.asked != 0 {
		t.Errorf("got %v", got)
	}
}

func TestHubThousandQueues(t *testing.T) {
	t.Parallel()
	h, src := NewHub(), newSource(1)
	for i := range 1000 {
		src.add(h, queueNamed(fmt.Sprint(i)), i, 1)
	}
	if n := h.Stats().Unattended; n != 1000 {
		t.Fatalf("%d queues wait", n)
	}
	for i := range 1000 {
		s := h.subscribe(queueNamed(fmt.Sprint(i)))
		h.grant(s, 1)
		if got := h.take(s, nil); len(got) != 1 || got[0].Record.Revision != uint64(i+1) {
			t.Fatalf("queue %d: got %v", i, ids(got))
		}
		h.unsubscribe(s)
	}
	if n := h.Stats().Queues; n != 0 {
		t.Errorf("%d queues are still remembered", n)
	}
}
