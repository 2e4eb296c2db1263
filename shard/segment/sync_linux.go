package segment

import (
	"errors"
	"os"
	"syscall"
)

// dataSync is fdatasync: in a file that has its blocks already no journal is written.
func dataSync(f *os.File) error {
	conn, err := f.SyscallConn()
	if err != nil {
		return err
	}
	var result error
	err = conn.Control(func(fd uintptr) {
		for {
			if result = syscall.Fdatasync(int(fd)); !errors.Is(result, syscall.EINTR) {
				return
			}
		}
	})
	if err == nil && result != nil {
		err = &os.PathError{Op: "fdatasync", Path: f.Name(), Err: result}
	}
	return err
}
