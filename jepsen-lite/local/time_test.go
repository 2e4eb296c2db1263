package local

import (
	"path/filepath"
	"testing"
	"time"
)

// A process that computes has used processor time; one that is down has no answer.
func TestProcessorTime(t *testing.T) {
	t.Parallel()
	p := &Process{Name: "busy", Path: "/bin/sh", Args: []string{"-c", "while :; do :; done"}, Log: filepath.Join(t.TempDir(), "log")}
	if _, err := p.ProcessorTime(); err == nil {
		t.Error("a process that is down has used time")
	}
	if err := p.Start(); err != nil {
		t.Fatal(err)
	}
	defer p.Kill()
	for limit := time.Now().Add(20 * time.Second); ; {
		used, err := p.ProcessorTime()
		if err != nil {
			t.Fatal(err)
		}
		if used >= 50*time.Millisecond {
			return
		}
		if time.Now().After(limit) {
			t.Fatalf("it has used %v", used)
		}
	}
}
