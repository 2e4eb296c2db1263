package main

import (
	"strings"
	"testing"
)

// Against a real node: what is printed, and what is refused by the node.
func testPreview(t *testing.T) {
	night := []string{"preview", "--cron", "30 2 * * *", "--zone", "Europe/Berlin", "--from", "2026-03-28T12:00:00Z", "--count", "2"}
	r := carillon(t, "", night...)
	want := `DUE                       LOCAL                      ZONE  NOTES
2026-03-29T01:00:00.000Z  2026-03-29T03:00:00+02:00  CEST  02:30 is skipped by DST, moved to 03:00
2026-03-30T00:30:00.000Z  2026-03-30T02:30:00+02:00  CEST  
more follow; times of Europe/Berlin by the IANA database `
	if r.code != 0 || !strings.HasPrefix(r.out, want) || r.errs != "" {
		t.Errorf("a table: %v", r)
	}
	r = carillon(t, "", append(night, "-o", "json")...)
	want = `{"times":[{"due":"2026-03-29T01:00:00.000Z","local":"2026-03-29T03:00:00+02:00","zone_name":"CEST",` +
		`"notes":["02:30 is skipped by DST, moved to 03:00"]},{"due":"2026-03-30T00:30:00.000Z","local":"2026-03-30T02:30:00+02:00",` +
		`"zone_name":"CEST"}],"more":true,"zone":"Europe/Berlin","zone_version":"`
	if r.code != 0 || !strings.HasPrefix(r.out, want) || strings.Count(r.out, "\n") != 1 {
		t.Errorf("JSON: %v", r)
	}
	r = carillon(t, "", "preview", "--every", "1500ms", "--start", "2030-01-01T00:00:00Z", "--end", "2030-01-01T00:00:02Z", "--fixed-delay")
	for _, text := range []string{"\n2030-01-01T00:00:00.000Z  2030-01-01T00:00:00Z", "acked at once", "\n2030-01-01T00:00:01.500Z  ", "\nnothing more is due"} {
		if r.code != 0 || !strings.Contains(r.out, text) {
			t.Errorf("a period: %q is missing: %v", text, r)
		}
	}
	r = carillon(t, "", "preview", "--cron", "@daily", "--end", "2020-01-01T00:00:00Z", "-o", "json")
	if r.code != 0 || !strings.HasPrefix(r.out, `{"times":[],"more":false,"zone":"UTC"`) {
		t.Errorf("after its end: %v", r)
	}
	for text, args := range map[string][]string{
		`cron "0 0 30 2 *" is not valid: it never matches`:    {"--cron", "0 0 30 2 *"},
		`cron "TZ=UTC 0 9 * * *" is not valid: the time zone`: {"--cron", "TZ=UTC 0 9 * * *"},
		`zone "Europe/Atlantis" is not valid`:                 {"--cron", "@daily", "--zone", "Europe/Atlantis"},
		`zone "Local" is not valid`:                           {"--cron", "@daily", "--zone", "Local"},
		`every 400µs is not valid`:                            {"--every", "0.4ms"},
		`end 2020-01-01T00:00:00Z is not valid`:               {"--every", "1s", "--start", "2021-01-01T00:00:00Z", "--end", "2020-01-01T00:00:00Z"},
	} {
		r := carillon(t, "", append([]string{"preview"}, args...)...)
		if r.code != exitUsage || !strings.Contains(r.errs, text) || strings.Count(r.errs, "\n") != 1 || r.out != "" {
			t.Errorf("preview %v: %q is missing: %v", args, text, r)
		}
	}
}

// The examples of the help do what they say.
func testPreviewExamples(t *testing.T) {
	lines := strings.Split(newPreviewCommand().Example, "\n")
	for _, line := range lines {
		line, _, _ = strings.Cut(line, " | ")
		var args []string
		for i, part := range strings.Split(line, `"`) {
			if i%2 == 1 { // between quotes
				args = append(args, part)
			} else {
				args = append(args, strings.Fields(part)...)
			}
		}
		if r := carillon(t, "", args[1:]...); r.code != 0 || len(r.out) < 100 || r.errs != "" {
			t.Errorf("%s: %v", line, r)
		}
	}
	if len(lines) < 4 {
		t.Errorf("%d examples", len(lines))
	}
}

// Command lines that cannot be meant are refused before a connection is tried.
func TestWrongPreview(t *testing.T) {
	t.Setenv("CARILLON_ADDR", "127.0.0.1:1")
	for args, want := range map[string]string{
		"preview":                                  "--cron or --every is needed",
		"preview x":                                "one argument too many",
		"preview --cron @daily --every 5s":         "only one can be given",
		"preview --cron=":                          "--cron must not be empty",
		"preview --every 0s":                       "--every 0s is not valid: must be positive",
		"preview --every -5s":                      "--every -5s is not valid: must be positive",
		"preview --every often":                    "a duration is needed, as 1500ms",
		"preview --every 1s --zone UTC":            "--zone goes with --cron",
		"preview --cron @daily --from noon":        `--from "noon" is not valid: an RFC 3339 instant is needed`,
		"preview --cron @daily --end 2026-01-01":   `--end "2026-01-01" is not valid`,
		"preview --cron @daily --count 0":          "--count 0 is not valid: 1 to 1000",
		"preview --cron @daily --count 1001":       "--count 1001 is not valid: 1 to 1000",
		"preview --cron @daily -o xml":             `"xml" is not one of json, table`,
		"preview --cron @daily --start 2026-13-01": `--start "2026-13-01" is not valid`,
	} {
		r := carillon(t, "", strings.Fields(args)...)
		if r.code != exitUsage || !strings.Contains(r.errs, want) || strings.Count(r.errs, "\n") != 1 || r.out != "" {
			t.Errorf("carillon %s: %q is missing: %v", args, want, r)
		}
	}
}
