package raftfsm

import (
	"bytes"
	"fmt"
	"slices"
	"sync"
	"testing"

	logv1 "github.com/carillon-timers/carillon/proto/carillonlog/v1"
)

// recorder is a Feed that keeps the ops, and what they leave armed, as the owner of a wheel would.
type recorder struct {
	mu    sync.Mutex
	ops   []Op          // guarded by mu
	armed map[uint32]Op // guarded by mu
	calls int           // guarded by mu
}

func (r *recorder) PushN(ops []Op) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.calls++
	r.ops = append(r.ops, ops...)
	if r.armed == nil {
		r.armed = map[uint32]Op{}
	}
	for _, op := range ops {
		switch op.Kind {
		case Arm:
			r.armed[op.Slot] = op
		case Disarm:
			delete(r.armed, op.Slot)
		case Reset:
			clear(r.armed)
		}
	}
}

func (r *recorder) take() []Op {
	r.mu.Lock()
	defer r.mu.Unlock()
	ops := r.ops
	r.ops = nil
	return ops
}

// checkArmed verifies that what is in the table is armed at its time, and nothing else is.
func (r *recorder) checkArmed(f *FSM) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	pending := 0
	for slot := range f.s.table.length {
		record := f.Record(slot)
		op, ok := r.armed[slot]
		parked := record != nil && (record.Extra.GetPaused() || record.Extra.GetDead() != nil)
		if (record != nil && !parked) != ok {
			return fmt.Errorf("slot %d: record %v, armed %v", slot, record, ok)
		}
		if record == nil || parked {
			continue
		}
		pending++
		want := record.NextDue
		if expiry := record.Extra.GetExpiryMs(); expiry != 0 {
			want = min(want, expiry)
		}
		if int64(op.When) != want {
			return fmt.Errorf("slot %d (%s) is armed at %d, due at %d, want %d", slot, record.ID, op.When, record.NextDue, want)
		}
	}
	if pending != len(r.armed) {
		return fmt.Errorf("%d pending, %d armed", pending, len(r.armed))
	}
	return nil
}

func schedule(id string, due int64) *Command {
	return scheduleOf(&logv1.Schedule{Namespace: "default", Id: id, DueMs: due, Queue: "q"})
}

func scheduleOf(c *logv1.Schedule) *Command {
	return &Command{Kind: &logv1.Command_Schedule{Schedule: c}}
}

func cancel(id string) *Command {
	return &Command{Kind: &logv1.Command_Cancel{Cancel: &logv1.Cancel{Namespace: "default", Id: id}}}
}

func reschedule(id string, due int64) *Command {
	return &Command{Kind: &logv1.Command_Reschedule{Reschedule: &logv1.Reschedule{Namespace: "default", Id: id, DueMs: due}}}
}

func complete(id string, revision uint64, attempt uint32, epoch uint64) *Command {
	return &Command{Kind: &logv1.Command_Complete{Complete: &logv1.Complete{
		Namespace: "default", Id: id, Revision: revision, Attempt: attempt, TokenEpoch: epoch,
	}}}
}

func retry(id string, revision uint64, attempt uint32, epoch uint64) *Command {
	return &Command{Kind: &logv1.Command_Retry{Retry: &logv1.Retry{
		Namespace: "default", Id: id, Revision: revision, Attempt: attempt, TokenEpoch: epoch,
	}}}
}

func begin(epoch uint64, clock int64) *logv1.Entry {
	return &logv1.Entry{Epoch: epoch, ClockMs: clock, Begin: &logv1.Begin{Node: "n1"}}
}

// replica is an FSM with its feed and the index of the next entry.
type replica struct {
	t    *testing.T
	f    *FSM
	feed *recorder
	next uint64
}

func newReplica(t *testing.T, o Options) *replica {
	feed := &recorder{}
	o.Feed = feed
	return &replica{t: t, f: New(o), feed: feed, next: 1}
}

