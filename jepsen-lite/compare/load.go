package main

import (
	"os"
	"runtime"
	"runtime/debug"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

const (
	// loadSlack is the timer slack of the process that puts on the load, ordinarySlack what Linux gives a process.
	loadSlack     = 500 * time.Microsecond
	ordinarySlack = 50 * time.Microsecond
	// loadGC is its GOGC: its heap is a few MiB, which Go would look through some hundred times a second.
	loadGC = 400
	// loadMark is in the environment of a process that has started itself again.
	loadMark = "COMPARE_LOAD"
)

// lighten has the load take less of the processors, whichever system it is for: by a rare GC, and by a timer slack, which `carillon
// bench` gives itself too. Threads inherit the slack, so the process starts itself again; if it may not, all goes on without.
func lighten() {
	debug.SetGCPercent(loadGC)
	if os.Getenv(loadMark) != "" {
		return
	}
	path, err := os.Executable()
	if err != nil {
		return
	}
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	if setSlack(loadSlack) != nil {
		return
	}
	_ = syscall.Exec(path, os.Args, append(os.Environ(), loadMark+"=1"))
	_ = setSlack(ordinarySlack)
}

// ordinary runs start, whose processes get the slack that they would have without this one.
func ordinary(start func() error) error {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	if err := setSlack(ordinarySlack); err != nil {
		return err
	}
	defer setSlack(loadSlack)
	return start()
}

// setSlack sets the slack of the thread that calls.
func setSlack(d time.Duration) error {
	return unix.Prctl(unix.PR_SET_TIMERSLACK, uintptr(d), 0, 0, 0)
}
