package transport

import (
	"fmt"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/carillon-timers/carillon/raftfsm"
)

const (
	millisPerSecond = 1000
	nanosPerMilli   = 1_000_000
	nanosPerSecond  = 1_000_000_000
	// maxDurationSeconds is protobuf's limit of a duration: about 10,000 years.
	maxDurationSeconds = 315_576_000_000
)

// dueMillis turns a due time into Unix milliseconds, rounded up: never early. A valid time in the past is accepted,
// also one before 1970.
func dueMillis(field string, t *timestamppb.Timestamp, now time.Time) (int64, error) {
	if err := t.CheckValid(); err != nil {
		return 0, invalid(field, showSeconds(t.GetSeconds(), t.GetNanos()), "a time from 0001-01-01 to 9999-12-31, nanos from 0 to 999,999,999")
	}
	ms := t.Seconds*millisPerSecond + ceilMillis(t.Nanos)
	if ms > now.UnixMilli()+raftfsm.MaxAheadMillis {
		return 0, invalid(field, showTime(t), "at most 100 years ahead")
	}
	return ms, nil
}

// delayMillis turns a wait into milliseconds, rounded up.
func delayMillis(field string, d *durationpb.Duration) (int64, error) {
	return boundedMillis(field, d, 0, raftfsm.MaxAheadMillis, "0 to 100 years")
}

// boundedMillis turns a duration into milliseconds, rounded up; the limits hold for the duration as it was given.
func boundedMillis(field string, d *durationpb.Duration, low, high int64, limit string) (int64, error) {
	seconds, nanos := d.GetSeconds(), d.GetNanos()
	shown := showSeconds(seconds, nanos)
	switch {
	case nanos <= -nanosPerSecond || nanos >= nanosPerSecond || (seconds > 0 && nanos < 0) || (seconds < 0 && nanos > 0):
		return 0, invalid(field, shown, "a duration whose nanos are below a second and of the sign of its seconds")
	case seconds < 0 || nanos < 0:
		return 0, invalid(field, shown, limit+"; not negative")
	case seconds > maxDurationSeconds:
		return 0, invalid(field, shown, limit)
	}
	floor := seconds*millisPerSecond + int64(nanos)/nanosPerMilli
	ceil := seconds*millisPerSecond + ceilMillis(nanos)
	if floor < low || ceil > high {
		return 0, invalid(field, shown, limit)
	}
	return ceil, nil
}

func ceilMillis(nanos int32) int64 { return (int64(nanos) + nanosPerMilli - 1) / nanosPerMilli }

// showSeconds shows a duration as Go does, and its two fields where they make none.
func showSeconds(seconds int64, nanos int32) string {
	if d := (&durationpb.Duration{Seconds: seconds, Nanos: nanos}); d.IsValid() && d.AsDuration().Truncate(time.Second) == time.Duration(seconds)*time.Second {
		return d.AsDuration().String()
	}
	return fmt.Sprintf("%ds and %dns", seconds, nanos)
}

// floorMoment turns a time into Unix milliseconds, rounded down.
func floorMoment(field string, t *timestamppb.Timestamp) (int64, error) {
	if err := t.CheckValid(); err != nil {
		return 0, invalid(field, showSeconds(t.GetSeconds(), t.GetNanos()), "a time from 0001-01-01 to 9999-12-31, nanos from 0 to 999,999,999")
	}
	return t.Seconds*millisPerSecond + int64(t.Nanos)/nanosPerMilli, nil
}

// ceilMoment turns a time into Unix milliseconds, rounded up.
func ceilMoment(field string, t *timestamppb.Timestamp) (int64, error) {
	ms, err := floorMoment(field, t)
	if t.GetNanos()%nanosPerMilli != 0 {
		ms++
	}
	return ms, err
}

// floorMillis turns a duration from 0 on into milliseconds, rounded down.
func floorMillis(field string, d *durationpb.Duration, high int64, limit string) (int64, error) {
	if _, err := boundedMillis(field, d, 0, high, limit); err != nil {
		return 0, err
	}
	return d.Seconds*millisPerSecond + int64(d.Nanos)/nanosPerMilli, nil
}

func showTime(t *timestamppb.Timestamp) string { return t.AsTime().Format(time.RFC3339Nano) }

func showMillis(ms int64) string { return showTime(moment(ms)) }

// moment is a time of the contract, from Unix milliseconds.
func moment(ms int64) *timestamppb.Timestamp {
	var t *timestamppb.Timestamp
	setMoment(&t, ms)
	return t
}

// setMoment is moment for a message that is used again.
func setMoment(t **timestamppb.Timestamp, ms int64) {
	if *t == nil {
		*t = &timestamppb.Timestamp{}
	}
	seconds, rest := ms/millisPerSecond, ms%millisPerSecond
	if rest < 0 { // nanos are never negative
		seconds, rest = seconds-1, rest+millisPerSecond
	}
	(*t).Seconds, (*t).Nanos = seconds, int32(rest)*nanosPerMilli
}
