package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/carillon-timers/carillon/client"
)

const (
	// killDelay is how long a command may take to end after SIGTERM.
	killDelay = 5 * time.Second
	// tailBytes of a command's standard error go into the error of a failed attempt.
	tailBytes = 512
)

// commandHandler runs the command for each delivery; the exit code refuse, if it is not 0, is for the dead letters.
func commandHandler(command []string, refuse int, out, errs io.Writer) client.Handler {
	out, errs = &lockedWriter{w: out}, &lockedWriter{w: errs}
	return func(ctx context.Context, d client.Delivery) error {
		var tail tailBuffer
		cmd := exec.CommandContext(ctx, command[0], command[1:]...)
		cmd.Stdin = bytes.NewReader(d.Payload)
		cmd.Stdout = out
		cmd.Stderr = io.MultiWriter(errs, &tail)
		cmd.Env = append(os.Environ(), environment(d)...)
		cmd.Cancel = func() error { return cmd.Process.Signal(syscall.SIGTERM) }
		cmd.WaitDelay = killDelay
		err := cmd.Run()
		switch {
		case err == nil || errors.Is(err, exec.ErrWaitDelay) && cmd.ProcessState.Success():
			return nil
		case ctx.Err() != nil:
			return fmt.Errorf("%s: %w", command[0], context.Cause(ctx))
		case tail.String() != "":
			err = fmt.Errorf("%s: %w: %s", command[0], err, tail.String())
		default:
			err = fmt.Errorf("%s: %w", command[0], err)
		}
		if refuse != 0 && cmd.ProcessState != nil && cmd.ProcessState.ExitCode() == refuse {
			return client.Refuse(err)
		}
		return err
	}
}

// environment tells a command about its delivery. A value with a NUL cannot be in an environment and is left out.
func environment(d client.Delivery) []string {
	var env []string
	add := func(name, value string) {
		if !strings.Contains(value, "\x00") {
			env = append(env, "CARILLON_"+name+"="+value)
		}
	}
	for k, v := range d.Headers {
		add("HEADER_"+envName(k), v)
	}
	for k, v := range d.Labels {
		add("LABEL_"+envName(k), v)
	}
	add("NAMESPACE", d.Namespace)
	add("ID", d.ID)
	add("QUEUE", d.Queue)
	add("DUE", stamp(d.Due))
	add("HANDED_OUT", stamp(d.HandedOut))
	add("LEASE_END", stamp(d.LeaseEnd))
	add("LATENESS_MS", strconv.FormatFloat(lateness(d), 'f', -1, 64))
	add("ATTEMPT", strconv.Itoa(d.Attempt))
	add("LAST", flagText(d.Last))
	add("AT_MOST_ONCE", flagText(d.AtMostOnce))
	add("EPOCH", strconv.FormatInt(d.Epoch, 10))
	add("REVISION", strconv.FormatInt(d.Revision, 10))
	add("SHARD", strconv.Itoa(d.Shard))
	add("CONTENT_TYPE", d.ContentType)
	return env
}

func flagText(b bool) string {
	if b {
		return "1"
	}
	return "0"
}

// envName spells a key as a name of the environment.
func envName(key string) string {
	return strings.Map(func(r rune) rune {
		switch {
		case r >= 'a' && r <= 'z':
			return r - 'a' + 'A'
		case r >= 'A' && r <= 'Z', r >= '0' && r <= '9':
			return r
		}
		return '_'
	}, key)
}

// lockedWriter keeps the writes of commands that run at once apart.
type lockedWriter struct {
	mu sync.Mutex
	w  io.Writer // used with mu held
}

func (l *lockedWriter) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.w.Write(p)
}

// tailBuffer keeps the last tailBytes.
type tailBuffer struct{ b []byte }

func (t *tailBuffer) Write(p []byte) (int, error) {
	t.b = append(t.b, p...)
	if extra := len(t.b) - tailBytes; extra > 0 {
		t.b = append(t.b[:0], t.b[extra:]...)
	}
	return len(p), nil
}

func (t *tailBuffer) String() string { return strings.TrimSpace(strings.ToValidUTF8(string(t.b), "")) }
