// Package executor fires due timers: it owns the timing wheels of many shards and hands out what is due, in order, under
// a lease. It does not keep timers (that is the Table's) and does not carry them to consumers (that is the Deliverer's).
//
// Invariants:
//
//  1. A timer in the table is always in the wheel, or an op that will put it there is in the feed: the step that takes a
//     slot out of the wheel arms it again, and only an op (Apply of Complete, Cancel, Retry; Restore) takes it away. So no
//     crash, lost answer, full stream or lost leadership can strand a timer.
//  2. A slot whose place in the wheel is not the time at which it falls due is known: ready, out or held. A change of
//     epoch makes all of them due again.
//  3. Nothing is handed out before it is due, by the wall clock as it was read for the hand-out and by service time, which
//     never goes back; nor without an epoch that leads and the lease of the leader.
//  4. First deliveries to one queue of one shard go out in the order of (due, acceptance), also after a change of leader; those of
//     at-most-once timers come when their completion is applied.
//  5. One goroutine at a time takes turns: the one that holds the baton. It calls nothing that may wait.
//
// Threads: a Loop has its workers, which Run starts and waits for. Take, Lead, Follow, Stats and the feed may be used by any
// goroutine. Locks go in the order Loop.mu, hand.mu, Exec.mu, the table's own; callbacks run under none of them. The feed
// is pushed to under the table's lock and takes none but its own.
package executor
