package ring

import (
	"cmp"
	"slices"
)

// Replan moves the recorded map to the nodes there are now, with the least moves: replicas on living nodes stay, holes go
// to the node with the fewest, and then replicas move only while two nodes differ by more than one. Preferred leaders
// stay as well, as far as their counts can differ by at most one. Without nodes the recorded map stays as it is.
//
// The result names where the shards should be; reaching it one change at a time is the caller's work.
func Replan(current [][]string, nodes []string, replicas int) [][]string {
	nodes = distinct(nodes)
	if len(nodes) == 0 || replicas < 1 {
		next := make([][]string, len(current))
		for shard := range current {
			next[shard] = slices.Clone(current[shard])
		}
		return next
	}
	p := newPlan(current, nodes)
	want := min(replicas, len(nodes))
	p.shrink(want)
	p.fill(want)
	p.even()
	p.lead()
	return p.shards
}

// plan is the map in the making.
type plan struct {
	nodes []string
	// record is the map as it was.
	record, shards [][]string
	// count is the number of replicas of each node, leads that of the shards that it should lead.
	count, leads map[string]int
}

// newPlan keeps what is alive of the recorded map, in its order.
func newPlan(current [][]string, nodes []string) *plan {
	p := &plan{nodes: nodes, record: current, shards: make([][]string, len(current)), count: map[string]int{}, leads: map[string]int{}}
	for shard, replicas := range current {
		p.shards[shard] = make([]string, 0, len(replicas)+1)
		for _, node := range replicas {
			if _, alive := slices.BinarySearch(nodes, node); alive && !slices.Contains(p.shards[shard], node) {
				p.shards[shard] = append(p.shards[shard], node)
				p.count[node]++
			}
		}
	}
	return p
}

// shrink drops the replicas above want from the nodes that have most; the preferred leader stays.
func (p *plan) shrink(want int) {
	for shard, replicas := range p.shards {
		for len(replicas) > want {
			drop := slices.MaxFunc(replicas[1:], func(a, b string) int { return p.compare(shard, a, b) })
			p.count[drop]--
			replicas = slices.DeleteFunc(replicas, func(n string) bool { return n == drop })
		}
		p.shards[shard] = replicas
	}
}

// fill gives each shard the replicas that it lacks, those that lack most first: they have the least choice.
func (p *plan) fill(want int) {
	order := make([]int, len(p.shards))
	for shard := range order {
		order[shard] = shard
	}
	slices.SortStableFunc(order, func(a, b int) int { return cmp.Compare(len(p.shards[a]), len(p.shards[b])) })
	for _, shard := range order {
		for len(p.shards[shard]) < want {
			free := make([]string, 0, len(p.nodes))
			for _, node := range p.nodes {
				if !slices.Contains(p.shards[shard], node) {
					free = append(free, node)
				}
			}
			least := slices.MinFunc(free, func(a, b string) int { return p.compare(shard, a, b) })
			p.shards[shard] = append(p.shards[shard], least)
			p.count[least]++
		}
	}
}

func (p *plan) compare(shard int, a, b string) int {
	return cmp.Or(cmp.Compare(p.count[a], p.count[b]), rank(shard, a, b))
}

// even moves replicas until the nodes' counts differ by at most one, each time along the cheapest chain of moves from a
// node that has too many to one with at least two fewer. (A move always exists: the one is in more shards than the other.)
func (p *plan) even() {
	for {
		moves := p.cheapest()
		if moves == nil {
			return
		}
		for _, m := range moves {
			p.shards[m.shard][slices.Index(p.shards[m.shard], m.from)] = m.to
			p.count[m.from]--
			p.count[m.to]++
		}
	}
}

// move takes the replica of a shard from a node to another. Its cost is what it adds to the data that must be copied: 1
// for a replica that stands in the record, 0 for one that this plan has added, -1 if the record is restored.
type move struct {
	shard, cost int
	// leads: the replica is the preferred leader.
	leads    bool
	from, to string
}

