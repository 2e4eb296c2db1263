package node

import (
	"cmp"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"slices"

	logv1 "github.com/carillon-timers/carillon/proto/carillonlog/v1"
)

// clusterState is the directory's replicated state: who belongs to the cluster and who holds which shard. A state is
// never changed once it is made, so whoever has the pointer may keep it.
type clusterState struct {
	ClusterID string
	Shards    int
	// Replicas is how many replicas a shard is meant to have.
	Replicas int
	// Version grows with each change of members or placement.
	Version uint64
	Members map[string]member
	// Placement holds the nodes of each shard; the first is the preferred leader.
	Placement [][]string
}

// member is a node as the directory knows it.
type member struct {
	ID, Disk, Boot, Version        string
	Client, Peer, Gossip, HTTPAddr string
	Voter                          bool
}

// formed tells whether the cluster has been created.
func (s *clusterState) formed() bool { return s.ClusterID != "" }

// memberIDs are the node IDs, sorted.
func (s *clusterState) memberIDs() []string {
	ids := make([]string, 0, len(s.Members))
	for id := range s.Members {
		ids = append(ids, id)
	}
	slices.Sort(ids)
	return ids
}

// replicas of a shard, the preferred leader first; nil if the shard is not placed.
func (s *clusterState) replicas(shard int) []string {
	if shard < 0 || shard >= len(s.Placement) {
		return nil
	}
	return s.Placement[shard]
}

// shardsOf lists the shards that the map gives to the node.
func (s *clusterState) shardsOf(node string) []int {
	var shards []int
	for shard, nodes := range s.Placement {
		if slices.Contains(nodes, node) {
			shards = append(shards, shard)
		}
	}
	return shards
}

// What an entry of the directory can come to.
var (
	errFormed   = errors.New("the cluster exists already")
	errUnformed = errors.New("the cluster does not exist yet")
	// errDiskChanged: the node ID is known with another disk; a voter that has forgotten its votes must not come back.
	errDiskChanged = errors.New("the node ID is known with another disk")
)

// apply returns the state after the entry. A refusal leaves the state as it is; fatal is set when the entry has no
// meaning for this version: a replica that goes on would differ from the others.
func (s *clusterState) apply(e *logv1.DirectoryEntry) (next *clusterState, refusal, fatal error) {
	switch kind := e.Kind.(type) {
	case *logv1.DirectoryEntry_Create:
		if s.formed() {
			return s, errFormed, nil
		}
		next = stateFromProto(&logv1.DirectoryState{
			ClusterId: kind.Create.ClusterId, Shards: kind.Create.Shards, Replicas: kind.Create.Replicas, Version: 1,
			Members: kind.Create.Members, Placement: kind.Create.Placement,
		})
		return next, nil, next.check()
	case *logv1.DirectoryEntry_PutMember:
		m := memberFromProto(kind.PutMember)
		old, known := s.Members[m.ID]
		switch {
		case !s.formed():
			return s, errUnformed, nil
		case known && old.Disk != m.Disk:
			return s, fmt.Errorf("%w: %s has %s, not %s", errDiskChanged, m.ID, old.Disk, m.Disk), nil
		case known && old == m:
			return s, nil, nil
		}
		copied := *s
		copied.Version++
		copied.Members = make(map[string]member, len(s.Members)+1)
		for id, m := range s.Members {
			copied.Members[id] = m
		}
		copied.Members[m.ID] = m
		return &copied, nil, nil
	}
	return s, nil, errors.New("directory entry of a kind that this version does not know")
}

// check verifies what a formed state promises.
func (s *clusterState) check() error {
	if s.Shards < 1 || s.Shards > MaxShards || len(s.Placement) != s.Shards || s.Replicas < 1 {
		return fmt.Errorf("directory: %d shards, %d placed, %d replicas", s.Shards, len(s.Placement), s.Replicas)
	}
	for shard, nodes := range s.Placement {
		if len(nodes) == 0 {
			return fmt.Errorf("directory: shard %d has no replica", shard)
		}
		for _, id := range nodes {
			if _, ok := s.Members[id]; !ok {
				return fmt.Errorf("directory: shard %d is placed on %q, which is no member", shard, id)
			}
		}
	}
	return nil
}