// apply applies an entry at the next index and checks the state.
func (r *replica) apply(e *logv1.Entry) Applied {
	r.t.Helper()
	a, err := r.f.Apply(r.next, EncodeEntry(e, nil))
	if err != nil {
		r.t.Fatalf("apply %d: %v", r.next, err)
	}
	r.next++
	r.check()
	return a
}

func (r *replica) check() {
	r.t.Helper()
	if err := r.f.Check(); err != nil {
		r.t.Fatalf("check: %v", err)
	}
	if err := r.feed.checkArmed(r.f); err != nil {
		r.t.Fatalf("armed: %v", err)
	}
}

// stamped stamps commands and returns the entry for those that are not rejected.
func (r *replica) stamped(epoch uint64, now int64, cmds ...*Command) (*logv1.Entry, []*Result) {
	clock, rejected := r.f.Stamp(epoch, now, cmds)
	e := &logv1.Entry{Epoch: epoch, ClockMs: clock}
	for i, c := range cmds {
		if rejected[i] == nil {
			e.Commands = append(e.Commands, c)
		}
	}
	r.checkState()
	return e, rejected
}

// checkState is check without what is armed, for moments at which the owner of the wheel has taken timers out of it.
func (r *replica) checkState() {
	r.t.Helper()
	if err := r.f.Check(); err != nil {
		r.t.Fatalf("check: %v", err)
	}
}

// one applies one stamped command and returns its result.
func (r *replica) one(epoch uint64, now int64, c *Command) Result {
	r.t.Helper()
	e, rejected := r.stamped(epoch, now, c)
	if rejected[0] != nil {
		return *rejected[0]
	}
	return r.apply(e).Results[0]
}

func (r *replica) slot(id string) uint32 {
	r.t.Helper()
	r.f.mu.Lock()
	defer r.f.mu.Unlock()
	t := r.f.s.find("default", id)
	if !t.pending {
		r.t.Fatalf("%s is not pending", id)
	}
	return t.slot
}

func (r *replica) describe(id string) DueInfo {
	r.t.Helper()
	return r.f.Describe([]uint32{r.slot(id)}, nil)[0]
}

// handOut hands a timer out and says whether it was given.
func (r *replica) handOut(epoch uint64, id string) bool {
	r.t.Helper()
	return r.f.HandOut(epoch, r.f.Stats().Clock, []Ref{r.describe(id).Ref}, nil)[0].Verdict == Give
}

func snapshotBytes(t testing.TB, f *FSM) []byte {
	t.Helper()
	s, err := f.Snapshot()
	if err != nil {
		t.Fatal(err)
	}
	defer s.Release()
	var b bytes.Buffer
	n, err := s.WriteTo(&b)
	if err != nil || n != int64(b.Len()) {
		t.Fatalf("wrote %d of %d bytes: %v", b.Len(), n, err)
	}
	return b.Bytes()
}

// restored returns a replica that was restored from a snapshot of this one.
func (r *replica) restored() *replica {
	r.t.Helper()
	o := r.f.o
	out := newReplica(r.t, o)
	if err := out.f.Restore(bytes.NewReader(snapshotBytes(r.t, r.f))); err != nil {
		r.t.Fatal(err)
	}
	out.next = r.next
	out.check()
	return out
}

// same verifies that two replicas are at the same state.
func (r *replica) same(other *replica) {
	r.t.Helper()
	if a, b := r.f.Hash(), other.f.Hash(); a != b {
		r.t.Fatalf("hashes differ: %016x, %016x", a, b)
	}
	if !bytes.Equal(snapshotBytes(r.t, r.f), snapshotBytes(r.t, other.f)) {
		r.t.Fatal("snapshots differ")
	}
}

func ids(page ListPage) []string {
	var out []string
	for _, s := range page.Timers {
		out = append(out, s.Record.ID)
	}
	return slices.Clip(out)
}
