package executor

import (
	"sync"
	"sync/atomic"
	"time"

	"github.com/carillon-timers/carillon/raftfsm"
	"github.com/carillon-timers/carillon/wheel"
	"github.com/carillon-timers/carillon/wheel/mpsc"
)

// Exec is the executor of one shard. It belongs to one Loop, which owns its wheel, and is the Source of its deliveries.
type Exec struct {
	o     Options // set before sharing; Table under SetTable's rule
	loop  *Loop   // set before sharing
	feed  *mpsc.Queue[raftfsm.Op]
	hand  hand
	stats execCounters

	// dirty says that the baton holder has something to look at: ops, a change of role, slots to re-arm.
	dirty atomic.Bool
	// waiting counts the ops that were pushed since the baton holder last took them; leads is what leading, below, is or is
	// about to be.
	waiting atomic.Int64
	leads   atomic.Bool
	// firing is the quick answer to whether Take may hand out anything: limit > 0, below.
	firing atomic.Bool
	// retryAt is when the baton holder is to tell the Deliverer of all that is ready, because a hand-out was refused for a
	// reason that passes by itself, or the Deliverer panicked; on the loop's monotonic clock, 0 for not.
	retryAt atomic.Int64
	// owing counts the at-most-once timers that are completed and were not handed out yet.
	owing atomic.Int64

	mu sync.Mutex
	// What follows is guarded by mu.

	// epoch is what the shard leads under, if leading. term counts the calls of Lead and Follow.
	epoch   uint64
	leading bool
	term    uint64
	// limit is the due time from which nothing is handed out yet: 0 unless leading, then, while a new leader takes out of
	// its wheel what is overdue, how far it has come, and never afterwards. A Restore begins it anew.
	limit int64
	// slots and lists are the due slots of the present epoch. former are those of earlier ones, on their way to the baton
	// holder, which re-arms them.
	slots  *slotTable
	former []*slotTable
	lists  map[Queue]*readyList
	// calls holds the queues for which the Deliverer is being called: true if it is to be called again.
	calls map[Queue]bool
	// emptyLists are lists to be used again.
	emptyLists []*readyList
	// rearm are slots that are out or held and are to leave the wheel earlier than it would bring them out.
	rearm []uint32
	// asking counts the slots for which a command was proposed because of a verdict.
	asking int
	// ahead is what queues have of at-most-once timers, news the queues of which the Deliverer is to be told.
	ahead map[Queue]*aheadList
	news  []Queue
	taken taken
}

// hand is the side of an Exec that the baton holder alone touches. Its mutex is never waited for but by Remove and by
// tests.
type hand struct {
	mu      sync.Mutex
	removed bool
	wheel   *wheel.Wheel
	// handles holds the wheel's handle of each slot, 0 for none.
	handles []wheel.Handle
	// ops is the batch that was drained, opsAt the first that was not applied.
	ops   []raftfsm.Op
	opsAt int
	// term is the term of Exec that the turns before have seen. drained says that the batch was drained after that, caughtUp
	// that all ops from before it are applied.
	term              uint64
	drained, caughtUp bool
	// former are the tables to re-arm, formerAt the page to go on with.
	former   []*slotTable
	formerAt int
	// next is the tick at which the shard wants a turn, busy that it wants one now.
	next int64
	busy bool

	due   [fireSlice]wheel.Due
	slot  []uint32
	infos []raftfsm.DueInfo
}

type execCounters struct {
	fired, redelivered, lapsed, dropped, refused, missed, expired atomic.Uint64
	armed, backlog                                                atomic.Int64
	wheelLate, handOutLate                                        Histogram
}

// ExecStats is what one shard's executor counted and holds.
type ExecStats struct {
	// Armed is the number of slots in the wheel. OpsWaiting is a lower bound of the ops that are not applied to it yet.
	Armed, OpsWaiting int
	// Ready counts the timers in ready lists, Held those that a command in flight keeps back, Out those that are handed out
	// and whose lease has not been settled.
	Ready, Held, Out int
	// Owed counts at-most-once timers that are completed and wait for their consumer.
	Owed int
	// Overdue counts what is due and was not handed out: ready and held. CatchingUp says that a new leader is still taking
	// out of its wheel what fell due before; that is not counted yet.
	Overdue    int
	CatchingUp bool
	// OldestDue is the due time of what has waited longest in a ready list, Unix milliseconds; 0 if nothing waits.
	OldestDue int64
	// Fired counts hand-outs, Redelivered those of them that were not a first delivery.
	Fired, Redelivered uint64
	// Lapsed counts leases that ended without an answer, each time they were settled.
	Lapsed uint64
	// Dropped counts ready entries whose timer had changed or gone, Refused those that the table did not hand out.
	Dropped, Refused uint64
	// Missed and Expired count the repeats that are to advance because due times were missed, and the timers that are to expire:
	// each time that this was proposed.
	Missed, Expired uint64
	// WheelLate and HandOutLate are how late first deliveries left the wheel and were handed out, from the due time or, for
	// a timer that was scheduled in the past, from its creation. Only the second counts the wait for a consumer.
	WheelLate, HandOutLate HistogramSnapshot
}

