package raftfsm

import (
	"cmp"
	"flag"
	"fmt"
	"maps"
	"math/rand/v2"
	"reflect"
	"slices"
	"testing"

	logv1 "github.com/carillon-timers/carillon/proto/carillonlog/v1"
)

var seedFlag = flag.Uint64("seed", 0, "seed of the model test; 0 runs a few fixed ones")

// modelRun drives two replicas and the model with the same log. The first replica leads: it stamps, holds and hands out, which
// must change nothing that is replicated; the second is restored from a snapshot now and then.
type modelRun struct {
	*testing.T
	rng       *rand.Rand
	m         *model
	a, b      *replica
	epoch     uint64
	now       int64
	snapshots []*Snapshot
	frozen    [][]byte
}

func TestModel(t *testing.T) {
	seeds := []uint64{1, 2, 3, 149}
	if *seedFlag != 0 {
		seeds = []uint64{*seedFlag}
	}
	for _, seed := range seeds {
		t.Run(fmt.Sprintf("seed=%d", seed), func(t *testing.T) {
			t.Parallel()
			runModel(t, seed)
		})
	}
}

func runModel(t *testing.T, seed uint64) {
	rng := rand.New(rand.NewPCG(seed, 0))
	o := Options{Retention: 500, MaxFinished: 10 + rng.IntN(40), MaxRequests: 10 + rng.IntN(40)}
	leader := o
	leader.Repeats = grid{}
	r := &modelRun{T: t, rng: rng, m: newModel(o), a: newReplica(t, leader), b: newReplica(t, o), epoch: 1, now: 10_000}
	// How long timers wait before they enter the order must not show.
	r.a.f.s.order.wait.limit, r.b.f.s.order.wait.limit = 1+int(seed%7), 1+int(seed%61)
	r.entry(begin(1, r.now))
	for range 400 {
		r.step()
		r.compare()
	}
	for i, s := range r.snapshots {
		r.frozenIsSame(i, s)
	}
}

// step does one thing: an entry in most cases.
func (r *modelRun) step() {
	r.now += int64(r.rng.IntN(30)) - 5
	switch n := r.rng.IntN(100); {
	case n < 70:
		r.commands(r.epoch)
	case n < 73: // a new epoch
		r.epoch++
		r.entry(begin(r.epoch, r.now))
		r.a.f.Lead(r.epoch)
	case n < 76: // an entry of an old epoch comes late
		e := &logv1.Entry{Epoch: r.epoch - 1, ClockMs: r.now + 100_000, Commands: []*Command{r.command()}}
		if e.Epoch > 0 {
			r.entry(e)
		}
	case n < 80:
		r.a.f.Follow()
		r.a.f.Lead(r.epoch)
	case n < 90: // hand out something
		slots := []uint32{r.rng.Uint32N(40), r.rng.Uint32N(40), r.rng.Uint32N(40)}
		for _, d := range r.a.f.Describe(slots, nil) {
			r.a.f.HandOut(r.epoch, r.now, []Ref{d.Ref}, nil)
		}
	case n < 94: // commands that are never applied
		cmds := []*Command{r.command(), r.command()}
		r.a.f.Stamp(r.epoch, r.now, cmds)
		r.a.f.ReleaseHolds(cmds)
		r.a.f.ReleaseHolds(cmds)
	case n < 97:
		r.b = r.b.restored()
	default:
		r.snapshot()
	}
	r.a.checkState()
}

// snapshot takes one more snapshot or releases one; what is alive must not change.
func (r *modelRun) snapshot() {
	if len(r.snapshots) > 3 {
		i := r.rng.IntN(len(r.snapshots))
		r.frozenIsSame(i, r.snapshots[i])
		r.snapshots[i].Release()
		r.snapshots, r.frozen = slices.Delete(r.snapshots, i, i+1), slices.Delete(r.frozen, i, i+1)
		return
	}
	s, err := r.a.f.Snapshot()
	if err != nil {
		r.Fatal(err)
	}
	r.snapshots, r.frozen = append(r.snapshots, s), append(r.frozen, snapshotBytes(r.T, r.a.f))
}

