package wheel

// Handle names an entry of one Wheel from Add until it is removed or emitted. 0 is none. It holds the entry's place
// and the generation of that place, so that a handle kept for too long is refused and never hits another timer.
type Handle uint64

// Due is an entry that has come due.
type Due struct {
	When Tick
	Ref  uint64
}

// MaxTick is the last tick that a Wheel tells apart (146 million years); later ones are taken for it.
const MaxTick Tick = 1 << 62

// entry is one timer. It does not know where its element lies, nor when it is due: the element does. An element is
// valid as long as it carries the entry's stamp.
type entry struct {
	ref   uint64
	gen   uint32 // odd while in use; grows at each Add and each leave
	stamp uint32 // grows whenever an element that lies in a list becomes stale; stays below noStamp
}

// floor is what the places of a slab start from when it is made anew after it was given back.
type floor struct{ gen, stamp uint32 }

// Wheel holds timers by their due tick. The zero Wheel is not usable; see New.
type Wheel struct {
	base  Tick         // the first tick not wholly emitted
	open  [levels]Tick // level l holds ticks below open[l], and not below open[l-1]
	bits  [levels]bitmap
	slots [slotsAll]slot

	entries []*[entryLen]entry // gone where a slab was given back
	entryAt space
	chunks  []*[chunkSlab]chunk // nil where a slab was given back
	chunkAt space
	hot     []uint32 // chunks freed last, the first to be taken again: they are still in the cache
	floors  []floor  // of each slab of entries
	elems   int      // elements in lists, stale ones too
	retired int      // places whose generations are used up
	farMin  Tick     // no later than any tick in the far list
	keptMin Tick     // the least tick kept there by the present pass
	past    past     // ticks before base
	limits  limits   // set once
	aheadAt Tick     // openAhead looks again when base has come to it
	sweep   sweeper
	sink    uint32 // keeps the compiler from leaving out loads made for the cache's sake
}

// noStamp is a stamp that no element has.
const noStamp = 1<<32 - 1

// gone stands in for every slab of entries that was given back: no stamp and no generation in it matches.
var gone = func() (s [entryLen]entry) {
	for k := range s {
		s[k].stamp = noStamp
	}
	return s
}()

// New makes an empty wheel whose next tick is start. All ticks before start are past for it. To load timers that
// are overdue, start at the oldest and Advance to the present: the wheel sorts them in passing, at no extra cost.
func New(start Tick) *Wheel {
	w := &Wheel{base: min(start, MaxTick), limits: defaults, farMin: MaxTick, keptMin: MaxTick, aheadAt: start, hot: make([]uint32, 0, hotMax)}
	w.entryAt.bits, w.chunkAt.bits = entryBits, chunkBits
	w.newChunk() // chunk 0 stands for none
	for l := range w.open {
		w.open[l] = w.base&^(span(l+1)-1) + span(l+1)
	}
	return w
}

// Now is the last tick up to which all has been emitted.
func (w *Wheel) Now() Tick { return w.base - 1 }

// Len is the number of entries.
func (w *Wheel) Len() int { return w.entryAt.used - w.retired }

// Add inserts a timer that is due at when and gives ref back then. A timer that is due at Now or earlier is emitted
// by the next Advance.
func (w *Wheel) Add(when Tick, ref uint64) Handle {
	i, fresh := w.entryAt.alloc()
	if fresh {
		w.makeSlab(int(i >> entryBits))
	}
	e := w.entry(i)
	e.ref = ref
	e.gen++
	w.place(when, element{idx: i, stamp: e.stamp})
	return Handle(i) | Handle(e.gen)<<32
}

// Remove takes an entry out and returns its ref. It is not ok if the handle is stale: the entry has been emitted or
// removed. After ok the entry is never emitted.
func (w *Wheel) Remove(h Handle) (ref uint64, ok bool) {
	e := w.find(h)
	if e == nil {
		return 0, false
	}
	ref = e.ref
	w.restamp(e)
	w.leave(uint32(h), e)
	w.sweepSome(1)
	return ref, true
}

