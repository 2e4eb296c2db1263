package recur

import (
	"bufio"
	"encoding/json"
	"errors"
	"os"
	"slices"
	"strings"
	"testing"
	"time"
)

// series is a rule without a beginning or an end.
func series(t testing.TB, expr, zone string) Series {
	t.Helper()
	r, err := Cron(expr, zone)
	if err != nil {
		t.Fatal(err)
	}
	return Series{Rule: r, Start: MinMillis, End: MaxMillis}
}

func millis(t testing.TB, text string) int64 {
	t.Helper()
	at, err := time.Parse(time.RFC3339Nano, text)
	if err != nil {
		t.Fatal(err)
	}
	return at.UnixMilli()
}

// list returns the next n due times as texts.
func (s Series) list(after int64, n int) []string {
	var texts []string
	for range n {
		due, ok := s.Next(after)
		if !ok {
			return append(texts, "none")
		}
		texts = append(texts, time.UnixMilli(due).UTC().Format(time.RFC3339Nano))
		after = due
	}
	return texts
}

func eachLine[T any](t *testing.T, name string, f func(line string, value T)) {
	t.Helper()
	file, err := os.Open(name)
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	n := 0
	for scan := bufio.NewScanner(file); scan.Scan(); n++ {
		var value T
		if err := json.Unmarshal(scan.Bytes(), &value); err != nil {
			t.Fatal(err)
		}
		f(scan.Text(), value)
	}
	if n < 25 {
		t.Errorf("%s has only %d lines", name, n)
	}
}

// The due times were found by an independent program that walks every minute.
func TestCases(t *testing.T) {
	t.Parallel()
	type sample struct {
		Expr, Zone, From string
		N                int
		Next             []string
	}
	eachLine(t, "testdata/cron.jsonl", func(line string, c sample) {
		if got := series(t, c.Expr, c.Zone).list(millis(t, c.From), c.N); !slices.Equal(got, c.Next) {
			t.Errorf("%s\ngot %v", line, got)
		}
	})
}

func TestRefusals(t *testing.T) {
	t.Parallel()
	type refusal struct {
		Cron, Every *string
		Zone, Field string
	}
	eachLine(t, "testdata/refuse.jsonl", func(line string, c refusal) {
		var err error
		if c.Cron != nil {
			_, err = Cron(*c.Cron, c.Zone)
		} else {
			d, perr := time.ParseDuration(*c.Every)
			if perr != nil {
				t.Fatal(perr)
			}
			_, err = Every(d.Milliseconds(), c.Zone)
		}
		var invalid *Error
		if !errors.As(err, &invalid) || invalid.Field != c.Field || invalid.Limit == "" {
			t.Errorf("%s\ngot %v", line, err)
		}
	})
}

