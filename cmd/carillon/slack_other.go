//go:build !linux

package main

import "time"

// slacken does nothing: only Linux has a slack of timers.
func slacken(time.Duration) {}
