package client_test

import (
	"context"
	"fmt"
	"sync"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	carillonv1 "github.com/carillon-timers/carillon/proto/carillon/v1"
)

// workState is a node's side of the work streams: a list of deliveries that go out as there is credit, and a record of
// what came back.
type workState struct {
	mu      sync.Mutex
	changed chan struct{}          // closed and replaced at each change; guarded by mu, as all below
	queue   []*carillonv1.Delivery // to hand out
	streams int                    // opened so far
	open    int
	starts  []*carillonv1.WorkStart
	credits []int    // given on each stream, by number
	handed  []int    // handed out on each stream, by number
	acks    []string // tokens, over streams and unary calls
	nacks   []*carillonv1.Nack
	returns []string // tokens, over streams
	extends []*carillonv1.Extend
	stale   bool     // every lease has ended, for ExtendLease
	unary   []string // tokens that came through Ack and Nack
	refuse  error    // answers the opening of a stream
	mute    bool     // neither heartbeats nor anything else is sent
	breakUp bool     // ends the open streams
	// settle says the outcome of a token; unspecified sends no answer. Nil is done.
	settle func(token string, unary bool) carillonv1.SettleOutcome
	// refused hears of what goes to the dead letters.
	refused func(token, why string)
}

func newWorkState() *workState { return &workState{changed: make(chan struct{})} }

func (w *workState) touchLocked() {
	close(w.changed)
	w.changed = make(chan struct{})
}

// set changes something under the lock.
func (w *workState) set(f func(w *workState)) {
	w.mu.Lock()
	defer w.mu.Unlock()
	f(w)
	w.touchLocked()
}

func (w *workState) get(f func(w *workState)) {
	w.mu.Lock()
	defer w.mu.Unlock()
	f(w)
}

// push makes timers due; the token is the ID.
func (w *workState) push(lease time.Duration, ids ...string) {
	w.set(func(w *workState) {
		for _, id := range ids {
			now := time.Now()
			w.queue = append(w.queue, &carillonv1.Delivery{
				Namespace: "default", Id: id, Queue: "q", Token: []byte(id), Payload: []byte("payload of " + id),
				Due: timestamppb.New(now), HandedOut: timestamppb.New(now), LeaseEnd: timestamppb.New(now.Add(lease)),
				Attempt: 1, Epoch: 1, Revision: 1,
			})
		}
	})
}

func (n *node) Work(s carillonv1.Deliveries_WorkServer) error {
	w := n.work
	first, err := s.Recv()
	if err != nil {
		return err
	}
	var number int
	var refuse error
	w.set(func(w *workState) {
		refuse = w.refuse
		number = w.streams
		w.streams++
		w.open++
		w.starts = append(w.starts, first.GetStart())
		w.credits = append(w.credits, int(first.GetCredits()))
		w.handed = append(w.handed, 0)
	})
	defer w.set(func(w *workState) { w.open-- })
	if refuse != nil {
		return refuse
	}
	settled := make(chan []*carillonv1.Settled, 1000)
	received := make(chan error, 1)
	go func() { received <- w.receive(s, number, settled) }()
	return w.send(s, number, settled, received)
}

func (w *workState) receive(s carillonv1.Deliveries_WorkServer, number int, settled chan<- []*carillonv1.Settled) error {
	for {
		m, err := s.Recv()
		if err != nil {
			return err
		}
		var answers []*carillonv1.Settled
		w.set(func(w *workState) {
			w.credits[number] += int(m.GetCredits())
			answers = w.take(m.GetAcks(), m.GetNacks(), false)
			for _, token := range m.GetReturns() {
				w.returns = append(w.returns, string(token))
				answers = append(answers, &carillonv1.Settled{Token: token, Outcome: carillonv1.SettleOutcome_SETTLE_OUTCOME_DONE})
			}
		})
		if len(answers) > 0 {
			settled <- answers
		}
	}
}

// take records answers; called with mu held.
func (w *workState) take(acks [][]byte, nacks []*carillonv1.Nack, unary bool) (answers []*carillonv1.Settled) {
	tokens := acks
	for _, n := range nacks {
		tokens = append(tokens, n.GetToken())
	}
	for i, token := range tokens {
		outcome := carillonv1.SettleOutcome_SETTLE_OUTCOME_DONE
		if w.settle != nil {
			outcome = w.settle(string(token), unary)
		}
		if outcome == carillonv1.SettleOutcome_SETTLE_OUTCOME_DONE {
			if i < len(acks) {
				w.acks = append(w.acks, string(token))
			} else {
				nack := nacks[i-len(acks)]
				w.nacks = append(w.nacks, nack)
				if nack.GetDead() && w.refused != nil {
					w.refused(string(token), nack.GetError())
				}
			}
			if unary {
				w.unary = append(w.unary, string(token))
			}
		}
		if outcome != carillonv1.SettleOutcome_SETTLE_OUTCOME_UNSPECIFIED {
			answers = append(answers, &carillonv1.Settled{Token: token, Outcome: outcome})
		}
	}
	return answers
}

func (w *workState) send(s carillonv1.Deliveries_WorkServer, number int, settled <-chan []*carillonv1.Settled, received <-chan error) error {
	heartbeat := time.NewTicker(5 * time.Second)
	defer heartbeat.Stop()
	for {
		m := &carillonv1.WorkResponse{}
		var changed chan struct{}
		var mute, breakUp bool
		w.get(func(w *workState) {
			changed, mute, breakUp = w.changed, w.mute, w.breakUp
			for !mute && len(w.queue) > 0 && w.handed[number] < w.credits[number] {
				m.Deliveries = append(m.Deliveries, w.queue[0])
				w.queue = w.queue[1:]
				w.handed[number]++
			}
		})
		if breakUp {
			return fmt.Errorf("broken on purpose")
		}
		if len(m.Deliveries) == 0 {
			select {
			case m.Settled = <-settled:
			case <-heartbeat.C:
				m.Heartbeat = &carillonv1.Heartbeat{Now: timestamppb.Now()}
			case <-changed:
				continue
			case <-received: // half closed, or broken
				return nil
			}
		}
		if mute {
			continue
		}
		if err := s.Send(m); err != nil {
			return err
		}
	}
}

func (n *node) Ack(_ context.Context, r *carillonv1.AckRequest) (response *carillonv1.SettleResponse, err error) {
	response = &carillonv1.SettleResponse{}
	n.work.set(func(w *workState) { response.Settled = w.take(r.GetTokens(), nil, true) })
	return response, n.ask(n.c.call, "ack")
}

func (n *node) Nack(_ context.Context, r *carillonv1.NackRequest) (response *carillonv1.SettleResponse, err error) {
	response = &carillonv1.SettleResponse{}
	n.work.set(func(w *workState) { response.Settled = w.take(nil, r.GetNacks(), true) })
	return response, n.ask(n.c.call, "nack")
}

func (n *node) ExtendLease(_ context.Context, r *carillonv1.ExtendLeaseRequest) (*carillonv1.ExtendLeaseResponse, error) {
	if err := n.ask(n.c.call, "extend"); err != nil {
		return nil, err
	}
	response := &carillonv1.ExtendLeaseResponse{}
	n.work.set(func(w *workState) {
		for _, item := range r.GetItems() {
			w.extends = append(w.extends, item)
			result := &carillonv1.Extended{Token: item.GetToken()}
			if !w.stale {
				result.LeaseEnd = timestamppb.New(time.Now().Add(item.GetLease().AsDuration()))
			}
			response.Results = append(response.Results, result)
		}
	})
	return response, nil
}
