package raftfsm

import (
	"unicode/utf8"

	logv1 "github.com/carillon-timers/carillon/proto/carillonlog/v1"
)

// validTarget checks the name of a queue; that of a webhook begins with NUL.
func validTarget(queue, webhook string) *Result {
	if webhook == "" {
		return validName("queue", queue, MaxQueueBytes)
	}
	if len(webhook) > MaxWebhookBytes || !utf8.ValidString(webhook) {
		return invalid("webhook", "%d bytes; at most %d of UTF-8 are allowed", len(webhook), MaxWebhookBytes)
	}
	if len(queue) > MaxQueueBytes {
		return invalid("webhook", "scheme, host and port have %d bytes; at most %d are allowed", len(queue)-1, MaxQueueBytes-1)
	}
	if queue == "" || queue[0] != 0 {
		return invalid("webhook", "its queue does not begin with NUL")
	}
	return validName("webhook", queue[1:], MaxQueueBytes)
}

// validExtra checks the client's part of what few timers have, in a schedule.
func (s *state) validExtra(c *command, x *logv1.Extra) *Result {
	switch {
	case x.Paused || x.Frozen || x.LeftMs != 0 || x.OutRevision != 0 || x.Failures != nil || x.Dead != nil || x.PausedMs != 0:
		return invalid("extra", "it has fields that a schedule cannot set")
	case x.ExpiryMs != 0 && x.ExpiryMs <= c.due:
		return invalid("expiry", "%d is not after the due time %d", x.ExpiryMs, c.due)
	case x.ExpiryMs-s.clock > MaxAheadMillis+1:
		return invalid("expiry", "more than %d ms ahead", int64(MaxAheadMillis))
	case x.WindowMs < 0 || x.WindowMs > MaxWindowMillis:
		return invalid("window", "%d ms; 0 to %d are allowed", x.WindowMs, MaxWindowMillis)
	case x.AtMostOnce && c.retry.MaxAttempts > 1:
		return invalid("retry.max_attempts", "%d; an at-most-once timer has 1", c.retry.MaxAttempts)
	}
	if x.Repeat == nil {
		return nil
	}
	if r := validRule(c.id, x.Repeat); r != nil {
		return r
	}
	r := x.Repeat
	switch {
	case r.Fired != 0 || r.BacklogMs != 0:
		return invalid("repeat", "it has fields that a schedule cannot set")
	case r.TickMs < minDueMillis || r.TickMs > c.due:
		return invalid("repeat", "its due time %d is after %d, or before the year 1", r.TickMs, c.due)
	case r.HasEnd && r.EndMs < r.TickMs:
		return invalid("repeat.end", "%d is before the first due time %d", r.EndMs, r.TickMs)
	}
	return nil
}

// validRule checks what does not change of a repeat. That a cron expression and a zone can be read is the leader's to check.
func validRule(id string, r *logv1.Repeat) *Result {
	switch {
	case r.Cron == "" && (r.EveryMs < 1 || r.EveryMs > MaxAheadMillis):
		return invalid("repeat.every", "%d ms; 1 to %d are allowed", r.EveryMs, int64(MaxAheadMillis))
	case r.Cron != "" && r.EveryMs != 0:
		return invalid("repeat.cron", "not together with every")
	case len(r.Cron) > MaxCronBytes || !utf8.ValidString(r.Cron):
		return invalid("repeat.cron", "%d bytes; at most %d are allowed", len(r.Cron), MaxCronBytes)
	case len(r.Zone) > MaxCronBytes || !utf8.ValidString(r.Zone):
		return invalid("repeat.zone", "%d bytes; at most %d are allowed", len(r.Zone), MaxCronBytes)
	case r.FixedDelay && r.EveryMs == 0:
		return invalid("repeat.fixed_delay", "only with every")
	case r.StartMs < minDueMillis-MaxAheadMillis || r.StartMs > maxDueMillis:
		return invalid("repeat.start", "%d is not in the years 1 to 9999", r.StartMs)
	case r.HasEnd && (r.EndMs < minDueMillis || r.EndMs > maxDueMillis):
		return invalid("repeat.end", "%d is not in the years 1 to 9999", r.EndMs)
	case r.MaxCount < 0:
		return invalid("repeat.max_count", "%d; at least 0 is allowed", r.MaxCount)
	case r.Misfire < misfireOne || r.Misfire > misfireAll:
		return invalid("repeat.misfire", "%d is not a policy", r.Misfire)
	case r.MaxCatchUp > MaxCatchUp:
		return invalid("repeat.max_catch_up", "%d; 0 to %d are allowed", r.MaxCatchUp, MaxCatchUp)
	case r.MaxLateMs < 0 || r.MaxLateMs > MaxAheadMillis:
		return invalid("repeat.max_lateness", "%d ms; 0 to %d are allowed", r.MaxLateMs, int64(MaxAheadMillis))
	case r.Overlap < overlapSkip || r.Overlap > overlapAllow:
		return invalid("repeat.overlap", "%d is not a policy", r.Overlap)
	case r.Overlap == overlapAllow && r.FixedDelay:
		return invalid("repeat.overlap", "allow needs a fixed rate")
	}
	if r.Overlap == overlapAllow {
		if _, r := childID(id, maxDueMillis); r != nil {
			return r
		}
	}
	return nil
}

// validNext checks where a repeat is to go on.
func validNext(n *logv1.Next) *Result {
	for _, at := range [...]int64{n.TickMs, n.DueMs, n.BacklogMs} {
		if at < minDueMillis || at > maxDueMillis {
			return invalid("next", "%d is not in the years 1 to 9999", at)
		}
	}
	return nil
}
