package codec

import (
	"google.golang.org/protobuf/types/known/timestamppb"

	carillonv1 "github.com/carillon-timers/carillon/proto/carillon/v1"
)

// This file decodes the batches and their answers with few allocations. It reads items that have no more than the usual fields, and
// none twice of those that protobuf would merge; all others are left to the generated code, which decides what a message means.

// Tags: a field's number, and whether it is a varint or has a length.
const (
	varint1 = 1 << 3
	varint2 = 2 << 3
	varint3 = 3 << 3
	varint4 = 4 << 3
	bytes1  = 1<<3 | 2
	bytes2  = 2<<3 | 2
	bytes3  = 3<<3 | 2
	bytes5  = 5<<3 | 2
	bytes7  = 7<<3 | 2
)

// schedule is an item of a ScheduleBatchRequest in one piece.
type schedule struct {
	request carillonv1.ScheduleRequest
	timer   carillonv1.Timer
	queue   carillonv1.Timer_Queue
	due     carillonv1.Timer_Due
	at      timestamppb.Timestamp
}

// reader reads the items of one message.
type reader struct {
	texts
	namespace, queue string // of the item before
}

// items reads the messages of field 1 into list: each with read, in a piece that it is given, or, if that returns nil, with the generated
// code. other takes the fields that are no items. It returns false if the message is not for it.
func items[S, M any, P interface {
	*M
	UnmarshalVT([]byte) error
}](b []byte, list *[]P, read func([]byte, *S) P, other func(tag, number uint64) bool) bool {
	n, ok := count(b, bytes1)
	if !ok {
		return false
	}
	var pieces slab[S]
	*list = make([]P, 0, n)
	for len(b) > 0 {
		tag, number, body, rest, _ := next(b)
		b = rest
		if tag != bytes1 {
			if !other(tag, number) {
				return false
			}
			continue
		}
		item := read(body, pieces.take(n-len(*list)))
		if item == nil {
			if item = new(M); item.UnmarshalVT(body) != nil {
				return false
			}
		}
		*list = append(*list, item)
	}
	return true
}

// none is the other of a message that has items alone.
func none(uint64, uint64) bool { return false }

// flag is the other of a message that has a flag in field 2.
func flag(to *bool) func(tag, number uint64) bool {
	return func(tag, number uint64) bool {
		if tag != varint2 {
			return false
		}
		*to = number != 0
		return true
	}
}

// scheduleBatch returns false if the message is not for it.
func scheduleBatch(b []byte, m *carillonv1.ScheduleBatchRequest) bool {
	var r reader
	return items(b, &m.Items, func(body []byte, s *schedule) *carillonv1.ScheduleRequest {
		if !r.schedule(body, s) {
			return nil
		}
		return &s.request
	}, flag(&m.Atomic))
}

func (r *reader) schedule(b []byte, s *schedule) bool {
	for len(b) > 0 {
		tag, number, body, rest, ok := next(b)
		if !ok {
			return false
		}
		b = rest
		switch tag {
		case bytes1:
			if s.request.Timer != nil || !r.timer(body, s) {
				return false
			}
			s.request.Timer = &s.timer
		case varint2:
			s.request.IfExists = carillonv1.IfExists(number)
		case bytes3:
			s.request.RequestId = r.string(body)
		case varint4:
			s.request.ExpectedRevision = int64(number)
		default:
			return false
		}
	}
	return true
}

func (r *reader) timer(b []byte, s *schedule) bool {
	t := &s.timer
	for len(b) > 0 {
		tag, _, body, rest, ok := next(b)
		if !ok {
			return false
		}
		b = rest
		switch tag {
		case bytes1:
			r.namespace = same(r.namespace, body)
			t.Namespace = r.namespace
		case bytes2:
			t.Id = r.string(body)
		case bytes3:
			if t.When != nil || !timestamp(body, &s.at) {
				return false
			}
			s.due.Due = &s.at
			t.When = &s.due
		case bytes5:
			r.queue = same(r.queue, body)
			s.queue.Queue = r.queue
			t.Target = &s.queue
		case bytes7:
			t.Payload = r.clone(body)
		default:
			return false
		}
	}
	return true
}

