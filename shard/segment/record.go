package segment

import (
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"math"
	"time"

	"github.com/hashicorp/raft"
)

// castagnoli is the polynomial of all checksums.
var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// kind is what a record does to its group.
type kind uint8

const (
	kindEntry  kind = 1 // puts an entry at its index
	kindDelete kind = 2 // removes the entries from index to term, both included
	kindSet    kind = 3 // sets a key
	kindForget kind = 4 // removes everything, and starts the group anew
)

const (
	// recordHeader is the length of a record's header, alignment what the length of a record is a multiple of.
	recordHeader = 64
	alignment    = 8
	// maxIndex keeps the index behind the last one a number.
	maxIndex = math.MaxUint64 - 1
)

// record is a header; its body follows it, and zeros up to the alignment.
//
//	0 checksum of the header  4 checksum of the body  8 length of the body  12 group
//	16 sequence  24 kind  25 Raft's type  28 split  32 index  40 term  48 seconds  56 nanoseconds  64 body
type record struct {
	sum, length, group uint32
	// sequence counts the records of a group, so that a record that is missing is seen.
	sequence uint64
	kind     kind
	raft     raft.LogType
	// split is where the extensions of an entry, or the value of a key, begin in the body.
	split       uint32
	index, term uint64
	seconds     int64
	nanos       uint32
}

// size is the length of a whole record with a body of n bytes.
func size(n int) int { return (recordHeader + n + alignment - 1) &^ (alignment - 1) }

func (r *record) size() int { return size(int(r.length)) }

// appendRecord appends a record whose body is head and tail. Its sequence and the header's checksum come with stamp.
func appendRecord(b []byte, r record, head, tail []byte) []byte {
	at := len(b)
	b = append(b, make([]byte, recordHeader)...)
	b = append(append(b, head...), tail...)
	body := b[at+recordHeader:]
	h := b[at:]
	binary.LittleEndian.PutUint32(h[4:], crc32.Checksum(body, castagnoli))
	binary.LittleEndian.PutUint32(h[8:], uint32(len(body)))
	binary.LittleEndian.PutUint32(h[12:], r.group)
	h[24], h[25] = byte(r.kind), byte(r.raft)
	binary.LittleEndian.PutUint32(h[28:], uint32(len(head)))
	binary.LittleEndian.PutUint64(h[32:], r.index)
	binary.LittleEndian.PutUint64(h[40:], r.term)
	binary.LittleEndian.PutUint64(h[48:], uint64(r.seconds))
	binary.LittleEndian.PutUint32(h[56:], r.nanos)
	for len(b)%alignment != at%alignment {
		b = append(b, 0)
	}
	return b
}

func appendEntry(b []byte, group uint32, e *raft.Log) []byte {
	return appendRecord(b, record{
		group: group, kind: kindEntry, raft: e.Type, index: e.Index, term: e.Term,
		seconds: e.AppendedAt.Unix(), nanos: uint32(e.AppendedAt.Nanosecond()),
	}, e.Data, e.Extensions)
}

// stamp gives the record at the start of b its sequence, and closes its header.
func stamp(b []byte, sequence uint64) {
	binary.LittleEndian.PutUint64(b[16:], sequence)
	binary.LittleEndian.PutUint32(b, crc32.Checksum(b[4:recordHeader], castagnoli))
}

// lengthOf is the whole length of the record at the start of b, which this process has made.
func lengthOf(b []byte) int { return size(int(binary.LittleEndian.Uint32(b[8:]))) }

// headerOf is the header at the start of b, unchecked.
func headerOf(b []byte) record {
	return record{
		sum: binary.LittleEndian.Uint32(b[4:]), length: binary.LittleEndian.Uint32(b[8:]), group: binary.LittleEndian.Uint32(b[12:]),
		sequence: binary.LittleEndian.Uint64(b[16:]), kind: kind(b[24]), raft: raft.LogType(b[25]), split: binary.LittleEndian.Uint32(b[28:]),
		index: binary.LittleEndian.Uint64(b[32:]), term: binary.LittleEndian.Uint64(b[40:]),
		seconds: int64(binary.LittleEndian.Uint64(b[48:])), nanos: binary.LittleEndian.Uint32(b[56:]),
	}
}

// body is what follows the header in b.
func (r *record) body(b []byte) []byte {
	return b[recordHeader : recordHeader+int(r.length) : recordHeader+int(r.length)]
}

var (
	errHeader = errors.New("the header of a record has a wrong checksum")
	errBody   = errors.New("the body of a record has a wrong checksum")
)

// readRecord reads the record at the start of b. With errBody the header is right and returned.
func readRecord(b []byte) (r record, body []byte, err error) {
	if len(b) < recordHeader || crc32.Checksum(b[4:recordHeader], castagnoli) != binary.LittleEndian.Uint32(b) {
		return record{}, nil, errHeader
	}
	r = headerOf(b)
	switch {
	case int64(r.length) > int64(len(b)-recordHeader) || r.size() > len(b):
		return record{}, nil, fmt.Errorf("a record of %d bytes in %d", r.length, len(b))
	case r.kind == kindEntry && r.index > maxIndex:
		return record{}, nil, fmt.Errorf("an entry with index %d", r.index)
	case r.split > r.length || r.kind < kindEntry || r.kind > kindForget:
		return record{}, nil, fmt.Errorf("a record of kind %d, split at %d of %d", r.kind, r.split, r.length)
	}
	body = r.body(b)
	if crc32.Checksum(body, castagnoli) != r.sum {
		return r, nil, errBody
	}
	return r, body, nil
}

// entry makes the record Raft's again; it keeps body.
func (r *record) entry(body []byte, e *raft.Log) {
	*e = raft.Log{
		Index: r.index, Term: r.term, Type: r.raft, AppendedAt: time.Unix(r.seconds, int64(r.nanos)),
	}
	if r.split > 0 {
		e.Data = body[:r.split:r.split]
	}
	if r.split < r.length {
		e.Extensions = body[r.split:]
	}
}
