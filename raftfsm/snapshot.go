package raftfsm

import (
	"cmp"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"slices"

	logv1 "github.com/carillon-timers/carillon/proto/carillonlog/v1"
)

// A snapshot is a magic, the format version (little endian, 32 bits) and chunks. A chunk is its length, CRC32C, and so many
// bytes of messages; the checksum goes over the chunk's length and bytes and all chunks before it, so that none can be lost
// or moved. A message is a kind, its length as a uvarint, and a message of carillonlog.v1. The order is fixed: header,
// records by (next due, accepted), finished timers and requests by sequence, trailer; then the file ends. So equal states
// give equal bytes, whatever slots they use, and a reader arms its wheel in order without sorting.
const (
	snapshotMagic   = "CARISNAP"
	snapshotVersion = 1
	// snapshotChunk is where a chunk ends; maxSnapshotChunk is what a reader accepts.
	snapshotChunk    = 256 << 10
	maxSnapshotChunk = snapshotChunk + 2*MaxPayloadBytes
)

// Kinds of message in a snapshot, in their order.
const (
	kindHeader byte = iota + 1
	kindRecord
	kindFinished
	kindRequest
	kindTrailer
)

// Snapshot is the state after one entry. It stays as it is while entries are applied.
type Snapshot struct {
	f      *FSM
	header logv1.SnapshotHeader
	hash   uint64
	// owner is the table that the pages are shared with. Guarded by f.mu.
	owner *table
	// released is set once. Guarded by f.mu.
	released bool
	// view is the table as it was.
	view     view
	finished finishedView
	requests requestView
}

var errReleased = errors.New("snapshot is released")

// Snapshot takes the state as it is. It copies the pointers to pages and slabs only (some ten µs at a million timers); a page is
// copied when it is written for the first time afterwards, until Release, and a slab is never written twice. It fails on a replica that has stopped.
func (f *FSM) Snapshot() (*Snapshot, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.poison != nil {
		return nil, fmt.Errorf("snapshot: %w", f.poison)
	}
	s := f.s
	snap := &Snapshot{f: f, hash: s.digest(), view: s.table.share(), finished: s.finished.share(), requests: s.requests.share()}
	h := &snap.header
	h.Index, h.Epoch, h.ClockMs, h.EpochClockMs, h.Accepted = s.index, s.epoch, s.clock, s.epochClock, s.accepted
	h.Records, h.Finished, h.Requests = uint64(s.table.count()), uint64(s.finished.live), uint64(s.requests.len())
	h.FinishedSequence, h.RequestSequence = s.finished.last, s.requests.last
	for _, r := range s.reigns {
		h.Reigns = append(h.Reigns, &logv1.Reign{Epoch: r.Epoch, Node: r.Node, BegunMs: r.Begun})
	}
	snap.owner = &s.table
	return snap, nil
}

// Index is that of the last entry in the snapshot.
func (s *Snapshot) Index() uint64 { return s.header.Index }

// Release ends the copying of pages for this snapshot, and what it holds can be collected. It may be called again, but not
// beside WriteTo.
func (s *Snapshot) Release() {
	s.f.mu.Lock()
	defer s.f.mu.Unlock()
	if !s.released {
		s.owner.release()
		s.released = true
		s.view, s.finished, s.requests = view{}, finishedView{}, requestView{}
	}
}

func (s *Snapshot) isReleased() bool {
	s.f.mu.Lock()
	defer s.f.mu.Unlock()
	return s.released
}

// dueItem is a timer in the order of a snapshot.
type dueItem struct {
	nextDue  int64
	accepted uint64
	slot     uint32
}

// sorted returns the timers by (NextDue, Accepted).
func (s *Snapshot) sorted() []dueItem {
	items := make([]dueItem, 0, s.header.Records)
	for n, p := range s.view.pages {
		if p == nil {
			continue
		}
		for i := range p {
			slot := uint32(n<<pageBits | i)
			if r := s.view.at(slot); r.where != 0 {
				items = append(items, dueItem{r.nextDue, r.accepted, slot})
			}
		}
	}
	slices.SortFunc(items, func(a, b dueItem) int {
		if a.nextDue != b.nextDue {
			return cmp.Compare(a.nextDue, b.nextDue)
		}
		return cmp.Compare(a.accepted, b.accepted)
	})
	return items
}

// WriteTo writes the snapshot and returns the number of bytes. Beside the writing it costs the sorting of the records.
func (s *Snapshot) WriteTo(w io.Writer) (int64, error) {
	if s.isReleased() {
		return 0, errReleased
	}
	sw := snapshotWriter{w: w, chunk: make([]byte, chunkHeader, snapshotChunk+chunkHeader)}
	sw.write(binary.LittleEndian.AppendUint32([]byte(snapshotMagic), snapshotVersion))
	if err := sw.message(kindHeader, &s.header); err != nil {
		return sw.written, err
	}
	var m recordMessage
	for _, item := range s.sorted() {
		r := s.view.at(item.slot)
		if err := sw.message(kindRecord, m.of(&s.view, &r)); err != nil {
			return sw.written, err
		}
	}
	err := s.finished.each(func(seq uint64, c *finishedChunk, i uint64) error {
		return sw.message(kindFinished, finishedMessage(seq, c, i))
	})
	if err != nil {
		return sw.written, err
	}
	err = s.requests.each(func(_ uint64, it *requestItem) error { return sw.message(kindRequest, requestMessage(it)) })
	if err != nil {
		return sw.written, err
	}
	trailer := logv1.SnapshotTrailer{Messages: s.header.Records + s.header.Finished + s.header.Requests, StateHash: s.hash}
	if err := sw.message(kindTrailer, &trailer); err != nil {
		return sw.written, err
	}
	sw.flush()
	return sw.written, sw.err
}

