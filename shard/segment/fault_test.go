package segment

import (
	"errors"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/hashicorp/raft"
)

var errBroken = errors.New("input/output error")

func entryOf(i uint64, n int) *raft.Log { return &raft.Log{Index: i, Data: make([]byte, n)} }

// The first write or flush that fails is the last: every write afterwards has that error, Run ends with it, and what was
// answered before is there when the log is opened again.
func TestErrorsAreSticky(t *testing.T) {
	t.Parallel()
	for _, op := range []string{"write", "sync"} {
		t.Run(op, func(t *testing.T) {
			t.Parallel()
			fs := newMemFS()
			o := Options{SegmentBytes: 64 << 10, QuietAfter: time.Hour, Logger: quietly, fs: fs}
			r := startIn(t, "", o)
			if err := r.Group(0).StoreLog(entryOf(1, 10)); err != nil {
				t.Fatal(err)
			}
			fs.mu.Lock()
			fs.fault = func(what, _ string) error {
				if what == op {
					return errBroken
				}
				return nil
			}
			fs.mu.Unlock()
			broken := new(WriteError)
			if err := r.Group(0).StoreLog(entryOf(2, 10)); !errors.As(err, &broken) || !errors.Is(err, errBroken) {
				t.Errorf("the write that fails: %v", err)
			}
			fs.mu.Lock()
			fs.fault = nil
			fs.mu.Unlock()
			for id := range uint32(3) {
				if err := r.Group(id).Set([]byte("k"), nil); !errors.As(err, &broken) {
					t.Errorf("a write afterwards: %v", err)
				}
			}
			if err := r.Group(0).GetLog(1, new(raft.Log)); err != nil {
				t.Errorf("what was answered before: %v", err)
			}
			if last, _ := r.Group(0).LastIndex(); last != 1 {
				t.Errorf("last index %d: what was not flushed shows", last)
			}
			if err := r.stop(); !errors.Is(err, errBroken) {
				t.Errorf("the end: %v", err)
			}
			r = startIn(t, "", o)
			if err := r.Group(0).GetLog(1, new(raft.Log)); err != nil {
				t.Errorf("opened again: %v", err)
			}
			shown, _ := r.Group(0).LastIndex()
			fs.mu.Lock()
			o.fs = fs.image(func(int) int { return 0 }) // what it shows now is on the disk, though the flush had failed
			fs.mu.Unlock()
			if err := r.stop(); err != nil {
				t.Error(err)
			}
			r = startIn(t, "", o)
			if last, err := r.Group(0).LastIndex(); err != nil || last != shown {
				t.Errorf("after a crash: last index %d, %v; it was %d", last, err, shown)
			}
			if err := r.stop(); err != nil {
				t.Error(err)
			}
		})
	}
}

// fillUp returns what makes the disk full: no segment can be made on it then.
func fillUp(fs *memFS) *atomic.Bool {
	full := new(atomic.Bool)
	fs.fault = func(op, name string) error {
		if full.Load() && op == "create" && name == spareFile {
			return syscall.ENOSPC
		}
		return nil
	}
	return full
}

// A full disk shows when a segment is to be made: nothing is written then, the log stays whole, and goes on when there is
// room again.
func TestFullDisk(t *testing.T) {
	t.Parallel()
	fs := newMemFS()
	full := fillUp(fs)
	o := Options{SegmentBytes: 8 << 10, QuietAfter: time.Hour, Logger: quietly, fs: fs}
	r := startIn(t, "", o)
	full.Store(true)
	var failed uint64
	for i := uint64(1); failed == 0; i++ {
		err := r.Group(0).StoreLog(entryOf(i, 500))
		if room := new(RoomError); errors.As(err, &room) && errors.Is(err, syscall.ENOSPC) {
			failed = i
		} else if err != nil || i > 100 {
			t.Fatalf("entry %d: %v", i, err)
		}
	}
	for range 3 {
		if err := r.Group(0).StoreLog(entryOf(failed, 500)); !errors.Is(err, syscall.ENOSPC) {
			t.Errorf("while it is full: %v", err)
		}
	}
	if last, _ := r.Group(0).LastIndex(); last != failed-1 {
		t.Errorf("last index %d, not %d", last, failed-1)
	}
	full.Store(false)
	if err := r.Group(0).StoreLog(entryOf(failed, 500)); err != nil {
		t.Errorf("with room again: %v", err)
	}
	if err := r.stop(); err != nil {
		t.Fatal(err)
	}
	full.Store(true)
	r = startIn(t, "", o)
	if last, _ := r.Group(0).LastIndex(); last != failed {
		t.Errorf("opened again: last index %d, not %d", last, failed)
	}
	if err := r.stop(); err != nil {
		t.Fatal(err)
	}
	empty := newMemFS()
	empty.fault = fs.fault
	if _, err := Open("", Options{Logger: quietly, fs: empty}); !errors.Is(err, syscall.ENOSPC) {
		t.Errorf("a new log on a full disk: %v", err)
	}
}

