package raftfsm

import (
	"fmt"
	"slices"

	logv1 "github.com/carillon-timers/carillon/proto/carillonlog/v1"
)

// The part of the model that is about deliveries, repeats, pauses, dead letters and batches.

func (m *model) pause(c *logv1.Pause) Result {
	t, refused, ok := m.change(c.Id, c.ExpectedRevision)
	switch {
	case !ok:
		return refused
	case t.paused:
		return Result{Revision: t.revision, Due: t.next}
	}
	t.paused, t.frozen = true, c.Freeze
	if c.Firing {
		t.out = t.revision
	}
	m.freeze(&t)
	return m.put(c.Id, t)
}

func (m *model) resume(c *logv1.Resume) Result {
	t, refused, ok := m.change(c.Id, c.ExpectedRevision)
	switch {
	case !ok:
		return refused
	case !t.paused:
		return Result{Code: NotPaused, Revision: t.revision}
	}
	next := t.next
	if t.frozen {
		next = m.clock + t.left
	}
	if t.repeats && t.attempt == 0 {
		ended := false
		if t.frozen {
			t.repeat.tick, t.repeat.backlog = next, 0
			ended = t.repeat.hasEnd && next > t.repeat.end
		} else if t.due >= t.repeat.tick && t.due <= m.clock && t.repeat.tick > t.repeat.backlog {
			if c.Next == nil || c.Revision != t.revision {
				return Result{Code: StaleEpoch}
			}
			t.repeat.tick, t.repeat.backlog, next, ended = c.Next.TickMs, c.Next.BacklogMs, c.Next.DueMs, c.Next.Ended
		}
		if ended {
			m.end(c.Id, Fired, false, 0)
			return Result{Revision: m.index}
		}
	}
	m.accepted++
	t.accepted, t.next = m.accepted, next
	if t.attempt == 0 {
		t.due = next
	}
	t.paused, t.frozen, t.left, t.out = false, false, 0, 0
	return m.put(c.Id, t)
}

// delivery finds the timer of a delivery.
func (m *model) delivery(id string, revision uint64, attempt uint32, epoch uint64) (modelTimer, bool) {
	t, ok := m.pending[id]
	good := t.revision
	if t.paused {
		good = t.out
	}
	return t, ok && good != 0 && good == revision && t.attempt == attempt && epoch <= m.epoch
}

func (m *model) complete(c *logv1.Complete) Result {
	t, ok := m.delivery(c.Id, c.Revision, c.Attempt, c.TokenEpoch)
	if !ok || c.Ahead && (!t.once || t.paused || c.TokenEpoch != m.epoch) {
		return Result{Code: StaleToken, Revision: t.revision}
	}
	if !t.repeats {
		m.end(c.Id, Fired, false, c.HandedMs)
		return Result{Revision: m.index}
	}
	if c.Next == nil {
		return Result{Code: StaleEpoch}
	}
	t.repeat.fired++
	return m.goOn(c.Id, t, c.Next, Fired, c.HandedMs)
}

func (t *modelTimer) lasts(n *logv1.Next) bool {
	return !n.Ended && (t.repeat.count == 0 || t.repeat.fired < t.repeat.count) && (t.expiry == 0 || n.DueMs < t.expiry)
}

// goOn moves a repeat to its next due time, or ends it.
func (m *model) goOn(id string, t modelTimer, n *logv1.Next, how State, handed int64) Result {
	m.pending[id] = t
	if !t.lasts(n) {
		m.end(id, how, false, handed)
		return Result{Revision: m.index}
	}
	m.accepted++
	t.repeat.tick, t.repeat.backlog = n.TickMs, n.BacklogMs
	t.due, t.next, t.accepted, t.attempt, t.failures, t.out = n.DueMs, n.DueMs, m.accepted, 0, 0, 0
	m.freeze(&t)
	return m.put(id, t)
}

func (m *model) retry(c *logv1.Retry) Result {
	t, ok := m.delivery(c.Id, c.Revision, c.Attempt, c.TokenEpoch)
	if !ok {
		return Result{Code: StaleToken, Revision: t.revision}
	}
	t.out = 0
	if c.Returned {
		return m.put(c.Id, t)
	}
	t.attempt++
	t.failures = min(maxFailures, t.failures+1)
	if c.Dead || t.most > 0 && t.attempt >= t.most {
		return m.die(c, t)
	}
	if t.expiry != 0 && c.DueMs >= t.expiry {
		m.pending[c.Id] = t
		m.end(c.Id, Expired, false, c.HandedMs)
		return Result{Revision: m.index}
	}
	t.next = c.DueMs
	m.freeze(&t)
	return m.put(c.Id, t)
}

