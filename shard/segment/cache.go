package segment

import (
	"sort"
	"sync"

	"github.com/hashicorp/raft"
)

// cache keeps the newest entries, which a leader sends to its followers, by where they lie: a place is written once, so
// what is found is never old.
type cache struct {
	limit int

	mu    sync.Mutex
	bytes int      // guarded by mu
	kept  []cached // guarded by mu; from head on, in the order of their places, which is that of their writing
	head  int      // guarded by mu
}

type cached struct {
	at    ref
	entry raft.Log
}

func newCache(limit int) *cache { return &cache{limit: limit} }

// put keeps a copy of the entry, which lies behind all that were put before; its data is shared, and nobody changes it.
func (c *cache) put(at ref, e *raft.Log) {
	if int(at.length) > c.limit {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.bytes += int(at.length)
	for ; c.bytes > c.limit; c.head++ {
		c.bytes -= int(c.kept[c.head].at.length)
		c.kept[c.head].entry = raft.Log{}
	}
	if c.head > len(c.kept)/2 {
		c.kept = append(c.kept[:0], c.kept[c.head:]...)
		clear(c.kept[len(c.kept):cap(c.kept)])
		c.head = 0
	}
	c.kept = append(c.kept, cached{at, *e})
}

func (c *cache) get(at ref, e *raft.Log) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	kept := c.kept[c.head:]
	i := sort.Search(len(kept), func(i int) bool { return !kept[i].at.before(at) })
	if i == len(kept) || kept[i].at != at {
		return false
	}
	*e = kept[i].entry
	return true
}
