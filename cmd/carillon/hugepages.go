package main

import (
	"context"
	"errors"
	"log/slog"
	"math"
	"runtime"
	"runtime/debug"
	"runtime/metrics"
	"time"
	"unsafe"
)

const (
	// hugePage is the size of a huge page on the machines that Carillon is built for; on others the advice is of no use.
	hugePage = 2 << 20
	// runwayBytes is how much address space the heap gets at a time, at least.
	runwayBytes = 256 << 20
	// runwayEvery is how often it is looked at whether what is left is enough, which is a quarter of runwayBytes.
	runwayEvery = time.Second
)

// errNoHugePages says that the system has none to ask for, gives them to everybody, or bounds the address space.
var errNoHugePages = errors.New("huge pages cannot be asked for")

// keepHugePages has the heap of this process lie in huge pages until the context ends. Go's runtime does not ask for them, and most
// systems give them only to those who ask (transparent_hugepage "madvise"). So this has the heap grow ahead of its use: it allocates
// much, says that this may be huge pages, and drops it untouched. That costs address space and a collection, but no memory.
func keepHugePages(ctx context.Context) error {
	if !mayAskForHugePages() || !underLimit(runwayBytes) {
		return errNoHugePages
	}
	if err := layRunway(runwayBytes); err != nil {
		return err
	}
	runtime.GC() // so that the runway is free at once
	tick := time.NewTicker(runwayEvery)
	defer tick.Stop()
	for {
		select {
		case <-tick.C:
		case <-ctx.Done():
			return nil
		}
		left, all := heapRoom()
		if size := max(runwayBytes, all/8); left < runwayBytes/4 && underLimit(size) {
			if err := layRunway(size); err != nil {
				return err
			}
		}
	}
}

// tellHugePages is keepHugePages for a server, which runs without them, too.
func tellHugePages(ctx context.Context, logger *slog.Logger) {
	if err := keepHugePages(ctx); err != nil {
		logger.Debug("memory without huge pages", "reason", err)
	}
}

// layRunway makes the heap larger by size bytes that may be huge pages.
func layRunway(size uint64) error {
	runway := make([]byte, size)
	start := uintptr(unsafe.Pointer(unsafe.SliceData(runway)))
	runway = runway[-start%hugePage:]
	err := adviseHuge(runway[:len(runway)/hugePage*hugePage])
	runtime.KeepAlive(runway)
	return err
}

// heapRoom is how many bytes of the heap's address space nothing lies in, and how many there are.
func heapRoom() (left, all uint64) {
	s := []metrics.Sample{
		{Name: "/memory/classes/heap/free:bytes"}, {Name: "/memory/classes/heap/released:bytes"},
		{Name: "/memory/classes/heap/objects:bytes"}, {Name: "/memory/classes/heap/unused:bytes"},
	}
	metrics.Read(s)
	for i := range s {
		all += s[i].Value.Uint64()
	}
	return s[0].Value.Uint64() + s[1].Value.Uint64(), all
}

// underLimit says that a memory limit of the runtime, if there is one, leaves room for so many bytes more: an untouched runway counts for it
// until it is dropped.
func underLimit(size uint64) bool {
	limit := debug.SetMemoryLimit(-1)
	if limit == math.MaxInt64 {
		return true
	}
	s := []metrics.Sample{{Name: "/memory/classes/total:bytes"}, {Name: "/memory/classes/heap/released:bytes"}}
	metrics.Read(s)
	return s[0].Value.Uint64()-s[1].Value.Uint64()+size < uint64(limit)
}
