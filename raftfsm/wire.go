package raftfsm

import (
	"encoding/binary"
	"math"

	logv1 "github.com/carillon-timers/carillon/proto/carillonlog/v1"
)

// The readers here take the wire format of the messages as MarshalVT writes it: fields in the order of their numbers, each at
// most once unless it is repeated, numbers in their range. Whatever is otherwise (also a field they do not know) they refuse,
// and the caller reads it with UnmarshalVT, which says what is wrong, if something is. What they accept means the same to both.

// wire is a message, or what is left of it.
type wire struct {
	b []byte
	// last is the tag before this one; bad turns true for what is not as expected.
	last byte
	bad  bool
}

// Wire types in a tag.
const (
	wireVarint  = 0
	wireFixed64 = 1
	wireBytes   = 2
)

// tag is the next tag, which is above the last, or equal to it if that one is repeated; 0 at the end, and when something is not as
// expected.
func (w *wire) tag(repeated bool) byte {
	if w.bad || len(w.b) == 0 {
		return 0
	}
	t := w.b[0]
	if t < 1<<3 || t >= 0x80 || t>>3 < w.last>>3 || t>>3 == w.last>>3 && !(repeated && t == w.last) {
		w.bad = true
		return 0
	}
	w.b, w.last = w.b[1:], t
	return t
}

func (w *wire) number() uint64 {
	if len(w.b) > 0 && w.b[0] < 0x80 {
		v := w.b[0]
		w.b = w.b[1:]
		return uint64(v)
	}
	v, n := binary.Uvarint(w.b)
	if n <= 0 {
		w.bad = true
		return 0
	}
	w.b = w.b[n:]
	return v
}

func (w *wire) small() uint32 {
	v := w.number()
	w.bad = w.bad || v > math.MaxUint32
	return uint32(v)
}

func (w *wire) flag() bool {
	v := w.number()
	w.bad = w.bad || v > 1
	return v == 1
}

func (w *wire) double() float64 {
	if len(w.b) < 8 {
		w.bad = true
		return 0
	}
	v := binary.LittleEndian.Uint64(w.b)
	w.b = w.b[8:]
	return math.Float64frombits(v)
}

func (w *wire) bytes() []byte {
	if len(w.b) > 0 && w.b[0] < 0x80 {
		if n := 1 + int(w.b[0]); n <= len(w.b) {
			out := w.b[1:n:n]
			w.b = w.b[n:]
			return out
		}
	}
	return w.longBytes()
}

// longBytes is bytes of any length.
func (w *wire) longBytes() []byte {
	n := w.number()
	if n > uint64(len(w.b)) {
		w.bad = true
		return nil
	}
	out := w.b[:n:n]
	w.b = w.b[n:]
	return out
}

func (w *wire) text() string { return borrow(w.bytes()) }

// unknown notes a tag that is not known.
func (w *wire) unknown() { w.bad = true }

// ok says that all was read.
func (w *wire) ok() bool { return !w.bad && len(w.b) == 0 }

// readWire reads the body of a log entry; false if it is not as expected.
func (e *entry) readWire(b []byte) bool {
	w := wire{b: b}
	for t := w.tag(true); t != 0; t = w.tag(t == 5<<3|wireBytes) {
		switch t {
		case 1<<3 | wireVarint:
			e.epoch = w.number()
		case 2<<3 | wireVarint:
			e.clock = int64(w.number())
		case 3<<3 | wireVarint:
			e.proposer = w.number()
		case 4<<3 | wireVarint:
			e.sequence = w.number()
		case 5<<3 | wireBytes:
			if !e.readCommand(w.bytes()) {
				return false
			}
		case 6<<3 | wireBytes:
			if !e.readBegin(w.bytes()) {
				return false
			}
		default:
			return false
		}
	}
	return w.ok()
}

