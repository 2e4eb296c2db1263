package segment

import "sort"

// ref is where a record lies: the number of its segment, its offset and its whole length.
type ref struct{ segment, offset, length uint32 }

// before says that r was written before another.
func (r ref) before(other ref) bool {
	return r.segment < other.segment || r.segment == other.segment && r.offset < other.offset
}

// run are entries with indexes in a row.
type run struct {
	first uint64
	refs  []ref
}

func (r *run) end() uint64 { return r.first + uint64(len(r.refs)) }

// index finds the entries of a group: runs in order, not touching one another. A log has one run, but for a moment: Raft
// may leave a gap after it has installed a snapshot, and the entries that were moved are read after younger ones.
type index struct{ runs []run }

// search is the position of the first run that ends beyond i.
func (x *index) search(i uint64) int {
	n := len(x.runs)
	if n > 0 && x.runs[n-1].first <= i { // the newest, most often
		if i < x.runs[n-1].end() {
			return n - 1
		}
		return n
	}
	return sort.Search(n, func(k int) bool { return i < x.runs[k].end() })
}

func (x *index) get(i uint64) (ref, bool) {
	k := x.search(i)
	if k == len(x.runs) || i < x.runs[k].first {
		return ref{}, false
	}
	return x.runs[k].refs[i-x.runs[k].first], true
}

// put sets an entry, and returns the one that it replaces.
func (x *index) put(i uint64, r ref) (old ref, replaced bool) {
	k := x.search(i)
	if k < len(x.runs) && i >= x.runs[k].first {
		at := &x.runs[k].refs[i-x.runs[k].first]
		old, *at = *at, r
		return old, true
	}
	if k > 0 && x.runs[k-1].end() == i {
		x.runs[k-1].refs = append(x.runs[k-1].refs, r)
		k--
	} else {
		x.runs = append(x.runs, run{})
		copy(x.runs[k+1:], x.runs[k:])
		x.runs[k] = run{i, []ref{r}}
	}
	if k+1 < len(x.runs) && x.runs[k].end() == x.runs[k+1].first {
		x.runs[k].refs = append(x.runs[k].refs, x.runs[k+1].refs...)
		x.runs = append(x.runs[:k+1], x.runs[k+2:]...)
	}
	return ref{}, false
}

// remove removes the entries from first to last, both included, and tells each.
func (x *index) remove(first, last uint64, gone func(ref)) {
	var kept []run
	for _, r := range x.runs {
		if last < r.first || first >= r.end() {
			kept = append(kept, r)
			continue
		}
		from := max(first, r.first) - r.first
		to := min(last, r.end()-1) - r.first + 1
		for _, ref := range r.refs[from:to] {
			gone(ref)
		}
		rest := r.refs[to:]
		if from > 0 {
			kept = append(kept, run{r.first, r.refs[:from:from]})
			rest = append([]ref(nil), rest...)
		}
		if len(rest) > 0 {
			kept = append(kept, run{r.first + to, rest})
		}
	}
	x.runs = kept
}

func (x *index) first() uint64 {
	if len(x.runs) == 0 {
		return 0
	}
	return x.runs[0].first
}

func (x *index) last() uint64 {
	if len(x.runs) == 0 {
		return 0
	}
	return x.runs[len(x.runs)-1].end() - 1
}
