package segment

import (
	"errors"
	"io"
	"os"
	"syscall"

	"golang.org/x/sys/unix"
)

// dataSync is fdatasync: in a file that has its blocks already no journal is written.
func dataSync(f *os.File) error {
	return control(f, "fdatasync", func(fd int) error { return syscall.Fdatasync(fd) })
}

// control makes a system call with the file's descriptor, again if a signal came in between.
func control(f *os.File, op string, call func(fd int) error) error {
	conn, err := f.SyscallConn()
	if err != nil {
		return err
	}
	var result error
	err = conn.Control(func(fd uintptr) {
		for {
			if result = call(int(fd)); !errors.Is(result, syscall.EINTR) {
				return
			}
		}
	})
	if err == nil && result != nil {
		err = &os.PathError{Op: op, Path: f.Name(), Err: result}
	}
	return err
}

// directFile is a file that is open with O_DIRECT.
type directFile struct{ *os.File }

func openRaw(path string) (raw, error) {
	f, err := os.OpenFile(path, os.O_RDWR|syscall.O_DIRECT, 0)
	if err != nil {
		return nil, err
	}
	return directFile{f}, nil
}

// write is one system call. A flush with it is, on a disk that can do so, part of the same command.
func (f directFile) write(pieces [][]byte, at int64, flush bool) error {
	length, flags := 0, 0
	for _, piece := range pieces {
		length += len(piece)
	}
	if flush {
		flags = unix.RWF_DSYNC
	}
	err := control(f.File, "pwritev2", func(fd int) error {
		n, err := unix.Pwritev2(fd, pieces, at, flags)
		if err == nil && n != length {
			err = shortness(fd, pieces[len(pieces)-1], at+int64(length))
		}
		return err
	})
	if errors.Is(err, syscall.EINVAL) || errors.Is(err, syscall.EOPNOTSUPP) || errors.Is(err, syscall.ENOSYS) {
		return &refusedError{err}
	}
	return err
}

// shortness is why a write that was to end with last, at end, was short: a disk that gets full takes what it has room for, and only
// the next write says so. To write the last page does no harm: all of the range was to be written, and counts as not written.
func shortness(fd int, last []byte, end int64) error {
	if len(last) >= page {
		_, err := unix.Pwrite(fd, last[len(last)-page:], end-page)
		for _, full := range []error{unix.ENOSPC, unix.EDQUOT, unix.EFBIG} {
			if errors.Is(err, full) {
				return err
			}
		}
	}
	return io.ErrShortWrite
}
