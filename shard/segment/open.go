package segment

import (
	"context"
	"errors"
	"fmt"
	"hash/crc32"
	"slices"
)

// Open opens the log in a folder, or makes one there. One process may have it open; the caller sees to that. Damage that may
// concern any group is a *DamagedError; what concerns some groups is theirs to tell (Group.Err).
func Open(dir string, o Options) (*Log, error) {
	if err := o.fill(); err != nil {
		return nil, err
	}
	if o.fs == nil {
		fs, err := openFolder(dir)
		if err != nil {
			return nil, fmt.Errorf("open the segment log: %w", err)
		}
		o.fs = fs
	}
	l := &Log{
		o: o, fs: o.fs, cache: newCache(o.CacheBytes), room: newRoom(), next: 1, groups: map[uint32]*Group{},
		wake: make(chan struct{}, 1), turned: make(chan struct{}, 1), segments: map[uint32]*segmentFile{},
	}
	if err := l.open(); err != nil {
		for _, s := range l.segments {
			err = errors.Join(err, s.Close())
		}
		return nil, fmt.Errorf("open the segment log in %s: %w", dir, err)
	}
	signal(l.turned)
	return l, nil
}

func (l *Log) open() error {
	names, err := l.fs.List()
	if err != nil {
		return err
	}
	var m manifest
	if slices.Contains(names, ManifestFile) {
		if m, err = readManifest(l.fs); err != nil {
			return err
		}
	}
	if err := l.tidy(names, m); err != nil {
		return err
	}
	if m.newest == 0 {
		return l.create()
	}
	for number := m.oldest; number <= m.newest; number++ {
		s, err := openSegment(l.fs, number)
		if err != nil {
			return err
		}
		l.segments[number] = s
	}
	l.oldest, l.newest = l.segments[m.oldest], l.segments[m.newest]
	return l.scan()
}

// tidy removes what a crash has left over. A segment that the manifest does not know was begun and never used.
func (l *Log) tidy(names []string, m manifest) error {
	for _, name := range names {
		number, isSegment := segmentNumber(name)
		switch {
		case name == freshFile || name == spareFile:
		case !isSegment || number >= m.oldest && number <= m.newest:
			continue
		case number < m.oldest:
		case number == m.newest+1:
			if err := unused(l.fs, number); err != nil {
				return err
			}
		default:
			return &DamagedError{name, fmt.Errorf("the manifest knows segments %d to %d", m.oldest, m.newest)}
		}
		if err := removeFile(l.fs, name); err != nil {
			return err
		}
	}
	return nil
}

// unused makes sure that a segment has no batch.
func unused(fs fileSystem, number uint32) error {
	s, err := openSegment(fs, number)
	if err != nil {
		return err
	}
	w := window{f: s, size: s.size}
	_, _, found, err := s.search(&w, sector, 0)
	if err == nil && found {
		err = &DamagedError{segmentName(number), errors.New("it holds batches, and the manifest does not know it")}
	}
	return errors.Join(err, s.Close())
}

// create makes the first segment, and then the manifest.
func (l *Log) create() error {
	f, err := fill(context.Background(), l.fs, int64(l.o.SegmentBytes))
	if err != nil {
		return &RoomError{err}
	}
	s, err := adopt(l.fs, f, 1, 1, int64(l.o.SegmentBytes))
	if err != nil {
		return errors.Join(err, f.Close())
	}
	l.segments[1] = s
	l.oldest, l.newest, l.at = s, s, sector
	return manifest{1, 1}.write(l.fs)
}

// scan reads all segments and brings the index up to date.
func (l *Log) scan() error {
	o := opening{l: l, next: l.oldest.first}
	for _, s := range l.table() {
		until := uint64(0)
		if s != l.newest {
			until = l.segments[s.number+1].first
		}
		if err := o.segment(s, until); err != nil {
			return err
		}
	}
	for _, g := range l.groups {
		if g.suspect && g.lost == nil {
			g.lost = &LostError{g.id, errUnproven}
		}
		if g.lost != nil {
			l.o.Logger.Error("segment log: A GROUP IS LOST", "group", g.id, "error", g.lost)
		}
	}
	l.next, l.at = o.next, o.at
	return l.settle(o.last)
}

// settle makes sure that what was read is on the disk: after a flush that failed, the kernel shows pages that are not.
// Only the last batch can be such; it is written again. Then it is marked, which also takes away the head of a batch that
// was torn.
func (l *Log) settle(last int64) error {
	if last > 0 {
		b := aligned(int(last))
		if _, err := l.newest.ReadAt(b, l.at-last); err != nil {
			return l.newest.unreadable(err)
		}
		if err := l.newest.WriteSync(b, l.at-last); err != nil {
			return err
		}
	}
	if err := l.mark(); err != nil {
		return err
	}
	return l.newest.Sync()
}

// opening is the state of a scan.
type opening struct {
	l *Log
	// next is the sequence of the next batch, at where it lies.
	next uint64
	at   int64
	// last is the span of the batch before at; 0 if none is there, or not whole.
	last int64
}

// segment reads the batches of a segment up to the one before until, or, in the newest (0), as far as they go.
func (o *opening) segment(s *segmentFile, until uint64) error {
	w := &window{f: s, size: s.size}
	o.at, o.last = sector, 0
	if s.first != o.next {
		return &DamagedError{segmentName(s.number), fmt.Errorf("it begins with batch %d, not %d", s.first, o.next)}
	}
	for until == 0 || o.next < until {
		h, whole, err := s.batch(w, o.at, o.next)
		if err != nil {
			return err
		}
		if whole != nil {
			if err := o.apply(s, whole); err != nil {
				return err
			}
			o.last = h.span()
			o.next++
			o.at += h.span()
			continue
		}
		at, later, found, err := s.search(w, o.at, o.next)
		if err != nil {
			return err
		}
		if !found && until == 0 {
			return nil // the end, or a batch that was torn by a crash: it was not answered
		}
		if !found {
			at, later.sequence = -1, until
		}
		o.damage(s, w, at, later.sequence)
		if !found {
			o.next = until
			return nil
		}
		o.at, o.next, o.last = at, later.sequence, 0
	}
	return nil
}

