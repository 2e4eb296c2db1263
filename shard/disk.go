package shard

import (
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/carillon-timers/carillon/shard/executor"
	"github.com/hashicorp/raft"
)

// DiskError says that a write of the log failed or took too long. What the disk holds then is not known any more, so
// nothing more is written: the replica stops, and reads the truth when it is opened again.
type DiskError struct {
	Op    string
	Cause error
}

func (e *DiskError) Error() string { return fmt.Sprintf("disk: %s: %v", e.Op, e.Cause) }

func (e *DiskError) Unwrap() error { return e.Cause }

// ErrWriteTimeout is the cause of a DiskError for a write that did not end in time. It may still end.
var ErrWriteTimeout = errors.New("the write did not end in time")

// termKey is the key under which Raft keeps its term. Raft panics if it cannot be written.
const termKey = "CurrentTerm"

// openedKey is written each time that the replica starts; its value is not used.
const openedKey = "Opened"

// deleteChunk is how many entries are cut from the head of the log in one transaction; appends pass between them.
const deleteChunk = 512

// disk stands between Raft and its log: each write has a deadline, the first that fails is the last, and all are timed.
// Reads pass through, and their errors are left as they are: Raft compares them as text.
type disk struct {
	raft.LogStore
	raft.StableStore
	timeout time.Duration
	now     func() time.Time
	// failed is told of the first error. It does not wait.
	failed func(error)
	// writes go to the writer, one at a time.
	writes chan *write
	// quit is closed when Raft has been told to shut down: a term that cannot be written is waited with until then.
	quit chan struct{}

	// log is LogStore if its writes need no goroutine that waits for them; else nil. Set before sharing.
	log beginner

	// running says that the writer runs and Raft is started.
	running atomic.Bool
	broken  atomic.Pointer[DiskError]
	// since is when the write that Raft's loop waits for began, 0 for none; Unix nanoseconds of now.
	since atomic.Int64
	// leads says that Raft is a leader; nil if no write is to be early. Set before sharing.
	leads func() bool
	early unflushed

	appends, votes, deletes executor.Histogram
	bytes, entries          atomic.Uint64
}

// beginner is a log that starts to store entries, and calls done once when they are stored, or never will be. It says false, and does
// nothing, if it cannot do so with these. Writes of terms and votes are stored behind those that were begun before. When those before are
// answered it asks valid, and stores nothing if that returns an error.
type beginner interface {
	Begin(entries []*raft.Log, valid func() error, done func(error)) (bool, error)
}

type write struct {
	do   func() error
	done chan error
}

// DiskStats are the times of the writes of the log, in microseconds.
type DiskStats struct {
	// Appends are writes of entries, Votes of terms and votes, Deletes of cuts at the log's ends.
	Appends, Votes, Deletes executor.HistogramSnapshot
	// Bytes and Entries were appended.
	Bytes, Entries uint64
	// Writing is how long the write under way has taken.
	Writing time.Duration
	// Broken is the error after which nothing is written any more; nil if there was none.
	Broken error
}

func newDisk(s *Stores, timeout time.Duration, now func() time.Time, failed func(error)) *disk {
	d := &disk{
		LogStore: s.Log, StableStore: s.Stable, timeout: timeout, now: now, failed: failed,
		writes: make(chan *write), quit: make(chan struct{}),
	}
	d.log, _ = s.Log.(beginner)
	return d
}

// settle waits until what was begun before, by the replica's last life in this process, is stored or never will be. Raft reads how long
// its log is when it starts: entries that came into it later would lie there unknown to it, behind others of a later term.
func (d *disk) settle() error {
	if d.log == nil {
		return nil
	}
	return d.StableStore.Set([]byte(openedKey), nil)
}

// run is the writer. It ends when stop is closed and the write under way has ended, which may be never.
func (d *disk) run(stop <-chan struct{}) {
	for {
		select {
		case w := <-d.writes:
			err := d.sound() // it may have waited behind one that failed
			if err == nil {
				err = w.do()
			}
			w.done <- err
		case <-stop:
			return
		}
	}
}

// write gives a write to the writer and waits for it, until the deadline.
func (d *disk) write(op string, times *executor.Histogram, do func() error) error {
	if err := d.sound(); err != nil {
		return err
	}
	start := d.now()
	if !d.running.Load() {
		err := do()
		times.Observe(d.now().Sub(start).Microseconds())
		return err
	}
	if times != &d.deletes {
		// Entries, terms and votes are written by one goroutine, Raft's loop.
		d.since.Store(start.UnixNano())
		defer d.since.Store(0)
	}
	deadline := time.NewTimer(d.timeout)
	defer deadline.Stop()
	w := &write{do, make(chan error, 1)}
	select {
	case d.writes <- w:
	case <-deadline.C:
		return d.fail(op, ErrWriteTimeout)
	}
	return d.await(op, times, start, w.done, deadline)
}