func (r *modelRun) frozenIsSame(i int, s *Snapshot) {
	var b writeBuffer
	if _, err := s.WriteTo(&b); err != nil || !slices.Equal(b, r.frozen[i]) {
		r.Fatalf("a snapshot of index %d changed: %v", s.Index(), err)
	}
}

type writeBuffer []byte

func (b *writeBuffer) Write(p []byte) (int, error) { *b = append(*b, p...); return len(p), nil }

func (r *modelRun) commands(epoch uint64) {
	cmds := make([]*Command, 1+r.rng.IntN(8))
	for i := range cmds {
		cmds[i] = r.command()
	}
	e, _ := r.a.stamped(epoch, r.now, cmds...)
	r.entry(e)
}

func (r *modelRun) entry(e *logv1.Entry) {
	index := r.a.next
	want := r.m.apply(index, e)
	a, b := r.a.apply(e), r.b.apply(e)
	if !reflect.DeepEqual(a.Results, b.Results) {
		r.Fatalf("results differ at %d:\n%v\n%v", index, a.Results, b.Results)
	}
	for i, got := range a.Results {
		got.Detail = ""
		for i := range got.Items {
			got.Items[i].Detail = ""
		}
		if !reflect.DeepEqual(got, want[i]) {
			r.Fatalf("at %d: %s: got %s, want %s", index, nameOf(e.Commands[i]), resultText(got), resultText(want[i]))
		}
	}
}

func (r *modelRun) id() string { return fmt.Sprintf("t%02d", r.rng.IntN(60)) }

func (r *modelRun) request() []byte {
	if r.rng.IntN(3) == 0 {
		return []byte{'r', byte('0' + r.rng.IntN(4))}
	}
	return nil
}

func (r *modelRun) due() int64 { return r.now + int64(r.rng.IntN(400)) - 100 }

// command is any command, mostly about a timer that is there.
func (r *modelRun) command() *Command {
	id, request := r.id(), r.request()
	if keys := slices.Sorted(maps.Keys(r.m.pending)); len(keys) > 0 && r.rng.IntN(2) == 0 {
		id = keys[r.rng.IntN(len(keys))]
	}
	revision, attempt := r.token(id), uint32(0)
	expected := uint64(0)
	if t, ok := r.m.pending[id]; ok && r.rng.IntN(8) > 0 {
		attempt = t.attempt
	}
	if r.rng.IntN(6) == 0 {
		expected = r.m.pending[id].revision
	}
	switch r.rng.IntN(14) {
	case 0:
		c := cancel(id)
		c.GetCancel().RequestId, c.GetCancel().ExpectedRevision = request, expected
		return c
	case 1:
		c := reschedule(id, r.due())
		c.GetReschedule().RequestId, c.GetReschedule().ExpectedRevision = request, expected
		c.GetReschedule().Now = r.rng.IntN(2) == 0
		return c
	case 2:
		c := complete(id, revision, attempt, r.epoch+1-r.rng.Uint64N(3))
		c.GetComplete().Ahead, c.GetComplete().HandedMs = r.rng.IntN(4) == 0, r.now-int64(r.rng.IntN(50))
		return c
	case 3, 4:
		c := retry(id, revision, attempt, r.epoch+1-r.rng.Uint64N(3))
		k := c.GetRetry()
		k.Dead, k.Returned, k.Lapsed, k.Error = r.rng.IntN(8) == 0, r.rng.IntN(6) == 0, r.rng.IntN(2) == 0, "failed"
		return c
	case 5:
		return &Command{Kind: &logv1.Command_Pause{Pause: &logv1.Pause{
			Namespace: "default", Id: id, Freeze: r.rng.IntN(2) == 0, ExpectedRevision: expected, RequestId: request,
		}}}
	case 6:
		return &Command{Kind: &logv1.Command_Resume{Resume: &logv1.Resume{
			Namespace: "default", Id: id, ExpectedRevision: expected, RequestId: request,
		}}}
	case 7:
		return &Command{Kind: &logv1.Command_Advance{Advance: &logv1.Advance{Namespace: "default", Id: id, Revision: revision, Attempt: attempt}}}
	case 8:
		return &Command{Kind: &logv1.Command_Expire{Expire: &logv1.Expire{Namespace: "default", Id: id, Revision: revision, Attempt: attempt}}}
	case 9:
		return r.rareCommand(request)
	}
	return r.schedule(r.id(), request, expected)
}

