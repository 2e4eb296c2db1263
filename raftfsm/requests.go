package raftfsm

import (
	"fmt"
	"math/bits"
)

// requestItem is a remembered write: the hash of its kind, timer and request ID, and its answer.
type requestItem struct {
	high, low, revision uint64
	due, at             int64
	answer              uint32
}

// requestWindow keeps the last writes, oldest first, without pointers; what is written is never changed, so a snapshot shares
// the chunks. Guarded by FSM.mu.
type requestWindow struct {
	chunks []*[windowSize]requestItem
	// first and last are the sequences of the oldest and of the last ever; first is last+1 if there is none.
	first, last uint64
	limit       uint64
}

func newRequestWindow(limit int) requestWindow { return requestWindow{first: 1, limit: uint64(limit)} }

func (w *requestWindow) len() int { return int(w.last + 1 - w.first) }

func (w *requestWindow) at(seq uint64) *requestItem {
	return &w.chunks[seq>>windowBits-w.first>>windowBits][seq&windowMask]
}

func (w *requestWindow) sequence(ref uint32) uint64 { return w.first + uint64(ref-uint32(w.first)) }

func (w *requestWindow) push(it requestItem) uint64 {
	w.last++
	if w.first == w.last {
		w.chunks = nil
	}
	if int(w.last>>windowBits-w.first>>windowBits) == len(w.chunks) {
		w.chunks = append(w.chunks, new([windowSize]requestItem))
	}
	*w.at(w.last) = it
	return w.last
}

// pop drops the oldest.
func (w *requestWindow) pop() {
	w.first++
	if w.first > w.last {
		w.chunks = nil
	} else if w.first&windowMask == 0 {
		w.chunks[0] = nil
		w.chunks = w.chunks[1:]
	}
}

func (w *requestWindow) over() bool { return uint64(w.len()) > w.limit }

func (w *requestWindow) check() error {
	if w.first > w.last+1 || w.over() {
		return fmt.Errorf("request window %d..%d, limit %d", w.first, w.last, w.limit)
	}
	want := 0
	if w.len() > 0 {
		want = int(w.last>>windowBits-w.first>>windowBits) + 1
	}
	if len(w.chunks) != want {
		return fmt.Errorf("request window %d..%d has %d chunks, want %d", w.first, w.last, len(w.chunks), want)
	}
	return nil
}

// requestView is the window as a snapshot sees it.
type requestView struct {
	chunks      []*[windowSize]requestItem
	first, last uint64
}

func (w *requestWindow) share() requestView {
	return requestView{append([]*[windowSize]requestItem(nil), w.chunks...), w.first, w.last}
}

func (v *requestView) each(f func(seq uint64, it *requestItem) error) error {
	for seq := v.first; seq <= v.last; seq++ {
		if err := f(seq, &v.chunks[seq>>windowBits-v.first>>windowBits][seq&windowMask]); err != nil {
			return err
		}
	}
	return nil
}

// Kinds in the key of a remembered write. They are part of the snapshot's meaning and never change.
const (
	requestSchedule   = 1
	requestCancel     = 2
	requestReschedule = 3
	requestPause      = 4
	requestResume     = 5
	requestFireNow    = 6
	requestRedrive    = 7
	requestPurge      = 8
)

// requestKey is FNV-128a over the kind, the namespace, a zero byte, the ID, a zero byte and the request ID; neither name can
// hold a zero byte.
func requestKey(kind byte, namespace, id string, requestID []byte) (high, low uint64) {
	high, low = 0x6c62272e07bb0142, 0x62b821756295c58d
	high, low = fnvByte(high, low, kind)
	for i := range len(namespace) {
		high, low = fnvByte(high, low, namespace[i])
	}
	high, low = fnvByte(high, low, 0)
	for i := range len(id) {
		high, low = fnvByte(high, low, id[i])
	}
	high, low = fnvByte(high, low, 0)
	for _, b := range requestID {
		high, low = fnvByte(high, low, b)
	}
	return high, low
}

// fnvByte multiplies by the prime 2^88 + 0x13b.
func fnvByte(high, low uint64, b byte) (uint64, uint64) {
	low ^= uint64(b)
	carry, lower := bits.Mul64(low, 0x13b)
	return high*0x13b + carry + low<<24, lower
}
