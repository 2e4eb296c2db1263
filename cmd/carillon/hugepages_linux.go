package main

import (
	"os"
	"strings"

	"golang.org/x/sys/unix"
)

// mayAskForHugePages says that the kernel gives huge pages to those who ask, and address space for nothing.
func mayAskForHugePages() bool {
	mode, err := os.ReadFile("/sys/kernel/mm/transparent_hugepage/enabled")
	if err != nil || !strings.Contains(string(mode), "[madvise]") {
		return false
	}
	strict, err := os.ReadFile("/proc/sys/vm/overcommit_memory")
	if err != nil || strings.TrimSpace(string(strict)) == "2" {
		return false
	}
	var space unix.Rlimit
	return unix.Getrlimit(unix.RLIMIT_AS, &space) == nil && space.Cur == unix.RLIM_INFINITY
}

// adviseHuge says that the bytes may lie in huge pages.
func adviseHuge(b []byte) error {
	return os.NewSyscallError("madvise", unix.Madvise(b, unix.MADV_HUGEPAGE))
}