func (e *entry) readBegin(b []byte) bool {
	e.begin = true
	w := wire{b: b}
	for t := w.tag(false); t != 0; t = w.tag(false) {
		switch t {
		case 1<<3 | wireBytes:
			e.node = w.text()
		case 2<<3 | wireBytes:
			w.bytes()
		default:
			w.unknown()
		}
	}
	return w.ok()
}

// readCommand reads one command, which has one kind and nothing else. The kinds that are rare are read as messages.
func (e *entry) readCommand(b []byte) bool {
	w := wire{b: b}
	t := w.tag(false)
	in := wire{b: w.bytes()}
	if !w.ok() || t&7 != wireBytes || t>>3 < byte(kindSchedule) || t>>3 > byte(kindAtomic) {
		return false
	}
	if t>>3 > byte(kindRetry) {
		m := &logv1.Command{}
		if m.UnmarshalVT(b) != nil || m.HasUnknown() {
			return false
		}
		e.commands = append(e.commands, e.command(m))
		return true
	}
	c := e.next(commandKind(t >> 3))
	switch c.kind {
	case kindSchedule:
		e.readSchedule(&in, c)
	case kindCancel:
		in.cancel(c)
	case kindReschedule:
		in.reschedule(c)
	case kindComplete:
		in.complete(c)
	case kindRetry:
		in.retry(c)
	}
	c.namespace = space(c.namespace)
	return in.ok()
}

func (e *entry) readSchedule(w *wire, c *command) {
	for t := w.tag(false); t != 0; t = w.tag(t == 9<<3|wireBytes || t == 10<<3|wireBytes) {
		switch t {
		case 1<<3 | wireBytes:
			c.namespace = w.text()
		case 2<<3 | wireBytes:
			c.id = w.text()
		case 3<<3 | wireVarint:
			c.due = int64(w.number())
		case 4<<3 | wireVarint:
			w.number() // the delay, which means nothing in the log
		case 5<<3 | wireVarint:
			c.isDelay = w.flag()
		case 6<<3 | wireBytes:
			c.queue = w.text()
		case 7<<3 | wireBytes:
			c.payload = w.bytes()
		case 8<<3 | wireBytes:
			c.contentType = w.text()
		case 9<<3 | wireBytes:
			e.readPair(w, &c.headers)
		case 10<<3 | wireBytes:
			e.readPair(w, &c.labels)
		case 11<<3 | wireBytes:
			in := wire{b: w.bytes()}
			in.policy(&c.retry)
			w.bad = w.bad || !in.ok()
		case 12<<3 | wireVarint:
			c.ifExists = w.small()
		case 13<<3 | wireVarint:
			c.expected = w.number()
		case 14<<3 | wireBytes:
			c.requestID = w.bytes()
		case 15<<3 | wireBytes:
			m := &logv1.Extra{}
			w.message(m)
			c.also().extra = m
		default:
			w.unknown()
		}
	}
}

// message reads a message that few commands have.
func (w *wire) message(m vtMessage) {
	w.bad = w.bad || m.UnmarshalVT(w.bytes()) != nil || m.HasUnknown()
}

// nextMessage is the message of a Next.
func (w *wire) nextMessage(c *command) {
	m := &logv1.Next{}
	w.message(m)
	c.also().next = m
}

// readPair reads one more pair of those in a range.
func (e *entry) readPair(w *wire, pairs *[2]uint32) {
	in, p := wire{b: w.bytes()}, Pair{}
	for t := in.tag(false); t != 0; t = in.tag(false) {
		switch t {
		case 1<<3 | wireBytes:
			p.Key = in.text()
		case 2<<3 | wireBytes:
			p.Value = in.text()
		default:
			in.unknown()
		}
	}
	w.bad = w.bad || !in.ok()
	if pairs[0] == pairs[1] {
		pairs[0] = uint32(len(e.pairs))
	}
	e.pairs = append(e.pairs, p)
	pairs[1] = uint32(len(e.pairs))
}

