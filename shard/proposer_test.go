package shard

import (
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/carillon-timers/carillon/raftfsm"
)

// waiting is a proposer that lets calls wait, and what may wait in it.
func waiting(change func(*Config)) *proposer {
	c := DefaultConfig()
	c.Node, c.InFlight = "n1", MaxInFlight
	if change != nil {
		change(&c)
	}
	s := &Shard{c: c}
	s.d.Monotonic = time.Now
	p := newProposer(s)
	p.role = opening
	return p
}

func commandsOf(name string, n int) (cmds []*raftfsm.Command) {
	for i := range n {
		cmds = append(cmds, cancelOf(fmt.Sprint(name, i)))
	}
	return cmds
}

// enter lets commands wait in calls of their own.
func (p *proposer) enter(t *testing.T, cmds []*raftfsm.Command) {
	t.Helper()
	for i := range cmds {
		c, err := p.newCall(cmds[i : i+1])
		if err == nil {
			err = p.enqueue(c)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
}

// entry are the IDs of the next entry.
func (p *proposer) entry() (ids []string) {
	p.role = leading
	defer func() { p.role = opening }()
	if f := p.take(); f != nil {
		for _, cmd := range f.cmds {
			ids = append(ids, cmd.GetCancel().GetId())
		}
	}
	return ids
}

// What the executor proposes (a repeat's next time, the end of a lease) goes before the schedules that wait, however many they are, and
// leaves them a quarter of each entry; the order among themselves stays.
func TestOwnCommandsGoFirst(t *testing.T) {
	t.Parallel()
	p := waiting(nil)
	p.enter(t, commandsOf("call", 2000))
	if !p.settleOwn(commandsOf("own", 1800), nil) {
		t.Fatal("there was no room")
	}
	p.enter(t, commandsOf("late", 10))
	want := map[string]int{}
	check := func(ids []string, own, calls int) {
		t.Helper()
		if len(ids) != own+calls {
			t.Fatalf("an entry of %d commands, want %d", len(ids), own+calls)
		}
		for i, id := range ids {
			name := "own"
			if i >= own {
				name = "call"
			}
			if id != fmt.Sprint(name, want[name]) {
				t.Fatalf("%q is command %d of the entry, want %s%d", id, i, name, want[name])
			}
			want[name]++
		}
	}
	check(p.entry(), 750, 250)
	check(p.entry(), 750, 250)
	check(p.entry(), 300, 700)
	ids := p.entry()
	check(ids[:800], 0, 800)
	if len(ids) != 810 || ids[809] != "late9" || p.queued != 0 || p.queuedBytes != 0 {
		t.Errorf("%d commands, %d of %d bytes wait", len(ids), p.queued, p.queuedBytes)
	}
	if ids := p.entry(); len(ids) > 0 {
		t.Errorf("an empty queue gave %v", ids)
	}
	// With nobody else they take the whole entry.
	if !p.settleOwn(commandsOf("own", 1000), nil) || len(p.entry()) != 1000 {
		t.Error("no whole entry for the executor alone")
	}
}

// A queue that is full of calls has room for the executor's commands, which is bounded as well.
func TestOwnCommandsHaveRoom(t *testing.T) {
	t.Parallel()
	p := waiting(func(c *Config) { c.MaxQueued = 2000 })
	p.enter(t, commandsOf("call", 2000))
	c, err := p.newCall(commandsOf("more", 1))
	if err == nil {
		err = p.enqueue(c)
	}
	var overload *OverloadedError
	if !errors.As(err, &overload) {
		t.Errorf("one more: %v", err)
	}
	failed := 0
	for n := 0; n < ownRoom; n += 1000 {
		if !p.settleOwn(commandsOf("own", 1000), func([]raftfsm.Result) { failed++ }) {
			t.Fatalf("no room after %d", n)
		}
	}
	if p.settleOwn(commandsOf("own", 1), nil) {
		t.Error("there is no limit")
	}
	p.become(following, 0, ErrUnavailable)
	if p.queued != 0 || p.queuedBytes != 0 || p.first(0) != nil || failed != 0 {
		t.Errorf("%d of %d bytes wait after the end of the reign, %d were told of results", p.queued, p.queuedBytes, failed)
	}
}