func newExec(l *Loop, o Options, start int64) *Exec {
	e := &Exec{
		o: o.withDefaults(), loop: l, feed: mpsc.New[raftfsm.Op](),
		slots: new(slotTable), lists: make(map[Queue]*readyList), calls: make(map[Queue]bool),
		ahead: make(map[Queue]*aheadList),
	}
	e.hand.wheel = wheel.New(wheel.Tick(start))
	e.hand.next = never
	return e
}

// Feed is where the table pushes its ops.
func (e *Exec) Feed() raftfsm.Feed { return feed{e} }

// SetTable sets the table, before the first op and before Lead.
func (e *Exec) SetTable(t Table) { e.o.Table = t }

// Shard implements Source.
func (e *Exec) Shard() uint32 { return e.o.Shard }

// Lead starts to fire under an epoch, after the table leads under it. All that was ready or out under an earlier epoch is
// due again, and goes out in order with the rest: nothing is handed out before all that was due earlier has left the wheel.
func (e *Exec) Lead(epoch uint64) { e.changeRole(epoch, true) }

// Follow stops firing: when it returns nothing more is handed out.
func (e *Exec) Follow() { e.changeRole(0, false) }

func (e *Exec) changeRole(epoch uint64, leading bool) {
	e.firing.Store(false)
	e.mu.Lock()
	e.firing.Store(false)
	e.epoch, e.leading, e.limit = epoch, leading, 0
	e.leads.Store(leading)
	e.term++
	e.rearm = nil
	e.unaskAll()
	if e.slots.len() > 0 {
		e.former = append(e.former, e.slots)
		e.slots = new(slotTable)
		e.lists = make(map[Queue]*readyList)
	}
	e.retryAt.Store(0)
	e.mu.Unlock()
	e.wake()
}

// Waiting says whether the queue's ready list holds anything. If not, the Deliverer is told when it does.
func (e *Exec) Waiting(q Queue) bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	l, a := e.lists[q], e.ahead[q]
	return l != nil && l.len() > l.stale || a != nil && len(a.owed) > 0
}

// wake makes the baton holder look at this shard. It is called under the table's lock, too.
func (e *Exec) wake() {
	e.dirty.Store(true)
	e.loop.wake()
}

// retryIn has the Deliverer told of all that is ready after a while, unless that is on its way already.
func (e *Exec) retryIn(now reading, wait time.Duration) {
	if e.retryAt.CompareAndSwap(0, int64(now.since+wait)) {
		e.wake()
	}
}

// Stats tells what the executor counted and holds. It walks the queues that have something ready.
func (e *Exec) Stats() ExecStats {
	s := ExecStats{
		Armed: int(e.stats.armed.Load()), OpsWaiting: int(e.stats.backlog.Load()),
		Fired: e.stats.fired.Load(), Redelivered: e.stats.redelivered.Load(), Lapsed: e.stats.lapsed.Load(),
		Dropped: e.stats.dropped.Load(), Refused: e.stats.refused.Load(),
		Missed: e.stats.missed.Load(), Expired: e.stats.expired.Load(), Owed: int(e.owing.Load()),
		WheelLate: e.stats.wheelLate.Snapshot(), HandOutLate: e.stats.handOutLate.Snapshot(),
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	s.Ready, s.Held, s.Out = e.slots.count[stateReady], e.slots.count[stateHeld], e.slots.count[stateOut]
	s.Overdue = s.Ready + s.Held
	s.CatchingUp = e.leading && e.limit != never
	for _, l := range e.lists {
		if head, ok := l.head(); ok && (s.OldestDue == 0 || head.due < s.OldestDue) {
			s.OldestDue = head.due
		}
	}
	return s
}

// list returns the ready list of a queue, a new one if it has none. The caller holds mu.
func (e *Exec) list(q Queue) *readyList {
	l := e.lists[q]
	if l != nil {
		return l
	}
	if n := len(e.emptyLists); n > 0 {
		l, e.emptyLists = e.emptyLists[n-1], e.emptyLists[:n-1]
	} else {
		l = new(readyList)
	}
	l.queue, l.stale, l.touched = q, 0, 0
	e.lists[q] = l
	return l
}

// emptyListsKept is how many empty ready lists an Exec keeps, so that a queue that is empty after each timer costs nothing.
const emptyListsKept = 16

// dropList gives an empty ready list back. The caller holds mu.
func (e *Exec) dropList(l *readyList) {
	delete(e.lists, l.queue)
	if len(e.emptyLists) < emptyListsKept {
		e.emptyLists = append(e.emptyLists, l)
	}
}

// live says whether an entry is still what its slot waits with. The caller holds mu.
func (e *Exec) live(entry readyEntry) bool {
	s := e.slots.get(entry.slot)
	return s != nil && s.state == stateReady && s.revision == entry.revision
}

// forget makes the state of a slot none because its timer changed or went. The caller holds mu.
func (e *Exec) forget(slot uint32, s *slotState) {
	l := s.list
	ready := s.state == stateReady
	e.unask(s)
	e.slots.clear(slot)
	if !ready {
		return
	}
	l.stale++
	l.dropStale(e.live)
	if l.len() == 0 {
		e.dropList(l)
	}
}
