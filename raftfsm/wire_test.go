package raftfsm

import (
	"bytes"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	logv1 "github.com/carillon-timers/carillon/proto/carillonlog/v1"
	"google.golang.org/protobuf/proto"
)

// sameEntry compares two entries by what they mean.
func sameEntry(a, b *entry) error {
	if a.epoch != b.epoch || a.clock != b.clock || a.proposer != b.proposer || a.sequence != b.sequence || a.begin != b.begin ||
		len(a.commands) != len(b.commands) {
		return fmt.Errorf("entries differ: %+v, %+v", *a, *b)
	}
	for i := range a.commands {
		x, y := a.commands[i], b.commands[i]
		if !slices.Equal(a.headers(&x), b.headers(&y)) || !slices.Equal(a.labels(&x), b.labels(&y)) ||
			!bytes.Equal(x.payload, y.payload) || !bytes.Equal(x.requestID, y.requestID) {
			return fmt.Errorf("command %d differs: %+v, %+v", i, x, y)
		}
		if math.Float64bits(x.retry.Multiplier) != math.Float64bits(y.retry.Multiplier) {
			return fmt.Errorf("multiplier of command %d is %v, want %v", i, x.retry.Multiplier, y.retry.Multiplier)
		}
		if err := sameMore(a, b, x.more, y.more); err != nil {
			return fmt.Errorf("command %d: %w", i, err)
		}
		for _, c := range []*command{&x, &y} {
			c.more, c.payload, c.requestID, c.headers, c.labels, c.retry.Multiplier = nil, nil, nil, [2]uint32{}, [2]uint32{}, 0
		}
		if fmt.Sprintf("%+v", x) != fmt.Sprintf("%+v", y) {
			return fmt.Errorf("command %d differs: %+v, %+v", i, x, y)
		}
	}
	return nil
}

// sameMore compares what few commands have.
func sameMore(in, other *entry, a, b *commandMore) error {
	if a == nil || b == nil {
		if a != b {
			return fmt.Errorf("one has more: %v, %v", a, b)
		}
		return nil
	}
	if !proto.Equal(a.extra, b.extra) || !proto.Equal(a.next, b.next) || !slices.Equal(a.spawn, b.spawn) || !slices.Equal(a.keys, b.keys) {
		return fmt.Errorf("one has other things: %v, %v", a, b)
	}
	return sameEntry(&entry{commands: a.parts, pairs: in.pairs}, &entry{commands: b.parts, pairs: other.pairs})
}

// differ reads a body both ways: what readWire takes must be what the messages say.
func differ(body []byte) (taken bool, err error) {
	var fast, slow entry
	taken = fast.readWire(body)
	m, err := decodeBody(body)
	if err != nil {
		if taken {
			return true, fmt.Errorf("readWire takes what is refused: %w", err)
		}
		return false, nil
	}
	if slow.of(m); taken {
		return true, sameEntry(&fast, &slow)
	}
	return false, nil
}

func randomText(rng *rand.Rand) string {
	b := make([]byte, rng.IntN(4)*rng.IntN(70))
	for i := range b {
		b[i] = byte(rng.Uint32())
	}
	return string(b)
}

func randomNumber(rng *rand.Rand) uint64 { return rng.Uint64() >> rng.IntN(65) }

func randomRepeat(rng *rand.Rand) *logv1.Repeat {
	number := func() int64 { return int64(randomNumber(rng)) }
	return &logv1.Repeat{
		EveryMs: number(), Cron: randomText(rng), Zone: randomText(rng), FixedDelay: rng.IntN(2) == 0, StartMs: number(),
		HasEnd: rng.IntN(2) == 0, EndMs: number(), MaxCount: number(), Misfire: uint32(number()), MaxCatchUp: uint32(number()),
		MaxLateMs: number(), Overlap: uint32(number()), TickMs: number(), Fired: number(), BacklogMs: number(),
	}
}

func randomExtra(rng *rand.Rand) *logv1.Extra {
	number := func() int64 { return int64(randomNumber(rng)) }
	flag := func() bool { return rng.IntN(2) == 0 }
	x := &logv1.Extra{
		ExpiryMs: number(), AtMostOnce: flag(), Webhook: randomText(rng), WindowMs: number(), Paused: flag(), Frozen: flag(),
		LeftMs: number(), OutRevision: uint64(number()), PausedMs: number(),
	}
	if flag() {
		x.Repeat = randomRepeat(rng)
	}
	if flag() {
		x.Dead = &logv1.Dead{Id: randomText(rng), Reason: uint32(number()), AtMs: number(), Attempts: uint32(number()), Child: flag()}
	}
	for range rng.IntN(3) {
		x.Failures = append(x.Failures, &logv1.Failure{
			AtMs: number(), Epoch: uint64(number()), HandedMs: number(), Error: randomText(rng), Lapsed: flag(),
		})
	}
	return x
}

