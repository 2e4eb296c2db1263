package main

import (
	"context"
	"fmt"
	"time"

	"github.com/spf13/cobra"

	"github.com/carillon-timers/carillon/client"
)

var (
	_ = register(newGetCommand)
	_ = register(newCancelCommand)
)

func newGetCommand() *cobra.Command {
	var conn connection
	var output format
	cmd := &cobra.Command{
		Use:   "get ID",
		Short: "Show a timer",
		Long:  "Show a timer, also one that has fired or was cancelled while it is retained (10 minutes by default).",
		Example: `  carillon get order-42/expire
  carillon get order-42/expire -o json | jq .due`,
		Args: arguments("ID"),
		RunE: func(cmd *cobra.Command, args []string) error {
			return conn.do(cmd, func(ctx context.Context, c *client.Client) error {
				t, err := c.Get(ctx, args[0])
				if err != nil {
					return err
				}
				return printOne(cmd.OutOrStdout(), output, timerOf(t), timerRows(t, time.Now()))
			})
		},
	}
	conn.flagsWithNamespace(cmd.Flags())
	output.flag(cmd.Flags(), formatTable)
	return cmd
}

// cancelJSON is the answer of cancel in JSON.
type cancelJSON struct {
	ID        string `json:"id"`
	Outcome   string `json:"outcome"`
	Revision  int64  `json:"revision"`
	RequestID string `json:"request_id"`
}

var outcomes = map[client.CancelOutcome]string{
	client.CancelCancelled: "cancelled: no delivery starts any more",
	client.CancelFiring:    "firing: a delivery was under way and may still complete; no other one starts",
	client.CancelFired:     "fired: it had been delivered and acked; the cancel changed nothing",
}

func newCancelCommand() *cobra.Command {
	var conn connection
	var output format
	var x client.Cancellation
	cmd := &cobra.Command{
		Use:   "cancel ID",
		Short: "Cancel a timer",
		Long: `Cancel a timer. The exit code is 0 only if it was CANCELLED: no delivery starts afterwards. It is 1 if a delivery was
under way (firing) or had been acked (fired), and 3 if there is no such timer.`,
		Example: `  carillon cancel order-42/expire
  carillon cancel order-42/expire -o json | jq -r .outcome`,
		Args: arguments("ID"),
		RunE: func(cmd *cobra.Command, args []string) error {
			x.ID = args[0]
			return conn.do(cmd, func(ctx context.Context, c *client.Client) error {
				r, err := c.CancelDetail(ctx, x)
				if err != nil {
					return again(err, r.RequestID)
				}
				err = printOne(cmd.OutOrStdout(), output, cancelJSON{x.ID, r.Outcome.String(), r.Revision, r.RequestID}, []row{
					{"id", shown(x.ID)}, {"outcome", outcomes[r.Outcome]}, {"revision", fmt.Sprint(r.Revision)},
				})
				if err == nil && r.Outcome != client.CancelCancelled {
					err = errSilent
				}
				return err
			})
		},
	}
	f := cmd.Flags()
	f.Int64Var(&x.ExpectedRevision, "expected-revision", 0, "cancel only if this is the timer's `revision`")
	f.StringVar(&x.RequestID, "request-id", "", "an `ID` that makes repeated commands have the effect of one (default random)")
	conn.flagsWithNamespace(f)
	output.flag(f, formatTable)
	return cmd
}
