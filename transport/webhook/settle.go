package webhook

import (
	"context"
	"errors"
	"sync"
	"time"

	logv1 "github.com/carillon-timers/carillon/proto/carillonlog/v1"
	"github.com/carillon-timers/carillon/raftfsm"
	"github.com/carillon-timers/carillon/shard"
)

const (
	// settleBatch bounds the commands of one call, settleTimeout its time.
	settleBatch   = 256
	settleTimeout = 5 * time.Second
	// settleWaitMin to settleWaitMax is waited before what could not be settled is tried again, twice as long each time.
	settleWaitMin = 50 * time.Millisecond
	settleWaitMax = time.Second
)

// settler brings what posts came to back to the shards: one call at a time for each shard, and what comes meanwhile is joined
// into the next. So a shard without a leader holds up no other.
type settler struct {
	poster *Poster // set before sharing

	mu sync.Mutex
	// waiting holds what is to be settled of each shard that has a thread; guarded by mu.
	waiting map[uint32][]settlement
}

// settlement is one delivery on its way to be settled.
type settlement struct {
	command *raftfsm.Command
	// end is when its lease is over, Unix milliseconds: then the shard tries it again, whatever became of it.
	end int64
}

// settle hands over what a post came to. A timer that is at-most-once is settled already.
func (s *settler) settle(j *job, v verdict) {
	if j.once {
		if v.outcome != OK {
			s.poster.counts.lost.Add(1)
		}
		s.poster.settled()
		return
	}
	one := settlement{command: command(j, v), end: j.LeaseEnd}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.waiting == nil {
		s.waiting = map[uint32][]settlement{}
	}
	queue, running := s.waiting[j.Token.Shard]
	s.waiting[j.Token.Shard] = append(queue, one)
	if !running {
		s.poster.threads.Go(func() { s.run(j.Token.Shard) })
	}
}

// command is what a verdict means in the log.
func command(j *job, v verdict) *raftfsm.Command {
	t := &j.Token
	if v.outcome == OK {
		return &raftfsm.Command{Kind: &logv1.Command_Complete{Complete: &logv1.Complete{
			Namespace: t.Namespace, Id: t.ID, Revision: t.Revision, Attempt: t.Attempt, TokenEpoch: t.Epoch, HandedMs: j.HandedOut,
		}}}
	}
	retry := &logv1.Retry{
		Namespace: t.Namespace, Id: t.ID, Revision: t.Revision, Attempt: t.Attempt, TokenEpoch: t.Epoch, HandedMs: j.HandedOut,
		Error: cleanText(v.text), Dead: v.outcome == Gone, Returned: v.outcome == Returned,
	}
	if v.delay > 0 {
		retry.HasDelay, retry.DelayMs = true, v.delay.Milliseconds()
	}
	return &raftfsm.Command{Kind: &logv1.Command_Retry{Retry: retry}}
}

// run settles what waits for a shard until nothing does.
func (s *settler) run(shard uint32) {
	var left []settlement
	wait := time.Duration(0)
	for {
		s.mu.Lock()
		left = append(left, s.waiting[shard]...)
		if len(left) == 0 {
			delete(s.waiting, shard)
			s.mu.Unlock()
			return
		}
		s.waiting[shard] = nil
		s.mu.Unlock()
		before := len(left)
		left = s.try(left)
		if len(left) == 0 || len(left) < before {
			wait = 0
			continue
		}
		wait = min(max(2*wait, settleWaitMin), settleWaitMax)
		s.pause(wait)
	}
}

func (s *settler) pause(wait time.Duration) {
	timer := time.NewTimer(wait)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-s.poster.settling.Done():
	}
}

// try makes one round of calls and returns what is to be tried again.
func (s *settler) try(all []settlement) (left []settlement) {
	p := s.poster
	for len(all) > 0 {
		batch := all[:min(len(all), settleBatch)]
		all = all[len(batch):]
		commands := make([]*raftfsm.Command, len(batch))
		for i := range batch {
			commands[i] = batch[i].command
		}
		ctx, cancel := context.WithTimeout(p.settling, settleTimeout)
		errs := p.config.Settle(ctx, commands)
		cancel()
		for i, err := range errs {
			if s.again(batch[i], err) {
				left = append(left, batch[i])
				continue
			}
			p.settled()
		}
	}
	return left
}

// again says whether a delivery is to be settled again, and counts it if not. A second try changes nothing if the first one
// counted: the token is old then.
func (s *settler) again(one settlement, err error) bool {
	p := s.poster
	var invalid *shard.InvalidError
	switch {
	case err == nil:
		p.counts.settled.Add(1)
	case errors.Is(err, shard.ErrStaleToken), errors.Is(err, shard.ErrNotFound):
		p.counts.stale.Add(1)
	case errors.As(err, &invalid), p.settling.Err() != nil, p.config.Now().UnixMilli() > one.end:
		p.counts.unsettled.Add(1)
		p.logs.unsettled(err)
	default:
		return true
	}
	return false
}
