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

// scheduleBatch returns false if the message is not for it.
func scheduleBatch(b []byte, m *carillonv1.ScheduleBatchRequest) bool {
	n, ok := count(b, bytes1)
	if !ok {
		return false
	}
	var r reader
	var items slab[schedule]
	m.Items = make([]*carillonv1.ScheduleRequest, 0, n)
	for len(b) > 0 {
		var tag, number uint64
		var body []byte
		tag, number, body, b, _ = next(b)
		switch tag {
		case bytes1:
			s := items.take(n - len(m.Items))
			item := &s.request
			if !r.schedule(body, s) {
				item = &carillonv1.ScheduleRequest{}
				if item.UnmarshalVT(body) != nil {
					return false
				}
			}
			m.Items = append(m.Items, item)
		case varint2:
			m.Atomic = number != 0
		default:
			return false
		}
	}
	return true
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
	n, ok := count(b, bytes1)
	if !ok {
		return false
	}
	var items slab[scheduled]
	m.Results = make([]*carillonv1.ScheduleResult, 0, n)
	for len(b) > 0 {
		var tag uint64
		var body []byte
		if tag, _, body, b, _ = next(b); tag != bytes1 {
			return false
		}
		s := items.take(n - len(m.Results))
		item := &s.result
		if !readScheduled(body, s) {
			item = &carillonv1.ScheduleResult{}
			if item.UnmarshalVT(body) != nil {
				return false
			}
		}
		m.Results = append(m.Results, item)
	}
	return true
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
	n, ok := count(b, bytes1)
	if !ok {
		return false
	}
	var r reader
	var items slab[carillonv1.CancelRequest]
	m.Items = make([]*carillonv1.CancelRequest, 0, n)
	for len(b) > 0 {
		var tag, number uint64
		var body []byte
		tag, number, body, b, _ = next(b)
		switch tag {
		case bytes1:
			item := items.take(n - len(m.Items))
			if !r.cancel(body, item) {
				item = &carillonv1.CancelRequest{}
				if item.UnmarshalVT(body) != nil {
					return false
				}
			}
			m.Items = append(m.Items, item)
		case varint2:
			m.Atomic = number != 0
		default:
			return false
		}
	}
	return true
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
	n, ok := count(b, bytes1)
	if !ok {
		return false
	}
	var items slab[cancelled]
	m.Results = make([]*carillonv1.CancelResult, 0, n)
	for len(b) > 0 {
		var tag uint64
		var body []byte
		if tag, _, body, b, _ = next(b); tag != bytes1 {
			return false
		}
		s := items.take(n - len(m.Results))
		item := &s.result
		if !readCancelled(body, s) {
			item = &carillonv1.CancelResult{}
			if item.UnmarshalVT(body) != nil {
				return false
			}
		}
		m.Results = append(m.Results, item)
	}
	return true
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