// await waits for the answer to a write, until the deadline.
func (d *disk) await(op string, times *executor.Histogram, start time.Time, done <-chan error, deadline *time.Timer) error {
	select {
	case err := <-done:
		times.Observe(d.now().Sub(start).Microseconds())
		if err != nil {
			return d.fail(op, err)
		}
		return nil
	case <-deadline.C:
		times.Observe(d.timeout.Microseconds())
		return d.fail(op, ErrWriteTimeout)
	}
}

// begin stores entries without the writer, if the log can: two hand-overs less on the way of each entry. False says that
// nothing was done.
func (d *disk) begin(entries []*raft.Log) (done bool, err error) {
	if d.log == nil || !d.running.Load() {
		return false, nil
	}
	if err := d.sound(); err != nil {
		return true, err
	}
	if d.mayBeEarly(entries) {
		return d.beginEarly(entries)
	}
	start := d.now()
	d.since.Store(start.UnixNano())
	defer d.since.Store(0)
	answer := make(chan error, 1)
	begun, err := d.log.Begin(entries, d.sound, func(err error) { answer <- err })
	switch {
	case err != nil:
		return true, d.fail("append", err)
	case !begun:
		return false, nil
	}
	deadline := time.NewTimer(d.timeout)
	defer deadline.Stop()
	return true, d.await("append", &d.appends, start, answer, deadline)
}

// sound says why nothing may be written any more; nil if it may.
func (d *disk) sound() error {
	if broken := d.broken.Load(); broken != nil {
		return broken
	}
	return nil
}

func (d *disk) fail(op string, cause error) error {
	err := &DiskError{op, cause}
	if d.broken.CompareAndSwap(nil, err) {
		d.failed(err)
	}
	return d.broken.Load()
}

// StoreLog implements raft.LogStore.
func (d *disk) StoreLog(entry *raft.Log) error { return d.StoreLogs([]*raft.Log{entry}) }

// StoreLogs implements raft.LogStore.
func (d *disk) StoreLogs(entries []*raft.Log) error {
	for _, entry := range entries {
		d.bytes.Add(uint64(len(entry.Data)))
	}
	d.entries.Add(uint64(len(entries)))
	if done, err := d.begin(entries); done {
		return err
	}
	return d.write("append", &d.appends, func() error { return d.LogStore.StoreLogs(entries) })
}

// DeleteRange implements raft.LogStore. The head of the log is cut in chunks, upwards, so that a crash leaves no gap and
// appends wait for a chunk only. The tail is cut at once.
func (d *disk) DeleteRange(first, last uint64) error {
	end, err := d.LogStore.LastIndex()
	if err != nil {
		return err
	}
	for ; last < end && last-first >= deleteChunk; first += deleteChunk {
		if err := d.deleteRange(first, first+deleteChunk-1); err != nil {
			return err
		}
	}
	return d.deleteRange(first, last)
}

func (d *disk) deleteRange(first, last uint64) error {
	return d.write("delete", &d.deletes, func() error { return d.LogStore.DeleteRange(first, last) })
}

// Set implements raft.StableStore.
func (d *disk) Set(key, value []byte) error {
	return d.write("vote", &d.votes, func() error { return d.StableStore.Set(key, value) })
}

// SetUint64 implements raft.StableStore. Raft panics, and would take all the shards of the process with it, if its term
// cannot be written. So then this waits until Raft is told to shut down, and lies. Nothing depends on the lie: after the
// first error no vote and no entry can be written, so none is promised. That it has entries which it sent unflushed in an older term a
// replica may say even then; no leader counts those for a majority, only with an entry of its own term behind them.
func (d *disk) SetUint64(key []byte, value uint64) error {
	err := d.write("vote", &d.votes, func() error { return d.StableStore.SetUint64(key, value) })
	if err != nil && string(key) == termKey && d.running.Load() {
		<-d.quit
		return nil
	}
	return err
}

// IsMonotonic implements raft.MonotonicLogStore for a log that is.
func (d *disk) IsMonotonic() bool {
	m, ok := d.LogStore.(raft.MonotonicLogStore)
	return ok && m.IsMonotonic()
}

// writing is how long the write under way has taken; 0 if there is none.
func (d *disk) writing() time.Duration {
	var longest time.Duration
	if since := d.since.Load(); since != 0 {
		longest = max(1, time.Duration(d.now().UnixNano()-since))
	}
	if w := d.early.oldest(); w != nil {
		longest = max(longest, 1, d.now().Sub(w.start))
	}
	return longest
}

func (d *disk) stats() DiskStats {
	s := DiskStats{
		Appends: d.appends.Snapshot(), Votes: d.votes.Snapshot(), Deletes: d.deletes.Snapshot(),
		Bytes: d.bytes.Load(), Entries: d.entries.Load(), Writing: d.writing(),
	}
	if broken := d.broken.Load(); broken != nil {
		s.Broken = broken
	}
	return s
}