// randomNext is nil half of the time.
func randomNext(rng *rand.Rand) *logv1.Next {
	if rng.IntN(2) == 0 {
		return nil
	}
	number := func() int64 { return int64(randomNumber(rng)) }
	return &logv1.Next{Ended: rng.IntN(2) == 0, TickMs: number(), DueMs: number(), BacklogMs: number()}
}

// rareCommand is a command of a kind that is read as a message.
func rareCommand(rng *rand.Rand) *Command {
	number := func() uint64 { return randomNumber(rng) }
	text := func() string { return randomText(rng) }
	flag := func() bool { return rng.IntN(2) == 0 }
	switch rng.IntN(7) {
	case 0:
		return &Command{Kind: &logv1.Command_Pause{Pause: &logv1.Pause{
			Namespace: text(), Id: text(), Freeze: flag(), ExpectedRevision: number(), RequestId: []byte(text()), Firing: flag(), Hold: number(),
		}}}
	case 1:
		return &Command{Kind: &logv1.Command_Resume{Resume: &logv1.Resume{
			Namespace: text(), Id: text(), ExpectedRevision: number(), RequestId: []byte(text()), Next: randomNext(rng), Revision: number(),
		}}}
	case 2:
		return &Command{Kind: &logv1.Command_Advance{Advance: &logv1.Advance{
			Namespace: text(), Id: text(), Revision: number(), Attempt: uint32(number()), Hold: number(), Next: randomNext(rng),
			SpawnMs: []int64{int64(number()), int64(number())},
		}}}
	case 3:
		return &Command{Kind: &logv1.Command_Expire{Expire: &logv1.Expire{
			Namespace: text(), Id: text(), Revision: number(), Attempt: uint32(number()), Hold: number(),
		}}}
	case 4:
		return &Command{Kind: &logv1.Command_Redrive{Redrive: &logv1.Redrive{
			Namespace: text(), Keys: []string{text(), text()}, Queue: text(), Limit: uint32(number()), RequestId: []byte(text()),
		}}}
	case 5:
		return &Command{Kind: &logv1.Command_Purge{Purge: &logv1.Purge{
			Namespace: text(), Keys: []string{text(), text()}, Queue: text(), Limit: uint32(number()), RequestId: []byte(text()),
		}}}
	}
	batch := &logv1.Atomic{}
	for range rng.IntN(3) {
		batch.Commands = append(batch.Commands, randomCommand(rng))
	}
	return &Command{Kind: &logv1.Command_Atomic{Atomic: batch}}
}

func randomPairs(rng *rand.Rand) []*logv1.Pair {
	var out []*logv1.Pair
	for range rng.IntN(4) {
		out = append(out, &logv1.Pair{Key: randomText(rng), Value: randomText(rng)})
	}
	return out
}

// randomCommand has fields of any value, also of none that Apply would accept.
func randomCommand(rng *rand.Rand) *Command {
	number := func() uint64 { return randomNumber(rng) }
	text := func() string { return randomText(rng) }
	flag := func() bool { return rng.IntN(2) == 0 }
	switch rng.IntN(7) {
	case 0:
		return &Command{Kind: &logv1.Command_Cancel{Cancel: &logv1.Cancel{
			Namespace: text(), Id: text(), ExpectedRevision: number(), RequestId: []byte(text()), Firing: flag(), Hold: number(),
		}}}
	case 1:
		return &Command{Kind: &logv1.Command_Reschedule{Reschedule: &logv1.Reschedule{
			Namespace: text(), Id: text(), DueMs: int64(number()), DelayMs: int64(number()), IsDelay: flag(),
			ExpectedRevision: number(), RequestId: []byte(text()), Now: flag(),
		}}}
	case 2:
		return &Command{Kind: &logv1.Command_Complete{Complete: &logv1.Complete{
			Namespace: text(), Id: text(), Revision: number(), Attempt: uint32(number()), TokenEpoch: number(), Hold: number(),
			HandedMs: int64(number()), Next: randomNext(rng), Ahead: flag(),
		}}}
	case 3:
		return &Command{Kind: &logv1.Command_Retry{Retry: &logv1.Retry{
			Namespace: text(), Id: text(), Revision: number(), Attempt: uint32(number()), TokenEpoch: number(), DueMs: int64(number()),
			DelayMs: int64(number()), HasDelay: flag(), Error: text(), Hold: number(),
			HandedMs: int64(number()), Next: randomNext(rng), Dead: flag(), Returned: flag(), Lapsed: flag(),
		}}}
	case 4:
		return rareCommand(rng)
	}
	c := &logv1.Schedule{
		Namespace: text(), Id: text(), DueMs: int64(number()), DelayMs: int64(number()), IsDelay: flag(), Queue: text(),
		Payload: []byte(text()), ContentType: text(), Headers: randomPairs(rng), Labels: randomPairs(rng),
		IfExists: uint32(number()), ExpectedRevision: number(), RequestId: []byte(text()),
	}
	if flag() {
		c.Retry = &logv1.RetryPolicy{
			LeaseMs: int64(number()), InitialBackoffMs: int64(number()), MaxBackoffMs: int64(number()),
			Multiplier: math.Float64frombits(number()), MaxAttempts: uint32(number()),
		}
	}
	if flag() {
		c.Extra = randomExtra(rng)
	}
	return scheduleOf(c)
}

