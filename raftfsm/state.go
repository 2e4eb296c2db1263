package raftfsm

import (
	"hash/maphash"

	"github.com/carillon-timers/carillon/wheel"
)

// state is what is replicated, with its indexes. Guarded by FSM.mu; one that is being restored belongs to Restore alone.
type state struct {
	// index is that of the last entry; the epoch, its clock and the clock of the last entry are as in Stats.
	index, epoch      uint64
	clock, epochClock int64
	// begun is the index of the entry that opened the epoch, as far as this process knows: a record of a later revision cannot
	// have been handed out under an older epoch. Not replicated.
	begun uint64
	// accepted is the last place in the order of acceptance.
	accepted uint64
	// payloads is the sum of the payload bytes, sum that of the hashes of all records, finished timers and requests.
	payloads int64
	sum      uint64

	retention int64
	table     table
	finished  finishedWindow
	requests  requestWindow

	// seed makes the places in the indexes unpredictable for clients; nothing that is replicated depends on it.
	seed       maphash.Seed
	byKey      index // slots
	byFinished index // sequences
	byRequest  index // sequences
	order      order

	// key and scratch are buffers.
	key     [MaxNamespaceBytes + 1 + MaxIDBytes]byte
	scratch []byte
	// names holds texts that many timers share.
	names [256]string
}

func newState(o Options) *state {
	s := &state{
		retention: o.Retention,
		finished:  newFinishedWindow(o.MaxFinished),
		requests:  newRequestWindow(o.MaxRequests),
		seed:      maphash.MakeSeed(),
	}
	s.order = newOrder(&s.table)
	return s
}

// hash is the place of a timer in the indexes. Over-long names, which are never in them, are cut.
func (s *state) hash(namespace, id string) uint64 {
	n := copy(s.key[:MaxNamespaceBytes], namespace)
	s.key[n] = 0
	n += 1 + copy(s.key[n+1:], id)
	return maphash.Bytes(s.seed, s.key[:n])
}

// target is a timer that a command names.
type target struct {
	namespace, id string
	hash          uint64
	slot          uint32
	// record is nil if no such timer is pending.
	record *Record
}

func (s *state) find(namespace, id string) target {
	t := target{namespace: namespace, id: id, hash: s.hash(namespace, id)}
	slot, ok := s.byKey.find(t.hash, func(slot uint32) bool {
		r := s.table.at(slot)
		return r.ID == id && r.Namespace == namespace
	})
	if ok {
		t.slot, t.record = slot, s.table.at(slot)
	}
	return t
}

// findFinished returns the sequence of a finished timer, also of one that is over its retention and not dropped yet.
func (s *state) findFinished(t *target) (uint64, bool) {
	if s.finished.live == 0 {
		return 0, false
	}
	ref, ok := s.byFinished.find(t.hash, func(ref uint32) bool {
		namespace, id, _ := s.finishedTexts(s.finished.sequence(ref))
		return string(id) == t.id && string(namespace) == t.namespace
	})
	if !ok {
		return 0, false
	}
	return s.finished.sequence(ref), true
}

func (s *state) finishedTexts(seq uint64) (namespace, id, queue []byte) {
	c, i := s.finished.chunk(seq)
	return c.texts(i)
}

func (s *state) finishedAt(seq uint64) *finishedItem {
	c, i := s.finished.chunk(seq)
	return &c.items[i]
}

// expired says that what happened at the time is over its retention by the last clock.
func (s *state) expired(at int64) bool { return s.clock-at > s.retention }

// insert puts a timer that is not there into a slot.
func (s *state) insert(hash uint64, r *Record) uint32 {
	slot := s.table.alloc()
	s.table.set(slot, r)
	s.byKey.put(hash, slot)
	s.order.put(r.Namespace, r.ID, slot)
	s.account(r, 1)
	return slot
}

