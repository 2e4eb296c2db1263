package shard

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/carillon-timers/carillon/raftfsm"
	"github.com/carillon-timers/carillon/shard/segment"
	"github.com/hashicorp/raft"
)

var (
	errCrashed = errors.New("the machine has crashed")
	errFull    = errors.New("the disk is full")
)

// A log that is no beginner would be waited for without a word.
var _ beginner = (*segment.Group)(nil)

// lazyLog is a log, with terms and votes, that flushes one write after the other, each after a while, and can begin a write. A crash
// loses what is not flushed.
type lazyLog struct {
	*raft.InmemStore
	nap     atomic.Int64 // how long the next flush takes, nanoseconds
	refuse  atomic.Bool  // the next write fails, and nothing is written
	crashed atomic.Bool
	writes  chan lazyWrite
	over    chan struct{} // closed by the crash
}

type lazyWrite struct {
	valid func() error
	do    func() error
	done  func(error)
}

func newLazyLog(store *raft.InmemStore) *lazyLog {
	return &lazyLog{InmemStore: store, writes: make(chan lazyWrite, 1024), over: make(chan struct{})}
}

func (l *lazyLog) run() {
	for {
		select {
		case w := <-l.writes:
			err := w.valid()
			if err != nil {
				w.done(err)
				continue
			}
			err = errCrashed
			select {
			case <-time.After(time.Duration(l.nap.Load())):
			case <-l.over:
			}
			switch {
			case l.crashed.Load():
			case l.refuse.Swap(false):
				err = errFull
			default:
				err = w.do()
			}
			w.done(err)
		case <-l.over:
			return
		}
	}
}

func (l *lazyLog) crash() {
	l.crashed.Store(true)
	close(l.over)
}

func (l *lazyLog) begin(valid, do func() error, done func(error)) error {
	if l.crashed.Load() {
		return errCrashed
	}
	l.writes <- lazyWrite{valid, do, done}
	return nil
}

func (l *lazyLog) wait(do func() error) error {
	answer := make(chan error, 1)
	if err := l.begin(func() error { return nil }, do, func(err error) { answer <- err }); err != nil {
		return err
	}
	select {
	case err := <-answer:
		return err
	case <-l.over:
		return errCrashed
	}
}

func (l *lazyLog) Begin(entries []*raft.Log, valid func() error, done func(error)) (bool, error) {
	entries = slices.Clone(entries)
	err := l.begin(valid, func() error { return l.InmemStore.StoreLogs(entries) }, done)
	return err == nil, err
}

func (l *lazyLog) StoreLogs(entries []*raft.Log) error {
	return l.wait(func() error { return l.InmemStore.StoreLogs(entries) })
}

func (l *lazyLog) DeleteRange(first, last uint64) error {
	return l.wait(func() error { return l.InmemStore.DeleteRange(first, last) })
}

func (l *lazyLog) Set(key, value []byte) error {
	return l.wait(func() error { return l.InmemStore.Set(key, value) })
}

func (l *lazyLog) SetUint64(key []byte, value uint64) error {
	return l.wait(func() error { return l.InmemStore.SetUint64(key, value) })
}

// lazies are the lazy logs of a cluster's nodes.
type lazies struct {
	mu     sync.Mutex
	stores map[string]*raft.InmemStore
	logs   map[string]*lazyLog
	wg     sync.WaitGroup
}

// use gives a cluster lazy logs: a replica that is opened again has the one that it had, unless that has crashed.
func (z *lazies) use(c *cluster) {
	z.stores, z.logs = map[string]*raft.InmemStore{}, map[string]*lazyLog{}
	c.deps = func(d *Deps) {
		z.mu.Lock()
		defer z.mu.Unlock()
		id := string(d.Transport.LocalAddr())
		if z.stores[id] == nil {
			z.stores[id] = raft.NewInmemStore()
		}
		l := z.logs[id]
		if l == nil || l.crashed.Load() {
			l = newLazyLog(z.stores[id])
			z.logs[id] = l
			z.wg.Go(l.run)
		}
		d.Stores.Log, d.Stores.Stable = l, l
	}
}

func (z *lazies) of(n *node) *lazyLog {
	z.mu.Lock()
	defer z.mu.Unlock()
	return z.logs[n.id]
}

// end is called when the replicas have stopped.
func (z *lazies) end() {
	for _, l := range z.logs {
		l.crash()
	}
	z.wg.Wait()
}

// crash ends a replica that loses what it has not flushed, and starts it again after a while.
func (z *lazies) crash(n *node, down time.Duration) {
	z.of(n).crash()
	_ = n.stop()
	time.Sleep(down)
	n.restart()
}

