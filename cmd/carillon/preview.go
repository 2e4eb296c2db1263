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

var _ = register(newPreviewCommand)

// previewFlags are the flags of preview.
type previewFlags struct {
	connection
	output            format
	cron, zone, every string
	from, start, end  string
	fixedDelay        bool
	count             int
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
	p.ruleFlags(f)
	f.StringVar(&p.from, "from", "", "show what is due after this `instant`, RFC 3339 (default now)")
	f.IntVar(&p.count, "count", 10, "show this `number` of due times, at most 1000")
	p.connection.flags(f)
	p.output.flag(f, formatTable)
	return cmd
}

// ruleFlags say what is repeated.
func (p *previewFlags) ruleFlags(f *pflag.FlagSet) {
	f.StringVar(&p.cron, "cron", "", "repeat by a cron `expression`: \"0 9 * * 1-5\", @daily")
	f.StringVar(&p.zone, "zone", "", "the IANA time `zone` of --cron: Europe/Berlin (default UTC)")
	f.StringVar(&p.every, "every", "", "repeat each `time`, to the millisecond: 1500ms, 5s, 1h30m, 2d, 1w")
	f.StringVar(&p.start, "start", "", "the earliest `instant`, RFC 3339; --every counts from it (default --from)")
	f.StringVar(&p.end, "end", "", "the latest `instant`, RFC 3339")
	f.BoolVar(&p.fixedDelay, "fixed-delay", false, "count --every from the ack of the delivery before")
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
	cron, every := cmd.Flags().Changed("cron"), cmd.Flags().Changed("every")
	switch {
	case !cron && !every:
		return q, usagef("--cron or --every is needed")
	case cron && every:
		return q, usagef("--cron %s and --every %s: only one can be given", p.cron, p.every)
	case cron && p.cron == "":
		return q, usagef("--cron must not be empty")
	case every:
		if q.Every, err = parseDuration(p.every); err != nil {
			return q, usagef("--every %q is not valid: a duration is needed, as 1500ms, 5s, 1h30m, 2d or 1w, at most 100 years", p.every)
		}
		if q.Every <= 0 {
			return q, usagef("--every %s is not valid: must be positive", p.every)
		}
	}
	if p.count < 1 || p.count > 1000 {
		return q, usagef("--count %d is not valid: 1 to 1000", p.count)
	}
	q.Cron, q.Zone, q.FixedDelay, q.Count = p.cron, p.zone, p.fixedDelay, p.count
	for _, flag := range []struct {
		name, text string
		to         *time.Time
	}{{"from", p.from, &q.From}, {"start", p.start, &q.Start}, {"end", p.end, &q.End}} {
		if flag.text == "" {
			continue
		}
		if *flag.to, err = time.Parse(time.RFC3339Nano, flag.text); err != nil {
			return q, usagef("--%s %q is not valid: an RFC 3339 instant is needed, as 2030-01-31T08:00:00Z", flag.name, flag.text)
		}
	}
	return q, nil
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
