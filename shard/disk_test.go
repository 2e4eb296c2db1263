package shard

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"testing"
	"testing/synctest"
	"time"

	"github.com/carillon-timers/carillon/raftfsm"
	"github.com/carillon-timers/carillon/shard/executor"
	"github.com/hashicorp/raft"
)

var errDiskFull = errors.New("no space left on device")

// A write that fails, or does not end, ends the replica with an error that says so, not the process. The others go on, and the
// replica comes back when its disk does.
func TestDiskFails(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name string
		// hurt hurts the leader's or a follower's disk and returns how it heals.
		hurt   func(*node) (heal func())
		leader bool
		want   error
	}{
		{"the leader's log fails", failLog, true, errDiskFull},
		{"a follower's log fails", failLog, false, errDiskFull},
		{"a follower's term cannot be written", failTerm, false, errDiskFull},
		{"the leader's log hangs", func(n *node) func() { return n.log.stall() }, true, ErrWriteTimeout},
		{"a follower's log hangs", func(n *node) func() { return n.log.stall() }, false, ErrWriteTimeout},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			inBubble(t, 3, func(t *testing.T, cl *cluster) {
				leader := cl.leader()
				cl.propose(after("a", time.Hour))
				victim := leader
				if !c.leader {
					victim = cl.nodes[0]
					if victim == leader {
						victim = cl.nodes[1]
					}
				}
				heal := c.hurt(victim)
				start := time.Now()
				cl.propose(after("b", time.Hour))
				if !c.leader {
					// The next leader makes the victim write its term.
					leader.stop()
					leader.restart()
				}
				time.Sleep(12 * time.Second)
				heal()
				victim.wg.Wait()
				var disk *DiskError
				if !errors.As(victim.err, &disk) || !errors.Is(victim.err, c.want) {
					t.Fatalf("Run returned %v after %v", victim.err, time.Since(start))
				}
				if victim.shard.Status().Disk.Broken == nil {
					t.Error("the status does not say so")
				}
				victim.restart()
				cl.propose(after("c", time.Hour))
				cl.inStep()
				if s := cl.leader().shard.Status(); s.Pending != 3 || s.Disk.Appends.Count == 0 {
					t.Errorf("%d timers are left, %d writes timed", s.Pending, s.Disk.Appends.Count)
				}
			}, func(c *cluster) {
				c.config = func(c *Config) { c.WriteTimeout, c.StopTimeout = 5*time.Second, 20*time.Second }
			})
		})
	}
}

func failLog(n *node) func() {
	n.log.fault.Store(&errDiskFull)
	return func() { n.log.fault.Store(nil) }
}

func failTerm(n *node) func() {
	n.stable.fault.Store(&errDiskFull)
	return func() { n.stable.fault.Store(nil) }
}

// Snapshots are taken when the log has grown, in turn, and cut the log; a replica that was away is sent one.
func TestSnapshots(t *testing.T) {
	t.Parallel()
	inBubble(t, 3, func(t *testing.T, c *cluster) {
		leader := c.leader()
		away := c.nodes[0]
		if away == leader {
			away = c.nodes[1]
		}
		c.cut(away)
		for i := range 1700 {
			c.propose(schedule(fmt.Sprint(i), time.Now().Add(time.Hour)))
		}
		time.Sleep(10 * time.Second)
		s := leader.shard.Status().Snapshot
		first, err := leader.log.FirstIndex()
		if err != nil || s.Index < 1100 || s.Bytes == 0 || s.At.IsZero() || first < 10 || first > s.Index+1 {
			t.Errorf("snapshot %+v, the log begins at %d, %v", s, first, err)
		}
		c.heal()
		c.inStep()
		if n := away.shard.Status().Snapshot.Restored; n == 0 {
			t.Error("the replica that was away restored no snapshot")
		}
		for _, n := range c.nodes {
			n.stop()
			n.restart()
		}
		c.inStep()
		if n := c.leader().shard.Status().Pending; n != 1700 {
			t.Errorf("%d timers after the restart", n)
		}
	}, func(c *cluster) {
		gate := NewGate(1) // of the bubble: its time does not pass while somebody waits for what is not
		c.config = func(c *Config) { c.SnapshotBytes, c.TrailingLogs = 24<<10, MinTrailingLogs }
		c.deps = func(d *Deps) { d.SnapshotGate = gate }
	})
}

