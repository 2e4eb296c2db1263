package main

import "testing"

func TestVerdict(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		row  row
		want string
	}{
		{row{Value: 5, Goal: 4, Stretch: 8, More: true}, "yes"},
		{row{Value: 8, Goal: 4, Stretch: 8, More: true}, "stretch"},
		{row{Value: 3, Goal: 4, Stretch: 8, More: true}, "**no**"},
		{row{Value: 3, Goal: 4, Stretch: 2}, "yes"},
		{row{Value: 5, Goal: 4}, "**no**"},
		{row{Value: 5}, ""},
		{row{Value: 0, Zero: true}, "yes"},
		{row{Value: 1, Zero: true}, "**no**"},
	} {
		if got := test.row.verdict(); got != test.want {
			t.Errorf("%+v: got %q, want %q", test.row, got, test.want)
		}
	}
}

func TestMarkdown(t *testing.T) {
	t.Parallel()
	got := markdown("2 CPUs", []row{
		{Target: "T5", What: "schedules, one caller", Value: 1234.4, Unit: "/s", Goal: 1200, Stretch: 2500, More: true},
		{Target: "T6", What: "lateness", Value: 0.456, Unit: "ms", Goal: 1.5},
		{Target: "T6", What: "early", Zero: true},
		{Target: "T11", What: "ready", Value: 12.34, Unit: "s"},
	}, []string{"A note."})
	want := `2 CPUs.

| # | what | measured | unit | target | stretch | met |
|---|---|---:|---|---:|---:|---|
| T5 | schedules, one caller | 1,234 | /s | ≥ 1,200 | ≥ 2,500 | yes |
| T6 | lateness | 0.46 | ms | ≤ 1.50 |  | yes |
| T6 | early | 0 |  | 0 |  | yes |
| T11 | ready | 12.3 | s |  |  |  |

A note.
`
	if got != want {
		t.Errorf("got\n%s\nwant\n%s", got, want)
	}
}

func TestPlan(t *testing.T) {
	t.Parallel()
	all, err := options{}.plan()
	if err != nil || len(all) != len(steps) || !all["schedule"] || !all["memory"] {
		t.Errorf("all: %v, %v", all, err)
	}
	some, err := options{only: "kill,stop"}.plan()
	if err != nil || !some["kill"] || !some["stop"] || some["fire"] {
		t.Errorf("some: %v, %v", some, err)
	}
	if _, err := (options{only: "kill,nothing"}).plan(); err == nil {
		t.Error("an unknown step is no error")
	}
}
