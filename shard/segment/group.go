package segment

import (
	"encoding/binary"
	"errors"
	"fmt"
	"sync"

	"github.com/hashicorp/raft"
)

// Group is the log, the term and the vote of one Raft group: a raft.LogStore and raft.StableStore that behaves as
// raft-boltdb does. It is not monotonic: a store that says so is emptied when a snapshot is installed, entries behind the
// snapshot included, which may have been acknowledged.
type Group struct {
	l  *Log
	id uint32

	// sequence is that of the last record. Touched by Open, then by the committer.
	sequence uint64
	// seen and suspect are touched by Open: a suspect group may have lost records.
	seen, suspect bool

	mu    sync.RWMutex
	index index            // guarded by mu
	keys  map[string]value // guarded by mu
	lost  *LostError       // guarded by mu
}

type value struct {
	data []byte
	at   ref
}

var (
	errUnproven = errors.New("a part of the log is damaged, and nothing proves that the group has no records there")
	errGap      = errors.New("records of the group are missing")
)

func newGroup(l *Log, id uint32) *Group {
	return &Group{l: l, id: id, keys: map[string]value{}}
}

// Err says whether the group is lost: a *LostError, or nil.
func (g *Group) Err() error {
	g.mu.RLock()
	defer g.mu.RUnlock()
	return g.err()
}

// err is called with mu held.
func (g *Group) err() error {
	if g.lost != nil {
		return g.lost
	}
	return nil
}

// FirstIndex implements raft.LogStore; 0 if the log is empty.
func (g *Group) FirstIndex() (uint64, error) {
	g.mu.RLock()
	defer g.mu.RUnlock()
	return g.index.first(), g.err()
}

// LastIndex implements raft.LogStore; 0 if the log is empty.
func (g *Group) LastIndex() (uint64, error) {
	g.mu.RLock()
	defer g.mu.RUnlock()
	return g.index.last(), g.err()
}

// find is where the entry lies.
func (g *Group) find(i uint64) (ref, error) {
	g.mu.RLock()
	defer g.mu.RUnlock()
	if g.lost != nil {
		return ref{}, g.lost
	}
	at, ok := g.index.get(i)
	if !ok {
		return ref{}, raft.ErrLogNotFound
	}
	return at, nil
}

// GetLog implements raft.LogStore; raft.ErrLogNotFound if there is no such entry. An entry that is damaged on the disk is a
// *LostError.
func (g *Group) GetLog(i uint64, e *raft.Log) error {
	for {
		at, err := g.find(i)
		if err != nil {
			return err
		}
		if g.l.cache.get(at, e) {
			return nil
		}
		b, err := g.l.read(at)
		if errors.Is(err, errMoved) {
			continue
		}
		if err != nil {
			return fmt.Errorf("entry %d: %w", i, err)
		}
		r, body, err := readRecord(b)
		if err == nil && (r.kind != kindEntry || r.group != g.id || r.index != i) {
			err = fmt.Errorf("a record of group %d, index %d", r.group, r.index)
		}
		if err != nil {
			return g.lose(fmt.Errorf("entry %d in %s at %d: %w", i, segmentName(at.segment), at.offset, err))
		}
		r.entry(body, e)
		return nil
	}
}

// lose makes the group a lost one.
func (g *Group) lose(cause error) error {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.lost == nil {
		g.lost = &LostError{g.id, cause}
	}
	return g.lost
}

// errMoved: the record lies elsewhere now.
var errMoved = errors.New("the segment was given free")

// read reads a record from its segment.
func (l *Log) read(at ref) ([]byte, error) {
	s := l.acquire(at.segment)
	if s == nil {
		l.mu.Lock()
		defer l.mu.Unlock()
		if l.segments == nil {
			return nil, ErrClosed
		}
		return nil, errMoved
	}
	defer l.release(s)
	b := make([]byte, at.length)
	if _, err := s.ReadAt(b, int64(at.offset)); err != nil {
		return nil, err
	}
	return b, nil
}

// StoreLog implements raft.LogStore.
func (g *Group) StoreLog(e *raft.Log) error { return g.StoreLogs([]*raft.Log{e}) }

// StoreLogs implements raft.LogStore. An entry replaces one with its index, and no other. The entries of a call are stored
// all or none, unless they are longer than a segment: then a beginning of them may be.
func (g *Group) StoreLogs(entries []*raft.Log) error {
	for len(entries) > 0 {
		r, err := g.encode(entries)
		if err != nil {
			return err
		}
		if err := g.write(r); err != nil {
			return err
		}
		entries = entries[len(r.entries):]
	}
	return nil
}

// Begin starts what StoreLogs does and does not wait: done is called once, with what StoreLogs would return, and must not wait either.
// Calls are answered in their order. valid is asked right before the entries are written, when all calls before are answered: if it
// returns an error nothing is written, and that is the answer. It must not wait; nil is always valid. The entries must not change any more.
// Begin returns false if they do not fit into one segment; then StoreLogs can store them.
func (g *Group) Begin(entries []*raft.Log, valid func() error, done func(error)) (bool, error) {
	r, err := g.encode(entries)
	if err != nil || len(r.entries) < len(entries) {
		return false, err
	}
	r.valid, r.done = valid, done
	if err := g.begin(r); err != nil {
		return false, err
	}
	return true, nil
}

