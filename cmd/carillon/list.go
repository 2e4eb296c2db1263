package main

import (
	"context"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/carillon-timers/carillon/client"
)

var (
	_ = register(newListCommand)
	_ = register(newCountCommand)
)

// filterFlags choose timers.
type filterFlags struct {
	prefix, queue      string
	labels, states     []string
	dueFrom, dueBefore string
}

func (l *filterFlags) flags(f *pflag.FlagSet) {
	f.SortFlags = false
	f.StringVar(&l.prefix, "prefix", "", "only timers whose IDs start with this `text`")
	f.StringArrayVar(&l.labels, "label", nil, "only timers with the label `key=value`; can be repeated: all must fit")
	f.StringArrayVar(&l.states, "state", nil, "only timers in this `state`: pending, firing or paused; can be repeated: one must fit")
	f.StringVar(&l.queue, "queue", "", "only timers for this `queue`")
	f.StringVar(&l.dueFrom, "due-from", "", "only timers whose next due time is at this `instant` or later, RFC 3339 or a time from now")
	f.StringVar(&l.dueBefore, "due-before", "", "only timers whose next due time is before this `instant`, RFC 3339 or a time from now")
}

func (l *filterFlags) filter() (f client.Filter, err error) {
	now := time.Now()
	f.Queue = l.queue
	if f.Labels, err = parsePairs("--label", l.labels); err != nil {
		return f, err
	}
	for _, text := range l.states {
		state, err := oneOf("state", text, []string{"pending", "firing", "paused"}, []client.State{client.Pending, client.Firing, client.Paused})
		if err != nil {
			return f, err
		}
		f.States = append(f.States, state)
	}
	if f.DueFrom, err = parseInstant("due-from", l.dueFrom, now); err != nil {
		return f, err
	}
	f.DueBefore, err = parseInstant("due-before", l.dueBefore, now)
	return f, err
}

func newCountCommand() *cobra.Command {
	var conn connection
	var filters filterFlags
	var output format
	cmd := &cobra.Command{
		Use:   "count",
		Short: "Count the timers that are not finished",
		Example: `  carillon count
  carillon count --label customer=7 --due-before 1h
  carillon count --state paused -o json | jq .count`,
		Args: arguments(),
		RunE: func(cmd *cobra.Command, _ []string) error {
			filter, err := filters.filter()
			if err != nil {
				return err
			}
			return conn.do(cmd, func(ctx context.Context, c *client.Client) error {
				n, err := c.Count(ctx, client.CountQuery{Prefix: filters.prefix, Filter: filter})
				if err != nil {
					return err
				}
				if output == formatJSON {
					return printJSON(cmd.OutOrStdout(), struct {
						Count int64 `json:"count"`
					}{n})
				}
				_, err = fmt.Fprintln(cmd.OutOrStdout(), n)
				return err
			})
		},
	}
	filters.flags(cmd.Flags())
	conn.flagsWithNamespace(cmd.Flags())
	output.flag(cmd.Flags(), formatTable)
	return cmd
}

// listFlags are the flags of list.
type listFlags struct {
	connection
	filterFlags
	output format
	limit  int
	all    bool
}

func newListCommand() *cobra.Command {
	var l listFlags
	cmd := &cobra.Command{
		Use:   "list",
		Short: "List the timers that are not finished, in the order of their IDs",
		Long: `List the timers that are not finished, in the order of their IDs. Several filters must all fit.

NEXT is how far away the next delivery is: the due time, or the end of a back-off; of a frozen timer the time that is left. A time
in the past is waiting for a worker, or is with one (firing).`,
		Example: `  carillon list
  carillon list --prefix order-42/ --limit 10
  carillon list --label customer=7 --state paused
  carillon list --queue orders --due-before 1h
  carillon list --all -o json | jq -r '.[].id'`,
		Args: arguments(),
		RunE: func(cmd *cobra.Command, _ []string) error { return l.run(cmd) },
	}
	f := cmd.Flags()
	l.filterFlags.flags(f)
	f.IntVar(&l.limit, "limit", 100, "at most this `number` of timers")
	f.BoolVar(&l.all, "all", false, "all timers, however many there are")
	l.connection.flagsWithNamespace(f)
	l.output.flag(f, formatTable)
	return cmd
}

func (l *listFlags) run(cmd *cobra.Command) error {
	switch {
	case l.all && cmd.Flags().Changed("limit"):
		return usagef("--all and --limit: only one can be given")
	case l.limit < 1:
		return usagef("--limit %d is not valid: at least 1", l.limit)
	}
	filter, err := l.filter()
	if err != nil {
		return err
	}
	return l.do(cmd, func(ctx context.Context, c *client.Client) error {
		printer := newListPrinter(cmd.OutOrStdout(), l.output)
		query := client.ListQuery{Prefix: l.prefix, Filter: filter, Limit: min(l.limit+1, 1000)}
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
	next := "-"
	switch {
	case t.TimeLeft > 0:
		next = "frozen, " + strings.TrimPrefix(distance(t.TimeLeft), "in ") + " left"
	case t.State != client.Paused && !t.NextDue.IsZero():
		next = distance(t.NextDue.Sub(p.now))
	}
	p.rows = append(p.rows, []string{
		shown(t.ID), t.State.String(), dash(shortRepeat(t.Repeat)), stamp(t.Due), next, shown(target(t.Timer)), fmt.Sprint(t.Attempt),
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
	return printTable(p.w, []string{"ID", "STATE", "REPEAT", "DUE", "NEXT", "TARGET", "FAILED", "BYTES", "LABELS"}, rows)
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