// A snapshot is written at its rate, in pieces, and a stop ends it at once.
func TestSnapshotIsPaced(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var out bytes.Buffer
		stop := make(chan struct{})
		file, err := os.Create(filepath.Join(t.TempDir(), "state.bin"))
		if err != nil {
			t.Fatal(err)
		}
		defer file.Close()
		p := &paced{w: io.MultiWriter(&out, file), stop: stop, rate: 1 << 20, now: time.Now, file: file, next: time.Now()}
		haste := 1.0
		p.haste = func() float64 { return haste }
		begin := time.Now()
		if n, err := p.Write(make([]byte, 10<<20)); n != 10<<20 || err != nil || out.Len() != n {
			t.Fatalf("%d bytes, %v", n, err)
		}
		if took := time.Since(begin).Round(10 * time.Millisecond); took != 10*time.Second {
			t.Errorf("10 MiB at 1 MiB/s took %v", took)
		}
		if p.flushed != 8<<20 {
			t.Errorf("flushed at %d", p.flushed)
		}
		haste, begin = 4, time.Now()
		if _, err := p.Write(make([]byte, 8<<20)); err != nil || time.Since(begin).Round(10*time.Millisecond) != 2*time.Second {
			t.Errorf("8 MiB in haste took %v, %v", time.Since(begin), err)
		}
		haste, begin = 1, time.Now()
		time.Sleep(time.Minute) // a stall, of which little is caught up
		if _, err := p.Write(make([]byte, 1<<20)); err != nil || time.Since(begin).Round(10*time.Millisecond) != time.Minute+950*time.Millisecond {
			t.Errorf("1 MiB after a stall took %v, %v", time.Since(begin), err)
		}
		time.AfterFunc(1500*time.Millisecond, func() { close(stop) })
		begin = time.Now()
		if n, err := p.Write(make([]byte, 10<<20)); n >= 2<<20 || !errors.Is(err, ErrUnavailable) || time.Since(begin) != 1500*time.Millisecond {
			t.Errorf("stopped after %d bytes and %v: %v", n, time.Since(begin), err)
		}
	})
}

// The further the log has outgrown its threshold, the faster is a snapshot written, within bounds.
func TestSnapshotHaste(t *testing.T) {
	t.Parallel()
	n := newSnapshots(&Shard{c: Config{SnapshotEntries: 100, SnapshotBytes: 1000}})
	for _, c := range []struct {
		entries uint64
		bytes   int64
		want    float64
	}{{10, 100, 1}, {90, 900, 1}, {100, 100, 1}, {100, 100, 1.5}, {0, 3800, 2.5}, {1000, 0, persistHaste}} {
		n.grow(c.entries, c.bytes)
		if got := n.haste(); got != c.want {
			t.Errorf("at %d entries and %d bytes: %v, want %v", n.entries, n.bytes, got, c.want)
		}
	}
	<-n.due
	// A snapshot of three times the threshold: the next one is due after three times as much.
	n.reset(3000)
	for _, c := range []struct {
		entries uint64
		bytes   int64
		due     int
	}{{290, 0, 0}, {5, 2990, 0}, {5, 0, 1}, {0, 20, 1}} {
		if n.grow(c.entries, c.bytes); len(n.due) != c.due {
			t.Errorf("%d due after %d entries and %d bytes, want %d", len(n.due), n.entries, n.bytes, c.due)
		}
	}
	n.grow(300, 3000)
	if n.grow(300, 3000); n.haste() < 1.5 || n.haste() > 1.51 {
		t.Errorf("haste %v", n.haste())
	}
}

// The gate is shared: while another shard snapshots, this one waits; and it waits while leadership is being handed over.
func TestSnapshotWaits(t *testing.T) {
	t.Parallel()
	gates := map[string]*Gate{}
	inBubble(t, 1, func(t *testing.T, c *cluster) {
		s := c.leader().shard
		if err := s.d.SnapshotGate.Acquire(t.Context()); err != nil {
			t.Fatal(err)
		}
		for i := range 20 {
			c.propose(after(fmt.Sprint(i), time.Hour))
		}
		time.Sleep(time.Minute)
		if at := s.Status().Snapshot.At; !at.IsZero() {
			t.Error("it did not wait for the gate")
		}
		s.steward.transferring.Store(true)
		s.d.SnapshotGate.Release()
		time.Sleep(time.Minute)
		if at := s.Status().Snapshot.At; !at.IsZero() {
			t.Error("it did not wait for the transfer")
		}
		s.steward.transferring.Store(false)
		time.Sleep(time.Minute)
		if info := s.Status().Snapshot; info.At.IsZero() || info.Taken == 0 || info.Total < info.Took {
			t.Errorf("it was never taken, or not counted: %+v", info)
		}
	}, func(c *cluster) {
		c.config = func(c *Config) { c.SnapshotEntries = 10 }
		c.deps = func(d *Deps) { gates["n1"] = NewGate(1); d.SnapshotGate = gates["n1"] }
	})
}

