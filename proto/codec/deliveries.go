package codec

import (
	"google.golang.org/protobuf/types/known/timestamppb"

	carillonv1 "github.com/carillon-timers/carillon/proto/carillon/v1"
)

// This file is batches.go for the two messages of a Work stream.

// Tags of more than one byte, and those that batches do not have.
const (
	bytes4   = 4<<3 | 2
	bytes8   = 8<<3 | 2
	bytes9   = 9<<3 | 2
	bytes10  = 10<<3 | 2
	bytes11  = 11<<3 | 2
	varint12 = 12 << 3
	varint13 = 13 << 3
	varint14 = 14 << 3
	varint15 = 15 << 3
	varint16 = 16 << 3
	varint17 = 17 << 3
)

// workRequest returns false if the message is not for it: it reads credits and acks.
func workRequest(b []byte, m *carillonv1.WorkRequest) bool {
	acks, ok := count(b, bytes3)
	if !ok {
		return false
	}
	var r reader
	if acks > 0 {
		m.Acks = make([][]byte, 0, acks)
	}
	for len(b) > 0 {
		var tag, number uint64
		var body []byte
		tag, number, body, b, _ = next(b)
		switch tag {
		case varint2:
			m.Credits = int32(number)
		case bytes3:
			m.Acks = append(m.Acks, r.clone(body))
		default:
			return false
		}
	}
	return true
}

// delivery is a delivery in one piece.
type delivery struct {
	message                  carillonv1.Delivery
	due, handedOut, leaseEnd timestamppb.Timestamp
}

// workResponse returns false if the message is not for it. What a handler may keep of a delivery, it may keep for long: it shares
// no memory with other deliveries, but for the names of namespace and queue.
func workResponse(b []byte, m *carillonv1.WorkResponse) bool {
	n, ok := count(b, bytes1)
	settled, _ := count(b, bytes2)
	if !ok {
		return false
	}
	var r reader
	var items slab[delivery]
	var answers slab[carillonv1.Settled]
	m.Deliveries = make([]*carillonv1.Delivery, 0, n)
	m.Settled = make([]*carillonv1.Settled, 0, settled)
	for len(b) > 0 {
		var tag uint64
		var body []byte
		tag, _, body, b, _ = next(b)
		switch tag {
		case bytes1:
			d := items.take(n - len(m.Deliveries))
			item := &d.message
			if !r.delivery(body, d) {
				item = &carillonv1.Delivery{}
				if item.UnmarshalVT(body) != nil {
					return false
				}
			}
			m.Deliveries = append(m.Deliveries, item)
		case bytes2:
			item := answers.take(settled - len(m.Settled))
			if !r.settled(body, item) {
				item = &carillonv1.Settled{}
				if item.UnmarshalVT(body) != nil {
					return false
				}
			}
			m.Settled = append(m.Settled, item)
		case bytes3:
			if m.Heartbeat == nil {
				m.Heartbeat = &carillonv1.Heartbeat{}
			}
			if m.Heartbeat.UnmarshalVT(body) != nil {
				return false
			}
		default:
			return false
		}
	}
	return true
}

func (r *reader) delivery(b []byte, d *delivery) bool {
	m := &d.message
	var payload, token []byte
	for len(b) > 0 {
		tag, number, body, rest, ok := next(b)
		if !ok {
			return false
		}
		b = rest
		switch tag {
		case bytes1:
			r.namespace = same(r.namespace, body)
			m.Namespace = r.namespace
		case bytes2:
			m.Id = string(body)
		case bytes3:
			r.queue = same(r.queue, body)
			m.Queue = r.queue
		case bytes4:
			payload = body
		case bytes8:
			ok = first(&m.Due, &d.due, body)
		case bytes9:
			ok = first(&m.HandedOut, &d.handedOut, body)
		case bytes10:
			ok = first(&m.LeaseEnd, &d.leaseEnd, body)
		case bytes11:
			token = body
		case varint12:
			m.Epoch = int64(number)
		case varint13:
			m.Revision = int64(number)
		case varint14:
			m.Attempt = int32(number)
		case varint15:
			m.Shard = int32(number)
		case varint16:
			m.Last = number != 0
		case varint17:
			m.Guarantee = carillonv1.Guarantee(number)
		default:
			return false
		}
		if !ok {
			return false
		}
	}
	m.Payload, m.Token = pair(payload, token)
	return true
}

// first reads a time that is not set yet.
func first(field **timestamppb.Timestamp, t *timestamppb.Timestamp, b []byte) bool {
	if *field != nil {
		return false
	}
	*field = t
	return timestamp(b, t)
}

// pair copies two into one allocation; nil stays nil.
func pair(a, b []byte) (copyA, copyB []byte) {
	n := len(a)
	both := append(append(make([]byte, 0, n+len(b)), a...), b...)
	if a != nil {
		copyA = both[:n:n]
	}
	if b != nil {
		copyB = both[n:]
	}
	return copyA, copyB
}

func (r *reader) settled(b []byte, m *carillonv1.Settled) bool {
	for len(b) > 0 {
		tag, number, body, rest, ok := next(b)
		if !ok {
			return false
		}
		b = rest
		switch tag {
		case bytes1:
			m.Token = r.clone(body)
		case varint2:
			m.Outcome = carillonv1.SettleOutcome(number)
		default:
			return false
		}
	}
	return true
}
