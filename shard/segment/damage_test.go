package segment

import (
	"bytes"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/hashicorp/raft"
)

// sample is a small log of three groups, and all that each group has ever held, the last at the end.
type sample struct {
	fs      *memFS
	o       Options
	history [3][]string
}

// newSample writes a log of a few segments; a closed one ends with a mark, another as a crash leaves it.
func newSample(t testing.TB, closed bool) *sample {
	t.Helper()
	s := &sample{o: Options{SegmentBytes: 4 << 10, CacheBytes: 1, Slack: 9, QuietAfter: time.Hour, Logger: quietly}}
	s.o.fs = newMemFS()
	l, err := Open("", s.o)
	if err != nil {
		t.Fatal(err)
	}
	rnd := rand.New(rand.NewPCG(3, 3))
	models := [3]model{newModel(), newModel(), newModel()}
	commit := func(ids ...int) {
		var requests []*request
		for _, id := range ids {
			call := draw(rnd, models[id], 150)
			r := &request{group: l.Group(uint32(id)), entries: call.entries}
			for _, e := range call.entries {
				r.records = appendEntry(r.records, uint32(id), e)
			}
			switch {
			case call.key != "":
				r.records = appendRecord(nil, record{group: uint32(id), kind: kindSet}, []byte(call.key), []byte(call.value))
			case call.end != 0:
				r.records = appendRecord(nil, record{group: uint32(id), kind: kindDelete, index: call.first, term: call.end}, nil, nil)
			}
			models[id].apply(call)
			s.history[id] = append(s.history[id], models[id].String())
			requests = append(requests, r)
		}
		if err := l.commit(t.Context(), requests); err != nil {
			t.Fatal(err)
		}
	}
	var helper runningLog
	helper.all.Go(func() { l.prepare(t.Context()) })
	for range 3 {
		commit(0, 1)
		commit(0)
		commit(2, 0)
		commit(1)
	}
	if l.newest.number < 2 {
		t.Fatal("the sample has one segment")
	}
	s.fs = s.o.fs.(*memFS).copyOf()
	if closed {
		if err := l.Close(); err != nil {
			t.Fatal(err)
		}
		s.fs = s.o.fs.(*memFS).copyOf()
	}
	return s
}

// outcome is what an opening comes to.
type outcome struct {
	damaged  error // of the whole log
	lost     int   // groups that are lost
	behind   int   // groups that hold what they held before the last batch
	complete int   // groups that hold all
}

// open opens what is there, and reads all groups. A group that is neither lost nor as it once was fails the test.
func (s *sample) open(t testing.TB, fs *memFS, what string) outcome {
	t.Helper()
	o := s.o
	o.fs = fs
	l, err := Open("", o)
	if err != nil {
		if named := new(DamagedError); !errors.As(err, &named) {
			t.Errorf("%s: an error without a name: %v", what, err)
		}
		return outcome{damaged: err}
	}
	defer l.Close()
	var out outcome
	for id, history := range s.history {
		m, err := read(l.Group(uint32(id)))
		lost := new(LostError)
		switch got := m.String(); {
		case errors.As(err, &lost):
			out.lost++
		case err != nil:
			t.Errorf("%s: group %d: an error without a name: %v", what, id, err)
		case got == history[len(history)-1]:
			out.complete++
		case got == "" || slices.Contains(history, got):
			out.behind++
		default:
			t.Errorf("%s: group %d holds what it never held: %v", what, id, m)
		}
	}
	return out
}

// flipped is a copy with one bit of a file changed.
func flipped(fs *memFS, name string, at int, bit int) *memFS {
	after := fs.copyOf()
	after.files[name].data[at] ^= 1 << bit
	return after
}

// A bit that flips anywhere in a closed log changes no answer, or makes those lost whom it concerns; in a log that a crash
// has ended it can also make the last batch, of which nobody can tell that it was not torn, look torn.
func TestFlips(t *testing.T) {
	t.Parallel()
	for _, closed := range []bool{true, false} {
		t.Run(fmt.Sprint(closed), func(t *testing.T) {
			t.Parallel()
			s := newSample(t, closed)
			rnd := rand.New(rand.NewPCG(4, 4))
			count := map[string]int{}
			for name, f := range maps.Clone(s.fs.files) {
				for at := range f.data {
					if zero := f.data[at&^(sector-1):][:min(sector, len(f.data)-at&^(sector-1))]; at%61 > 0 && !bytes.ContainsFunc(zero, func(r rune) bool { return r != 0 }) {
						continue // a sector that was never written: a few of its bytes will do
					}
					bit := rnd.IntN(8)
					out := s.open(t, flipped(s.fs, name, at, bit), fmt.Sprintf("%s, bit %d of %d", name, bit, at))
					switch {
					case out.damaged != nil:
						count["damaged"]++
					case out.behind > 0 && (closed || out.lost > 0):
						t.Fatalf("%s, bit %d of %d: %d groups are behind, in silence", name, bit, at, out.behind)
					default:
						count[fmt.Sprintf("lost %d, behind %d", out.lost, out.behind)]++
					}
				}
			}
			t.Log(count)
			for _, must := range []string{"damaged", "lost 1, behind 0", "lost 2, behind 0", "lost 0, behind 0"} {
				if count[must] == 0 {
					t.Errorf("never: %s", must)
				}
			}
			if behind := count["lost 0, behind 1"] + count["lost 0, behind 2"]; closed != (behind == 0) {
				t.Errorf("%d times behind", behind)
			}
		})
	}
}

