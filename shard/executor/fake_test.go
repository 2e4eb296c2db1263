package executor

import (
	"fmt"
	"io"
	"log/slog"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	logv1 "github.com/carillon-timers/carillon/proto/carillonlog/v1"
	"github.com/carillon-timers/carillon/raftfsm"
	"github.com/carillon-timers/carillon/wheel"
)

var _ Table = (*raftfsm.FSM)(nil)

var quiet = slog.New(slog.NewTextHandler(io.Discard, nil))

// fakeTable is a table as the contract has it, without a log: its methods are what Apply would do.
type fakeTable struct {
	mu      sync.Mutex
	feed    raftfsm.Feed
	epoch   uint64
	index   uint64
	slots   []*raftfsm.Record
	free    []uint32
	ids     map[string]uint32
	handed  map[uint32]uint64 // slot to the revision that was handed out under the epoch
	held    map[uint32]bool
	parked  map[uint32]bool
	history []raftfsm.Record // what was handed out, in order
	keep    bool             // whether to keep the history
}

// handedOut is how long the history is.
func (f *fakeTable) handedOut() int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return len(f.history)
}

func newFakeTable() *fakeTable {
	return &fakeTable{ids: map[string]uint32{}, handed: map[uint32]uint64{}, held: map[uint32]bool{}, parked: map[uint32]bool{}}
}

func (f *fakeTable) push(ops ...raftfsm.Op) { f.feed.PushN(ops) }

func (f *fakeTable) arm(slot uint32) {
	f.push(raftfsm.Op{When: wheel.Tick(f.slots[slot].NextDue), Slot: slot, Kind: raftfsm.Arm})
}

func (f *fakeTable) schedule(id, queue string, due, lease, created int64) {
	f.scheduleWith(id, queue, due, lease, created, nil)
}

func (f *fakeTable) scheduleWith(id, queue string, due, lease, created int64, extra *logv1.Extra) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.index++
	slot := uint32(len(f.slots))
	if n := len(f.free); n > 0 {
		slot, f.free = f.free[n-1], f.free[:n-1]
	} else {
		f.slots = append(f.slots, nil)
	}
	f.slots[slot] = &raftfsm.Record{
		Namespace: "default", ID: id, Queue: queue, Retry: raftfsm.RetryPolicy{Lease: lease},
		Due: due, NextDue: due, Accepted: f.index, Revision: f.index, Created: created, Extra: extra,
	}
	f.ids[id] = slot
	f.arm(slot)
}

// change replaces a record by a changed copy under a new revision, if it is still the one that was meant.
func (f *fakeTable) change(id string, revision uint64, edit func(r *raftfsm.Record)) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.index++
	slot, ok := f.ids[id]
	if !ok || revision != 0 && f.slots[slot].Revision != revision {
		if ok {
			f.lift(slot)
		}
		return false
	}
	r := *f.slots[slot]
	r.Revision = f.index
	edit(&r)
	f.slots[slot] = &r
	delete(f.held, slot)
	if f.parked[slot] {
		f.push(raftfsm.Op{Slot: slot, Kind: raftfsm.Disarm})
	} else {
		f.arm(slot)
	}
	return true
}

func (f *fakeTable) park(id string, paused bool) {
	if slot, ok := f.ids[id]; ok && f.parked[slot] != paused {
		f.change(id, 0, func(*raftfsm.Record) {
			if f.parked[slot] = paused; !paused {
				delete(f.parked, slot)
			}
		})
	}
}

// advance moves a repeat, which is due every second, past an instant; a spawning one makes a timer.
func (f *fakeTable) advance(id string, revision uint64, now int64) bool {
	var spawned *raftfsm.Record
	ok := f.change(id, revision, func(r *raftfsm.Record) {
		old := *r
		r.NextDue = now
		if r.Extra.Repeat.Overlap == overlapAllow {
			r.NextDue, spawned = now+1000, &old
		}
		r.Accepted = f.index
		r.Extra = &logv1.Extra{Repeat: &logv1.Repeat{Overlap: r.Extra.Repeat.Overlap, TickMs: r.NextDue, BacklogMs: now}}
	})
	if spawned != nil {
		f.schedule(fmt.Sprint(id, "@", spawned.NextDue, ".", revision), spawned.Queue, spawned.NextDue, spawned.Retry.Lease, now)
	}
	return ok
}

