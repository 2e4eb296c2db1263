package raftfsm

import "strings"

// All methods here are called with mu held.

const (
	// lettersBytes is how many bytes of payload one Redrive or Purge moves, at least one letter; lettersLook how many letters
	// those without keys look at in one entry. What is left is said by AnswerMore.
	lettersBytes = MaxBatchBytes
	lettersLook  = 1 << 20
)

// letters redrives or purges dead letters.
func (f *FSM) letters(c *command) Result {
	if r := validLetters(c); r != nil {
		return *r
	}
	one := f.redriveOne
	if c.kind == kindPurge {
		one = f.purgeOne
	}
	namespace := deadNamespace(c.namespace)
	return f.once(c, func() Result {
		keys, more := c.more.keys, false
		if len(keys) == 0 {
			keys, more = f.lettersOf(namespace, c.queue, int(c.more.limit))
		}
		out, moved := Result{Revision: f.s.index}, 0
		for i, key := range keys {
			t := f.s.find(namespace, key)
			if t.pending {
				moved += len(f.s.table.body(&t.record).payload)
			}
			if i > 0 && moved > lettersBytes {
				more = true
				break
			}
			r := Result{Code: NotFound}
			if t.pending {
				r = one(&t, c.namespace)
			}
			if r.Key = strings.Clone(key); r.Code == OK {
				out.Due++
			}
			out.Items = append(out.Items, r)
		}
		if more {
			out.Answer = AnswerMore
		}
		return out
	})
}

func validLetters(c *command) *Result {
	if r := validKey(c.namespace, "-"); r != nil {
		return r
	}
	if len(c.more.keys) > MaxBatchItems {
		return invalid("keys", "%d; at most %d are allowed", len(c.more.keys), MaxBatchItems)
	}
	for _, key := range c.more.keys {
		if r := validName("keys", key, MaxIDBytes); r != nil {
			return r
		}
	}
	if len(c.queue) > MaxQueueBytes {
		return invalid("queue", "%d bytes; at most %d are allowed", len(c.queue), MaxQueueBytes)
	}
	return validRequestID(c.requestID)
}

// lettersOf is the keys of the first letters of a namespace, for a queue if it is not empty, and whether there are more.
func (f *FSM) lettersOf(namespace, queue string, limit int) (keys []string, more bool) {
	if limit <= 0 || limit > MaxBatchItems {
		limit = MaxBatchItems
	}
	s := f.s
	s.order.from(namespace, "", func(slot uint32) bool {
		in := s.table.inner(s.table.where(slot))
		p := &s.table.profiles[blobProfile(in)]
		if p.namespace != namespace {
			return false
		}
		if f.looked++; len(keys) == limit || f.looked > lettersLook {
			more = true
			return false
		}
		if queue == "" || p.queue == queue {
			keys = append(keys, string(blobID(in)))
		}
		return true
	})
	return keys, more
}

// redriveOne makes a timer of a dead letter again, under the ID that it had, or that one due time of a repeat has.
func (f *FSM) redriveOne(letter *target, namespace string) Result {
	s := f.s
	e := s.edit(letter)
	dead, x := e.extra.Dead, e.extra
	id := dead.GetId()
	if dead.GetChild() {
		child, r := childID(id, e.body.due)
		if r != nil {
			return *r
		}
		id = child
	}
	if x.ExpiryMs != 0 && x.ExpiryMs <= s.clock {
		return *invalid("expiry", "%d has passed", x.ExpiryMs)
	}
	t := s.find(namespace, id)
	if t.pending {
		return Result{Code: AlreadyExists, Revision: t.record.revision, Detail: revisionText(t.record.revision)}
	}
	if seq, ok := s.findFinished(&t); ok {
		s.forget(seq)
	}
	x.Dead, x.Failures = nil, nil
	b := e.body
	b.id, b.due, b.created, b.lastError, b.extra = id, s.clock, s.clock, "", encodeExtra(x)
	r := f.addLike(&t, e, &b, x, s.clock)
	f.s.remove(letter)
	return r
}

func (f *FSM) purgeOne(letter *target, _ string) Result {
	f.s.remove(letter)
	return Result{Revision: f.s.index}
}
