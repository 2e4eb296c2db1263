package recur

import (
	"strconv"
	"strings"
	"time"
)

// Limits of rules and times.
const (
	// MinMillis and MaxMillis bound all times, in Unix milliseconds: the years 1 to 9999.
	MinMillis = -62_135_596_800_000
	MaxMillis = 253_402_300_799_999
	// MaxPeriodMillis bounds a period: 100 years of 365.25 days. The shortest is one millisecond.
	MaxPeriodMillis = 36525 * 24 * 3600 * 1000
	// MaxExprBytes bounds a cron expression.
	MaxExprBytes = 256
)

// Rule says when something is due again. It is immutable.
type Rule struct {
	period int64 // milliseconds; 0 for a cron rule
	cron   spec
	zone   *Zone
}

// Cron reads a cron expression: five fields (minute, hour, day of month, month, day of week), six with seconds in
// front, a macro (@hourly and its like), or "@every" with a duration of whole milliseconds. The zone is an IANA name;
// an empty one is UTC. The zone of @every has no influence on its times. Errors are of type *Error.
func Cron(expr, zone string) (*Rule, error) {
	z, err := LoadZone(zone)
	if err != nil {
		return nil, err
	}
	if len(expr) > MaxExprBytes {
		return nil, &Error{"cron", expr, "at most 256 bytes"}
	}
	text := strings.Trim(expr, blanks)
	if period, ok := strings.CutPrefix(text, "@every"); ok {
		ms, limit := parsePeriod(strings.Trim(period, blanks))
		if limit != "" {
			return nil, &Error{"cron", expr, limit}
		}
		return &Rule{period: ms, zone: z}, nil
	}
	c, limit := parseSpec(text)
	if limit != "" {
		return nil, &Error{"cron", expr, limit}
	}
	return &Rule{cron: c, zone: z}, nil
}

// Every makes a rule of a fixed period in milliseconds, 1 to MaxPeriodMillis. The zone, as of Cron, only says how its
// times are shown. Errors are of type *Error.
func Every(period int64, zone string) (*Rule, error) {
	z, err := LoadZone(zone)
	if err != nil {
		return nil, err
	}
	if period < 1 || period > MaxPeriodMillis {
		return nil, &Error{"every", strconv.FormatInt(period, 10) + " ms", periodLimit}
	}
	return &Rule{period: period, zone: z}, nil
}

const periodLimit = "a period of 1 ms to 100 years"

// parsePeriod reads the duration of @every; limit is empty if it is valid.
func parsePeriod(text string) (ms int64, limit string) {
	d, err := time.ParseDuration(text)
	switch {
	case err != nil:
		return 0, "@every needs a duration, as in @every 1m30s"
	case d < time.Millisecond || d > MaxPeriodMillis*time.Millisecond:
		return 0, periodLimit
	case d%time.Millisecond != 0:
		return 0, "a period of whole milliseconds"
	}
	return d.Milliseconds(), ""
}

// Period is the fixed period in milliseconds, 0 for a rule by the calendar.
func (r *Rule) Period() int64 { return r.period }

// Zone is the zone that the rule follows, or whose clock shows its times.
func (r *Rule) Zone() *Zone { return r.zone }

// Series is a rule with a beginning and an end, in Unix milliseconds.
type Series struct {
	Rule *Rule
	// Start is the earliest due time; a fixed period counts from it: Start, Start + period, Start + 2 periods, ...
	Start int64
	// End is the latest due time; MaxMillis for none.
	End int64
}

// Next returns the first due time later than after, in Unix milliseconds; false if there is none.
func (s Series) Next(after int64) (due int64, ok bool) {
	start, end := max(s.Start, MinMillis), min(s.End, MaxMillis)
	after = max(after, start-1)
	if after >= end {
		return 0, false
	}
	if period := s.Rule.period; period > 0 {
		if due = start; after >= start {
			due += ((after-start)/period + 1) * period // both are far from overflowing: times are bounded
		}
		return due, due <= end
	}
	at, ok := s.Rule.nextCron(floorDiv(after, millisPerSecond))
	if !ok || at > floorDiv(end, millisPerSecond) {
		return 0, false
	}
	return at * millisPerSecond, true
}

const millisPerSecond = 1000

func floorDiv(a, b int64) int64 {
	q := a / b
	if a%b < 0 {
		q--
	}
	return q
}
