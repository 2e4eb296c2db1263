package codec

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"testing"

	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	carillonv1 "github.com/carillon-timers/carillon/proto/carillon/v1"
)

// many are the messages that have decoders of their own.
func many() []message {
	return []message{
		&carillonv1.ScheduleBatchRequest{}, &carillonv1.ScheduleBatchResponse{}, &carillonv1.CancelBatchRequest{},
		&carillonv1.CancelBatchResponse{}, &carillonv1.WorkRequest{}, &carillonv1.WorkResponse{},
	}
}

// compare decodes with our decoders and with the generated one: both refuse, or both give the same.
func compare(t *testing.T, b []byte) {
	t.Helper()
	for _, got := range many() {
		want := got.(proto.Message).ProtoReflect().New().Interface().(message)
		input := bytes.Clone(b)
		err, wantErr := unmarshal(input, got), want.UnmarshalVT(b)
		clear(input) // nothing of it may be in the message
		if (err == nil) != (wantErr == nil) {
			t.Errorf("%T of %x: %v in place of %v", got, b, err, wantErr)
			continue
		}
		if err == nil && !proto.Equal(got.(proto.Message), want.(proto.Message)) {
			t.Errorf("%T of %x:\n%v\nin place of\n%v", got, b, got, want)
		}
	}
}

// scheduleItems are items with the usual fields and with others.
func scheduleItems() []*carillonv1.ScheduleRequest {
	usual := func(id string) *carillonv1.Timer {
		return &carillonv1.Timer{
			Namespace: "shop", Id: id, Payload: []byte("payload of " + id), Target: &carillonv1.Timer_Queue{Queue: "q"},
			When: &carillonv1.Timer_Due{Due: &timestamppb.Timestamp{Seconds: 1 << 33, Nanos: 999_000_000}},
		}
	}
	items := []*carillonv1.ScheduleRequest{{}, {Timer: &carillonv1.Timer{}}, {RequestId: "only"}}
	for i := range 70 {
		items = append(items, &carillonv1.ScheduleRequest{Timer: usual(fmt.Sprint("timer-", i)), RequestId: fmt.Sprint("request-", i)})
	}
	other := usual("past")
	other.When = &carillonv1.Timer_Due{Due: &timestamppb.Timestamp{Seconds: -5, Nanos: -1}}
	other.Payload = bytes.Repeat([]byte("x"), 10_000)
	items = append(items, &carillonv1.ScheduleRequest{Timer: other, IfExists: 2, ExpectedRevision: -1})
	rich := usual("rich")
	rich.Headers, rich.Labels = map[string]string{"a": "b"}, map[string]string{"c": ""}
	rich.Retry = &carillonv1.RetryPolicy{Lease: durationpb.New(1)}
	rich.ContentType, rich.Expiry, rich.Guarantee = "text", timestamppb.New(timestamppb.Now().AsTime()), 2
	items = append(items, &carillonv1.ScheduleRequest{Timer: rich, RequestId: string(bytes.Repeat([]byte("r"), 5000))})
	delayed := usual("delayed")
	delayed.When = &carillonv1.Timer_Delay{Delay: durationpb.New(5)}
	delayed.Target = &carillonv1.Timer_Webhook{Webhook: "https://example.com"}
	return append(items, &carillonv1.ScheduleRequest{Timer: delayed}, &carillonv1.ScheduleRequest{Timer: usual("last")})
}

