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

// model is what the state means, in the simplest words: maps and slices, no slots, no index. Namespaces are left out.
type model struct {
	retention             int64
	maxFinished, maxWrite int

	index, epoch, accepted, finishings uint64
	clock                              int64
	pending                            map[string]modelTimer
	finished                           map[string]modelEnd
	writes                             []modelWrite
}

type modelTimer struct {
	due, next          int64
	accepted, revision uint64
	attempt            uint32
}

type modelEnd struct {
	state    State
	at       int64
	revision uint64
	firing   bool
	sequence uint64
}

type modelWrite struct {
	key    string
	at     int64
	result Result
}

func newModel(o Options) *model {
	return &model{
		retention: o.Retention, maxFinished: o.MaxFinished, maxWrite: o.MaxRequests,
		pending: map[string]modelTimer{}, finished: map[string]modelEnd{},
	}
}

// apply returns the results without their details.
func (m *model) apply(index uint64, e *logv1.Entry) []Result {
	m.index = index
	results := make([]Result, len(e.Commands))
	if e.Epoch < m.epoch {
		for i := range results {
			results[i] = Result{Code: StaleEpoch}
		}
		return results
	}
	m.epoch = e.Epoch
	m.clock = max(m.clock, e.ClockMs)
	m.drop()
	for i, c := range e.Commands {
		results[i] = m.command(c)
		m.drop()
	}
	return results
}

// drop forgets what is old or too much.
func (m *model) drop() {
	maps.DeleteFunc(m.finished, func(_ string, e modelEnd) bool {
		return m.clock-e.at > m.retention || e.sequence+uint64(m.maxFinished) <= m.finishings
	})
	for len(m.writes) > 0 && (m.clock-m.writes[0].at > m.retention || len(m.writes) > m.maxWrite) {
		m.writes = m.writes[1:]
	}
}

func (m *model) command(c *Command) Result {
	switch k := c.Kind.(type) {
	case *logv1.Command_Schedule:
		return m.once("schedule", k.Schedule.Id, k.Schedule.RequestId, func() Result { return m.schedule(k.Schedule) })
	case *logv1.Command_Cancel:
		return m.once("cancel", k.Cancel.Id, k.Cancel.RequestId, func() Result { return m.cancel(k.Cancel) })
	case *logv1.Command_Reschedule:
		return m.once("reschedule", k.Reschedule.Id, k.Reschedule.RequestId, func() Result { return m.reschedule(k.Reschedule) })
	case *logv1.Command_Complete:
		t, ok := m.pending[k.Complete.Id]
		if !ok || t.revision != k.Complete.Revision || t.attempt != k.Complete.Attempt || k.Complete.TokenEpoch > m.epoch {
			return Result{Code: StaleToken, Revision: t.revision}
		}
		m.end(k.Complete.Id, Fired, false)
		return Result{Revision: m.index}
	case *logv1.Command_Retry:
		t, ok := m.pending[k.Retry.Id]
		if !ok || t.revision != k.Retry.Revision || t.attempt != k.Retry.Attempt || k.Retry.TokenEpoch > m.epoch {
			return Result{Code: StaleToken, Revision: t.revision}
		}
		t.next, t.revision, t.attempt = k.Retry.DueMs, m.index, t.attempt+1
		m.pending[k.Retry.Id] = t
		return Result{Revision: m.index, Due: t.next}
	}
	panic("unknown command")
}

func (m *model) once(kind, id string, request []byte, write func() Result) Result {
	if len(request) == 0 {
		return write()
	}
	key := fmt.Sprintf("%s/%s/%s", kind, id, request)
	for _, w := range m.writes {
		if w.key == key {
			return w.result
		}
	}
	r := write()
	if r.Code == OK {
		m.writes = append(m.writes, modelWrite{key, m.clock, r})
	}
	return r
}

func (m *model) schedule(c *logv1.Schedule) Result {
	old, exists := m.pending[c.Id]
	switch {
	case c.ExpectedRevision != 0 && c.ExpectedRevision != old.revision:
		return Result{Code: RevisionMismatch, Revision: old.revision}
	case exists && c.IfExists == ifExistsKeep:
		return Result{Revision: old.revision, Due: old.next, Answer: AnswerKept}
	case exists && c.IfExists == ifExistsFail:
		return Result{Code: AlreadyExists, Revision: old.revision}
	}
	delete(m.finished, c.Id)
	m.accepted++
	m.pending[c.Id] = modelTimer{c.DueMs, c.DueMs, m.accepted, m.index, 0}
	return Result{Revision: m.index, Due: c.DueMs}
}

func (m *model) cancel(c *logv1.Cancel) Result {
	t, ok := m.pending[c.Id]
	if !ok {
		e, ok := m.finished[c.Id]
		switch {
		case !ok:
			return Result{Code: NotFound}
		case e.state == Fired:
			return Result{Revision: e.revision, Answer: AnswerFired}
		case e.firing:
			return Result{Revision: e.revision, Answer: AnswerFiring}
		}
		return Result{Revision: e.revision, Answer: AnswerCancelled}
	}
	if c.ExpectedRevision != 0 && c.ExpectedRevision != t.revision {
		return Result{Code: RevisionMismatch, Revision: t.revision}
	}
	m.end(c.Id, Cancelled, c.Firing)
	if c.Firing {
		return Result{Revision: m.index, Answer: AnswerFiring}
	}
	return Result{Revision: m.index, Answer: AnswerCancelled}
}

