package node

import (
	"cmp"
	"fmt"
	"math/rand/v2"
	"reflect"
	"slices"
	"testing"

	"github.com/carillon-timers/carillon/raftfsm"
)

// The model: each name has one count in all; every shard names its first rows and puts the others into one without
// names. The sum names the first names, with their exact counts, and nothing is lost.
func TestForecastsAddUp(t *testing.T) {
	t.Parallel()
	for seed := range uint64(200) {
		rnd := rand.New(rand.NewPCG(seed, 11))
		limit := 1 + rnd.IntN(8)
		total, want := int64(0), map[string]int64{}
		shards := make([][]raftfsm.ForecastRow, 1+rnd.IntN(4))
		for s := range shards {
			var rows []raftfsm.ForecastRow
			for q := range rnd.IntN(12) {
				n := int64(1 + rnd.IntN(9))
				name := fmt.Sprintf("q%02d", 2*q+rnd.IntN(2))
				rows = append(rows, raftfsm.ForecastRow{Namespace: "a", Queue: name, Before: n, Counts: []int64{n, 2 * n}, After: n, Paused: n})
				want[name] += n
				total += n
			}
			slices.SortFunc(rows, func(a, b raftfsm.ForecastRow) int { return cmp.Compare(a.Queue, b.Queue) })
			for len(rows) > limit { // as a shard does
				last := &rows[limit-1]
				last.Namespace, last.Queue = "", ""
				addRow(last, &rows[limit])
				rows = slices.Delete(rows, limit, limit+1)
			}
			shards[s] = rows
		}
		got, seen := sumForecast(shards, limit), int64(0)
		for i, row := range got {
			seen += row.Before
			if row.Queue != "" && row.Before != want[row.Queue] {
				t.Fatalf("seed %d: %s has %d, want %d", seed, row.Queue, row.Before, want[row.Queue])
			}
			if row.Queue == "" && i != len(got)-1 {
				t.Fatalf("seed %d: the rest is not the last row", seed)
			}
			if whole := []int64{row.Before, 2 * row.Before}; !reflect.DeepEqual(row.Counts, whole) || row.After != row.Before || row.Paused != row.Before {
				t.Fatalf("seed %d: %+v", seed, row)
			}
		}
		if seen != total || len(got) > limit {
			t.Fatalf("seed %d: %d of %d counted in %d rows, at most %d", seed, seen, total, len(got), limit)
		}
	}
}
