// Package local runs real server processes on loopback: it starts, signals, kills and stops them, by their process IDs.
package local

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"
)

// stopLimit is how long a process may take to end after SIGTERM; then it is killed.
const stopLimit = 15 * time.Second

// Process is a process that can be started again and again. Its output is appended to a log file.
type Process struct {
	Name string
	Path string   // of the program
	Args []string // its arguments
	Log  string   // path of the log file
	// User runs the process as another user; nil means as this one. Used by programs that refuse to run as root.
	User *syscall.Credential

	waiter sync.WaitGroup // one goroutine while the process is up

	mu   sync.Mutex
	cmd  *exec.Cmd     // guarded by mu; nil while it is down
	done chan struct{} // guarded by mu; closed when cmd has ended
}

// Start starts the process; it does nothing if it is up. The process is killed if this one dies.
func (p *Process) Start() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.cmd != nil {
		return nil
	}
	log, err := os.OpenFile(p.Log, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
	if err != nil {
		return fmt.Errorf("start %s: %w", p.Name, err)
	}
	defer log.Close()
	cmd := exec.Command(p.Path, p.Args...)
	cmd.Stdout, cmd.Stderr = log, log
	cmd.Dir = filepath.Dir(p.Log)
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL, Credential: p.User}
	if err := cmd.Start(); err != nil {
		return fmt.Errorf("start %s: %w", p.Name, err)
	}
	done := make(chan struct{})
	p.cmd, p.done = cmd, done
	p.waiter.Go(func() { // ends with the process
		_ = cmd.Wait() // how it ended is in its log
		p.mu.Lock()
		p.cmd = nil
		p.mu.Unlock()
		close(done)
	})
	return nil
}

// PID is the process ID; 0 while it is down.
func (p *Process) PID() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.cmd == nil {
		return 0
	}
	return p.cmd.Process.Pid
}

// Up tells whether the process runs.
func (p *Process) Up() bool { return p.PID() != 0 }

// Signal sends a signal to the process, if it is up.
func (p *Process) Signal(sig syscall.Signal) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.cmd != nil {
		_ = p.cmd.Process.Signal(sig) // it may just have ended
	}
}

// Kill ends the process with SIGKILL and waits for its end.
func (p *Process) Kill() { p.End(syscall.SIGKILL) }

// Stop ends the process with SIGTERM, and with SIGKILL if it takes too long.
func (p *Process) Stop() { p.End(syscall.SIGTERM) }

// End ends the process with the signal, and with SIGKILL if it takes too long.
func (p *Process) End(sig syscall.Signal) {
	p.mu.Lock()
	done, up := p.done, p.cmd != nil
	p.mu.Unlock()
	if !up {
		return
	}
	p.Signal(sig)
	limit := time.NewTimer(stopLimit)
	defer limit.Stop()
	select {
	case <-done:
	case <-limit.C:
		p.Signal(syscall.SIGKILL)
	}
	p.waiter.Wait()
}

// RSS is the resident memory of the process in bytes.
func (p *Process) RSS() (int64, error) {
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", p.PID()))
	if err != nil {
		return 0, fmt.Errorf("memory of %s: %w", p.Name, err)
	}
	for line := range strings.Lines(string(status)) {
		if rest, ok := strings.CutPrefix(line, "VmRSS:"); ok {
			kib, err := strconv.ParseInt(strings.TrimSpace(strings.TrimSuffix(strings.TrimSpace(rest), "kB")), 10, 64)
			if err != nil {
				return 0, fmt.Errorf("memory of %s: %w", p.Name, err)
			}
			return kib << 10, nil
		}
	}
	return 0, fmt.Errorf("memory of %s: the system does not say", p.Name)
}

// ProcessorTime is what the process has used since its start, in the system's ticks of 10 ms.
func (p *Process) ProcessorTime() (time.Duration, error) {
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", p.PID()))
	if err != nil {
		return 0, fmt.Errorf("processor time of %s: %w", p.Name, err)
	}
	// The fields after the name, which may contain anything but ends at the last parenthesis.
	fields := strings.Fields(string(stat[bytes.LastIndexByte(stat, ')')+1:]))
	var ticks int64
	for _, i := range []int{11, 12} { // user and system
		if i >= len(fields) {
			return 0, fmt.Errorf("processor time of %s: the system does not say", p.Name)
		}
		n, err := strconv.ParseInt(fields[i], 10, 64)
		if err != nil {
			return 0, fmt.Errorf("processor time of %s: %w", p.Name, err)
		}
		ticks += n
	}
	return time.Duration(ticks) * 10 * time.Millisecond, nil
}

// StopAll stops processes at once and waits for all.
func StopAll(processes ...*Process) {
	var all sync.WaitGroup
	for _, p := range processes {
		all.Go(p.Stop)
	}
	all.Wait()
}

// FreePorts asks the system for ports of 127.0.0.1 that are free for TCP and UDP now.
func FreePorts(n int) ([]int, error) {
	var ports []int
	for len(ports) < n {
		ln, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			return nil, fmt.Errorf("find a free port: %w", err)
		}
		defer ln.Close()
		port := ln.Addr().(*net.TCPAddr).Port
		udp, err := net.ListenPacket("udp", fmt.Sprintf("127.0.0.1:%d", port))
		if err != nil {
			continue
		}
		defer udp.Close()
		ports = append(ports, port)
	}
	return ports, nil
}

// Pause waits, or returns the context's error.
func Pause(ctx context.Context, d time.Duration) error {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return ctx.Err()
	case <-ctx.Done():
		return errors.Join(ctx.Err(), context.Cause(ctx))
	}
}

// waitOK waits until the URL answers 200, or the process has ended.
func waitOK(ctx context.Context, p *Process, url string) error {
	for {
		request, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
		if err != nil {
			return err
		}
		response, err := http.DefaultClient.Do(request)
		if err == nil {
			response.Body.Close()
			if response.StatusCode == http.StatusOK {
				return nil
			}
		}
		if !p.Up() {
			return fmt.Errorf("%s ended while it was waited for; see %s", p.Name, p.Log)
		}
		if err := Pause(ctx, 20*time.Millisecond); err != nil {
			return fmt.Errorf("%s is not ready: %w; see %s", p.Name, err, p.Log)
		}
	}
}
