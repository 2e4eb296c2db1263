package transport

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"

	carillonv1 "github.com/carillon-timers/carillon/proto/carillon/v1"
	"github.com/carillon-timers/carillon/raftfsm"
	"github.com/carillon-timers/carillon/shard"
)

// workError receives until the stream ends and returns its error as one of the closed set.
func (w *workClient) workError() error {
	for {
		if _, err := w.Recv(); err != nil {
			return ErrorOf(StatusOf(err))
		}
	}
}

// drain receives until the stream ends and counts the deliveries.
func (w *workClient) drain(n *atomic.Int64) {
	for {
		msg, err := w.Recv()
		if err != nil {
			return
		}
		n.Add(int64(len(msg.Deliveries)))
	}
}

func TestWorkDeliversInOrderAndSettles(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		backend := &fakeBackend{}
		h := serve(t, testConfig(), backend)
		src := newSource(3)
		w := h.work("q", 1000)
		src.add(h.server.Hub(), queueNamed("q"), 0, 500)
		got := w.take(500)
		for i, d := range got {
			if want := fmt.Sprintf("s3-%06d", i); d.Id != want || d.Revision != int64(i+1) {
				t.Fatalf("delivery %d is %s, want %s", i, d.Id, want)
			}
		}
		d := got[7]
		token, err := raftfsm.ParseToken(d.Token)
		if err != nil || token.ID != d.Id || d.Attempt != 1 || d.Epoch != 3 || d.Shard != 3 || d.Queue != "q" ||
			d.Namespace != "default" || string(d.Payload) != "payload" || !d.Due.AsTime().Equal(time.UnixMilli(7)) {
			t.Errorf("got %v, %v", d, err)
		}
		w.send(&carillonv1.WorkRequest{
			Acks:  [][]byte{got[0].Token, []byte("no token of ours")},
			Nacks: []*carillonv1.Nack{{Token: got[1].Token, Delay: durationpb.New(1500 * time.Microsecond), Error: strings.Repeat("é", 800)}},
		})
		outcomes := make(map[string]carillonv1.SettleOutcome)
		for _, s := range w.settled(3) {
			outcomes[string(s.Token)] = s.Outcome
		}
		if outcomes[string(got[0].Token)] != 1 || outcomes[string(got[1].Token)] != 1 || outcomes["no token of ours"] != 2 {
			t.Errorf("got %v", outcomes)
		}
		cmds := backend.applied()
		if c := cmds[0].GetComplete(); c.GetId() != got[0].Id || c.Revision != 1 || c.TokenEpoch != 3 {
			t.Errorf("ack became %v", cmds[0])
		}
		if r := cmds[1].GetRetry(); r.GetId() != got[1].Id || !r.HasDelay || r.DelayMs != 2 || len(r.Error) > 1024 || !strings.HasSuffix(r.Error, "é") {
			t.Errorf("nack became %v", cmds[1])
		}
		if st := h.server.Stats(); st.Sent != 500 || st.Done != 2 || st.Stale != 1 || st.BadTokens != 1 {
			t.Errorf("got %+v", st)
		}
	})
}

func TestWorkNeverExceedsCredits(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		h := serve(t, testConfig(), &fakeBackend{})
		q := queueNamed("q")
		sources := []*fakeSource{newSource(0), newSource(1)}
		for _, src := range sources {
			src.add(h.server.Hub(), q, 0, 1000)
		}
		w := h.work("q", 0)
		given := 0
		for _, n := range []int{1, 7, 200, 3} {
			given += n
			w.send(&carillonv1.WorkRequest{Credits: int32(n)})
			w.take(n)
			synctest.Wait()
			if left := sources[0].left(q) + sources[1].left(q); left != 2000-given {
				t.Fatalf("%d were taken for %d credits", 2000-left, given)
			}
		}
	})
}

func TestWorkHeartbeats(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		h := serve(t, testConfig(), &fakeBackend{})
		w := h.work("q", 10)
		last := time.Now()
		for range 5 {
			msg, err := w.Recv()
			if err != nil || msg.Heartbeat == nil || !msg.Heartbeat.Now.AsTime().Equal(time.Now()) {
				t.Fatalf("got %v, %v", msg, err)
			}
			if wait := time.Since(last); wait > HeartbeatLimit {
				t.Errorf("no heartbeat for %v", wait)
			}
			last = time.Now()
		}
	})
}

