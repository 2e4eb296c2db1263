package raftfsm

// A walk from the root to a leaf and the change of the leaf are a dozen cache misses, one after the other, if other work was done since
// the last one. So timers that come and go wait until there are many of them, or until somebody reads: then the tree is in the caches
// for all but the first, and the leaves are loaded together. A timer that goes while it still waits was never in the tree.

const (
	// orderWaits is how many timers that came, and how many that went, wait at most.
	orderWaits = 1024
	// orderGroup is how many leaves are loaded together.
	orderGroup = 64
	// maxKeptKeys is how large the buffer of keys stays.
	maxKeptKeys = 64 << 10
)

// orderWait is what the tree does not know yet. Guarded by FSM.mu.
type orderWait struct {
	// young are the slots of timers that came. Which of them still are is in the infos of the table; a slot may be here twice.
	young []uint32
	// gone are the timers that went and are in the tree. The slot of one may be another's by now, so its key is kept.
	gone []goneTimer
	keys []byte
	// limit is orderWaits, less in tests; 0 is orderWaits.
	limit int
	// thin is a buffer.
	thin []int32
}

// goneTimer is a timer whose key ends at end in the keys; it begins where the one before ends.
type goneTimer struct{ slot, end uint32 }

func (w *orderWait) full() bool {
	limit := w.limit
	if limit == 0 {
		limit = orderWaits
	}
	return len(w.young) >= limit || len(w.gone) >= limit
}

func (w *orderWait) key(i int) orderKey {
	from := uint32(0)
	if i > 0 {
		from = w.gone[i-1].end
	}
	return w.keys[from:w.gone[i].end]
}

// put adds a timer that is not there; its record lies in the slot.
func (o *order) put(slot uint32) {
	o.size++
	o.table.setYoung(slot)
	o.wait.young = append(o.wait.young, slot)
	if o.wait.full() {
		o.settle()
	}
}

// remove takes a timer out; its record still lies in its slot.
func (o *order) remove(namespace, id string, slot uint32) {
	o.size--
	if o.table.dropYoung(slot) {
		return
	}
	w := &o.wait
	w.keys = append(append(append(w.keys, namespace...), 0), id...)
	w.gone = append(w.gone, goneTimer{slot, uint32(len(w.keys))})
	if w.full() {
		o.settle()
	}
}

// settle brings the tree up to date. What went goes first, since its slots may be those of what came.
func (o *order) settle() {
	w := &o.wait
	if len(w.gone) > 0 {
		for from := 0; from < len(w.gone); from += orderGroup {
			o.takeGone(from, min(from+orderGroup, len(w.gone)))
		}
		for _, i := range w.thin {
			o.thin(w.key(int(i)))
		}
		w.thin, w.gone, w.keys = w.thin[:0], w.gone[:0], w.keys[:0]
		if cap(w.keys) > maxKeptKeys {
			w.keys = nil
		}
	}
	for young := w.young; len(young) > 0; {
		n := min(orderGroup, len(young))
		o.addYoung(young[:n])
		young = young[n:]
	}
	w.young = w.young[:0]
}

// takeGone takes some of the timers that went out of their leaves, and notes which leaves have become thin. The leaves stay where they
// are, so all keys lead to them until the last is taken.
func (o *order) takeGone(from, to int) {
	w, sum := &o.wait, uint64(0)
	var leaves [orderGroup]*orderLeaf
	for i := from; i < to; i++ {
		leaves[i-from] = o.leafOf(w.key(i))
	}
	for _, l := range leaves[:to-from] {
		for i := 0; i < orderFan; i += 8 {
			sum += l.cells[i]
		}
	}
	o.touched = sum
	for i := from; i < to; i++ {
		l := leaves[i-from]
		if l.take(w.key(i), w.gone[i].slot); l.n < orderThin {
			w.thin = append(w.thin, int32(i))
		}
	}
}

// addYoung puts those that still are young of some timers that came into the tree.
func (o *order) addYoung(slots []uint32) {
	var leaves [orderGroup]*orderLeaf
	var left [orderGroup]uint32
	n, t, sum, splits := 0, o.table, uint64(0), o.splits
	for _, slot := range slots {
		if t.dropYoung(slot) {
			left[n] = slot
			n++
		}
	}
	for _, slot := range left[:n] {
		sum += uint64(t.where(slot))
	}
	for _, slot := range left[:n] {
		sum += t.touch(t.where(slot))
	}
	for i, slot := range left[:n] {
		o.key = o.slotKey(o.key, slot)
		leaves[i] = o.leafOf(o.key)
	}
	for _, l := range leaves[:n] {
		sum += l.cells[min(l.n, orderFan-1)]
	}
	o.touched = sum
	for i, slot := range left[:n] {
		o.key = o.slotKey(o.key, slot)
		if l := leaves[i]; o.splits == splits && l.n < orderFan {
			o.push(l, o.key, slot)
		} else {
			o.add(o.key, slot)
		}
	}
}
