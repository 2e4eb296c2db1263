package main

import (
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"math"
	"slices"
	"strings"
	"text/tabwriter"
	"time"
	"unicode/utf8"

	"github.com/spf13/pflag"
)

// format is the value of -o.
type format string

const (
	formatTable format = "table"
	formatJSON  format = "json"
)

func (f *format) String() string { return string(*f) }

func (f *format) Type() string { return "format" }

func (f *format) Set(value string) error {
	switch format(value) {
	case formatTable, formatJSON:
		*f = format(value)
		return nil
	}
	return fmt.Errorf("%q is not one of json, table", value)
}

func (f *format) flag(flags *pflag.FlagSet, value format) {
	*f = value
	flags.VarP(f, "output", "o", "output `format`: json or table")
}

// row is a name and a value of a table of one thing.
type row struct{ name, value string }

// printOne prints one thing: as JSON, or a row for each value that is not empty.
func printOne(w io.Writer, f format, value any, rows []row) error {
	if f == formatJSON {
		return printJSON(w, value)
	}
	tw := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	for _, r := range rows {
		if r.value != "" {
			fmt.Fprintf(tw, "%s\t%s\n", r.name, r.value)
		}
	}
	return tw.Flush()
}

// printTable prints rows under a header.
func printTable(w io.Writer, header []string, rows [][]string) error {
	tw := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintln(tw, strings.Join(header, "\t"))
	for _, r := range rows {
		fmt.Fprintln(tw, strings.Join(r, "\t"))
	}
	return tw.Flush()
}

// printJSON prints the value on one line.
func printJSON(w io.Writer, value any) error {
	e := json.NewEncoder(w)
	e.SetEscapeHTML(false)
	return e.Encode(value)
}

const timeLayout = "2006-01-02T15:04:05.000Z07:00"

// stamp shows an instant to the millisecond, in UTC; nothing for the zero time.
func stamp(t time.Time) string {
	if t.IsZero() {
		return ""
	}
	return t.UTC().Format(timeLayout)
}

// when shows an instant and how far away it is.
func when(t, now time.Time) string {
	if t.IsZero() {
		return ""
	}
	return stamp(t) + " (" + distance(t.Sub(now)) + ")"
}

// distance shows how far away an instant is, coarser the farther it is.
func distance(d time.Duration) string {
	format, size := "in %s", d
	if d < 0 {
		format, size = "%s ago", -max(d, -math.MaxInt64)
	}
	switch {
	case size < time.Second:
		size = size.Round(time.Millisecond)
	case size < time.Minute:
		size = size.Round(100 * time.Millisecond)
	case size < 48*time.Hour:
		size = size.Round(time.Second)
	default:
		size = size.Round(time.Hour)
	}
	return fmt.Sprintf(format, spanText(size))
}

// shown makes a text from outside safe to print on one line of a terminal.
func shown(text string) string {
	safe := utf8.ValidString(text) && !strings.ContainsFunc(text, func(r rune) bool {
		return r < ' ' || r == 0x7f || r >= 0x80 && r < 0xa0 || r >= 0x200b && r <= 0x200f || r >= 0x2028 && r <= 0x202e
	})
	if safe {
		return text
	}
	return fmt.Sprintf("%+q", text)
}

// shownPayload cuts a payload for a table.
func shownPayload(payload []byte) string {
	const most = 72
	switch {
	case len(payload) == 0:
		return ""
	case !utf8.Valid(payload):
		return fmt.Sprintf("%d bytes that are no text (see -o json)", len(payload))
	case len(payload) > most:
		return shown(cut(string(payload), most)) + fmt.Sprintf("... (%d bytes)", len(payload))
	}
	return shown(string(payload))
}

// cut is the beginning of a text, at most so many bytes.
func cut(text string, most int) string {
	if len(text) <= most {
		return text
	}
	for most > 0 && !utf8.RuneStart(text[most]) {
		most--
	}
	return text[:most]
}

func pairs(m map[string]string) string {
	var list []string
	for _, k := range slices.Sorted(maps.Keys(m)) {
		list = append(list, shown(k+"="+m[k]))
	}
	return strings.Join(list, " ")
}

// shortPairs is pairs for a column: long ones are cut, and what would be too much is counted.
func shortPairs(m map[string]string) string {
	const mostBytes, mostPairs = 32, 3
	var list []string
	for i, k := range slices.Sorted(maps.Keys(m)) {
		if i == mostPairs {
			list = append(list, fmt.Sprintf("+%d", len(m)-i))
			break
		}
		pair := k + "=" + m[k]
		text := shown(cut(pair, mostBytes))
		if len(pair) > mostBytes {
			text += "..."
		}
		list = append(list, text)
	}
	return strings.Join(list, " ")
}

// payloadOf splits a payload into text or bytes, for JSON.
func payloadOf(payload []byte) (text *string, raw []byte) {
	if len(payload) == 0 {
		return nil, nil
	}
	if !utf8.Valid(payload) {
		return nil, payload
	}
	s := string(payload)
	return &s, nil
}