// inLazyBubble is inBubble with lazy logs.
func inLazyBubble(t *testing.T, story func(*testing.T, *cluster, *lazies)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		var z lazies
		c := newCluster(t, 3, z.use)
		c.start()
		story(t, c, &z)
		c.end()
		z.end()
	})
}

// What a leader has not flushed is sent to the followers, but nobody acts on it: no answer, nothing is applied, no follower is told that
// it is committed.
func TestNothingCountsBeforeTheLeaderHasFlushed(t *testing.T) {
	t.Parallel()
	inLazyBubble(t, func(t *testing.T, c *cluster, z *lazies) {
		leader := c.leader()
		c.propose(after("before", time.Hour))
		time.Sleep(5 * time.Second)
		before := leader.shard.raft.Load().LastIndex()
		z.of(leader).nap.Store(int64(4 * time.Second))
		var answered atomic.Bool
		var client sync.WaitGroup
		begin := time.Now()
		client.Go(func() {
			c.propose(after("x", time.Hour))
			answered.Store(true)
		})
		time.Sleep(3 * time.Second)
		if answered.Load() {
			t.Error("answered before the leader had flushed")
		}
		for _, n := range c.nodes {
			r := n.shard.raft.Load()
			if r.LastIndex() != before+1 {
				t.Errorf("%s: the log ends at %d, not at %d", n.id, r.LastIndex(), before+1)
			}
			if n != leader && r.CommitIndex() > before || n.shard.applied.Load() > before {
				t.Errorf("%s: committed to %d, applied to %d", n.id, r.CommitIndex(), n.shard.applied.Load())
			}
		}
		if w := leader.shard.Status().Disk.Writing; w < 2*time.Second || w > 3*time.Second {
			t.Errorf("the write under way has taken %v", w)
		}
		client.Wait()
		if took := time.Since(begin); took > 5*time.Second {
			t.Errorf("answered after %v", took)
		}
		z.of(leader).nap.Store(0)
		c.inStep()
	})
}

// Raft panics if an entry that it counts as stored cannot be read: one that is not flushed, or never will be, comes from memory.
func TestUnflushedEntriesCanBeRead(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		store := &begunLog{InmemStore: raft.NewInmemStore(), answer: make(chan error)} // never answers
		d := newDisk(&Stores{Log: store, Stable: store}, 5*time.Second, time.Now, func(error) {})
		d.leads = func() bool { return true }
		d.running.Store(true)
		if err := d.StoreLogs([]*raft.Log{{Index: 5, Data: []byte("five")}, {Index: 6, Data: []byte("six")}}); err != nil {
			t.Fatal(err)
		}
		read := func(when string) {
			for index, want := range map[uint64]string{5: "five", 6: "six"} {
				var entry raft.Log
				if err := d.GetLog(index, &entry); err != nil || string(entry.Data) != want {
					t.Errorf("%s: entry %d is %q, %v", when, index, entry.Data, err)
				}
			}
			if err := d.GetLog(7, new(raft.Log)); !errors.Is(err, raft.ErrLogNotFound) {
				t.Errorf("%s: entry 7: %v", when, err)
			}
		}
		read("while it is flushed")
		time.Sleep(6 * time.Second)
		d.overdue()
		if err := d.flushed(6); !errors.Is(err, ErrWriteTimeout) {
			t.Errorf("the write has ended with %v", err)
		}
		read("after its deadline")
		close(d.quit)
		read("while the replica stops")
	})
}

// A leader whose flush does not end stops, and what it has sent is told as unknown.
func TestAFlushThatHangsStopsTheLeader(t *testing.T) {
	t.Parallel()
	inLazyBubble(t, func(t *testing.T, c *cluster, z *lazies) {
		leader := c.leader()
		c.propose(after("before", time.Hour))
		z.of(leader).nap.Store(int64(time.Hour))
		_, err := leader.shard.Propose(context.Background(), []*raftfsm.Command{after("x", time.Hour)})
		if !errors.Is(err, ErrUnknown) {
			t.Errorf("the answer is %v", err)
		}
		leader.wg.Wait()
		if !errors.Is(leader.err, ErrWriteTimeout) {
			t.Errorf("the replica has ended with %v", leader.err)
		}
		c.leader(leader)
		c.propose(after("x", time.Hour))
		z.crash(leader, time.Second)
		c.inStep()
	})
}

