package peer

import (
	"bufio"
	"encoding/binary"
	"fmt"
	"hash/crc32"
	"io"
)

// frameType says what a frame carries. The numbers are part of the protocol.
type frameType uint8

const (
	typeHello         frameType = 1  // handshake of the dialler
	typeWelcome       frameType = 2  // handshake of the acceptor, or its refusal
	typePing          frameType = 3  // says that the sender lives; no answer
	typeIdentify      frameType = 4  // the sender's cluster ID, when it has got one after the handshake
	typeGoAway        frameType = 5  // start nothing new on this connection
	typeDrained       frameType = 6  // the acceptor waits for nothing more on this connection
	typeCancel        frameType = 7  // the caller has given up the call with this ID
	typeResponse      frameType = 8  // answers the request with this ID
	typeCall          frameType = 9  // a request to a Handler
	typeAppendEntries frameType = 16 // Raft requests
	typeVote          frameType = 17
	typePreVote       frameType = 18
	typeTimeoutNow    frameType = 19
	typeInstall       frameType = 20 // a snapshot connection's first frame
	typeSnapshotData  frameType = 21
	typeProgress      frameType = 22 // the follower still works on the snapshot
)

// valid reports whether the protocol knows the type.
func (t frameType) valid() bool {
	return t >= typeHello && t <= typeCall || t >= typeAppendEntries && t <= typeProgress
}

// fragmented reports whether messages of the type may take several frames.
func (t frameType) fragmented() bool {
	return t == typeResponse || t == typeCall || t == typeAppendEntries
}

// Flags of a frame.
const (
	flagFirst = 1 // the first fragment of several; its payload starts with the message's length, 4 bytes
	flagMore  = 2 // more fragments of the message follow
)

// headerBytes is the size of a frame's header, little endian: payload length 4, type 1, flags 1, zero 2, group 4,
// request ID 8, CRC32C of all before it and of the payload 4.
const headerBytes = 24

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

type header struct {
	length uint32
	typ    frameType
	flags  uint8
	group  uint32
	id     uint64
	crc    uint32
}

// appendFrame appends a frame. The payload's two parts are written one behind the other.
func appendFrame(b []byte, h header, prefix, payload []byte) []byte {
	start := len(b)
	b = binary.LittleEndian.AppendUint32(b, uint32(len(prefix)+len(payload)))
	b = append(b, byte(h.typ), h.flags, 0, 0)
	b = binary.LittleEndian.AppendUint32(b, h.group)
	b = binary.LittleEndian.AppendUint64(b, h.id)
	crc := crc32.Update(0, castagnoli, b[start:])
	crc = crc32.Update(crc, castagnoli, prefix)
	crc = crc32.Update(crc, castagnoli, payload)
	b = binary.LittleEndian.AppendUint32(b, crc)
	b = append(b, prefix...)
	return append(b, payload...)
}

// parseHeader decodes and checks all of a header but its CRC.
func parseHeader(b []byte) (header, error) {
	h := header{
		length: binary.LittleEndian.Uint32(b), typ: frameType(b[4]), flags: b[5],
		group: binary.LittleEndian.Uint32(b[8:]), id: binary.LittleEndian.Uint64(b[12:]),
		crc: binary.LittleEndian.Uint32(b[20:]),
	}
	switch {
	case h.length > maxFrameBytes:
		return h, fmt.Errorf("%w: length %d is beyond %d", ErrBadFrame, h.length, maxFrameBytes)
	case !h.typ.valid():
		return h, fmt.Errorf("%w: unknown type %d", ErrBadFrame, h.typ)
	case h.flags&^(flagFirst|flagMore) != 0 || b[6] != 0 || b[7] != 0:
		return h, fmt.Errorf("%w: unknown flags", ErrBadFrame)
	case h.flags == flagFirst:
		return h, fmt.Errorf("%w: a first fragment without a second", ErrBadFrame)
	case h.flags != 0 && !h.typ.fragmented():
		return h, fmt.Errorf("%w: type %d cannot be fragmented", ErrBadFrame, h.typ)
	}
	return h, nil
}

type partKey struct {
	typ frameType
	id  uint64
}

// part is a message of which not all fragments have come.
type part struct {
	total int
	group uint32
	buf   []byte
}

// reassembler reads frames and puts fragments together. Touched by the connection's reader alone.
type reassembler struct {
	r          *bufio.Reader
	maxMessage int
	maxParts   int // bytes of unfinished messages
	parts      map[partKey]*part
	partBytes  int
	head       [headerBytes]byte
	frames     uint64
	bytes      uint64
}