// The head of the log is cut in chunks, the tail at once.
func TestDeleteInChunks(t *testing.T) {
	t.Parallel()
	store := raft.NewInmemStore()
	d := newDisk(&Stores{Log: store, Stable: store}, time.Second, time.Now, func(error) {})
	var entries []*raft.Log
	for i := range uint64(3000) {
		entries = append(entries, &raft.Log{Index: i + 1})
	}
	if err := d.StoreLogs(entries); err != nil {
		t.Fatal(err)
	}
	if err := d.DeleteRange(1, 2000); err != nil {
		t.Fatal(err)
	}
	first, _ := store.FirstIndex()
	if n := d.stats().Deletes.Count; first != 2001 || n != 4 {
		t.Errorf("the log begins at %d after %d cuts", first, n)
	}
	if err := d.DeleteRange(2101, 3000); err != nil {
		t.Fatal(err)
	}
	last, _ := store.LastIndex()
	if n := d.stats().Deletes.Count; last != 2100 || n != 5 {
		t.Errorf("the log ends at %d after %d cuts", last, n)
	}
}

// begunLog is a log whose writes are begun, and answered if there is something in answer; nil or fault say that they cannot be begun.
type begunLog struct {
	*raft.InmemStore
	answer chan error
	fault  error
}

func (l *begunLog) Begin(_ []*raft.Log, _ func() error, done func(error)) (bool, error) {
	if l.answer == nil || l.fault != nil {
		return false, l.fault
	}
	select {
	case err := <-l.answer:
		done(err)
	default:
	}
	return true, nil
}

// A write that is begun has the deadline of the others, its first failure is the last write too, and what cannot be begun
// goes to the writer.
func TestBegunWrites(t *testing.T) {
	t.Parallel()
	answered := func(err error) chan error {
		c := make(chan error, 1)
		c <- err
		return c
	}
	for _, c := range []struct {
		name   string
		answer chan error
		fault  error
		want   error
		stored uint64 // by the writer
	}{
		{"stored", answered(nil), nil, nil, 0},
		{"cannot be begun", nil, nil, nil, 1},
		{"fails at once", nil, errDiskFull, errDiskFull, 0},
		{"fails", answered(errDiskFull), nil, errDiskFull, 0},
		{"hangs", make(chan error), nil, ErrWriteTimeout, 0},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				store := &begunLog{InmemStore: raft.NewInmemStore(), answer: c.answer, fault: c.fault}
				if c.name == "hangs" {
					store.answer = make(chan error) // of the bubble
				}
				told := 0
				d := newDisk(&Stores{Log: store, Stable: store}, 5*time.Second, time.Now, func(error) { told++ })
				stop := make(chan struct{})
				go d.run(stop)
				defer close(stop)
				d.running.Store(true)
				begin := time.Now()
				err := d.StoreLogs([]*raft.Log{{Index: 1}})
				if took := time.Since(begin); !errors.Is(err, c.want) || took > 0 && c.want != ErrWriteTimeout {
					t.Errorf("%v after %v, want %v", err, took, c.want)
				}
				if last, _ := store.LastIndex(); last != c.stored {
					t.Errorf("the writer stored up to %d", last)
				}
				if d.writing() != 0 {
					t.Error("it says that it is writing")
				}
				if c.want == nil {
					return
				}
				store.answer, store.fault = answered(nil), nil
				var disk *DiskError
				if err := d.StoreLogs([]*raft.Log{{Index: 2}}); !errors.As(err, &disk) || told != 1 {
					t.Errorf("the next write: %v, told %d times", err, told)
				}
			})
		})
	}
}

