package main

import (
	"context"
	"fmt"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/carillon-timers/carillon/client"
)

var (
	_ = register(newRescheduleCommand)
	_ = register(newPauseCommand)
	_ = register(newResumeCommand)
	_ = register(newFireCommand)
)

// changeFlags are those of a command that changes one timer.
type changeFlags struct {
	connection
	output           format
	expectedRevision int64
	requestID        string
}

func (c *changeFlags) flags(f *pflag.FlagSet) {
	f.Int64Var(&c.expectedRevision, "expected-revision", 0, "only if this is the timer's `revision`")
	f.StringVar(&c.requestID, "request-id", "", "an `ID` that makes repeated commands have the effect of one (default random)")
	c.connection.flagsWithNamespace(f)
	c.output.flag(f, formatTable)
}

func (c *changeFlags) change() client.Change {
	return client.Change{ExpectedRevision: c.expectedRevision, RequestID: c.requestID}
}

// run makes the change and prints what became of the timer.
func (c *changeFlags) run(cmd *cobra.Command, id string, change func(context.Context, *client.Client) (client.Scheduled, error)) error {
	return c.do(cmd, func(ctx context.Context, cl *client.Client) error {
		t, err := change(ctx, cl)
		if err != nil {
			return again(err, t.RequestID)
		}
		j := scheduledJSON{ID: id, Due: stamp(t.Due), Revision: t.Revision, RequestID: t.RequestID}
		return printOne(cmd.OutOrStdout(), c.output, j, []row{
			{"id", shown(id)}, {"due", when(t.Due, time.Now())}, {"revision", fmt.Sprint(t.Revision)},
		})
	})
}

func newRescheduleCommand() *cobra.Command {
	var x changeFlags
	var at whenFlags
	cmd := &cobra.Command{
		Use:   "reschedule ID (--in TIME | --at INSTANT)",
		Short: "Move a pending timer to another time",
		Long: `Move a pending timer to another due time; everything else stays. A repeat goes on from there on its grid, a paused timer stays
paused. One that has fired or was cancelled cannot be moved.`,
		Example: `  carillon reschedule order-42/expire --in 30m
  carillon reschedule order-42/expire --at 2030-01-31T08:00:00Z`,
		Args: arguments("ID"),
		RunE: func(cmd *cobra.Command, args []string) error {
			due, after, err := at.parse(false)
			if err != nil {
				return err
			}
			return x.run(cmd, args[0], func(ctx context.Context, c *client.Client) (client.Scheduled, error) {
				return c.Reschedule(ctx, args[0], client.Move{
					Due: due, After: after, ExpectedRevision: x.expectedRevision, RequestID: x.requestID,
				})
			})
		},
	}
	at.flags(cmd.Flags())
	x.flags(cmd.Flags())
	return cmd
}

func newPauseCommand() *cobra.Command {
	var x changeFlags
	var freeze bool
	cmd := &cobra.Command{
		Use:   "pause ID",
		Short: "Keep a timer from firing until it is resumed",
		Long: `Keep a timer from firing until "carillon resume". Its due time stays, so after a long pause it is due at once; with --freeze the
time that is left stays instead. A delivery that is under way may still be answered. Pausing a paused timer changes nothing.`,
		Example: `  carillon pause report
  carillon pause trial-7/end --freeze`,
		Args: arguments("ID"),
		RunE: func(cmd *cobra.Command, args []string) error {
			return x.run(cmd, args[0], func(ctx context.Context, c *client.Client) (client.Scheduled, error) {
				return c.Pause(ctx, args[0], client.Pause{Freeze: freeze, ExpectedRevision: x.expectedRevision, RequestID: x.requestID})
			})
		},
	}
	cmd.Flags().BoolVar(&freeze, "freeze", false, "keep the time that is left: resume makes it due after it")
	x.flags(cmd.Flags())
	return cmd
}

func newResumeCommand() *cobra.Command {
	var x changeFlags
	cmd := &cobra.Command{
		Use:   "resume ID",
		Short: "Let a paused timer go on",
		Long: `Let a paused timer go on: at its due time, or at once if that has passed (a repeat goes by its misfire policy); if it was paused
with --freeze, after the time that was left.`,
		Example: "  carillon resume report",
		Args:    arguments("ID"),
		RunE: func(cmd *cobra.Command, args []string) error {
			return x.run(cmd, args[0], func(ctx context.Context, c *client.Client) (client.Scheduled, error) {
				return c.Resume(ctx, args[0], x.change())
			})
		},
	}
	x.flags(cmd.Flags())
	return cmd
}

func newFireCommand() *cobra.Command {
	var x changeFlags
	cmd := &cobra.Command{
		Use:   "fire ID",
		Short: "Make a pending timer due at once",
		Long:  "Make a pending timer due at once. A repeat fires once more and stays on its grid. A paused timer is refused.",
		Example: `  carillon fire report
  carillon fire order-42/expire --expected-revision 17`,
		Args: arguments("ID"),
		RunE: func(cmd *cobra.Command, args []string) error {
			return x.run(cmd, args[0], func(ctx context.Context, c *client.Client) (client.Scheduled, error) {
				return c.FireNow(ctx, args[0], x.change())
			})
		},
	}
	x.flags(cmd.Flags())
	return cmd
}
