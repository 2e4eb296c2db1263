//go:build !linux

package executor

func newSleeper() (Sleeper, error) { return NewTimerSleeper(), nil }
