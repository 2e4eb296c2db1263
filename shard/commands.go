package shard

import (
	logv1 "github.com/carillon-timers/carillon/proto/carillonlog/v1"
	"github.com/carillon-timers/carillon/raftfsm"
)

// malformed refuses a command that must not come into the log, where every replica would have to stop at it: one without
// a kind or a content, or with a field that this version does not know.
func malformed(c *raftfsm.Command) *raftfsm.Result {
	if c != nil && complete(c) && !c.HasUnknown() {
		return nil
	}
	return &raftfsm.Result{Code: raftfsm.Invalid, Detail: "command: of a kind, or with a field, that this version does not know"}
}

// complete says that a command has a kind that this version knows, and a content without holes.
func complete(c *raftfsm.Command) bool {
	switch k := c.Kind.(type) {
	case *logv1.Command_Schedule:
		return k.Schedule != nil && noNil(k.Schedule.Headers) && noNil(k.Schedule.Labels) && noNil(k.Schedule.Extra.GetFailures())
	case *logv1.Command_Cancel:
		return k.Cancel != nil
	case *logv1.Command_Reschedule:
		return k.Reschedule != nil
	case *logv1.Command_Complete:
		return k.Complete != nil
	case *logv1.Command_Retry:
		return k.Retry != nil
	case *logv1.Command_Pause:
		return k.Pause != nil
	case *logv1.Command_Resume:
		return k.Resume != nil
	case *logv1.Command_Advance:
		return k.Advance != nil
	case *logv1.Command_Expire:
		return k.Expire != nil
	case *logv1.Command_Redrive:
		return k.Redrive != nil
	case *logv1.Command_Purge:
		return k.Purge != nil
	case *logv1.Command_Atomic:
		return k.Atomic != nil && sound(k.Atomic.Commands)
	}
	return false
}

// sound says that the parts of an Atomic are Schedules or Cancels, and complete.
func sound(parts []*raftfsm.Command) bool {
	for _, part := range parts {
		if part.GetSchedule() == nil && part.GetCancel() == nil || !complete(part) {
			return false
		}
	}
	return true
}

func noNil[T any](list []*T) bool {
	for _, p := range list {
		if p == nil {
			return false
		}
	}
	return true
}