// damage notes that what lies at o.at was flushed once and is not there as it was written. What comes next lies at a place
// (-1: in the next segment) and has a sequence. If that is the next batch, and all headers of the broken one are whole, then
// those are lost who have a broken record in it; else each group is, but for those whose later records prove that they lack
// none.
func (o *opening) damage(s *segmentFile, w *window, at int64, sequence uint64) {
	l := o.l
	l.o.Logger.Error("segment log: DAMAGED", "segment", s.number, "offset", o.at, "batch", o.next)
	l.damaged = true
	l.pinned.CompareAndSwap(0, s.number)
	end, exact := o.salvage(s, w)
	if exact && sequence == o.next+1 && (at == end || at < 0) {
		return
	}
	l.unproven = true
	for _, g := range l.groups {
		g.suspect = true
	}
}

// salvage takes over the whole records of a broken batch. It returns where the batch ends; exact means that it is known
// of each record whose it is.
func (o *opening) salvage(s *segmentFile, w *window) (end int64, exact bool) {
	b, err := w.read(o.at, batchHeader)
	if err != nil {
		return 0, false
	}
	h, ok := readBatch(b, s.seed, s.first)
	end = o.at + h.span()
	if !ok || h.mark || h.sequence != o.next || end > s.size-sector {
		return 0, false
	}
	payload, err := w.read(o.at+batchHeader, int(h.length))
	if err != nil {
		return 0, false
	}
	for at := 0; at < len(payload); {
		r, body, err := readRecord(payload[at:])
		switch {
		case err == nil:
			o.record(&r, body, ref{s.number, uint32(o.at) + batchHeader + uint32(at), uint32(r.size())})
		case errors.Is(err, errBody):
			g := o.group(r.group)
			g.lost = &LostError{g.id, fmt.Errorf("batch %d: %w", o.next, err)}
		default:
			return end, false
		}
		at += r.size()
	}
	return end, true
}

// apply takes over the records of a batch with a right checksum.
func (o *opening) apply(s *segmentFile, whole []byte) error {
	length := int(batchLength(whole))
	payload := whole[batchHeader : batchHeader+length]
	for at := 0; at < len(payload); {
		r, body, err := readRecord(payload[at:])
		if err != nil {
			return &DamagedError{segmentName(s.number), fmt.Errorf("batch %d: %w", o.next, err)}
		}
		o.record(&r, body, ref{s.number, uint32(o.at) + batchHeader + uint32(at), uint32(r.size())})
		at += r.size()
	}
	return nil
}

func (o *opening) group(id uint32) *Group {
	g := o.l.groups[id]
	if g == nil {
		g = newGroup(o.l, id)
		o.l.groups[id] = g
	}
	return g
}

// record takes over one record, if its group has all before.
func (o *opening) record(r *record, body []byte, at ref) {
	g := o.group(r.group)
	switch {
	case r.kind == kindForget:
	case !g.seen && (!o.l.unproven || r.sequence == 1):
	case !g.seen:
		g.lost = &LostError{g.id, errUnproven}
	case r.sequence != g.sequence+1 && g.lost == nil:
		g.lost = &LostError{g.id, fmt.Errorf("%w: %d to %d", errGap, g.sequence+1, r.sequence-1)}
		o.l.damaged = true
		o.l.pinned.CompareAndSwap(0, at.segment)
	}
	g.seen, g.suspect, g.sequence = true, false, r.sequence
	if g.lost == nil || r.kind == kindForget {
		g.apply(r, body, at)
	}
}

// batch reads the batch with a sequence at a place: whole, with its filling, or nil if it is not there as it was written.
func (s *segmentFile) batch(w *window, at int64, sequence uint64) (batch, []byte, error) {
	if at+sector > s.size {
		return batch{}, nil, nil
	}
	b, err := w.read(at, batchHeader)
	if err != nil {
		return batch{}, nil, s.unreadable(err)
	}
	h, ok := readBatch(b, s.seed, s.first)
	if !ok || h.mark || h.sequence != sequence || at+h.span() > s.size-sector {
		return h, nil, nil
	}
	whole, err := w.read(at, int(h.span()))
	if err != nil {
		return h, nil, s.unreadable(err)
	}
	if crc32.Checksum(whole[batchHeader:batchHeader+int(h.length)], castagnoli) != h.sum {
		return h, nil, nil
	}
	return h, whole, nil
}

// search looks from a place on for a header of a batch or a mark with a greater sequence. Where it is found, all before it
// was flushed once.
func (s *segmentFile) search(w *window, at int64, sequence uint64) (int64, batch, bool, error) {
	for ; at+sector <= s.size; at += sector {
		b, err := w.read(at, batchHeader)
		if err != nil {
			return 0, batch{}, false, s.unreadable(err)
		}
		if h, ok := readBatch(b, s.seed, s.first); ok && h.sequence > sequence {
			return at, h, true, nil
		}
	}
	return 0, batch{}, false, nil
}

func (s *segmentFile) unreadable(err error) error {
	return &DamagedError{segmentName(s.number), fmt.Errorf("read: %w", err)}
}
