package raftfsm

import (
	"encoding/binary"
	"errors"
)

// Token fences a delivery (promise P6): for one timer (Epoch, Revision, Attempt) only grows from delivery to delivery.
type Token struct {
	Shard           uint32
	Epoch, Revision uint64
	// Attempt is the number of failed deliveries before this one.
	Attempt uint32
	// HandedOut is when the delivery was handed out, Unix milliseconds; 0 if that is not known.
	HandedOut     int64
	Namespace, ID string
}

// Versions of the opaque form: the first, which is still read, has no hand-out time.
const (
	firstTokenVersion = 1
	tokenVersion      = 2
)

var errToken = errors.New("token is not one of ours")

// Append writes the token in its opaque form.
func (t Token) Append(b []byte) []byte {
	b = append(b, tokenVersion)
	b = binary.AppendUvarint(b, uint64(t.Shard))
	b = binary.AppendUvarint(b, t.Epoch)
	b = binary.AppendUvarint(b, t.Revision)
	b = binary.AppendUvarint(b, uint64(t.Attempt))
	b = binary.AppendVarint(b, t.HandedOut)
	b = append(b, byte(len(t.Namespace)))
	b = append(b, t.Namespace...)
	return append(b, t.ID...)
}

// ParseToken reads the opaque form; a token that is not one of ours is an error.
func ParseToken(b []byte) (Token, error) {
	if len(b) == 0 || b[0] != tokenVersion && b[0] != firstTokenVersion {
		return Token{}, errToken
	}
	version, b := b[0], b[1:]
	var numbers [4]uint64
	for i := range numbers {
		v, n := binary.Uvarint(b)
		if n <= 0 {
			return Token{}, errToken
		}
		numbers[i], b = v, b[n:]
	}
	handed, n := int64(0), 0
	if version == tokenVersion {
		if handed, n = binary.Varint(b); n <= 0 {
			return Token{}, errToken
		}
		b = b[n:]
	}
	if numbers[0] > 1<<16 || numbers[3] > 1<<32-1 || len(b) < 1 || len(b) < 1+int(b[0]) {
		return Token{}, errToken
	}
	namespace, id := string(b[1:1+b[0]]), string(b[1+b[0]:])
	if namespace == "" || id == "" || len(id) > MaxIDBytes {
		return Token{}, errToken
	}
	return Token{
		Shard: uint32(numbers[0]), Epoch: numbers[1], Revision: numbers[2], Attempt: uint32(numbers[3]), HandedOut: handed,
		Namespace: namespace, ID: id,
	}, nil
}
