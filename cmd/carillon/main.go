// Command carillon is the one binary of Carillon: a node, a whole cluster in one process for trying out, and the
// commands of a client.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"strings"
	"syscall"

	"github.com/spf13/cobra"
)

func main() {
	os.Exit(mainCode())
}

func mainCode() int {
	slack, err := slackOf(os.Args[1:])
	if err != nil {
		fmt.Fprintln(os.Stderr, "carillon: "+err.Error())
		return exitCode(err)
	}
	slacken(slack) // before signals are caught: one that came between would be lost
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	context.AfterFunc(ctx, stop) // a second signal ends the process at once
	return run(ctx, os.Args[1:], os.Stdin, os.Stdout, os.Stderr)
}

// run executes one command line and returns the exit code.
func run(ctx context.Context, args []string, in io.Reader, out, errs io.Writer) int {
	root := newRootCommand()
	root.SetArgs(args)
	root.SetIn(in)
	root.SetOut(out)
	root.SetErr(errs)
	started := false
	root.PersistentPreRun = func(*cobra.Command, []string) { started = true }
	err := root.ExecuteContext(ctx)
	if err == nil {
		return exitDone
	}
	if !started { // cobra refused the command line
		err = &usageError{err}
	}
	if !errors.Is(err, errSilent) {
		fmt.Fprintln(errs, "carillon: "+oneLine(err.Error()))
	}
	return exitCode(err)
}

// commands are the constructors of the commands, each added by the file that has it: var _ = register(newXCommand).
var commands []func() *cobra.Command

func register(newCommand func() *cobra.Command) bool {
	commands = append(commands, newCommand)
	return true
}

func newRootCommand() *cobra.Command {
	root := &cobra.Command{
		Use:   "carillon",
		Short: "Carillon keeps timers and rings them on time, while machines die",
		Long: `Carillon is a distributed timer service: "call me back at T with this payload".

A timer has an ID, a due time (or a repeat), a payload, and a target: a queue, from which workers take it, or a webhook. It is kept on
the disks of a majority, is never delivered early, and is delivered until it is acked, so it may come twice: the ID and the attempt
tell. One whose last attempt fails becomes a dead letter.

Exit codes: 0 done, 1 failed, 2 wrong usage, 3 not found, 4 unavailable.`,
		Example: `  carillon dev                                            # a cluster in one process, no set-up
  carillon schedule hello --in 2s --queue demo --data hi
  carillon work demo                                      # print what falls due
  carillon schedule tick --every 5s --queue demo          # again and again
  carillon explain tick                                   # its life so far`,
		SilenceErrors: true,
		SilenceUsage:  true,
	}
	root.CompletionOptions.HiddenDefaultCmd = true
	root.SetFlagErrorFunc(func(_ *cobra.Command, err error) error { return valueError(err) })
	root.AddGroup(
		&cobra.Group{ID: "run", Title: "Run a cluster:"},
		&cobra.Group{ID: "timers", Title: "Use timers:"},
		&cobra.Group{ID: "look", Title: "Look at a cluster:"},
	)
	for _, newCommand := range commands {
		command := newCommand()
		if group, ok := groups[command.Name()]; ok {
			command.GroupID = group
		}
		root.AddCommand(command)
	}
	return root
}

// groups orders the help.
var groups = map[string]string{
	"dev": "run", "server": "run",
	"schedule": "timers", "get": "timers", "cancel": "timers", "reschedule": "timers", "list": "timers", "work": "timers",
	"preview": "timers", "pause": "timers", "resume": "timers", "fire": "timers", "explain": "timers", "count": "timers", "dead": "timers",
	"cluster": "look", "bench": "look", "forecast": "look",
}

// oneLine keeps an error on its line.
func oneLine(text string) string {
	return strings.Join(strings.Fields(text), " ")
}