func (r *modelRun) schedule(id string, request []byte, expected uint64) *Command {
	c := schedule(id, r.due()).GetSchedule()
	c.RequestId, c.ExpectedRevision, c.IfExists = request, expected, r.rng.Uint32N(3)
	if r.rng.IntN(2) == 0 {
		c.IsDelay, c.DelayMs = true, int64(r.rng.IntN(300))
	}
	c.Payload = make([]byte, r.rng.IntN(20))
	if r.rng.IntN(2) == 0 {
		c.Retry = &logv1.RetryPolicy{MaxAttempts: r.rng.Uint32N(4), InitialBackoffMs: 20}
	}
	if r.rng.IntN(2) == 0 {
		return scheduleOf(c)
	}
	c.Extra = &logv1.Extra{AtMostOnce: r.rng.IntN(5) == 0, WindowMs: int64(r.rng.IntN(2) * 3000)}
	if r.rng.IntN(4) == 0 {
		c.Extra.ExpiryMs = r.due() + 200
	}
	if r.rng.IntN(4) == 0 {
		c.Queue, c.Extra.Webhook = "\x00https://example.com:443", "https://example.com/hook"
	}
	if r.rng.IntN(2) == 0 {
		c.Extra.Repeat = &logv1.Repeat{
			EveryMs: 10 + int64(r.rng.IntN(200)), MaxCount: int64(r.rng.IntN(3) * 2), Misfire: 1 + r.rng.Uint32N(3), MaxCatchUp: 4,
			Overlap: 1 + r.rng.Uint32N(3), HasEnd: r.rng.IntN(4) == 0, EndMs: r.due() + 500,
		}
		c.First = r.rng.IntN(3) == 0
		c.IsDelay = c.IsDelay && !c.First
		c.Extra.Repeat.FixedDelay = c.Extra.Repeat.Overlap != overlapAllow && r.rng.IntN(3) == 0
	}
	return scheduleOf(c)
}

// rareCommand is about dead letters, or a batch.
func (r *modelRun) rareCommand(request []byte) *Command {
	var keys []string
	if len(r.m.letters) > 0 && r.rng.IntN(2) == 0 {
		keys = []string{r.m.letters[r.rng.IntN(len(r.m.letters))].key, r.m.letters[0].key, "0"}[:1+r.rng.IntN(3)]
	}
	switch r.rng.IntN(4) {
	case 0:
		return &Command{Kind: &logv1.Command_Redrive{Redrive: &logv1.Redrive{
			Namespace: "default", Keys: keys, Limit: 1 + r.rng.Uint32N(3), RequestId: request,
		}}}
	case 1:
		return &Command{Kind: &logv1.Command_Purge{Purge: &logv1.Purge{
			Namespace: "default", Keys: keys, Limit: 1 + r.rng.Uint32N(3), RequestId: request,
		}}}
	}
	batch := &logv1.Atomic{}
	cancels := r.rng.IntN(2) == 0
	for range 1 + r.rng.IntN(3) {
		c := r.schedule(r.id(), r.request(), 0)
		if cancels {
			c = cancel(r.id())
			c.GetCancel().RequestId = r.request()
		} else if r.rng.IntN(2) == 0 {
			c.GetSchedule().IfExists = ifExistsReplace
		}
		batch.Commands = append(batch.Commands, c)
	}
	return &Command{Kind: &logv1.Command_Atomic{Atomic: batch}}
}

// token is a revision for the timer, in most cases the right one.
func (r *modelRun) token(id string) uint64 {
	t := r.m.pending[id]
	switch {
	case r.rng.IntN(6) == 0:
		return r.m.index - min(r.m.index, r.rng.Uint64N(10))
	case t.paused:
		return t.out
	}
	return t.revision
}

