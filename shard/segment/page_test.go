package segment

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"sync/atomic"
	"syscall"
	"testing"
	"time"
	"unsafe"

	"github.com/hashicorp/raft"
)

// memRaw is a disk that takes whole pages alone, or, at the end of a file that ends within one, sectors.
type memRaw struct {
	t    *testing.T
	data []byte
	end  int // of the file
}

func (m *memRaw) write(pieces [][]byte, at int64, _ bool) error {
	length := 0
	for _, piece := range pieces {
		if address := uintptr(unsafe.Pointer(unsafe.SliceData(piece))); len(piece) == 0 || len(piece)%sector > 0 || address%sector > 0 {
			m.t.Errorf("a piece of %d bytes at %x", len(piece), address)
		}
		length += copy(m.data[int(at)+length:], piece)
	}
	if at%page > 0 || length%page > 0 && int(at)+length != m.end {
		m.t.Errorf("%d bytes at %d of %d", length, at, m.end)
	}
	return nil
}

func (m *memRaw) Close() error { return nil }

// What is written around the sectors changes nothing before them, and behind them no more than zeros can, up to the end of
// the page; and a writer that is new to the file goes on as the one before.
func TestPageWriter(t *testing.T) {
	t.Parallel()
	for seed := range uint64(300) {
		rnd := rand.New(rand.NewPCG(seed, 7))
		size := sector * (8 + rnd.IntN(60))
		disk := &memRaw{t: t, data: aligned(size), end: size}
		for i := range disk.data {
			disk.data[i] = byte(rnd.Uint32()) // a recycled segment
		}
		model := bytes.Clone(disk.data)
		var w *pageWriter
		reads, at := 0, 0
		for at < size {
			if w == nil || rnd.IntN(5) == 0 {
				w = &pageWriter{raw: disk, size: int64(size), tail: aligned(page)}
				w.read = func(b []byte, at int64) (int, error) { reads++; return copy(b, disk.data[at:]), nil }
				reads = 0
			}
			mark := rnd.IntN(4) == 0 // what comes next is in its place
			b := aligned(sector * (1 + rnd.IntN(min(20, (size-at)/sector))))
			if mark {
				b = b[:sector]
			}
			for i := range b {
				b[i] = byte(rnd.Uint32())
			}
			if err := w.write(b, int64(at), rnd.IntN(2) == 0); err != nil {
				t.Fatal(err)
			}
			end := at + len(b)
			copy(model[at:], b)
			clear(model[end:min(int(pages(int64(end))), size)])
			if !bytes.Equal(model, disk.data) {
				t.Fatalf("seed %d: wrong after %d bytes at %d of %d", seed, len(b), at, size)
			}
			if reads > 1 {
				t.Fatalf("seed %d: read %d times", seed, reads)
			}
			if !mark {
				at = end
			}
		}
	}
}

// odd is a folder whose writes past the page cache fail in some way.
type odd struct {
	folder
	fail func() error
}

type oddRaw struct {
	raw
	fail func() error
}

func (o oddRaw) write(pieces [][]byte, at int64, flush bool) error {
	if err := o.fail(); err != nil {
		return err
	}
	return o.raw.write(pieces, at, flush)
}

// plainRaw writes through the page cache, where there is no other way.
type plainRaw struct{ *os.File }

func (p plainRaw) write(pieces [][]byte, at int64, _ bool) error {
	_, err := p.WriteAt(slices.Concat(pieces...), at)
	return err
}

func (plainRaw) Close() error { return nil }

func (o odd) wrap(name string, f file, err error) (file, error) {
	if err != nil || name == ManifestFile || name == freshFile {
		return f, err
	}
	one := f.(*osFile)
	if one.pages == nil {
		size, err := one.Size()
		if err != nil {
			return nil, err
		}
		one.pages = &pageWriter{raw: plainRaw{one.File}, read: one.ReadAt, size: size, tail: aligned(page)}
	}
	one.pages.raw = oddRaw{one.pages.raw, o.fail}
	return one, nil
}

func (o odd) Open(name string) (file, error) {
	f, err := o.folder.Open(name)
	return o.wrap(name, f, err)
}

func (o odd) Create(name string) (file, error) {
	f, err := o.folder.Create(name)
	return o.wrap(name, f, err)
}

