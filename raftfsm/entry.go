package raftfsm

import (
	"fmt"

	logv1 "github.com/carillon-timers/carillon/proto/carillonlog/v1"
)

// entry is a log entry as Apply sees it. It is used again for the next one, and its texts and bytes are those of the log's
// own buffer: they are good until Apply returns, and whoever keeps one copies it. Guarded by FSM.mu.
type entry struct {
	epoch    uint64
	clock    int64
	proposer uint64
	sequence uint64
	begin    bool
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
)

// command is one command of any kind; a field means what that of its name means in the message of the kind.
type command struct {
	kind commandKind
	// firing is that of Cancel, isDelay that of Schedule and Reschedule.
	firing, isDelay bool
	ifExists        uint32
	attempt         uint32
	// namespace is never empty.
	namespace, id, queue, contentType string
	// headers and labels are ranges of entry.pairs.
	headers, labels [2]uint32
	payload         []byte
	requestID       []byte
	errorText       string
	due             int64
	// expected is the expected revision, revision that of a delivery.
	expected, revision, tokenEpoch, hold uint64
	// retry is the policy as it was sent; what is not set is 0.
	retry RetryPolicy
	// hash is the place of the timer in the indexes, hint that in the order. If guessed, the timer may well be in slot guess.
	hash    uint64
	hint    orderHint
	guess   uint32
	guessed bool
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

// next adds an empty command.
func (e *entry) next(kind commandKind) *command {
	e.commands = append(e.commands, command{kind: kind})
	return &e.commands[len(e.commands)-1]
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
	for _, c := range m.Commands {
		e.command(c)
	}
}

// command takes over the message of a command.
func (e *entry) command(m *logv1.Command) *command {
	switch k := m.Kind.(type) {
	case *logv1.Command_Schedule:
		return e.schedule(k.Schedule)
	case *logv1.Command_Cancel:
		c, m := e.next(kindCancel), k.Cancel
		c.namespace, c.id, c.expected, c.requestID = space(m.Namespace), m.Id, m.ExpectedRevision, m.RequestId
		c.firing, c.hold = m.Firing, m.Hold
		return c
	case *logv1.Command_Reschedule:
		c, m := e.next(kindReschedule), k.Reschedule
		c.namespace, c.id, c.expected, c.requestID = space(m.Namespace), m.Id, m.ExpectedRevision, m.RequestId
		c.due, c.isDelay = m.DueMs, m.IsDelay
		return c
	case *logv1.Command_Complete:
		c, m := e.next(kindComplete), k.Complete
		c.namespace, c.id, c.revision, c.attempt, c.tokenEpoch, c.hold = space(m.Namespace), m.Id, m.Revision, m.Attempt, m.TokenEpoch, m.Hold
		return c
	case *logv1.Command_Retry:
		c, m := e.next(kindRetry), k.Retry
		c.namespace, c.id, c.revision, c.attempt, c.tokenEpoch, c.hold = space(m.Namespace), m.Id, m.Revision, m.Attempt, m.TokenEpoch, m.Hold
		c.due, c.errorText = m.DueMs, m.Error
		return c
	}
	panic(fmt.Sprintf("raftfsm: a command of kind %T that decodeBody let pass", m.Kind))
}

func (e *entry) schedule(m *logv1.Schedule) *command {
	c := e.next(kindSchedule)
	c.namespace, c.id, c.queue, c.contentType = space(m.Namespace), m.Id, m.Queue, m.ContentType
	c.due, c.isDelay, c.payload, c.requestID = m.DueMs, m.IsDelay, m.Payload, m.RequestId
	c.ifExists, c.expected = m.IfExists, m.ExpectedRevision
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
	return c
}
