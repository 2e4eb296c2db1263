package segment

import (
	"errors"
	"os"
	"os/exec"
	signals "os/signal"
	"syscall"
	"testing"
)

// fullTest makes TestFullDiskIsNamed the process whose files may not grow further.
const fullTest = "CARILLON_TEST_FULL"

// A write that a full disk cuts short says that, and not "short write", which is all that one system call tells. The limit of a
// process for the size of its files acts as a full disk does, and needs a process of its own.
func TestFullDiskIsNamed(t *testing.T) {
	if dir := os.Getenv(fullTest); dir != "" {
		writeBeyondLimit(t, folder(dir))
		return
	}
	t.Parallel()
	cmd := exec.Command(os.Args[0], "-test.run=^TestFullDiskIsNamed$")
	cmd.Env = append(os.Environ(), fullTest+"="+t.TempDir())
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
}

// writeBeyondLimit writes as the log does: past the page cache, or through it where the system does not let it.
func writeBeyondLimit(t *testing.T, dir folder) {
	f, err := dir.Create(spareFile)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	signals.Ignore(syscall.SIGXFSZ)
	if err := syscall.Setrlimit(syscall.RLIMIT_FSIZE, &syscall.Rlimit{Cur: 4 * page, Max: 4 * page}); err != nil {
		t.Fatal(err)
	}
	if err := f.WriteSync(aligned(8*page), 0); !errors.Is(err, syscall.EFBIG) {
		t.Errorf("%v, want %v", err, syscall.EFBIG)
	}
}
