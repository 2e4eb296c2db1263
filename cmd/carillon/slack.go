package main

import (
	"os"
	"slices"
	"time"
)

const (
	// slackVariable sets the slack; 0 leaves that of the system.
	slackVariable = "CARILLON_TIMER_SLACK"
	defaultSlack  = 500 * time.Microsecond
	maxSlack      = 10 * time.Millisecond
)

// slackOf is the slack that a command line asks for: only what serves or puts on a load has one.
func slackOf(args []string) (time.Duration, error) {
	if len(args) == 0 || !slices.Contains([]string{"server", "dev", "bench"}, args[0]) {
		return 0, nil
	}
	text := os.Getenv(slackVariable)
	if text == "" {
		return defaultSlack, nil
	}
	slack, err := time.ParseDuration(text)
	if err != nil || slack < 0 || slack > maxSlack {
		return 0, usagef("$%s %q is not valid: a time from 0 to %v, as 500us", slackVariable, text, maxSlack)
	}
	return slack, nil
}
