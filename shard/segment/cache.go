package segment

import (
	"sync"

	"github.com/hashicorp/raft"
)

// cache keeps the newest entries, which a leader sends to its followers, by where they lie: a place is written once, so
// what is found is never old.
type cache struct {
	limit int

	mu    sync.Mutex
	bytes int               // guarded by mu
	found map[ref]*raft.Log // guarded by mu
	order []ref             // guarded by mu; from head on, oldest first
	head  int               // guarded by mu
}

func newCache(limit int) *cache { return &cache{limit: limit, found: map[ref]*raft.Log{}} }

// put keeps a copy of the entry; its data is shared, and nobody changes it.
func (c *cache) put(at ref, e *raft.Log) {
	if int(at.length) > c.limit {
		return
	}
	kept := *e
	c.mu.Lock()
	defer c.mu.Unlock()
	c.found[at] = &kept
	c.order = append(c.order, at)
	c.bytes += int(at.length)
	for c.bytes > c.limit {
		oldest := c.order[c.head]
		delete(c.found, oldest)
		c.bytes -= int(oldest.length)
		c.head++
	}
	if c.head > len(c.order)/2 {
		c.order = append(c.order[:0], c.order[c.head:]...)
		c.head = 0
	}
}

func (c *cache) get(at ref, e *raft.Log) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	kept, ok := c.found[at]
	if ok {
		*e = *kept
	}
	return ok
}