// A sender that always has something to send beats too.
func TestWorkHeartbeatsWhileBusy(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		h := serve(t, testConfig(), &fakeBackend{})
		src := newSource(1)
		src.onTake = func() { time.Sleep(100 * time.Millisecond) } // fake time
		src.add(h.server.Hub(), queueNamed("q"), 0, 30_000)
		w := h.work("q", 9000)
		beats, last := 0, time.Now()
		for begin := last; time.Since(begin) < 12*time.Second; {
			msg, err := w.Recv()
			if err != nil {
				t.Fatal(err)
			}
			if msg.Heartbeat != nil {
				beats++
				last = time.Now()
			}
			if time.Since(last) > HeartbeatLimit {
				t.Fatalf("no heartbeat for %v", time.Since(last))
			}
		}
		if beats < 3 {
			t.Errorf("%d heartbeats", beats)
		}
	})
}

// A worker that dies loses nothing: what it had and had not answered goes to its next attempt, what it had answered
// does not.
func TestWorkGivesBackWhatADeadWorkerHad(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		backend := &fakeBackend{}
		failures := 3
		backend.onApply = func(_ context.Context, cmd *raftfsm.Command) Outcome {
			if cmd.GetRetry() != nil && failures > 0 { // the leader is moving
				failures--
				return Outcome{Err: &shard.NotLeaderError{}}
			}
			return Outcome{}
		}
		h := serve(t, testConfig(), backend)
		src, q := newSource(1), queueNamed("q")
		src.add(h.server.Hub(), q, 0, 1000)
		w := h.work("q", 700)
		got := w.take(700)
		w.send(&carillonv1.WorkRequest{Acks: [][]byte{got[0].Token, got[1].Token}})
		w.settled(2)
		w.cancel()
		time.Sleep(time.Second)
		synctest.Wait()
		given := make(map[string]int)
		for _, cmd := range backend.applied() {
			if r := cmd.GetRetry(); r != nil {
				given[r.Id]++
				if r.HasDelay || r.Error != "worker w disconnected" {
					t.Fatalf("got %v", r)
				}
			}
		}
		if len(given) != 698 || given[got[0].Id] != 0 {
			t.Errorf("%d were given back, want 698", len(given))
		}
		st := h.server.Stats()
		if st.GivenBack != 698 || st.NotGivenBack != 0 || st.Workers != 0 || st.Hub.Subscribers != 0 {
			t.Errorf("got %+v", st)
		}
	})
}

func TestWorkGivesUpGivingBackInBoundedTime(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		backend := &fakeBackend{onApply: func(context.Context, *raftfsm.Command) Outcome { return Outcome{Err: shard.ErrUnavailable} }}
		h := serve(t, testConfig(), backend)
		newSource(1).add(h.server.Hub(), queueNamed("q"), 0, 10)
		w := h.work("q", 10)
		w.take(10)
		w.cancel()
		time.Sleep(h.server.config.SettleTimeout)
		synctest.Wait()
		if st := h.server.Stats(); st.NotGivenBack != 10 || len(backend.applied()) != 10*giveBackTries {
			t.Errorf("%d not given back, %d commands", st.NotGivenBack, len(backend.applied()))
		}
	})
}

// A worker that closes its side in good order gets the answer to each ack, and the rest goes back.
func TestWorkCloses(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		backend := &fakeBackend{onApply: func(_ context.Context, cmd *raftfsm.Command) Outcome {
			time.Sleep(time.Second) // fake time
			return Outcome{}
		}}
		h := serve(t, testConfig(), backend)
		newSource(1).add(h.server.Hub(), queueNamed("q"), 0, 10)
		w := h.work("q", 5)
		got := w.take(5)
		w.send(&carillonv1.WorkRequest{Acks: [][]byte{got[0].Token, got[1].Token}})
		if err := w.CloseSend(); err != nil {
			t.Fatal(err)
		}
		if n := len(w.settled(2)); n != 2 {
			t.Errorf("%d settled", n)
		}
		if _, err := w.Recv(); !errors.Is(err, io.EOF) {
			t.Errorf("the stream ends with %v", err)
		}
		time.Sleep(10 * time.Second)
		if st := h.server.Stats(); st.GivenBack != 3 || st.Hub.Unattended != 1 {
			t.Errorf("got %+v", st)
		}
	})
}

