package raftfsm

import (
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"

	logv1 "github.com/carillon-timers/carillon/proto/carillonlog/v1"
)

// The envelope of a log entry: magic, format version, type, a zero byte, CRC32C (little endian) over these four bytes and the
// body, body.
const (
	entryMagic   = 0xCA
	entryVersion = 1
	entryType    = 1
	entryHeader  = 8
)

// The ways in which a log entry or a snapshot can be refused. Each means that this replica must not go on.
var (
	// ErrCorrupt: the bytes are not what was written (magic, checksum, length, structure).
	ErrCorrupt = errors.New("corrupt")
	// ErrUnsupported: it was written by a newer version (format version, type, kind of command, field).
	ErrUnsupported = errors.New("not supported by this version")
)

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// EncodeEntry appends the entry in its envelope to b.
func EncodeEntry(e *logv1.Entry, b []byte) []byte {
	start, size := len(b), e.SizeVT()
	b = append(b, entryMagic, entryVersion, entryType, 0, 0, 0, 0, 0)
	b = append(b, make([]byte, size)...)
	out := b[start:]
	if _, err := e.MarshalToSizedBufferVT(out[entryHeader:]); err != nil {
		panic(fmt.Sprintf("raftfsm: an entry of %d bytes does not fit its own size: %v", size, err))
	}
	binary.LittleEndian.PutUint32(out[4:], entryChecksum(out))
	return b
}

// DecodeEntry reads what EncodeEntry wrote. The error wraps ErrCorrupt or ErrUnsupported and names what is wrong.
func DecodeEntry(b []byte) (*logv1.Entry, error) {
	if err := checkEnvelope(b); err != nil {
		return nil, err
	}
	return decodeBody(b[entryHeader:])
}

func checkEnvelope(b []byte) error {
	if len(b) < entryHeader {
		return fmt.Errorf("log entry of %d bytes is shorter than its header: %w", len(b), ErrCorrupt)
	}
	if b[0] != entryMagic {
		return fmt.Errorf("log entry begins with %#02x: %w", b[0], ErrCorrupt)
	}
	if b[1] != entryVersion {
		return fmt.Errorf("log entry format version %d: %w", b[1], ErrUnsupported)
	}
	if b[2] != entryType || b[3] != 0 {
		return fmt.Errorf("log entry type %d.%d: %w", b[2], b[3], ErrUnsupported)
	}
	if got, want := entryChecksum(b), binary.LittleEndian.Uint32(b[4:]); got != want {
		return fmt.Errorf("log entry checksum is %08x, its bytes give %08x: %w", want, got, ErrCorrupt)
	}
	return nil
}

func decodeBody(b []byte) (*logv1.Entry, error) {
	e := &logv1.Entry{}
	if err := e.UnmarshalVT(b); err != nil {
		return nil, fmt.Errorf("log entry body: %w: %w", err, ErrCorrupt)
	}
	for i, c := range e.Commands {
		if c.Kind == nil || c.HasUnknown() {
			return nil, fmt.Errorf("command %d of %d is of an unknown kind or has an unknown field: %w", i, len(e.Commands), ErrUnsupported)
		}
	}
	if e.HasUnknown() {
		return nil, fmt.Errorf("log entry has an unknown field: %w", ErrUnsupported)
	}
	return e, nil
}

func entryChecksum(b []byte) uint32 {
	return crc32.Update(crc32.Checksum(b[:4], castagnoli), castagnoli, b[entryHeader:])
}