// encode makes a request of as many of the entries as fit into a segment.
func (g *Group) encode(entries []*raft.Log) (*request, error) {
	n, length := 0, 0
	for _, e := range entries {
		if e.Index > maxIndex {
			return nil, fmt.Errorf("group %d: an entry with index %d", g.id, e.Index)
		}
		one := size(len(e.Data) + len(e.Extensions))
		if one > g.l.largest() {
			return nil, fmt.Errorf("group %d: entry %d of %d bytes: %w", g.id, e.Index, len(e.Data), ErrTooLarge)
		}
		if length+one > g.l.largest() {
			break
		}
		length += one
		n++
	}
	b := make([]byte, 0, length)
	for _, e := range entries[:n] {
		b = appendEntry(b, g.id, e)
	}
	return &request{group: g, records: b, entries: entries[:n]}, nil
}

// DeleteRange implements raft.LogStore: it removes the entries from first to last, both included. It takes no longer for
// many entries than for few.
func (g *Group) DeleteRange(first, last uint64) error {
	if first > last {
		return g.Err()
	}
	return g.write(&request{group: g, records: appendRecord(nil, record{group: g.id, kind: kindDelete, index: first, term: last}, nil, nil)})
}

// Set implements raft.StableStore. The key must not be empty.
func (g *Group) Set(key, data []byte) error {
	if len(key) == 0 {
		return errors.New("the key is empty")
	}
	if size(len(key)+len(data)) > g.l.largest() {
		return fmt.Errorf("group %d: key %q: %w", g.id, key, ErrTooLarge)
	}
	return g.write(&request{group: g, records: appendRecord(nil, record{group: g.id, kind: kindSet}, key, data)})
}

// Get implements raft.StableStore; ErrKeyNotFound if the key was never set.
func (g *Group) Get(key []byte) ([]byte, error) {
	g.mu.RLock()
	defer g.mu.RUnlock()
	if g.lost != nil {
		return nil, g.lost
	}
	v, ok := g.keys[string(key)]
	if !ok {
		return nil, ErrKeyNotFound
	}
	return append([]byte(nil), v.data...), nil
}

// SetUint64 implements raft.StableStore.
func (g *Group) SetUint64(key []byte, v uint64) error {
	return g.Set(key, binary.BigEndian.AppendUint64(nil, v))
}

// GetUint64 implements raft.StableStore; ErrKeyNotFound if the key was never set.
func (g *Group) GetUint64(key []byte) (uint64, error) {
	b, err := g.Get(key)
	if err != nil {
		return 0, err
	}
	if len(b) != 8 {
		return 0, fmt.Errorf("key %q has %d bytes, not 8", key, len(b))
	}
	return binary.BigEndian.Uint64(b), nil
}

// Forget removes all that the group has, and makes a lost group one that was never written. Its replica must come back
// under a new ID.
func (g *Group) Forget() error {
	return g.write(&request{group: g, records: appendRecord(nil, record{group: g.id, kind: kindForget}, nil, nil), forget: true})
}

// write waits until the request is on the disk.
func (g *Group) write(r *request) error {
	answer := make(chan error, 1)
	r.done = func(err error) { answer <- err }
	if err := g.begin(r); err != nil {
		return err
	}
	return <-answer
}

// begin has the request written; done is called when it is on the disk.
func (g *Group) begin(r *request) error {
	if err := g.Err(); err != nil && !r.forget {
		return err
	}
	return g.l.enqueue(r)
}

// apply does what a record says, and tells the segments what they hold. Called by Open and by the committer.
func (g *Group) apply(r *record, body []byte, at ref) {
	t := tally{l: g.l}
	defer t.flush()
	g.mu.Lock()
	defer g.mu.Unlock()
	switch r.kind {
	case kindEntry:
		if old, replaced := g.index.put(r.index, at); replaced {
			t.remove(old)
		}
		t.add(at, 1)
	case kindDelete:
		g.index.remove(r.index, r.term, t.remove)
	case kindSet:
		key := string(body[:r.split])
		if old, replaced := g.keys[key]; replaced {
			t.remove(old.at)
		}
		g.keys[key] = value{append([]byte(nil), body[r.split:]...), at}
		t.add(at, 1)
	case kindForget:
		g.index.remove(0, g.index.last(), t.remove)
		for _, v := range g.keys {
			t.remove(v.at)
		}
		g.keys, g.lost = map[string]value{}, nil
	}
}

// tally sums up what a record changes in the segments: the entries of a range lie in few of them.
type tally struct {
	l            *Log
	number       uint32
	count, bytes int64
}

func (t *tally) remove(at ref) { t.add(at, -1) }

func (t *tally) add(at ref, n int64) {
	if at.segment != t.number {
		t.flush()
		t.number = at.segment
	}
	t.count += n
	t.bytes += n * int64(at.length)
}

func (t *tally) flush() {
	if t.count == 0 {
		return
	}
	t.l.mu.Lock()
	s := t.l.segments[t.number]
	t.l.mu.Unlock()
	s.live.Add(t.count)
	s.bytes.Add(t.bytes)
	t.count, t.bytes = 0, 0
}

// holds says whether the record at a place is still the one that counts.
func (g *Group) holds(m *move) bool {
	g.mu.RLock()
	defer g.mu.RUnlock()
	if m.key != "" {
		return g.keys[m.key].at == m.at
	}
	at, ok := g.index.get(m.index)
	return ok && at == m.at
}
