package raftfsm

import (
	"bufio"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math"
	"slices"
	"strings"

	logv1 "github.com/carillon-timers/carillon/proto/carillonlog/v1"
)

// Restore replaces the state by that of a snapshot, and pushes Reset and an Arm for each timer in the order of (NextDue,
// Accepted). A snapshot that is damaged, cut short or of a newer version is refused with an error that wraps ErrCorrupt or
// ErrUnsupported, and the state stays as it was. A replica that has stopped refuses every snapshot.
func (f *FSM) Restore(r io.Reader) error {
	s, err := readSnapshot(r, f.o)
	if err != nil {
		return fmt.Errorf("shard %d: restore: %w", f.o.Shard, err)
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.poison != nil {
		return fmt.Errorf("restore: %w", f.poison)
	}
	f.s = s
	f.lead.reset()
	f.ops = append(f.ops[:0], Op{Kind: Reset})
	for slot := range s.table.length {
		if r := s.table.at(slot); !s.table.profiles[r.profile].parked {
			f.arm(slot, &r)
		}
		if len(f.ops) >= maxKeptOps {
			f.push()
		}
	}
	f.push()
	return nil
}

// maxReserve bounds what is made room for on the word of a header.
const maxReserve = 1 << 22

// restoring is a snapshot on its way in.
type restoring struct {
	in       *bufio.Reader
	checksum uint32
	chunk    []byte // buffer
	rest     []byte // what is left of the chunk
	s        *state
	header   logv1.SnapshotHeader
	// one holds one timer at a time; last is the record before.
	one  entry
	last record
	// records, finished and requests count what was read.
	records, finished, requests uint64
}

func readSnapshot(r io.Reader, o Options) (*state, error) {
	d := &restoring{in: bufio.NewReaderSize(r, 64<<10), s: newState(o)}
	var head [len(snapshotMagic) + 4]byte
	if _, err := io.ReadFull(d.in, head[:]); err != nil {
		return nil, readError("the magic", err)
	}
	if string(head[:len(snapshotMagic)]) != snapshotMagic {
		return nil, fmt.Errorf("the magic is %q: %w", head[:len(snapshotMagic)], ErrCorrupt)
	}
	if v := binary.LittleEndian.Uint32(head[len(snapshotMagic):]); v != snapshotVersion {
		return nil, fmt.Errorf("snapshot format version %d: %w", v, ErrUnsupported)
	}
	kind := byte(0)
	for kind != kindTrailer {
		before := kind
		var body []byte
		var err error
		if kind, body, err = d.next(); err != nil {
			return nil, err
		}
		if kind < before || (kind == kindHeader) != (before == 0) {
			return nil, fmt.Errorf("message of kind %d after %d: %w", kind, before, ErrCorrupt)
		}
		if err := d.message(kind, body); err != nil {
			return nil, err
		}
	}
	if _, err := d.in.ReadByte(); len(d.rest) > 0 || err == nil {
		return nil, fmt.Errorf("bytes behind the trailer: %w", ErrCorrupt)
	} else if !errors.Is(err, io.EOF) {
		return nil, readError("the end", err)
	}
	return d.s, nil
}

func readError(what string, err error) error {
	if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
		return fmt.Errorf("cut short in %s: %w", what, ErrCorrupt)
	}
	return fmt.Errorf("read %s: %w", what, err)
}

// next returns the next message, from the next chunk if this one is used up.
func (d *restoring) next() (kind byte, body []byte, err error) {
	if len(d.rest) == 0 {
		if err := d.nextChunk(); err != nil {
			return 0, nil, err
		}
	}
	kind = d.rest[0]
	size, n := binary.Uvarint(d.rest[1:])
	if n <= 0 || size > uint64(len(d.rest)-1-n) {
		return 0, nil, fmt.Errorf("a message is longer than its chunk: %w", ErrCorrupt)
	}
	body = d.rest[1+n : 1+n+int(size)]
	d.rest = d.rest[1+n+int(size):]
	return kind, body, nil
}

