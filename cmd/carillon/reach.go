package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"strings"
	"sync"
	"syscall"
	"time"
)

// waitingAfter is how long a command waits in silence for an address to answer.
const waitingAfter = 2 * time.Second

// reach notes how the attempts to connect come out, to say in time what a command waits for.
type reach struct {
	addrs []string // set once

	mu     sync.Mutex
	errs   map[string]error // the last attempt at each address; guarded by mu
	passed bool             // an address answered; guarded by mu
}

// dial is the dialer of a client's connections.
func (r *reach) dial(ctx context.Context, addr string) (net.Conn, error) {
	conn, err := new(net.Dialer).DialContext(ctx, "tcp", addr)
	r.mu.Lock()
	defer r.mu.Unlock()
	if err == nil {
		r.passed = true
	} else if ctx.Err() == nil {
		r.errs[addr] = err
	}
	return conn, err
}

// waiting says what is wrong with each address; nothing if one has answered.
func (r *reach) waiting() string {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.passed {
		return ""
	}
	var list []string
	for _, addr := range r.addrs {
		list = append(list, addr+": "+reason(r.errs[addr]))
	}
	return "waiting for " + strings.Join(list, ", ")
}

// reason is why an attempt to connect failed, without what the user knows.
func reason(err error) string {
	var number syscall.Errno
	var operation *net.OpError
	switch {
	case err == nil:
		return "no answer"
	case errors.As(err, &number):
		return number.Error()
	case errors.As(err, &operation):
		return operation.Err.Error()
	}
	return err.Error()
}

// during runs f, and says on w what it waits for if that takes long.
func (r *reach) during(w io.Writer, f func()) {
	done := make(chan struct{})
	var wg sync.WaitGroup
	wg.Go(func() {
		timer := time.NewTimer(waitingAfter)
		defer timer.Stop()
		select {
		case <-done:
		case <-timer.C:
			if text := r.waiting(); text != "" {
				fmt.Fprintln(w, "carillon: "+oneLine(text))
			}
		}
	})
	defer wg.Wait()
	defer close(done)
	f()
}