func randomBody(t testing.TB, rng *rand.Rand) []byte {
	e := &logv1.Entry{Epoch: randomNumber(rng), ClockMs: int64(randomNumber(rng)), Proposer: randomNumber(rng), Sequence: randomNumber(rng)}
	if rng.IntN(4) == 0 {
		e.Begin = &logv1.Begin{Node: randomText(rng), Boot: randomText(rng)}
	}
	for range rng.IntN(6) {
		e.Commands = append(e.Commands, randomCommand(rng))
	}
	body, err := e.MarshalVT()
	if err != nil {
		t.Fatal(err)
	}
	return body
}

// Whatever EncodeEntry writes is read without a message for each command, and means the same.
func TestWireTakesWhatIsWritten(t *testing.T) {
	t.Parallel()
	rng := rand.New(rand.NewPCG(11, 1))
	for range 3000 {
		body := randomBody(t, rng)
		if taken, err := differ(body); err != nil || !taken {
			t.Fatalf("taken %v, %v: %x", taken, err, body)
		}
	}
}

// A body that is damaged, or written in another way, is taken only if it means the same to both readers.
func TestWireOfDamagedBody(t *testing.T) {
	t.Parallel()
	rng := rand.New(rand.NewPCG(12, 1))
	refused := 0
	for range 5000 {
		body := randomBody(t, rng)
		if len(body) == 0 {
			continue
		}
		for range 1 + rng.IntN(3) {
			switch at := rng.IntN(len(body)); rng.IntN(4) {
			case 0:
				body[at] ^= 1 << rng.IntN(8)
			case 1:
				body = slices.Insert(body, at, byte(rng.IntN(128)))
			case 2:
				body = append(body, body[at:]...)
			default:
				body[at] = byte(rng.IntN(16)<<3 | rng.IntN(3))
			}
		}
		taken, err := differ(body)
		if err != nil {
			t.Fatalf("%v: %x", err, body)
		}
		if !taken {
			refused++
		}
	}
	if refused < 500 {
		t.Fatalf("only %d bodies were refused", refused)
	}
}

// What is written in another way is applied all the same, by way of the messages.
func TestUnusualEntryIsApplied(t *testing.T) {
	t.Parallel()
	body, err := sampleEntry().MarshalVT()
	if err != nil {
		t.Fatal(err)
	}
	late := append(slices.Clone(body), 1<<3, 1) // the epoch once more, behind the commands
	if taken, err := differ(late); taken || err != nil {
		t.Fatalf("taken %v, %v", taken, err)
	}
	usual, unusual := newReplica(t, Options{}), newReplica(t, Options{})
	for r, body := range map[*replica][]byte{usual: body, unusual: late} {
		if _, err := r.f.Apply(1, envelope(entryVersion, entryType, body)); err != nil {
			t.Fatal(err)
		}
		r.check()
	}
	usual.same(unusual)
}

func FuzzWire(f *testing.F) {
	rng := rand.New(rand.NewPCG(13, 1))
	for range 20 {
		f.Add(randomBody(f, rng))
	}
	f.Fuzz(func(t *testing.T, body []byte) {
		if _, err := differ(body); err != nil {
			t.Fatal(err)
		}
	})
}
