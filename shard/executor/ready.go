package executor

// readyEntry is a slot that is due and waits to be taken: 32 bytes, no payload.
type readyEntry struct {
	revision uint64
	due      int64
	accepted uint64
	slot     uint32
	// late is how late it came out of the wheel, in microseconds, at most 2^32-1.
	late uint32
}

func (a readyEntry) before(b readyEntry) bool {
	if a.due != b.due {
		return a.due < b.due
	}
	return a.accepted < b.accepted
}

// readyList holds what is due in one queue in the order of (due, acceptance). What comes in order, which is nearly all,
// goes to a FIFO; what comes out of order (accepted late, with a due time in the past) to a heap; the smaller head is
// next. Guarded by its Exec's mu.
type readyList struct {
	queue Queue
	fifo  fifo
	heap  []readyEntry
	// stale counts entries whose slot has moved on; they are dropped when they come up, or all at once when they are many.
	stale int
	// touched is the turn in which the Deliverer was last to be told.
	touched uint64
}

// Bounds of the memory that a ready list keeps for nothing.
const (
	fifoChunkMin = 8
	fifoChunkMax = 256
	heapKept     = 64
	staleKept    = 64
)

func (l *readyList) len() int { return l.fifo.n + len(l.heap) }

func (l *readyList) push(e readyEntry) {
	if l.fifo.n == 0 || l.fifo.last().before(e) {
		l.fifo.push(e)
		return
	}
	l.heap = append(l.heap, e)
	for i := len(l.heap) - 1; i > 0; {
		parent := (i - 1) / 2
		if !l.heap[i].before(l.heap[parent]) {
			break
		}
		l.heap[i], l.heap[parent] = l.heap[parent], l.heap[i]
		i = parent
	}
}

// head returns the next entry without taking it.
func (l *readyList) head() (readyEntry, bool) {
	switch {
	case len(l.heap) == 0 && l.fifo.n == 0:
		return readyEntry{}, false
	case l.fifo.n == 0 || len(l.heap) > 0 && l.heap[0].before(*l.fifo.first()):
		return l.heap[0], true
	}
	return *l.fifo.first(), true
}

// pop takes the entry that head returned.
func (l *readyList) pop() {
	if l.fifo.n == 0 || len(l.heap) > 0 && l.heap[0].before(*l.fifo.first()) {
		l.popHeap()
		return
	}
	l.fifo.pop()
}

func (l *readyList) popHeap() {
	n := len(l.heap) - 1
	l.heap[0] = l.heap[n]
	l.heap = l.heap[:n]
	for i := 0; ; {
		child := 2*i + 1
		if child >= n {
			break
		}
		if child+1 < n && l.heap[child+1].before(l.heap[child]) {
			child++
		}
		if !l.heap[child].before(l.heap[i]) {
			break
		}
		l.heap[i], l.heap[child] = l.heap[child], l.heap[i]
		i = child
	}
	if cap(l.heap) > heapKept && n < cap(l.heap)/4 {
		l.heap = append(make([]readyEntry, 0, cap(l.heap)/2), l.heap...)
	}
}

// dropStale rebuilds the list without the entries for which live says no, if they are more than half of it. Its cost is
// that of one step for each entry that became stale since the last time.
func (l *readyList) dropStale(live func(readyEntry) bool) {
	if l.stale <= staleKept || l.stale <= l.len()/2 {
		return
	}
	fresh := readyList{queue: l.queue, touched: l.touched}
	for i, chunk := range l.fifo.chunks {
		if i == 0 {
			chunk = chunk[l.fifo.at:]
		}
		for _, e := range chunk {
			if live(e) {
				fresh.push(e)
			}
		}
	}
	for _, e := range l.heap {
		if live(e) {
			fresh.push(e)
		}
	}
	*l = fresh
}

// fifo is a queue in chunks, which are given back as they are emptied. A small queue stays small.
type fifo struct {
	chunks [][]readyEntry
	// at is the index of the first entry in the first chunk.
	at, n int
}

func (f *fifo) first() *readyEntry { return &f.chunks[0][f.at] }

func (f *fifo) last() *readyEntry {
	c := f.chunks[len(f.chunks)-1]
	return &c[len(c)-1]
}

func (f *fifo) push(e readyEntry) {
	n := len(f.chunks)
	if n == 0 || len(f.chunks[n-1]) == cap(f.chunks[n-1]) {
		size := fifoChunkMin
		if n > 0 {
			size = min(2*cap(f.chunks[n-1]), fifoChunkMax)
		}
		f.chunks = append(f.chunks, make([]readyEntry, 0, size))
		n++
	}
	f.chunks[n-1] = append(f.chunks[n-1], e)
	f.n++
}

func (f *fifo) pop() {
	f.at++
	f.n--
	switch {
	case f.n == 0:
		f.chunks[0], f.at = f.chunks[0][:0], 0
	case f.at == len(f.chunks[0]):
		f.chunks[0] = nil
		f.chunks = f.chunks[1:]
		f.at = 0
	}
}
