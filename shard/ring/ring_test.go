package ring

import (
	"errors"
	"flag"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/buraksezer/consistent"
	carillonv1 "github.com/carillon-timers/carillon/proto/carillon/v1"
)

var update = flag.Bool("update", false, "write the golden files")

func names(format string, n int) []string {
	nodes := make([]string, n)
	for i := range nodes {
		nodes[i] = fmt.Sprintf(format, i+1)
	}
	return nodes
}

// check holds the invariants of the package doc.
func check(t *testing.T, placed [][]string, nodes []string, replicas int) {
	t.Helper()
	count, leads := map[string]int{}, map[string]int{}
	for shard, list := range placed {
		if want := min(replicas, len(nodes)); len(list) != want {
			t.Fatalf("shard %d has %d replicas, want %d: %v", shard, len(list), want, list)
		}
		if got := distinct(list); len(got) != len(list) {
			t.Fatalf("shard %d has a node twice: %v", shard, list)
		}
		for _, node := range list {
			if !slices.Contains(nodes, node) {
				t.Fatalf("shard %d is on an unknown node: %v", shard, list)
			}
			count[node]++
		}
		leads[list[0]]++
	}
	for name, counts := range map[string]map[string]int{"replicas": count, "preferred leaders": leads} {
		low, high := len(placed)+1, 0
		for _, node := range nodes {
			low, high = min(low, counts[node]), max(high, counts[node])
		}
		if high-low > 1 {
			t.Fatalf("%d shards, %d replicas, %d nodes: %s are uneven: %v", len(placed), replicas, len(nodes), name, counts)
		}
	}
}

func TestPlaceIsEven(t *testing.T) {
	t.Parallel()
	for _, format := range []string{"n%d", "node-%d", "%036d"} {
		for _, nodes := range []int{1, 2, 3, 4, 5, 7, 12, 20} {
			for _, shards := range []int{1, 2, 16, 64, 255} {
				for _, replicas := range []int{1, 3, 5} {
					list := names(format, nodes)
					placed, err := Place(list, shards, replicas)
					if err != nil {
						t.Fatal(err)
					}
					check(t, placed, list, replicas)
				}
			}
		}
	}
}

// The library gives {n1, n11, n2} other owners in another order, since their points collide.
func TestPlaceForgetsTheOrder(t *testing.T) {
	t.Parallel()
	nodes := append(names("n%d", 12), names("node%d", 12)...)
	want, err := Place(nodes, 256, 3)
	if err != nil {
		t.Fatal(err)
	}
	for seed := range uint64(5) {
		rnd := rand.New(rand.NewPCG(seed, 1))
		other := append(slices.Clone(nodes), nodes[rnd.IntN(len(nodes))])
		rnd.Shuffle(len(other), func(i, j int) { other[i], other[j] = other[j], other[i] })
		got, err := Place(other, 256, 3)
		if err != nil || fmt.Sprint(got) != fmt.Sprint(want) {
			t.Fatalf("seed %d: %v\ngot  %v\nwant %v", seed, err, got, want)
		}
	}
}

func TestPlaceRefuses(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		nodes            []string
		shards, replicas int
		want             error
	}{
		{nil, 16, 3, ErrNoNodes},
		{[]string{"n1", ""}, 16, 3, ErrName},
		{[]string{"n1"}, 0, 3, ErrShards},
		{[]string{"n1"}, 257, 3, ErrShards},
		{[]string{"n1"}, 16, 0, ErrReplicas},
	} {
		if _, err := Place(c.nodes, c.shards, c.replicas); !errors.Is(err, c.want) {
			t.Errorf("Place(%v, %d, %d): got %v, want %v", c.nodes, c.shards, c.replicas, err, c.want)
		}
	}
}

// The public contract hashes a timer to a shard; the library that the ring uses must agree, with the key in its raw form.
func TestShardOfIsThePartition(t *testing.T) {
	t.Parallel()
	for _, shards := range []int{1, 2, 16, 97, 256} {
		ring := consistent.New([]consistent.Member{newMember("n1")}, ringConfig(shards))
		for i := range 2000 {
			id := fmt.Sprintf("timer-%d", i)
			if i%3 == 0 {
				id = "{order-" + fmt.Sprint(i) + "}/reminder"
			}
			key := append([]byte("default\x00"), carillonv1.HashTag(id)...)
			if got, want := ring.FindPartitionID(key), carillonv1.ShardOf("", id, shards); got != want {
				t.Fatalf("%s of %d shards: the ring says %d, the contract %d", id, shards, got, want)
			}
		}
	}
}

