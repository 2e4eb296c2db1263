package shard

import (
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/carillon-timers/carillon/raftfsm"
	"github.com/hashicorp/go-hclog"
	"github.com/hashicorp/raft"
)

// flippingTransport changes a byte of the first snapshots that it sends.
type flippingTransport struct {
	*raft.InmemTransport
	left *atomic.Int64
}

func (t *flippingTransport) InstallSnapshot(id raft.ServerID, to raft.ServerAddress, args *raft.InstallSnapshotRequest, resp *raft.InstallSnapshotResponse, data io.Reader) error {
	if t.left.Add(-1) >= 0 {
		data = &flipped{data, args.Size / 2}
	}
	return t.InmemTransport.InstallSnapshot(id, to, args, resp, data)
}

// flipped is a stream in which the byte at a place is changed.
type flipped struct {
	io.Reader
	at int64
}

func (f *flipped) Read(b []byte) (int, error) {
	n, err := f.Reader.Read(b)
	if f.at >= 0 && f.at < int64(n) {
		b[f.at] ^= 4
	}
	f.at -= int64(n)
	return n, err
}

// A follower whose snapshot could not be read went on from the state it had, or from none (atomix/atomix #1038,
// camunda/camunda #6907). It must keep its state, be sent another one, and be equal at the end.
func TestSnapshotIsDamagedOnItsWay(t *testing.T) {
	t.Parallel()
	var left atomic.Int64
	left.Store(2)
	inBubble(t, 3, func(t *testing.T, c *cluster) {
		leader := c.leader()
		away := c.nodes[0]
		if away == leader {
			away = c.nodes[1]
		}
		c.propose(after("before", time.Hour))
		time.Sleep(time.Second)
		c.cut(away)
		before := away.shard.fsm.Hash()
		for i := range 1700 {
			c.propose(after(fmt.Sprint(i), time.Hour))
		}
		time.Sleep(5 * time.Second)
		c.heal()
		for left.Load() == 2 {
			time.Sleep(time.Millisecond)
		}
		for left.Load() >= 0 {
			if away.shard.fsm.Hash() != before {
				t.Fatal("the follower has another state after a snapshot that is damaged")
			}
			time.Sleep(time.Millisecond)
		}
		c.inStep()
		if n := away.shard.Status().Snapshot.Restored; n != 1 {
			t.Errorf("%d snapshots were restored", n)
		}
	}, func(c *cluster) {
		c.config = func(c *Config) { c.SnapshotEntries, c.TrailingLogs = 500, MinTrailingLogs }
		c.deps = func(d *Deps) { d.Transport = &flippingTransport{d.Transport.(*raft.InmemTransport), &left} }
	})
}

// onFiles has the snapshots of a cluster of one in a folder.
func onFiles(dir string, change func(*Config)) func(*cluster) {
	return func(c *cluster) {
		c.config = change
		c.deps = func(d *Deps) {
			store, err := raft.NewFileSnapshotStoreWithLogger(dir, 2, hclog.NewNullLogger())
			if err != nil {
				c.t.Fatal(err)
			}
			d.Stores.Snapshots = store
		}
	}
}

// hurtNewest changes a byte of the newest snapshot in the folder, and returns how many there are.
func hurtNewest(t *testing.T, dir string) int {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(dir, "snapshots", "*", "state.bin"))
	if err != nil || len(files) == 0 {
		t.Fatal(files, err)
	}
	slices.Sort(files)
	path := files[len(files)-1]
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	b[len(b)/2] ^= 1
	if err := os.WriteFile(path, b, 0o600); err != nil {
		t.Fatal(err)
	}
	return len(files)
}

