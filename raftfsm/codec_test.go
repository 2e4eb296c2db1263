package raftfsm

import (
	"bytes"
	"encoding/binary"
	"errors"
	"hash/crc32"
	"hash/fnv"
	"math/rand/v2"
	"strings"
	"testing"

	"google.golang.org/protobuf/proto"

	logv1 "github.com/carillon-timers/carillon/proto/carillonlog/v1"
)

func (b writeBuffer) reader() *bytes.Reader { return bytes.NewReader(b) }

// envelope puts a body into an envelope as a newer version could.
func envelope(version, kind byte, body []byte) []byte {
	b := append([]byte{entryMagic, version, kind, 0, 0, 0, 0, 0}, body...)
	sum := crc32.Update(crc32.Checksum(b[:4], castagnoli), castagnoli, body)
	binary.LittleEndian.PutUint32(b[4:], sum)
	return b
}

func sampleEntry() *logv1.Entry {
	e := begin(1, 1000)
	c := schedule("a", 900).GetSchedule()
	c.Payload, c.RequestId, c.Labels = []byte("hello"), []byte("r"), []*logv1.Pair{{Key: "k", Value: "v"}}
	e.Commands = []*Command{scheduleOf(c), cancel("b"), reschedule("c", 5), complete("d", 1, 2, 3), retry("e", 1, 2, 3)}
	return e
}

// rareEntry has what few timers have, and the commands that are rare.
func rareEntry() *logv1.Entry {
	e := begin(1, 1000)
	timer := func(id string, x *logv1.Extra) *Command {
		c := schedule(id, 900).GetSchedule()
		c.Extra, c.Retry = x, &logv1.RetryPolicy{MaxAttempts: 1}
		return scheduleOf(c)
	}
	repeat := func(overlap uint32) *logv1.Repeat {
		return &logv1.Repeat{EveryMs: 100, StartMs: 900, Misfire: misfireOne, Overlap: overlap, TickMs: 900}
	}
	next := &logv1.Next{TickMs: 1100, DueMs: 1110}
	again := retry("p", 1, 0, 1)
	again.GetRetry().DueMs, again.GetRetry().Error, again.GetRetry().Next = 1500, "boom", next
	dead := retry("x", 1, 0, 1)
	dead.GetRetry().DueMs, dead.GetRetry().HandedMs = 1500, 990
	acked := complete("r", 1, 0, 1)
	acked.GetComplete().Next = next
	e.Commands = []*Command{
		timer("x", &logv1.Extra{ExpiryMs: 5000, AtMostOnce: true}), timer("r", &logv1.Extra{Repeat: repeat(overlapSkip), WindowMs: 50}),
		timer("s", &logv1.Extra{Repeat: repeat(overlapAllow)}), timer("p", &logv1.Extra{Repeat: repeat(overlapOne)}), timer("f", nil),
		{Kind: &logv1.Command_Atomic{Atomic: &logv1.Atomic{Commands: []*Command{schedule("b1", 2), schedule("b2", 3)}}}},
		dead, acked, again,
		{Kind: &logv1.Command_Advance{Advance: &logv1.Advance{Id: "s", Revision: 1, Next: next, SpawnMs: []int64{900, 1000}}}},
		{Kind: &logv1.Command_Pause{Pause: &logv1.Pause{Id: "f", Freeze: true, Firing: true}}},
		{Kind: &logv1.Command_Pause{Pause: &logv1.Pause{Id: "r"}}},
		{Kind: &logv1.Command_Resume{Resume: &logv1.Resume{Id: "r", Next: next, Revision: 1}}},
		{Kind: &logv1.Command_Expire{Expire: &logv1.Expire{Id: "x", Revision: 1}}},
		{Kind: &logv1.Command_Redrive{Redrive: &logv1.Redrive{Limit: 1}}},
		{Kind: &logv1.Command_Purge{Purge: &logv1.Purge{Keys: []string{"none"}}}},
	}
	return e
}