// Golden vectors: a placement or a hash that changes with a version or an architecture would move every timer.
func TestGolden(t *testing.T) {
	t.Parallel()
	var b strings.Builder
	for _, c := range []struct{ nodes, shards, replicas int }{{1, 16, 3}, {2, 16, 3}, {3, 16, 3}, {5, 16, 3}, {7, 64, 3}, {20, 16, 5}} {
		placed, err := Place(names("n%d", c.nodes), c.shards, c.replicas)
		if err != nil {
			t.Fatal(err)
		}
		fmt.Fprintf(&b, "%d nodes, %d shards, %d replicas\n", c.nodes, c.shards, c.replicas)
		for shard, list := range placed {
			fmt.Fprintf(&b, "%4d %s\n", shard, strings.Join(list, " "))
		}
	}
	for _, id := range []string{"a", "order-42/expire", "{order-42}/reminder", "{order-42}/expire", "{}x", "ü"} {
		fmt.Fprintf(&b, "%q of 16: %d, of 256: %d\n", id, carillonv1.ShardOf("", id, 16), carillonv1.ShardOf("ops", id, 256))
	}
	path := filepath.Join("testdata", "place.golden")
	if *update {
		if err := os.WriteFile(path, []byte(b.String()), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if got := b.String(); got != string(want) {
		t.Fatalf("got\n%s\nwant\n%s", got, want)
	}
}

// newcomers counts the replicas of next that are not in current: data that must be copied.
func newcomers(current, next [][]string) int {
	n := 0
	for shard := range next {
		for _, node := range next[shard] {
			if !slices.Contains(current[shard], node) {
				n++
			}
		}
	}
	return n
}

// fewest tries all maps that hold the invariant of even replicas and returns the least number of newcomers.
func fewest(current [][]string, nodes []string, replicas int) int {
	var sets [][]string
	for bits := range 1 << len(nodes) {
		var set []string
		for i, node := range nodes {
			if bits>>i&1 == 1 {
				set = append(set, node)
			}
		}
		if len(set) == min(replicas, len(nodes)) {
			sets = append(sets, set)
		}
	}
	best, next, count := 1<<30, make([][]string, len(current)), map[string]int{}
	var try func(shard int)
	try = func(shard int) {
		if shard == len(current) {
			low, high := 1<<30, 0
			for _, node := range nodes {
				low, high = min(low, count[node]), max(high, count[node])
			}
			if high-low <= 1 {
				best = min(best, newcomers(current, next))
			}
			return
		}
		for _, set := range sets {
			for _, node := range set {
				count[node]++
			}
			next[shard] = set
			try(shard + 1)
			for _, node := range set {
				count[node]--
			}
		}
	}
	try(0)
	return best
}

// In small clusters the plan is compared with the best of all maps.
func TestReplanMovesLeast(t *testing.T) {
	t.Parallel()
	all := names("node-%d", 6)
	for seed := range uint64(120) {
		rnd := rand.New(rand.NewPCG(seed, 2))
		current := make([][]string, 1+rnd.IntN(5))
		for shard := range current {
			rnd.Shuffle(len(all), func(i, j int) { all[i], all[j] = all[j], all[i] })
			current[shard] = slices.Clone(all[:rnd.IntN(4)])
		}
		nodes, replicas := slices.Clone(all[:1+rnd.IntN(4)]), 1+rnd.IntN(3)
		planned := Replan(current, nodes, replicas)
		check(t, planned, nodes, replicas)
		if got, want := newcomers(current, planned), fewest(current, nodes, replicas); got != want {
			t.Errorf("seed %d: %d replicas move, %d would do: %v on %v\n%v", seed, got, want, current, nodes, planned)
		}
	}
}

func TestReplanWalk(t *testing.T) {
	t.Parallel()
	all := names("node-%d", 14)
	for seed := range uint64(15) {
		rnd := rand.New(rand.NewPCG(seed, 3))
		shards, replicas := 1+rnd.IntN(64), 1+rnd.IntN(5)
		nodes := all[:1+rnd.IntN(8)]
		current, err := Place(nodes, shards, replicas)
		if err != nil {
			t.Fatal(err)
		}
		for range 6 {
			next := slices.DeleteFunc(slices.Clone(all), func(n string) bool {
				return slices.Contains(nodes, n) == (rnd.IntN(6) == 0)
			})
			if len(next) == 0 {
				continue
			}
			planned := Replan(current, next, replicas)
			check(t, planned, next, replicas)
			if again := Replan(planned, next, replicas); fmt.Sprint(again) != fmt.Sprint(planned) {
				t.Fatalf("seed %d: a plan that is reached is changed again:\n%v\n%v", seed, planned, again)
			}
			rnd.Shuffle(len(next), func(i, j int) { next[i], next[j] = next[j], next[i] })
			if again := Replan(current, next, replicas); fmt.Sprint(again) != fmt.Sprint(planned) {
				t.Fatalf("seed %d: the plan depends on the order of the nodes", seed)
			}
			current, nodes = planned, next
		}
	}
}

func TestReplanKeepsTheRecordWithoutNodes(t *testing.T) {
	t.Parallel()
	current := [][]string{{"n1", "n2"}, {"n2", "n1"}}
	if got := Replan(current, nil, 3); fmt.Sprint(got) != fmt.Sprint(current) {
		t.Fatalf("got %v, want %v", got, current)
	}
}

// One node more or less moves its share and nothing between the others; leaders stay where they can.
func TestReplanOneNode(t *testing.T) {
	t.Parallel()
	nodes := names("n%d", 4)
	current, err := Place(nodes, 64, 3)
	if err != nil {
		t.Fatal(err)
	}
	grown := Replan(current, append(slices.Clone(nodes), "n5"), 3)
	if got := newcomers(current, grown); got != 64*3/5 {
		t.Errorf("the fifth node brings %d moves, want %d", got, 64*3/5)
	}
	shrunk := Replan(current, nodes[:3], 3)
	if got, want := newcomers(current, shrunk), 48; got != want {
		t.Errorf("without the fourth node %d replicas move, want %d", got, want)
	}
	changed := 0
	for shard := range grown {
		if grown[shard][0] != current[shard][0] {
			changed++
		}
	}
	if changed > 16 {
		t.Errorf("%d of 64 preferred leaders change for a fifth node, want at most 16", changed)
	}
}

func FuzzPlace(f *testing.F) {
	f.Add("n1,n11,n2", 16, 3)
	f.Add("node1,node11", 1, 9)
	f.Fuzz(func(t *testing.T, list string, shards, replicas int) {
		nodes := strings.Split(list, ",")
		if len(nodes) > 64 {
			return
		}
		if placed, err := Place(nodes, shards, replicas); err == nil {
			check(t, placed, distinct(nodes), replicas)
		}
	})
}
