package main

import (
	"fmt"
	"math"
	"strings"
	"time"

	"github.com/spf13/pflag"
)

// span is the value of a flag that takes a time, with days and weeks.
type span time.Duration

func (s *span) String() string { return spanText(time.Duration(*s)) }

func (s *span) Type() string { return "time" }

func (s *span) Set(text string) error {
	d, err := parseDuration(text)
	if err != nil {
		return fmt.Errorf("a duration is needed, as 1500ms, 30m, 1h30m, 2d or 1w, at most 100 years")
	}
	*s = span(d)
	return nil
}

// spanVar adds the flag of a time; its default is 0, which the usage explains.
func spanVar(f *pflag.FlagSet, to *time.Duration, name, usage string) {
	f.Var((*span)(to), name, usage)
	f.Lookup(name).DefValue = ""
}

// spanText shows a time without the units that are zero, as parseDuration takes it: 1h30m, 2d, 1w2d.
func spanText(d time.Duration) string {
	if d < 0 {
		return "-" + spanText(-max(d, -math.MaxInt64))
	}
	const day = 24 * time.Hour
	days, rest := d/day, d%day
	var text string
	if days > 0 {
		text = fmt.Sprintf("%dd", days)
		if d = rest; d == 0 {
			return text
		}
	}
	clock := d.String()
	if strings.HasSuffix(clock, "m0s") {
		clock = strings.TrimSuffix(clock, "0s")
	}
	if strings.HasSuffix(clock, "h0m") {
		clock = strings.TrimSuffix(clock, "0m")
	}
	return text + clock
}

// parseInstant takes an RFC 3339 instant, or a time from now by the clock of this machine; nothing is the zero time.
func parseInstant(name, text string, now time.Time) (time.Time, error) {
	if text == "" {
		return time.Time{}, nil
	}
	if t, err := time.Parse(time.RFC3339Nano, text); err == nil {
		return t, nil
	}
	if d, err := parseDuration(text); err == nil {
		return now.Add(d).Truncate(time.Millisecond), nil
	}
	return time.Time{}, usagef("--%s %q is not valid: an RFC 3339 instant is needed, as 2030-01-31T08:00:00Z, or a time from now, as 2h or -1d", name, text)
}

// oneOf looks a word up, and names them all if it is none of them.
func oneOf[T any](name, text string, words []string, values []T) (value T, err error) {
	for i, word := range words {
		if text == word {
			return values[i], nil
		}
	}
	return value, usagef("--%s %q is not one of %s", name, text, strings.Join(words, ", "))
}