func (m *model) die(c *logv1.Retry, t modelTimer) Result {
	letter := modelLetter{id: c.Id, due: t.due, attempts: t.attempt, reason: deadAttempts, expiry: t.expiry, once: t.once, most: t.most}
	if c.Dead {
		letter.reason = deadRefused
	}
	if t.repeats {
		if c.Next == nil {
			return Result{Code: StaleEpoch}
		}
		t.repeat.fired++
		letter.due, letter.child = t.repeat.tick, t.lasts(c.Next)
	}
	m.deaths++
	m.accepted++
	letter.key = fmt.Sprintf("%016x%08x", m.index, m.deaths)
	m.letters = append(m.letters, letter)
	if t.repeats {
		return m.goOn(c.Id, t, c.Next, Dead, c.HandedMs)
	}
	m.end(c.Id, Dead, false, c.HandedMs)
	return Result{Revision: m.index}
}

func (m *model) advance(c *logv1.Advance) Result {
	t, ok := m.pending[c.Id]
	if !ok || t.revision != c.Revision || t.attempt != c.Attempt || !t.repeats || t.paused {
		return Result{Code: StaleToken, Revision: t.revision}
	}
	if c.Next == nil {
		return Result{Code: StaleEpoch}
	}
	for _, due := range c.SpawnMs {
		if t.repeat.count > 0 && t.repeat.fired >= t.repeat.count {
			break
		}
		t.repeat.fired++
		child := fmt.Sprintf("{%s}@%d", c.Id, due)
		if _, ok := m.pending[child]; !ok {
			m.add(child, modelTimer{most: t.most, expiry: t.expiry, once: t.once}, due)
		}
	}
	return m.goOn(c.Id, t, c.Next, Fired, 0)
}

// eachLetter redrives or purges letters: those with the keys, or the first.
func (m *model) eachLetter(keys []string, limit uint32, one func(modelLetter) (Result, bool)) Result {
	out := Result{Revision: m.index}
	if len(keys) == 0 {
		for _, l := range m.letters {
			if len(keys) == int(limit) {
				out.Answer = AnswerMore
				break
			}
			keys = append(keys, l.key)
		}
	}
	for _, key := range keys {
		r := Result{Code: NotFound}
		if i := slices.IndexFunc(m.letters, func(l modelLetter) bool { return l.key == key }); i >= 0 {
			var gone bool
			if r, gone = one(m.letters[i]); gone {
				m.letters = slices.Delete(slices.Clone(m.letters), i, i+1)
				out.Due++
			}
		}
		r.Key = key
		out.Items = append(out.Items, r)
	}
	return out
}

func (m *model) redrive(l modelLetter) (Result, bool) {
	id := l.id
	if l.child {
		id = fmt.Sprintf("{%s}@%d", l.id, l.due)
	}
	if l.expiry != 0 && l.expiry <= m.clock {
		return Result{Code: Invalid}, false
	}
	if t, ok := m.pending[id]; ok {
		return Result{Code: AlreadyExists, Revision: t.revision}, false
	}
	return m.add(id, modelTimer{most: l.most, expiry: l.expiry, once: l.once}, m.clock), true
}

func (m *model) atomic(cmds []*Command) Result {
	seen := map[string]bool{}
	out := Result{Revision: m.index}
	for i, c := range cmds {
		r, id := Result{}, c.GetCancel().GetId()
		if s := c.GetSchedule(); s != nil {
			id = s.Id
			if refused, ok := m.validSchedule(s); !ok {
				r = refused
			} else if _, ok := m.remembered("schedule", id, s.RequestId); !ok {
				r = m.schedule(s, true)
			}
		} else if _, ok := m.remembered("cancel", id, c.GetCancel().RequestId); !ok {
			r = m.cancel(c.GetCancel(), true)
		}
		if seen[id] {
			r = Result{Code: Invalid}
		}
		if seen[id] = true; r.Code != OK {
			r.Answer = uint32(i)
			return r
		}
	}
	// What is remembered is looked up before the batch pushes it out of the window.
	kept := make([]*Result, len(cmds))
	for i, c := range cmds {
		kind, id, request := "cancel", c.GetCancel().GetId(), c.GetCancel().GetRequestId()
		if s := c.GetSchedule(); s != nil {
			kind, id, request = "schedule", s.Id, s.RequestId
		}
		if r, ok := m.remembered(kind, id, request); ok {
			kept[i] = &r
		}
	}
	for i, c := range cmds {
		if kept[i] != nil {
			out.Items = append(out.Items, *kept[i])
			continue
		}
		out.Items = append(out.Items, m.command(c))
		m.drop()
	}
	return out
}
