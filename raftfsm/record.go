package raftfsm

import (
	"encoding/binary"
	"slices"
	"unsafe"
)

// A pending timer is one blob in a slab, without pointers; its slot holds the place of the blob alone. So what is known of a timer
// lies together, in two or three cache lines. What many timers share (namespace, queue, content type, retry policy) is a profile. A
// blob is
//
//	slot         4 bytes, little endian
//	size         uvarint, of what follows
//	flags        1 byte
//	ID           1 byte of length, text
//	profile      uvarint
//	revision     uvarint
//	accepted     uvarint
//	next due     varint
//	attempt      uvarint, with flagAttempt
//	next - due   varint, with flagMoved
//	next - made  varint; made is when the timer was created
//	headers      uvarint of pairs, each two texts with a uvarint of length; with flagHeaders
//	labels       the same; with flagLabels
//	last error   uvarint of length, text; with flagError
//	extra        uvarint of length, the bytes of logv1.Extra as MarshalVT writes them; with flagExtra
//	payload      the rest
//
// and is never changed, so whoever has the slab may read on while others write.

// record is the part of a blob that is looked at most, as it was when it was read.
type record struct {
	nextDue            int64
	accepted, revision uint64
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
	flagAttempt
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

// inner is the size of a body with its record in their blob, without slot and size.
func (c *body) inner(r *record) int {
	n := 2 + len(c.id) + uvarintLen(uint64(r.profile)) + uvarintLen(r.revision) + uvarintLen(r.accepted) +
		uvarintLen(zigzag(r.nextDue)) + uvarintLen(zigzag(r.nextDue-c.created)) + len(c.headers) + len(c.labels) + len(c.payload)
	if r.attempt != 0 {
		n += uvarintLen(uint64(r.attempt))
	}
	if c.due != r.nextDue {
		n += uvarintLen(zigzag(r.nextDue - c.due))
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

// put writes the body and its record over the bytes of their blob.
func (c *body) put(b []byte, slot uint32, r *record, inner int) {
	b = binary.LittleEndian.AppendUint32(b[:0], slot)
	b = binary.AppendUvarint(b, uint64(inner))
	flags := len(b)
	b = append(b, 0, byte(len(c.id)))
	b = append(b, c.id...)
	b = binary.AppendUvarint(b, uint64(r.profile))
	b = binary.AppendUvarint(b, r.revision)
	b = binary.AppendUvarint(b, r.accepted)
	b = binary.AppendVarint(b, r.nextDue)
	if r.attempt != 0 {
		b[flags] |= flagAttempt
		b = binary.AppendUvarint(b, uint64(r.attempt))
	}
	if c.due != r.nextDue {
		b[flags] |= flagMoved
		b = binary.AppendVarint(b, r.nextDue-c.due)
	}
	b = binary.AppendVarint(b, r.nextDue-c.created)
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

// cutUvarint takes a number from the beginning of b; most have one byte.
func cutUvarint(b []byte) (uint64, []byte) {
	if b[0] < 0x80 {
		return uint64(b[0]), b[1:]
	}
	return cutLongUvarint(b)
}

func cutLongUvarint(b []byte) (uint64, []byte) {
	v, n := binary.Uvarint(b)
	return v, b[n:]
}

func cutVarint(b []byte) (int64, []byte) {
	v, rest := cutUvarint(b)
	return int64(v>>1) ^ -int64(v&1), rest
}

// blobProfile is the profile in the inner part of a blob.
func blobProfile(in []byte) uint32 {
	v, _ := cutUvarint(in[2+int(in[1]):])
	return uint32(v)
}

// read reads the record in the inner part of a blob. The rest is that of its body.
func (r *record) read(in []byte) (rest []byte) {
	flags, b := in[0], in[2+int(in[1]):]
	v, b := cutUvarint(b)
	r.profile = uint32(v)
	r.revision, b = cutUvarint(b)
	r.accepted, b = cutUvarint(b)
	r.nextDue, b = cutVarint(b)
	if r.attempt = 0; flags&flagAttempt != 0 {
		v, b = cutUvarint(b)
		r.attempt = uint32(v)
	}
	return b
}

// bodyOf reads the body in the inner part of a blob.
func bodyOf(in []byte) body {
	var r record
	flags, id := in[0], blobID(in)
	in = r.read(in)
	c := body{id: borrow(id), due: r.nextDue}
	var ago int64
	if flags&flagMoved != 0 {
		ago, in = cutVarint(in)
		c.due = r.nextDue - ago
	}
	ago, in = cutVarint(in)
	c.created = r.nextDue - ago
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
	p, c := &v.profiles[r.profile], bodyOf(in)
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