func stateFromProto(p *logv1.DirectoryState) *clusterState {
	s := &clusterState{
		ClusterID: p.ClusterId, Shards: int(p.Shards), Replicas: int(p.Replicas), Version: p.Version,
		Members: make(map[string]member, len(p.Members)),
	}
	for _, m := range p.Members {
		s.Members[m.NodeId] = memberFromProto(m)
	}
	for _, r := range p.Placement {
		s.Placement = append(s.Placement, r.Nodes)
	}
	return s
}

// proto returns the state in one fixed order: equal states give equal bytes.
func (s *clusterState) proto() *logv1.DirectoryState {
	p := &logv1.DirectoryState{ClusterId: s.ClusterID, Shards: uint32(s.Shards), Replicas: uint32(s.Replicas), Version: s.Version}
	for _, m := range s.Members {
		p.Members = append(p.Members, m.proto())
	}
	slices.SortFunc(p.Members, func(a, b *logv1.DirectoryMember) int { return cmp.Compare(a.NodeId, b.NodeId) })
	for _, nodes := range s.Placement {
		p.Placement = append(p.Placement, &logv1.ShardReplicas{Nodes: nodes})
	}
	return p
}

func memberFromProto(p *logv1.DirectoryMember) member {
	return member{
		ID: p.NodeId, Disk: p.DiskUuid, Boot: p.BootId, Version: p.Version,
		Client: p.ClientAddr, Peer: p.PeerAddr, Gossip: p.GossipAddr, HTTPAddr: p.HttpAddr, Voter: p.Voter,
	}
}

func (m member) proto() *logv1.DirectoryMember {
	return &logv1.DirectoryMember{
		NodeId: m.ID, DiskUuid: m.Disk, BootId: m.Boot, Version: m.Version,
		ClientAddr: m.Client, PeerAddr: m.Peer, GossipAddr: m.Gossip, HttpAddr: m.HTTPAddr, Voter: m.Voter,
	}
}

// The envelope of the directory's entries and snapshots: "CRLD", version, type, CRC32C (little endian) of all that
// follows and of version and type, body.
const (
	envelopeMagic    = "CRLD"
	envelopeVersion  = 1
	envelopeEntry    = 1
	envelopeSnapshot = 2
	envelopeHead     = len(envelopeMagic) + 2 + 4
)

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

func seal(kind byte, body []byte) []byte {
	b := make([]byte, 0, envelopeHead+len(body))
	b = append(b, envelopeMagic...)
	b = append(b, envelopeVersion, kind)
	sum := crc32.Update(crc32.Checksum(b[len(envelopeMagic):], castagnoli), castagnoli, body)
	b = binary.LittleEndian.AppendUint32(b, sum)
	return append(b, body...)
}

func unseal(kind byte, b []byte) ([]byte, error) {
	if len(b) < envelopeHead || string(b[:len(envelopeMagic)]) != envelopeMagic {
		return nil, errors.New("directory: not an entry or snapshot of the directory")
	}
	head, body := b[len(envelopeMagic):envelopeHead-4], b[envelopeHead:]
	if head[0] != envelopeVersion || head[1] != kind {
		return nil, fmt.Errorf("directory: version %d, type %d; this version reads version %d, type %d", head[0], head[1], envelopeVersion, kind)
	}
	sum := crc32.Update(crc32.Checksum(head, castagnoli), castagnoli, body)
	if sum != binary.LittleEndian.Uint32(b[envelopeHead-4:]) {
		return nil, errors.New("directory: checksum does not match")
	}
	return body, nil
}

// places is where the members are.
func (s *clusterState) places() map[string]memberPlace {
	places := make(map[string]memberPlace, len(s.Members))
	for id, m := range s.Members {
		places[id] = memberPlace{m.Peer, m.Gossip}
	}
	return places
}
