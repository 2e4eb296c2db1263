package main

import (
	"bytes"
	"context"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"
)

// screen is where a command that runs on prints; it can be read meanwhile.
type screen struct {
	mu   sync.Mutex
	text bytes.Buffer // guarded by mu
}

func (s *screen) Write(b []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.text.Write(b)
}

func (s *screen) String() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.text.String()
}

// running is a command that runs until it is stopped.
type running struct {
	out, errs screen
	cancel    context.CancelFunc
	code      chan int
}

// begin runs a command line and waits until it has printed the words.
func begin(t *testing.T, words string, args ...string) *running {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	r := &running{cancel: cancel, code: make(chan int, 1)}
	go func() { r.code <- run(ctx, args, strings.NewReader(""), &r.out, &r.errs) }() // ends with ctx; end waits for it
	t.Cleanup(cancel)
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	limit := time.After(time.Minute)
	for !strings.Contains(r.out.String(), words) {
		select {
		case <-tick.C:
		case code := <-r.code:
			t.Fatalf("ended with %d\n%s%s", code, r.out.String(), r.errs.String())
		case <-limit:
			t.Fatalf("does not say %q\n%s%s", words, r.out.String(), r.errs.String())
		}
	}
	return r
}

// end stops the command, as Ctrl-C does, and returns how long that took.
func (r *running) end(t *testing.T) time.Duration {
	t.Helper()
	began := time.Now()
	r.cancel()
	if code := <-r.code; code != exitDone {
		t.Errorf("exit code %d\n%s%s", code, r.out.String(), r.errs.String())
	}
	return time.Since(began)
}

// freeBase finds a port such that those of one node of carillon dev are free.
func freeBase(t *testing.T) int {
	t.Helper()
	for range 100 {
		ln, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		port := ln.Addr().(*net.TCPAddr).Port
		if err := ln.Close(); err != nil {
			t.Fatal(err)
		}
		o := devOptions{nodes: 1, port: port}
		if o.check() == nil && o.checkPorts() == nil {
			return port
		}
	}
	t.Fatal("no free ports")
	return 0
}

func TestServer(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	args := []string{"server", "--id", "n1", "--dir", dir, "--client", "127.0.0.1:0", "--peer", "127.0.0.1:0", "--gossip", "127.0.0.1:0",
		"--http", "", "--bootstrap-expect", "1", "--shards", "2"}
	r := begin(t, "carillon n1 is ready: clients 127.0.0.1:", args...)
	if second := carillon(t, "", args...); second.code != exitFailed || !strings.Contains(second.errs, "in use by another process") {
		t.Errorf("a second process: %v", second)
	}
	if took := r.end(t); took > 10*time.Second {
		t.Errorf("the stop took %v", took)
	}
	if n := strings.Count(r.out.String(), "\n"); n != 1 {
		t.Errorf("printed %d lines: %s", n, r.out.String())
	}
	other := carillon(t, "", append(args, "--shards", "3")...)
	if other.code != exitFailed || !strings.Contains(other.errs, "has 2 shards, which never changes") {
		t.Errorf("another shard count: %v", other)
	}
}

func TestDev(t *testing.T) {
	t.Parallel()
	port := freeBase(t)
	dir := filepath.Join(t.TempDir(), "kept")
	args := []string{"dev", "--nodes", "1", "--shards", "2", "--port", strconv.Itoa(port), "--dir", dir}
	r := begin(t, "Ctrl-C stops it.", args...)
	for _, words := range []string{fmt.Sprintf("127.0.0.1:%d", port), callName(os.Args[0]) + " schedule hello", callName(os.Args[0]) + " work demo", "CARILLON_ADDR=", "(kept)"} {
		if !strings.Contains(r.out.String(), words) {
			t.Errorf("does not say %q:\n%s", words, r.out.String())
		}
	}
	if taken := carillon(t, "", args...); taken.code != exitFailed || !strings.Contains(taken.errs, fmt.Sprintf("port %d is taken", port)) || !strings.Contains(taken.errs, "--port") {
		t.Errorf("ports that are taken: %v", taken)
	}
	if took := r.end(t); took > 8*time.Second {
		t.Errorf("the stop took %v", took)
	}
	if said := r.errs.String(); said != "" {
		t.Errorf("logged: %s", said)
	}
	if _, err := os.Stat(filepath.Join(dir, "n1", "node.json")); err != nil {
		t.Errorf("the data was not kept: %v", err)
	}
}

func TestWrongUsageOfServerAndDev(t *testing.T) {
	t.Parallel()
	held := t.TempDir()
	if err := os.MkdirAll(filepath.Join(held, "n3"), 0o750); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(held, "n3", "node.json"), []byte("{}"), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct{ words, line string }{
		{"--id and --dir are needed", "server"},
		{"--id and --dir are needed", "server --id n1"},
		{`--id "a/b" is not valid: 1 to`, "server --id a/b --dir d"},
		{`--peer "nonsense" is not valid`, "server --id n1 --dir d --peer nonsense"},
		{"--shards 1000 is not valid: 1 to 256", "server --id n1 --dir d --shards 1000"},
		{"--shards 0", "server --id n1 --dir d --shards 0"},
		{"--bootstrap-expect -3 is not valid: 0 to 64", "server --id n1 --dir d --bootstrap-expect -3"},
		{"--webhook-rate -1 is not valid", "server --id n1 --dir d --webhook-rate -1"},
		{`--webhook-allow "10.0.0.1/8" is not valid`, "server --id n1 --dir d --webhook-allow 10.0.0.1/8"},
		{"--log-level", "server --id n1 --dir d --log-level loud"},
		{"--log-format", "server --id n1 --dir d --log-format xml"},
		{"one argument too many", "server --id n1 --dir d more"},
		{"--nodes 0", "dev --nodes 0"},
		{"--nodes 10", "dev --nodes 10"},
		{"--port 65500", "dev --port 65500"},
		{"--shards 257", "dev --shards 257"},
		{"say --nodes 3 or more", "dev --nodes 2 --port " + strconv.Itoa(freeBase(t)) + " --dir " + held},
	} {
		r := carillon(t, "", strings.Fields(c.line)...)
		if r.code != exitUsage || !strings.Contains(r.errs, c.words) {
			t.Errorf("carillon %s: %v, want %q", c.line, r, c.words)
		}
	}
}

func TestCallName(t *testing.T) {
	for arg, want := range map[string]string{
		"carillon": "carillon", "bin/carillon": "bin/carillon", "/my tools/carillon": "'/my tools/carillon'", "it's": `'it'\''s'`,
	} {
		if got := callName(arg); got != want {
			t.Errorf("%s: %s, want %s", arg, got, want)
		}
	}
}