// samples are messages of all kinds, as bytes.
func samples(t testing.TB) (list [][]byte) {
	t.Helper()
	at := &timestamppb.Timestamp{Seconds: 1_800_000_000, Nanos: 5_000_000}
	failed := &carillonv1.ItemError{Code: 5, Message: "m", Reason: "r", Metadata: map[string]string{"k": "v"}}
	results := &carillonv1.ScheduleBatchResponse{Results: []*carillonv1.ScheduleResult{
		{}, {Outcome: &carillonv1.ScheduleResult_Ok{Ok: &carillonv1.ScheduleResponse{}}}, {Outcome: &carillonv1.ScheduleResult_Error{Error: failed}},
		{Outcome: &carillonv1.ScheduleResult_Ok{Ok: &carillonv1.ScheduleResponse{Due: at, Revision: 7, Kept: true, Shard: -3}}},
	}}
	cancels, outcomes := &carillonv1.CancelBatchRequest{Atomic: true}, &carillonv1.CancelBatchResponse{Results: []*carillonv1.CancelResult{
		{}, {Outcome: &carillonv1.CancelResult_Error{Error: failed}},
		{Outcome: &carillonv1.CancelResult_Ok{Ok: &carillonv1.CancelResponse{Outcome: 2, Revision: 1 << 40}}},
	}}
	work := &carillonv1.WorkRequest{Credits: 64}
	answer := &carillonv1.WorkResponse{}
	for i := range 80 {
		cancels.Items = append(cancels.Items, &carillonv1.CancelRequest{Id: fmt.Sprint("timer-", i), RequestId: "r", ExpectedRevision: int64(i)})
		work.Acks = append(work.Acks, []byte(fmt.Sprint("token-", i)))
		answer.Settled = append(answer.Settled, &carillonv1.Settled{Token: []byte(fmt.Sprint("token-", i)), Outcome: carillonv1.SettleOutcome(i % 4)})
		answer.Deliveries = append(answer.Deliveries, &carillonv1.Delivery{
			Namespace: "shop", Id: fmt.Sprint("timer-", i), Queue: "q", Payload: make([]byte, i), Due: at, HandedOut: at, LeaseEnd: at,
			Token: []byte("token"), Epoch: 3, Revision: 1 << 50, Attempt: 1, Shard: 15, Last: i%2 == 0, Guarantee: 1,
		})
	}
	answer.Deliveries = append(answer.Deliveries, &carillonv1.Delivery{}, &carillonv1.Delivery{Headers: map[string]string{"a": "b"}, ContentType: "c"})
	start := &carillonv1.WorkRequest{Start: &carillonv1.WorkStart{Queue: "q"}, Credits: 1}
	nack := &carillonv1.WorkRequest{Nacks: []*carillonv1.Nack{{Token: []byte("t")}}, Acks: [][]byte{{}, []byte("x")}}
	beat := &carillonv1.WorkResponse{Heartbeat: &carillonv1.Heartbeat{Now: at}}
	for _, m := range []message{
		&carillonv1.ScheduleBatchRequest{Items: scheduleItems(), Atomic: true}, results, cancels, outcomes, work, answer, start, nack, beat,
	} {
		b := make([]byte, m.SizeVT())
		if err := fill(b, m); err != nil {
			t.Fatal(err)
		}
		list = append(list, b)
	}
	return list
}

// The decoders that save allocations agree with the generated code, also about messages that are damaged, cut, put together
// or not meant for them.
func TestMany(t *testing.T) {
	t.Parallel()
	random := rand.New(rand.NewPCG(1, 2))
	list := samples(t)
	for _, b := range list {
		compare(t, b)
		compare(t, append(bytes.Clone(b), b...))
		compare(t, append(bytes.Clone(b), 0x78, 1))       // an unknown field
		compare(t, append(bytes.Clone(b), 0x7b, 0x7c))    // a group
		compare(t, append(bytes.Clone(b), 0xfd, 1, 2, 3)) // a fixed32, cut
		for range 300 {
			damaged := bytes.Clone(b)
			for range 1 + random.IntN(3) {
				damaged[random.IntN(len(b))] = byte(random.Uint32())
			}
			compare(t, damaged[:random.IntN(len(b)+1)])
		}
	}
}