const overlapAllow = 3

func spawns(r *raftfsm.Record) bool { return r.Extra.GetRepeat().GetOverlap() == overlapAllow }

// verdict is the table's about a timer that is due and neither held nor out nor parked.
func verdict(r *raftfsm.Record, now int64) raftfsm.Verdict {
	repeat := r.Extra.GetRepeat()
	switch {
	case r.Extra.GetExpiryMs() != 0 && now >= r.Extra.GetExpiryMs():
		return raftfsm.PastExpiry
	case spawns(r) || repeat != nil && repeat.TickMs > repeat.BacklogMs && now >= repeat.TickMs+1000 && r.Attempt == 0:
		return raftfsm.Missed
	case r.Extra.GetAtMostOnce():
		return raftfsm.Ahead
	}
	return raftfsm.Give
}

func (f *fakeTable) lift(slot uint32) {
	if f.held[slot] {
		delete(f.held, slot)
		f.arm(slot)
	}
}

func (f *fakeTable) reschedule(id string, due int64) {
	f.change(id, 0, func(r *raftfsm.Record) {
		r.Due, r.NextDue, r.Attempt, r.Accepted = due, due, 0, f.index
	})
}

func (f *fakeTable) retry(id string, revision uint64, due int64) bool {
	return f.change(id, revision, func(r *raftfsm.Record) { r.NextDue, r.Attempt = due, r.Attempt+1 })
}

// remove is Cancel with revision 0, Complete otherwise.
func (f *fakeTable) remove(id string, revision uint64) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.index++
	slot, ok := f.ids[id]
	if !ok || revision != 0 && f.slots[slot].Revision != revision {
		return false
	}
	delete(f.ids, id)
	delete(f.handed, slot)
	delete(f.held, slot)
	delete(f.parked, slot)
	f.slots[slot] = nil
	f.free = append(f.free, slot)
	f.push(raftfsm.Op{Slot: slot, Kind: raftfsm.Disarm})
	return true
}

func (f *fakeTable) hold(id string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if slot, ok := f.ids[id]; ok {
		f.held[slot] = true
	}
}

func (f *fakeTable) release(id string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if slot, ok := f.ids[id]; ok {
		f.lift(slot)
	}
}

func (f *fakeTable) lead(epoch uint64) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.epoch, f.handed, f.held = epoch, map[uint32]uint64{}, map[uint32]bool{}
}

// restore pushes what a Restore of the same state pushes: Reset, and an Arm for every slot, in order.
func (f *fakeTable) restore(order []uint32) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.handed = map[uint32]uint64{}
	f.push(raftfsm.Op{Kind: raftfsm.Reset})
	for _, slot := range order {
		f.arm(slot)
	}
}

func (f *fakeTable) Describe(slots []uint32, out []raftfsm.DueInfo) []raftfsm.DueInfo {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, slot := range slots {
		info := raftfsm.DueInfo{Ref: raftfsm.Ref{Slot: slot}}
		if r := f.slots[slot]; r != nil && f.parked[slot] {
			info.Parked = true
		} else if r != nil {
			info = raftfsm.DueInfo{
				Ref: raftfsm.Ref{Slot: slot, Revision: r.Revision}, OK: true, Namespace: r.Namespace, Queue: r.Queue,
				NextDue: r.NextDue, Accepted: r.Accepted, Attempt: r.Attempt, Lease: r.Retry.Lease,
				Handed: f.handed[slot] == r.Revision, Held: f.held[slot], Spawns: spawns(r), Expiry: r.Extra.GetExpiryMs(),
			}
		}
		out = append(out, info)
	}
	return out
}

