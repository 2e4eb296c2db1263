package node

import (
	"cmp"
	"context"
	"slices"
	"sync"

	logv1 "github.com/carillon-timers/carillon/proto/carillonlog/v1"
	"github.com/carillon-timers/carillon/raftfsm"
)

// listParallel is how many shards one List asks at a time: it bounds the memory of a list at so many pages.
const listParallel = 8

// List merges the pages of all shards in the order of the IDs.
func (r *router) List(ctx context.Context, q raftfsm.ListQuery) (raftfsm.ListPage, error) {
	shards := r.shards()
	if shards == 0 {
		return raftfsm.ListPage{}, errNotFormed
	}
	if q.Limit <= 0 || q.Limit > raftfsm.MaxPageItems {
		q.Limit = raftfsm.MaxPageItems
	}
	body, err := (&logv1.PageRead{Namespace: q.Namespace, Prefix: q.Prefix, After: q.After, Limit: uint32(q.Limit)}).MarshalVT()
	if err != nil {
		return raftfsm.ListPage{}, err
	}
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	merged := &pageMerge{limit: q.Limit, bytes: raftfsm.MaxPageBytes}
	next := make(chan int, shards)
	for s := range shards {
		next <- s
	}
	close(next)
	var all sync.WaitGroup
	for range min(listParallel, shards) {
		all.Go(func() {
			for s := range next {
				page, err := r.listShard(ctx, s, q, body)
				if err != nil {
					cancel(err) // one shard that cannot be read makes the page wrong
					return
				}
				merged.add(page)
			}
		})
	}
	all.Wait()
	if cause := context.Cause(ctx); cause != nil {
		return raftfsm.ListPage{}, cause
	}
	return merged.page(), nil
}

func (r *router) listShard(ctx context.Context, s int, q raftfsm.ListQuery, body []byte) (raftfsm.ListPage, error) {
	var page raftfsm.ListPage
	err := r.read(ctx, s, func(local localShard) (err error) {
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
	if n := len(page.Timers); page.More && n > 0 {
		m.cut(page.Timers[n-1].Record.ID)
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
	return raftfsm.ListPage{Timers: m.items, More: m.more}
}

// recordBytes is what a timer takes of a page, with some room for the framing.
func recordBytes(r *raftfsm.Record) int {
	n := 96 + len(r.Namespace) + len(r.ID) + len(r.Queue) + len(r.Payload) + len(r.ContentType) + len(r.LastError)
	for _, pairs := range [][]raftfsm.Pair{r.Headers, r.Labels} {
		for _, p := range pairs {
			n += 8 + len(p.Key) + len(p.Value)
		}
	}
	return n
}
