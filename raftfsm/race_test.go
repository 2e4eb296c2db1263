package raftfsm

import (
	"bytes"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"

	logv1 "github.com/carillon-timers/carillon/proto/carillonlog/v1"
)

// One goroutine applies what another stamps, and all that read do so at the same time; run it with -race.
func TestConcurrentUse(t *testing.T) {
	t.Parallel()
	const rounds = 300
	feed := &recorder{}
	f := New(Options{Feed: feed, MaxFinished: 64, MaxRequests: 64})
	if _, err := f.Apply(1, EncodeEntry(begin(1, 1), nil)); err != nil {
		t.Fatal(err)
	}
	f.Lead(1)
	entries := make(chan []byte, 2)
	var done atomic.Bool
	var group sync.WaitGroup
	group.Go(func() {
		defer close(entries)
		propose(f, rounds, entries)
	})
	group.Go(func() {
		defer done.Store(true)
		index := uint64(1)
		for data := range entries {
			index++
			if _, err := f.Apply(index, data); err != nil {
				t.Error(err)
			}
		}
	})
	for _, work := range []func(){
		func() { handOutAll(f) },
		func() { readAll(f) },
		func() { snapshotAndRestore(t, f) },
	} {
		group.Go(func() {
			for !done.Load() {
				work()
			}
		})
	}
	group.Wait()
	if err := f.Check(); err != nil {
		t.Fatal(err)
	}
	if err := feed.checkArmed(f); err != nil {
		t.Fatal(err)
	}
}

func propose(f *FSM, rounds int, entries chan<- []byte) {
	for i := range rounds {
		var cmds []*Command
		for n := range 8 {
			id := fmt.Sprint((i + n*31) % 200)
			s := schedule(id, int64(i)).GetSchedule()
			s.IfExists, s.RequestId = ifExistsReplace, []byte(id)
			cmds = append(cmds, scheduleOf(s), cancel(fmt.Sprint((i*3+n)%200)))
			if st, ok := f.Get("default", fmt.Sprint((i*7+n)%200)); ok {
				cmds = append(cmds, complete(st.Record.ID, st.Record.Revision, st.Record.Attempt, 1), retry(id, st.Record.Revision, 0, 1))
			}
		}
		clock, rejected := f.Stamp(1, int64(i), cmds)
		if i%7 == 0 {
			f.ReleaseHolds(cmds)
			continue
		}
		e := &logv1.Entry{Epoch: 1, ClockMs: clock}
		for n, c := range cmds {
			if rejected[n] == nil {
				e.Commands = append(e.Commands, c)
			}
		}
		entries <- EncodeEntry(e, nil)
	}
}

func handOutAll(f *FSM) {
	var slots []uint32
	for slot := range uint32(200) {
		slots = append(slots, slot)
	}
	var refs []Ref
	for _, d := range f.Describe(slots, nil) {
		if d.OK && !d.Held {
			refs = append(refs, d.Ref)
		}
	}
	for _, r := range f.HandOut(1, 0, refs, nil) {
		if r.Record != nil && r.Record.ID == "" {
			panic("a record without an ID")
		}
	}
}

func readAll(f *FSM) {
	for _, s := range f.List(ListQuery{Prefix: "1"}).Timers {
		f.Get("", s.Record.ID)
	}
	f.Stats()
	f.Hash()
	f.Record(3)
	f.List(ListQuery{Count: true, Filter: &logv1.Filter{Queue: "q"}})
	if _, err := f.Forecast(ForecastQuery{Step: 1000, Steps: 10}); err != nil {
		panic(err)
	}
}

func snapshotAndRestore(t *testing.T, f *FSM) {
	s, err := f.Snapshot()
	if err != nil {
		t.Error(err)
		return
	}
	defer s.Release()
	var b bytes.Buffer
	if _, err := s.WriteTo(&b); err != nil {
		t.Error(err)
	}
	other := New(f.o)
	other.o.Feed = nil
	if err := other.Restore(&b); err != nil {
		t.Error(err)
	}
}