func TestEntryRoundTrip(t *testing.T) {
	t.Parallel()
	want := sampleEntry()
	b := EncodeEntry(want, []byte("before"))
	got, err := DecodeEntry(b[len("before"):])
	if err != nil || !proto.Equal(got, want) {
		t.Fatalf("got %v, %v", got, err)
	}
}

// Whatever this version does not know must stop the replica: skipping it would make the replicas differ.
func TestPoison(t *testing.T) {
	t.Parallel()
	body, err := sampleEntry().MarshalVT()
	if err != nil {
		t.Fatal(err)
	}
	field := func(number, value byte) []byte { return []byte{number << 3, value} } // a varint field
	field17 := []byte{0x88, 1, 1}
	inCommand := func(b []byte) []byte { return append([]byte{5<<3 | 2, byte(len(b))}, b...) }
	inSchedule := func(b []byte) []byte { return inCommand(append([]byte{1<<3 | 2, byte(len(b))}, b...)) }
	flipped := EncodeEntry(sampleEntry(), nil)
	flipped[len(flipped)-1] ^= 1
	cases := map[string]struct {
		data []byte
		want error
		text string
	}{
		"empty":                 {nil, ErrCorrupt, "shorter"},
		"magic":                 {append([]byte{1}, flipped[1:]...), ErrCorrupt, "begins with 0x01"},
		"version":               {envelope(2, 1, body), ErrUnsupported, "version 2"},
		"type":                  {envelope(1, 9, body), ErrUnsupported, "type 9"},
		"checksum":              {flipped, ErrCorrupt, "checksum"},
		"body":                  {envelope(1, 1, []byte{0xFF}), ErrCorrupt, "body"},
		"empty command":         {envelope(1, 1, inCommand(nil)), ErrUnsupported, "command 0 of 1"},
		"new kind of command":   {envelope(1, 1, inCommand([]byte{13<<3 | 2, 0})), ErrUnsupported, "command 0 of 1"},
		"field beside the kind": {envelope(1, 1, inCommand([]byte{2<<3 | 2, 0, 14 << 3, 1})), ErrUnsupported, "command 0 of 1"},
		"field in the schedule": {envelope(1, 1, inSchedule(field17)), ErrUnsupported, "command 0 of 1"},
		"field in an extra":     {envelope(1, 1, inSchedule(append([]byte{15<<3 | 2, 3}, field17...))), ErrUnsupported, "command 0 of 1"},
		"field in a repeat":     {envelope(1, 1, inSchedule([]byte{15<<3 | 2, 4, 1<<3 | 2, 2, 15 << 3, 1})), ErrUnsupported, "command 0 of 1"},
		"field in a next":       {envelope(1, 1, inCommand([]byte{4<<3 | 2, 4, 8<<3 | 2, 2, 15 << 3, 1})), ErrUnsupported, "command 0 of 1"},
		"kind in a batch":       {envelope(1, 1, inCommand([]byte{12<<3 | 2, 4, 1<<3 | 2, 2, 13<<3 | 2, 0})), ErrUnsupported, "command 0 of 1"},
		"field in a label":      {envelope(1, 1, inSchedule(append([]byte{10<<3 | 2, 2}, field(3, 1)...))), ErrUnsupported, "command 0 of 1"},
		"field in the entry":    {envelope(1, 1, append(field(15, 1), body...)), ErrUnsupported, "unknown field"},
		"field in begin":        {envelope(1, 1, append([]byte{6<<3 | 2, 2}, field(9, 1)...)), ErrUnsupported, "unknown field"},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			r := newReplica(t, Options{Shard: 7})
			r.apply(sampleEntry())
			hash := r.f.Hash()
			r.feed.take()
			_, err := r.f.Apply(2, c.data)
			if !errors.Is(err, c.want) || !strings.Contains(err.Error(), c.text) || !strings.Contains(err.Error(), "shard 7: apply entry 2") {
				t.Fatalf("error is %v, want %v with %q", err, c.want, c.text)
			}
			if _, again := r.f.Apply(2, EncodeEntry(sampleEntry(), nil)); again != err {
				t.Fatalf("a stopped replica answers %v", again)
			}
			if _, err := r.f.Snapshot(); !errors.Is(err, c.want) {
				t.Fatalf("a stopped replica gives a snapshot: %v", err)
			}
			if err := r.f.Restore(bytes.NewReader(nil)); err == nil {
				t.Fatal("a stopped replica was restored")
			}
			if r.f.Hash() != hash || len(r.feed.take()) > 0 {
				t.Fatal("something was applied")
			}
		})
	}
}