// Real files: what was acknowledged is there after all three were stopped and opened again, and is fired by a real clock.
func TestBoltFiles(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	c := newCluster(t, 3, func(c *cluster) {
		c.config = func(c *Config) {
			c.Dir = filepath.Join(dir, c.Node)
			c.HeartbeatTimeout, c.ElectionTimeout, c.LeaseTimeout = 300*time.Millisecond, 300*time.Millisecond, 250*time.Millisecond
		}
		c.deps = func(d *Deps) { d.Stores = nil }
	})
	c.start()
	for i := range 20 {
		c.propose(after(fmt.Sprint(i), time.Hour))
	}
	c.propose(after("soon", 1500*time.Millisecond))
	for _, n := range c.nodes {
		if err := n.stop(); err != nil {
			t.Fatal(err)
		}
	}
	for _, n := range c.nodes {
		n.open()
		if has, err := n.shard.HasState(); !has || err != nil {
			t.Fatalf("%s has state: %t, %v", n.id, has, err)
		}
		if err := n.shard.Bootstrap([]raft.Server{{ID: "n1", Address: "n1"}}); !errors.Is(err, raft.ErrCantBootstrap) {
			t.Errorf("a replica with state was bootstrapped: %v", err)
		}
		n.run()
	}
	acked := make(chan raftfsm.Result, 1)
	c.sink.answer(func(d executor.Delivery) { acked <- c.propose(completeOf(d))[0] })
	if r := <-acked; r.Code != raftfsm.OK {
		t.Errorf("ack: %+v", r)
	}
	c.inStep()
	if n := c.leader().shard.Status().Pending; n != 20 {
		t.Errorf("%d timers", n)
	}
	second := DefaultConfig()
	second.Node, second.Dir = "n1", filepath.Join(dir, "n1")
	if _, err := Open(second, Deps{Transport: c.nodes[0].transport, Loop: c.nodes[0].loop, Deliverer: c.sink}); err == nil {
		t.Error("the same files were opened twice")
	} else {
		t.Log(err)
	}
	c.stop()
}

// Damage that shows when the file is opened is an error with a name, not a panic.
func TestDamagedFiles(t *testing.T) {
	t.Parallel()
	for name, hurt := range map[string]func(path string, size int64) error{
		"cut short":    func(path string, size int64) error { return os.Truncate(path, size/2/4096*4096) },
		"overwritten":  func(path string, size int64) error { return os.WriteFile(path, make([]byte, size), 0o600) },
		"another file": func(path string, _ int64) error { return os.WriteFile(path, []byte("hello"), 0o600) },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			path := filepath.Join(t.TempDir(), boltFile)
			store, err := openBolt(path)
			if err != nil {
				t.Fatal(err)
			}
			for i := range uint64(200) {
				if err := store.StoreLog(&raft.Log{Index: i + 1, Data: make([]byte, 4000)}); err != nil {
					t.Fatal(err)
				}
			}
			if err := store.Close(); err != nil {
				t.Fatal(err)
			}
			info, err := os.Stat(path)
			if err != nil {
				t.Fatal(err)
			}
			if err := hurt(path, info.Size()); err != nil {
				t.Fatal(err)
			}
			var damaged *DamagedError
			if store, err := openBolt(path); !errors.As(err, &damaged) {
				t.Errorf("got %v, %v", store, err)
			}
		})
	}
}

// The lease ends by the time of sending, by whichever clock has gone further; contacts of another term do not count.
func TestLease(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		voters := []raft.Server{{ID: "n1"}, {ID: "n2"}, {ID: "n3"}, {ID: "n4", Suffrage: raft.Nonvoter}}
		var wall time.Duration
		l := newLease("n1", 400*time.Millisecond, func() time.Time {
			now := time.Now()
			return now.Add(wall).Add(-wall).Round(0).Add(wall)
		}, func() []raft.Server { return voters })
		check := func(term uint64, want bool) {
			t.Helper()
			if got := l.held(term); got != want {
				t.Fatalf("held(%d) is %t, want %t", term, got, want)
			}
		}
		l.enter(3)
		check(3, false)
		l.note("n4", 3, l.now())
		check(3, false) // no voter
		l.note("n2", 2, l.now())
		check(3, false) // another term
		sent := l.now()
		time.Sleep(300 * time.Millisecond)
		l.note("n2", 3, sent)
		check(3, true)
		check(4, false)
		time.Sleep(100 * time.Millisecond)
		check(3, false)
		l.note("n3", 3, l.now())
		check(3, true)
		wall = time.Hour
		check(3, false) // the machine was suspended, or its clock was set
		l.note("n2", 5, l.now())
		check(3, false)
		check(5, true)
		voters = voters[:1]
		l.enter(5)
		wall = 2 * time.Hour
		check(5, true) // alone
		voters = nil
		l.enter(6)
		check(6, false)
	})
}
