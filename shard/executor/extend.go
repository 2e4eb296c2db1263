package executor

import "github.com/carillon-timers/carillon/raftfsm"

// Extend moves the ends of leases to so many milliseconds from now; 0 means the timer's own lease. It returns the new ends, Unix
// milliseconds, in the order of the tokens: 0 if the token is stale, because the delivery is settled, its lease is over or this
// Exec does not lead under the token's epoch. A new leader knows nothing of it: there the timer is due again.
func (e *Exec) Extend(tokens []raftfsm.Token, leases []int64) []int64 {
	ends := make([]int64, len(tokens))
	e.mu.Lock()
	now := e.loop.clock.read()
	rearm := len(e.rearm)
	for i, ref := range e.o.Table.Locate(tokens, make([]raftfsm.Ref, 0, len(tokens))) {
		s := e.slots.get(ref.Slot)
		if ref.Revision == 0 || s == nil || s.state != stateOut || s.revision != ref.Revision || tokens[i].Epoch != e.epoch ||
			s.lapsed || s.at <= now.millis {
			continue
		}
		lease := leases[i]
		if lease <= 0 {
			lease = s.record.Retry.Lease
		}
		ends[i] = now.millis + min(lease, raftfsm.MaxLeaseMillis)
		if ends[i] < s.at {
			e.rearm = append(e.rearm, ref.Slot) // else the wheel brings it out earlier, and it is put back
		}
		s.moveEnd(ends[i])
	}
	rearm = len(e.rearm) - rearm
	e.mu.Unlock()
	if rearm > 0 {
		e.wake()
	}
	return ends
}
