// Package segment keeps the Raft logs, terms and votes of all groups of a node in one log of segments, so that one flush
// of the disk serves all groups that wait.
//
// Invariants:
//
//  1. A write is answered when its batch is flushed, and a batch is written when the one before is flushed: what a crash
//     can tear is the last batch alone, and nothing of it was answered.
//  2. Only the last batch is ever cut. Any other damage is an error with a name (*DamagedError, *LostError), never a
//     shorter log: a group is served only if each of its records is there, or was there when it stopped to count.
//  3. After a write or a flush that failed nothing is written any more (*WriteError), and Run returns.
//  4. Segments go from the oldest on, and only when no group needs one of their records.
//
// Threads: Open and Close start none. Run starts the committer, which alone writes records, the preparer, which makes
// segments, and the cleaner, which moves old records, and returns when they have ended. Groups may be used from any goroutine.
package segment

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"sync/atomic"
	"time"
)

// Options shape a log; the zero value is the defaults.
type Options struct {
	// SegmentBytes is the size of a new segment, a multiple of 512. Default 64 MiB; at least 4 KiB, at most 1 GiB.
	SegmentBytes int
	// CacheBytes bounds the newest entries that are kept in memory, of all groups together. Default 8 MiB.
	CacheBytes int
	// BatchBytes is how much a commit collects at most; one call alone may be longer. Default 4 MiB.
	BatchBytes int
	// MoveBytes is how much a commit moves of the oldest segment, at least one record. Default 128 KiB.
	MoveBytes int
	// Slack is how many segments beyond twice what is needed are left in peace. Default 4.
	Slack int
	// QuietAfter is how long nothing may have been written until the last batch is marked as flushed. Default 50 ms.
	QuietAfter time.Duration
	// Logger is told of damage. Default slog.Default().
	Logger *slog.Logger

	fs fileSystem
}

// minSegmentBytes and maxSegmentBytes bound Options.SegmentBytes.
const (
	minSegmentBytes = 4 << 10
	maxSegmentBytes = 1 << 30
)

func (o *Options) fill() error {
	for _, f := range []struct {
		value *int
		def   int
	}{{&o.SegmentBytes, 64 << 20}, {&o.CacheBytes, 8 << 20}, {&o.BatchBytes, 4 << 20}, {&o.MoveBytes, 128 << 10}, {&o.Slack, 4}} {
		if *f.value == 0 {
			*f.value = f.def
		}
		if *f.value < 0 {
			return fmt.Errorf("segment log: an option is %d", *f.value)
		}
	}
	if o.QuietAfter == 0 {
		o.QuietAfter = 50 * time.Millisecond
	}
	if o.Logger == nil {
		o.Logger = slog.Default()
	}
	if o.SegmentBytes%sector != 0 || o.SegmentBytes < minSegmentBytes || o.SegmentBytes > maxSegmentBytes {
		return fmt.Errorf("segment log: SegmentBytes %d is not valid: a multiple of %d from %d to %d",
			o.SegmentBytes, sector, minSegmentBytes, maxSegmentBytes)
	}
	return nil
}

// Log is the log of a node.
type Log struct {
	// These are set before sharing.
	o     Options
	fs    fileSystem
	cache *cache
	// damaged says that a part of the log is lost, unproven that it is not known whose: then a group that was not proven
	// whole is lost. From the segment pinned on (0: none) none is given free, so that the next opening finds the same.
	damaged, unproven bool
	pinned            atomic.Uint32

	// wake says that something waits, turned that the cleaner may have work. Each holds one signal.
	wake, turned chan struct{}
	room         room
	// next, at, newest and oldest are touched by Open, then by Run's committer, then by Close.
	next           uint64 // sequence of the next batch
	at             int64  // where it is written
	newest, oldest *segmentFile
	buffer         []byte

	batches, records, moved, written atomic.Uint64

	mu sync.Mutex
	// All below is guarded by mu.
	waiting  []*request
	failed   error // what is answered to writes; nil while the log takes some
	groups   map[uint32]*Group
	segments map[uint32]*segmentFile
	dead     []*segmentFile // given free, for the preparer
	running  bool
}

