package raftfsm

import (
	"encoding/binary"
	"fmt"
	"math/bits"
	"slices"
)

// requestItem is a remembered write: the hash of its kind, timer and request ID, and its answer.
type requestItem struct {
	high, low, revision uint64
	due, at             int64
	answer              uint32
}

// requestHashes are the high and the low half of the hash of a remembered write.
type requestHashes [2]uint64

// requestChunk holds requestSize sequences: the hashes, and the answers behind one another in text. An answer is
//
//	flags               1 byte
//	revision - base     varint; the base is the revision of the first in the chunk
//	at - base           varint
//	due - at            varint, with flagDue; without it due is 0
//	answer              uvarint, with flagAnswer; without it 0
//
// What is written is never changed, so a snapshot shares it.
type requestChunk struct {
	hashes *[requestSize]requestHashes
	// ends says where each answer ends in the text; it begins where the one before ends.
	ends *[requestSize]uint16
	text []byte
	// revision and at are the bases.
	revision uint64
	at       int64
}

// A chunk of remembered writes is so large that the collector has few of them to look at.
const (
	requestBits = 10
	requestSize = 1 << requestBits
	requestMask = requestSize - 1
)

const (
	flagDue = 1 << iota
	flagAnswer
)

func newRequestChunk(first *requestItem) requestChunk {
	return requestChunk{
		hashes: new([requestSize]requestHashes), ends: new([requestSize]uint16), revision: first.revision, at: first.at,
	}
}

// set writes item i, the first behind the last.
func (c *requestChunk) set(i uint64, it *requestItem) {
	c.hashes[i] = requestHashes{it.high, it.low}
	flags := len(c.text)
	b := append(c.text, 0)
	b = binary.AppendVarint(b, int64(it.revision-c.revision))
	b = binary.AppendVarint(b, it.at-c.at)
	if it.due != 0 {
		b[flags] |= flagDue
		b = binary.AppendVarint(b, it.due-it.at)
	}
	if it.answer != 0 {
		b[flags] |= flagAnswer
		b = binary.AppendUvarint(b, uint64(it.answer))
	}
	c.ends[i] = uint16(len(b))
	if c.text = b; i == requestMask {
		c.text = slices.Clone(b) // nothing follows, so no room is kept for it
	}
}

func (c *requestChunk) item(i uint64) requestItem {
	it := requestItem{high: c.hashes[i][0], low: c.hashes[i][1]}
	b := c.text
	if i > 0 {
		b = b[c.ends[i-1]:]
	}
	flags := b[0]
	v, b := cutVarint(b[1:])
	it.revision = c.revision + uint64(v)
	v, b = cutVarint(b)
	it.at = c.at + v
	if flags&flagDue != 0 {
		v, b = cutVarint(b)
		it.due = it.at + v
	}
	if flags&flagAnswer != 0 {
		answer, _ := cutUvarint(b)
		it.answer = uint32(answer)
	}
	return it
}

// requestWindow keeps the last writes, oldest first, without pointers in what grows. Guarded by FSM.mu.
type requestWindow struct {
	chunks []requestChunk
	// first and last are the sequences of the oldest and of the last ever; first is last+1 if there is none.
	first, last uint64
	limit       uint64
}

func newRequestWindow(limit int) requestWindow { return requestWindow{first: 1, limit: uint64(limit)} }

func (w *requestWindow) len() int { return int(w.last + 1 - w.first) }

func (w *requestWindow) chunk(seq uint64) *requestChunk {
	return &w.chunks[seq>>requestBits-w.first>>requestBits]
}

func (w *requestWindow) at(seq uint64) requestItem { return w.chunk(seq).item(seq & requestMask) }

func (w *requestWindow) hashes(seq uint64) requestHashes { return w.chunk(seq).hashes[seq&requestMask] }

func (w *requestWindow) sequence(ref uint32) uint64 { return w.first + uint64(ref-uint32(w.first)) }

func (w *requestWindow) push(it *requestItem) uint64 {
	w.last++
	if w.first == w.last {
		w.chunks = nil
	}
	if int(w.last>>requestBits-w.first>>requestBits) == len(w.chunks) {
		w.chunks = append(w.chunks, newRequestChunk(it))
	}
	w.chunk(w.last).set(w.last&requestMask, it)
	return w.last
}

// pop drops the oldest.
func (w *requestWindow) pop() {
	w.first++
	if w.first > w.last {
		w.chunks = nil
	} else if w.first&requestMask == 0 {
		w.chunks[0] = requestChunk{}
		w.chunks = w.chunks[1:]
	}
}

func (w *requestWindow) over() bool { return uint64(w.len()) > w.limit }

func (w *requestWindow) check() error {
	if w.first > w.last+1 || w.over() {
		return fmt.Errorf("request window %d..%d, limit %d", w.first, w.last, w.limit)
	}
	want := 0
	if w.len() > 0 {
		want = int(w.last>>requestBits-w.first>>requestBits) + 1
	}
	if len(w.chunks) != want {
		return fmt.Errorf("request window %d..%d has %d chunks, want %d", w.first, w.last, len(w.chunks), want)
	}
	return nil
}

