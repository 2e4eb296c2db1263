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

// op is one timer's part of a call, through all its attempts. Only the goroutine of the caller touches it, and of a joined call, while
// an attempt is on its way, the sender of the lane touches the attempt.
type op struct {
	namespace, id string
	// Of a joined call:
	requestID string
	item      []byte // as a batch has it; a later attempt may have another, what was sent is not changed
	cancels   bool   // it is a cancel, else a schedule
	attempt   attempt

	started   time.Time     // when the call was made
	delay     time.Duration // as the caller gave it; 0 if the timer has none
	notBefore time.Time     // when the next attempt may be made
	failures  int
	hops      int
	shard     int       // of the last attempt
	via       *endpoint // likewise
	writes    bool      // it is no read
	maybe     bool      // an attempt may have been applied
	last      error     // of the last attempt

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
// a failover means the same instant.
func (o *op) age(now time.Time) {
	if o.last != nil && o.delay > 0 {
		o.item = shorten(o.item, durationpb.New(max(0, o.delay-o.since(now))))
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
			attempt, end := c.bound(ctx, e)
			err := end(call(attempt, e, o.since(c.cfg.Now())))
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
	life := c.callOf(ctx, ops[0].started)
	defer life.stop()
	open := ops
	for {
		c.attempt(life, open)
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
		if why := life.sleep(next.Sub(c.cfg.Now())); why != nil {
			for _, o := range open {
				o.done, o.err = true, gaveUpBecause(why, o.maybe, o.last)
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
func (c *Client) attempt(life *life, ops []*op) {
	now := c.cfg.Now()
	pick := c.router.picker(len(ops))
	var missing error
	var sent []*op
	for _, o := range ops {
		if o.notBefore.After(now) {
			continue
		}
		if o.shard, o.via = pick.of(o.namespace, o.id); o.via == nil {
			if missing == nil {
				missing = life.noAddress()
			}
			c.judge(o, o.shard, nil, missing)
			continue
		}
		o.age(now)
		if sent == nil {
			sent = make([]*op, 0, len(ops))
		}
		sent = append(sent, o)
	}
	if len(sent) == 0 {
		return
	}
	r := newRound(len(sent))
	var groups batches
	for _, o := range sent {
		o.attempt.begin(o, r)
		groups.add(o, len(sent))
	}
	for _, g := range groups {
		g.lane.submit(g.attempts)
	}
	ended := life.wait(r.done)
	for _, o := range sent {
		c.take(o, ended)
	}
}

// batches are attempts by their lanes.
type batches []batch

type batch struct {
	lane     *lane
	attempts []*attempt
}

// add puts the op's attempt to those of its lane; in all there are so many.
func (b *batches) add(o *op, all int) {
	l := o.via.schedules
	if o.cancels {
		l = o.via.cancels
	}
	for i := range *b {
		if g := &(*b)[i]; g.lane == l {
			g.attempts = append(g.attempts, &o.attempt)
			return
		}
	}
	first := append(make([]*attempt, 0, min(all, all/2+1)), &o.attempt)
	*b = append(*b, batch{l, first})
}

// take moves an attempt's outcome to its op. If the round has not ended, some have none: those that are still queued are
// taken back, of the others nothing is known.
func (c *Client) take(o *op, ended bool) {
	a := &o.attempt
	if !ended {
		if a.abandon() {
			return
		}
		if a.state.Load() != attemptFinished {
			o.maybe = true
			return
		}
	}
	if a.err == nil {
		o.done, o.reply = true, a.reply
		return
	}
	c.judge(o, o.shard, o.via, a.err)
}
