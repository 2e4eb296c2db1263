package raftfsm

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"

	logv1 "github.com/carillon-timers/carillon/proto/carillonlog/v1"
)

// sample is a replica with a little of everything.
func sample(t *testing.T) *replica {
	r := newReplica(t, Options{})
	r.apply(sampleEntry())
	rare := rareEntry()
	rare.Epoch, rare.Commands = 2, rare.Commands[:len(rare.Commands)-2]
	for _, c := range rare.Commands {
		// The tokens are of the entry that these timers come with.
		switch k := c.Kind.(type) {
		case *logv1.Command_Retry:
			k.Retry.Revision = 2
		case *logv1.Command_Complete:
			k.Complete.Revision = 2
		case *logv1.Command_Advance:
			k.Advance.Revision = 2
		}
	}
	r.apply(rare)
	for i := range 6 {
		c := schedule(fmt.Sprint("t", i), int64(5000-i%3)).GetSchedule()
		c.RequestId, c.Payload = []byte{byte('0' + i)}, bytes.Repeat([]byte{byte(i)}, i)
		r.apply(&logv1.Entry{Epoch: 2, ClockMs: 1000 + int64(i), Commands: []*Command{scheduleOf(c)}})
	}
	r.apply(&logv1.Entry{Epoch: 2, ClockMs: 2000, Commands: []*Command{cancel("t1"), cancel("t3"), cancel("t2"), schedule("t3", 7000)}})
	return r
}

func TestSnapshotOfNothing(t *testing.T) {
	t.Parallel()
	r := newReplica(t, Options{})
	r.same(r.restored())
}

// Every flipped bit and every cut is found, and a refused snapshot leaves the state and the wheel alone.
func TestDamagedSnapshotIsRefused(t *testing.T) {
	t.Parallel()
	good := snapshotBytes(t, sample(t).f)
	r := newReplica(t, Options{})
	r.apply(&logv1.Entry{Epoch: 9, Commands: []*Command{schedule("mine", 1)}})
	r.feed.take()
	hash := r.f.Hash()
	refuse := func(what string, b []byte) {
		t.Helper()
		err := r.f.Restore(bytes.NewReader(b))
		if !errors.Is(err, ErrCorrupt) && !errors.Is(err, ErrUnsupported) {
			t.Fatalf("%s: %v", what, err)
		}
		if r.f.Hash() != hash || len(r.feed.take()) > 0 {
			t.Fatalf("%s: the state was touched", what)
		}
	}
	for i := range good {
		refuse(fmt.Sprintf("cut at %d", i), good[:i])
		for bit := range 8 {
			bad := bytes.Clone(good)
			bad[i] ^= 1 << bit
			refuse(fmt.Sprintf("bit %d of byte %d", bit, i), bad)
		}
	}
	refuse("a byte more", append(bytes.Clone(good), 0))
	refuse("twice", append(bytes.Clone(good), good...))
	r.check()
	if err := r.f.Restore(bytes.NewReader(good)); err != nil {
		t.Fatal(err)
	}
	r.check()
}

// Slots are a replica's own: the same timers in other slots give the same bytes, and the log goes on alike.
func TestSlotsAreNotReplicated(t *testing.T) {
	t.Parallel()
	r := newReplica(t, Options{})
	for i := range 300 {
		r.apply(&logv1.Entry{Epoch: 1, ClockMs: int64(i), Commands: []*Command{schedule(fmt.Sprint(i), int64(i*7919%1000))}})
	}
	for i := 0; i < 300; i += 3 {
		r.apply(&logv1.Entry{Epoch: 1, ClockMs: 400, Commands: []*Command{cancel(fmt.Sprint(i))}})
	}
	other := r.restored()
	if r.slot("100") == other.slot("100") {
		t.Fatal("the test needs other slots")
	}
	for i := range 100 {
		e := &logv1.Entry{Epoch: 1, ClockMs: 500, Commands: []*Command{schedule(fmt.Sprint("n", i), 3), cancel(fmt.Sprint(i * 2))}}
		r.apply(e)
		other.apply(e)
	}
	r.same(other)
}

