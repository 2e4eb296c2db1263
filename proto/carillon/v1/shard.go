// Package carillonv1 is the public contract of Carillon: the messages and services of carillon.v1, and the hash that places a
// timer on a shard.
package carillonv1

import (
	"strings"

	"github.com/cespare/xxhash/v2"
)

// ShardOf returns the shard, 0 to shards-1, that keeps the timer. It is part of the contract and never changes: clients
// use it to send a call to the right node, and the shard count of a cluster is fixed when it is created.
//
// The hash is XXH64 (seed 0) of the namespace, a zero byte and the hash tag of the ID; the shard is the hash modulo
// the count. An empty namespace is "default".
func ShardOf(namespace, id string, shards int) int {
	return int(KeyHash(namespace, id) % uint64(shards))
}

// KeyHash is the hash that places a timer.
func KeyHash(namespace, id string) uint64 {
	if namespace == "" {
		namespace = "default"
	}
	var buf [320]byte
	key := append(buf[:0], namespace...)
	key = append(key, 0)
	key = append(key, HashTag(id)...)
	return xxhash.Sum64(key)
}

// HashTag returns the part of the ID that is hashed: what stands between the first "{" and the next "}", if that is not
// empty, else the whole ID.
func HashTag(id string) string {
	open := strings.IndexByte(id, '{')
	if open < 0 {
		return id
	}
	length := strings.IndexByte(id[open+1:], '}')
	if length <= 0 {
		return id
	}
	return id[open+1 : open+1+length]
}