type vtMessage interface {
	SizeVT() int
	MarshalToSizedBufferVT(b []byte) (int, error)
	UnmarshalVT(b []byte) error
	HasUnknown() bool
}

const chunkHeader = 8

// snapshotWriter fills chunks and writes each as one piece.
type snapshotWriter struct {
	w        io.Writer
	chunk    []byte // begins with room for its header
	checksum uint32
	written  int64
	err      error
}

func (w *snapshotWriter) write(b []byte) {
	if w.err != nil {
		return
	}
	n, err := w.w.Write(b)
	w.written += int64(n)
	if err != nil {
		w.err = fmt.Errorf("write snapshot: %w", err)
	}
}

func (w *snapshotWriter) flush() {
	binary.LittleEndian.PutUint32(w.chunk, uint32(len(w.chunk)-chunkHeader))
	w.checksum = chunkChecksum(w.checksum, w.chunk)
	binary.LittleEndian.PutUint32(w.chunk[4:], w.checksum)
	w.write(w.chunk)
	w.chunk = w.chunk[:chunkHeader]
}

func chunkChecksum(before uint32, chunk []byte) uint32 {
	return crc32.Update(crc32.Update(before, castagnoli, chunk[:4]), castagnoli, chunk[chunkHeader:])
}

func (w *snapshotWriter) message(kind byte, m vtMessage) error {
	size := m.SizeVT()
	if len(w.chunk) > chunkHeader && len(w.chunk)+size > snapshotChunk {
		w.flush()
	}
	w.chunk = binary.AppendUvarint(append(w.chunk, kind), uint64(size))
	start := len(w.chunk)
	w.chunk = slices.Grow(w.chunk, size)[:start+size]
	if _, err := m.MarshalToSizedBufferVT(w.chunk[start:]); err != nil {
		return fmt.Errorf("write snapshot: %w", err)
	}
	return w.err
}

// recordMessage is the message of one record after the other, without allocating one for each.
type recordMessage struct {
	record logv1.Record
	timer  logv1.Schedule
	retry  logv1.RetryPolicy
	pairs  []Pair
}

func (m *recordMessage) of(v *view, r *record) *logv1.Record {
	c, p := v.body(r), &v.profiles[r.profile]
	t := &m.timer
	t.Namespace, t.Id, t.DueMs, t.Queue, t.Payload, t.ContentType = p.namespace, c.id, c.due, p.queue, c.payload, p.contentType
	m.pairs = pairsOf(c.headers, m.pairs[:0])
	t.Headers = pairMessages(t.Headers, m.pairs)
	m.pairs = pairsOf(c.labels, m.pairs[:0])
	t.Labels = pairMessages(t.Labels, m.pairs)
	policy := p.policy()
	m.retry.LeaseMs, m.retry.InitialBackoffMs, m.retry.MaxBackoffMs = policy.Lease, policy.InitialBackoff, policy.MaxBackoff
	m.retry.Multiplier, m.retry.MaxAttempts = policy.Multiplier, policy.MaxAttempts
	t.Retry, t.Extra = &m.retry, c.more()
	out := &m.record
	out.Timer, out.Accepted, out.Revision, out.Attempt = t, r.accepted, r.revision, r.attempt
	out.NextDueMs, out.CreatedMs, out.LastError = r.nextDue, c.created, c.lastError
	return out
}

func pairMessages(out []*logv1.Pair, pairs []Pair) []*logv1.Pair {
	out = out[:0]
	for _, p := range pairs {
		out = append(out, &logv1.Pair{Key: p.Key, Value: p.Value})
	}
	return out
}

func finishedMessage(seq uint64, c *finishedChunk, i uint64) *logv1.Finished {
	it := &c.items[i]
	namespace, id, queue := c.texts(i)
	l := c.life(i)
	return &logv1.Finished{
		Namespace: string(namespace), Id: string(id), State: uint32(it.state), Revision: it.revision, Attempt: it.attempt,
		DueMs: it.due, CreatedMs: it.created, FinishedMs: it.at, Queue: string(queue), Firing: it.firing, Sequence: seq,
		HandedMs: l.handed, Epoch: l.epoch, Fired: l.fired, Failures: l.failures,
	}
}

func requestMessage(it *requestItem) *logv1.Request {
	key := binary.BigEndian.AppendUint64(binary.BigEndian.AppendUint64(nil, it.high), it.low)
	return &logv1.Request{Key: key, Revision: it.revision, DueMs: it.due, Answer: it.answer, AtMs: it.at}
}
