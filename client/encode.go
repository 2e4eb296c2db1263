package client

import (
	"fmt"
	"math/rand/v2"
	"strings"

	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	carillonv1 "github.com/carillon-timers/carillon/proto/carillon/v1"
)

// A joined call is encoded once, when it is made: that is the copy of the caller's timer, and a batch is a row of such items.

// tagItem is the tag of an item in ScheduleBatchRequest and CancelBatchRequest.
const tagItem = 1

// encoder encodes the items of one call, one after the other.
type encoder struct {
	schedule carillonv1.ScheduleRequest
	timer    carillonv1.Timer
	queue    carillonv1.Timer_Queue
	due      carillonv1.Timer_Due
	at       timestamppb.Timestamp
	cancel   carillonv1.CancelRequest

	left int    // items that are yet to be encoded, the next included
	free []byte // where they go
}

// message is a message with generated marshalling.
type message interface {
	SizeVT() int
	MarshalToSizedBufferVT(b []byte) (int, error)
}

// encoderBytes bounds what is allocated together for the items of a call.
const encoderBytes = 16 << 10

// item encodes one item as a batch has it, with tag and length.
func (e *encoder) item(m message) []byte {
	size := m.SizeVT()
	head := protowire.SizeTag(tagItem) + protowire.SizeVarint(uint64(size))
	if total := head + size; cap(e.free) < total {
		e.free = make([]byte, 0, max(total, min(total*e.left, encoderBytes)))
	}
	b := protowire.AppendTag(e.free, tagItem, protowire.BytesType)
	b = protowire.AppendVarint(b, uint64(size))[:head+size]
	if n, err := m.MarshalToSizedBufferVT(b[head:]); err != nil || n != size {
		panic(fmt.Sprintf("%T changed while it was encoded: %d bytes in place of %d, %v", m, n, size, err)) // the caller's maps
	}
	e.free = b[len(b):]
	e.left--
	return b[:len(b):len(b)]
}

// joined is what a batch with these items is without them; the items are its unknown fields, which protobuf sends as they are.
func joined(batch []*attempt) []byte {
	size := 0
	for _, a := range batch {
		size += len(a.op.item)
	}
	b := make([]byte, 0, size)
	for _, a := range batch {
		b = append(b, a.op.item...)
	}
	return b
}

// shorten gives the schedule in an encoded item another delay; the item before is left as it was.
func shorten(item []byte, delay *durationpb.Duration) []byte {
	var batch carillonv1.ScheduleBatchRequest
	if err := batch.UnmarshalVT(item); err != nil || len(batch.Items) != 1 {
		panic(fmt.Sprintf("an item of our own is not one: %v", err))
	}
	batch.Items[0].Timer.When = &carillonv1.Timer_Delay{Delay: delay}
	e := encoder{left: 1}
	return e.item(batch.Items[0])
}

// requestIDs makes the IDs of one call.
type requestIDs struct {
	left int    // that are yet to be made, the next included
	free string // made already
}

const (
	// requestIDBytes is the length of an ID: 26 letters of 5 bits.
	requestIDBytes = 26
	// requestIDsTogether is how many are allocated together.
	requestIDsTogether = 32
	letters            = "0123456789abcdefghjkmnpqrstvwxyz"
)

// next is 128 random bits as text.
func (r *requestIDs) next() string {
	if r.free == "" {
		n := min(max(r.left, 1), requestIDsTogether)
		var b strings.Builder
		b.Grow(n * requestIDBytes)
		for range n {
			writeBits(&b, rand.Uint64())
			writeBits(&b, rand.Uint64())
		}
		r.free = b.String()
	}
	id := r.free[:requestIDBytes]
	r.free = r.free[requestIDBytes:]
	r.left--
	return id
}

func writeBits(b *strings.Builder, bits uint64) {
	for range requestIDBytes / 2 {
		b.WriteByte(letters[bits&31])
		bits >>= 5
	}
}

func newRequestID() string {
	r := requestIDs{left: 1}
	return r.next()
}
