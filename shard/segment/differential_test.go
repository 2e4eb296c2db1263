package segment

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"path/filepath"
	"testing"
	"time"

	"github.com/hashicorp/raft"
	raftboltdb "github.com/hashicorp/raft-boltdb/v2"
)

// The log answers as raft-boltdb does, to random calls of several groups and across openings, while segments are begun,
// cleaned and recycled.
func TestAsBolt(t *testing.T) {
	t.Parallel()
	for seed := range uint64(4) {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			t.Parallel()
			rnd := rand.New(rand.NewPCG(seed, 1))
			o := Options{
				SegmentBytes: 8<<10 + sector*rnd.IntN(20), CacheBytes: rnd.IntN(9000) + 1, MoveBytes: rnd.IntN(4000) + 1, Slack: 1 + rnd.IntN(2),
				QuietAfter: time.Duration(1 + rnd.IntN(1_000_000)), Logger: quietly,
			}
			dir := t.TempDir()
			l := startIn(t, filepath.Join(dir, "log"), o)
			const groups = 4
			var bolts [groups]*raftboltdb.BoltStore
			var models [groups]model
			for i := range bolts {
				bolt, err := raftboltdb.New(raftboltdb.Options{Path: filepath.Join(dir, fmt.Sprint(i)), NoSync: true})
				if err != nil {
					t.Fatal(err)
				}
				defer bolt.Close()
				bolts[i], models[i] = bolt, newModel()
			}
			for step := range 600 {
				id := min(rnd.IntN(groups), rnd.IntN(groups), rnd.IntN(groups)) // the last is slow
				call := draw(rnd, models[id], 900)
				models[id].apply(call)
				if got, want := call.do(l.Group(uint32(id))), call.do(bolts[id]); got != nil || want != nil {
					t.Fatalf("step %d: %v, bolt: %v", step, got, want)
				}
				if step%16 == 0 {
					compare(t, l.Group(uint32(id)), bolts[id], models[id])
				}
				if rnd.IntN(100) == 0 {
					if err := l.stop(); err != nil {
						t.Fatal(err)
					}
					l = startIn(t, filepath.Join(dir, "log"), o)
					for id := range bolts {
						compare(t, l.Group(uint32(id)), bolts[id], models[id])
					}
				}
			}
			stats := l.Stats()
			if stats.Bytes > 3*stats.Live+6*int64(o.SegmentBytes) || stats.Damaged {
				t.Errorf("the log has outgrown what is needed: %+v", stats)
			}
			if err := l.stop(); err != nil {
				t.Fatal(err)
			}
		})
	}
}

// compare reads everything from both.
func compare(t *testing.T, g *Group, bolt *raftboltdb.BoltStore, m model) {
	t.Helper()
	first, err := g.FirstIndex()
	last, err2 := g.LastIndex()
	wantFirst, _ := bolt.FirstIndex()
	wantLast, _ := bolt.LastIndex()
	if first != wantFirst || last != wantLast || err != nil || err2 != nil {
		t.Fatalf("%d to %d (%v, %v), bolt: %d to %d", first, last, err, err2, wantFirst, wantLast)
	}
	for i := max(first, 1) - 1; i <= last+1; i++ {
		var got, want raft.Log
		gotErr, wantErr := g.GetLog(i, &got), bolt.GetLog(i, &want)
		if gotErr != wantErr || show(&got) != show(&want) {
			t.Fatalf("entry %d: %s, %v, bolt: %s, %v", i, show(&got), gotErr, show(&want), wantErr)
		}
	}
	for _, key := range []string{"CurrentTerm", "LastVoteTerm", "LastVoteCand", "none"} {
		got, gotErr := g.Get([]byte(key))
		want, wantErr := bolt.Get([]byte(key))
		if string(got) != string(want) || (gotErr == nil) != (wantErr == nil) || gotErr != nil && gotErr.Error() != wantErr.Error() {
			t.Fatalf("key %s: %q, %v, bolt: %q, %v", key, got, gotErr, want, wantErr)
		}
	}
	if got, err := read(g); err != nil || got.String() != m.String() {
		t.Fatalf("%v, %v; the model: %v", got, err, m)
	}
}

// What Raft compares as text, and the edges of the interfaces.
func TestEdges(t *testing.T) {
	t.Parallel()
	l := startIn(t, t.TempDir(), Options{SegmentBytes: 8 << 10, Logger: quietly})
	g := l.Group(7)
	if _, err := g.GetUint64([]byte("CurrentTerm")); err != ErrKeyNotFound || err.Error() != raftboltdb.ErrKeyNotFound.Error() {
		t.Errorf("a key that was never set: %v", err)
	}
	if err := g.GetLog(1, new(raft.Log)); err != raft.ErrLogNotFound {
		t.Errorf("an entry that is not there: %v", err)
	}
	if err := g.StoreLog(&raft.Log{Index: 1, Data: make([]byte, 8<<10)}); !errors.Is(err, ErrTooLarge) {
		t.Errorf("an entry that is too large: %v", err)
	}
	var many []*raft.Log
	for i := range uint64(40) {
		many = append(many, &raft.Log{Index: i + 1, Data: make([]byte, 1000)})
	}
	if err := g.StoreLogs(many); err != nil {
		t.Errorf("more than a segment at once: %v", err)
	}
	if last, _ := g.LastIndex(); last != 40 {
		t.Errorf("last %d", last)
	}
	var zero raft.Log
	if err := g.GetLog(40, &zero); err != nil || !zero.AppendedAt.IsZero() {
		t.Errorf("the time zero comes back as %v, %v", zero.AppendedAt, err)
	}
	if begun, err := g.Begin(many, nil, nil); begun || err != nil {
		t.Errorf("more than a segment begun: %v, %v", begun, err)
	}
	if begun, err := g.Begin([]*raft.Log{{Index: 41, Data: make([]byte, 8<<10)}}, nil, nil); begun || !errors.Is(err, ErrTooLarge) {
		t.Errorf("begin an entry that is too large: %v, %v", begun, err)
	}
	answer := make(chan error, 1)
	if begun, err := g.Begin([]*raft.Log{{Index: 41}, {Index: 42}}, nil, func(err error) { answer <- err }); !begun || err != nil {
		t.Errorf("two entries: %v, %v", begun, err)
	} else if err := <-answer; err != nil {
		t.Error(err)
	}
	if last, _ := g.LastIndex(); last != 42 {
		t.Errorf("last %d after a begun write was answered", last)
	}
	if _, monotonic := any(g).(raft.MonotonicLogStore); monotonic {
		t.Error("Raft would remove entries behind a snapshot")
	}
	if err := errors.Join(g.Set(nil, nil), g.Set([]byte("k"), []byte("v"))); err == nil {
		t.Error("an empty key")
	}
	if _, err := g.GetUint64([]byte("k")); err == nil || errors.Is(err, ErrKeyNotFound) {
		t.Errorf("a key that is no number: %v", err)
	}
	if err := l.Close(); err == nil {
		t.Error("closed while it runs")
	}
	if err := l.stop(); err != nil {
		t.Fatal(err)
	}
	if err := g.Set([]byte("k"), nil); !errors.Is(err, ErrClosed) {
		t.Errorf("a write after the end: %v", err)
	}
	if err := l.Run(t.Context()); !errors.Is(err, ErrClosed) {
		t.Errorf("run after the end: %v", err)
	}
}
