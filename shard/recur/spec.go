package recur

import (
	"fmt"
	"math/bits"
	"strconv"
	"strings"
)

// spec is a cron expression: a bit for each value that matches.
type spec struct {
	second, minute, hour uint64
	day, month, weekday  uint64
	starHour             bool // the hour field begins with "*": real time, not the clock on the wall
	starDay, starWeekday bool // the field begins with "*": both must match then, else one of them
}

const blanks = " \t"

var macros = map[string]string{
	"@yearly": "0 0 1 1 *", "@annually": "0 0 1 1 *", "@monthly": "0 0 1 * *", "@weekly": "0 0 * * 0",
	"@daily": "0 0 * * *", "@midnight": "0 0 * * *", "@hourly": "0 * * * *",
}

// fieldKind is one of the six fields.
type fieldKind struct {
	name      string
	low, high int      // of the values that may be named
	star      int      // the highest value that "*" stands for
	names     []string // of the values from low on
}

var fieldKinds = [6]fieldKind{
	{name: "second", low: 0, high: 59, star: 59},
	{name: "minute", low: 0, high: 59, star: 59},
	{name: "hour", low: 0, high: 23, star: 23},
	{name: "day of month", low: 1, high: 31, star: 31},
	{name: "month", low: 1, high: 12, star: 12, names: []string{
		"JAN", "FEB", "MAR", "APR", "MAY", "JUN", "JUL", "AUG", "SEP", "OCT", "NOV", "DEC"}},
	{name: "day of week", low: 0, high: 7, star: 6, names: []string{"SUN", "MON", "TUE", "WED", "THU", "FRI", "SAT"}},
}

// parseSpec reads an expression that is not @every; limit says what is wrong with it.
func parseSpec(text string) (c spec, limit string) {
	if limit := misplaced(text); limit != "" {
		return c, limit
	}
	if text[0] == '@' {
		expanded, ok := macros[strings.ToLower(text)]
		if !ok {
			return c, "the macros are @yearly, @monthly, @weekly, @daily, @hourly and @every DURATION"
		}
		text = expanded
	}
	fields := strings.FieldsFunc(text, func(r rune) bool { return strings.ContainsRune(blanks, r) })
	switch len(fields) {
	case 5:
		fields = append([]string{"0"}, fields...)
	case 6:
	default:
		return c, fmt.Sprintf("5 fields, or 6 with seconds in front; there are %d", len(fields))
	}
	var sets [6]uint64
	for i, field := range fields {
		kind := &fieldKinds[i]
		if sets[i], limit = kind.parse(field); limit != "" {
			return c, kind.name + " " + limit
		}
	}
	c = spec{
		second: sets[0], minute: sets[1], hour: sets[2], day: sets[3], month: sets[4], weekday: sets[5],
		starHour: fields[2][0] == '*', starDay: fields[3][0] == '*', starWeekday: fields[5][0] == '*',
	}
	if c.weekday&(1<<7) != 0 { // 7 is Sunday, too
		c.weekday = c.weekday&^(1<<7) | 1
	}
	if !c.possible() {
		return c, "it never matches: none of its months has such a day"
	}
	return c, ""
}

// misplaced finds what is no expression at all.
func misplaced(text string) string {
	if text == "" {
		return "must not be empty"
	}
	if strings.Contains(text, "TZ=") {
		return "the time zone belongs in the field zone"
	}
	for i := range len(text) {
		if c := text[i]; (c < ' ' || c > '~') && c != '\t' {
			return "only ASCII characters, and blanks or tabs between the fields"
		}
	}
	return ""
}

// parse reads a field: a list of items.
func (k *fieldKind) parse(field string) (set uint64, limit string) {
	for item := range strings.SplitSeq(field, ",") {
		low, high, step, limit := k.parseItem(item)
		if limit != "" {
			return 0, quote(item) + ": " + limit
		}
		for v := low; v <= high; v += step {
			set |= 1 << v
		}
	}
	return set, ""
}

// parseItem reads "*", "a", "a-b", each with or without "/step".
func (k *fieldKind) parseItem(item string) (low, high, step int, limit string) {
	span, stepText, stepped := strings.Cut(item, "/")
	from, to, isRange := strings.Cut(span, "-")
	switch {
	case span == "*":
		low, high = k.low, k.star
	default:
		var ok bool
		if low, ok = k.value(from); !ok {
			return 0, 0, 0, k.values()
		}
		high = low
		if isRange {
			if high, ok = k.value(to); !ok {
				return 0, 0, 0, k.values()
			}
			if high == 0 && low > 0 && strings.EqualFold(to, "SUN") { // FRI-SUN
				high = 7
			}
		} else if stepped {
			high = max(low, k.star)
		}
		if high < low {
			return 0, 0, 0, "the range runs backwards"
		}
	}
	step = 1
	if stepped {
		var ok bool
		if step, ok = number(stepText); !ok || step < 1 {
			return 0, 0, 0, "the step must be a number from 1 on"
		}
		if step > max(1, high-low) {
			return 0, 0, 0, fmt.Sprintf("the step is over its range, which ends at %d", high)
		}
	}
	return low, high, step, ""
}