// Stats are figures of a log.
type Stats struct {
	// Segments are those that are there, Bytes their sizes, Live the bytes of the records that are needed.
	Segments    int
	Bytes, Live int64
	// Batches, Records and Written (bytes) count since the log was opened, Moved the records that were moved.
	Batches, Records, Moved, Written uint64
	// Damaged says that some groups are lost.
	Damaged bool
}

// Stats returns the figures of now.
func (l *Log) Stats() Stats {
	s := Stats{
		Batches: l.batches.Load(), Records: l.records.Load(), Moved: l.moved.Load(), Written: l.written.Load(), Damaged: l.damaged,
	}
	for _, segment := range l.table() {
		s.Segments++
		s.Bytes += segment.size
		s.Live += segment.bytes.Load()
	}
	return s
}

// table lists the segments, oldest first.
func (l *Log) table() []*segmentFile {
	l.mu.Lock()
	defer l.mu.Unlock()
	all := make([]*segmentFile, 0, len(l.segments))
	for _, s := range l.segments {
		all = append(all, s)
	}
	slices.SortFunc(all, func(a, b *segmentFile) int { return int(a.number) - int(b.number) })
	return all
}

// Group returns the log of a group; one that was never written is empty. It is the same for the same number.
func (l *Log) Group(id uint32) *Group {
	l.mu.Lock()
	defer l.mu.Unlock()
	g := l.groups[id]
	if g == nil {
		g = newGroup(l, id)
		if l.unproven {
			g.lost = &LostError{id, errUnproven}
		}
		l.groups[id] = g
	}
	return g
}

// allGroups lists the groups in the order of their numbers.
func (l *Log) allGroups() []*Group {
	l.mu.Lock()
	defer l.mu.Unlock()
	all := make([]*Group, 0, len(l.groups))
	for _, g := range l.groups {
		all = append(all, g)
	}
	slices.SortFunc(all, func(a, b *Group) int { return int(int64(a.id) - int64(b.id)) })
	return all
}

// acquire returns a segment that stays readable until it is released; nil if it was given free.
func (l *Log) acquire(number uint32) *segmentFile {
	l.mu.Lock()
	defer l.mu.Unlock()
	s := l.segments[number]
	if s != nil {
		s.users++
	}
	return s
}

func (l *Log) release(s *segmentFile) {
	l.mu.Lock()
	defer l.mu.Unlock()
	s.users--
}

// Run writes what the groups ask for until the context ends; what waits then gets ErrClosed. The error says what write
// failed; the process is to end. Writes wait until Run runs. It is called once.
func (l *Log) Run(ctx context.Context) error {
	l.mu.Lock()
	again := l.running || l.failed != nil
	l.running = true
	l.mu.Unlock()
	if again {
		return fmt.Errorf("run: %w", ErrClosed)
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	var helpers sync.WaitGroup
	helpers.Go(func() { l.prepare(ctx) })
	helpers.Go(func() { l.clean(ctx) })
	err := l.commitAll(ctx)
	end := err
	if end == nil {
		end = ErrClosed
	}
	for _, r := range l.stopTaking(end) {
		r.done(end)
	}
	cancel()
	helpers.Wait()
	l.mu.Lock()
	l.running = false
	l.mu.Unlock()
	return err
}

// stopTaking answers all later writes with err, and returns those that wait.
func (l *Log) stopTaking(err error) []*request {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.failed == nil {
		l.failed = err
	}
	waiting := l.waiting
	l.waiting = nil
	return waiting
}

// Close marks the end of the log and closes its files. Run has returned, or was never called; reads fail from now on.
func (l *Log) Close() error {
	l.mu.Lock()
	if l.running {
		l.mu.Unlock()
		return errors.New("segment log: closed while it runs")
	}
	broken := new(WriteError)
	fine := !errors.As(l.failed, &broken)
	l.failed = ErrClosed
	l.mu.Unlock()
	var errs []error
	if fine && l.newest != nil {
		errs = append(errs, l.mark(), l.newest.Sync())
	}
	l.mu.Lock()
	open := l.dead
	for _, s := range l.segments {
		open = append(open, s)
	}
	l.segments, l.dead, l.newest = nil, nil, nil
	l.mu.Unlock()
	for _, s := range open {
		errs = append(errs, s.Close())
	}
	return errors.Join(append(errs, l.room.close())...)
}
