// Package ring places the shards of a cluster on its nodes. (A timer's shard is carillonv1.ShardOf.)
//
// Place makes the first placement: buraksezer/consistent proposes the preferred leader of each shard, and our own
// balancing makes the counts even. Replan makes every later one: it starts from the recorded map and moves the least.
// The first node of a shard's list is its preferred leader.
//
// Invariants of what both return: the replicas of one shard are distinct; each list has min(replicas, nodes) of them; the
// numbers of replicas of any two nodes differ by at most one, and so do the numbers of preferred leaders; the same input
// in another order gives the same result. The package has no state, no clock and no randomness.
package ring

import (
	"cmp"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"slices"

	"github.com/buraksezer/consistent"
	"github.com/cespare/xxhash/v2"
)

const (
	// MaxShards bounds the number of shards.
	MaxShards = 256
	// points is the number of points of a node on the hash ring.
	points = 64
	// load lets the ring give a node a quarter more than its share: with 1.0 it finds no room for 16 shards on 5 nodes.
	load = 1.25
)

// Errors of Place.
var (
	ErrNoNodes  = errors.New("no nodes to place shards on")
	ErrShards   = errors.New("the number of shards must be 1 to 256")
	ErrReplicas = errors.New("the number of replicas must be at least 1")
	ErrName     = errors.New("a node must have a name")
)

// Place assigns each of the shards to min(replicas, nodes) nodes. Duplicate nodes count once.
func Place(nodes []string, shards, replicas int) ([][]string, error) {
	nodes = distinct(nodes)
	switch {
	case len(nodes) == 0:
		return nil, ErrNoNodes
	case nodes[0] == "":
		return nil, ErrName
	case shards < 1 || shards > MaxShards:
		return nil, fmt.Errorf("%w: %d", ErrShards, shards)
	case replicas < 1:
		return nil, fmt.Errorf("%w: %d", ErrReplicas, replicas)
	}
	first := make([][]string, shards)
	for shard, owner := range propose(nodes, shards) {
		if owner != "" {
			first[shard] = []string{owner}
		}
	}
	// The ring's owners are a recorded map with one replica each: even them out first, so that leaders move least.
	return Replan(Replan(first, nodes, 1), nodes, replicas), nil
}

// distinct returns the nodes sorted, each once.
func distinct(nodes []string) []string {
	sorted := slices.Clone(nodes)
	slices.Sort(sorted)
	return slices.Compact(sorted)
}

// member is a node on the ring. The library joins a member's name and a number without a separator and keeps the points
// in a map, so "node1" and "node11" would share points: names have one length and end in a separator.
type member struct{ name, node string }

func (m member) String() string { return m.name }

func newMember(node string) member {
	sum := sha256.Sum256([]byte(node))
	return member{hex.EncodeToString(sum[:16]) + "#", node}
}

// hasher is XXH64 with seed 0, as in carillonv1.KeyHash.
type hasher struct{}

func (hasher) Sum64(b []byte) uint64 { return xxhash.Sum64(b) }

func ringConfig(shards int) consistent.Config {
	return consistent.Config{Hasher: hasher{}, PartitionCount: shards, ReplicationFactor: points, Load: load}
}

// propose asks the library who should own each shard. It panics when there are fewer shards than nodes or when it finds
// no room; then nobody is proposed ("") and the balancing alone decides.
func propose(nodes []string, shards int) (owners []string) {
	owners = make([]string, shards)
	defer func() {
		if recover() != nil {
			clear(owners)
		}
	}()
	members := make([]consistent.Member, len(nodes))
	for i, node := range nodes {
		members[i] = newMember(node)
	}
	ring := consistent.New(members, ringConfig(shards))
	for shard := range owners {
		if owner, ok := ring.GetPartitionOwner(shard).(member); ok {
			owners[shard] = owner.node
		}
	}
	return owners
}

// rank orders nodes of equal load for a shard; it spreads ties without depending on order or names.
func rank(shard int, a, b string) int {
	return cmp.Or(cmp.Compare(weight(shard, a), weight(shard, b)), cmp.Compare(a, b))
}

func weight(shard int, node string) uint64 {
	return xxhash.Sum64(append(binary.BigEndian.AppendUint64(nil, uint64(shard)), node...))
}
