package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"time"
)

// Cluster is a set of real server processes on loopback, each with a data directory of its own.
type Cluster struct {
	Binary string
	Dir    string
	Nodes  []*Process
}

// Process is one `carillon server`.
type Process struct {
	ID                         string
	Client, Peer, Gossip, HTTP string
	args                       []string
	binary, log                string

	mu   sync.Mutex
	cmd  *exec.Cmd     // guarded by mu; nil while it is down
	done chan struct{} // guarded by mu; closed when cmd has ended
}

// NewCluster plans a cluster of n nodes under dir, on ports that are free now.
func NewCluster(binary, dir string, n, shards int, extra ...string) (*Cluster, error) {
	ports, err := freePorts(4 * n)
	if err != nil {
		return nil, err
	}
	addr := func(i int) string { return fmt.Sprintf("127.0.0.1:%d", ports[i]) }
	var join []string
	for i := range n {
		join = append(join, addr(4*i+2))
	}
	c := &Cluster{Binary: binary, Dir: dir}
	for i := range n {
		p := &Process{ID: fmt.Sprintf("n%d", i+1), Client: addr(4 * i), Peer: addr(4*i + 1), Gossip: addr(4*i + 2), HTTP: addr(4*i + 3), binary: binary}
		p.log = filepath.Join(dir, p.ID+".log")
		p.args = append([]string{"server", "--id", p.ID, "--dir", filepath.Join(dir, p.ID), "--client", p.Client, "--peer", p.Peer,
			"--gossip", p.Gossip, "--http", p.HTTP, "--join", strings.Join(join, ","), "--bootstrap-expect", fmt.Sprint(n),
			"--shards", fmt.Sprint(shards)}, extra...)
		c.Nodes = append(c.Nodes, p)
	}
	return c, nil
}

// freePorts asks the system for ports that are free for TCP and UDP.
func freePorts(n int) ([]int, error) {
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

// Addrs are the client addresses of all nodes.
func (c *Cluster) Addrs() []string {
	var addrs []string
	for _, p := range c.Nodes {
		addrs = append(addrs, p.Client)
	}
	return addrs
}

// Node finds a node by its ID.
func (c *Cluster) Node(id string) *Process {
	for _, p := range c.Nodes {
		if p.ID == id {
			return p
		}
	}
	return nil
}

// Start starts all nodes that are down.
func (c *Cluster) Start() error {
	for _, p := range c.Nodes {
		if err := p.Start(); err != nil {
			return err
		}
	}
	return nil
}

// WaitReady waits until every node answers /readyz with 200.
func (c *Cluster) WaitReady(ctx context.Context) error {
	for _, p := range c.Nodes {
		if err := p.WaitReady(ctx); err != nil {
			return err
		}
	}
	return nil
}

// Stop ends all nodes: SIGTERM, and SIGKILL after ten seconds.
func (c *Cluster) Stop() {
	var all sync.WaitGroup
	for _, p := range c.Nodes {
		all.Go(p.Stop)
	}
	all.Wait()
}

// Start starts the process; it does nothing if it is up.
func (p *Process) Start() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.cmd != nil {
		return nil
	}
	log, err := os.OpenFile(p.log, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
	if err != nil {
		return fmt.Errorf("start %s: %w", p.ID, err)
	}
	defer log.Close()
	cmd := exec.Command(p.binary, p.args...)
	cmd.Stdout, cmd.Stderr = log, log
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if err := cmd.Start(); err != nil {
		return fmt.Errorf("start %s: %w", p.ID, err)
	}
	done := make(chan struct{})
	p.cmd, p.done = cmd, done
	go func() { // ends with the process; Kill and Stop wait for it
		cmd.Wait()
		p.mu.Lock()
		p.cmd = nil
		p.mu.Unlock()
		close(done)
	}()
	return nil
}

// Up tells whether the process runs.
func (p *Process) Up() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.cmd != nil
}

// Signal sends a signal to the process, if it is up.
func (p *Process) Signal(sig syscall.Signal) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.cmd != nil {
		p.cmd.Process.Signal(sig)
	}
}

// Kill ends the process with SIGKILL and waits for its end.
func (p *Process) Kill() { p.end(syscall.SIGKILL) }

// Stop ends the process with SIGTERM, and with SIGKILL after ten seconds.
func (p *Process) Stop() { p.end(syscall.SIGTERM) }

func (p *Process) end(sig syscall.Signal) {
	p.mu.Lock()
	done, up := p.done, p.cmd != nil
	p.mu.Unlock()
	if !up {
		return
	}
	p.Signal(sig)
	select {
	case <-done:
	case <-time.After(10 * time.Second):
		p.Signal(syscall.SIGKILL)
		<-done
	}
}

// WaitReady waits until the node answers /readyz with 200.
func (p *Process) WaitReady(ctx context.Context) error {
	for {
		request, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+p.HTTP+"/readyz", nil)
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
			return fmt.Errorf("%s ended while it was waited for; see %s", p.ID, p.log)
		}
		if err := pause(ctx, 50*time.Millisecond); err != nil {
			return fmt.Errorf("%s is not ready: %w; see %s", p.ID, err, p.log)
		}
	}
}

// pause waits, or returns the context's error.
func pause(ctx context.Context, d time.Duration) error {
	if d <= 0 {
		return ctx.Err()
	}
	select {
	case <-time.After(d):
		return nil
	case <-ctx.Done():
		return errors.Join(ctx.Err(), context.Cause(ctx))
	}
}