func (f *fakeTable) HandOut(epoch uint64, now int64, refs []raftfsm.Ref, out []raftfsm.Handed) []raftfsm.Handed {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, ref := range refs {
		r := f.slots[ref.Slot]
		if r == nil || r.Revision != ref.Revision || f.held[ref.Slot] || f.handed[ref.Slot] == r.Revision ||
			epoch != f.epoch || f.parked[ref.Slot] {
			out = append(out, raftfsm.Handed{})
			continue
		}
		if v := verdict(r, now); v != raftfsm.Give {
			out = append(out, raftfsm.Handed{Record: r, Verdict: v})
			continue
		}
		f.handed[ref.Slot] = ref.Revision
		if f.keep {
			f.history = append(f.history, *r)
		}
		out = append(out, raftfsm.Handed{Record: r, Verdict: raftfsm.Give})
	}
	return out
}

func (f *fakeTable) Record(slot uint32) *raftfsm.Record {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.slots[slot]
}

func (f *fakeTable) Locate(tokens []raftfsm.Token, out []raftfsm.Ref) []raftfsm.Ref {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, k := range tokens {
		slot, ok := f.ids[k.ID]
		if ok && f.slots[slot].Revision == k.Revision && f.slots[slot].Attempt == k.Attempt {
			out = append(out, raftfsm.Ref{Slot: slot, Revision: k.Revision})
		} else {
			out = append(out, raftfsm.Ref{})
		}
	}
	return out
}

func (f *fakeTable) pending() int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return len(f.ids)
}

// readyFunc is a Deliverer.
type readyFunc func(src Source, q Queue)

func (f readyFunc) Ready(src Source, q Queue) { f(src, q) }

// bench is a loop whose turns the test takes itself, with a clock that stands still unless the test moves it.
type bench struct {
	t       testing.TB
	now     time.Time
	loop    *Loop
	exec    *Exec
	table   *fakeTable
	settled []*raftfsm.Command
	calls   []settleCall
	full    bool // nothing more can be proposed
	told    map[Queue]int
	lease   bool
	onLease func() // is called when the lease is asked for, if it is set
	w       work
}

type settleCall struct {
	cmds []*raftfsm.Command
	done func([]raftfsm.Result)
}

// apply applies what was proposed, a call as a whole, and drops what lost says is lost.
func (b *bench) apply(lost func(settleCall) bool) {
	calls := b.calls
	b.calls, b.settled = nil, nil
	for _, call := range calls {
		if lost(call) {
			continue
		}
		results := make([]raftfsm.Result, len(call.cmds))
		for i, c := range call.cmds {
			if !b.applyOne(c) {
				results[i].Code = raftfsm.StaleToken
			}
		}
		if call.done != nil {
			call.done(results)
		}
	}
}

func (b *bench) applyOne(c *raftfsm.Command) bool {
	switch k := c.Kind.(type) {
	case *logv1.Command_Retry:
		return b.table.retry(k.Retry.Id, k.Retry.Revision, b.millis())
	case *logv1.Command_Advance:
		return b.table.advance(k.Advance.Id, k.Advance.Revision, b.millis())
	case *logv1.Command_Expire:
		return b.table.remove(k.Expire.Id, k.Expire.Revision)
	case *logv1.Command_Complete:
		return k.Complete.Ahead && b.table.remove(k.Complete.Id, k.Complete.Revision)
	}
	b.t.Fatalf("proposed %v", c)
	return false
}

var epochStart = time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)

func newBench(t testing.TB) *bench {
	b := &bench{t: t, now: epochStart, told: map[Queue]int{}, lease: true}
	b.loop = NewLoop(LoopOptions{Now: func() time.Time { return b.now }, Logger: quiet})
	b.exec, b.table = b.add(7)
	return b
}

func (b *bench) add(shard uint32) (*Exec, *fakeTable) {
	table := newFakeTable()
	e := b.loop.Add(Options{
		Table: table, Shard: shard,
		Deliverer: readyFunc(func(_ Source, q Queue) { b.told[q]++ }),
		LeaseHeld: func() bool {
			if b.onLease != nil {
				b.onLease()
			}
			return b.lease
		},
		Settle: func(cmds []*raftfsm.Command, done func([]raftfsm.Result)) bool {
			if b.full {
				return false
			}
			b.settled = append(b.settled, cmds...)
			b.calls = append(b.calls, settleCall{cmds, done})
			return true
		},
	})
	table.feed = e.Feed()
	return e, table
}