func (w *wire) policy(p *RetryPolicy) {
	for t := w.tag(false); t != 0; t = w.tag(false) {
		switch t {
		case 1<<3 | wireVarint:
			p.Lease = int64(w.number())
		case 2<<3 | wireVarint:
			p.InitialBackoff = int64(w.number())
		case 3<<3 | wireVarint:
			p.MaxBackoff = int64(w.number())
		case 4<<3 | wireFixed64:
			p.Multiplier = w.double()
		case 5<<3 | wireVarint:
			p.MaxAttempts = w.small()
		default:
			w.unknown()
		}
	}
}

func (w *wire) cancel(c *command) {
	for t := w.tag(false); t != 0; t = w.tag(false) {
		switch t {
		case 1<<3 | wireBytes:
			c.namespace = w.text()
		case 2<<3 | wireBytes:
			c.id = w.text()
		case 3<<3 | wireVarint:
			c.expected = w.number()
		case 4<<3 | wireBytes:
			c.requestID = w.bytes()
		case 5<<3 | wireVarint:
			c.firing = w.flag()
		case 6<<3 | wireVarint:
			c.hold = w.number()
		default:
			w.unknown()
		}
	}
}

func (w *wire) reschedule(c *command) {
	for t := w.tag(false); t != 0; t = w.tag(false) {
		switch t {
		case 1<<3 | wireBytes:
			c.namespace = w.text()
		case 2<<3 | wireBytes:
			c.id = w.text()
		case 3<<3 | wireVarint:
			c.due = int64(w.number())
		case 4<<3 | wireVarint:
			w.number()
		case 5<<3 | wireVarint:
			c.isDelay = w.flag()
		case 6<<3 | wireVarint:
			c.expected = w.number()
		case 7<<3 | wireBytes:
			c.requestID = w.bytes()
		case 8<<3 | wireVarint:
			c.now = w.flag()
		default:
			w.unknown()
		}
	}
}

func (w *wire) complete(c *command) {
	for t := w.tag(false); t != 0; t = w.tag(false) {
		switch t {
		case 1<<3 | wireBytes:
			c.namespace = w.text()
		case 2<<3 | wireBytes:
			c.id = w.text()
		case 3<<3 | wireVarint:
			c.revision = w.number()
		case 4<<3 | wireVarint:
			c.attempt = w.small()
		case 5<<3 | wireVarint:
			c.tokenEpoch = w.number()
		case 6<<3 | wireVarint:
			c.hold = w.number()
		case 7<<3 | wireVarint:
			c.handed = int64(w.number())
		case 8<<3 | wireBytes:
			w.nextMessage(c)
		case 9<<3 | wireVarint:
			c.ahead = w.flag()
		default:
			w.unknown()
		}
	}
}

func (w *wire) retry(c *command) {
	for t := w.tag(false); t != 0; t = w.tag(false) {
		switch t {
		case 1<<3 | wireBytes:
			c.namespace = w.text()
		case 2<<3 | wireBytes:
			c.id = w.text()
		case 3<<3 | wireVarint:
			c.revision = w.number()
		case 4<<3 | wireVarint:
			c.attempt = w.small()
		case 5<<3 | wireVarint:
			c.tokenEpoch = w.number()
		case 7<<3 | wireVarint:
			w.number() // the consumer's wait, which Stamp has turned into a due time
		case 6<<3 | wireVarint:
			c.due = int64(w.number())
		case 8<<3 | wireVarint:
			w.flag()
		case 9<<3 | wireBytes:
			c.errorText = w.text()
		case 10<<3 | wireVarint:
			c.hold = w.number()
		case 11<<3 | wireVarint:
			c.handed = int64(w.number())
		case 12<<3 | wireBytes:
			w.nextMessage(c)
		case 13<<3 | wireVarint:
			c.dead = w.flag()
		case 14<<3 | wireVarint:
			c.returned = w.flag()
		case 15<<3 | wireVarint:
			c.lapsed = w.flag()
		default:
			w.unknown()
		}
	}
}
