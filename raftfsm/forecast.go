package raftfsm

import (
	"cmp"
	"fmt"
	"slices"
)

// Forecast counts, exactly, what falls due when. The rows are sorted by namespace and queue; if there are more than
// q.Rows, the rest is in the last one, without names. It looks at all timers, but not under the lock. The error names the
// field that is out of range.
func (f *FSM) Forecast(q ForecastQuery) ([]ForecastRow, error) {
	switch {
	case q.Step < 1:
		return nil, fmt.Errorf("step: %d ms; at least 1 is allowed", q.Step)
	case q.Steps < 1 || q.Steps > MaxForecastSteps:
		return nil, fmt.Errorf("steps: %d; 1 to %d are allowed", q.Steps, MaxForecastSteps)
	case q.From < minDueMillis || q.From > maxDueMillis:
		return nil, fmt.Errorf("from: %d ms; the years 1 to 9999 are allowed", q.From)
	}
	f.mu.Lock()
	owner := &f.s.table
	v := owner.share()
	f.mu.Unlock()
	defer func() {
		f.mu.Lock()
		defer f.mu.Unlock()
		owner.release()
	}()
	return v.forecast(q), nil
}

// forecast counts by the numbers of the profiles: the first pass finds which are in use, the second counts.
func (v *view) forecast(q ForecastQuery) []ForecastRow {
	const none = -1
	rowOf := make([]int32, len(v.profiles))
	var used []uint32
	v.each(func(r *record) {
		if rowOf[r.profile] == 0 {
			rowOf[r.profile] = none
			if p := &v.profiles[r.profile]; p.fits(q.Namespace, q.Queue) {
				used = append(used, r.profile)
			}
		}
	})
	slices.SortFunc(used, func(a, b uint32) int {
		p, q := &v.profiles[a], &v.profiles[b]
		return cmp.Or(cmp.Compare(p.namespace, q.namespace), cmp.Compare(p.queue, q.queue))
	})
	limit := q.Rows
	if limit <= 0 || limit > MaxForecastRows {
		limit = MaxForecastRows
	}
	var rows []ForecastRow
	for _, n := range used {
		p := &v.profiles[n]
		name := ForecastRow{Namespace: p.namespace, Queue: p.queue}
		last := len(rows) - 1
		switch {
		case last >= 0 && rows[last].Namespace == name.Namespace && rows[last].Queue == name.Queue:
		case len(rows) == limit:
			rows[last].Namespace, rows[last].Queue = "", ""
		default:
			name.Counts = make([]int64, q.Steps)
			rows = append(rows, name)
		}
		rowOf[n] = int32(len(rows) - 1)
	}
	v.each(func(r *record) {
		if n := rowOf[r.profile]; n != none {
			rows[n].count(&q, r.nextDue, v.profiles[r.profile].parked)
		}
	})
	return rows
}

func (row *ForecastRow) count(q *ForecastQuery, due int64, parked bool) {
	switch step := (due - q.From) / q.Step; {
	case parked:
		row.Paused++
	case due < q.From:
		row.Before++
	case step >= int64(q.Steps):
		row.After++
	default:
		row.Counts[step]++
	}
}
