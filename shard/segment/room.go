package segment

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
)

// room is what the committer and the preparer hand each other: at most one order and one segment at a time.
type room struct {
	orders chan struct{}
	spares chan spare
	// ordered is touched by the committer: an order is out, or its spare waits.
	ordered bool
}

// spare is a file of the right size, filled and flushed, or why there is none.
type spare struct {
	file file
	err  error
}

func newRoom() room { return room{orders: make(chan struct{}, 1), spares: make(chan spare, 1)} }

func (r *room) order() {
	if !r.ordered {
		r.ordered = true
		r.orders <- struct{}{}
	}
}

// wait returns the spare that was ordered.
func (r *room) wait(ctx context.Context) (file, error) {
	r.order()
	select {
	case s := <-r.spares:
		r.ordered = false
		return s.file, s.err
	case <-ctx.Done():
		return nil, ErrClosed
	}
}

// close closes a spare that nobody took; the preparer has ended.
func (r *room) close() error {
	select {
	case s := <-r.spares:
		if s.file != nil {
			return s.file.Close()
		}
	default:
	}
	return nil
}

// prepare is the preparer: it makes the segments that are ordered, beside the commits.
func (l *Log) prepare(ctx context.Context) {
	for {
		select {
		case <-l.room.orders:
			f, err := l.makeSpare(ctx)
			l.room.spares <- spare{f, err}
		case <-ctx.Done():
			return
		}
	}
}

// makeSpare recycles a dead segment, or fills a new file. What else is dead is removed.
func (l *Log) makeSpare(ctx context.Context) (file, error) {
	var recycled file
	var errs []error
	for _, s := range l.takeDead() {
		if recycled == nil && s.size == int64(l.o.SegmentBytes) {
			if err := l.fs.Rename(segmentName(s.number), spareFile); err == nil {
				recycled = s.file
				continue
			}
		}
		errs = append(errs, s.Close(), removeFile(l.fs, segmentName(s.number)))
	}
	if err := errors.Join(errs...); err != nil {
		l.o.Logger.Warn("segment log: segments that are not needed stay", "error", err)
	}
	if recycled != nil {
		return recycled, nil
	}
	f, err := fill(ctx, l.fs, int64(l.o.SegmentBytes))
	if err != nil {
		return nil, &RoomError{err}
	}
	return f, nil
}

// takeDead returns the segments that were given free and that nobody reads any more.
func (l *Log) takeDead() (unused []*segmentFile) {
	l.mu.Lock()
	defer l.mu.Unlock()
	var used []*segmentFile
	for _, s := range l.dead {
		if s.users == 0 {
			unused = append(unused, s)
		} else {
			used = append(used, s)
		}
	}
	l.dead = used
	return unused
}

// fill makes the spare file, full of zeros: blocks that were never written would cost a journal commit with each flush.
// It is flushed in pieces, so that the flushes of the log beside it do not wait for all of it.
func fill(ctx context.Context, fs fileSystem, size int64) (file, error) {
	f, err := fs.Create(spareFile)
	if err != nil {
		return nil, err
	}
	zeros := aligned(int(min(fillBytes, size)))
	for at := int64(0); at < size && err == nil; at += int64(len(zeros)) {
		if _, err = f.WriteAt(zeros[:min(int64(len(zeros)), size-at)], at); err == nil {
			err = f.Sync()
		}
		if err == nil {
			err = ctx.Err()
		}
	}
	if err != nil {
		return nil, errors.Join(err, f.Close(), fs.Remove(spareFile))
	}
	return f, nil
}

// adopt makes the spare file segment number, on the disk.
func adopt(fs fileSystem, f file, number uint32, first uint64, size int64) (*segmentFile, error) {
	s := &segmentFile{file: f, number: number, size: size, first: first}
	var salt [16]byte
	if _, err := rand.Read(salt[:]); err != nil {
		return nil, err
	}
	if err := f.WriteSync(s.header(salt), 0); err != nil {
		return nil, err
	}
	if err := fs.Rename(spareFile, segmentName(number)); err != nil {
		return nil, err
	}
	return s, fs.SyncDir()
}

// rotate goes on in a new segment. With a *RoomError or ErrClosed nothing has changed.
func (l *Log) rotate(ctx context.Context) error {
	early := l.room.ordered
	f, err := l.room.wait(ctx)
	if err != nil && early && !errors.Is(err, ErrClosed) {
		f, err = l.room.wait(ctx) // what failed a while ago may do now
	}
	if err != nil {
		return err
	}
	s, err := adopt(l.fs, f, l.newest.number+1, l.next, int64(l.o.SegmentBytes))
	if err != nil {
		return &WriteError{"begin a segment", errors.Join(err, f.Close())}
	}
	l.mu.Lock()
	l.segments[s.number] = s
	l.mu.Unlock()
	l.newest, l.at = s, sector
	return l.advance()
}

// halfWay orders the next segment when the newest is half full, and gives old ones free before.
func (l *Log) halfWay() error {
	if l.room.ordered || l.at < l.newest.size/2 {
		return nil
	}
	if l.firstNeeded() != l.oldest {
		if err := l.advance(); err != nil {
			return err
		}
	}
	l.room.order()
	return nil
}

// firstNeeded is the oldest segment with a record that is needed.
func (l *Log) firstNeeded() *segmentFile {
	for _, s := range l.table() {
		if s == l.newest || s.live.Load() > 0 || s.number == l.pinned.Load() {
			return s
		}
	}
	return l.newest
}

// advance writes which segments there are from now on, and gives the others free.
func (l *Log) advance() error {
	oldest := l.firstNeeded()
	if err := (manifest{oldest.number, l.newest.number}).write(l.fs); err != nil {
		return &WriteError{"write the manifest", err}
	}
	l.oldest = oldest
	l.mu.Lock()
	for number, s := range l.segments {
		if number < oldest.number {
			delete(l.segments, number)
			l.dead = append(l.dead, s)
		}
	}
	l.mu.Unlock()
	signal(l.turned)
	return nil
}

// removeFile removes a file that is left over; that it is gone is not needed to be on the disk.
func removeFile(fs fileSystem, name string) error {
	if err := fs.Remove(name); err != nil {
		return fmt.Errorf("remove %s: %w", name, err)
	}
	return nil
}