func newReassembler(r io.Reader, maxMessage int) *reassembler {
	return &reassembler{
		r: bufio.NewReaderSize(r, 32<<10), maxMessage: maxMessage, maxParts: activeMax * maxMessage,
		parts: map[partKey]*part{},
	}
}

// next returns the next whole message. The payload belongs to the caller.
func (a *reassembler) next() (header, []byte, error) {
	for {
		h, err := a.readHeader()
		if err != nil {
			return h, nil, err
		}
		if h.flags == 0 && a.parts[partKey{h.typ, h.id}] == nil {
			payload := make([]byte, h.length)
			if err := a.readPayload(h, payload); err != nil {
				return h, nil, err
			}
			return h, payload, nil
		}
		payload, done, err := a.fragment(h)
		if err != nil || done {
			return h, payload, err
		}
	}
}

func (a *reassembler) readHeader() (header, error) {
	if _, err := io.ReadFull(a.r, a.head[:]); err != nil {
		return header{}, err
	}
	a.frames++
	h, err := parseHeader(a.head[:])
	a.bytes += headerBytes + uint64(h.length)
	return h, err
}

// readPayload fills p, all of the payload of h, and checks it.
func (a *reassembler) readPayload(h header, p []byte) error {
	crc, err := a.fill(crc32.Update(0, castagnoli, a.head[:headerBytes-4]), p)
	if err != nil {
		return err
	}
	return checkCRC(h, crc)
}

// fill reads the next part of a payload and carries the checksum on.
func (a *reassembler) fill(crc uint32, p []byte) (uint32, error) {
	_, err := io.ReadFull(a.r, p)
	if err == io.EOF {
		err = io.ErrUnexpectedEOF
	}
	return crc32.Update(crc, castagnoli, p), err
}

func checkCRC(h header, crc uint32) error {
	if crc == h.crc {
		return nil
	}
	return fmt.Errorf("%w: checksum of type %d is %08x, says %08x", ErrBadFrame, h.typ, crc, h.crc)
}

// fragment takes one fragment in; done says that it was the last of its message.
func (a *reassembler) fragment(h header) (payload []byte, done bool, err error) {
	key := partKey{h.typ, h.id}
	p := a.parts[key]
	if h.flags&flagFirst != 0 {
		if p != nil {
			return nil, false, fmt.Errorf("%w: a second first fragment", ErrBadFrame)
		}
		if err := a.first(h, key); err != nil {
			return nil, false, err
		}
		return nil, false, nil
	}
	if p == nil || p.group != h.group || len(p.buf)+int(h.length) > p.total {
		return nil, false, fmt.Errorf("%w: fragment does not fit its message", ErrBadFrame)
	}
	if err := a.readPayload(h, p.room(int(h.length))); err != nil {
		return nil, false, err
	}
	if h.flags&flagMore != 0 {
		return nil, false, nil
	}
	if len(p.buf) != p.total {
		return nil, false, fmt.Errorf("%w: message of %d bytes ends at %d", ErrBadFrame, p.total, len(p.buf))
	}
	delete(a.parts, key)
	a.partBytes -= p.total
	return p.buf, true, nil
}

// first begins a message of several fragments.
func (a *reassembler) first(h header, key partKey) error {
	if h.length < 4 {
		return fmt.Errorf("%w: a first fragment without a length", ErrBadFrame)
	}
	var size [4]byte
	crc, err := a.fill(crc32.Update(0, castagnoli, a.head[:headerBytes-4]), size[:])
	if err != nil {
		return err
	}
	p := &part{group: h.group, total: int(binary.LittleEndian.Uint32(size[:]))}
	if p.total > a.maxMessage || a.partBytes+p.total > a.maxParts {
		return fmt.Errorf("%w: %d bytes, the limit is %d", ErrTooLarge, p.total, a.maxMessage)
	}
	n := int(h.length) - 4
	if p.total < n {
		return fmt.Errorf("%w: fragment does not fit its message", ErrBadFrame)
	}
	if crc, err = a.fill(crc, p.room(n)); err != nil {
		return err
	}
	a.parts[key] = p
	a.partBytes += p.total
	return checkCRC(h, crc)
}

// roomBytes is how much is allocated for a message on its promise alone; beyond, the buffer grows with what comes.
const roomBytes = 4 << 20

// room lengthens the message by n bytes and returns them.
func (p *part) room(n int) []byte {
	from := len(p.buf)
	if from+n > cap(p.buf) {
		grown := make([]byte, from, min(p.total, max(4*cap(p.buf), roomBytes)))
		copy(grown, p.buf)
		p.buf = grown
	}
	p.buf = p.buf[:from+n]
	return p.buf[from:]
}