// A consumer that hangs delays neither the other one of its queue nor another queue, and is ended in the end.
func TestWorkHungConsumer(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		backend := &fakeBackend{}
		h := serve(t, testConfig(), backend)
		hub, src := h.server.Hub(), newSource(1)
		hung := h.work("q", 9000)
		src.add(hub, queueNamed("q"), 0, 9000) // more than the windows of a connection hold
		synctest.Wait()
		if src.left(queueNamed("q")) == 0 {
			t.Fatal("the windows hold all that was to hang the stream")
		}
		good := h.workOn(h.dial(), "q", 9000)
		other := h.workOn(h.dial(), "other", 5000)
		src.add(hub, queueNamed("other"), 0, 1000)
		var received, others atomic.Int64
		go good.drain(&received)
		go other.drain(&others)
		time.Sleep(time.Second)
		if left, n := src.left(queueNamed("q")), others.Load(); left != 0 || n != 1000 || received.Load() < 1000 {
			t.Errorf("%d are left, the other one got %d, the other queue %d", left, received.Load(), n)
		}
		time.Sleep(3 * h.server.config.SendTimeout)
		st := h.server.Stats()
		if st.StalledStreams != 1 || st.GivenBack != 9000-uint64(received.Load()) {
			t.Errorf("%d streams ended, %d given back, %d received", st.StalledStreams, st.GivenBack, received.Load())
		}
		if err := hung.workError(); !errors.Is(err, shard.ErrUnavailable) {
			t.Errorf("the hung stream ends with %v", err)
		}
	})
}

func TestWorkRefuses(t *testing.T) {
	t.Parallel()
	start := &carillonv1.WorkStart{Queue: "q"}
	for _, c := range []struct {
		field string
		send  []*carillonv1.WorkRequest
	}{
		{"start", []*carillonv1.WorkRequest{{Credits: 3}}},
		{"start", []*carillonv1.WorkRequest{{Start: start}, {Start: start}}},
		{"queue", []*carillonv1.WorkRequest{{Start: &carillonv1.WorkStart{}}}},
		{"namespace", []*carillonv1.WorkRequest{{Start: &carillonv1.WorkStart{Queue: "q", Namespace: "A"}}}},
		{"credits", []*carillonv1.WorkRequest{{Start: start, Credits: -1}}},
		{"credits", []*carillonv1.WorkRequest{{Start: start, Credits: 10_001}}},
		{"credits", []*carillonv1.WorkRequest{{Start: start, Credits: 6000}, {Credits: 4001}}},
		{"acks", []*carillonv1.WorkRequest{{Start: start, Acks: make([][]byte, 1001)}}},
		{"nacks.delay", []*carillonv1.WorkRequest{{Start: start}, {Nacks: []*carillonv1.Nack{{
			Token: raftfsm.Token{Namespace: "default", ID: "x"}.Append(nil), Delay: durationpb.New(-1)}}}}},
	} {
		t.Run(c.field, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				h := serve(t, testConfig(), &fakeBackend{})
				stream, err := h.deliveries.Work(t.Context())
				if err != nil {
					t.Fatal(err)
				}
				w := &workClient{stream, t, nil}
				for _, r := range c.send {
					if err := w.Send(r); err != nil && !errors.Is(err, io.EOF) {
						t.Fatal(err)
					}
				}
				if got := fieldOf(t, w.workError()); got != c.field {
					t.Errorf("got %q, want %q", got, c.field)
				}
			})
		})
	}
}

// Deliveries that are not answered count against the credits, until their lease has ended.
func TestWorkOutstanding(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		h := serve(t, testConfig(), &fakeBackend{})
		newSource(1).add(h.server.Hub(), queueNamed("q"), 0, MaxCredits+1)
		w := h.work("q", MaxCredits)
		got := w.take(MaxCredits)
		w.send(&carillonv1.WorkRequest{Acks: [][]byte{got[0].Token}, Credits: 1}) // the ack makes room
		w.take(1)
		w.send(&carillonv1.WorkRequest{Credits: 1})
		if got := fieldOf(t, w.workError()); got != "credits" {
			t.Errorf("got %q", got)
		}
	})
}

