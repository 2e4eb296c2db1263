package node

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"

	"github.com/carillon-timers/carillon/raftfsm"
)

// listParallel is how many shards one call that asks all of them asks at a time: it bounds the memory of a list at so
// many pages.
const listParallel = 8

// lookBudget is how many timers one list with a filter looks at, all shards together: it bounds the time of a call.
const lookBudget = 100_000

// List merges the pages of all shards in the order of the IDs.
func (r *router) List(ctx context.Context, q raftfsm.ListQuery) (raftfsm.ListPage, error) {
	if q.Limit <= 0 || q.Limit > raftfsm.MaxPageItems {
		q.Limit = raftfsm.MaxPageItems
	}
	if shards := r.shards(); q.Filter != nil && shards > 0 {
		q.Look = min(raftfsm.MaxLook, lookBudget/shards)
	}
	merged := &pageMerge{limit: q.Limit, bytes: raftfsm.MaxPageBytes}
	err := r.each(ctx, func(ctx context.Context, s int) error {
		page, err := r.ListShard(ctx, s, q)
		if err == nil {
			merged.add(page)
		}
		return err
	})
	if err != nil {
		return raftfsm.ListPage{}, err
	}
	return merged.page(), nil
}

// Count adds up what all shards count. A shard looks at a bounded number of timers at a time, so it is asked again until
// it has seen all.
func (r *router) Count(ctx context.Context, q raftfsm.ListQuery) (int64, error) {
	var count atomic.Int64
	err := r.each(ctx, func(ctx context.Context, s int) error {
		q := q
		for more := true; more; {
			page, err := r.ListShard(ctx, s, q)
			if err != nil {
				return err
			}
			if page.More && page.Last <= q.After {
				return fmt.Errorf("count shard %d: it does not come past %q", s, q.After)
			}
			count.Add(page.Count)
			more, q.After = page.More, page.Last
		}
		return nil
	})
	return count.Load(), err
}

// each calls do for each shard, a few at a time. The first error ends it: one shard that cannot be read makes the
// answer wrong.
func (r *router) each(ctx context.Context, do func(ctx context.Context, s int) error) error {
	shards := r.shards()
	if shards == 0 {
		return errNotFormed
	}
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	next := make(chan int, shards)
	for s := range shards {
		next <- s
	}
	close(next)
	var all sync.WaitGroup
	for range min(listParallel, shards) {
		all.Go(func() {
			for s := range next {
				if err := do(ctx, s); err != nil {
					cancel(err)
					return
				}
			}
		})
	}
	all.Wait()
	return context.Cause(ctx)
}

// ListShard reads a page of one shard at its leader.
func (r *router) ListShard(ctx context.Context, s int, q raftfsm.ListQuery) (raftfsm.ListPage, error) {
	var page raftfsm.ListPage
	if r.shards() == 0 {
		return page, errNotFormed
	}
	body, err := queryToProto(q).MarshalVT()
	if err != nil {
		return page, err
	}
	err = r.read(ctx, s, func(local localShard) (err error) {
		page, err = local.List(ctx, q)
		return err
	}, methodList, body, func(answer []byte) (err error) {
		page, err = pageFromBytes(answer)
		return err
	})
	return page, err
}

// pageMerge joins the pages of the shards into one page in the order of the IDs. What lies behind the last ID of a page
// that has more behind it is not known to be complete, so it is left for the next page.
type pageMerge struct {
	limit, bytes int

	mu    sync.Mutex
	items []raftfsm.Status // guarded by mu; sorted by ID, within both limits
	more  bool             // guarded by mu: something is left out
	end   string           // guarded by mu: the last ID up to which all is known; "" means all
}

func (m *pageMerge) add(page raftfsm.ListPage) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.items = append(m.items, page.Timers...)
	slices.SortFunc(m.items, func(a, b raftfsm.Status) int { return cmp.Compare(a.Record.ID, b.Record.ID) })
	if page.More {
		m.cut(page.Last)
	}
	size := 0
	for i, s := range m.items {
		if size += recordBytes(s.Record); i == m.limit || i > 0 && size > m.bytes {
			m.cut(m.items[i-1].Record.ID)
			break
		}
	}
	if m.end == "" {
		return
	}
	keep := len(m.items)
	for keep > 0 && m.items[keep-1].Record.ID > m.end {
		keep--
	}
	clear(m.items[keep:])
	m.items = m.items[:keep]
}

// cut says that nothing behind the ID belongs to this page.
func (m *pageMerge) cut(id string) {
	m.more = true
	if m.end == "" || id < m.end {
		m.end = id
	}
}

func (m *pageMerge) page() raftfsm.ListPage {
	m.mu.Lock()
	defer m.mu.Unlock()
	return raftfsm.ListPage{Timers: m.items, More: m.more, Last: m.end}
}

// recordBytes is what a timer takes of a page, with some room for the framing.
func recordBytes(r *raftfsm.Record) int {
	n := 96 + len(r.Namespace) + len(r.ID) + len(r.Queue) + len(r.Payload) + len(r.ContentType) + len(r.LastError)
	for _, pairs := range [][]raftfsm.Pair{r.Headers, r.Labels} {
		for _, p := range pairs {
			n += 8 + len(p.Key) + len(p.Value)
		}
	}
	if r.Extra != nil {
		n += r.Extra.SizeVT()
	}
	return n
}
