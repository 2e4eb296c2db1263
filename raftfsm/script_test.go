package raftfsm

import (
	"fmt"
	"slices"
	"strings"

	logv1 "github.com/carillon-timers/carillon/proto/carillonlog/v1"
)

// The lines of a script: how commands are read and how results are written.

func (w words) command() *Command {
	id, ns := w.names[0], "default"
	if w.has("ns") {
		ns = w.value["ns"]
	}
	_, isDelay := w.value["delay"]
	switch w.verb {
	case "schedule":
		c := &logv1.Schedule{
			Namespace: ns, Id: id, DueMs: w.number("due"), DelayMs: w.number("delay"), IsDelay: isDelay, Queue: "q",
			Payload: []byte(w.value["payload"]), ExpectedRevision: uint64(w.number("expect")), RequestId: []byte(w.value["request"]),
			IfExists: map[string]uint32{"": ifExistsFail, "fail": ifExistsFail, "replace": ifExistsReplace, "keep": ifExistsKeep}[w.value["if"]],
		}
		if w.has("queue") {
			c.Queue = w.value["queue"]
		}
		if w.has("lease") || w.has("max") {
			c.Retry = &logv1.RetryPolicy{LeaseMs: w.number("lease"), MaxAttempts: uint32(w.number("max"))}
		}
		if w.has("label") {
			key, value, _ := strings.Cut(w.value["label"], ":")
			c.Labels = []*logv1.Pair{{Key: key, Value: value}}
		}
		c.Extra, c.First = w.extra(), w.flag("first")
		return scheduleOf(c)
	case "cancel":
		c := cancel(id)
		k := c.GetCancel()
		k.Namespace, k.ExpectedRevision, k.RequestId = ns, uint64(w.number("expect")), []byte(w.value["request"])
		k.Firing = w.flag("firing")
		return c
	case "reschedule":
		c := reschedule(id, w.number("due"))
		k := c.GetReschedule()
		k.Namespace, k.DelayMs, k.IsDelay = ns, w.number("delay"), isDelay
		k.ExpectedRevision, k.RequestId, k.Now = uint64(w.number("expect")), []byte(w.value["request"]), w.flag("now")
		return c
	case "complete":
		c := complete(id, uint64(w.number("revision")), uint32(w.number("attempt")), uint64(w.number("token")))
		c.GetComplete().HandedMs, c.GetComplete().Ahead = w.number("handed"), w.flag("ahead")
		return c
	case "retry":
		c := retry(id, uint64(w.number("revision")), uint32(w.number("attempt")), uint64(w.number("token")))
		k := c.GetRetry()
		k.DueMs, k.DelayMs, k.HasDelay, k.Error = w.number("due"), w.number("delay"), isDelay, w.value["error"]
		k.HandedMs, k.Dead, k.Returned, k.Lapsed = w.number("handed"), w.flag("dead"), w.flag("returned"), w.flag("lapsed")
		return c
	}
	return w.rareCommand(id, ns)
}

// flag says that a word stands among the names.
func (w words) flag(name string) bool { return slices.Contains(w.names[1:], name) }

// extra is what few timers have; nil if none of it is named.
func (w words) extra() *logv1.Extra {
	x := &logv1.Extra{ExpiryMs: w.number("expiry"), AtMostOnce: w.flag("once"), WindowMs: w.number("window"), Webhook: w.value["webhook"]}
	if w.has("every") {
		word := func(key string, of ...string) uint32 { return uint32(max(0, slices.Index(of, w.value[key]))) + 1 }
		x.Repeat = &logv1.Repeat{
			EveryMs: w.number("every"), StartMs: w.number("start"), HasEnd: w.has("end"), EndMs: w.number("end"), MaxCount: w.number("count"),
			Misfire: word("misfire", "one", "none", "all"), Overlap: word("overlap", "skip", "one", "allow"),
			MaxCatchUp: uint32(w.number("catchup")), MaxLateMs: w.number("late"), FixedDelay: w.flag("fixed-delay"),
		}
	}
	if x.SizeVT() == 0 {
		return nil
	}
	return x
}

// rareCommand is one of the kinds that are rare.
func (w words) rareCommand(id, ns string) *Command {
	expect, request := uint64(w.number("expect")), []byte(w.value["request"])
	revision, attempt := uint64(w.number("revision")), uint32(w.number("attempt"))
	var keys []string
	if id != "-" {
		keys = w.names
	}
	switch w.verb {
	case "pause":
		return &Command{Kind: &logv1.Command_Pause{Pause: &logv1.Pause{
			Namespace: ns, Id: id, Freeze: w.flag("freeze"), Firing: w.flag("firing"), ExpectedRevision: expect, RequestId: request,
		}}}
	case "resume":
		return &Command{Kind: &logv1.Command_Resume{Resume: &logv1.Resume{Namespace: ns, Id: id, ExpectedRevision: expect, RequestId: request}}}
	case "advance":
		return &Command{Kind: &logv1.Command_Advance{Advance: &logv1.Advance{Namespace: ns, Id: id, Revision: revision, Attempt: attempt}}}
	case "expire":
		return &Command{Kind: &logv1.Command_Expire{Expire: &logv1.Expire{Namespace: ns, Id: id, Revision: revision, Attempt: attempt}}}
	case "redrive":
		return &Command{Kind: &logv1.Command_Redrive{Redrive: &logv1.Redrive{
			Namespace: ns, Keys: keys, Queue: w.value["queue"], Limit: uint32(w.number("limit")), RequestId: request,
		}}}
	case "purge":
		return &Command{Kind: &logv1.Command_Purge{Purge: &logv1.Purge{
			Namespace: ns, Keys: keys, Queue: w.value["queue"], Limit: uint32(w.number("limit")), RequestId: request,
		}}}
	}
	w.t.Fatalf("no command %q", w.verb)
	return nil
}