func TestWorkOutstandingAfterLeases(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		h := serve(t, testConfig(), &fakeBackend{})
		src := newSource(1)
		src.leaseEnd = time.Now().Add(time.Minute).UnixMilli()
		src.add(h.server.Hub(), queueNamed("q"), 0, MaxCredits+1)
		w := h.work("q", MaxCredits)
		w.take(MaxCredits)
		time.Sleep(2 * time.Minute)
		w.send(&carillonv1.WorkRequest{Credits: 1})
		w.take(1)
	})
}

// Many acks in small messages are joined, and reading stops while too many are not settled.
func TestWorkJoinsAnswersAndHoldsBack(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		release := make(chan struct{})
		backend := &fakeBackend{onApply: func(context.Context, *raftfsm.Command) Outcome {
			<-release
			return Outcome{}
		}}
		c := testConfig()
		c.SettleTimeout = time.Hour
		h := serve(t, c, backend)
		w := h.work("q", 0)
		const messages, each = 30, 1000
		sent := make(chan struct{})
		go func() {
			defer close(sent)
			for m := range messages {
				r := &carillonv1.WorkRequest{}
				for i := range each {
					r.Acks = append(r.Acks, raftfsm.Token{Namespace: "default", ID: fmt.Sprint(m, "-", i), Revision: 1}.Append(nil))
				}
				w.send(r)
			}
		}()
		synctest.Wait()
		select {
		case <-sent:
			t.Error("all was read while nothing was settled")
		default:
		}
		close(release)
		seen := make(map[string]bool)
		for _, s := range w.settled(messages * each) {
			seen[string(s.Token)] = true
		}
		<-sent
		if len(seen) != messages*each {
			t.Errorf("%d of %d settled", len(seen), messages*each)
		}
		if backend.calls > messages+1 { // all are of one shard
			t.Errorf("%d calls for %d messages", backend.calls, messages)
		}
	})
}

func TestLargeDeliveriesAreCut(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		h := serve(t, testConfig(), &fakeBackend{})
		src, q := newSource(1), queueNamed("q")
		payload := make([]byte, raftfsm.MaxPayloadBytes)
		for i := range 20 {
			src.ready[q] = append(src.ready[q], &raftfsm.Record{Namespace: "default", ID: fmt.Sprint(i), Queue: "q", Payload: payload, Revision: uint64(i + 1)})
		}
		h.server.Hub().Ready(src, q)
		w := h.work("q", 100)
		for n := 0; n < 20; {
			got := w.next() // a client's default limit of 4 MiB holds
			n += len(got)
			if len(got) != 1 && len(got) != 2 {
				t.Errorf("%d in one message", len(got))
			}
		}
	})
}

func TestUnaryAckAndNack(t *testing.T) {
	t.Parallel()
	backend := &fakeBackend{onApply: func(_ context.Context, cmd *raftfsm.Command) Outcome {
		switch cmd.GetComplete().GetId() {
		case "old":
			return Outcome{Err: shard.ErrStaleToken}
		case "lost":
			return Outcome{Err: shard.ErrUnknown}
		}
		return Outcome{}
	}}
	h := serve(t, testConfig(), backend)
	token := func(id string) []byte { return raftfsm.Token{Namespace: "default", ID: id, Revision: 2}.Append(nil) }
	resp, err := h.deliveries.Ack(t.Context(), &carillonv1.AckRequest{Tokens: [][]byte{token("a"), token("old"), token("lost")}})
	if err != nil {
		t.Fatal(err)
	}
	for i, want := range []carillonv1.SettleOutcome{1, 2, 3} {
		if got := resp.Settled[i]; got.Outcome != want {
			t.Errorf("%d: got %v, want %v", i, got, want)
		}
	}
	if _, err = h.deliveries.Nack(t.Context(), &carillonv1.NackRequest{Nacks: []*carillonv1.Nack{{Token: token("a")}}}); err != nil {
		t.Error(err)
	}
	_, err = h.deliveries.Ack(t.Context(), &carillonv1.AckRequest{Tokens: [][]byte{token("a"), {1, 2}}})
	if got := fieldOf(t, ErrorOf(StatusOf(err))); got != "tokens[1]" {
		t.Errorf("got %q", got)
	}
	_, err = h.deliveries.Nack(t.Context(), &carillonv1.NackRequest{Nacks: []*carillonv1.Nack{{}}})
	if got := fieldOf(t, ErrorOf(StatusOf(err))); got != "nacks[0].token" {
		t.Errorf("got %q", got)
	}
}
