package raftfsm

import (
	"encoding/binary"

	"github.com/cespare/xxhash/v2"
)

// The state hash is the wrapped sum of XXH64 over each record, finished timer and remembered write in a canonical form,
// mixed with the counters. So it follows each change at the cost of that change, does not depend on slots, and is equal
// on replicas at one index.

func appendText(b []byte, text string) []byte {
	return append(binary.AppendUvarint(b, uint64(len(text))), text...)
}

func appendNumbers(b []byte, numbers ...uint64) []byte {
	for _, n := range numbers {
		b = binary.LittleEndian.AppendUint64(b, n)
	}
	return b
}

// appendPairs writes pairs as they lie in a blob.
func appendPairs(b []byte, pairs []Pair) []byte {
	if len(pairs) == 0 {
		return b
	}
	b = binary.AppendUvarint(b, uint64(len(pairs)))
	for _, p := range pairs {
		b = appendText(appendText(b, p.Key), p.Value)
	}
	return b
}

// recordSum is the timer's part of the state hash. In its canonical form pairs are as they lie in a blob, and none are a zero. That
// of a plain timer is as it was before there were others.
func (s *state) recordSum(r *record, c *body) uint64 {
	p := &s.table.profiles[r.profile]
	b := append(s.scratch[:0], 1)
	if len(c.extra) > 0 || p.maxAttempts > 0 {
		b[0] = 4
		b = appendNumbers(appendText(b, borrow(c.extra)), uint64(p.maxAttempts))
	}
	b = appendText(appendText(appendText(appendText(b, p.namespace), c.id), p.queue), p.contentType)
	b = appendText(b, c.lastError)
	for _, pairs := range [2][]byte{c.headers, c.labels} {
		if len(pairs) == 0 {
			b = append(b, 0)
		}
		b = append(b, pairs...)
	}
	b = appendNumbers(b, uint64(p.lease), uint64(p.initialBackoff), uint64(p.maxBackoff), p.multiplier, uint64(c.due),
		uint64(r.nextDue), r.accepted, r.revision, uint64(r.attempt), uint64(c.created))
	b = append(b, c.payload...)
	s.scratch = b
	return xxhash.Sum64(b)
}

func (s *state) finishedSum(seq uint64) uint64 {
	it := s.finishedAt(seq)
	namespace, id, queue := s.finishedTexts(seq)
	firing := uint64(0)
	if it.firing {
		firing = 1
	}
	b := append(s.scratch[:0], 2, byte(len(namespace)), byte(len(id)))
	b = append(append(append(b, namespace...), id...), queue...)
	b = appendNumbers(b, seq, it.revision, uint64(it.due), uint64(it.created), uint64(it.at), uint64(it.attempt),
		uint64(it.state), firing)
	if c, i := s.finished.chunk(seq); c.items[i].lifeLen > 0 {
		b = append(appendNumbers(b, uint64(c.items[i].lifeLen)), c.lifeBytes(i)...)
		b[0] = 5
	}
	s.scratch = b
	return xxhash.Sum64(b)
}

func (s *state) requestSum(seq uint64, it *requestItem) uint64 {
	b := append(s.scratch[:0], 3)
	b = appendNumbers(b, seq, it.high, it.low, it.revision, uint64(it.due), uint64(it.at), uint64(it.answer))
	s.scratch = b
	return xxhash.Sum64(b)
}

func (s *state) reignSum(r *Reign) uint64 {
	b := append(s.scratch[:0], 6)
	b = appendNumbers(b, r.Epoch, uint64(r.Begun))
	b = append(b, r.Node...)
	s.scratch = b
	return xxhash.Sum64(b)
}

// digest is the hash of the whole state.
func (s *state) digest() uint64 {
	var b [80]byte
	return xxhash.Sum64(appendNumbers(b[:0], s.sum, s.index, s.epoch, uint64(s.clock), uint64(s.epochClock), s.accepted,
		s.finished.last, s.requests.last, uint64(s.table.count()), uint64(s.finished.live)))
}
