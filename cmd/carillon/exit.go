package main

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/carillon-timers/carillon/client"
)

// Exit codes.
const (
	exitDone        = 0
	exitFailed      = 1
	exitUsage       = 2
	exitNotFound    = 3
	exitUnavailable = 4
)

// usageError is a command line that cannot be meant.
type usageError struct{ err error }

func (e *usageError) Error() string { return e.err.Error() }

func (e *usageError) Unwrap() error { return e.err }

func usagef(format string, args ...any) error {
	return &usageError{fmt.Errorf(format, args...)}
}

// valueError names the flag, the value and what it takes, where the parser would show a function's name.
func valueError(err error) error {
	invalid, ok := errors.AsType[*pflag.InvalidValueError](err)
	if !ok {
		return &usageError{err}
	}
	flag := invalid.GetFlag()
	takes, ok := valueKinds[flag.Value.Type()]
	if !ok {
		return usagef("--%s %q is not valid: %w", flag.Name, invalid.GetValue(), errors.Unwrap(invalid))
	}
	return usagef("--%s %q is not valid: %s (%s)", flag.Name, invalid.GetValue(), takes, strings.ReplaceAll(flag.Usage, "`", ""))
}

// valueKinds say what the flags of these types take; others have words of their own.
var valueKinds = map[string]string{
	"int": "a whole number", "int64": "a whole number", "int32": "a whole number", "uint32": "a whole number from 0 on", "uint64": "a whole number from 0 on",
	"float64": "a number", "bool": "true or false", "duration": "a time such as 300ms, 5s or 1h",
}

// errSilent is wrapped by errors that have been told on standard output.
var errSilent = errors.New("told already")

// timeoutError is the cause of a context that ended by --timeout.
type timeoutError struct{ after time.Duration }

func (e *timeoutError) Error() string { return fmt.Sprintf("no answer within %v", e.after) }

func (e *timeoutError) Unwrap() error { return context.DeadlineExceeded }

func exitCode(err error) int {
	var (
		usage      *usageError
		invalid    *client.InvalidError
		missing    *client.NotSupportedError
		overloaded *client.OverloadedError
	)
	switch {
	case err == nil:
		return exitDone
	case errors.As(err, &usage), errors.As(err, &invalid), errors.As(err, &missing):
		return exitUsage
	case errors.Is(err, client.ErrNotFound):
		return exitNotFound
	case errors.Is(err, client.ErrUnavailable), errors.Is(err, client.ErrUnknown), errors.As(err, &overloaded):
		return exitUnavailable
	}
	return exitFailed
}

// arguments demands exactly these arguments, and names the one that is missing.
func arguments(names ...string) cobra.PositionalArgs {
	return func(cmd *cobra.Command, args []string) error {
		if len(args) < len(names) {
			return usagef("%s is missing; usage: %s", names[len(args)], cmd.UseLine())
		}
		if len(args) > len(names) {
			return usagef("%q is one argument too many; usage: %s", args[len(names)], cmd.UseLine())
		}
		return nil
	}
}
