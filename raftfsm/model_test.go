package raftfsm

import (
	"fmt"
	"maps"

	logv1 "github.com/carillon-timers/carillon/proto/carillonlog/v1"
)

// model is what the state means, in the simplest words: maps and slices, no slots, no index. Namespaces are left out.
type model struct {
	retention             int64
	maxFinished, maxWrite int

	index, epoch, accepted, finishings uint64
	clock                              int64
	pending                            map[string]modelTimer
	finished                           map[string]modelEnd
	writes                             []modelWrite
	// letters are the dead letters in the order of their deaths; deaths counts those of this entry.
	letters []modelLetter
	deaths  int
}

type modelTimer struct {
	due, next          int64
	accepted, revision uint64
	attempt, most      uint32
	expiry             int64
	once               bool
	repeats            bool
	repeat             modelRepeat
	paused, frozen     bool
	left               int64
	out                uint64
	failures           int
}

type modelRepeat struct {
	tick, fired, backlog, end, count int64
	hasEnd, allow                    bool
}

type modelEnd struct {
	state    State
	at       int64
	revision uint64
	firing   bool
	sequence uint64
	fired    int64
	handed   int64
	failures int
}

type modelWrite struct {
	key    string
	at     int64
	result Result
}

type modelLetter struct {
	key, id  string
	due      int64
	attempts uint32
	reason   uint32
	child    bool
	expiry   int64
	once     bool
	most     uint32
}

func newModel(o Options) *model {
	return &model{
		retention: o.Retention, maxFinished: o.MaxFinished, maxWrite: o.MaxRequests,
		pending: map[string]modelTimer{}, finished: map[string]modelEnd{},
	}
}

// apply returns the results without their details.
func (m *model) apply(index uint64, e *logv1.Entry) []Result {
	m.index, m.deaths = index, 0
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
		if r, ok := m.validSchedule(k.Schedule); !ok {
			return r
		}
		return m.once("schedule", k.Schedule.Id, k.Schedule.RequestId, func() Result { return m.schedule(k.Schedule, false) })
	case *logv1.Command_Cancel:
		return m.once("cancel", k.Cancel.Id, k.Cancel.RequestId, func() Result { return m.cancel(k.Cancel, false) })
	case *logv1.Command_Reschedule:
		kind := map[bool]string{false: "reschedule", true: "fire now"}[k.Reschedule.Now]
		return m.once(kind, k.Reschedule.Id, k.Reschedule.RequestId, func() Result { return m.reschedule(k.Reschedule) })
	case *logv1.Command_Pause:
		return m.once("pause", k.Pause.Id, k.Pause.RequestId, func() Result { return m.pause(k.Pause) })
	case *logv1.Command_Resume:
		return m.once("resume", k.Resume.Id, k.Resume.RequestId, func() Result { return m.resume(k.Resume) })
	case *logv1.Command_Complete:
		return m.complete(k.Complete)
	case *logv1.Command_Retry:
		return m.retry(k.Retry)
	case *logv1.Command_Advance:
		return m.advance(k.Advance)
	case *logv1.Command_Expire:
		t, ok := m.pending[k.Expire.Id]
		if !ok || t.revision != k.Expire.Revision || t.attempt != k.Expire.Attempt || t.paused || t.expiry == 0 || m.clock < t.expiry {
			return Result{Code: StaleToken, Revision: t.revision}
		}
		m.end(k.Expire.Id, Expired, false, 0)
		return Result{Revision: m.index}
	case *logv1.Command_Redrive:
		return m.once("redrive", "", k.Redrive.RequestId, func() Result { return m.eachLetter(k.Redrive.Keys, k.Redrive.Limit, m.redrive) })
	case *logv1.Command_Purge:
		return m.once("purge", "", k.Purge.RequestId, func() Result {
			return m.eachLetter(k.Purge.Keys, k.Purge.Limit, func(modelLetter) (Result, bool) { return Result{Revision: m.index}, true })
		})
	case *logv1.Command_Atomic:
		return m.atomic(k.Atomic.Commands)
	}
	panic("unknown command")
}

func (m *model) once(kind, id string, request []byte, write func() Result) Result {
	if r, ok := m.remembered(kind, id, request); ok {
		return r
	}
	r := write()
	if r.Code == OK && len(request) > 0 {
		kept := r
		kept.Items = nil
		m.writes = append(m.writes, modelWrite{fmt.Sprintf("%s/%s/%s", kind, id, request), m.clock, kept})
	}
	return r
}

func (m *model) remembered(kind, id string, request []byte) (Result, bool) {
	for _, w := range m.writes {
		if len(request) > 0 && w.key == fmt.Sprintf("%s/%s/%s", kind, id, request) {
			return w.result, true
		}
	}
	return Result{}, false
}