// An entry that was begun behind one for which the disk has no room is not written if its caller says so: it would leave a gap.
func TestFullDiskLeavesNoGap(t *testing.T) {
	t.Parallel()
	fs := newMemFS()
	full := fillUp(fs)
	r := startIn(t, "", Options{SegmentBytes: 8 << 10, QuietAfter: time.Hour, Logger: quietly, fs: fs})
	if err := r.Group(0).StoreLog(entryOf(1, 1000)); err != nil {
		t.Fatal(err)
	}
	full.Store(true)
	answers := make(chan error, 2)
	var failed error // touched by the committer
	done := func(err error) {
		failed = err
		answers <- err
	}
	begin := func(i uint64, n int, valid func() error) {
		if begun, err := r.Group(0).Begin([]*raft.Log{entryOf(i, n)}, valid, done); !begun || err != nil {
			t.Errorf("entry %d: %v, %v", i, begun, err)
		}
	}
	begin(2, 6500, func() error {
		begin(3, 10, func() error { return failed }) // which would fit
		return nil
	})
	for range 2 {
		if err := <-answers; !errors.Is(err, syscall.ENOSPC) {
			t.Errorf("the answer is %v", err)
		}
	}
	if last, _ := r.Group(0).LastIndex(); last != 1 {
		t.Errorf("the log goes to %d", last)
	}
	if err := r.stop(); err != nil {
		t.Error(err)
	}
}

// A disk that fails in the midst of a change of segments ends the log, and what was answered is there afterwards.
func TestErrorsBetweenSegments(t *testing.T) {
	t.Parallel()
	for skip := range 60 {
		fs := newMemFS()
		o := Options{SegmentBytes: 4 << 10, MoveBytes: 600, Slack: 1, CacheBytes: 1, QuietAfter: time.Hour, Logger: quietly, fs: fs}
		r := startIn(t, "", o)
		left := atomic.Int64{}
		left.Store(int64(skip) * 3)
		fs.mu.Lock()
		fs.fault = func(op, name string) error {
			if left.Add(-1) < 0 && name != spareFile {
				return errBroken
			}
			return nil
		}
		fs.mu.Unlock()
		answered, slow := uint64(0), false
		for i := uint64(1); i < 80; i++ {
			if i == 3 {
				slow = r.Group(1).StoreLog(entryOf(1, 100)) == nil
			}
			if r.Group(0).StoreLog(entryOf(i, 300)) != nil {
				break
			}
			answered = i
			if i%10 == 0 && r.Group(0).DeleteRange(1, i-3) != nil {
				break
			}
		}
		if err := r.stop(); err == nil || !errors.Is(err, errBroken) && !errors.Is(err, ErrClosed) {
			t.Logf("after %d operations: %v", 3*skip, err)
		}
		fs.fault = nil
		l, err := Open("", o)
		if err != nil {
			t.Fatalf("after %d operations: %v", 3*skip, err)
		}
		if last, _ := l.Group(0).LastIndex(); last != answered && last != answered+1 {
			t.Errorf("after %d operations: last index %d, answered %d", 3*skip, last, answered)
		}
		if err := l.Group(1).GetLog(1, new(raft.Log)); slow && err != nil {
			t.Errorf("after %d operations: the slow group: %v", 3*skip, err)
		}
		_ = l.Close()
	}
}