func (d *restoring) nextChunk() error {
	var head [chunkHeader]byte
	if _, err := io.ReadFull(d.in, head[:]); err != nil {
		return readError("a chunk header", err)
	}
	size := int(binary.LittleEndian.Uint32(head[:]))
	if size == 0 || size > maxSnapshotChunk {
		return fmt.Errorf("a chunk of %d bytes: %w", size, ErrCorrupt)
	}
	if need := chunkHeader + size; cap(d.chunk) < need {
		d.chunk = make([]byte, need)
	} else {
		d.chunk = d.chunk[:need]
	}
	copy(d.chunk, head[:])
	if _, err := io.ReadFull(d.in, d.chunk[chunkHeader:]); err != nil {
		return readError("a chunk", err)
	}
	d.checksum = chunkChecksum(d.checksum, d.chunk)
	if want := binary.LittleEndian.Uint32(head[4:]); d.checksum != want {
		return fmt.Errorf("a chunk's checksum is %08x, its bytes give %08x: %w", want, d.checksum, ErrCorrupt)
	}
	d.rest = d.chunk[chunkHeader:]
	return nil
}

func decode[M vtMessage](m M, body []byte) (M, error) {
	if err := m.UnmarshalVT(body); err != nil {
		return m, fmt.Errorf("a message of the snapshot: %w: %w", err, ErrCorrupt)
	}
	if m.HasUnknown() {
		return m, fmt.Errorf("a message of the snapshot has an unknown field: %w", ErrUnsupported)
	}
	return m, nil
}

func (d *restoring) message(kind byte, body []byte) error {
	switch kind {
	case kindHeader:
		if _, err := decode(&d.header, body); err != nil {
			return err
		}
		return d.open()
	case kindRecord:
		m, err := decode(&logv1.Record{}, body)
		if err != nil {
			return err
		}
		return d.record(m)
	case kindFinished:
		m, err := decode(&logv1.Finished{}, body)
		if err != nil {
			return err
		}
		return d.finish(m)
	case kindRequest:
		m, err := decode(&logv1.Request{}, body)
		if err != nil {
			return err
		}
		return d.request(m)
	case kindTrailer:
		m, err := decode(&logv1.SnapshotTrailer{}, body)
		if err != nil {
			return err
		}
		return d.close(m)
	}
	return fmt.Errorf("message of kind %d: %w", kind, ErrUnsupported)
}

func (d *restoring) open() error {
	h, s := &d.header, d.s
	if h.Requests > h.RequestSequence || h.Finished > h.FinishedSequence {
		return fmt.Errorf("the header counts more than its sequences: %w", ErrCorrupt)
	}
	s.index, s.epoch, s.clock, s.epochClock, s.accepted = h.Index, h.Epoch, h.ClockMs, h.EpochClockMs, h.Accepted
	s.begun = h.Index
	for i, r := range h.Reigns {
		if i > 0 && r.Epoch <= h.Reigns[i-1].Epoch || r.Epoch > h.Epoch || i >= maxReigns {
			return fmt.Errorf("the reigns are not in order: %w", ErrCorrupt)
		}
		s.reigns = append(s.reigns, Reign{Epoch: r.Epoch, Node: r.Node, Begun: r.BegunMs})
		s.sum += s.reignSum(&s.reigns[i])
	}
	s.byKey.reserve(int(min(h.Records, maxReserve)))
	s.byFinished.reserve(int(min(h.Finished, maxReserve)))
	s.byRequest.reserve(int(min(h.Requests, maxReserve)))
	s.requests.last = h.RequestSequence - h.Requests
	s.requests.first = s.requests.last + 1
	return nil
}

func (d *restoring) record(m *logv1.Record) error {
	s, c := d.s, m.Timer
	if c == nil || m.Revision > s.index || m.Accepted > s.accepted || m.Accepted == 0 {
		return fmt.Errorf("a record lacks its timer, or is younger than the snapshot: %w", ErrCorrupt)
	}
	if r := validStored(c); r != nil {
		return fmt.Errorf("a record with %s: %w", r.Detail, ErrCorrupt)
	}
	if r := c.Extra.GetRepeat(); r != nil {
		if r := validRule(c.Id, r); r != nil {
			return fmt.Errorf("a record with %s: %w", r.Detail, ErrCorrupt)
		}
	}
	d.one.reset()
	one := d.one.schedule(c)
	in := &one
	r := record{
		nextDue: m.NextDueMs, accepted: m.Accepted, revision: m.Revision, attempt: m.Attempt, profile: s.profileOf(in),
	}
	if d.records > 0 && compareDue(&d.last, &r) >= 0 {
		return fmt.Errorf("records are not in order: %w", ErrCorrupt)
	}
	t := s.find(in.namespace, in.id)
	if t.pending {
		return fmt.Errorf("a timer is there twice: %w", ErrCorrupt)
	}
	b := body{id: in.id, due: in.due, created: m.CreatedMs, lastError: m.LastError, payload: in.payload, extra: encodeExtra(c.Extra)}
	b.headers, b.labels = s.pairsOf(&d.one, in)
	s.insert(&t, &r, &b)
	d.last = r
	d.records++
	return nil
}

