package segment

import (
	"context"
	"errors"
	"fmt"
)

// clean is the cleaner: when the log is much longer than what is needed of it, it moves what is needed of the oldest
// segment to the newest, a slice with each commit, until nothing is.
func (l *Log) clean(ctx context.Context) {
	for {
		select {
		case <-l.turned:
		case <-ctx.Done():
			return
		}
		for ctx.Err() == nil {
			oldest := l.tooOld()
			if oldest == nil {
				break
			}
			if err := l.moveSlice(oldest); err != nil {
				if !errors.Is(err, ErrClosed) {
					l.o.Logger.Warn("segment log: the oldest segment is not cleaned", "segment", oldest.number, "error", err)
				}
				break
			}
		}
	}
}

// tooOld is the oldest segment that is needed, if the log from there on is longer than twice what is needed and the slack.
func (l *Log) tooOld() *segmentFile {
	if l.pinned.Load() != 0 {
		return nil
	}
	var oldest *segmentFile
	var length, live int64
	table := l.table()
	for i, s := range table {
		held := s.live.Load()
		if oldest == nil && held > 0 && i < len(table)-1 {
			oldest = s
		}
		if oldest != nil {
			length += s.size
		}
		live += s.bytes.Load()
	}
	if length <= 2*live+int64(l.o.Slack)*int64(l.o.SegmentBytes) {
		return nil
	}
	return oldest
}

// moveSlice moves some records, and waits until they are on the disk.
func (l *Log) moveSlice(from *segmentFile) error {
	answer := make(chan error, 1)
	r := &request{done: func(err error) { answer <- err }}
	budget := min(l.o.MoveBytes, l.largest())
	for _, g := range l.allGroups() {
		budget = g.collect(from.number, budget, &r.moves)
	}
	if len(r.moves) == 0 {
		return nil
	}
	for i := range r.moves {
		m := &r.moves[i]
		raw, err := l.read(m.at)
		if err == nil {
			_, _, err = readRecord(raw)
		}
		if err != nil {
			// The record stays where it is: damage is not to be forgotten.
			l.pinned.CompareAndSwap(0, from.number)
			return fmt.Errorf("group %d: %w", m.group.id, err)
		}
		m.raw = raw
	}
	if err := l.enqueue(r); err != nil {
		return err
	}
	return <-answer
}

// collect adds records of a segment to moves, up to the budget but at least one, and returns what is left of it.
func (g *Group) collect(segment uint32, budget int, moves *[]move) int {
	g.mu.RLock()
	defer g.mu.RUnlock()
	if g.lost != nil {
		return budget
	}
	add := func(m move) bool {
		if len(*moves) > 0 && int(m.at.length) > budget {
			budget = 0
			return false
		}
		budget -= int(m.at.length)
		*moves = append(*moves, m)
		return true
	}
	for key, v := range g.keys {
		if v.at.segment == segment && !add(move{group: g, key: key, at: v.at}) {
			return budget
		}
	}
	for _, run := range g.index.runs {
		for i, at := range run.refs {
			if at.segment == segment && !add(move{group: g, index: run.first + uint64(i), at: at}) {
				return budget
			}
		}
	}
	return budget
}