// A replica that is opened again in the same process may find a write of its last life still under way. Raft must not read how long the log
// is before that is over: the entries would lie there, unknown to it, behind others of a later term.
func TestAWriteOfTheLastLifeIsWaitedFor(t *testing.T) {
	t.Parallel()
	inLazyBubble(t, func(t *testing.T, c *cluster, z *lazies) {
		leader := c.leader()
		c.propose(after("before", time.Hour))
		log := z.of(leader)
		log.nap.Store(int64(3 * time.Second))
		var client sync.WaitGroup
		client.Go(func() { c.propose(after("x", time.Hour)) })
		time.Sleep(100 * time.Millisecond)
		before, _ := log.InmemStore.LastIndex()
		_ = leader.stop()
		leader.restart()
		c.cut(leader)
		log.nap.Store(0)
		time.Sleep(5 * time.Second)
		stored, _ := log.InmemStore.LastIndex()
		if known := leader.shard.raft.Load().LastIndex(); stored != before+1 || known != stored {
			t.Errorf("the log went to %d, now it goes to %d and Raft takes it to go to %d", before, stored, known)
		}
		client.Wait()
		c.heal()
		c.inStep()
	})
}

// A write may fail and leave the log sound (a full disk). What was begun behind it must then not be written: the log would have a gap,
// and its replica could never be opened again.
func TestAWriteThatFailsLeavesNoGap(t *testing.T) {
	t.Parallel()
	inLazyBubble(t, func(t *testing.T, c *cluster, z *lazies) {
		leader := c.leader()
		c.propose(after("before", time.Hour))
		log := z.of(leader)
		log.nap.Store(int64(time.Second))
		var clients sync.WaitGroup
		for _, id := range []string{"x", "y"} {
			clients.Go(func() { c.propose(after(id, time.Hour)) })
			time.Sleep(100 * time.Millisecond)
		}
		log.refuse.Store(true)
		leader.wg.Wait()
		if !errors.Is(leader.err, errFull) {
			t.Errorf("the replica has ended with %v", leader.err)
		}
		log.nap.Store(0)
		time.Sleep(5 * time.Second)
		leader.restart()
		clients.Wait()
		c.propose(after("z", time.Hour))
		c.inStep()
	})
}

// A write that waits for the writer, behind one that does not end in time, is not written when that ends after all.
func TestNothingIsWrittenBehindAHungWrite(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		store := raft.NewInmemStore()
		log := &faultyLog{LogStore: store}
		d := newDisk(&Stores{Log: log, Stable: store}, 5*time.Second, time.Now, func(error) {})
		d.running.Store(true)
		stop := make(chan struct{})
		go d.run(stop)
		defer close(stop)
		if err := d.StoreLogs([]*raft.Log{{Index: 1}, {Index: 2}}); err != nil {
			t.Fatal(err)
		}
		release := log.stall()
		time.AfterFunc(5500*time.Millisecond, release)
		var hung, behind error
		var writes sync.WaitGroup
		writes.Go(func() { hung = d.StoreLogs([]*raft.Log{{Index: 3}}) })
		time.Sleep(time.Second)
		writes.Go(func() { behind = d.DeleteRange(1, 1) })
		writes.Wait()
		synctest.Wait()
		if first, _ := store.FirstIndex(); first != 1 || !errors.Is(hung, ErrWriteTimeout) || !errors.Is(behind, ErrWriteTimeout) {
			t.Errorf("the log begins at %d: %v, %v", first, hung, behind)
		}
	})
}

// Operations on one timer are linearizable, and the replicas stay the same, while nodes with slow disks crash and lose what they have not
// flushed, and go on together with one that was cut off, without the third, which may alone have what was sent.
func TestLinearizableThroughLostFlushes(t *testing.T) {
	t.Parallel()
	for seed := range uint64(8) {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			t.Parallel()
			inLazyBubble(t, func(t *testing.T, c *cluster, z *lazies) {
				rnd := rand.New(rand.NewPCG(seed, 11))
				c.operateAll(t, seed, func() {
					order := rnd.Perm(3)
					slow, third, behind := c.nodes[order[0]], c.nodes[order[1]], c.nodes[order[2]]
					c.cut(behind)
					time.Sleep(time.Duration(rnd.IntN(2000)) * time.Millisecond)
					z.of(slow).nap.Store(int64(time.Second))
					time.Sleep(time.Duration(rnd.IntN(900)) * time.Millisecond)
					z.crash(slow, 10*time.Millisecond) // which heals
					c.cut(third)
					time.Sleep(time.Duration(rnd.IntN(5000)) * time.Millisecond)
					c.heal()
				})
			})
		})
	}
}
