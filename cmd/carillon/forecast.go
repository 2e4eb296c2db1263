package main

import (
	"context"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/carillon-timers/carillon/client"
)

var _ = register(newForecastCommand)

// forecastFlags are the flags of forecast.
type forecastFlags struct {
	connection
	output      format
	from, queue string
	step        time.Duration
	steps       int
}

func newForecastCommand() *cobra.Command {
	var x forecastFlags
	cmd := &cobra.Command{
		Use:   "forecast",
		Short: "Count what falls due, per second, minute or hour ahead",
		Long: `Count what falls due, per second, minute or hour ahead, by namespace and queue. The counts are exact. Of a repeat the next due time
counts alone; BEFORE counts what was due before the first step, AFTER what lies behind the last; paused timers are in no other count.`,
		Example: `  carillon forecast
  carillon forecast --step 1h --steps 24
  carillon forecast --queue mail --from 1h --step 1s --steps 600 -o json | jq '.series[].counts | max'`,
		Args: arguments(),
		RunE: func(cmd *cobra.Command, _ []string) error { return x.run(cmd) },
	}
	f := cmd.Flags()
	f.StringVar(&x.from, "from", "", "the first `instant` that is counted, RFC 3339 or a time from now (default now)")
	spanVar(f, &x.step, "step", "count per this `time`: 1s, 1m or 1h (default 1m)")
	f.IntVar(&x.steps, "steps", 60, "count this `number` of steps, 1 to 3600")
	f.StringVar(&x.queue, "queue", "", "only timers for this `queue`, or scheme and host of a webhook")
	x.connection.flags(f)
	f.StringVar(&x.namespace, "namespace", "", "only timers of this `tenant` (default all)")
	x.output.flag(f, formatTable)
	return cmd
}

func (x *forecastFlags) run(cmd *cobra.Command) error {
	from, err := parseInstant("from", x.from, time.Now())
	if err != nil {
		return err
	}
	if f := cmd.Flags(); f.Changed("step") && x.step != time.Second && x.step != time.Minute && x.step != time.Hour {
		return usagef("--step %s is not valid: 1s, 1m or 1h", spanText(x.step))
	}
	if x.steps < 1 || x.steps > 3600 {
		return usagef("--steps %d is not valid: 1 to 3600", x.steps)
	}
	query := client.ForecastQuery{Namespace: x.namespace, Queue: x.queue, From: from, Step: x.step, Steps: x.steps}
	return x.do(cmd, func(ctx context.Context, c *client.Client) error {
		forecast, err := c.Forecast(ctx, query)
		if err != nil {
			return err
		}
		return printForecast(cmd.OutOrStdout(), x.output, forecast, x.steps, time.Now())
	})
}

// forecastJSON is the answer of forecast in JSON.
type forecastJSON struct {
	Start  string       `json:"start"`
	Step   string       `json:"step"`
	Series []seriesJSON `json:"series"`
}

type seriesJSON struct {
	Namespace string  `json:"namespace"`
	Queue     string  `json:"queue"`
	Before    int64   `json:"before"`
	Counts    []int64 `json:"counts"`
	After     int64   `json:"after"`
	Paused    int64   `json:"paused"`
}

func printForecast(w io.Writer, f format, x client.Forecast, steps int, now time.Time) error {
	if f == formatJSON {
		j := forecastJSON{Start: stamp(x.Start), Step: spanText(x.Step), Series: []seriesJSON{}}
		for _, s := range x.Series {
			j.Series = append(j.Series, seriesJSON(s))
		}
		return printJSON(w, j)
	}
	totals := make([]int64, steps)
	var rows [][]string
	for _, s := range x.Series {
		var sum int64
		for i, n := range s.Counts[:min(len(s.Counts), steps)] {
			totals[i] += n
			sum += n
		}
		rows = append(rows, []string{
			dash(s.Namespace), dash(s.Queue), fmt.Sprint(s.Before), fmt.Sprint(sum), fmt.Sprint(s.After), fmt.Sprint(s.Paused),
		})
	}
	ahead := "NEXT " + strings.ToUpper(spanText(x.Step*time.Duration(steps)))
	if err := printTable(w, []string{"NAMESPACE", "TARGET", "BEFORE", ahead, "AFTER", "PAUSED"}, rows); err != nil {
		return err
	}
	fmt.Fprintln(w)
	return printBars(w, x, totals, now)
}

// printBars shows the steps in which something is due.
func printBars(w io.Writer, x client.Forecast, totals []int64, now time.Time) error {
	const width = 40
	var most int64
	for _, n := range totals {
		most = max(most, n)
	}
	if most == 0 {
		_, err := fmt.Fprintf(w, "nothing is due from %s to %s\n", stamp(x.Start), stamp(x.Start.Add(x.Step*time.Duration(len(totals)))))
		return err
	}
	var rows [][]string
	for i, n := range totals {
		if n == 0 {
			continue
		}
		at := x.Start.Add(x.Step * time.Duration(i))
		rows = append(rows, []string{stamp(at), distance(at.Sub(now)), fmt.Sprint(n), strings.Repeat("#", max(1, int(n*width/most)))})
	}
	return printTable(w, []string{"FROM", "", "TIMERS", ""}, rows)
}
