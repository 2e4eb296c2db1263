package segment

import (
	"flag"
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"
	"time"
)

// crashes runs calls of some groups on a folder in memory, and opens what each crash could leave: before, between and
// after all writes and flushes.
type crashes struct {
	t *testing.T
	// calls draws the calls, rnd all else; that is used under the lock of fs.
	calls, rnd *rand.Rand
	o          Options
	fs         *memFS
	limit      int
	images     int
	deep       int

	mu sync.Mutex
	// answered is what each group must hold, asked what it may hold since a call is under way. Guarded by mu.
	answered, asked []model
}

// states are answered and asked, in words.
func (c *crashes) states() (answered, asked []string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for id := range c.answered {
		answered, asked = append(answered, c.answered[id].String()), append(asked, c.asked[id].String())
	}
	return answered, asked
}

// crash is called after each operation of the folder.
func (c *crashes) crash() {
	answered, asked := c.states()
	c.fs.images(c.limit, c.rnd, func(after *memFS) {
		c.images++
		c.check(after, answered, asked, c.images%29 == 0)
	})
}

// check opens an image, and, if deep, crashes while it is opened, and goes on with it.
func (c *crashes) check(after *memFS, answered, asked []string, deep bool) {
	o := c.o
	o.fs = after
	if deep {
		c.deep++
		after.crashed = func() {
			after.images(8, c.rnd, func(again *memFS) { c.check(again, answered, asked, false) })
		}
	}
	l, err := Open("", o)
	if err != nil {
		c.t.Errorf("image %d: %v", c.images, err)
		return
	}
	after.crashed = nil
	var found []model
	for id := range answered {
		m, err := read(l.Group(uint32(id)))
		if got := m.String(); err != nil || got != answered[id] && got != asked[id] {
			c.t.Errorf("image %d, group %d: %v\n holds   %v\n was told %v\n asked    %v", c.images, id, err, m, answered[id], asked[id])
			return
		}
		found = append(found, m)
	}
	if !deep {
		_ = l.Close()
		return
	}
	r := start(l)
	for id := range found {
		call := draw(c.rnd, found[id], 700)
		found[id].apply(call)
		if err := call.do(r.Group(uint32(id))); err != nil {
			c.t.Errorf("image %d, group %d goes on: %v", c.images, id, err)
		}
	}
	if err := r.stop(); err != nil {
		c.t.Error(err)
	}
	again, err := Open("", o)
	if err != nil {
		c.t.Errorf("image %d, opened again: %v", c.images, err)
		return
	}
	for id := range found {
		if m, err := read(again.Group(uint32(id))); err != nil || m.String() != found[id].String() {
			c.t.Errorf("image %d, group %d, opened again: %v, %v, not %v", c.images, id, m, err, found[id])
		}
	}
	_ = again.Close()
}

// step makes one call of each group, at the same time: they may share a batch or not.
func (c *crashes) step(l *Log) {
	var calls sync.WaitGroup
	c.mu.Lock()
	ops := make([]op, len(c.answered))
	for id := range ops {
		ops[id] = draw(c.calls, c.answered[id], 1200)
		c.asked[id] = c.answered[id].clone()
		c.asked[id].apply(ops[id])
	}
	c.mu.Unlock()
	for id := range ops {
		calls.Go(func() {
			if err := ops[id].do(l.Group(uint32(id))); err != nil {
				c.t.Errorf("group %d: %v", id, err)
			}
		})
	}
	calls.Wait()
	c.mu.Lock()
	copy(c.answered, c.asked)
	c.mu.Unlock()
}

var moreCrashes = flag.Int("crashes", 1, "how many times more crashes TestCrash makes")

// A crash at any write or flush leaves what was answered, and of what was not, all or nothing: whether sectors are written or
// the pages around them.
func TestCrash(t *testing.T) {
	t.Parallel()
	for seed := range uint64(3 * *moreCrashes) {
		t.Run(fmt.Sprint(seed), func(t *testing.T) { crashAll(t, seed, false) })
		t.Run(fmt.Sprint("pages", seed), func(t *testing.T) { crashAll(t, seed, true) })
	}
}

func crashAll(t *testing.T, seed uint64, pages bool) {
	t.Parallel()
	quiet := time.Hour
	if seed%2 == 0 {
		quiet = time.Nanosecond // a mark after each batch
	}
	fs := newMemFS()
	fs.pages = pages
	c := &crashes{
		t: t, calls: rand.New(rand.NewPCG(seed, 2)), rnd: rand.New(rand.NewPCG(seed, 3)), fs: fs, limit: 6 * *moreCrashes,
		o: Options{SegmentBytes: 6 << 10, CacheBytes: 1, MoveBytes: 1 << 10, Slack: 1, QuietAfter: quiet, Logger: quietly},
	}
	for range 2 {
		c.answered, c.asked = append(c.answered, newModel()), append(c.asked, newModel())
	}
	fs.crashed = c.crash
	o := c.o
	o.fs = fs
	l, err := Open("", o)
	if err != nil {
		t.Fatal(err)
	}
	r := start(l)
	for i := 0; i < 16 && !t.Failed(); i++ {
		c.step(r.Log)
	}
	if err := r.stop(); err != nil {
		t.Fatal(err)
	}
	t.Logf("%d images, %d of them deep; %+v", c.images, c.deep, l.Stats())
}
