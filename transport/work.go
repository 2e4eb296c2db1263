package transport

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/peer"

	carillonv1 "github.com/carillon-timers/carillon/proto/carillon/v1"
	"github.com/carillon-timers/carillon/raftfsm"
	"github.com/carillon-timers/carillon/shard"
	"github.com/carillon-timers/carillon/shard/executor"
)

var (
	errStopping = fmt.Errorf("%w: this node is stopping, open the stream at another", shard.ErrUnavailable)
	errNotRead  = fmt.Errorf("%w: the stream was ended because its worker does not read", shard.ErrUnavailable)
)

// workStream is the server's side of a Work call.
type workStream = grpc.BidiStreamingServer[carillonv1.WorkRequest, carillonv1.WorkResponse]

// work is one Work stream. Its handler waits; a reader, a sender, an answerer and an extender for each shard that has answers or extensions do the work.
type work struct {
	server *Server         // set before sharing
	stream workStream      // set before sharing; the reader receives, the sender sends
	ctx    context.Context // set before sharing; ends with the stream
	over   chan struct{}   // set before sharing; closed when the stream has an end
	room   chan struct{}   // set before sharing; holds a signal when answers were sent
	worker string          // set by the reader before the sender starts
	sub    *subscriber     // set by the reader before the sender starts
	// unsent is what the sender had taken and could not send; read when it has ended.
	unsent []executor.Delivery
	// inSend is odd while the sender is inside Send.
	inSend atomic.Uint64
	// threads counts the reader, the sender, the answerers and the extenders.
	threads sync.WaitGroup

	mu sync.Mutex
	// ended is true once over is closed, end is why; guarded by mu.
	ended bool
	end   error
	// closing is true when nothing more is taken: what was answered is settled, then the stream ends with closeErr;
	// guarded by mu.
	closing  bool
	closeErr error
	// unanswered has what was taken for this stream and not answered, with the end of its lease; guarded by mu.
	unanswered map[raftfsm.Token]int64
	// answers were read and wait for the answerer of their shard, which runs while its lane has an entry; guarded by mu.
	answers map[uint32][]answer
	// settled waits to be sent; unsettled counts the answers that were read and whose Settled is not sent yet; guarded
	// by mu.
	settled   []*carillonv1.Settled
	unsettled int
	// extensions were read and wait for the extender of their shard, which runs while its lane has an entry; extends counts
	// them; guarded by mu.
	extensions map[uint32][]extension
	extends    int
}

func newWork(s *Server, stream workStream) *work {
	return &work{
		server: s, stream: stream, ctx: stream.Context(),
		over: make(chan struct{}), room: make(chan struct{}, 1),
		unanswered: make(map[raftfsm.Token]int64), answers: make(map[uint32][]answer), extensions: make(map[uint32][]extension),
	}
}

// run serves the stream. It returns without waiting for a reader or a sender that is stuck: its return is what frees
// them. They, and what is left to give back, are waited for by the server.
func (w *work) run() error {
	w.start(w.read)
	w.server.threads.Go(func() {
		w.threads.Wait()
		_ = w.server.guarded("Work: give back", w.giveBack) // a panic is logged and counted, the leases end
	})
	stall := time.NewTicker(w.server.config.SendTimeout)
	defer stall.Stop()
	stopping := w.server.stopping.Done()
	var grace <-chan time.Time
	for last := uint64(0); ; {
		select {
		case <-w.over:
			w.mu.Lock()
			defer w.mu.Unlock()
			return w.end
		case <-w.ctx.Done():
			w.finish(context.Cause(w.ctx))
		case <-stopping:
			stopping = nil
			w.close(errStopping)
			timer := time.NewTimer(w.server.config.StopTimeout / 2)
			defer timer.Stop()
			grace = timer.C
		case <-grace:
			w.finish(errStopping)
		case <-stall.C:
			now := w.inSend.Load()
			if now%2 == 1 && now == last {
				w.server.counts.stalledSends.Add(1)
				w.finish(errNotRead)
			}
			last = now
		}
	}
}

