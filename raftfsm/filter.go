package raftfsm

import (
	"cmp"
	"encoding/binary"
	"slices"

	logv1 "github.com/carillon-timers/carillon/proto/carillonlog/v1"
)

// filter tells which records a query chooses. What a profile or a record tells is looked at before the blob. Called with mu
// held; so is what it returns.
func (f *FSM) filter(q *logv1.Filter) func(slot uint32, r *record) bool {
	if q == nil {
		return func(uint32, *record) bool { return true }
	}
	t := &f.s.table
	states := uint32(0)
	for _, s := range q.States {
		states |= 1 << min(s, 31)
	}
	want := slices.SortedFunc(slices.Values(q.Labels), func(a, b *logv1.Pair) int {
		return cmp.Or(cmp.Compare(a.Key, b.Key), cmp.Compare(a.Value, b.Value))
	})
	return func(slot uint32, r *record) bool {
		switch {
		case q.Queue != "" && t.profiles[r.profile].queue != q.Queue,
			q.HasFrom && r.nextDue < q.FromMs,
			q.HasBefore && r.nextDue >= q.BeforeMs,
			states != 0 && states>>f.stateOf(slot, r)&1 == 0:
			return false
		case len(want) == 0:
			return true
		}
		c := t.body(r)
		return hasPairs(c.labels, want)
	}
}

// hasPairs says that all pairs that are wanted, sorted by key, are among the sorted ones as they lie in a blob.
func hasPairs(b []byte, want []*logv1.Pair) bool {
	if len(b) == 0 {
		return len(want) == 0
	}
	count, n := binary.Uvarint(b)
	b = b[n:]
	var key, value string
	for ; count > 0 && len(want) > 0; count-- {
		key, b = cutText(b)
		value, b = cutText(b)
		for len(want) > 0 && want[0].Key == key {
			if want[0].Value != value {
				return false
			}
			want = want[1:]
		}
	}
	return len(want) == 0
}