func nameOf(c *Command) string {
	switch k := c.Kind.(type) {
	case *logv1.Command_Schedule:
		return "schedule " + k.Schedule.Id
	case *logv1.Command_Cancel:
		return "cancel " + k.Cancel.Id
	case *logv1.Command_Reschedule:
		return "reschedule " + k.Reschedule.Id
	case *logv1.Command_Complete:
		return "complete " + k.Complete.Id
	case *logv1.Command_Retry:
		return "retry " + k.Retry.Id
	case *logv1.Command_Pause:
		return "pause " + k.Pause.Id
	case *logv1.Command_Resume:
		return "resume " + k.Resume.Id
	case *logv1.Command_Advance:
		return "advance " + k.Advance.Id
	case *logv1.Command_Expire:
		return "expire " + k.Expire.Id
	case *logv1.Command_Redrive:
		return "redrive"
	case *logv1.Command_Purge:
		return "purge"
	case *logv1.Command_Atomic:
		return "atomic"
	}
	return "unknown"
}

var codeNames = []string{"OK", "NotFound", "AlreadyExists", "RevisionMismatch", "StaleToken", "StaleEpoch", "Invalid", "IsPaused", "NotPaused", "NotPending"}

func resultText(r Result) string {
	var b strings.Builder
	b.WriteString(codeNames[r.Code])
	if r.Revision != 0 {
		fmt.Fprintf(&b, " revision=%d", r.Revision)
	}
	if r.Due != 0 {
		fmt.Fprintf(&b, " due=%d", r.Due)
	}
	if r.Answer != 0 {
		fmt.Fprintf(&b, " answer=%d", r.Answer)
	}
	if r.Detail != "" {
		fmt.Fprintf(&b, " (%s)", r.Detail)
	}
	for _, item := range r.Items {
		fmt.Fprintf(&b, "\n    %s %s", item.Key, resultText(item))
	}
	return b.String()
}

func statusText(s Status) string {
	r := s.Record
	text := fmt.Sprintf("%s %s queue=%s due=%d next=%d accepted=%d revision=%d attempt=%d created=%d", r.ID,
		s.State, r.Queue, r.Due, r.NextDue, r.Accepted, r.Revision,
		r.Attempt, r.Created)
	if len(r.Payload) > 0 {
		text += fmt.Sprintf(" payload=%q", r.Payload)
	}
	if r.LastError != "" {
		text += fmt.Sprintf(" error=%q", r.LastError)
	}
	if s.FinishedAt != 0 {
		text += fmt.Sprintf(" finished=%d", s.FinishedAt)
	}
	if s.HandedAt != 0 {
		text += fmt.Sprintf(" handed=%d/%d", s.HandedEpoch, s.HandedAt)
	}
	if s.Fired != 0 {
		text += fmt.Sprintf(" times=%d", s.Fired)
	}
	if r.Extra != nil {
		text += " " + extraText(r.Extra)
	}
	return text
}

// extraText is the extra part of a timer in short words.
func extraText(x *logv1.Extra) string {
	var b strings.Builder
	add := func(show bool, format string, args ...any) {
		if show {
			fmt.Fprintf(&b, " "+format, args...)
		}
	}
	add(x.ExpiryMs != 0, "expiry=%d", x.ExpiryMs)
	add(x.AtMostOnce, "at-most-once")
	add(x.Webhook != "", "webhook=%s", x.Webhook)
	add(x.WindowMs != 0, "window=%d", x.WindowMs)
	add(x.Paused, "paused=%d", x.PausedMs)
	add(x.Frozen, "left=%d", x.LeftMs)
	add(x.OutRevision != 0, "out=%d", x.OutRevision)
	if r := x.Repeat; r != nil {
		add(true, "every=%d tick=%d fired=%d", r.EveryMs, r.TickMs, r.Fired)
		add(r.BacklogMs != 0, "backlog=%d", r.BacklogMs)
	}
	if d := x.Dead; d != nil {
		add(true, "dead=%s reason=%d at=%d attempts=%d child=%v", d.Id, d.Reason, d.AtMs, d.Attempts, d.Child)
	}
	for _, f := range x.Failures {
		add(true, "[%d epoch=%d handed=%d lapsed=%v %q]", f.AtMs, f.Epoch, f.HandedMs, f.Lapsed, f.Error)
	}
	return "{" + strings.TrimSpace(b.String()) + "}"
}