func TestMoreRefusals(t *testing.T) {
	t.Parallel()
	for expr, limit := range map[string]string{
		"* * * * * * *":                   "there are 7",
		"* * * *":                         "there are 4",
		"@reboot":                         "the macros are",
		"@":                               "the macros are",
		"@every":                          "a duration",
		"@every 5":                        "a duration",
		"@every 1h1h ":                    "", // Go's durations add up
		"@every 1.5ms":                    "whole milliseconds",
		"@every 876601h":                  "1 ms to 100 years",
		"@every 9999999999h":              "a duration",
		"0 0 12 ? * 2":                    `day of month "?"`,
		"0 0 L * *":                       `day of month "L"`,
		"0 0 1W * *":                      `day of month "1W"`,
		"0 9 * * 5L":                      `day of week "5L"`,
		"*/60 * * * *":                    "over its range",
		"0 */24 * * *":                    "over its range",
		"50/15 * * * *":                   "over its range",
		"10-20/11 * * * *":                "over its range",
		"*/1x * * * *":                    "a number",
		"*/-1 * * * *":                    "a number",
		"*/ * * * *":                      "a number",
		"/5 * * * *":                      "numbers from 0 to 59",
		"-5 * * * *":                      "numbers from 0 to 59",
		"+5 * * * *":                      "numbers from 0 to 59",
		"5- * * * *":                      "numbers from 0 to 59",
		"1,,2 * * * *":                    "numbers from 0 to 59",
		", * * * *":                       "numbers from 0 to 59",
		"1-2-3 * * * *":                   "numbers from 0 to 59",
		"*-5 * * * *":                     "numbers from 0 to 59",
		"1/2/3 * * * *":                   "a number",
		"0 0 1 JANUARY *":                 "names from JAN to DEC",
		"0 0 1 MON *":                     "names from JAN to DEC",
		"0 0 * * SAT-MON":                 "backwards",
		"0 0 * * 5-0":                     "backwards",
		"0 0 1 DEC-JAN *":                 "backwards",
		"0 9 * * *\n":                     "only ASCII",
		"0 9 * * *\x00":                   "only ASCII",
		"0 9\u00a0* * *":                  "only ASCII",
		"60 * * * * *":                    `second "60"`,
		"0 0 30,31 2 *":                   "never matches",
		"0 0 31 2,4 */2":                  "never matches",
		"99999999999999999999 * * * *":    "numbers from",
		strings.Repeat("1,", 200) + "1":   "at most 256 bytes",
		strings.Repeat("x", 10_000):       "at most 256 bytes",
		strings.Repeat(" ", 250) + "0 0 ": "there are 2",
		"\xff\xfe":                        "only ASCII",
		"0 9 * * * TZ=UTC":                "field zone",
	} {
		_, err := Cron(expr, "")
		if limit == "" {
			if err != nil {
				t.Error(err)
			}
			continue
		}
		if err == nil || !strings.Contains(err.Error(), limit) {
			t.Errorf("%q: got %v, want %q", expr, err, limit)
		}
		if err != nil && len(err.Error()) > 300 {
			t.Errorf("a long error: %v", err)
		}
	}
}

// Different ways to say the same.
func TestSameRule(t *testing.T) {
	t.Parallel()
	for a, b := range map[string]string{
		"0 9 * * mon-fri":     "0 9 * * 1-5",
		"0 9 * * FRI-SUN":     "0 9 * * 0,5,6",
		"0 9 * * 5-7":         "0 9 * * 0,5,6",
		"0 9 * * 0-7":         "0 9 * * *",
		"0 9 * jan,Feb,DEC *": "0 9 * 1,2,12 *",
		"\t0  9\t* * * ":      "0 9 * * *",
		"0 0 9 * * *":         "0 9 * * *",
		"@hourly":             "0 * * * *",
		"@Daily":              "0 0 * * *",
		"@weekly":             "0 0 * * SUN",
		"@monthly":            "0 0 1 * *",
		"@annually":           "@yearly",
		"@every 90s":          "@every 1m30s",
		"5/15 * * * *":        "5-59/15 * * * *",
		"*/20 * * * *":        "0,20,40 * * * *",
		"007 1 * * *":         "7 1 * * *",
	} {
		from := millis(t, "2026-01-01T00:00:00Z")
		got, want := series(t, a, "Europe/Berlin").list(from, 40), series(t, b, "Europe/Berlin").list(from, 40)
		if !slices.Equal(got, want) {
			t.Errorf("%q and %q differ:\n%v\n%v", a, b, got, want)
		}
	}
}

func TestZones(t *testing.T) {
	t.Parallel()
	for _, name := range []string{"Local", "local", "europe/berlin", "Europe/Berlin ", "/etc/localtime", "..", "Europe", "Europe/", "\xff", strings.Repeat("a", 5000)} {
		_, err := LoadZone(name)
		var invalid *Error
		if !errors.As(err, &invalid) || invalid.Field != "zone" {
			t.Errorf("%q: %v", name, err)
		}
	}
	if z, err := LoadZone(""); err != nil || z.Name() != "UTC" {
		t.Errorf("the default: %v, %v", z, err)
	}
	if len(ZoneVersion()) != 5 {
		t.Errorf("version %q", ZoneVersion())
	}
	for name := range zoneFiles() {
		if _, err := LoadZone(name); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
	if n := len(zoneFiles()); n < 590 {
		t.Errorf("only %d zones", n)
	}
}
