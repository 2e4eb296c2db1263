package main

import (
	"testing"
	"time"
)

func TestSlackOf(t *testing.T) {
	for _, c := range []struct {
		command, variable string
		want              time.Duration
		wrong             string
	}{
		{"server", "", defaultSlack, ""},
		{"bench", "", defaultSlack, ""},
		{"dev", "1ms", time.Millisecond, ""},
		{"server", "0", 0, ""},
		{"get", "", 0, ""},
		{"get", "much", 0, ""},
		{"server", "much", 0, `$CARILLON_TIMER_SLACK "much" is not valid: a time from 0 to 10ms, as 500us`},
		{"server", "11ms", 0, `$CARILLON_TIMER_SLACK "11ms" is not valid: a time from 0 to 10ms, as 500us`},
		{"server", "-1us", 0, `$CARILLON_TIMER_SLACK "-1us" is not valid: a time from 0 to 10ms, as 500us`},
	} {
		t.Setenv(slackVariable, c.variable)
		got, err := slackOf([]string{c.command})
		if got != c.want || err == nil != (c.wrong == "") || err != nil && err.Error() != c.wrong {
			t.Errorf("%s with %q: %v, %v", c.command, c.variable, got, err)
		}
	}
	if got, err := slackOf(nil); got != 0 || err != nil {
		t.Errorf("no command: %v, %v", got, err)
	}
}