// requestView is the window as a snapshot sees it.
type requestView struct {
	chunks      []requestChunk
	first, last uint64
}

func (w *requestWindow) share() requestView {
	return requestView{append([]requestChunk(nil), w.chunks...), w.first, w.last}
}

func (v *requestView) each(f func(seq uint64, it *requestItem) error) error {
	for seq := v.first; seq <= v.last; seq++ {
		it := v.chunks[seq>>requestBits-v.first>>requestBits].item(seq & requestMask)
		if err := f(seq, &it); err != nil {
			return err
		}
	}
	return nil
}

// Kinds in the key of a remembered write. They are part of the snapshot's meaning and never change.
const (
	requestSchedule   = 1
	requestCancel     = 2
	requestReschedule = 3
	requestPause      = 4
	requestResume     = 5
	requestFireNow    = 6
	requestRedrive    = 7
	requestPurge      = 8
)

// requestKey is FNV-128a over the kind, the namespace, a zero byte, the ID, a zero byte and the request ID; neither name can
// hold a zero byte.
func requestKey(kind byte, namespace, id string, requestID []byte) requestHashes {
	h := requestStart(kind, namespace).over(id)
	h[0], h[1] = fnvByte(h[0], h[1], 0)
	return h.over(borrow(requestID))
}

// requestStart is the hash of the kind and the namespace.
func requestStart(kind byte, namespace string) requestHashes {
	h := requestHashes{0x6c62272e07bb0142, 0x62b821756295c58d}
	h[0], h[1] = fnvByte(h[0], h[1], kind)
	h = h.over(namespace)
	h[0], h[1] = fnvByte(h[0], h[1], 0)
	return h
}

// place is where the write is in the index.
func (h requestHashes) place() uint64 { return (h[1] ^ h[1]>>32 ^ h[0]) * 0x9E3779B97F4A7C15 }

// requestParts are the kind and the names in the key of a command; those of a kind that has no request ID mean nothing.
func (c *command) requestParts() (kind byte, namespace, id string) {
	namespace, id = c.namespace, c.id
	switch c.kind {
	case kindSchedule:
		kind = requestSchedule
	case kindCancel:
		kind = requestCancel
	case kindReschedule:
		if kind = requestReschedule; c.now {
			kind = requestFireNow
		}
	case kindPause:
		kind = requestPause
	case kindResume:
		kind = requestResume
	case kindRedrive:
		kind, namespace, id = requestRedrive, deadNamespace(namespace), ""
	case kindPurge:
		kind, namespace, id = requestPurge, deadNamespace(namespace), ""
	}
	return kind, namespace, id
}

// requestKey is the key of a command with a request ID.
func (c *command) requestKey() requestHashes {
	kind, namespace, id := c.requestParts()
	return requestKey(kind, namespace, id, c.requestID)
}

// requestKeys finds the keys of all commands that have one, two at a time. It returns how many.
func (s *state) requestKeys(cmds []command) (n int) {
	var start requestHashes
	var kind byte
	var namespace string
	var first *command
	b, firstEnd := s.scratch[:0], 0
	for i := range cmds {
		c := &cmds[i]
		if len(c.requestID) == 0 || len(c.requestID)+len(c.id)+len(c.namespace) >= 512 {
			continue
		}
		k, space, id := c.requestParts()
		if k != kind || space != namespace {
			kind, namespace, start = k, space, requestStart(k, space)
		}
		c.request, c.keyed = start, true
		n++
		b = append(append(append(b, id...), 0), c.requestID...)
		if first == nil {
			first, firstEnd = c, len(b)
			continue
		}
		overTwo(&first.request, &c.request, b[:firstEnd], b[firstEnd:])
		first, b = nil, b[:0]
	}
	if first != nil {
		first.request = first.request.over(borrow(b))
	}
	s.scratch = b
	return n
}

// overTwo continues two hashes side by side: each step waits for the one before it, but not for the other's.
func overTwo(h, g *requestHashes, a, b []byte) {
	n := min(len(a), len(b))
	high, low, high2, low2 := h[0], h[1], g[0], g[1]
	for i, x := range a[:n] {
		high, low = fnvByte(high, low, x)
		high2, low2 = fnvByte(high2, low2, b[i])
	}
	*h = requestHashes{high, low}.over(borrow(a[n:]))
	*g = requestHashes{high2, low2}.over(borrow(b[n:]))
}

// over continues a hash.
func (h requestHashes) over(text string) requestHashes {
	high, low := h[0], h[1]
	for i := range len(text) {
		high, low = fnvByte(high, low, text[i])
	}
	return requestHashes{high, low}
}

// fnvByte multiplies by the prime 2^88 + 0x13b.
func fnvByte(high, low uint64, b byte) (uint64, uint64) {
	low ^= uint64(b)
	carry, lower := bits.Mul64(low, 0x13b)
	return high*0x13b + carry + low<<24, lower
}
