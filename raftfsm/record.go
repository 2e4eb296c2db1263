package raftfsm

import (
	"encoding/binary"
	"slices"
	"unsafe"
)

// A pending timer lies in the table in two parts, both without pointers: a record in its slot, which has a fixed size, and a
// blob in a slab. What many timers share (namespace, queue, content type, retry policy) is a profile. A blob is
//
//	slot         4 bytes, little endian
//	size         uvarint, of what follows
//	flags        1 byte
//	ID           1 byte of length, text
//	next - due   varint, with flagMoved
//	next - made  varint; made is when the timer was created
//	headers      uvarint of pairs, each two texts with a uvarint of length; with flagHeaders
//	labels       the same; with flagLabels
//	last error   uvarint of length, text; with flagError
//	extra        uvarint of length, the bytes of logv1.Extra as MarshalVT writes them; with flagExtra
//	payload      the rest
//
// and is never changed, so whoever has the slab may read on while others write.

// record is the part that has a fixed size.
type record struct {
	nextDue            int64
	accepted, revision uint64
	// sum is the timer's part of the state hash.
	sum uint64
	// where is the blob's place; 0 marks a free slot.
	where            place
	attempt, profile uint32
}

// body is what a blob holds. Its texts and bytes belong to somebody else: a slab, a log entry.
type body struct {
	id           string
	due, created int64
	// headers and labels are pairs as they lie in a blob; empty if there are none.
	headers, labels []byte
	lastError       string
	extra           []byte
	payload         []byte
}

const (
	flagMoved = 1 << iota
	flagHeaders
	flagLabels
	flagError
	flagExtra
)

// borrow is the bytes as a text that is good as long as they are not written.
func borrow(b []byte) string { return unsafe.String(unsafe.SliceData(b), len(b)) }

func uvarintLen(v uint64) int {
	n := 1
	for ; v >= 0x80; v >>= 7 {
		n++
	}
	return n
}

func zigzag(v int64) uint64 { return uint64(v)<<1 ^ uint64(v>>63) }

// inner is the size of a body in its blob, without slot and size.
func (c *body) inner(nextDue int64) int {
	n := 2 + len(c.id) + uvarintLen(zigzag(nextDue-c.created)) + len(c.headers) + len(c.labels) + len(c.payload)
	if c.due != nextDue {
		n += uvarintLen(zigzag(nextDue - c.due))
	}
	if c.lastError != "" {
		n += uvarintLen(uint64(len(c.lastError))) + len(c.lastError)
	}
	if len(c.extra) > 0 {
		n += uvarintLen(uint64(len(c.extra))) + len(c.extra)
	}
	return n
}

// blobSize is the size of a blob whose inner size is n.
func blobSize(n int) int { return 4 + uvarintLen(uint64(n)) + n }

// put writes the body over the bytes of its blob.
func (c *body) put(b []byte, slot uint32, nextDue int64, inner int) {
	b = binary.LittleEndian.AppendUint32(b[:0], slot)
	b = binary.AppendUvarint(b, uint64(inner))
	flags := len(b)
	b = append(b, 0, byte(len(c.id)))
	b = append(b, c.id...)
	if c.due != nextDue {
		b[flags] |= flagMoved
		b = binary.AppendVarint(b, nextDue-c.due)
	}
	b = binary.AppendVarint(b, nextDue-c.created)
	if len(c.headers) > 0 {
		b[flags] |= flagHeaders
		b = append(b, c.headers...)
	}
	if len(c.labels) > 0 {
		b[flags] |= flagLabels
		b = append(b, c.labels...)
	}
	if c.lastError != "" {
		b[flags] |= flagError
		b = appendText(b, c.lastError)
	}
	if len(c.extra) > 0 {
		b[flags] |= flagExtra
		b = appendText(b, borrow(c.extra))
	}
	_ = append(b, c.payload...)
}

// blobSlot and blobInner are the slot of the blob that begins with b, and what is behind its size.
func blobSlot(b []byte) uint32 { return binary.LittleEndian.Uint32(b) }

func blobInner(b []byte) []byte {
	if n := b[4]; n < 0x80 {
		return b[5 : 5+int(n)]
	}
	n, used := binary.Uvarint(b[4:])
	return b[4+used : 4+used+int(n)]
}

// blobID is the ID in the inner part of a blob.
func blobID(in []byte) []byte { return in[2 : 2+int(in[1])] }

// bodyOf reads the inner part of a blob.
func bodyOf(in []byte, nextDue int64) body {
	flags, id := in[0], blobID(in)
	c := body{id: borrow(id), due: nextDue}
	in = in[2+len(id):]
	number := func() int64 {
		v, n := binary.Varint(in)
		in = in[n:]
		return v
	}
	if flags&flagMoved != 0 {
		c.due = nextDue - number()
	}
	c.created = nextDue - number()
	if flags&flagHeaders != 0 {
		c.headers, in = cutPairs(in)
	}
	if flags&flagLabels != 0 {
		c.labels, in = cutPairs(in)
	}
	if flags&flagError != 0 {
		c.lastError, in = cutText(in)
	}
	if flags&flagExtra != 0 {
		var text string
		text, in = cutText(in)
		c.extra = unsafe.Slice(unsafe.StringData(text), len(text))
	}
	c.payload = in[:len(in):len(in)]
	return c
}

// cutText takes a text with its length from the beginning of b.
func cutText(b []byte) (string, []byte) {
	size, n := binary.Uvarint(b)
	return borrow(b[n : n+int(size)]), b[n+int(size):]
}

// cutPairs takes pairs from the beginning of b, as they lie there.
func cutPairs(b []byte) (pairs, rest []byte) {
	count, n := binary.Uvarint(b)
	rest = b[n:]
	for range 2 * count {
		_, rest = cutText(rest)
	}
	return b[:len(b)-len(rest)], rest
}

// pairsOf reads pairs as they lie in a blob, into out.
func pairsOf(b []byte, out []Pair) []Pair {
	if len(b) == 0 {
		return out
	}
	count, n := binary.Uvarint(b)
	b = b[n:]
	out = slices.Grow(out, int(count))
	for range count {
		var p Pair
		p.Key, b = cutText(b)
		p.Value, b = cutText(b)
		out = append(out, p)
	}
	return out
}

// build is the timer for a reader, who may keep it: nothing in it lies in the table.
func (v *view) build(r *record) *Record {
	in := slices.Clone(v.inner(r.where))
	p, c := &v.profiles[r.profile], bodyOf(in, r.nextDue)
	out := &Record{
		Namespace: p.namespace, ID: c.id, Queue: p.queue, ContentType: p.contentType, Retry: p.policy(),
		Due: c.due, NextDue: r.nextDue, Accepted: r.accepted, Revision: r.revision, Attempt: r.attempt,
		Created: c.created, LastError: c.lastError, Extra: c.more(),
		Headers: pairsOf(c.headers, nil), Labels: pairsOf(c.labels, nil),
	}
	if len(c.payload) > 0 {
		out.Payload = c.payload
	}
	return out
}