func (m *model) validSchedule(c *logv1.Schedule) (Result, bool) {
	x := c.Extra
	bad := x != nil && (x.ExpiryMs != 0 && x.ExpiryMs <= c.DueMs || x.AtMostOnce && c.Retry.GetMaxAttempts() > 1 ||
		x.Repeat.GetHasEnd() && x.Repeat.EndMs < x.Repeat.TickMs)
	return Result{Code: Invalid}, !bad
}

// schedule only says what it would come to if it is dry.
func (m *model) schedule(c *logv1.Schedule, dry bool) Result {
	old, exists := m.pending[c.Id]
	switch {
	case c.ExpectedRevision != 0 && c.ExpectedRevision != old.revision:
		return Result{Code: RevisionMismatch, Revision: old.revision}
	case exists && c.IfExists == ifExistsKeep:
		return Result{Revision: old.revision, Due: old.next, Answer: AnswerKept}
	case exists && c.IfExists == ifExistsFail:
		return Result{Code: AlreadyExists, Revision: old.revision}
	case dry:
		return Result{}
	}
	t := modelTimer{most: c.Retry.GetMaxAttempts(), expiry: c.Extra.GetExpiryMs(), once: c.Extra.GetAtMostOnce()}
	if r := c.Extra.GetRepeat(); r != nil {
		t.repeats = true
		t.repeat = modelRepeat{tick: r.TickMs, end: r.EndMs, count: r.MaxCount, hasEnd: r.HasEnd, allow: r.Overlap == overlapAllow}
	}
	return m.add(c.Id, t, c.DueMs)
}

func (m *model) add(id string, t modelTimer, due int64) Result {
	delete(m.finished, id)
	m.accepted++
	t.due, t.next, t.accepted = due, due, m.accepted
	return m.put(id, t)
}

func (m *model) put(id string, t modelTimer) Result {
	t.revision = m.index
	m.pending[id] = t
	return Result{Revision: m.index, Due: t.next}
}

// freeze notes the time that is left.
func (m *model) freeze(t *modelTimer) {
	if t.frozen {
		t.left = max(0, t.next-m.clock)
	}
}

func (m *model) cancel(c *logv1.Cancel, dry bool) Result {
	t, ok := m.pending[c.Id]
	if !ok {
		e, ok := m.finished[c.Id]
		switch {
		case !ok:
			return Result{Code: NotFound}
		case e.state == Dead || e.state == Expired:
			return m.notPending(c.Id)
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
	if dry {
		return Result{}
	}
	firing := c.Firing || t.out != 0
	m.end(c.Id, Cancelled, firing, 0)
	if firing {
		return Result{Revision: m.index, Answer: AnswerFiring}
	}
	return Result{Revision: m.index, Answer: AnswerCancelled}
}

// change finds the timer of a change by a client; refused is the answer if it cannot be made.
func (m *model) change(id string, expected uint64) (t modelTimer, refused Result, ok bool) {
	t, ok = m.pending[id]
	switch {
	case !ok:
		return t, m.notPending(id), false
	case expected != 0 && expected != t.revision:
		return t, Result{Code: RevisionMismatch, Revision: t.revision}, false
	}
	return t, Result{}, true
}

func (m *model) reschedule(c *logv1.Reschedule) Result {
	t, refused, ok := m.change(c.Id, c.ExpectedRevision)
	switch {
	case !ok:
		return refused
	case c.Now && t.paused:
		return Result{Code: IsPaused, Revision: t.revision}
	case c.Now && t.next <= m.clock:
		return Result{Revision: t.revision, Due: t.next}
	case c.Now:
		m.accepted++
		t.accepted, t.next, t.due = m.accepted, m.clock, min(t.due, m.clock)
		return m.put(c.Id, t)
	case t.repeat.hasEnd && c.DueMs > t.repeat.end, t.expiry != 0 && c.DueMs >= t.expiry:
		return Result{Code: Invalid}
	}
	m.accepted++
	t.due, t.next, t.accepted, t.attempt, t.failures, t.out = c.DueMs, c.DueMs, m.accepted, 0, 0, 0
	if t.repeats {
		t.repeat.tick, t.repeat.backlog = c.DueMs, 0
	}
	m.freeze(&t)
	return m.put(c.Id, t)
}

func (m *model) notPending(id string) Result {
	if e, ok := m.finished[id]; ok {
		return Result{Code: NotPending, Revision: e.revision, Answer: uint32(e.state)}
	}
	return Result{Code: NotFound}
}

func (m *model) end(id string, how State, firing bool, handed int64) {
	m.finishings++
	m.finished[id] = modelEnd{how, m.clock, m.index, firing, m.finishings, m.pending[id].repeat.fired, handed, m.pending[id].failures}
	delete(m.pending, id)
}
