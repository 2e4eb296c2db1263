//go:build !linux

package executor

func defaultSleeper() Sleeper { return NewTimerSleeper() }
