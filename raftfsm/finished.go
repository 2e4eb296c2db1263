package raftfsm

import (
	"encoding/binary"
	"fmt"

	logv1 "github.com/carillon-timers/carillon/proto/carillonlog/v1"
)

const (
	windowBits = 8
	windowSize = 1 << windowBits
	windowMask = windowSize - 1
)

// life is what is known of the deliveries of a finished timer: when the last was handed out and under which epoch, and how many due
// times of a repeat were settled; 0 if that is not known.
type life struct {
	handed int64
	epoch  uint64
	fired  int64
	// failures are the attempts that failed.
	failures []*logv1.Failure
}

// maxFinishedFailureBytes is how much is kept of what each failed attempt of a finished timer said.
const maxFinishedFailureBytes = 100

// finishedItem is a finished timer, without pointers; its texts lie in the chunk, and its life behind them.
type finishedItem struct {
	revision          uint64
	due, created, at  int64
	attempt, text     uint32
	namespaceLen, len uint8
	queueLen          uint8
	lifeLen           uint16
	state             State
	firing            bool
}

// finishedChunk holds windowSize sequences. What is written in items and text is never changed, so a snapshot shares it; dead,
// which changes, is copied with the chunk.
type finishedChunk struct {
	items *[windowSize]finishedItem
	text  []byte
	dead  [windowSize / 64]uint64
}

func (c *finishedChunk) isDead(i uint64) bool { return c.dead[i>>6]>>(i&63)&1 != 0 }

// namespace, id and queue are the texts of an item.
func (c *finishedChunk) texts(i uint64) (namespace, id, queue []byte) {
	it := &c.items[i]
	a := int(it.text)
	b := a + int(it.namespaceLen)
	d := b + int(it.len)
	return c.text[a:b], c.text[b:d], c.text[d : d+int(it.queueLen)]
}

// lifeBytes is the life of an item as it lies in the chunk; empty if nothing is known.
func (c *finishedChunk) lifeBytes(i uint64) []byte {
	it := &c.items[i]
	at := int(it.text) + int(it.namespaceLen) + int(it.len) + int(it.queueLen)
	return c.text[at : at+int(it.lifeLen)]
}

// life is that of an item.
func (c *finishedChunk) life(i uint64) life {
	b := c.lifeBytes(i)
	if len(b) == 0 {
		return life{}
	}
	it := &c.items[i]
	ago, n := binary.Varint(b)
	b = b[n:]
	epoch, n := binary.Uvarint(b)
	b = b[n:]
	fired, n := binary.Varint(b)
	l := life{epoch: epoch, fired: fired, failures: decodeExtra(b[n:]).GetFailures()}
	if ago != 0 {
		l.handed = it.at + 1 - ago
	}
	return l
}

// append writes a life behind the texts of an item that ended at an instant.
func (l life) append(b []byte, at int64) []byte {
	if l.handed == 0 && l.epoch == 0 && l.fired == 0 && len(l.failures) == 0 {
		return b
	}
	ago := int64(0)
	if l.handed != 0 {
		if ago = at + 1 - l.handed; ago == 0 {
			ago = 1 // handed out a millisecond after it ended by the clock of the log
		}
	}
	b = binary.AppendVarint(binary.AppendUvarint(binary.AppendVarint(b, ago), l.epoch), l.fired)
	if len(l.failures) == 0 {
		return b
	}
	x := &logv1.Extra{}
	for _, f := range l.failures {
		x.Failures = append(x.Failures, &logv1.Failure{
			AtMs: f.AtMs, Epoch: f.Epoch, HandedMs: f.HandedMs, Error: cutError(f.Error, maxFinishedFailureBytes), Lapsed: f.Lapsed,
		})
	}
	return append(b, encodeExtra(x)...)
}

// finishedWindow keeps the last timers that finished, oldest first, by their sequence. One that is scheduled anew leaves a
// gap, which counts towards the limit: so the window is that of the last limit timers that finished, on every replica.
// Guarded by FSM.mu.
type finishedWindow struct {
	chunks []finishedChunk
	// first and last are the sequences of the oldest that is live and of the last ever; first is last+1 if there is none.
	first, last uint64
	live        int
	limit       uint64
}

func newFinishedWindow(limit int) finishedWindow {
	return finishedWindow{first: 1, limit: uint64(limit)}
}

