package transport

import (
	"cmp"
	"context"
	"fmt"
	"math"
	"slices"
	"strings"
	"time"

	carillonv1 "github.com/carillon-timers/carillon/proto/carillon/v1"
	logv1 "github.com/carillon-timers/carillon/proto/carillonlog/v1"
	"github.com/carillon-timers/carillon/raftfsm"
)

// Kinds of events, a part of the contract.
const (
	eventAccepted  = "accepted"
	eventDue       = "due"
	eventHandedOut = "handed-out"
	eventFailed    = "failed"
	eventLapsed    = "lapsed"
	eventAcked     = "acked"
	eventCancelled = "cancelled"
	eventPaused    = "paused"
	eventExpired   = "expired"
	eventDead      = "dead"
	eventLeader    = "leader"
)

// lateMillis is from when on Explain says why something was late.
const lateMillis = 50

// Explain tells a timer's life from what its shard has kept.
func (t *timers) Explain(ctx context.Context, r *carillonv1.ExplainRequest) (*carillonv1.ExplainResponse, error) {
	if err := checkExplain(r); err != nil {
		return nil, err
	}
	status, err := t.server.backend.Get(ctx, namespaceOf(r.Namespace), r.Id)
	if err != nil {
		return nil, err
	}
	return &carillonv1.ExplainResponse{
		Timer: timerStatus(status, t.shardOf(r.Namespace, r.Id)), Events: explain(status, t.server.config.Now().UnixMilli()),
	}, nil
}

// explain makes events of what is kept, in the order of time. What is not known is left out.
func explain(status raftfsm.Status, now int64) []*carillonv1.Event {
	s := &story{status: status, record: status.Record, until: now}
	if status.FinishedAt != 0 {
		s.until = status.FinishedAt
	}
	s.begin()
	s.attempts()
	s.end()
	s.leaders()
	slices.SortStableFunc(s.events, func(a, b event) int {
		return cmp.Or(cmp.Compare(a.at, b.at), cmp.Compare(a.order, b.order))
	})
	events := make([]*carillonv1.Event, len(s.events))
	for i, e := range s.events {
		e.At = moment(e.at)
		events[i] = e.Event
	}
	return events
}

// story collects the events of one timer.
type story struct {
	status raftfsm.Status
	record *raftfsm.Record
	until  int64 // now, or when it was finished
	events []event
}

// event is an Event whose place is still to be found: by time, then by what comes first within a millisecond.
type event struct {
	at    int64
	order int
	*carillonv1.Event
}

// firstKinds come before all others of their millisecond, in this order.
var firstKinds = []string{eventLeader, eventAccepted, eventDue}

// add adds what happened under an epoch; 0 means the one of that time.
func (s *story) add(at int64, kind string, epoch uint64, text string) {
	order := slices.Index(firstKinds, kind)
	if order < 0 {
		order = len(firstKinds)
	}
	reign := s.reignAt(at)
	if epoch != 0 {
		reign = s.reignOf(epoch)
	}
	s.events = append(s.events, event{at, order, &carillonv1.Event{Kind: kind, Node: reign.Node, Epoch: int64(reign.Epoch), Text: text}})
}

// reignOf is the reign of an epoch; without a node if that is not kept any more.
func (s *story) reignOf(epoch uint64) raftfsm.Reign {
	for _, r := range s.status.Reigns {
		if r.Epoch == epoch {
			return r
		}
	}
	return raftfsm.Reign{Epoch: epoch}
}

// reignAt is the last reign that had begun at a time; empty if that is not kept any more.
func (s *story) reignAt(at int64) raftfsm.Reign {
	var last raftfsm.Reign
	for _, r := range s.status.Reigns {
		if r.Begun <= at {
			last = r
		}
	}
	return last
}

func (s *story) begin() {
	r, text := s.record, ""
	if late := r.Created - r.Due; late > 0 && r.Extra.GetRepeat() == nil {
		text = showWait(late) + " after its due time"
	}
	s.add(r.Created, eventAccepted, 0, text)
	if r.Extra.GetPaused() {
		if at := r.Extra.PausedMs; at != 0 {
			s.add(at, eventPaused, 0, pauseText(r.Extra))
		}
		return
	}
	if r.Due <= s.until {
		s.add(r.Due, eventDue, 0, s.dueText())
	}
}

func pauseText(x *logv1.Extra) string {
	if x.Frozen {
		return showWait(x.LeftMs) + " were left"
	}
	return ""
}

// dueText says what is to be said of the due time: which one it is, and why it waits.
func (s *story) dueText() string {
	var parts []string
	if repeat := s.record.Extra.GetRepeat(); repeat != nil {
		if repeat.Fired > 0 {
			parts = append(parts, fmt.Sprintf("%d due times of the repeat were fired before", repeat.Fired))
		}
		if placed := s.record.Due - repeat.TickMs; placed > 0 && repeat.TickMs != 0 && s.record.Extra.WindowMs > 0 {
			parts = append(parts, showWait(placed)+" into its window")
		}
	}
	if s.status.State == raftfsm.Pending && s.record.Attempt == 0 {
		if late := s.lateText(max(s.record.NextDue, s.record.Created), s.until); late != "" {
			parts = append(parts, "not handed out yet, "+late)
		}
	}
	return strings.Join(parts, "; ")
}