// replace puts a changed record in the place of the target's. Namespace and ID stay the old strings, since the order shares them.
func (s *state) replace(t *target, r *Record) {
	s.account(t.record, -1)
	r.Namespace, r.ID = t.record.Namespace, t.record.ID
	s.table.set(t.slot, r)
	s.account(r, 1)
}

// remove frees the target's slot.
func (s *state) remove(t *target) {
	s.account(t.record, -1)
	s.order.remove(t.record.Namespace, t.record.ID)
	s.byKey.remove(t.hash, t.slot)
	s.table.set(t.slot, nil)
}

func (s *state) account(r *Record, sign int64) {
	if sign > 0 {
		r.sum = s.recordSum(r)
	}
	s.sum += r.sum * uint64(sign)
	s.payloads += sign * int64(len(r.Payload))
}

// finish remembers a timer that fired or was cancelled, oldest first beyond the limit.
func (s *state) finish(t *target, how State, firing bool) {
	r := t.record
	seq := s.finished.push(finishedItem{
		revision: s.index, due: r.Due, created: r.Created, at: s.clock, attempt: r.Attempt, state: how, firing: firing,
	}, r.Namespace, r.ID, r.Queue)
	s.byFinished.put(t.hash, uint32(seq))
	s.sum += s.finishedSum(seq)
	for s.finished.over() {
		s.forget(s.finished.first)
	}
}

// forget drops a finished timer.
func (s *state) forget(seq uint64) {
	namespace, id, _ := s.finishedTexts(seq)
	s.byFinished.remove(s.hash(string(namespace), string(id)), uint32(seq))
	s.sum -= s.finishedSum(seq)
	s.finished.drop(seq)
}

func requestHash(high, low uint64) uint64 { return (low ^ low>>32 ^ high) * 0x9E3779B97F4A7C15 }

// findRequest returns a remembered write within the retention.
func (s *state) findRequest(high, low uint64) *requestItem {
	var found *requestItem
	s.byRequest.find(requestHash(high, low), func(ref uint32) bool {
		it := s.requests.at(s.requests.sequence(ref))
		if it.low != low || it.high != high || s.expired(it.at) {
			return false
		}
		found = it
		return true
	})
	return found
}

// remember keeps the answer to a write.
func (s *state) remember(it requestItem) {
	seq := s.requests.push(it)
	s.byRequest.put(requestHash(it.high, it.low), uint32(seq))
	s.sum += s.requestSum(seq, s.requests.at(seq))
	for s.requests.over() {
		s.forgetRequest()
	}
}

func (s *state) forgetRequest() {
	it := s.requests.at(s.requests.first)
	s.byRequest.remove(requestHash(it.high, it.low), uint32(s.requests.first))
	s.sum -= s.requestSum(s.requests.first, it)
	s.requests.pop()
}

// expireBase and expirePerCommand bound what one entry drops: more than one entry can add, so the windows shrink to what
// is retained, and a quiet hour does not end in a long stall. What is over its retention and still there is not seen.
const (
	expireBase       = 256
	expirePerCommand = 4
)

// expire drops what is over its retention.
func (s *state) expire(commands int) {
	quota := expireBase + expirePerCommand*commands
	for n := quota; n > 0 && s.finished.live > 0 && s.expired(s.finishedAt(s.finished.first).at); n-- {
		s.forget(s.finished.first)
	}
	for n := quota; n > 0 && s.requests.len() > 0 && s.expired(s.requests.at(s.requests.first).at); n-- {
		s.forgetRequest()
	}
}

// name returns an equal text that other timers share.
func (s *state) name(text string) string {
	if text == "" {
		return ""
	}
	place := &s.names[maphash.String(s.seed, text)&0xFF]
	if *place != text {
		*place = text
	}
	return *place
}

func (s *state) arm(slot uint32, r *Record) Op {
	return Op{Kind: Arm, Slot: slot, When: wheel.Tick(r.NextDue)}
}
