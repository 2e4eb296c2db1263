package raftfsm

import (
	"hash/maphash"
	"math/bits"
	"slices"
	"strings"
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
	// paused and dead count the parked timers.
	paused, dead int
	// reigns are the last epochs. The slice is replaced, never written: readers share it.
	reigns []Reign
	// load counts the armed timers by the second, once that is needed. Not replicated.
	load load

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

	// scratch is a buffer, attributes one of headers and labels.
	scratch, attributes []byte
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

// hash is the place of a timer in the indexes. Most are in the default namespace.
func (s *state) hash(namespace, id string) uint64 {
	h := maphash.String(s.seed, id)
	if namespace != DefaultNamespace {
		h ^= bits.RotateLeft64(maphash.String(s.seed, namespace), 32)
	}
	return h
}

// target is a timer that a command names.
type target struct {
	namespace, id string
	hash          uint64
	slot          uint32
	// pending says that there is such a timer; record is a copy of its record, as it was when it was looked for.
	pending bool
	record  record
}

func (s *state) find(namespace, id string) target {
	return s.findHash(namespace, id, s.hash(namespace, id))
}

func (s *state) findHash(namespace, id string, hash uint64) target {
	t := target{namespace: namespace, id: id, hash: hash}
	s.look(&t)
	return t
}

// look finds the target, which has a key and its hash and nothing else.
func (s *state) look(t *target) {
	namespace, id := t.namespace, t.id
	for slot, at, ok := s.byKey.first(t.hash); ok; slot, at, ok = s.byKey.next(t.hash, at) {
		where := s.table.where(slot)
		in := s.table.inner(where)
		if string(blobID(in)) == id && s.table.profiles[blobProfile(in)].namespace == namespace {
			t.slot, t.pending = slot, true
			t.record.read(in)
			t.record.where = where
			return
		}
	}
}

// unchanged says that the target is pending as it was when it was looked for.
func (s *state) unchanged(t *target) bool {
	return t.pending && s.table.where(t.slot) == t.record.where
}

// findFinished returns the sequence of a finished timer, also of one that is over its retention and not dropped yet.
func (s *state) findFinished(t *target) (uint64, bool) {
	if s.finished.live == 0 {
		return 0, false
	}
	for ref, at, ok := s.byFinished.first(t.hash); ok; ref, at, ok = s.byFinished.next(t.hash, at) {
		seq := s.finished.sequence(ref)
		if namespace, id, _ := s.finishedTexts(seq); string(id) == t.id && string(namespace) == t.namespace {
			return seq, true
		}
	}
	return 0, false
}

func (s *state) finishedTexts(seq uint64) (namespace, id, queue []byte) {
	c, i := s.finished.chunk(seq)
	return c.texts(i)
}

func (s *state) finishedAt(seq uint64) *finishedItem {
	c, i := s.finished.chunk(seq)
	return &c.items[i]
}

func (s *state) lifeAt(seq uint64) life {
	c, i := s.finished.chunk(seq)
	return c.life(i)
}

// expired says that what happened at the time is over its retention by the last clock.
func (s *state) expired(at int64) bool { return s.clock-at > s.retention }

// insert puts the target, which is not there, into a slot.
func (s *state) insert(t *target, r *record, c *body) {
	t.slot = s.table.alloc()
	s.write(t.slot, r, c)
	s.byKey.put(t.hash, t.slot)
	s.order.put(t.slot)
}

// replace puts a changed timer in the place of the target's.
func (s *state) replace(t *target, r *record, c *body) {
	s.give(t.record.where)
	s.write(t.slot, r, c)
}

// remove frees the target's slot.
func (s *state) remove(t *target) {
	s.order.remove(t.namespace, t.id, t.slot)
	s.byKey.remove(t.hash, t.slot)
	s.table.free(t.slot)
	s.give(t.record.where)
}

// write puts a timer into its slot and counts it. Its profile has been counted.
func (s *state) write(slot uint32, r *record, c *body) {
	s.table.set(slot, r, c)
	s.sum += s.recordSum(r, c)
	s.payloads += int64(len(c.payload))
	s.count(r, 1)
}

// count counts a timer by what its profile says. There is nothing to count of most.
func (s *state) count(r *record, n int) {
	if p := &s.table.profiles[r.profile]; p.parked || s.load.seconds != nil {
		s.countRare(p, r, n)
	}
}

func (s *state) countRare(p *profile, r *record, n int) {
	switch {
	case !p.parked:
		s.load.add(r.nextDue, n)
	case p.isDead():
		s.dead += n
	default:
		s.paused += n
	}
}

// give takes the timer at a place that is in no slot any more out of all counts.
func (s *state) give(where place) {
	r := record{where: where}
	r.read(s.table.inner(where))
	c := s.table.body(&r)
	s.count(&r, -1)
	s.sum -= s.recordSum(&r, &c)
	s.payloads -= int64(len(c.payload))
	s.table.kill(where)
	s.table.forgo(r.profile)
}

// finish remembers a timer that is finished, and forgets the oldest beyond the limit.
func (s *state) finish(t *target, how State, firing bool, l life) {
	r := &t.record
	c := s.table.body(r)
	seq := s.finished.push(finishedItem{
		revision: s.index, due: c.due, created: c.created, at: s.clock, attempt: r.attempt, state: how, firing: firing,
	}, l, t.namespace, t.id, s.table.profiles[r.profile].queue)
	s.byFinished.put(t.hash, uint32(seq))
	s.sum += s.finishedSum(seq)
	for s.finished.over() {
		s.forget(s.finished.first)
	}
}

// forget drops a finished timer.
func (s *state) forget(seq uint64) {
	namespace, id, _ := s.finishedTexts(seq)
	s.byFinished.remove(s.hash(borrow(namespace), borrow(id)), uint32(seq))
	s.sum -= s.finishedSum(seq)
	s.finished.drop(seq)
}

// findRequest returns a remembered write within the retention.
func (s *state) findRequest(key requestHashes) (requestItem, bool) {
	place := key.place()
	for ref, at, ok := s.byRequest.first(place); ok; ref, at, ok = s.byRequest.next(place, at) {
		seq := s.requests.sequence(ref)
		if s.requests.hashes(seq) != key {
			continue
		}
		if it := s.requests.at(seq); !s.expired(it.at) {
			return it, true
		}
	}
	return requestItem{}, false
}

// result is the answer to a write that comes again.
func (it *requestItem) result() Result {
	return Result{Revision: it.revision, Due: it.due, Answer: it.answer}
}

// remember keeps the answer to a write.
func (s *state) remember(it *requestItem) {
	s.keepRequest(it)
	for s.requests.over() {
		s.forgetRequest()
	}
}

// keepRequest puts a write behind the last in the window, whatever the limit.
func (s *state) keepRequest(it *requestItem) {
	seq := s.requests.push(it)
	s.byRequest.put(requestHashes{it.high, it.low}.place(), uint32(seq))
	s.sum += s.requestSum(seq, it)
}

func (s *state) forgetRequest() {
	it := s.requests.at(s.requests.first)
	s.byRequest.remove(requestHashes{it.high, it.low}.place(), uint32(s.requests.first))
	s.sum -= s.requestSum(s.requests.first, &it)
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

// maxReigns is how many epochs are remembered.
const maxReigns = 64

// reign remembers who opened an epoch.
func (s *state) reign(epoch uint64, node string) {
	n := len(s.reigns)
	if n > 0 && s.reigns[n-1].Epoch >= epoch {
		return
	}
	old := s.reigns
	if n == maxReigns {
		s.sum -= s.reignSum(&old[0])
		old = old[1:]
	}
	s.reigns = append(slices.Clone(old), Reign{Epoch: epoch, Node: strings.Clone(node), Begun: s.clock})
	s.sum += s.reignSum(&s.reigns[len(s.reigns)-1])
}