// attempts adds the failed attempts that are kept, and the last hand-out.
func (s *story) attempts() {
	failures := s.record.Extra.GetFailures()
	for i, f := range failures {
		number := int(s.record.Attempt) - len(failures) + 1 + i
		if f.HandedMs != 0 {
			s.handedOut(f.HandedMs, f.Epoch, number)
		}
		kind, text := eventFailed, f.Error
		if f.Lapsed {
			kind, text = eventLapsed, "there was no answer before the lease ended"
		}
		if i == len(failures)-1 && s.status.State == raftfsm.Pending {
			text = strings.TrimPrefix(text+"; the next attempt may start at "+showMillis(s.record.NextDue), "; ")
		}
		s.add(f.AtMs, kind, f.Epoch, fmt.Sprintf("attempt %d: %s", number, text))
	}
	if s.status.HandedAt != 0 && !s.hasHandedOut(s.status.HandedAt) {
		number := int(s.record.Attempt) + 1
		if s.status.State == raftfsm.Dead || s.status.State == raftfsm.Expired { // which has counted as a failure
			number--
		}
		s.handedOut(s.status.HandedAt, s.status.HandedEpoch, number)
	}
}

func (s *story) hasHandedOut(at int64) bool {
	return slices.ContainsFunc(s.events, func(e event) bool { return e.at == at && e.Kind == eventHandedOut })
}

// handedOut adds the start of an attempt, and why it came late: of the first, and of the one that is out, it is known since
// when it could have started.
func (s *story) handedOut(at int64, epoch uint64, number int) {
	parts := []string{fmt.Sprintf("attempt %d", number)}
	due := max(s.record.Due, s.record.Created)
	if number > 1 {
		if late := at - due; late >= lateMillis {
			parts = append(parts, fmt.Sprintf("%s after the due time because %s failed", showWait(late), countOf(number-1, "attempt")))
		}
		if due = math.MaxInt64; s.status.State == raftfsm.Firing && at == s.status.HandedAt {
			due = s.record.NextDue
		}
	}
	if late := s.lateText(due, at); late != "" {
		parts = append(parts, late)
	}
	s.add(at, eventHandedOut, epoch, strings.Join(parts, ", "))
}

func countOf(n int, what string) string {
	if n == 1 {
		return "1 " + what
	}
	return fmt.Sprintf("%d %ss", n, what)
}

// lateText says how late something was and what is known of the reason; empty if it was on time. A new leader fires
// nothing before its reign has begun; while one reigns, it is busy or no consumer takes. How long the timer was paused is not kept.
func (s *story) lateText(due, at int64) string {
	late := at - due
	if late < lateMillis {
		return ""
	}
	text, since := showWait(late)+" late: ", due
	for _, r := range s.status.Reigns {
		if r.Begun > due && r.Begun <= at {
			since = r.Begun
		}
	}
	if since > due {
		text += fmt.Sprintf("no leader fired it before the reign of %s began, %s after the due time", s.reignAt(since).Node, showWait(since-due))
		if at-since < lateMillis {
			return text
		}
		text += "; then "
	}
	if at-since < busyMillis {
		return text + "the leader was busy, no consumer had credit, or it was paused"
	}
	return text + "no consumer took it, or it was paused"
}

// busyMillis is how late a busy leader may make a timer: what is later waits for a consumer.
const busyMillis = 1000

// finalKinds are the ends of a timer.
var finalKinds = map[raftfsm.State]string{
	raftfsm.Fired: eventAcked, raftfsm.Cancelled: eventCancelled, raftfsm.Expired: eventExpired, raftfsm.Dead: eventDead,
}

func (s *story) end() {
	kind, ok := finalKinds[s.status.State]
	if !ok || s.status.FinishedAt == 0 {
		return
	}
	text := ""
	switch {
	case s.status.Fired > 1:
		text = fmt.Sprintf("after %d due times that were fired", s.status.Fired)
	case kind == eventExpired && s.status.HandedAt == 0 && s.record.Due <= s.until:
		text = "no consumer took it in time, or it was paused"
	}
	s.add(s.status.FinishedAt, kind, 0, text)
}

// leaders adds the reigns that began during the timer's life.
func (s *story) leaders() {
	for _, r := range s.status.Reigns {
		if r.Begun > s.record.Created && r.Begun <= s.until {
			s.add(r.Begun, eventLeader, r.Epoch, "leads the shard from here on")
		}
	}
}

// showWait shows a span of milliseconds.
func showWait(ms int64) string {
	if ms > int64(math.MaxInt64/time.Millisecond) {
		return fmt.Sprintf("%dms", ms)
	}
	return (time.Duration(ms) * time.Millisecond).String()
}
