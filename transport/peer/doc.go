// Package peer carries the Raft traffic of all groups, and the nodes' own calls, over one port and one connection per
// pair of nodes.
//
// Invariants: (1) what one group sends to one node in its bulk lane arrives in the order sent; (2) the reader of a
// connection never waits for a consumer: what finds its group's queue full is answered with an error; no sender waits for
// the socket; (3) every call ends by its deadline, its context or the loss of its connection, whichever is first; (4) every
// frame is checked (CRC32C, size, type) before it is believed, and a bad one ends its connection and nothing else; (5)
// heartbeats reach Raft through the consumer channel like every other request, never beside its main loop.
//
// Threads: see DESIGN.md.
package peer
