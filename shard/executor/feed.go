package executor

import (
	"time"

	"github.com/carillon-timers/carillon/raftfsm"
)

// feedMax is how many ops may wait for the loop's next look before it is woken to take them.
const feedMax = 4096

// feed is where the table pushes its ops. It wakes the loop only for what cannot wait for its next look: a system call and
// a turn for each entry of the log were a tenth of what a node spent on scheduling timers of the far future.
type feed struct{ e *Exec }

// PushN implements raftfsm.Feed. It is called under the table's lock.
func (f feed) PushN(ops []raftfsm.Op) {
	if len(ops) == 0 {
		return
	}
	e := f.e
	e.feed.PushN(ops)
	e.dirty.Store(true)
	waiting := e.waiting.Add(int64(len(ops)))
	soonest := e.soonest(ops)
	if waiting >= feedMax {
		soonest = 0
	}
	e.loop.pushed(soonest)
}

// soonest is the tick before which the loop must have looked at the ops. While the shard follows nothing hurries; a new
// leader is woken for all that was pushed before.
func (e *Exec) soonest(ops []raftfsm.Op) int64 {
	at, leads := int64(never), e.leads.Load()
	for i := range ops {
		switch op := &ops[i]; {
		case op.Kind == raftfsm.Reset:
			return 0
		case op.Kind == raftfsm.Arm && leads:
			at = min(at, int64(op.When))
		}
	}
	return at
}

// pushed is told the tick before which the loop must look at what was pushed. The order keeps a push from being lost:
// what was pushed is noted before looksAt is read here, and the holder publishes looksAt before it reads what is noted.
func (l *Loop) pushed(soonest int64) {
	if soonest == never {
		return
	}
	for {
		noted := l.soonest.Load()
		if noted <= soonest || l.soonest.CompareAndSwap(noted, soonest) {
			break
		}
	}
	if soonest < l.looksAt.Load() {
		l.wake()
	}
}

// rest lets the holder sleep for wait, unless something was pushed since its turn began that must be looked at before.
func (l *Loop) rest(wait time.Duration) {
	until := floorMillis(l.clock.now().UnixNano() + int64(wait))
	l.looksAt.Store(until)
	if l.soonest.Load() >= until {
		l.stats.sleeps.Add(1)
		l.baton.bed.sleep(wait)
	}
	l.looksAt.Store(never)
}