// seen is a timer as a reader sees it, in the words of the model.
func seen(rec *Record) modelTimer {
	x := rec.Extra
	t := modelTimer{
		due: rec.Due, next: rec.NextDue, accepted: rec.Accepted, revision: rec.Revision, attempt: rec.Attempt, most: rec.Retry.MaxAttempts,
		expiry: x.GetExpiryMs(), once: x.GetAtMostOnce(), repeats: x.GetRepeat() != nil, paused: x.GetPaused(), frozen: x.GetFrozen(),
		left: x.GetLeftMs(), out: x.GetOutRevision(), failures: len(x.GetFailures()),
	}
	if r := x.GetRepeat(); r != nil {
		t.repeat = modelRepeat{r.TickMs, r.Fired, r.BacklogMs, r.EndMs, r.MaxCount, r.HasEnd, r.Overlap == overlapAllow}
	}
	return t
}

// compare looks at everything a reader can see.
func (r *modelRun) compare() {
	r.a.same(r.b)
	want := slices.Sorted(maps.Keys(r.m.pending))
	got := ids(r.a.f.List(ListQuery{}))
	if !slices.Equal(got, want) {
		r.Fatalf("list is %v, want %v", got, want)
	}
	paused := 0
	for _, t := range r.m.pending {
		if t.paused {
			paused++
		}
	}
	st := r.a.f.Stats()
	if st.Finished != len(r.m.finished) || st.Requests != len(r.m.writes) || st.Clock != r.m.clock || st.Epoch != r.m.epoch ||
		st.Paused != paused || st.Pending != len(r.m.pending)-paused || st.Dead != len(r.m.letters) {
		r.Fatalf("stats are %+v, want finished=%d requests=%d clock=%d epoch=%d pending=%d paused=%d dead=%d", st, len(r.m.finished),
			len(r.m.writes), r.m.clock, r.m.epoch, len(r.m.pending)-paused, paused, len(r.m.letters))
	}
	names := slices.Collect(maps.Keys(r.m.pending))
	for i := range 60 {
		names = append(names, fmt.Sprintf("t%02d", i))
	}
	for _, id := range names {
		s, ok := r.b.f.Get("default", id)
		t, pending := r.m.pending[id]
		e, finished := r.m.finished[id]
		switch {
		case ok != (pending || finished):
			r.Fatalf("%s: found %v, pending %v, finished %v", id, ok, pending, finished)
		case pending && seen(s.Record) != t:
			r.Fatalf("%s is %s, want %+v", id, statusText(s), t)
		case finished && (s.State != e.state || s.FinishedAt != e.at || s.Record.Revision != e.revision || s.Fired != e.fired || s.HandedAt != e.handed ||
			e.state != Dead && len(s.Record.Extra.GetFailures()) != e.failures):
			r.Fatalf("%s is %s, want %+v", id, statusText(s), e)
		}
	}
	r.compareLetters()
	r.inOrder()
}

func (r *modelRun) compareLetters() {
	page := r.b.f.List(ListQuery{Dead: true})
	var got []modelLetter
	for _, s := range page.Timers {
		rec, d := s.Record, s.Record.Extra.Dead
		if s.State != Dead || d.AtMs > r.m.clock {
			r.Fatalf("a letter is %s", statusText(s))
		}
		got = append(got, modelLetter{
			rec.ID, d.Id, rec.Due, d.Attempts, d.Reason, d.Child, rec.Extra.ExpiryMs, rec.Extra.AtMostOnce, rec.Retry.MaxAttempts,
		})
	}
	if !slices.Equal(got, r.m.letters) {
		r.Fatalf("letters are\n%+v, want\n%+v", got, r.m.letters)
	}
}

// inOrder verifies that a restored replica arms in the order of (next due, acceptance).
func (r *modelRun) inOrder() {
	if r.rng.IntN(20) > 0 {
		return
	}
	r.b = r.b.restored()
	var got []modelTimer
	ops := r.b.feed.take()
	if ops[0].Kind != Reset {
		r.Fatal("a restore does not begin with a reset")
	}
	for _, op := range ops[1:] {
		got = append(got, seen(r.b.f.Record(op.Slot)))
	}
	want := slices.SortedFunc(maps.Values(r.m.pending), func(a, b modelTimer) int {
		return cmp.Or(cmp.Compare(a.next, b.next), cmp.Compare(a.accepted, b.accepted))
	})
	want = slices.DeleteFunc(want, func(t modelTimer) bool { return t.paused })
	if !slices.Equal(got, want) {
		r.Fatalf("restore arms %v, want %v", got, want)
	}
}