// validStored checks what the indexes assume of a record.
func validStored(c *logv1.Schedule) *Result {
	namespace := c.Namespace
	if c.Extra.GetDead() != nil {
		var ok bool
		if namespace, ok = strings.CutPrefix(namespace, deadNamespace("")); !ok {
			return invalid("namespace", "not one of dead letters")
		}
	}
	if namespace == "" {
		return invalid("namespace", "empty")
	}
	if r := validKey(namespace, c.Id); r != nil {
		return r
	}
	if len(c.Queue) > MaxQueueBytes {
		return invalid("queue", "%d bytes", len(c.Queue))
	}
	return validName("queue", strings.TrimPrefix(c.Queue, "\x00"), MaxQueueBytes)
}

func (d *restoring) finish(m *logv1.Finished) error {
	s, w := d.s, &d.s.finished
	key := &logv1.Schedule{Namespace: m.Namespace, Id: m.Id, Queue: m.Queue}
	if r := validStored(key); r != nil {
		return fmt.Errorf("a finished timer with %s: %w", r.Detail, ErrCorrupt)
	}
	state := State(m.State)
	if !slices.Contains([]State{Fired, Cancelled, Dead, Expired}, state) || m.State > math.MaxUint8 || m.Revision > s.index {
		return fmt.Errorf("a finished timer of state %d and revision %d: %w", m.State, m.Revision, ErrCorrupt)
	}
	if m.Sequence <= w.last || m.Sequence > d.header.FinishedSequence || w.live > 0 && m.Sequence-w.first > MaxWindow {
		return fmt.Errorf("a finished timer's sequence is %d after %d: %w", m.Sequence, w.last, ErrCorrupt)
	}
	t := s.find(m.Namespace, m.Id)
	if _, there := s.findFinished(&t); there || t.pending {
		return fmt.Errorf("a timer is there twice: %w", ErrCorrupt)
	}
	w.skip(m.Sequence)
	seq := w.push(finishedItem{
		revision: m.Revision, due: m.DueMs, created: m.CreatedMs, at: m.FinishedMs, attempt: m.Attempt,
		state: state, firing: m.Firing,
	}, life{m.HandedMs, m.Epoch, m.Fired, m.Failures[:min(len(m.Failures), maxFailures)]}, m.Namespace, m.Id, m.Queue)
	s.byFinished.put(t.hash, uint32(seq))
	s.sum += s.finishedSum(seq)
	d.finished++
	return nil
}

func (d *restoring) request(m *logv1.Request) error {
	s := d.s
	if len(m.Key) != 16 || m.Revision > s.index || d.requests == d.header.Requests {
		return fmt.Errorf("a remembered write with a key of %d bytes and revision %d: %w", len(m.Key), m.Revision, ErrCorrupt)
	}
	it := requestItem{
		high: binary.BigEndian.Uint64(m.Key), low: binary.BigEndian.Uint64(m.Key[8:]), revision: m.Revision,
		due: m.DueMs, answer: m.Answer, at: m.AtMs,
	}
	s.keepRequest(&it)
	d.requests++
	return nil
}

func (d *restoring) close(m *logv1.SnapshotTrailer) error {
	h, s := &d.header, d.s
	if d.records != h.Records || d.finished != h.Finished || d.requests != h.Requests ||
		m.Messages != d.records+d.finished+d.requests {
		return fmt.Errorf("%d records, %d finished and %d requests are not what the header counts: %w",
			d.records, d.finished, d.requests, ErrCorrupt)
	}
	w := &s.finished
	if w.live > 0 && h.FinishedSequence-w.first > MaxWindow {
		return fmt.Errorf("the finished window is too wide: %w", ErrCorrupt)
	}
	w.skip(h.FinishedSequence + 1)
	if got := s.digest(); got != m.StateHash {
		return fmt.Errorf("the state hash is %016x, the content gives %016x: %w", m.StateHash, got, ErrCorrupt)
	}
	for s.finished.over() {
		s.forget(s.finished.first)
	}
	for s.requests.over() {
		s.forgetRequest()
	}
	return nil
}
