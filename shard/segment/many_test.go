package segment

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/hashicorp/raft"
)

// 64 groups write, read and delete at once, at different speeds, while segments are begun, cleaned and recycled.
func TestManyGroups(t *testing.T) {
	t.Parallel()
	const groups = 64
	dir := t.TempDir()
	o := Options{SegmentBytes: 64 << 10, CacheBytes: 20 << 10, MoveBytes: 4 << 10, Slack: 2, QuietAfter: time.Millisecond, Logger: quietly}
	r := startIn(t, dir, o)
	var models [groups]model
	var all sync.WaitGroup
	for id := range models {
		models[id] = newModel()
		all.Go(func() {
			rnd := rand.New(rand.NewPCG(uint64(id), 5))
			g := r.Group(uint32(id))
			for step := range 4 + 60/(1+id%16) {
				call := draw(rnd, models[id], 1500)
				models[id].apply(call)
				if err := call.do(g); err != nil {
					t.Errorf("group %d, step %d: %v", id, step, err)
					return
				}
				if m, err := read(g); err != nil || m.String() != models[id].String() {
					t.Errorf("group %d, step %d: %v, %v, not %v", id, step, m, err, models[id])
					return
				}
				_ = r.Stats()
			}
		})
	}
	all.Wait()
	t.Logf("%+v", r.Stats())
	if err := r.stop(); err != nil {
		t.Fatal(err)
	}
	l, err := Open(dir, o)
	if err != nil {
		t.Fatal(err)
	}
	for id := range models {
		if m, err := read(l.Group(uint32(id))); err != nil || m.String() != models[id].String() {
			t.Errorf("group %d, opened again: %v, %v, not %v", id, m, err, models[id])
		}
	}
	if err := l.Close(); err != nil {
		t.Error(err)
	}
}

// Groups that hardly move do not pin the log: their records are moved, a slice with a commit, and segments are recycled.
func TestSlowGroups(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	o := Options{SegmentBytes: 32 << 10, MoveBytes: 2 << 10, Slack: 2, QuietAfter: time.Hour, Logger: quietly}
	r := startIn(t, dir, o)
	for id := range uint32(3) {
		if err := errors.Join(r.Group(id).StoreLogs([]*raft.Log{entryOf(1, 3000), entryOf(2, 3000)}), r.Group(id).SetUint64([]byte("CurrentTerm"), uint64(id))); err != nil {
			t.Fatal(err)
		}
	}
	largest := 0
	for i := uint64(1); i <= 600; i++ {
		if err := r.Group(9).StoreLog(entryOf(i, 2000)); err != nil {
			t.Fatal(err)
		}
		if i%20 == 0 {
			if err := r.Group(9).DeleteRange(1, i-10); err != nil {
				t.Fatal(err)
			}
			largest = max(largest, r.Stats().Segments)
		}
	}
	stats := r.Stats()
	if largest > 12 || stats.Moved == 0 {
		t.Errorf("up to %d segments, %+v", largest, stats)
	}
	for id := range uint32(3) {
		term, err := r.Group(id).GetUint64([]byte("CurrentTerm"))
		if err := errors.Join(err, r.Group(id).GetLog(1, new(raft.Log)), r.Group(id).GetLog(2, new(raft.Log))); err != nil || term != uint64(id) {
			t.Errorf("group %d: term %d, %v", id, term, err)
		}
	}
	files, err := os.ReadDir(dir)
	if err != nil || len(files) > largest+4 {
		t.Errorf("%d files, %v", len(files), err)
	}
	if err := r.stop(); err != nil {
		t.Fatal(err)
	}
}

// A log is started and stopped many times, also while calls are made; each call has an answer.
func TestStartStop(t *testing.T) {
	t.Parallel()
	dir := filepath.Join(t.TempDir(), "log")
	o := Options{SegmentBytes: 8 << 10, QuietAfter: time.Microsecond, Logger: quietly}
	stored := [4]uint64{}
	for round := range 20 {
		r := startIn(t, dir, o)
		var all sync.WaitGroup
		for id := range stored {
			g := r.Group(uint32(id))
			if last, err := g.LastIndex(); err != nil || last < stored[id] || last > stored[id]+1 {
				t.Fatalf("round %d, group %d: last index %d, stored %d, %v", round, id, last, stored[id], err)
			} else {
				stored[id] = last
			}
			all.Go(func() {
				for {
					if err := g.StoreLog(entryOf(stored[id]+1, 300)); err != nil {
						if !errors.Is(err, ErrClosed) {
							t.Error(err)
						}
						return
					}
					if stored[id]++; id == 0 && stored[id]%8 == 7 {
						r.cancel()
					}
				}
			})
		}
		all.Wait()
		if err := r.stop(); err != nil {
			t.Fatalf("round %d: %v", round, err)
		}
	}
	canceled, cancel := context.WithCancel(t.Context())
	cancel()
	l, err := Open(dir, o)
	if err != nil {
		t.Fatal(err)
	}
	if err := l.Run(canceled); err != nil {
		t.Error(err)
	}
	if err := l.Close(); err != nil {
		t.Error(err)
	}
}

// Options out of their limits are refused.
func TestOptions(t *testing.T) {
	t.Parallel()
	for _, o := range []Options{{SegmentBytes: 1000}, {SegmentBytes: 512}, {SegmentBytes: 4 << 30}, {CacheBytes: -1}} {
		if _, err := Open(t.TempDir(), o); err == nil {
			t.Errorf("%+v is taken", fmt.Sprint(o.SegmentBytes, o.CacheBytes))
		}
	}
}
