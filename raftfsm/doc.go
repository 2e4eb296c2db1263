// Package raftfsm is the replicated state of a shard: the table of its timers, and the formats of the log and of the
// snapshot. It knows no Raft, no clock and no randomness; the wheel is an index of the table, kept by its owner from the
// ops that Apply pushes.
//
// Invariants (Check verifies those that are about data):
//
//  1. The state after index i depends on the log up to i alone, on the limits in Options, and on nothing else: not on slot
//     numbers, map order, the leader's flags or whether the replica was restored from a snapshot.
//  2. A timer in the table is armed, unless it is parked (paused, or a dead letter): every record that comes into a slot is followed
//     by an Arm of the slot, and only a Disarm (the slot is free, or its timer is parked) or a Reset takes it away. A slot whose hold
//     is lifted without effect is armed again.
//  3. A blob (the texts and the payload of a timer) is written once; a change writes another one. A record belongs to one
//     blob, which names its slot. What a reader or a snapshot has been given does not change.
//  4. What a command on its way would settle is not handed out: from Stamp until it is applied, released, or the epoch
//     is over. So a Cancel that was stamped as not firing finds the timer as Stamp saw it.
//  5. Apply waits for nothing, and what it does beyond its own commands is bounded per entry.
//  6. What needs a clock's calendar (where a repeat goes on, where in its window a timer lies) is computed by the leader and lies
//     in the log. It names the revision that it was computed for, and changes nothing that is at another one.
//  7. A timer that dies is a dead letter in the same entry; a repeat that goes on is not ended by a letter. A letter leaves only by
//     Redrive, as a timer in the same entry, or by Purge.
//
// Threads: any goroutine may call any method. One mutex guards all; it is a leaf: nothing is called under it but
// Feed.PushN. WriteTo and Restore do their work outside it.
package raftfsm