func (b *bench) millis() int64 { return b.now.UnixMilli() }

func (b *bench) pass(d time.Duration) { b.now = b.now.Add(d) }

// turn takes one turn and does what it left.
func (b *bench) turn() (wait time.Duration, calls int) {
	wait = b.loop.turn(&b.w)
	calls = b.loop.slow.add(&b.w)
	b.loop.slow.do(quiet)
	return wait, calls
}

// settle takes turns until nothing is left to do now.
func (b *bench) settle() {
	b.t.Helper()
	for range 100_000 {
		if wait, calls := b.turn(); wait > 0 && calls == 0 {
			return
		}
	}
	b.t.Fatal("the loop does not come to rest")
}

func (b *bench) lead(epoch uint64) {
	b.table.lead(epoch)
	b.exec.Lead(epoch)
}

func ids(ds []Delivery) []string {
	s := make([]string, 0, len(ds))
	for _, d := range ds {
		s = append(s, d.Record.ID)
	}
	return s
}

func q(name string) Queue { return Queue{"default", name} }

// check verifies the invariants of an Exec that is at rest: all ops applied, nothing due in the wheel.
func (b *bench) check() error {
	e, f := b.exec, b.table
	e.hand.mu.Lock()
	defer e.hand.mu.Unlock()
	e.mu.Lock()
	defer e.mu.Unlock()
	if got := e.hand.wheel.Len(); got != len(f.ids)-len(f.parked) {
		return fmt.Errorf("%d slots are armed, %d timers are pending, %d of them parked", got, len(f.ids), len(f.parked))
	}
	ahead, asking := map[Queue]int{}, 0
	entries, stale, listed := 0, 0, 0
	for _, l := range e.lists {
		entries, stale = entries+l.len(), stale+l.stale
		if l.len() == 0 {
			return fmt.Errorf("an empty list of %v is kept", l.queue)
		}
	}
	for slot, r := range f.slots {
		s := e.slots.get(uint32(slot))
		if r == nil || f.parked[uint32(slot)] {
			if s != nil {
				return fmt.Errorf("free or parked slot %d has state %d", slot, s.state)
			}
			continue
		}
		if s != nil && s.asked {
			asking++
		}
		if s != nil && s.ahead {
			ahead[Queue{r.Namespace, r.Queue}]++
		}
		if ref, ok := e.hand.wheel.Ref(e.hand.handles[slot]); !ok || ref != uint64(slot) {
			return fmt.Errorf("timer %s in slot %d is not armed", r.ID, slot)
		}
		if s != nil && s.revision != r.Revision {
			return fmt.Errorf("slot %d is known at revision %d, is at %d", slot, s.revision, r.Revision)
		}
		if s != nil && s.state == stateReady {
			listed++
		}
	}
	if asking != e.asking {
		return fmt.Errorf("%d slots are asked for, %d by count", asking, e.asking)
	}
	owing := 0
	for queue, l := range e.ahead {
		owing += len(l.owed)
		if ahead[queue] != l.asked || l.asked == 0 && len(l.owed) == 0 {
			return fmt.Errorf("%v has asked for %d completions, by its slots for %d; it is owed %d", queue, l.asked, ahead[queue], len(l.owed))
		}
		delete(ahead, queue)
	}
	if len(ahead) > 0 || owing != int(e.owing.Load()) {
		return fmt.Errorf("%d owed, %d by count; %v is not listed", owing, e.owing.Load(), ahead)
	}
	if entries-stale != listed || listed != e.slots.count[stateReady] {
		return fmt.Errorf("lists hold %d entries, %d stale; %d slots are ready, %d by count",
			entries, stale, listed, e.slots.count[stateReady])
	}
	return nil
}

func seeded(t *testing.T) *rand.Rand {
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	return rand.New(rand.NewPCG(seed, 1))
}