func timestamp(b []byte, t *timestamppb.Timestamp) bool {
	for len(b) > 0 {
		tag, number, _, rest, ok := next(b)
		if !ok {
			return false
		}
		b = rest
		switch tag {
		case varint1:
			t.Seconds = int64(number)
		case varint2:
			t.Nanos = int32(number)
		default:
			return false
		}
	}
	return true
}

// scheduled is an item of a ScheduleBatchResponse in one piece.
type scheduled struct {
	result   carillonv1.ScheduleResult
	ok       carillonv1.ScheduleResult_Ok
	response carillonv1.ScheduleResponse
	due      timestamppb.Timestamp
}

// scheduleResults is scheduleBatch for the answer.
func scheduleResults(b []byte, m *carillonv1.ScheduleBatchResponse) bool {
	return items(b, &m.Results, func(body []byte, s *scheduled) *carillonv1.ScheduleResult {
		if !readScheduled(body, s) {
			return nil
		}
		return &s.result
	}, none)
}

func readScheduled(b []byte, s *scheduled) bool {
	tag, _, body, rest, ok := next(b)
	if !ok || tag != bytes1 || len(rest) > 0 {
		return false
	}
	s.ok.Ok = &s.response
	s.result.Outcome = &s.ok
	for len(body) > 0 {
		tag, number, due, rest, ok := next(body)
		if !ok {
			return false
		}
		body = rest
		switch tag {
		case bytes1:
			if s.response.Due != nil || !timestamp(due, &s.due) {
				return false
			}
			s.response.Due = &s.due
		case varint2:
			s.response.Revision = int64(number)
		case varint3:
			s.response.Kept = number != 0
		case varint4:
			s.response.Shard = int32(number)
		default:
			return false
		}
	}
	return true
}

// cancelBatch is scheduleBatch for cancels.
func cancelBatch(b []byte, m *carillonv1.CancelBatchRequest) bool {
	var r reader
	return items(b, &m.Items, func(body []byte, item *carillonv1.CancelRequest) *carillonv1.CancelRequest {
		if !r.cancel(body, item) {
			return nil
		}
		return item
	}, flag(&m.Atomic))
}

func (r *reader) cancel(b []byte, m *carillonv1.CancelRequest) bool {
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
			m.Id = r.string(body)
		case bytes3:
			m.RequestId = r.string(body)
		case varint4:
			m.ExpectedRevision = int64(number)
		default:
			return false
		}
	}
	return true
}

// cancelled is an item of a CancelBatchResponse in one piece.
type cancelled struct {
	result   carillonv1.CancelResult
	ok       carillonv1.CancelResult_Ok
	response carillonv1.CancelResponse
}

// cancelResults is scheduleBatch for the answer to cancels.
func cancelResults(b []byte, m *carillonv1.CancelBatchResponse) bool {
	return items(b, &m.Results, func(body []byte, s *cancelled) *carillonv1.CancelResult {
		if !readCancelled(body, s) {
			return nil
		}
		return &s.result
	}, none)
}

func readCancelled(b []byte, s *cancelled) bool {
	tag, _, body, rest, ok := next(b)
	if !ok || tag != bytes1 || len(rest) > 0 {
		return false
	}
	s.ok.Ok = &s.response
	s.result.Outcome = &s.ok
	for len(body) > 0 {
		tag, number, _, rest, ok := next(body)
		if !ok {
			return false
		}
		body = rest
		switch tag {
		case varint1:
			s.response.Outcome = carillonv1.CancelOutcome(number)
		case varint2:
			s.response.Revision = int64(number)
		default:
			return false
		}
	}
	return true
}
