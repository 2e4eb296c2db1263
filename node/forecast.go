package node

import (
	"context"
	"slices"
	"strings"

	logv1 "github.com/carillon-timers/carillon/proto/carillonlog/v1"
	"github.com/carillon-timers/carillon/raftfsm"
)

// Forecast adds up the forecasts of all shards.
func (r *router) Forecast(ctx context.Context, q raftfsm.ForecastQuery) ([]raftfsm.ForecastRow, error) {
	body, err := (&logv1.ForecastRead{
		Namespace: q.Namespace, Queue: q.Queue, FromMs: q.From, StepMs: q.Step, Steps: uint32(q.Steps), Rows: uint32(q.Rows),
	}).MarshalVT()
	if err != nil {
		return nil, err
	}
	shards := make([][]raftfsm.ForecastRow, r.shards())
	err = r.each(ctx, func(ctx context.Context, s int) error {
		return r.read(ctx, s, func(local localShard) (err error) {
			shards[s], err = local.Forecast(ctx, q)
			return err
		}, methodForecast, body, func(answer []byte) (err error) {
			shards[s], err = forecastFromBytes(answer)
			return err
		})
	})
	if err != nil {
		return nil, err
	}
	return sumForecast(shards, q.Rows), nil
}

// sumForecast adds up the rows of all shards, each sorted by namespace and queue with, maybe, a last one without names
// for all that come behind its named ones. So is the sum, of at most limit rows: it names only what each shard has named.
func sumForecast(shards [][]raftfsm.ForecastRow, limit int) []raftfsm.ForecastRow {
	sums := make(map[rowName]*raftfsm.ForecastRow)
	var names []rowName
	var rest *raftfsm.ForecastRow
	for _, rows := range shards {
		for i := range rows {
			row := &rows[i]
			name := rowName{row.Namespace, row.Queue}
			switch {
			case name == rowName{}:
				rest = addRow(rest, row)
			case sums[name] == nil:
				sums[name], names = row, append(names, name)
			default:
				addRow(sums[name], row)
			}
		}
	}
	slices.SortFunc(names, rowName.compare)
	named := len(names)
	for _, rows := range shards {
		named = min(named, namedBy(rows, names))
	}
	if rest != nil || named > limit {
		named = min(named, limit-1)
	}
	out := make([]raftfsm.ForecastRow, 0, named+1)
	for i, name := range names {
		if i < named {
			out = append(out, *sums[name])
		} else {
			rest = addRow(rest, sums[name])
		}
	}
	if rest != nil {
		out = append(out, *rest)
	}
	return out
}

// namedBy is how many of the names, from the first on, a shard has counted by their names.
func namedBy(rows []raftfsm.ForecastRow, names []rowName) int {
	n := len(rows)
	if n == 0 || (rowName{rows[n-1].Namespace, rows[n-1].Queue}) != (rowName{}) {
		return len(names)
	}
	if n == 1 {
		return 0
	}
	place, _ := slices.BinarySearchFunc(names, rowName{rows[n-2].Namespace, rows[n-2].Queue}, rowName.compare)
	return place + 1
}

// rowName names a row; a row without names has none of its own.
type rowName struct{ namespace, queue string }

func (a rowName) compare(b rowName) int {
	if c := strings.Compare(a.namespace, b.namespace); c != 0 {
		return c
	}
	return strings.Compare(a.queue, b.queue)
}

// addRow adds a row to another, or takes it as it is.
func addRow(to, row *raftfsm.ForecastRow) *raftfsm.ForecastRow {
	if to == nil {
		return &raftfsm.ForecastRow{Before: row.Before, After: row.After, Paused: row.Paused, Counts: row.Counts}
	}
	to.Before += row.Before
	to.After += row.After
	to.Paused += row.Paused
	if len(to.Counts) < len(row.Counts) {
		to.Counts = append(to.Counts, make([]int64, len(row.Counts)-len(to.Counts))...)
	}
	for i, n := range row.Counts {
		to.Counts[i] += n
	}
	return to
}