// value reads a number or a name.
func (k *fieldKind) value(text string) (int, bool) {
	for i, name := range k.names {
		if strings.EqualFold(text, name) {
			return k.low + i, true
		}
	}
	v, ok := number(text)
	return v, ok && v >= k.low && v <= k.high
}

// values says what value takes.
func (k *fieldKind) values() string {
	if k.names == nil {
		return fmt.Sprintf("numbers from %d to %d, ranges (a-b), steps (*/n, a-b/n) and lists (a,b)", k.low, k.high)
	}
	return fmt.Sprintf("numbers from %d to %d, names from %s to %s, ranges (a-b), steps (*/n, a-b/n) and lists (a,b)",
		k.low, k.high, k.names[0], k.names[len(k.names)-1])
}

// number reads decimal digits alone, without a sign.
func number(text string) (int, bool) {
	n, err := strconv.ParseUint(text, 10, 16)
	return int(n), err == nil
}

// possible tells whether any day matches, ever. Within 400 years each weekday falls on each day of each month, also on
// February 29.
func (c *spec) possible() bool {
	if !c.starDay && !c.starWeekday {
		return true // a day of the week is enough
	}
	for month := 1; month <= 12; month++ {
		longest := monthDays(4, month) // a leap year
		if c.month&(1<<month) != 0 && c.day&(1<<(longest+1)-1) != 0 {
			return true
		}
	}
	return false
}

// onDay tells whether a day matches, by its number in the month and its weekday (0 is Sunday).
func (c *spec) onDay(day, weekday int) bool {
	byDay, byWeekday := c.day&(1<<day) != 0, c.weekday&(1<<weekday) != 0
	if c.starDay || c.starWeekday {
		return byDay && byWeekday
	}
	return byDay || byWeekday
}

// next returns the first matching local time that is not before the given one, both in seconds since 1970-01-01 on the
// wall; false if there is none until the end of the year 9999.
func (c *spec) next(local int64) (int64, bool) {
	day := floorDiv(local, secondsPerDay)
	found, ok := c.nextDay(day)
	if !ok {
		return 0, false
	}
	if found == day {
		if clock, ok := c.nextClock(int(local - day*secondsPerDay)); ok {
			return day*secondsPerDay + int64(clock), true
		}
		if found, ok = c.nextDay(day + 1); !ok {
			return 0, false
		}
	}
	clock, _ := c.nextClock(0) // no field is empty
	return found*secondsPerDay + int64(clock), true
}

// nextDay returns the first matching day that is not before the given one. It looks at no more than the months of 40
// years: the longest wait is for a weekday on February 29 over the end of a century.
func (c *spec) nextDay(from int64) (int64, bool) {
	year, month, day := civil(from)
	for year <= maxYear {
		if c.month&(1<<month) != 0 {
			first := daysBefore(year, month)
			weekday := int((first + 4) % 7) // 1970-01-01 was a Thursday
			if weekday < 0 {
				weekday += 7
			}
			for ; day <= monthDays(year, month); day++ {
				if c.onDay(day, (weekday+day-1)%7) {
					return first + int64(day) - 1, true
				}
			}
		}
		if day, month = 1, month+1; month > 12 {
			year, month = year+1, 1
		}
	}
	return 0, false
}

// nextClock returns the first matching second of a day that is not before the given one.
func (c *spec) nextClock(second int) (int, bool) {
	h, m, s := second/3600, second/60%60, second%60
	if c.hour&(1<<h) != 0 {
		if c.minute&(1<<m) != 0 {
			if next, ok := from(c.second, s); ok {
				return h*3600 + m*60 + next, true
			}
		}
		if next, ok := from(c.minute, m+1); ok {
			return h*3600 + next*60 + bits.TrailingZeros64(c.second), true
		}
	}
	next, ok := from(c.hour, h+1)
	return next*3600 + bits.TrailingZeros64(c.minute)*60 + bits.TrailingZeros64(c.second), ok
}

// from returns the first value of a set that is at least low.
func from(set uint64, low int) (int, bool) {
	rest := set >> low << low
	return bits.TrailingZeros64(rest), rest != 0
}