func (w *finishedWindow) chunk(seq uint64) (*finishedChunk, uint64) {
	return &w.chunks[seq>>windowBits-w.first>>windowBits], seq & windowMask
}

// sequence is the full number of what the index calls ref.
func (w *finishedWindow) sequence(ref uint32) uint64 { return w.first + uint64(ref-uint32(w.first)) }

// push gives the next sequence to an item.
func (w *finishedWindow) push(it finishedItem, l life, namespace, id, queue string) uint64 {
	w.last++
	if w.live == 0 {
		w.chunks, w.first = nil, w.last
	}
	if int(w.last>>windowBits-w.first>>windowBits) == len(w.chunks) {
		w.chunks = append(w.chunks, finishedChunk{items: new([windowSize]finishedItem)})
	}
	c, i := w.chunk(w.last)
	it.text, it.namespaceLen, it.len, it.queueLen = uint32(len(c.text)), uint8(len(namespace)), uint8(len(id)), uint8(len(queue))
	c.text = append(append(append(c.text, namespace...), id...), queue...)
	texts := len(c.text)
	c.text = l.append(c.text, it.at)
	it.lifeLen = uint16(len(c.text) - texts)
	c.items[i] = it
	w.live++
	return w.last
}

// skip marks the sequences up to and without seq as gaps (while a snapshot is read).
func (w *finishedWindow) skip(seq uint64) {
	if w.live == 0 {
		w.first, w.last = seq, seq-1
		return
	}
	for w.last+1 < seq {
		w.last++
		if int(w.last>>windowBits-w.first>>windowBits) == len(w.chunks) {
			w.chunks = append(w.chunks, finishedChunk{items: new([windowSize]finishedItem)})
		}
		c, i := w.chunk(w.last)
		c.dead[i>>6] |= 1 << (i & 63)
	}
}

// drop makes a gap of a live sequence, and moves first over gaps.
func (w *finishedWindow) drop(seq uint64) {
	c, i := w.chunk(seq)
	c.dead[i>>6] |= 1 << (i & 63)
	w.live--
	if w.live == 0 {
		w.chunks, w.first = nil, w.last+1
		return
	}
	for {
		c, i := w.chunk(w.first)
		if !c.isDead(i) {
			return
		}
		w.first++
		if w.first&windowMask == 0 {
			w.chunks[0] = finishedChunk{}
			w.chunks = w.chunks[1:]
		}
	}
}

// over says that the oldest is beyond the limit.
func (w *finishedWindow) over() bool { return w.live > 0 && w.first+w.limit <= w.last }

func (w *finishedWindow) check() error {
	live := 0
	for seq := w.first; seq <= w.last; seq++ {
		if c, i := w.chunk(seq); !c.isDead(i) {
			live++
		}
	}
	if live != w.live {
		return fmt.Errorf("finished window %d..%d has %d timers, counted %d", w.first, w.last, live, w.live)
	}
	if w.over() {
		return fmt.Errorf("finished window %d..%d is over its limit %d", w.first, w.last, w.limit)
	}
	if live == 0 {
		if w.first != w.last+1 || len(w.chunks) != 0 {
			return fmt.Errorf("finished window %d..%d is empty and has %d chunks", w.first, w.last, len(w.chunks))
		}
		return nil
	}
	if c, i := w.chunk(w.first); c.isDead(i) {
		return fmt.Errorf("finished window begins at %d, a gap", w.first)
	}
	if want := int(w.last>>windowBits-w.first>>windowBits) + 1; len(w.chunks) != want {
		return fmt.Errorf("finished window %d..%d has %d chunks", w.first, w.last, len(w.chunks))
	}
	return nil
}

// finishedView is the window as a snapshot sees it.
type finishedView struct {
	chunks      []finishedChunk
	first, last uint64
}

func (w *finishedWindow) share() finishedView {
	return finishedView{append([]finishedChunk(nil), w.chunks...), w.first, w.last}
}

// each calls f for all live items in order.
func (v *finishedView) each(f func(seq uint64, c *finishedChunk, i uint64) error) error {
	for seq := v.first; seq <= v.last; seq++ {
		c, i := &v.chunks[seq>>windowBits-v.first>>windowBits], seq&windowMask
		if c.isDead(i) {
			continue
		}
		if err := f(seq, c, i); err != nil {
			return err
		}
	}
	return nil
}