// Move makes an entry due at another tick, or at the same again; the handle stays valid. In the order among entries
// of one tick it counts as inserted now. It is not ok if the handle is stale.
func (w *Wheel) Move(h Handle, when Tick) bool {
	e := w.find(h)
	if e == nil {
		return false
	}
	w.restamp(e)
	w.place(when, element{idx: uint32(h), stamp: e.stamp})
	w.sweepSome(1)
	return true
}

// Ref returns the ref of an entry. It is not ok if the handle is stale.
func (w *Wheel) Ref(h Handle) (ref uint64, ok bool) {
	e := w.find(h)
	if e == nil {
		return 0, false
	}
	return e.ref, true
}

// Warm loads what Remove, Move and Ref of these handles need, so that the cache misses overlap. With many timers
// this is worth several times its cost, in batches of about 64; it changes nothing else. Stale handles are allowed.
func (w *Wheel) Warm(hs []Handle) {
	sum := w.sink
	for _, h := range hs {
		if s := int(uint32(h) >> entryBits); s < len(w.entries) {
			sum += w.entries[s][h&(entryLen-1)].stamp
		}
	}
	w.sink = sum
}

// find is the entry of h, or nil if h is stale.
func (w *Wheel) find(h Handle) *entry {
	i, gen := uint32(h), uint32(h>>32)
	if int(i>>entryBits) >= len(w.entries) {
		return nil
	}
	e := w.entry(i)
	if e.gen != gen || gen&1 == 0 {
		return nil
	}
	return e
}

// restamp makes the element of e stale. Stamps of one entry come round after 2^32 moves; then no stale element may be left.
func (w *Wheel) restamp(e *entry) {
	e.stamp++
	if e.stamp == noStamp {
		w.purge()
		e.stamp = 0
	}
}

// leave frees the entry at place i, whose element is gone or stale. A place whose generations are used up is not used again.
func (w *Wheel) leave(i uint32, e *entry) {
	e.gen++
	if e.gen == 0 {
		w.retired++
		return
	}
	if !w.entryAt.release(i) {
		return
	}
	for s, ok := w.entryAt.excess(); ok; s, ok = w.entryAt.excess() {
		f := &w.floors[s]
		for k := range w.entries[s] {
			f.gen = max(f.gen, w.entries[s][k].gen)
			f.stamp = max(f.stamp, w.entries[s][k].stamp)
		}
		w.entries[s] = &gone
		w.entryAt.drop(s)
	}
}

// makeSlab makes slab s of the entries. Its places start above all that an earlier slab of this number has handed out.
func (w *Wheel) makeSlab(s int) {
	slab := new([entryLen]entry)
	if s == len(w.entries) {
		w.entries = append(w.entries, slab)
		w.floors = append(w.floors, floor{})
		return
	}
	for k := range slab {
		slab[k] = entry{gen: w.floors[s].gen, stamp: w.floors[s].stamp}
	}
	w.entries[s] = slab
}

// entry is the entry at place i.
func (w *Wheel) entry(i uint32) *entry { return &w.entries[i>>entryBits][i&(entryLen-1)] }

// place puts an element into the list of its tick.
func (w *Wheel) place(when Tick, el element) {
	when = min(when, MaxTick)
	w.elems++
	if when < w.base {
		w.past.push(when, el)
		return
	}
	l := b2i(when >= w.open[0]) + b2i(when >= w.open[1]) + b2i(when >= w.open[2]) +
		b2i(when >= w.open[3]) + b2i(when >= w.open[4])
	el.low = uint32(when)
	if l == levels {
		w.farMin = min(w.farMin, when)
		w.pushFar(slotFar, when, el)
		return
	}
	w.push(slotOf(l, when), el)
}

func b2i(b bool) int {
	if b {
		return 1
	}
	return 0
}