// Snapshots that had been reported good could not be read at the start (hashicorp/consul #6991). With the newest damaged, the
// one before and the log give all that was answered; if the log no longer reaches back, the replica says so and does not run.
func TestNewestSnapshotIsDamaged(t *testing.T) {
	t.Parallel()
	for _, reaches := range []bool{true, false} {
		t.Run(fmt.Sprintf("the log reaches back %t", reaches), func(t *testing.T) {
			t.Parallel()
			dir, timers := t.TempDir(), 1000
			change := func(c *Config) { c.SnapshotEntries, c.TrailingLogs = 300, MinTrailingLogs }
			if !reaches {
				timers = 4000
				change = func(c *Config) { c.SnapshotEntries, c.TrailingLogs = 1800, MinTrailingLogs }
			}
			inBubble(t, 1, func(t *testing.T, c *cluster) {
				n := c.leader()
				for i := range timers {
					c.propose(after(fmt.Sprint(i), 10*time.Hour))
				}
				time.Sleep(10 * time.Second)
				if err := n.stop(); err != nil {
					t.Fatal(err)
				}
				if n := hurtNewest(t, dir); n != 2 {
					t.Fatalf("the story is broken: %d snapshots", n)
				}
				n.restart()
				if reaches {
					c.leader()
					if got := n.shard.Status().Pending; got != timers {
						t.Errorf("%d of %d timers", got, timers)
					}
					return
				}
				n.wg.Wait()
				if !errors.Is(n.err, raft.ErrLogNotFound) || !strings.Contains(n.err.Error(), "does not reach back") {
					t.Errorf("it ran though entries are missing: %v", n.err)
				}
			}, onFiles(dir, change))
		})
	}
}

// cutLog tells of each cut of the log's head before it is made.
type cutLog struct {
	raft.LogStore
	cut func(last uint64)
}

func (l *cutLog) DeleteRange(first, last uint64) error {
	l.cut(last)
	return l.LogStore.DeleteRange(first, last)
}

// Snapshots were gone after a crash although the log had been cut (hashicorp/consul #3362). Before each cut a snapshot that
// covers it must be in the folder under its own name, and readable.
func TestLogIsCutBehindASnapshot(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	var cuts atomic.Int64
	files := onFiles(dir, func(c *Config) { c.SnapshotEntries, c.TrailingLogs = 300, MinTrailingLogs })
	check := func(last uint64) {
		cuts.Add(1)
		store, err := raft.NewFileSnapshotStoreWithLogger(dir, 2, hclog.NewNullLogger())
		if err != nil {
			t.Error(err)
			return
		}
		list, err := store.List()
		if err != nil || len(list) == 0 || list[0].Index < last {
			t.Errorf("the log is cut up to %d, the snapshots are %v, %v", last, list, err)
			return
		}
		_, from, err := store.Open(list[0].ID)
		if err != nil {
			t.Error(err)
			return
		}
		defer from.Close()
		if err := raftfsm.New(raftfsm.Options{}).Restore(from); err != nil {
			t.Errorf("the snapshot at %d: %v", list[0].Index, err)
		}
	}
	inBubble(t, 1, func(t *testing.T, c *cluster) {
		c.leader()
		for i := range 2500 {
			c.propose(after(fmt.Sprint(i), 10*time.Hour))
		}
		time.Sleep(10 * time.Second)
		if n := cuts.Load(); n < 2 {
			t.Errorf("the story is broken: %d cuts", n)
		}
	}, files, func(c *cluster) {
		before := c.deps
		c.deps = func(d *Deps) {
			before(d)
			d.Stores.Log = &cutLog{d.Stores.Log, check}
		}
	})
}

// A stop while a snapshot is written waited for it for ever (hashicorp/raft #268, PR 277). It is bounded, whenever it comes.
func TestStopDuringASnapshot(t *testing.T) {
	t.Parallel()
	rnd := rand.New(rand.NewPCG(17, 18))
	files := onFiles(t.TempDir(), func(c *Config) { c.SnapshotEntries, c.SnapshotRate = 20, 64<<10 })
	inBubble(t, 1, func(t *testing.T, c *cluster) {
		kept, during := 0, 0
		for range 60 {
			n := c.leader()
			for range 25 {
				cmd := after(fmt.Sprint(kept), 100*time.Hour)
				cmd.GetSchedule().Payload = make([]byte, 2000)
				c.propose(cmd)
				kept++
			}
			time.Sleep(time.Duration(rnd.IntN(500)) * time.Millisecond)
			taken := n.shard.Status().Snapshot
			start := time.Now()
			if err := n.stop(); err != nil && !errors.Is(err, ErrUnavailable) {
				t.Fatalf("Run: %v", err)
			}
			if took := time.Since(start); took > 100*time.Millisecond {
				t.Errorf("stopping took %v", took)
			}
			if taken.LogEntries >= 20 {
				during++
			}
			n.restart()
		}
		if c.leader(); c.nodes[0].shard.Status().Pending != kept {
			t.Errorf("%d of %d timers", c.nodes[0].shard.Status().Pending, kept)
		}
		if during < 20 {
			t.Errorf("the story is broken: %d stops came while a snapshot was written", during)
		}
	}, files)
}
