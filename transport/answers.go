package transport

import (
	"context"
	"time"

	carillonv1 "github.com/carillon-timers/carillon/proto/carillon/v1"
	"github.com/carillon-timers/carillon/raftfsm"
)

const (
	// maxUnsettled bounds the answers of one stream whose Settled is not sent yet, and the extensions that are not made
	// yet: at the limit no more is read.
	maxUnsettled = 8 * MaxAnswers
	// answerLanes bounds the answerers and the extenders of one stream: one for each shard, as there are no more than 256.
	answerLanes = 256
	// giveBackBatch bounds the retries of one call, giveBackTries how often they are tried, with giveBackWait between,
	// longer each time.
	giveBackBatch = 256
	giveBackTries = 4
	giveBackWait  = 100 * time.Millisecond
)

// parse makes the answers of a message, and the tokens that are ours. A token that is none of ours is answered as stale
// and counted.
func (w *work) parse(msg *carillonv1.WorkRequest, n int) ([]answer, []raftfsm.Token, error) {
	answers, tokens := make([]answer, 0, n), make([]raftfsm.Token, 0, n)
	bad := 0
	var slab []completing
	for i, b := range msg.Acks {
		a := answer{token: b}
		if token, err := checkToken("acks", b); err != nil {
			bad++
		} else {
			a.command, a.lane = complete(piece(&slab, len(msg.Acks)-i), token), token.Shard%answerLanes
			tokens = append(tokens, token)
		}
		answers = append(answers, a)
	}
	for _, nack := range msg.Nacks {
		a := answer{token: nack.Token}
		if token, err := checkToken("nacks", nack.Token); err != nil {
			bad++
		} else {
			if a.command, err = nackCommand(token, nack); err != nil {
				return nil, nil, err
			}
			a.lane = token.Shard % answerLanes
			tokens = append(tokens, token)
		}
		answers = append(answers, a)
	}
	for _, b := range msg.Returns {
		a := answer{token: b}
		if token, err := checkToken("returns", b); err != nil {
			bad++
		} else {
			a.command, a.lane = returnCommand(token), token.Shard%answerLanes
			tokens = append(tokens, token)
		}
		answers = append(answers, a)
	}
	w.server.counts.badTokens.Add(uint64(bad))
	return answers, tokens, nil
}

// answer hands answers to the answerers of their shards: one that starts, or the next turn of one that runs.
func (w *work) answer(answers []answer, tokens []raftfsm.Token) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, token := range tokens {
		delete(w.unanswered, token)
	}
	w.unsettled += len(answers)
	for _, a := range answers {
		waiting, runs := w.answers[a.lane]
		w.answers[a.lane] = append(waiting, a)
		if !runs {
			w.start(func() error { return w.answerAll(a.lane) })
		}
	}
}

// answerAll settles the answers of one shard until there are no more: one call of the backend at a time, and what comes
// meanwhile is joined into the next. So a shard without a leader, or with one that hangs, holds up the answers of no other.
// It outlives the stream: what was read is settled, also if the worker has gone.
func (w *work) answerAll(lane uint32) error {
	for {
		w.mu.Lock()
		waiting := w.answers[lane]
		n := min(len(waiting), MaxAnswers)
		if n == 0 {
			delete(w.answers, lane)
			w.mu.Unlock()
			w.sub.signal() // a sender that closes may wait for this
			return nil
		}
		batch := waiting[:n:n]
		w.answers[lane] = waiting[n:]
		w.mu.Unlock()
		settled := w.settle(batch)
		w.mu.Lock()
		w.settled = append(w.settled, settled...)
		w.mu.Unlock()
		w.sub.signal()
	}
}

func (w *work) settle(batch []answer) []*carillonv1.Settled {
	ctx, cancel := context.WithTimeout(w.server.root, w.server.config.SettleTimeout)
	defer cancel()
	return w.server.settle(ctx, batch)
}

// awaitRoom waits while too many answers are not settled yet. False means that the stream has ended.
func (w *work) awaitRoom() bool {
	for {
		w.mu.Lock()
		full := w.unsettled > maxUnsettled || w.extends > maxUnsettled
		w.mu.Unlock()
		if !full {
			return true
		}
		select {
		case <-w.room:
		case <-w.ctx.Done():
			return false
		}
	}
}

// takeSettled gives what is to be sent, at most MaxAnswers. Last is true if nothing will follow: the stream closes and
// all answers are settled.
func (w *work) takeSettled() (settled []*carillonv1.Settled, last bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	n := min(len(w.settled), MaxAnswers)
	settled = w.settled[:n:n]
	w.settled = w.settled[n:]
	if len(w.settled) == 0 {
		w.settled = nil
	}
	return settled, w.closing && n == 0 && len(w.answers) == 0
}

// sentSettled makes room for more answers.
func (w *work) sentSettled(n int) {
	if n == 0 {
		return
	}
	w.mu.Lock()
	w.unsettled -= n
	w.mu.Unlock()
	select {
	case w.room <- struct{}{}:
	default: // a signal is there already
	}
}

// giveBack sends what was taken for the stream and never answered to its next attempt. The stream's threads have ended.
// What cannot be given back falls to the end of its lease.
func (w *work) giveBack() error {
	w.mu.Lock()
	cmds := make([]*raftfsm.Command, 0, len(w.unanswered))
	for _, d := range w.unsent { // no attempt for the worker, so none is counted
		if _, ok := w.unanswered[d.Token]; ok {
			delete(w.unanswered, d.Token)
			cmds = append(cmds, returnCommand(d.Token))
		}
	}
	for token := range w.unanswered {
		cmds = append(cmds, retryNow(token, "worker "+w.worker+" disconnected"))
	}
	clear(w.unanswered)
	w.mu.Unlock()
	if len(cmds) == 0 {
		return nil
	}
	ctx, cancel := context.WithTimeout(w.server.root, w.server.config.SettleTimeout)
	defer cancel()
	total := len(cmds)
	for try := range giveBackTries {
		if try > 0 && !pause(ctx, giveBackWait<<try) {
			break
		}
		if cmds = w.tryGiveBack(ctx, cmds); len(cmds) == 0 {
			break
		}
	}
	w.server.counts.givenBack.Add(uint64(total - len(cmds)))
	if len(cmds) > 0 {
		w.server.counts.notGivenBack.Add(uint64(len(cmds)))
		w.server.config.Logger.Warn("deliveries of a broken stream fall to the end of their leases",
			"worker", w.worker, "count", len(cmds))
	}
	return nil
}

// tryGiveBack returns the commands whose outcome is not known or that may be tried again.
func (w *work) tryGiveBack(ctx context.Context, cmds []*raftfsm.Command) (left []*raftfsm.Command) {
	for len(cmds) > 0 {
		batch := cmds[:min(len(cmds), giveBackBatch)]
		cmds = cmds[len(batch):]
		for i, outcome := range w.server.apply(ctx, batch) {
			if settleOutcome(outcome.Err) == carillonv1.SettleOutcome_SETTLE_OUTCOME_FAILED {
				left = append(left, batch[i])
			}
		}
	}
	return left
}

// pause waits; false means that the context ended.
func pause(ctx context.Context, d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-ctx.Done():
		return false
	}
}