// start runs a thread of the stream; its error ends the stream.
func (w *work) start(f func() error) {
	w.threads.Go(func() {
		if err := w.server.guarded("Work", f); err != nil {
			w.finish(err)
		}
	})
}

// finish ends the stream; the first error counts.
func (w *work) finish(err error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if !w.ended {
		w.ended, w.end = true, err
		close(w.over)
	}
}

// close ends the stream in good order: nothing more is taken, what was answered is settled.
func (w *work) close(err error) {
	w.mu.Lock()
	sub := w.sub
	if !w.closing {
		w.closing, w.closeErr = true, err
	}
	w.mu.Unlock()
	if sub == nil { // no start has come yet
		w.finish(err)
		return
	}
	w.server.hub.unsubscribe(sub)
	sub.signal()
}

// read takes what the worker sends until it ends. A worker that closes its side is done: the stream ends in good order.
func (w *work) read() error {
	msg, err := w.stream.Recv()
	if err != nil {
		return ended(err, invalid("start", "(unset)", "the first message must carry start"))
	}
	if err := w.open(msg.Start); err != nil {
		return err
	}
	for {
		if err := w.accept(msg); err != nil {
			return err
		}
		if !w.awaitRoom() {
			return nil
		}
		msg, err = w.stream.Recv()
		if errors.Is(err, io.EOF) {
			w.close(nil)
			return nil
		}
		if err != nil {
			return err
		}
		if msg.Start != nil {
			return invalid("start", "(set)", "only in the first message")
		}
	}
}

// ended is the error of a stream that ended before its time.
func ended(err, atEOF error) error {
	if errors.Is(err, io.EOF) {
		return atEOF
	}
	return err
}

// open subscribes and starts the sender.
func (w *work) open(start *carillonv1.WorkStart) error {
	if err := checkWorkStart(start); err != nil {
		return err
	}
	w.worker = start.Worker
	if from, ok := peer.FromContext(w.ctx); ok && w.worker == "" {
		w.worker = from.Addr.String()
	}
	sub := w.server.hub.subscribe(executor.Queue{Namespace: namespaceOf(start.Namespace), Name: start.Queue})
	w.mu.Lock()
	w.sub = sub
	closing := w.closing
	w.mu.Unlock()
	if closing {
		w.server.hub.unsubscribe(sub)
	}
	w.start(w.send)
	return nil
}

// accept takes one message: first the answers, so that they make room for the credits.
func (w *work) accept(msg *carillonv1.WorkRequest) error {
	if err := checkWork(msg); err != nil {
		return err
	}
	if err := w.extend(msg.Extends); err != nil {
		return err
	}
	if n := len(msg.Acks) + len(msg.Nacks) + len(msg.Returns); n > 0 {
		answers, tokens, err := w.parse(msg, n)
		if err != nil {
			return err
		}
		w.answer(answers, tokens)
	}
	if msg.Credits == 0 {
		return nil
	}
	credits := int(msg.Credits)
	if over := w.outstanding(credits); over > MaxCredits {
		return invalid("credits", fmt.Sprintf("%d (%d outstanding with them)", credits, over),
			"at most "+strconv.Itoa(MaxCredits)+" outstanding: not used, or delivered and not answered")
	}
	w.server.hub.grant(w.sub, credits)
	return nil
}

// outstanding is what the stream would have outstanding with so many credits more. Deliveries whose lease has ended do
// not count: another attempt is on its way, their answers come too late. What is unanswered is counted before what is
// unused: what is sent in between would else count twice, and end a worker that keeps to the limit.
func (w *work) outstanding(credits int) int {
	w.mu.Lock()
	unanswered := len(w.unanswered)
	w.mu.Unlock()
	if total := unanswered + w.server.hub.outstanding(w.sub) + credits; total <= MaxCredits {
		return total
	}
	w.mu.Lock()
	now := w.server.config.Now().UnixMilli()
	for token, end := range w.unanswered {
		if end < now {
			delete(w.unanswered, token)
		}
	}
	unanswered = len(w.unanswered)
	w.mu.Unlock()
	return unanswered + w.server.hub.outstanding(w.sub) + credits
}

