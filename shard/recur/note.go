package recur

import (
	"fmt"
	"strings"
	"time"
)

// Local is a due time as the clock on the wall of the rule's zone shows it.
type Local struct {
	// Time is in RFC 3339, with the offset.
	Time string
	// Zone is the short name of the offset, as CEST.
	Zone string
	// Note says what a change of the clocks has to do with it; mostly empty.
	Note string
}

// Local shows a due time of the rule, in Unix milliseconds within MinMillis and MaxMillis.
func (r *Rule) Local(due int64) Local {
	at := time.UnixMilli(within(due)).In(r.zone.location)
	name, _ := at.Zone()
	return Local{Time: at.Format("2006-01-02T15:04:05.999Z07:00"), Zone: name, Note: r.note(at)}
}

func (r *Rule) note(at time.Time) string {
	if r.period > 0 {
		return ""
	}
	t := at.Unix()
	s := r.zone.at(t)
	if s.start > minSeconds {
		before := r.zone.at(s.start - 1)
		if s.start == t && before.offset < s.offset && !r.cron.starHour {
			return r.skipNote(t, before, s)
		}
		if t+s.offset < s.start+before.offset && r.cron.starHour {
			return clock(at, at) + " occurs twice, this is the second time"
		}
	}
	if s.end < maxSeconds && t+s.offset >= s.end+r.zone.at(s.end).offset {
		if r.cron.starHour {
			return clock(at, at) + " occurs twice, this is the first time"
		}
		return clock(at, at) + " occurs twice, due the first time only"
	}
	return ""
}

const (
	minSeconds = MinMillis / millisPerSecond
	maxSeconds = MaxMillis / millisPerSecond
)

// skipNote tells of the local times that a gap which ends at t has moved there; none may match.
func (r *Rule) skipNote(t int64, before, after span) string {
	low, high := t+before.offset, t+after.offset
	first, ok := r.cron.next(low)
	if !ok || first >= high {
		return ""
	}
	last, count := first, 1
	for next := first; count < maxSkipped; count++ {
		if next, ok = r.cron.next(next + 1); !ok || next >= high {
			break
		}
		last = next
	}
	moved := time.Unix(t, 0).In(r.zone.location)
	wall := func(local int64) string { return clock(time.Unix(local, 0).UTC(), moved) }
	cause := "a change of the zone's offset"
	if moved.IsDST() != moved.Add(-time.Second).IsDST() {
		cause = "DST"
	}
	var text strings.Builder
	switch {
	case count == 1:
		fmt.Fprintf(&text, "%s is skipped by %s, moved to %s", wall(first), cause, clock(moved, moved))
	case count < maxSkipped:
		fmt.Fprintf(&text, "%s to %s (%d times) are skipped by %s, moved together to %s", wall(first), wall(last), count, cause, clock(moved, moved))
	default:
		fmt.Fprintf(&text, "%s and later times are skipped by %s, moved together to %s", wall(first), cause, clock(moved, moved))
	}
	if due, ok := r.cron.next(high); ok && due == high {
		text.WriteString(", which is due anyway")
	}
	return text.String()
}

// maxSkipped bounds the local times that a note counts.
const maxSkipped = 1000

// clock shows a local time, with its date if that is not the reference's, and with its seconds if it has any.
func clock(t, reference time.Time) string {
	layout := "15:04"
	if t.Second() != 0 {
		layout = "15:04:05"
	}
	if t.Format(time.DateOnly) != reference.Format(time.DateOnly) {
		layout = time.DateOnly + " " + layout
	}
	return t.Format(layout)
}