// oddly are the options of a log in such a folder.
func oddly(t *testing.T, fail func() error) Options {
	t.Helper()
	fs, err := openFolder(filepath.Join(t.TempDir(), "log"))
	if err != nil {
		t.Fatal(err)
	}
	return Options{SegmentBytes: 40 << 10, CacheBytes: 1, QuietAfter: time.Hour, Logger: quietly, fs: odd{fs, fail}}
}

// A system that refuses, at whichever write, is written through the page cache from there on, and nothing is missing.
func TestRefused(t *testing.T) {
	t.Parallel()
	for _, cause := range []error{syscall.EINVAL, syscall.EOPNOTSUPP, syscall.ENOSYS} {
		for first := range int64(12) {
			t.Run(fmt.Sprint(cause, first), func(t *testing.T) {
				t.Parallel()
				var calls atomic.Int64
				o := oddly(t, func() error {
					if calls.Add(1) > first {
						return &refusedError{cause}
					}
					return nil
				})
				for round := range uint64(3) {
					r := startIn(t, "", o)
					for i := 40*round + 1; i <= 40*round+40; i++ {
						if err := r.Group(0).StoreLog(entryOf(i, int(i)*20)); err != nil {
							t.Fatal(err)
						}
					}
					for i := uint64(1); i <= 40*round+40; i++ {
						var e raft.Log
						if err := r.Group(0).GetLog(i, &e); err != nil || len(e.Data) != int(i)*20 {
							t.Fatalf("entry %d: %d bytes, %v", i, len(e.Data), err)
						}
					}
					if err := r.stop(); err != nil {
						t.Fatal(err)
					}
				}
			})
		}
	}
}

// A write past the page cache that fails otherwise, or is short, is not tried again: the log ends, and what was answered is
// there afterwards.
func TestDirectErrors(t *testing.T) {
	t.Parallel()
	for _, cause := range []error{syscall.EIO, syscall.ENOSPC, io.ErrShortWrite} {
		var broken atomic.Bool
		var after atomic.Int64
		o := oddly(t, func() error {
			if broken.Load() {
				after.Add(1)
				return cause
			}
			return nil
		})
		r := startIn(t, "", o)
		if err := r.Group(0).StoreLog(entryOf(1, 100)); err != nil {
			t.Fatal(err)
		}
		broken.Store(true)
		for range 3 {
			if err := r.Group(0).StoreLog(entryOf(2, 100)); !errors.As(err, new(*WriteError)) || !errors.Is(err, cause) {
				t.Errorf("%v: %v", cause, err)
			}
		}
		if err := r.stop(); !errors.Is(err, cause) {
			t.Errorf("%v: the end: %v", cause, err)
		}
		if n := after.Load(); n != 1 {
			t.Errorf("%v: %d writes after the first that failed", cause, n-1)
		}
		broken.Store(false)
		r = startIn(t, "", o)
		if last, err := r.Group(0).LastIndex(); last != 1 || err != nil {
			t.Errorf("%v: opened again: last index %d, %v", cause, last, err)
		}
		if err := r.stop(); err != nil {
			t.Error(err)
		}
	}
}

// A log that was written through the page cache and one that was not are the same to the next opening.
func TestSameFiles(t *testing.T) {
	t.Parallel()
	var files [2][]byte
	for way := range files {
		o := oddly(t, func() error {
			if way == 1 {
				return &refusedError{syscall.EINVAL}
			}
			return nil
		})
		r := startIn(t, "", o)
		for i := uint64(1); i < 9; i++ {
			if err := r.Group(3).StoreLog(entryOf(i, int(i)*97)); err != nil {
				t.Fatal(err)
			}
		}
		if err := r.stop(); err != nil {
			t.Fatal(err)
		}
		f, err := o.fs.Open(segmentName(1))
		if err != nil {
			t.Fatal(err)
		}
		files[way] = make([]byte, o.SegmentBytes)
		if _, err := f.ReadAt(files[way], 0); err != nil {
			t.Fatal(err)
		}
		if err := f.Close(); err != nil {
			t.Fatal(err)
		}
	}
	// The salts, and so the checksums of the headers of the batches, differ: look at the records.
	records := func(b []byte) []byte {
		b = slices.Clone(b[sector:])
		for at := 0; at < len(b); at += sector {
			if m := string(b[at : at+4]); m == "CBT1" || m == "CMK1" {
				clear(b[at+28 : at+batchHeader])
			}
		}
		return b
	}
	if !bytes.Equal(records(files[0]), records(files[1])) {
		t.Error("the two differ")
	}
}