// send takes deliveries as credits allow and sends them, with what was settled and heartbeats, until the stream ends.
func (w *work) send() error {
	defer w.server.hub.unsubscribe(w.sub)
	beat := time.NewTicker(w.server.config.Heartbeat)
	defer beat.Stop()
	out := newOutbox(w)
	due := true // the first heartbeat says that the subscription stands
	for {
		batch := w.server.hub.take(w.sub, out.batch[:0])
		w.register(batch)
		settled, last := w.takeSettled()
		due = due || ticked(beat)
		if len(batch) > 0 || len(settled) > 0 || due {
			if err := out.send(batch, settled, due); err != nil {
				w.unsent = batch[out.sent:]
				return err
			}
			due = false
			continue
		}
		if last {
			w.mu.Lock()
			err := w.closeErr
			w.mu.Unlock()
			w.finish(err)
			return nil
		}
		if !w.server.hub.await(w.sub) {
			continue
		}
		select {
		case <-w.sub.wake:
		case <-beat.C:
			due = true
		case <-w.ctx.Done():
			return context.Cause(w.ctx)
		}
	}
}

// ticked says whether the ticker has fired, so that a busy sender beats too.
func ticked(t *time.Ticker) bool {
	select {
	case <-t.C:
		return true
	default:
		return false
	}
}

// register remembers what was taken until it is answered. What is at-most-once is settled already.
func (w *work) register(batch []executor.Delivery) {
	if len(batch) == 0 {
		return
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, d := range batch {
		if !d.Record.Extra.GetAtMostOnce() {
			w.unanswered[d.Token] = d.LeaseEnd
		}
	}
}

// outbox writes messages; touched by the sender alone. It is used again for each message: Send has encoded it when it
// returns.
type outbox struct {
	work   *work
	batch  []executor.Delivery
	slots  [takeMax]carillonv1.Delivery
	list   []*carillonv1.Delivery
	tokens []byte
	sent   int // deliveries of the batch
}

func newOutbox(w *work) *outbox {
	return &outbox{work: w, batch: make([]executor.Delivery, 0, takeMax)}
}

// send sends all, in as few messages as their size allows.
func (o *outbox) send(batch []executor.Delivery, settled []*carillonv1.Settled, beat bool) error {
	server := o.work.server
	msg := &carillonv1.WorkResponse{Settled: settled}
	if beat {
		msg.Heartbeat = &carillonv1.Heartbeat{Now: moment(server.config.Now().UnixMilli())}
	}
	size := 0
	o.list, o.tokens, o.sent = o.list[:0], o.tokens[:0], 0
	for i, d := range batch {
		one := &o.slots[i]
		o.tokens = deliveryOf(one, d, o.tokens)
		n := one.SizeVT()
		if len(o.list) > 0 && size+n > maxMessageBytes {
			if err := o.transmit(msg); err != nil {
				return err
			}
			msg, size = &carillonv1.WorkResponse{}, 0
		}
		o.list = append(o.list, one)
		size += n
	}
	err := o.transmit(msg)
	if err == nil {
		clear(batch) // the records may go
	}
	return err
}

func (o *outbox) transmit(msg *carillonv1.WorkResponse) error {
	msg.Deliveries = o.list
	o.work.inSend.Add(1)
	err := o.work.stream.Send(msg)
	o.work.inSend.Add(1)
	if err == nil {
		o.sent += len(msg.Deliveries)
		o.work.server.counts.sent.Add(uint64(len(msg.Deliveries)))
		o.work.sentSettled(len(msg.Settled))
	}
	o.list = o.list[:0]
	return err
}