// A reader is given what the rules of the format forbid, with right checksums.
func TestSnapshotRules(t *testing.T) {
	t.Parallel()
	rec := func(id string, due int64, accepted uint64) *logv1.Record {
		return &logv1.Record{
			Timer:    &logv1.Schedule{Namespace: "default", Id: id, Queue: "q", DueMs: due},
			Accepted: accepted, Revision: 1, NextDueMs: due,
		}
	}
	end := func(id string, sequence uint64) *logv1.Finished {
		return &logv1.Finished{Namespace: "default", Id: id, Queue: "q", State: 3, Revision: 1, Sequence: sequence}
	}
	cases := map[string][]vtMessage{
		"not in order":         {rec("a", 2, 1), rec("b", 1, 2)},
		"same place":           {rec("a", 1, 2), rec("b", 1, 2)},
		"twice":                {rec("a", 1, 1), rec("a", 2, 2)},
		"pending and finished": {rec("a", 1, 1), end("a", 1)},
		"from the future":      {rec("a", 1, 99)},
		"finished backwards":   {end("a", 2), end("b", 1)},
		"finished later":       {end("a", 99)},
		"no queue":             {&logv1.Record{Timer: &logv1.Schedule{Namespace: "default", Id: "a"}, Accepted: 1}},
		"no timer":             {&logv1.Record{Accepted: 1}},
		"short key":            {&logv1.Request{Key: []byte("short")}},
		"wrong hash":           {rec("a", 1, 1)},
	}
	for name, messages := range cases {
		t.Run(name, func(t *testing.T) {
			h := &logv1.SnapshotHeader{Index: 1, Accepted: 9, FinishedSequence: 9, RequestSequence: 9}
			for _, m := range messages {
				switch m.(type) {
				case *logv1.Record:
					h.Records++
				case *logv1.Finished:
					h.Finished++
				case *logv1.Request:
					h.Requests++
				}
			}
			err := New(Options{}).Restore(bytes.NewReader(handmade(t, h, messages)))
			if !errors.Is(err, ErrCorrupt) || strings.Contains(err.Error(), "state hash") != (name == "wrong hash") {
				t.Fatalf("error is %v", err)
			}
		})
	}
}

func handmade(t testing.TB, h *logv1.SnapshotHeader, messages []vtMessage) []byte {
	var b bytes.Buffer
	w := snapshotWriter{w: &b, chunk: make([]byte, chunkHeader)}
	w.write(binary.LittleEndian.AppendUint32([]byte(snapshotMagic), snapshotVersion))
	all := append([]vtMessage{h}, messages...)
	for _, m := range append(all, &logv1.SnapshotTrailer{Messages: uint64(len(messages))}) {
		kind := kindRequest
		switch m.(type) {
		case *logv1.SnapshotHeader:
			kind = kindHeader
		case *logv1.Record:
			kind = kindRecord
		case *logv1.Finished:
			kind = kindFinished
		case *logv1.SnapshotTrailer:
			kind = kindTrailer
		}
		if err := w.message(kind, m); err != nil {
			t.Fatal(err)
		}
	}
	w.flush()
	return b.Bytes()
}

// Many chunks, with payloads as large as they may be.
func TestLargeSnapshot(t *testing.T) {
	t.Parallel()
	rng := rand.New(rand.NewPCG(3, 3))
	r := newReplica(t, Options{})
	for i := range 12 {
		c := schedule(fmt.Sprint(i), rng.Int64N(1000)).GetSchedule()
		c.Payload = make([]byte, MaxPayloadBytes>>(i%4))
		r.apply(&logv1.Entry{Epoch: 1, Commands: []*Command{scheduleOf(c)}})
	}
	r.same(r.restored())
}

// A write that fails is an error, and a released snapshot is not written.
func TestSnapshotWriteErrors(t *testing.T) {
	t.Parallel()
	s, err := sample(t).f.Snapshot()
	if err != nil {
		t.Fatal(err)
	}
	if _, err := s.WriteTo(failingWriter{}); !errors.Is(err, errFull) {
		t.Fatalf("error is %v", err)
	}
	s.Release()
	s.Release()
	if _, err := s.WriteTo(failingWriter{}); !errors.Is(err, errReleased) {
		t.Fatalf("error is %v", err)
	}
}

var errFull = errors.New("disk is full")

type failingWriter struct{}

func (failingWriter) Write([]byte) (int, error) { return 0, errFull }

func FuzzRestore(f *testing.F) {
	f.Add(handmade(f, &logv1.SnapshotHeader{Index: 1}, nil)[12:])
	f.Add([]byte{1, 2, 3})
	f.Fuzz(func(t *testing.T, b []byte) {
		fsm := New(Options{})
		if err := fsm.Restore(bytes.NewReader(b)); err == nil {
			t.Fatal("a snapshot without its magic was accepted")
		}
		// The same as the content of one chunk with a right checksum.
		file := binary.LittleEndian.AppendUint32([]byte(snapshotMagic), snapshotVersion)
		chunk := append(binary.LittleEndian.AppendUint64(nil, uint64(len(b))), b...)
		binary.LittleEndian.PutUint32(chunk[4:], chunkChecksum(0, chunk))
		if err := fsm.Restore(bytes.NewReader(append(file, chunk...))); err != nil {
			return
		}
		if err := fsm.Check(); err != nil {
			t.Fatal(err)
		}
		first := snapshotBytes(t, fsm)
		again := New(Options{})
		if err := again.Restore(bytes.NewReader(first)); err != nil || !bytes.Equal(first, snapshotBytes(t, again)) {
			t.Fatalf("what was restored does not give the same snapshot: %v", err)
		}
	})
}
