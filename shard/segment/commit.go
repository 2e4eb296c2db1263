package segment

import (
	"context"
	"errors"
	"hash/crc32"
	"runtime"
	"slices"
	"time"

	"github.com/hashicorp/raft"
)

// request is a write that waits. There are as many as there are calls: a few per group.
type request struct {
	group   *Group
	records []byte
	// entries are what records holds, for the cache.
	entries []*raft.Log
	// moves are records of the oldest segment, instead of all the above.
	moves  []move
	forget bool
	valid  func() error // asked before it is written; nil: it is
	done   func(error)  // called once; it does not wait
}

// move is a record on its way from the oldest segment to the newest.
type move struct {
	group *Group
	key   string // of a value; empty for an entry
	index uint64
	at    ref
	raw   []byte
}

func (r *request) size() int {
	n := len(r.records)
	for _, m := range r.moves {
		n += len(m.raw)
	}
	return n
}

// largest is the longest records that fit into a batch, and so into a segment: a header and room for a mark are kept.
func (l *Log) largest() int { return l.o.SegmentBytes - 2*sector - batchHeader }

func (l *Log) enqueue(r *request) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.failed != nil {
		return l.failed
	}
	l.waiting = append(l.waiting, r)
	signal(l.wake)
	return nil
}

// signal never waits: a signal that is there already says it all.
func signal(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}

// take returns the requests of the next batch: moves first, so that what changes the moved records comes after them.
func (l *Log) take() []*request {
	l.mu.Lock()
	defer l.mu.Unlock()
	limit := min(l.o.BatchBytes, l.largest())
	if left := int(l.left()); len(l.waiting) > 0 && l.waiting[0].size() <= left {
		limit = min(limit, left) // fill the segment up
	}
	n, length := 0, 0
	for n < len(l.waiting) && (n == 0 || length+l.waiting[n].size() <= limit) {
		length += l.waiting[n].size()
		n++
	}
	batch := make([]*request, 0, n)
	for _, moves := range []bool{true, false} {
		for _, r := range l.waiting[:n] {
			if (r.moves != nil) == moves {
				batch = append(batch, r)
			}
		}
	}
	rest := copy(l.waiting, l.waiting[n:])
	clear(l.waiting[rest:])
	l.waiting = l.waiting[:rest]
	return batch
}

// left is how many bytes of records still fit into the newest segment.
func (l *Log) left() int64 { return l.newest.size - sector - l.at - batchHeader }

// commitAll is the committer.
func (l *Log) commitAll(ctx context.Context) error {
	quiet := time.NewTimer(l.o.QuietAfter)
	defer quiet.Stop()
	marked := true
	for {
		if ctx.Err() != nil {
			return nil
		}
		runtime.Gosched() // others are about to write, too: one flush for all
		batch := l.take()
		if len(batch) == 0 {
			select {
			case <-l.wake:
			case <-quiet.C:
				if !marked {
					if err := l.mark(); err != nil {
						return err
					}
					marked = true
				}
			case <-ctx.Done():
				return nil
			}
			continue
		}
		batch = stillValid(batch)
		err := l.commit(ctx, batch)
		for _, r := range batch {
			r.done(err)
		}
		if err == nil {
			err = l.halfWay()
		}
		if broken := new(WriteError); errors.As(err, &broken) {
			return err
		}
		marked = false
		quiet.Reset(l.o.QuietAfter)
	}
}

// stillValid answers the requests that are not to be written any more, and returns the others.
func stillValid(batch []*request) []*request {
	return slices.DeleteFunc(batch, func(r *request) bool {
		if r.valid == nil {
			return false
		}
		err := r.valid()
		if err != nil {
			r.done(err)
		}
		return err != nil
	})
}

// commit writes one batch. A *WriteError is the end of the log; after any other error nothing was written.
func (l *Log) commit(ctx context.Context, requests []*request) error {
	need := 0
	for _, r := range requests {
		need += r.size()
	}
	if int64(need) > l.left() {
		if need > l.largest() {
			return ErrTooLarge
		}
		if err := l.rotate(ctx); err != nil {
			return err
		}
	}
	b := l.collect(need, requests)
	if len(b) == batchHeader {
		return nil // what was to be moved is gone
	}
	h := batch{length: uint32(len(b) - batchHeader), sequence: l.next, sum: crc32.Checksum(b[batchHeader:], castagnoli)}
	h.put(b, l.newest.seed)
	padded := b[:sectors(len(b))]
	clear(padded[len(b):])
	if err := l.newest.WriteSync(padded, l.at); err != nil {
		return &WriteError{"write", err}
	}
	l.applyBatch(b, requests)
	l.next++
	l.at += int64(len(padded))
	l.batches.Add(1)
	l.written.Add(uint64(len(padded)))
	return nil
}

// collect makes the batch of at most need bytes, with its header left open.
func (l *Log) collect(need int, requests []*request) []byte {
	need = sectors(batchHeader + need)
	if cap(l.buffer) < need || cap(l.buffer) > 2*max(need, l.o.BatchBytes) {
		l.buffer = aligned(need)
	}
	b := l.buffer[:batchHeader]
	for _, r := range requests {
		for i := range r.moves {
			if m := &r.moves[i]; m.group.holds(m) {
				at := len(b)
				b = append(b, m.raw...)
				m.group.stamp(b[at:])
				l.moved.Add(1)
			}
		}
		if r.forget {
			r.group.sequence = 0
		}
		at := len(b)
		b = append(b, r.records...)
		for at < len(b) {
			r.group.stamp(b[at:])
			at += lengthOf(b[at:])
		}
	}
	return b
}

func (g *Group) stamp(b []byte) {
	g.sequence++
	stamp(b, g.sequence)
}

// applyBatch makes what was flushed visible. The records were made here: they are not checked again.
func (l *Log) applyBatch(b []byte, requests []*request) {
	at := batchHeader
	next := func() (record, []byte, ref) {
		r := headerOf(b[at:])
		body := r.body(b[at:])
		place := ref{l.newest.number, uint32(l.at) + uint32(at), uint32(r.size())}
		at += r.size()
		return r, body, place
	}
	own := 0
	for _, r := range requests {
		own += len(r.records)
	}
	for at < len(b)-own { // moved
		r, body, place := next()
		l.Group(r.group).apply(&r, body, place)
		l.records.Add(1)
	}
	for _, request := range requests {
		for i, end := 0, at+len(request.records); at < end; i++ {
			r, body, place := next()
			request.group.apply(&r, body, place)
			if r.kind == kindEntry {
				l.cache.put(place, request.entries[i])
			}
			l.records.Add(1)
		}
	}
}

// mark says that the last batch was flushed. It is not flushed itself: without it the last batch could be taken for torn,
// as long as it is damaged too.
func (l *Log) mark() error {
	b := aligned(sector)
	h := batch{mark: true, sequence: l.next}
	h.put(b, l.newest.seed)
	if _, err := l.newest.WriteAt(b, l.at); err != nil {
		return &WriteError{"mark", err}
	}
	return nil
}
