package segment

import (
	"errors"
	"os"
	"os/exec"
	signals "os/signal"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
)

// fullTest makes TestFullDiskIsNamed the process whose files may not grow further.
const fullTest = "CARILLON_TEST_FULL"

// A write that a full disk cuts short says that, and not "short write", which is all that one system call tells. The limit of a
// process for the size of its files acts as a full disk does, and needs a process of its own.
func TestFullDiskIsNamed(t *testing.T) {
	if path := os.Getenv(fullTest); path != "" {
		writeBeyondLimit(t, path)
		return
	}
	t.Parallel()
	path := filepath.Join(t.TempDir(), "segment")
	if err := os.WriteFile(path, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(os.Args[0], "-test.run=^TestFullDiskIsNamed$", "-test.v")
	cmd.Env = append(os.Environ(), fullTest+"="+path)
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	if strings.Contains(string(out), "--- SKIP") {
		t.Skip("no file can be written past the page cache here")
	}
}

func writeBeyondLimit(t *testing.T, path string) {
	f, err := openRaw(path)
	if err != nil {
		t.Skip(err)
	}
	defer f.Close()
	signals.Ignore(syscall.SIGXFSZ)
	if err := syscall.Setrlimit(syscall.RLIMIT_FSIZE, &syscall.Rlimit{Cur: 4 * page, Max: 4 * page}); err != nil {
		t.Fatal(err)
	}
	err = f.write([][]byte{aligned(2 * page), aligned(6 * page)}, 0, false)
	if refused := new(refusedError); errors.As(err, &refused) {
		t.Skip(err)
	}
	if !errors.Is(err, syscall.EFBIG) {
		t.Errorf("%v, want %v", err, syscall.EFBIG)
	}
}