func TestIndexMustGrow(t *testing.T) {
	t.Parallel()
	r := newReplica(t, Options{})
	r.apply(begin(1, 1))
	if _, err := r.f.Apply(1, EncodeEntry(begin(1, 1), nil)); !errors.Is(err, ErrCorrupt) {
		t.Fatalf("an entry was applied twice: %v", err)
	}
}

func TestRequestKeyIsFNV(t *testing.T) {
	t.Parallel()
	rng := rand.New(rand.NewPCG(1, 1))
	for range 100 {
		text := make([]byte, rng.IntN(40))
		for i := range text {
			text[i] = byte(rng.Uint32())
		}
		h := fnv.New128a()
		h.Write([]byte{requestCancel})
		h.Write([]byte("ns\x00id\x00"))
		h.Write(text)
		got := requestKey(requestCancel, "ns", "id", text)
		want := h.Sum(nil)
		if binary.BigEndian.Uint64(want) != got[0] || binary.BigEndian.Uint64(want[8:]) != got[1] {
			t.Fatalf("%x: %016x, want %x", text, got, want)
		}
	}
}

func TestTokenRoundTrip(t *testing.T) {
	t.Parallel()
	want := Token{Shard: 255, Epoch: 1 << 60, Revision: 77, Attempt: 1<<32 - 1, HandedOut: -5, Namespace: "default", ID: "order-42/expire"}
	got, err := ParseToken(want.Append(nil))
	if err != nil || got != want {
		t.Fatalf("got %+v, %v", got, err)
	}
}

func FuzzParseToken(f *testing.F) {
	f.Add(Token{Shard: 1, Epoch: 2, Revision: 3, Attempt: 4, Namespace: "n", ID: "i"}.Append(nil))
	f.Add([]byte{firstTokenVersion, 1, 2, 3, 4, 1, 'n', 'i'})
	f.Add([]byte{tokenVersion, 0x80})
	f.Fuzz(func(t *testing.T, b []byte) {
		got, err := ParseToken(b)
		if err != nil {
			return
		}
		again, err := ParseToken(got.Append(nil))
		if err != nil || again != got {
			t.Fatalf("%+v reads back as %+v, %v", got, again, err)
		}
	})
}

// What decodes must apply without a panic, twice the same, whatever is in it.
func FuzzDecodeEntry(f *testing.F) {
	f.Add(EncodeEntry(sampleEntry(), nil))
	f.Add(EncodeEntry(rareEntry(), nil))
	f.Add([]byte{})
	f.Fuzz(func(t *testing.T, b []byte) {
		if len(b) > entryHeader {
			b = envelope(b[1], b[2], b[entryHeader:]) // past the checksum
		}
		first, second := New(Options{Repeats: grid{}}), New(Options{})
		one, err := first.Apply(1, b)
		if err != nil {
			return
		}
		two, err := second.Apply(1, b)
		if err != nil || len(one.Results) != len(two.Results) || first.Hash() != second.Hash() {
			t.Fatalf("two replicas differ: %v", err)
		}
		if err := first.Check(); err != nil {
			t.Fatal(err)
		}
		if err := second.Restore(bytes.NewReader(snapshotBytes(t, first))); err != nil {
			t.Fatalf("its snapshot is refused: %v", err)
		}
		if e, err := DecodeEntry(b); err == nil {
			first.Stamp(e.Epoch, 0, e.Commands)
			first.ReleaseHolds(e.Commands)
		}
		if err := first.Check(); err != nil {
			t.Fatal(err)
		}
	})
}
