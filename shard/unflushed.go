package shard

import (
	"errors"
	"math"
	"sync"
	"time"

	"github.com/hashicorp/raft"
)

// errStopping says that the replica stops before what it waits for was flushed.
var errStopping = errors.New("the replica stops")

// unflushed are the entries of a leader that its log has begun to store. Raft has been told that they are stored, so that it sends them to
// the followers while they are flushed here (section 10.2.1 of Ongaro's thesis, 2014), and counts them for a majority too early. Nobody may
// act on that: this replica applies an entry once it is flushed here, and no message to a follower says that more is
// committed than is flushed here. That is as strong as to count them later, since what is committed so is on the disks of a majority, this one
// among them. A term or vote is written behind them, in the same log, and waited for: so they are flushed before this replica answers
// or asks anybody in another term.
type unflushed struct {
	mu     sync.Mutex
	writes []*early // in the order of their entries, which is that of their answers; one that failed stays. Guarded by mu.
}

// early is one write of them.
type early struct {
	entries []*raft.Log
	first   uint64 // their indexes follow each other
	start   time.Time
	done    chan struct{} // closed when err is set
	err     error
}

// oldest is the oldest write; nil if all is flushed.
func (u *unflushed) oldest() *early {
	u.mu.Lock()
	defer u.mu.Unlock()
	if len(u.writes) == 0 {
		return nil
	}
	return u.writes[0]
}

// upTo is the last entry that may be called committed before others.
func (u *unflushed) upTo() uint64 {
	if w := u.oldest(); w != nil {
		return w.first - 1
	}
	return math.MaxUint64
}

// end sets what became of a write; the first word counts.
func (u *unflushed) end(w *early, err error) {
	u.mu.Lock()
	defer u.mu.Unlock()
	select {
	case <-w.done:
		return
	default:
	}
	w.err = err
	close(w.done)
	for len(u.writes) > 0 && u.writes[0].flushed() {
		u.writes[0] = nil
		u.writes = u.writes[1:]
	}
}

// flushed is called with mu held.
func (w *early) flushed() bool {
	select {
	case <-w.done:
		return w.err == nil
	default:
		return false
	}
}

// mayBeEarly says that these entries are a leader's own: a follower's must be flushed before it answers, and what Raft itself puts into the log
// (configurations, the first entry of a term) acts as soon as it is committed. Raft's loop alone writes entries and changes the state, so
// the state cannot change meanwhile.
func (d *disk) mayBeEarly(entries []*raft.Log) bool {
	if d.leads == nil || !d.leads() {
		return false
	}
	for _, entry := range entries {
		if entry.Type != raft.LogCommand {
			return false
		}
	}
	return true
}

// beginEarly is begin that does not wait.
func (d *disk) beginEarly(entries []*raft.Log) (done bool, err error) {
	w := &early{entries: entries, first: entries[0].Index, start: d.now(), done: make(chan struct{})}
	d.early.mu.Lock()
	d.early.writes = append(d.early.writes, w)
	d.early.mu.Unlock()
	begun, err := d.log.Begin(entries, d.sound, func(err error) { d.ended(w, err) })
	if begun {
		return true, nil
	}
	d.early.mu.Lock()
	d.early.writes = d.early.writes[:len(d.early.writes)-1] // nobody else adds
	d.early.mu.Unlock()
	if err != nil {
		return true, d.fail("append", err)
	}
	return false, nil
}

// ended takes the answer to an early write.
func (d *disk) ended(w *early, err error) {
	d.appends.Observe(d.now().Sub(w.start).Microseconds())
	if err != nil {
		err = d.fail("append", err)
	}
	d.early.end(w, err)
}

// overdue fails the oldest early write if its deadline has passed. The others have timers.
func (d *disk) overdue() {
	if w := d.early.oldest(); w != nil && d.now().Sub(w.start) > d.timeout {
		d.early.end(w, d.fail("append", ErrWriteTimeout))
	}
}

// flushed waits until the entry is flushed here, or never will be.
func (d *disk) flushed(index uint64) error {
	for {
		w := d.early.oldest()
		if w == nil || index < w.first {
			return nil
		}
		select {
		case <-w.done:
			if w.err != nil {
				return w.err
			}
		case <-d.quit:
			return errStopping
		}
	}
}

// GetLog implements raft.LogStore. What is not flushed, or never will be, comes from memory: Raft panics if an entry that it counts as stored
// cannot be read.
func (d *disk) GetLog(index uint64, entry *raft.Log) error {
	if e := d.early.find(index); e != nil {
		*entry = *e
		return nil
	}
	return d.LogStore.GetLog(index, entry)
}

// find is an entry that is not flushed; nil if it is not one of them.
func (u *unflushed) find(index uint64) *raft.Log {
	u.mu.Lock()
	defer u.mu.Unlock()
	for _, w := range u.writes {
		if index >= w.first && index-w.first < uint64(len(w.entries)) {
			return w.entries[index-w.first]
		}
	}
	return nil
}
