// Package node is one process of a cluster: it finds the other nodes, keeps the directory (members and the shard map),
// opens the shards that the committed map gives it, and joins all the parts below it.
//
// Invariants: (1) a node belongs to one cluster for ever, and its disk UUID belongs to its node ID for ever, so no voter
// forgets a vote; (2) replicas are opened by the committed map alone, gossip only finds addresses; (3) a replica's Raft
// is bootstrapped only by the shard's preferred node and only while it has never been opened; (4) a call is forwarded
// once, and sent again only when the answer says that it was not applied; (5) what a node does not know it shows as
// unknown.
//
// Threads: New starts none. Run starts those of the table in DESIGN.md and returns when all of them have.
package node