// moves finds the cheapest move between each pair of nodes, by their places in nodes; a replica that is not the preferred
// leader goes first. A move that does not exist has shard -1.
func (p *plan) moves() [][]move {
	best := make([][]move, len(p.nodes))
	for i := range best {
		best[i] = slices.Repeat([]move{{shard: -1}}, len(p.nodes))
	}
	has, had := make([]bool, len(p.nodes)), make([]bool, len(p.nodes))
	for shard, replicas := range p.shards {
		for i, node := range p.nodes {
			has[i], had[i] = slices.Contains(replicas, node), slices.Contains(p.record[shard], node)
		}
		for from, node := range p.nodes {
			for to := range p.nodes {
				if !has[from] || has[to] {
					continue
				}
				m := move{shard: shard, leads: replicas[0] == node, from: node, to: p.nodes[to]}
				if had[from] {
					m.cost++
				}
				if had[to] {
					m.cost--
				}
				if old := &best[from][to]; old.shard < 0 || m.cost < old.cost || m.cost == old.cost && old.leads && !m.leads {
					*old = m
				}
			}
		}
	}
	return best
}

// cheapest finds the chain of moves with the least cost, by relaxing from each node that has the most. It returns nil
// when the counts are even.
func (p *plan) cheapest() (chain []move) {
	high, low := 0, len(p.shards)
	for _, node := range p.nodes {
		high, low = max(high, p.count[node]), min(low, p.count[node])
	}
	if high-low <= 1 {
		return nil
	}
	moves, cost, through := p.moves(), map[string]int{}, map[string]move{}
	for _, node := range p.nodes {
		cost[node] = len(p.shards) * len(p.nodes)
		if p.count[node] == high {
			cost[node] = 0
		}
	}
	// A chain has at most one move per node; the limit keeps a mistake here from looping.
	for changed, round := true, 0; changed && round < len(p.nodes); round++ {
		changed = false
		for _, row := range moves {
			for _, m := range row {
				if m.shard >= 0 && cost[m.from]+m.cost < cost[m.to] {
					cost[m.to], through[m.to], changed = cost[m.from]+m.cost, m, true
				}
			}
		}
	}
	fewest := slices.MinFunc(p.nodes, func(a, b string) int {
		return cmp.Or(cmp.Compare(min(p.count[a], high-1), min(p.count[b], high-1)), cmp.Compare(cost[a], cost[b]))
	})
	for at := fewest; p.count[at] < high && len(chain) < len(p.nodes); at = through[at].from {
		chain = append(chain, through[at])
	}
	return chain
}

// lead makes the numbers of preferred leaders differ by at most one, by swapping inside the lists along the shortest
// chain from a node that leads too many. With even replicas such a chain always exists.
func (p *plan) lead() {
	for _, replicas := range p.shards {
		p.leads[replicas[0]]++
	}
	for {
		moved := false
		byLeads := slices.Clone(p.nodes)
		slices.SortStableFunc(byLeads, func(a, b string) int { return cmp.Compare(p.leads[b], p.leads[a]) })
		for _, node := range byLeads {
			if moved = p.passOn(node); moved {
				break
			}
		}
		if !moved {
			return
		}
	}
}

// passOn takes one preferred leadership from the node, down a chain that ends at a node with at least two fewer.
func (p *plan) passOn(from string) bool {
	type step struct {
		shard, before int
		node          string
	}
	steps := []step{{-1, -1, from}}
	seen := map[string]bool{from: true}
	for i := 0; i < len(steps); i++ {
		if p.leads[steps[i].node] <= p.leads[from]-2 {
			p.leads[from]--
			p.leads[steps[i].node]++
			for at := i; steps[at].before >= 0; at = steps[at].before {
				replicas := p.shards[steps[at].shard]
				other := slices.Index(replicas, steps[at].node)
				replicas[0], replicas[other] = replicas[other], replicas[0]
			}
			return true
		}
		for shard, replicas := range p.shards {
			if replicas[0] != steps[i].node {
				continue
			}
			for _, node := range replicas[1:] {
				if !seen[node] {
					seen[node] = true
					steps = append(steps, step{shard, i, node})
				}
			}
		}
	}
	return false
}