func (m *model) reschedule(c *logv1.Reschedule) Result {
	t, ok := m.pending[c.Id]
	if !ok {
		return m.notPending(c.Id)
	}
	if c.ExpectedRevision != 0 && c.ExpectedRevision != t.revision {
		return Result{Code: RevisionMismatch, Revision: t.revision}
	}
	m.accepted++
	m.pending[c.Id] = modelTimer{c.DueMs, c.DueMs, m.accepted, m.index, 0}
	return Result{Revision: m.index, Due: c.DueMs}
}

func (m *model) notPending(id string) Result {
	if e, ok := m.finished[id]; ok {
		return Result{Code: NotPending, Revision: e.revision, Answer: uint32(e.state)}
	}
	return Result{Code: NotFound}
}

func (m *model) end(id string, how State, firing bool) {
	m.finishings++
	m.finished[id] = modelEnd{how, m.clock, m.index, firing, m.finishings}
	delete(m.pending, id)
}

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
	seeds := []uint64{1, 2, 3}
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
	r := &modelRun{T: t, rng: rng, m: newModel(o), a: newReplica(t, o), b: newReplica(t, o), epoch: 1, now: 10_000}
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
			r.a.f.HandOut(r.epoch, 0, []Ref{d.Ref}, nil)
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
		if !reflect.DeepEqual(got, want[i]) {
			r.Fatalf("at %d: %s: got %s, want %s", index, nameOf(e.Commands[i]), resultText(got), resultText(want[i]))
		}
	}
}

func (r *modelRun) command() *Command {
	id := fmt.Sprintf("t%02d", r.rng.IntN(60))
	request := []byte(nil)
	if r.rng.IntN(3) == 0 {
		request = []byte{'r', byte('0' + r.rng.IntN(4))}
	}
	due := r.now + int64(r.rng.IntN(400)) - 100
	revision, attempt, expected := r.token(id), uint32(0), uint64(0)
	if t, ok := r.m.pending[id]; ok && r.rng.IntN(4) > 0 {
		attempt = t.attempt
	}
	if r.rng.IntN(6) == 0 {
		expected = revision
	}
	switch r.rng.IntN(8) {
	case 0:
		c := cancel(id)
		c.GetCancel().RequestId, c.GetCancel().ExpectedRevision = request, expected
		return c
	case 1:
		c := reschedule(id, due)
		c.GetReschedule().RequestId, c.GetReschedule().ExpectedRevision = request, expected
		return c
	case 2:
		return complete(id, revision, attempt, r.epoch+1-r.rng.Uint64N(3))
	case 3:
		return retry(id, revision, attempt, r.epoch+1-r.rng.Uint64N(3))
	}
	c := schedule(id, due).GetSchedule()
	c.RequestId, c.ExpectedRevision, c.IfExists = request, expected, r.rng.Uint32N(3)
	if r.rng.IntN(2) == 0 {
		c.IsDelay, c.DelayMs = true, int64(r.rng.IntN(300))
	}
	c.Payload = make([]byte, r.rng.IntN(20))
	return scheduleOf(c)
}

// token is a revision for the timer, in most cases the right one.
func (r *modelRun) token(id string) uint64 {
	if r.rng.IntN(5) == 0 {
		return r.m.index - min(r.m.index, r.rng.Uint64N(10))
	}
	return r.m.pending[id].revision
}

// compare looks at everything a reader can see.
func (r *modelRun) compare() {
	r.a.same(r.b)
	want := slices.Sorted(maps.Keys(r.m.pending))
	got := ids(r.a.f.List(ListQuery{}))
	if !slices.Equal(got, want) {
		r.Fatalf("list is %v, want %v", got, want)
	}
	st := r.a.f.Stats()
	if st.Finished != len(r.m.finished) || st.Requests != len(r.m.writes) || st.Clock != r.m.clock || st.Epoch != r.m.epoch {
		r.Fatalf("stats are %+v, want finished=%d requests=%d clock=%d epoch=%d", st, len(r.m.finished), len(r.m.writes), r.m.clock, r.m.epoch)
	}
	for i := range 60 {
		id := fmt.Sprintf("t%02d", i)
		s, ok := r.b.f.Get("default", id)
		t, pending := r.m.pending[id]
		e, finished := r.m.finished[id]
		switch {
		case ok != (pending || finished):
			r.Fatalf("%s: found %v, pending %v, finished %v", id, ok, pending, finished)
		case pending && (modelTimer{s.Record.Due, s.Record.NextDue, s.Record.Accepted, s.Record.Revision, s.Record.Attempt} != t):
			r.Fatalf("%s is %+v, want %+v", id, s.Record, t)
		case finished && (s.State != e.state || s.FinishedAt != e.at || s.Record.Revision != e.revision):
			r.Fatalf("%s is %s, want %+v", id, statusText(s), e)
		}
	}
	r.inOrder()
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
		rec := r.b.f.Record(op.Slot)
		got = append(got, modelTimer{rec.Due, rec.NextDue, rec.Accepted, rec.Revision, rec.Attempt})
	}
	want := slices.SortedFunc(maps.Values(r.m.pending), func(a, b modelTimer) int {
		return cmp.Or(cmp.Compare(a.next, b.next), cmp.Compare(a.accepted, b.accepted))
	})
	if !slices.Equal(got, want) {
		r.Fatalf("restore arms %v, want %v", got, want)
	}
}
