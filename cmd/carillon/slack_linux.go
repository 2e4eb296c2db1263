package main

import (
	"os"
	"runtime"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// slackMark is in the environment of a process that has started itself again.
const slackMark = "CARILLON_TIMER_SLACK_SET"

// slacken has the system wake the threads of this process up to slack later than they ask for when they sleep for a time, unless that is what
// somebody has asked for already (TimerSlackNSec of systemd). A thread hands its slack on to those that it starts, and the watchdog of Go's
// runtime is started before any of our code: so the process starts itself again, with the same process ID, arguments and files, and slacken
// does not return. Where the system does not allow that it returns, and all goes on as it was.
func slacken(slack time.Duration) {
	again := os.Getenv(slackMark) != ""
	_ = os.Unsetenv(slackMark)
	before := slackOfThread()
	if again || before >= slack {
		return
	}
	path, err := os.Executable()
	if err != nil {
		return
	}
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	if unix.Prctl(unix.PR_SET_TIMERSLACK, uintptr(slack), 0, 0, 0) != nil || slackOfThread() != slack {
		return // a real-time thread has none
	}
	_ = syscall.Exec(path, os.Args, append(os.Environ(), slackMark+"=1"))
	_ = unix.Prctl(unix.PR_SET_TIMERSLACK, uintptr(before), 0, 0, 0)
}

// slackOfThread is the slack of the thread that calls; 0 if the system does not say.
func slackOfThread() time.Duration {
	slack, err := unix.PrctlRetInt(unix.PR_GET_TIMERSLACK, 0, 0, 0, 0)
	if err != nil {
		return 0
	}
	return time.Duration(slack)
}
