package main

import (
	"context"
	"errors"
	"os"
	"runtime/debug"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// advisedBytes sums up the private memory of this process that may lie in huge pages.
func advisedBytes(t *testing.T) (kilobytes int) {
	t.Helper()
	smaps, err := os.ReadFile("/proc/self/smaps")
	if err != nil {
		t.Fatal(err)
	}
	size := 0
	for line := range strings.Lines(string(smaps)) {
		switch f := strings.Fields(line); f[0] {
		case "Size:":
			size = 0
			for _, digit := range f[1] {
				size = size*10 + int(digit-'0')
			}
		case "VmFlags:":
			if strings.Contains(line, " hg") {
				kilobytes += size
			}
		}
	}
	return kilobytes
}

func TestARunwayMayBeHugePages(t *testing.T) {
	const size = 16 << 20
	before := advisedBytes(t)
	err := layRunway(size)
	if errors.Is(err, unix.EINVAL) {
		return // a kernel without huge pages
	}
	if err != nil {
		t.Fatal(err)
	}
	// The ends are no whole pages; address space that was advised before may be used again.
	if after := advisedBytes(t); after-before < (size-2*hugePage)>>10 {
		t.Errorf("%d kB may be huge pages after a runway of %d, %d before", after, size>>10, before)
	}
}

func TestARunwayKeepsToTheMemoryLimit(t *testing.T) {
	if !underLimit(1 << 51) {
		t.Error("a limit that is not set is taken for one")
	}
	defer debug.SetMemoryLimit(debug.SetMemoryLimit(1 << 50))
	if underLimit(1<<50) || !underLimit(1<<49) {
		t.Errorf("a limit of 2^50: 2^50 more fit: %v, 2^49 more fit: %v", underLimit(1<<50), underLimit(1<<49))
	}
	left, all := heapRoom()
	if left > all || all == 0 {
		t.Errorf("%d of %d bytes of the heap are free", left, all)
	}
}

func TestHugePagesEndWithTheServer(t *testing.T) {
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	if err := keepHugePages(ctx); err != nil && !errors.Is(err, errNoHugePages) {
		t.Error(err)
	}
}
