package recur

import (
	"os"
	"slices"
	"strings"
	"testing"
)

// The table of DESIGN.md says what happens.
func TestDesignTable(t *testing.T) {
	t.Parallel()
	text, err := os.ReadFile("DESIGN.md")
	if err != nil {
		t.Fatal(err)
	}
	_, table, found := strings.Cut(string(text), "| cron | zone | from | due, local | what happens |\n|---|---|---|---|---|\n")
	table, _, _ = strings.Cut(table, "\n\n")
	lines := strings.Split(table, "\n")
	if !found || len(lines) < 16 {
		t.Fatalf("the table has %d lines", len(lines))
	}
	for _, line := range lines {
		cells := strings.Split(strings.Trim(line, "|"), "|")
		if len(cells) != 5 {
			t.Fatalf("%d cells: %s", len(cells), line)
		}
		for i := range cells {
			cells[i] = strings.Trim(cells[i], " `")
		}
		s, want := series(t, cells[0], cells[1]), strings.Split(cells[3], ", ")
		after, note := millis(t, cells[2]), ""
		var got []string
		for i := range want {
			due, ok := s.Next(after)
			if !ok {
				break
			}
			l := s.Rule.Local(due)
			if got = append(got, l.Time); i == 0 {
				note = l.Note
			}
			after = due
		}
		if !slices.Equal(got, want) || note != cells[4] {
			t.Errorf("%s\ngot %v: %s", line, got, note)
		}
	}
}

func TestNotes(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ expr, zone, due, zoneName, note string }{
		{"30 * * * *", "Europe/Berlin", "2026-10-25T01:30:00Z", "CET", "02:30 occurs twice, this is the second time"},
		{"30 * * * *", "Europe/Berlin", "2026-10-25T02:30:00Z", "CET", ""},
		{"* 2 * * *", "Europe/Berlin", "2026-03-29T01:00:00Z", "CEST", "02:00 to 02:59 (60 times) are skipped by DST, moved together to 03:00"},
		{"* * 9 * * *", "Pacific/Apia", "2011-12-30T10:00:00Z", "+14",
			"2011-12-30 09:00 and later times are skipped by a change of the zone's offset, moved together to 00:00"},
		{"30 5 3 * * *", "Europe/Berlin", "2026-07-01T01:05:30Z", "CEST", ""},
		{"45 59 1 * * *", "Europe/London", "2026-10-25T00:59:45Z", "BST", "01:59:45 occurs twice, due the first time only"},
		{"0 9 * * *", "UTC", "2026-07-01T09:00:00Z", "UTC", ""},
		{"@every 90m", "Europe/Berlin", "2026-03-29T01:00:00Z", "CEST", ""},
	} {
		l := series(t, c.expr, c.zone).Rule.Local(millis(t, c.due))
		if l.Zone != c.zoneName || l.Note != c.note {
			t.Errorf("%q in %s at %s: %+v", c.expr, c.zone, c.due, l)
		}
	}
	s := Series{Rule: every(t, 1500)}
	if l := s.Rule.Local(1500); l != (Local{Time: "1970-01-01T00:00:01.5Z", Zone: "UTC"}) {
		t.Errorf("a half second: %+v", l)
	}
}
