package codec

import (
	"encoding/binary"
	"strings"
)

// next cuts the first field off b: its tag, and its number or its bytes. What is neither a varint nor has a length, and
// what is damaged, is not ok: the generated code knows what to say about it.
func next(b []byte) (tag, number uint64, body, rest []byte, ok bool) {
	tag, b, ok = varint(b)
	if !ok {
		return 0, 0, nil, nil, false
	}
	number, b, ok = varint(b)
	switch {
	case !ok:
		return 0, 0, nil, nil, false
	case tag&7 == 0:
		return tag, number, nil, b, true
	case tag&7 == 2 && number <= uint64(len(b)):
		return tag, 0, b[:number], b[number:], true
	}
	return 0, 0, nil, nil, false
}

func varint(b []byte) (n uint64, rest []byte, ok bool) {
	if len(b) > 0 && b[0] < 0x80 { // the usual case
		return uint64(b[0]), b[1:], true
	}
	n, size := binary.Uvarint(b)
	if size <= 0 {
		return 0, nil, false
	}
	return n, b[size:], true
}

// count is how many fields of b have the tag; not ok if there is something that next does not read.
func count(b []byte, tag uint64) (n int, ok bool) {
	for len(b) > 0 {
		var t uint64
		if t, _, _, b, ok = next(b); !ok {
			return 0, false
		}
		if t == tag {
			n++
		}
	}
	return n, true
}

const (
	// slabItems is how many messages are allocated together: what keeps one of them keeps no more than these.
	slabItems = 32
	// slabBytes is how much text is: what is longer than a quarter of it is allocated alone.
	slabBytes = 4 << 10
)

// slab hands out zero values of T that are allocated together.
type slab[T any] struct{ free []T }

// take gives one; left is about how many are yet to be taken, this one included.
func (s *slab[T]) take(left int) *T {
	if len(s.free) == 0 {
		s.free = make([]T, min(max(left, 1), slabItems))
	}
	v := &s.free[0]
	s.free = s.free[1:]
	return v
}

// texts copies strings and bytes into few allocations.
type texts struct {
	strings strings.Builder
	bytes   []byte
}

func (t *texts) string(b []byte) string {
	switch {
	case len(b) == 0:
		return ""
	case len(b) > slabBytes/4:
		return string(b)
	case t.strings.Cap()-t.strings.Len() < len(b):
		t.strings = strings.Builder{}
		t.strings.Grow(slabBytes)
	}
	start := t.strings.Len()
	t.strings.Write(b) // there is room: what was handed out stays where it is
	return t.strings.String()[start:]
}

// clone is never nil, as the generated code has it.
func (t *texts) clone(b []byte) []byte {
	switch {
	case len(b) == 0:
		return []byte{}
	case len(b) > slabBytes/4:
		return append(make([]byte, 0, len(b)), b...)
	case cap(t.bytes)-len(t.bytes) < len(b):
		t.bytes = make([]byte, 0, slabBytes)
	}
	start := len(t.bytes)
	t.bytes = append(t.bytes, b...)
	return t.bytes[start:len(t.bytes):len(t.bytes)]
}

// same is string(b), or last if that is equal: most items of a message have the same namespace and queue.
func same(last string, b []byte) string {
	if string(b) == last { // does not allocate
		return last
	}
	return string(b)
}
