package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/spf13/cobra"

	"github.com/carillon-timers/carillon/client"
)

var (
	_ = register(newGetCommand)
	_ = register(newCancelCommand)
	_ = register(newRescheduleCommand)
	_ = register(newListCommand)
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
				if errors.Is(err, client.ErrUnknown) {
					return fmt.Errorf("%w; run it again with --request-id %s", err, r.RequestID)
				}
				if err != nil {
					return err
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

func newRescheduleCommand() *cobra.Command {
	var conn connection
	var output format
	var at whenFlags
	var m client.Move
	cmd := &cobra.Command{
		Use:   "reschedule ID (--in TIME | --at INSTANT)",
		Short: "Move a pending timer to another time",
		Long:  "Move a pending timer to another due time; everything else stays. One that has fired or was cancelled is not found.",
		Example: `  carillon reschedule order-42/expire --in 30m
  carillon reschedule order-42/expire --at 2030-01-31T08:00:00Z`,
		Args: arguments("ID"),
		RunE: func(cmd *cobra.Command, args []string) (err error) {
			if m.Due, m.After, err = at.parse(); err != nil {
				return err
			}
			return conn.do(cmd, func(ctx context.Context, c *client.Client) error {
				t, err := c.Reschedule(ctx, args[0], m)
				if errors.Is(err, client.ErrUnknown) {
					return fmt.Errorf("%w; run it again with --request-id %s", err, t.RequestID)
				}
				if err != nil {
					return err
				}
				return printMoved(cmd.OutOrStdout(), output, args[0], t)
			})
		},
	}
	f := cmd.Flags()
	at.flags(f)
	f.Int64Var(&m.ExpectedRevision, "expected-revision", 0, "move only if this is the timer's `revision`")
	f.StringVar(&m.RequestID, "request-id", "", "an `ID` that makes repeated commands have the effect of one (default random)")
	conn.flagsWithNamespace(f)
	output.flag(f, formatTable)
	return cmd
}

func printMoved(w io.Writer, f format, id string, t client.Scheduled) error {
	j := scheduledJSON{ID: id, Due: stamp(t.Due), Revision: t.Revision, RequestID: t.RequestID}
	return printOne(w, f, j, []row{
		{"id", shown(id)}, {"due", when(t.Due, time.Now())}, {"revision", fmt.Sprint(t.Revision)},
	})
}

// listFlags are the flags of list.
type listFlags struct {
	connection
	output format
	prefix string
	label  []string
	limit  int
	all    bool
}

func newListCommand() *cobra.Command {
	var l listFlags
	cmd := &cobra.Command{
		Use:   "list",
		Short: "List pending timers in the order of their IDs",
		Example: `  carillon list
  carillon list --prefix order-42/ --limit 10
  carillon list --all -o json | jq -r '.[].id'`,
		Args: arguments(),
		RunE: func(cmd *cobra.Command, _ []string) error { return l.run(cmd) },
	}
	f := cmd.Flags()
	f.StringVar(&l.prefix, "prefix", "", "only timers whose IDs start with this `text`")
	f.IntVar(&l.limit, "limit", 100, "at most this `number` of timers")
	f.BoolVar(&l.all, "all", false, "all timers, however many there are")
	f.StringArrayVar(&l.label, "label", nil, "only timers with the label `key=value` (not supported by this version)")
	l.connection.flagsWithNamespace(f)
	l.output.flag(f, formatTable)
	return cmd
}

func (l *listFlags) run(cmd *cobra.Command) error {
	switch {
	case len(l.label) > 0:
		return &client.NotSupportedError{Field: "--label of list"}
	case l.all && cmd.Flags().Changed("limit"):
		return usagef("--all and --limit: only one can be given")
	case l.limit < 1:
		return usagef("--limit %d is not valid: at least 1", l.limit)
	}
	return l.do(cmd, func(ctx context.Context, c *client.Client) error {
		printer := newListPrinter(cmd.OutOrStdout(), l.output)
		query := client.ListQuery{Prefix: l.prefix, Limit: min(l.limit+1, 1000)}
		if l.all {
			query.Limit = 1000
		}
		n, more := 0, false
		for t, err := range c.List(ctx, query) {
			if err != nil {
				return err
			}
			if n == l.limit && !l.all {
				more = true
				break
			}
			n++
			if err := printer.print(t); err != nil {
				return err
			}
		}
		if err := printer.end(); err != nil {
			return err
		}
		if more {
			fmt.Fprintf(cmd.ErrOrStderr(), "carillon: there are more than %d; --limit or --all shows them\n", l.limit)
		}
		return nil
	})
}

// listPrinter prints timers as they come: an array of JSON, or tables of at most 1,000 rows whose columns align.
type listPrinter struct {
	w      io.Writer
	output format
	now    time.Time
	count  int
	rows   [][]string
}

func newListPrinter(w io.Writer, output format) *listPrinter {
	return &listPrinter{w: w, output: output, now: time.Now()}
}

func (p *listPrinter) print(t client.TimerStatus) error {
	p.count++
	if p.output == formatJSON {
		lead := "["
		if p.count > 1 {
			lead = ","
		}
		if _, err := io.WriteString(p.w, lead); err != nil {
			return err
		}
		return printJSON(p.w, timerOf(t))
	}
	p.rows = append(p.rows, []string{
		shown(t.ID), t.State.String(), stamp(t.Due), distance(t.NextDue.Sub(p.now)), shown(t.Queue), fmt.Sprint(t.Attempt),
		fmt.Sprint(len(t.Payload)), shortPairs(t.Labels),
	})
	if len(p.rows) == 1000 {
		return p.flush()
	}
	return nil
}

func (p *listPrinter) flush() error {
	rows := p.rows
	p.rows = nil
	return printTable(p.w, []string{"ID", "STATE", "DUE", "NEXT", "QUEUE", "FAILED", "BYTES", "LABELS"}, rows)
}

func (p *listPrinter) end() error {
	if p.output == formatTable {
		if len(p.rows) > 0 || p.count == 0 {
			return p.flush()
		}
		return nil
	}
	text := "]\n"
	if p.count == 0 {
		text = "[]\n"
	}
	_, err := io.WriteString(p.w, text)
	return err
}
