package main

import (
	"context"
	"fmt"
	"io"
	"time"

	"github.com/spf13/cobra"

	"github.com/carillon-timers/carillon/client"
)

var _ = register(newExplainCommand)

func newExplainCommand() *cobra.Command {
	var conn connection
	var output format
	cmd := &cobra.Command{
		Use:   "explain ID",
		Short: "Tell a timer's life: accepted, due, handed out, each failed attempt, and why it was late",
		Long: `Tell a timer's life from what the cluster has kept: when it was accepted, due and handed out, each failed attempt (the last 8) with its
node and error, changes of leader, and why it was late. A finished timer is kept for the retention (10 minutes by default).`,
		Example: `  carillon explain order-42/expire
  carillon explain order-42/expire -o json | jq -r '.events[].text'`,
		Args: arguments("ID"),
		RunE: func(cmd *cobra.Command, args []string) error {
			return conn.do(cmd, func(ctx context.Context, c *client.Client) error {
				x, err := c.Explain(ctx, args[0])
				if err != nil {
					return err
				}
				return printExplanation(cmd.OutOrStdout(), output, x, time.Now())
			})
		},
	}
	conn.flagsWithNamespace(cmd.Flags())
	output.flag(cmd.Flags(), formatTable)
	return cmd
}

// explanationJSON is the answer of explain in JSON.
type explanationJSON struct {
	Timer  timerJSON   `json:"timer"`
	Events []eventJSON `json:"events"`
}

type eventJSON struct {
	At    string `json:"at"`
	Kind  string `json:"kind"`
	Node  string `json:"node,omitempty"`
	Epoch int64  `json:"epoch,omitempty"`
	Text  string `json:"text,omitempty"`
}

func printExplanation(w io.Writer, f format, x client.Explanation, now time.Time) error {
	if f == formatJSON {
		j := explanationJSON{Timer: timerOf(x.Timer), Events: []eventJSON{}}
		for _, e := range x.Events {
			j.Events = append(j.Events, eventJSON{stamp(e.At), e.Kind, e.Node, e.Epoch, e.Text})
		}
		return printJSON(w, j)
	}
	t := x.Timer
	head := []row{{"timer", shown(t.ID)}, {"state", t.State.String()}, {"due", when(t.Due, now)}}
	switch {
	case t.State == client.Pending && !t.NextDue.Equal(t.Due):
		head = append(head, row{"next attempt", when(t.NextDue, now)})
	case t.TimeLeft > 0:
		head = append(head, row{"time left", spanText(t.TimeLeft) + " (frozen)"})
	}
	head = append(head, row{"repeat", repeatText(t.Repeat)}, row{"fired", firedText(t)}, row{"target", shown(target(t.Timer))}, row{"shard", fmt.Sprint(t.Shard)})
	if err := printOne(w, f, nil, head); err != nil {
		return err
	}
	fmt.Fprintln(w)
	var rows [][]string
	for i, e := range x.Events {
		after := ""
		if i > 0 {
			after = "+" + e.At.Sub(x.Events[i-1].At).Round(time.Millisecond).String()
		}
		epoch := "-"
		if e.Epoch != 0 {
			epoch = fmt.Sprint(e.Epoch)
		}
		rows = append(rows, []string{stamp(e.At), after, shown(e.Kind), dash(e.Node), epoch, shown(e.Text)})
	}
	return printTable(w, []string{"AT", "AFTER", "EVENT", "NODE", "EPOCH", "WHAT"}, rows)
}
