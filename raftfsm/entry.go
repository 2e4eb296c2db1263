package raftfsm

import (
	"fmt"
	"slices"

	logv1 "github.com/carillon-timers/carillon/proto/carillonlog/v1"
)

// entry is a log entry as Apply sees it. It is used again for the next one, and its texts and bytes are those of the log's
// own buffer: they are good until Apply returns, and whoever keeps one copies it.
type entry struct {
	epoch    uint64
	clock    int64
	proposer uint64
	sequence uint64
	begin    bool
	// node is the one that opens an epoch.
	node     string
	commands []command
	// pairs are the headers and labels of all commands.
	pairs []Pair
}

type commandKind uint8

const (
	kindSchedule commandKind = iota + 1
	kindCancel
	kindReschedule
	kindComplete
	kindRetry
	kindPause
	kindResume
	kindAdvance
	kindExpire
	kindRedrive
	kindPurge
	kindAtomic
)

// command is one command of any kind; a field means what that of its name means in the message of the kind.
type command struct {
	kind commandKind
	// firing is that of Cancel and Pause, isDelay that of Schedule and Reschedule; it stands for first, too.
	firing, isDelay bool
	// now is that of Reschedule, freeze that of Pause, ahead that of Complete; the others are those of Retry.
	now, freeze, ahead, dead, returned, lapsed bool
	ifExists                                   uint32
	attempt                                    uint32
	// namespace is never empty.
	namespace, id, queue, contentType string
	// headers and labels are ranges of entry.pairs.
	headers, labels [2]uint32
	payload         []byte
	requestID       []byte
	errorText       string
	due, handed     int64
	// more points to what few commands have; nil if there is nothing.
	more *commandMore
	// expected is the expected revision, revision that of a delivery.
	expected, revision, tokenEpoch, hold uint64
	// retry is the policy as it was sent; what is not set is 0.
	retry RetryPolicy
	// hash is the place of the timer in the indexes. If guessed, the timer may well be in slot guess.
	hash    uint64
	guess   uint32
	guessed bool
	// request is the key of a write with a request ID, if keyed.
	request requestHashes
	keyed   bool
}

// commandMore is what few commands have, in messages of their own.
type commandMore struct {
	extra *logv1.Extra
	next  *logv1.Next
	spawn []int64
	keys  []string
	limit uint32
	// parts are the commands of an Atomic.
	parts []command
}

// extra and next are those of a command, nil if it has none.
func (c *command) extra() *logv1.Extra {
	if c.more == nil {
		return nil
	}
	return c.more.extra
}

func (c *command) next() *logv1.Next {
	if c.more == nil {
		return nil
	}
	return c.more.next
}

func (e *entry) headers(c *command) []Pair { return e.pairs[c.headers[0]:c.headers[1]] }
func (e *entry) labels(c *command) []Pair  { return e.pairs[c.labels[0]:c.labels[1]] }

// maxKeptPairs is how large the buffer of pairs stays.
const maxKeptPairs = 1024

// reset empties the entry and lets go of what its texts belong to.
func (e *entry) reset() {
	commands, pairs := e.commands, e.pairs
	clear(commands)
	clear(pairs)
	if cap(commands) > 2*MaxEntryCommands {
		commands = nil
	}
	if cap(pairs) > maxKeptPairs {
		pairs = nil
	}
	*e = entry{commands: commands[:0], pairs: pairs[:0]}
}

// also is where a command keeps what few commands have.
func (c *command) also() *commandMore {
	if c.more == nil {
		c.more = &commandMore{}
	}
	return c.more
}

// next adds an empty command: what lies behind the last is empty since it was made, or reset.
func (e *entry) next(kind commandKind) *command {
	n := len(e.commands)
	if n == cap(e.commands) {
		e.commands = slices.Grow(e.commands, max(n, 8))
	}
	e.commands = e.commands[:n+1]
	c := &e.commands[n]
	c.kind = kind
	return c
}

// read reads a log entry in its envelope: what EncodeEntry writes without a message for each command, whatever else DecodeEntry
// accepts by way of the messages.
func (e *entry) read(b []byte) error {
	if err := checkEnvelope(b); err != nil {
		return err
	}
	if e.readWire(b[entryHeader:]) {
		return nil
	}
	e.reset()
	m, err := decodeBody(b[entryHeader:])
	if err != nil {
		return err
	}
	e.of(m)
	return nil
}

// of takes over a message.
func (e *entry) of(m *logv1.Entry) {
	e.epoch, e.clock, e.proposer, e.sequence, e.begin = m.Epoch, m.ClockMs, m.Proposer, m.Sequence, m.Begin != nil
	e.node = m.Begin.GetNode()
	for _, c := range m.Commands {
		e.commands = append(e.commands, e.command(c))
	}
}

