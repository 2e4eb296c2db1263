package client

import (
	"context"
	"fmt"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"

	carillonv1 "github.com/carillon-timers/carillon/proto/carillon/v1"
)

// maxHops is how many hints in a row are followed without a pause: two nodes could point at each other.
const maxHops = 2

// op is one timer's part of a call, through all its attempts. Only the goroutine of the caller touches it.
type op struct {
	namespace, id string
	schedule      *carillonv1.ScheduleRequest // of a schedule
	cancel        *carillonv1.CancelRequest   // of a cancel

	started   time.Time     // when the call was made
	delay     time.Duration // as the caller gave it
	notBefore time.Time     // when the next attempt may be made
	failures  int
	hops      int
	writes    bool  // it is no read
	maybe     bool  // an attempt may have been applied
	last      error // of the last attempt

	done  bool
	err   error
	reply any
}

func (c *Client) newOp(namespace, id string, writes bool) *op {
	return &op{namespace: namespace, id: id, writes: writes, started: c.cfg.Now()}
}

// judge takes the error of an attempt: the op is done, or may be tried again from notBefore on.
func (c *Client) judge(o *op, shard int, e *endpoint, err error) {
	now := c.cfg.Now()
	o.last = err
	wait := pause(o.failures, firstPause, maxPause)
	switch v := err.(type) {
	case *notLeaderError:
		c.router.learn(shard, v)
		if v.leader == "" {
			c.hint()
		} else if o.hops++; o.hops <= maxHops {
			o.notBefore = now
			return
		}
	case *unavailableError:
		if e != nil && v.silent {
			c.router.blame(e)
		}
		o.maybe = o.maybe || v.maybe
		c.hint()
	case *OverloadedError:
		wait = max(wait, pause(o.failures, firstOverloadPause, maxOverloadPause), v.RetryAfter+jitter(v.RetryAfter/2))
	case *StatusError:
		o.done, o.err = true, err
		if o.writes && v.broken() {
			o.err = fmt.Errorf("%w: %w", ErrUnknown, err)
		}
		return
	default:
		o.done, o.err = true, err
		return
	}
	o.failures++
	o.hops = 0
	o.notBefore = now.Add(wait)
}

// age shortens the delay of a repeated attempt by the time since the call was made, so that a call that had to wait for
// a failover means the same instant. The attempt before has ended: nobody else reads the request.
func (o *op) age(now time.Time) {
	if o.last == nil || o.schedule == nil {
		return
	}
	if when, ok := o.schedule.GetTimer().GetWhen().(*carillonv1.Timer_Delay); ok {
		when.Delay = durationpb.New(max(0, o.delay-o.since(now)))
	}
}

// since is how long ago the call was made; 0 for the first attempt.
func (o *op) since(now time.Time) time.Duration {
	if o.last == nil {
		return 0
	}
	return max(0, now.Sub(o.started))
}

// read repeats a call that changes nothing until it is answered.
func (c *Client) read(ctx context.Context, namespace, id string, call func(context.Context, *endpoint) error) error {
	return c.repeat(ctx, c.newOp(namespace, id, false), func(ctx context.Context, e *endpoint, _ time.Duration) error {
		return call(ctx, e)
	})
}

// repeat makes attempts of a call that is not joined until one is answered. The call is told op.since.
func (c *Client) repeat(ctx context.Context, o *op, call func(context.Context, *endpoint, time.Duration) error) error {
	ctx, cancel := c.withDeadline(ctx)
	defer cancel()
	for {
		shard := anyNode
		switch {
		case o.id != "":
			shard = c.router.shardOf(o.namespace, o.id)
		case o.namespace == "":
			shard = askedNode
		}
		e := c.router.pick(shard)
		if e == nil {
			c.judge(o, shard, nil, c.noAddress(ctx))
		} else {
			attempt, cancel := context.WithTimeout(ctx, c.cfg.AttemptTimeout)
			err := errorOf(call(attempt, e, o.since(c.cfg.Now())))
			cancel()
			if err == nil {
				return nil
			}
			if ctx.Err() != nil { // not the node's fault
				return gaveUp(ctx, o.writes, o.last)
			}
			c.judge(o, shard, e, atAddress(e.addr, err))
		}
		if o.done {
			return o.err
		}
		if sleep(ctx, o.notBefore.Sub(c.cfg.Now())) != nil {
			return gaveUp(ctx, o.writes && o.maybe, o.last)
		}
	}
}

