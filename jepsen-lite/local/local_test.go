package local

import (
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"
)

// A process is started, seen, killed and started again; one that ignores SIGTERM is not tried, for that takes long.
func TestProcess(t *testing.T) {
	t.Parallel()
	p := &Process{Name: "sleeper", Path: "/bin/sh", Args: []string{"-c", "echo up; exec sleep 60"}, Log: filepath.Join(t.TempDir(), "log")}
	if p.Up() {
		t.Error("up before the start")
	}
	for _, sig := range []syscall.Signal{syscall.SIGKILL, syscall.SIGTERM} {
		if err := p.Start(); err != nil {
			t.Fatal(err)
		}
		pid := p.PID()
		if err := p.Start(); err != nil || p.PID() != pid {
			t.Errorf("a second start: %v, PID %d, want %d", err, p.PID(), pid)
		}
		if rss, err := p.RSS(); err != nil || rss <= 0 {
			t.Errorf("RSS %d, %v", rss, err)
		}
		began := time.Now()
		p.End(sig)
		if p.Up() || time.Since(began) > stopLimit/2 {
			t.Errorf("%v: up %v after %v", sig, p.Up(), time.Since(began))
		}
		if _, err := os.Stat(filepath.Join("/proc", "self")); err == nil && syscall.Kill(pid, 0) == nil {
			t.Errorf("%v: PID %d is there", sig, pid)
		}
	}
	p.Stop() // of one that is down does nothing
}

func TestNewCluster(t *testing.T) {
	t.Parallel()
	c, err := NewCluster("bin/carillon", "/data", 3, 16, "--pprof")
	if err != nil {
		t.Fatal(err)
	}
	seen := map[string]bool{}
	for _, n := range c.Nodes {
		for _, addr := range []string{n.Client, n.Peer, n.Gossip, n.HTTP} {
			if seen[addr] || !strings.HasPrefix(addr, "127.0.0.1:") {
				t.Errorf("address %s is used twice or not on loopback", addr)
			}
			seen[addr] = true
		}
		line := strings.Join(n.Args, " ")
		for _, part := range []string{"server --id " + n.Name, "--dir /data/" + n.Name, "--bootstrap-expect 3", "--shards 16 --pprof"} {
			if !strings.Contains(line, part) {
				t.Errorf("want %q in %s", part, line)
			}
		}
	}
}

func TestReportMeasure(t *testing.T) {
	t.Parallel()
	r := Report{Measures: []Measure{{Name: "a", Rate: 1}, {Name: "b", Rate: 2}}}
	if got := r.Measure("b").Rate; got != 2 {
		t.Errorf("got %v", got)
	}
	if got := r.Measure("c"); got != (Measure{}) {
		t.Errorf("got %+v", got)
	}
}