// A field that comes twice is what protobuf makes of it: the last counts, messages are merged.
func TestManyTwice(t *testing.T) {
	t.Parallel()
	part := func(m message) []byte {
		b := make([]byte, m.SizeVT())
		if err := fill(b, m); err != nil {
			t.Fatal(err)
		}
		return b
	}
	field := func(number protowire.Number, parts ...[]byte) []byte {
		return protowire.AppendBytes(protowire.AppendTag(nil, number, protowire.BytesType), bytes.Join(parts, nil))
	}
	due := func(s int64, n int32) []byte {
		return part(&timestamppbVT{Timestamp: &timestamppb.Timestamp{Seconds: s, Nanos: n}})
	}
	first, second := field(3, due(5, 0)), field(3, due(0, 7))
	delay := field(4, []byte{0x08, 0x03})
	for _, timer := range [][]byte{
		bytes.Join([][]byte{first, second}, nil), bytes.Join([][]byte{first, delay}, nil), bytes.Join([][]byte{delay, first}, nil),
		bytes.Join([][]byte{field(5, []byte("a")), field(6, []byte("b")), field(5, []byte("c"))}, nil),
		bytes.Join([][]byte{field(7, []byte("long")), field(7, nil), field(2, []byte("x")), field(2, nil)}, nil),
	} {
		one := field(1, timer)
		compare(t, field(1, one))
		compare(t, field(1, one, field(1, field(2, []byte("id")))))
	}
	response := field(1, field(1, due(1, 1)), []byte{0x10, 5})
	compare(t, field(1, response, response))
	compare(t, field(1, response, field(2, []byte{0x08, 1})))
	delivery := bytes.Join([][]byte{field(8, due(1, 0)), field(8, due(0, 2)), field(11, []byte("a")), field(11, nil)}, nil)
	compare(t, field(1, delivery))
	compare(t, bytes.Join([][]byte{field(3, field(1, due(1, 0))), field(3, field(1, due(0, 2)))}, nil))
}

// timestamppbVT is a Timestamp as a message of this package.
type timestamppbVT struct{ *timestamppb.Timestamp }

func (m *timestamppbVT) SizeVT() int { return proto.Size(m.Timestamp) }

func (m *timestamppbVT) MarshalToSizedBufferVT(b []byte) (int, error) {
	out, err := proto.Marshal(m.Timestamp)
	return copy(b, out), err
}

func (m *timestamppbVT) UnmarshalVT(b []byte) error { return proto.Unmarshal(b, m.Timestamp) }

func FuzzMany(f *testing.F) {
	for _, b := range samples(f) {
		f.Add(b)
	}
	f.Fuzz(func(t *testing.T, b []byte) { compare(t, b) })
}

// BenchmarkUnmarshal is a batch of 500 timers and its answer, a message of 64 deliveries and one of 64 acks.
func BenchmarkUnmarshal(b *testing.B) {
	at := &timestamppb.Timestamp{Seconds: 1_800_000_000, Nanos: 5_000_000}
	request, response := &carillonv1.ScheduleBatchRequest{}, &carillonv1.ScheduleBatchResponse{}
	for i := range 500 {
		request.Items = append(request.Items, &carillonv1.ScheduleRequest{RequestId: "0123456789abcdefghjkmnpqrs", Timer: &carillonv1.Timer{
			Namespace: "default", Id: fmt.Sprintf("bench-abcdefgh/%09d", i), When: &carillonv1.Timer_Due{Due: at},
			Target: &carillonv1.Timer_Queue{Queue: "bench-abcdefgh"}, Payload: make([]byte, 100),
		}})
		response.Results = append(response.Results, &carillonv1.ScheduleResult{Outcome: &carillonv1.ScheduleResult_Ok{
			Ok: &carillonv1.ScheduleResponse{Due: at, Revision: 1 << 40, Shard: 3}}})
	}
	deliveries, acks := &carillonv1.WorkResponse{}, &carillonv1.WorkRequest{Credits: 64}
	for i := range 64 {
		token := bytes.Repeat([]byte("t"), 60)
		acks.Acks = append(acks.Acks, token)
		deliveries.Deliveries = append(deliveries.Deliveries, &carillonv1.Delivery{
			Namespace: "default", Id: fmt.Sprintf("bench-abcdefgh/%09d", i), Queue: "bench-abcdefgh", Payload: make([]byte, 100), Token: token,
			Due: at, HandedOut: at, LeaseEnd: at, Epoch: 1, Revision: 1 << 40, Attempt: 1, Shard: 3,
		})
	}
	for name, m := range map[string]message{"request=500": request, "response=500": response, "deliveries=64": deliveries, "acks=64": acks} {
		data := make([]byte, m.SizeVT())
		if err := fill(data, m); err != nil {
			b.Fatal(err)
		}
		empty := m.(proto.Message).ProtoReflect()
		for way, decode := range map[string]func(message) error{
			"ours": func(m message) error { return unmarshal(data, m) }, "generated": func(m message) error { return m.UnmarshalVT(data) },
		} {
			b.Run(name+"/"+way, func(b *testing.B) {
				b.ReportAllocs()
				for b.Loop() {
					if err := decode(empty.New().Interface().(message)); err != nil {
						b.Fatal(err)
					}
				}
			})
		}
	}
}
