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

var _ = register(newPreviewCommand)

// previewFlags are the flags of preview.
type previewFlags struct {
	connection
	ruleFlags
	output format
	from   string
	count  int
}

func newPreviewCommand() *cobra.Command {
	var p previewFlags
	cmd := &cobra.Command{
		Use:   "preview (--cron EXPRESSION [--zone ZONE] | --every TIME)",
		Short: "Show when a repeat would be due",
		Long: `Show when a repeat would be due, in UTC and by the clock of its zone. Nothing is scheduled.

A cron expression has five fields (minute, hour, day of month, month, day of week), six with seconds in front, or is one of
@yearly, @monthly, @weekly, @daily, @hourly. Months and weekdays may be named, 0 and 7 are Sunday. A day must match both day
fields if one of them begins with *, else one of them.

If the hour field begins with *, the schedule follows real time. Else it follows the clock on the wall: local times that a
change of the clock skips are due once, together, right afterwards; a local time that occurs twice is due the first time.`,
		Example: `  carillon preview --cron "0 9 * * 1-5" --zone Europe/Berlin
  carillon preview --cron "30 2 * * *" --zone America/New_York --from 2026-03-07T00:00:00Z --count 3
  carillon preview --every 90s --start 2030-01-01T00:00:00Z
  carillon preview --cron "0 0 29 2 *" -o json | jq -r '.times[].due'`,
		Args: arguments(),
		RunE: func(cmd *cobra.Command, _ []string) error { return p.run(cmd) },
	}
	f := cmd.Flags()
	p.ruleFlags.flags(f, "--from")
	f.StringVar(&p.from, "from", "", "show what is due after this `instant`, RFC 3339 or a time from now (default now)")
	f.IntVar(&p.count, "count", 10, "show this `number` of due times, at most 1000")
	p.connection.flags(f)
	p.output.flag(f, formatTable)
	return cmd
}

func (p *previewFlags) run(cmd *cobra.Command) error {
	query, err := p.query(cmd)
	if err != nil {
		return err
	}
	return p.do(cmd, func(ctx context.Context, c *client.Client) error {
		preview, err := c.Preview(ctx, query)
		if err != nil {
			return err
		}
		return printPreview(cmd.OutOrStdout(), p.output, preview)
	})
}

// query builds the question from the flags.
func (p *previewFlags) query(cmd *cobra.Command) (q client.PreviewQuery, err error) {
	if f := cmd.Flags(); !f.Changed("cron") && !f.Changed("every") {
		return q, usagef("--cron or --every is needed")
	}
	now := time.Now()
	if q.Repeat, err = p.rule(cmd.Flags(), now); err != nil {
		return q, err
	}
	if p.count < 1 || p.count > 1000 {
		return q, usagef("--count %d is not valid: 1 to 1000", p.count)
	}
	q.Count = p.count
	q.From, err = parseInstant("from", p.from, now)
	return q, err
}

// previewJSON is the answer of preview in JSON.
type previewJSON struct {
	Times       []previewTimeJSON `json:"times"`
	More        bool              `json:"more"`
	Zone        string            `json:"zone"`
	ZoneVersion string            `json:"zone_version"`
}

type previewTimeJSON struct {
	Due      string   `json:"due"`
	Local    string   `json:"local"`
	ZoneName string   `json:"zone_name"`
	Notes    []string `json:"notes,omitempty"`
}

func printPreview(w io.Writer, f format, p client.Preview) error {
	if f == formatJSON {
		j := previewJSON{Times: []previewTimeJSON{}, More: p.More, Zone: p.Zone, ZoneVersion: p.ZoneVersion}
		for _, t := range p.Times {
			j.Times = append(j.Times, previewTimeJSON{stamp(t.Due), t.Local, t.ZoneName, t.Notes})
		}
		return printJSON(w, j)
	}
	var rows [][]string
	for _, t := range p.Times {
		rows = append(rows, []string{stamp(t.Due), shown(t.Local), shown(t.ZoneName), shown(strings.Join(t.Notes, "; "))})
	}
	if err := printTable(w, []string{"DUE", "LOCAL", "ZONE", "NOTES"}, rows); err != nil {
		return err
	}
	end := "nothing more is due within 100 years"
	switch {
	case p.More:
		end = "more follow"
	case len(p.Times) == 0:
		end = "nothing is due within 100 years"
	}
	_, err := fmt.Fprintf(w, "%s; times of %s by the IANA database %s\n", end, shown(p.Zone), shown(p.ZoneVersion))
	return err
}
