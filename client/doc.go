// Package client is the Go SDK of Carillon: it schedules, repeats, pauses, cancels, reads and moves timers, works a
// queue, and looks after dead letters.
//
// One Client serves a whole process. It knows the members and the leader of each shard, sends each call to the node that
// leads the timer's shard, joins concurrent calls to one node into batches, and repeats a call with the same request ID
// across a failover until the caller's context ends, so that every call has the effect of one. Any node accepts any
// call, so what the client believes about the cluster can cost time but never correctness.
//
// Invariants:
//  1. Every attempt of one call carries the same request ID.
//  2. A call returns nil only after a node has answered OK; ErrUnknown says that an attempt may have been applied; every
//     other error means that the call changed nothing (of a batch, the item; Redrive and Purge count what was done before).
//  3. A call that is alone is sent at once; joining never waits for company.
//  4. Work runs at most Concurrency handlers, and each node has sent at most Prefetch deliveries that no handler has
//     started yet. What a stopping worker has not started is given back; what is at most once it deals with.
//  5. No goroutine of a Client outlives Close, and none of Work outlives its return, but a handler that ignores its
//     context for longer than DrainTimeout.
package client
