// Package transport serves clients over gRPC: it checks what they ask, passes it to the node behind it (Backend), and
// hands due timers to the workers that subscribe to queues (Hub).
//
// Invariants:
//   - nothing that breaks a limit or is not built yet reaches the backend; a wish that this version does not know
//     (an unknown field) is refused, never dropped;
//   - a worker is never sent more deliveries than it gave credits for;
//   - what was taken from a source is sent, answered, or given back as a Retry; what cannot be given back falls to the
//     end of its lease, and is counted;
//   - no lock is held while a source is asked, a message is sent or the backend works, so a consumer that hangs
//     delays nobody else.
//
// Threads: one handler, one reader and one sender for each Work stream, and one answerer while acks are on their way;
// all end before Server.Run returns.
package transport