// noAddress says why nothing is connected: a call on a broken connection tells.
func (c *Client) noAddress(ctx context.Context) error {
	none := &unavailableError{message: "no node is connected"}
	all := c.router.list()
	if len(all) == 0 {
		return none
	}
	ctx, cancel := context.WithTimeout(ctx, connectTimeout)
	defer cancel()
	_, err := all[0].cluster.Status(ctx, &carillonv1.StatusRequest{})
	if u, ok := atAddress(all[0].addr, errorOf(err)).(*unavailableError); ok {
		u.maybe = false // the call itself was not sent
		return u
	}
	return none
}

// run makes attempts of joined calls until each op is done or the context ends; then the error of each is set.
func (c *Client) run(ctx context.Context, ops []*op) {
	ctx, cancel := c.withDeadline(ctx)
	defer cancel()
	open := ops
	for {
		c.attempt(ctx, open)
		open = unfinished(open)
		if len(open) == 0 {
			return
		}
		next := open[0].notBefore
		for _, o := range open {
			if o.notBefore.Before(next) {
				next = o.notBefore
			}
		}
		if sleep(ctx, next.Sub(c.cfg.Now())) != nil {
			for _, o := range open {
				o.done, o.err = true, gaveUp(ctx, o.maybe, o.last)
			}
			return
		}
	}
}

func unfinished(ops []*op) []*op {
	if len(ops) == 1 { // the usual case
		if ops[0].done {
			return nil
		}
		return ops
	}
	var open []*op
	for _, o := range ops {
		if !o.done {
			open = append(open, o)
		}
	}
	return open
}

// attempt sends the ops whose time has come, each to its node, and waits for the outcomes.
func (c *Client) attempt(ctx context.Context, ops []*op) {
	now := c.cfg.Now()
	type sent struct {
		*attempt
		e     *endpoint
		shard int
	}
	var attempts []sent
	var missing error
	for _, o := range ops {
		if o.notBefore.After(now) {
			continue
		}
		shard := c.router.shardOf(o.namespace, o.id)
		e := c.router.pick(shard)
		if e == nil {
			if missing == nil {
				missing = c.noAddress(ctx)
			}
			c.judge(o, shard, nil, missing)
			continue
		}
		o.age(now)
		attempts = append(attempts, sent{&attempt{op: o, size: o.size()}, e, shard})
	}
	if len(attempts) == 0 {
		return
	}
	r := newRound(len(attempts))
	groups := make(map[*lane][]*attempt, 4)
	for _, a := range attempts {
		a.round = r
		l := a.e.schedules
		if a.op.cancel != nil {
			l = a.e.cancels
		}
		groups[l] = append(groups[l], a.attempt)
	}
	for l, group := range groups {
		l.submit(group)
	}
	select {
	case <-r.done:
	case <-ctx.Done():
	}
	for _, a := range attempts {
		c.take(ctx, a.attempt, a.shard, a.e)
	}
}

// take moves an attempt's outcome to its op. After the context's end some have none: those that are still queued are
// taken back, of the others nothing is known.
func (c *Client) take(ctx context.Context, a *attempt, shard int, e *endpoint) {
	select {
	case <-a.round.done:
	default:
		if a.abandon() {
			return
		}
		if a.state.Load() != attemptFinished {
			a.op.maybe = true
			return
		}
	}
	if a.err == nil {
		a.op.done, a.op.reply = true, a.reply
		return
	}
	c.judge(a.op, shard, e, a.err)
}