// A file that is shorter or gone is damage, and a sector that was never written concerns somebody.
func TestTruncatedAndMissing(t *testing.T) {
	t.Parallel()
	s := newSample(t, true)
	for name, f := range s.fs.files {
		for length := 0; length < len(f.data); length += 1 + length/100 {
			after := s.fs.copyOf()
			after.put(name, f.data[:length])
			if out := s.open(t, after, fmt.Sprintf("%s cut to %d", name, length)); out.damaged == nil {
				t.Fatalf("%s cut to %d: %+v", name, length, out)
			}
		}
		after := s.fs.copyOf()
		delete(after.files, name)
		if out := s.open(t, after, name+" is gone"); out.damaged == nil && name != spareFile {
			t.Errorf("%s is gone: %+v", name, out)
		}
		for at := 0; at < len(f.data); at += sector {
			after := s.fs.copyOf()
			clear(after.files[name].data[at:min(at+sector, len(f.data))])
			if out := s.open(t, after, fmt.Sprintf("%s, sector at %d", name, at)); out.behind > 0 {
				t.Errorf("%s, sector at %d lost: %+v", name, at, out)
			}
		}
	}
	if out := s.open(t, s.fs.copyOf(), "whole"); out.complete != 3 {
		t.Errorf("whole: %+v", out)
	}
	after := s.fs.copyOf()
	after.put(segmentName(77), make([]byte, 4<<10))
	if out := s.open(t, after, "a segment too many"); out.damaged == nil {
		t.Error("a segment that the manifest does not know")
	}
}

// An entry that is damaged while the log is open makes its group lost, and no other; the group stays lost when the log is
// opened again, until it is forgotten.
func TestDamageWhileOpen(t *testing.T) {
	t.Parallel()
	fs := newMemFS()
	o := Options{SegmentBytes: 64 << 10, CacheBytes: 1, QuietAfter: time.Hour, Logger: quietly, fs: fs}
	r := startIn(t, "", o)
	entry := func(i uint64) *raft.Log { return &raft.Log{Index: i, Data: []byte("0123456789")} }
	for id := range uint32(3) {
		if err := errors.Join(r.Group(id).StoreLog(entry(1)), r.Group(id).StoreLog(entry(2))); err != nil {
			t.Fatal(err)
		}
	}
	at, _ := r.Group(1).find(1)
	fs.files[segmentName(1)].data[at.offset+recordHeader] ^= 1
	lost := new(LostError)
	if err := r.Group(1).GetLog(1, new(raft.Log)); !errors.As(err, &lost) || lost.Group != 1 {
		t.Errorf("read: %v", err)
	}
	for range 2 {
		_, first := r.Group(1).FirstIndex()
		_, get := r.Group(1).Get([]byte("k"))
		for _, err := range []error{
			first, get, r.Group(1).StoreLog(entry(3)), r.Group(1).Set([]byte("k"), nil), r.Group(1).DeleteRange(1, 1),
			r.Group(1).DeleteRange(2, 1), r.Group(1).GetLog(2, new(raft.Log)),
		} {
			if !errors.As(err, &lost) {
				t.Errorf("a lost group: %v", err)
			}
		}
		for _, id := range []uint32{0, 2, 9} {
			if err := errors.Join(r.Group(id).StoreLog(entry(3)), r.Group(id).GetLog(3, new(raft.Log))); err != nil {
				t.Errorf("group %d: %v", id, err)
			}
		}
		if err := r.stop(); err != nil {
			t.Fatal(err)
		}
		r = startIn(t, "", o)
		if !r.Stats().Damaged {
			t.Error("the damage is gone")
		}
	}
	if err := errors.Join(r.Group(1).Forget(), r.Group(1).StoreLog(entry(5))); err != nil {
		t.Fatal(err)
	}
	if err := r.stop(); err != nil {
		t.Fatal(err)
	}
	r = startIn(t, "", o)
	first, err := r.Group(1).FirstIndex()
	if first != 5 || err != nil {
		t.Errorf("forgotten: first index %d, %v", first, err)
	}
	if err := r.stop(); err != nil {
		t.Fatal(err)
	}
}

// FuzzEdits changes bytes of a small log: whatever they are, no group holds what it never held.
func FuzzEdits(f *testing.F) {
	s := newSample(f, true)
	names := slices.Sorted(maps.Keys(s.fs.files))
	f.Add([]byte{0, 0, 9, 1})
	f.Add([]byte{1, 2, 0, 255, 1, 2, 1, 7, 2, 0, 3, 200})
	f.Fuzz(func(t *testing.T, edits []byte) {
		after := s.fs.copyOf()
		for ; len(edits) >= 4; edits = edits[4:] {
			data := after.files[names[int(edits[0])%len(names)]].data
			data[(int(edits[1])<<8|int(edits[2]))%len(data)] ^= edits[3]
		}
		s.open(t, after, "edited")
	})
}

// FuzzSegment reads anything behind a right header.
func FuzzSegment(f *testing.F) {
	s := newSample(f, true)
	f.Add(s.fs.files[segmentName(1)].data[sector:])
	f.Add(s.fs.files[segmentName(2)].data[sector:])
	f.Fuzz(func(t *testing.T, body []byte) {
		const size = 4 << 10
		fs := newMemFS()
		segment := segmentFile{number: 1, size: size, first: 1}
		b := append(segment.header([16]byte{}), body[:min(len(body), size-sector)]...)
		fs.put(segmentName(1), append(b, make([]byte, size-len(b))...))
		if err := (manifest{1, 1}).write(fs); err != nil {
			t.Fatal(err)
		}
		l, err := Open("", Options{SegmentBytes: size, Logger: quietly, fs: fs})
		if err != nil {
			return
		}
		for _, g := range l.allGroups() {
			if _, err := read(g); err != nil && g.Err() == nil {
				t.Errorf("group %d: %v", g.id, err)
			}
		}
		_ = l.Close()
	})
}
