package segment

import (
	"testing"

	"github.com/hashicorp/raft"
)

// The cache holds as many of the newest entries as fit, whatever their lengths, and finds each by its place alone.
func TestCache(t *testing.T) {
	t.Parallel()
	const limit = 10_000
	c := newCache(limit)
	var all []ref
	for i := range uint32(5000) {
		at := ref{1 + i/700, i % 700 * 2000, 8 * (1 + i*i%200)}
		if i%97 == 0 {
			at.length = limit + 8 // never kept
		}
		all = append(all, at)
		c.put(at, &raft.Log{Index: uint64(i)})
		left := limit
		for k := len(all) - 1; k >= 0 && k > len(all)-150; k-- {
			var e raft.Log
			found := c.get(all[k], &e)
			if all[k].length > limit {
				if found {
					t.Fatalf("%d: one that is too long is kept", i)
				}
				continue
			}
			left -= int(all[k].length)
			if found != (left >= 0) || found && e.Index != uint64(k) {
				t.Fatalf("%d: entry %d: %v, %d; %d bytes left", i, k, found, e.Index, left)
			}
			if c.get(ref{all[k].segment, all[k].offset + 8, all[k].length}, &e) {
				t.Fatalf("%d: found where nothing lies", i)
			}
		}
	}
	if len(c.kept) > 2*limit/8 || cap(c.kept) > 4*limit/8 {
		t.Errorf("%d entries are held, room for %d", len(c.kept), cap(c.kept))
	}
}
