package executor

import "github.com/carillon-timers/carillon/raftfsm"

// Queue names a stream of due timers.
type Queue struct{ Namespace, Name string }

// Delivery is a timer that was handed out.
type Delivery struct {
	Record *raftfsm.Record
	Token  raftfsm.Token
	// HandedOut and LeaseEnd are Unix milliseconds on the leader's clock.
	HandedOut, LeaseEnd int64
}

// Source is the ready lists of one shard: what a Deliverer takes from.
type Source interface {
	// Shard is the number of the shard.
	Shard() uint32
	// Take hands out up to max timers of the queue, in the order of (due, acceptance), and starts their leases. It
	// returns fewer when no more are ready and none when the shard does not fire (not leading, lease not held). It
	// never waits.
	Take(q Queue, max int) []Delivery
}

// Deliverer learns that timers are ready; it calls Take when it has a consumer with credit, now or later.
type Deliverer interface {
	// Ready is called outside of all locks whenever timers were added to the queue's ready list and some are left, for one
	// queue of one shard by one goroutine at a time. It does not wait for a consumer. It may call src.Take.
	Ready(src Source, q Queue)
}