// command is the message of a command. Its headers and labels lie in the entry.
func (e *entry) command(m *logv1.Command) command {
	switch k := m.Kind.(type) {
	case *logv1.Command_Schedule:
		return e.schedule(k.Schedule)
	case *logv1.Command_Cancel:
		m := k.Cancel
		return command{
			kind: kindCancel, namespace: space(m.Namespace), id: m.Id, expected: m.ExpectedRevision, requestID: m.RequestId,
			firing: m.Firing, hold: m.Hold,
		}
	case *logv1.Command_Reschedule:
		m := k.Reschedule
		return command{
			kind: kindReschedule, namespace: space(m.Namespace), id: m.Id, expected: m.ExpectedRevision, requestID: m.RequestId,
			due: m.DueMs, isDelay: m.IsDelay, now: m.Now,
		}
	case *logv1.Command_Complete:
		m := k.Complete
		c := command{
			kind: kindComplete, namespace: space(m.Namespace), id: m.Id, revision: m.Revision, attempt: m.Attempt,
			tokenEpoch: m.TokenEpoch, hold: m.Hold, handed: m.HandedMs, ahead: m.Ahead,
		}
		c.take(nil, m.Next)
		return c
	case *logv1.Command_Retry:
		m := k.Retry
		c := command{
			kind: kindRetry, namespace: space(m.Namespace), id: m.Id, revision: m.Revision, attempt: m.Attempt,
			tokenEpoch: m.TokenEpoch, hold: m.Hold, handed: m.HandedMs, due: m.DueMs, errorText: m.Error,
			dead: m.Dead, returned: m.Returned, lapsed: m.Lapsed,
		}
		c.take(nil, m.Next)
		return c
	}
	return e.rareCommand(m)
}

// rareCommand is the message of a command of one of the kinds that are rare.
func (e *entry) rareCommand(m *logv1.Command) command {
	switch k := m.Kind.(type) {
	case *logv1.Command_Pause:
		m := k.Pause
		return command{
			kind: kindPause, namespace: space(m.Namespace), id: m.Id, expected: m.ExpectedRevision, requestID: m.RequestId,
			freeze: m.Freeze, firing: m.Firing, hold: m.Hold,
		}
	case *logv1.Command_Resume:
		m := k.Resume
		c := command{
			kind: kindResume, namespace: space(m.Namespace), id: m.Id, expected: m.ExpectedRevision, requestID: m.RequestId,
			revision: m.Revision,
		}
		c.take(nil, m.Next)
		return c
	case *logv1.Command_Advance:
		m := k.Advance
		c := command{
			kind: kindAdvance, namespace: space(m.Namespace), id: m.Id, revision: m.Revision, attempt: m.Attempt, hold: m.Hold,
			more: &commandMore{spawn: m.SpawnMs},
		}
		c.take(nil, m.Next)
		return c
	case *logv1.Command_Expire:
		m := k.Expire
		return command{kind: kindExpire, namespace: space(m.Namespace), id: m.Id, revision: m.Revision, attempt: m.Attempt, hold: m.Hold}
	case *logv1.Command_Redrive:
		m := k.Redrive
		return command{
			kind: kindRedrive, namespace: space(m.Namespace), queue: m.Queue, requestID: m.RequestId,
			more: &commandMore{keys: m.Keys, limit: m.Limit},
		}
	case *logv1.Command_Purge:
		m := k.Purge
		return command{
			kind: kindPurge, namespace: space(m.Namespace), queue: m.Queue, requestID: m.RequestId,
			more: &commandMore{keys: m.Keys, limit: m.Limit},
		}
	case *logv1.Command_Atomic:
		c := command{kind: kindAtomic, more: &commandMore{}}
		for _, part := range k.Atomic.Commands {
			c.more.parts = append(c.more.parts, e.command(part))
		}
		return c
	}
	panic(fmt.Sprintf("raftfsm: a command of kind %T that decodeBody let pass", m.Kind))
}

// take takes over what few commands have.
func (c *command) take(extra *logv1.Extra, next *logv1.Next) {
	if extra != nil {
		c.also().extra = extra
	}
	if next != nil {
		c.also().next = next
	}
}

func (e *entry) schedule(m *logv1.Schedule) command {
	c := command{
		kind: kindSchedule, namespace: space(m.Namespace), id: m.Id, queue: m.Queue, contentType: m.ContentType,
		due: m.DueMs, isDelay: m.IsDelay || m.First, payload: m.Payload, requestID: m.RequestId,
		ifExists: m.IfExists, expected: m.ExpectedRevision,
	}
	if p := m.Retry; p != nil {
		c.retry = RetryPolicy{p.LeaseMs, p.InitialBackoffMs, p.MaxBackoffMs, p.Multiplier, p.MaxAttempts}
	}
	take := func(pairs []*logv1.Pair) [2]uint32 {
		from := len(e.pairs)
		for _, p := range pairs {
			e.pairs = append(e.pairs, Pair{p.Key, p.Value})
		}
		return [2]uint32{uint32(from), uint32(len(e.pairs))}
	}
	c.headers, c.labels = take(m.Headers), take(m.Labels)
	c.take(m.Extra, nil)
	return c
}
