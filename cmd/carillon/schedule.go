package main

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/carillon-timers/carillon/client"
)

var _ = register(newScheduleCommand)

// maxData bounds what is read for --data: the highest limit of a payload and a byte, so that the refusal is the server's.
const maxData = 512<<10 + 1

// whenFlags are --in and --at.
type whenFlags struct{ in, at string }

func (w *whenFlags) flags(f *pflag.FlagSet) {
	f.StringVar(&w.in, "in", "", "due after this `time`, by the leader's clock: 30m, 1h30m, 2d, 1w")
	f.StringVar(&w.at, "at", "", "due at this `instant`, RFC 3339: 2030-01-31T08:00:00Z; one in the past fires at once")
}

// parse returns the due time or the delay; exactly one of the flags must be set.
func (w *whenFlags) parse() (due time.Time, after time.Duration, err error) {
	switch {
	case w.in == "" && w.at == "":
		return due, 0, usagef("--in or --at is needed")
	case w.in != "" && w.at != "":
		return due, 0, usagef("--in %s and --at %s: only one can be given", w.in, w.at)
	case w.in != "":
		after, err = parseDuration(w.in)
		if err != nil {
			return due, 0, usagef("--in %q is not valid: a duration is needed, as 1500ms, 30m, 1h30m, 2d or 1w, at most 100 years", w.in)
		}
		if after < 0 {
			return due, 0, usagef("--in %s is not valid: must not be negative (--at takes instants in the past)", w.in)
		}
		return due, after, nil
	}
	due, err = time.Parse(time.RFC3339Nano, w.at)
	if err != nil {
		return due, 0, usagef("--at %q is not valid: an RFC 3339 instant is needed, as 2030-01-31T08:00:00Z", w.at)
	}
	return due, 0, nil
}

// parseDuration takes Go's durations, and in front of them weeks and days as whole numbers: 1w2d3h.
func parseDuration(text string) (time.Duration, error) {
	rest, sign := text, time.Duration(1)
	if after, ok := strings.CutPrefix(rest, "-"); ok {
		rest, sign = after, -1
	}
	var total time.Duration
	for _, unit := range []struct {
		name string
		size time.Duration
	}{{"w", 7 * 24 * time.Hour}, {"d", 24 * time.Hour}} {
		number, after, ok := strings.Cut(rest, unit.name)
		if !ok {
			continue
		}
		n, err := strconv.ParseUint(number, 10, 32)
		if err != nil || time.Duration(n) > (1<<63-1-total)/unit.size {
			return 0, errors.New("not a duration")
		}
		total, rest = total+time.Duration(n)*unit.size, after
	}
	if rest != "" {
		d, err := time.ParseDuration(rest)
		if err != nil || d < 0 || d > 1<<63-1-total {
			return 0, errors.New("not a duration")
		}
		total += d
	} else if total == 0 && !strings.ContainsAny(text, "wd") {
		return 0, errors.New("not a duration")
	}
	return sign * total, nil
}

// scheduleFlags are the flags of schedule.
type scheduleFlags struct {
	connection
	whenFlags
	output                   format
	queue, data, contentType string
	headers, labels          []string
	lease                    time.Duration
	ifExists, requestID      string
	every, cron, zone, web   string
}

func newScheduleCommand() *cobra.Command {
	var s scheduleFlags
	cmd := &cobra.Command{
		Use:   "schedule ID (--in TIME | --at INSTANT) --queue QUEUE",
		Short: "Schedule a timer",
		Long: `Schedule a timer. When the command ends with exit code 0, the timer is on the disks of a majority.

If the outcome is not known (exit code 4), run the command again with the same --request-id: it then has the effect of one.`,
		Example: `  carillon schedule hello --in 2s --queue demo --data hi
  carillon schedule order-42/expire --at 2030-01-31T08:00:00Z --queue orders --data @order.json --content-type application/json
  carillon schedule '{order-42}/remind' --in 2d --queue mail --label customer=7 --if-exists replace
  date | carillon schedule now --in 0s --queue demo --data -`,
		Args: arguments("ID"),
		RunE: func(cmd *cobra.Command, args []string) error { return s.run(cmd, args[0]) },
	}
	f := cmd.Flags()
	s.whenFlags.flags(f)
	f.StringVar(&s.queue, "queue", "", "the `queue` whose workers receive it")
	f.StringVar(&s.data, "data", "", "the `payload`: a text, @FILE, or - for standard input")
	f.StringVar(&s.contentType, "content-type", "", "what the payload is, as a media `type`")
	f.StringArrayVar(&s.headers, "header", nil, "a header `key=value` that travels with each delivery; can be repeated")
	f.StringArrayVar(&s.labels, "label", nil, "a label `key=value` for finding the timer; can be repeated")
	f.DurationVar(&s.lease, "lease", 0, "how long a delivery may stay unanswered before it is tried again, 100ms to 24h (default 30s)")
	f.StringVar(&s.ifExists, "if-exists", "fail", "`what` to do if a pending timer has the ID: fail, replace or keep")
	f.StringVar(&s.requestID, "request-id", "", "an `ID` that makes repeated commands have the effect of one (default random)")
	f.StringVar(&s.every, "every", "", "repeat each `time` (not supported by this version)")
	f.StringVar(&s.cron, "cron", "", "repeat by a cron `expression` (not supported by this version)")
	f.StringVar(&s.zone, "zone", "", "time `zone` of --cron (not supported by this version)")
	f.StringVar(&s.web, "webhook", "", "deliver to a `URL` (not supported by this version)")
	s.connection.flagsWithNamespace(f)
	s.output.flag(f, formatTable)
	return cmd
}

func (s *scheduleFlags) run(cmd *cobra.Command, id string) error {
	timer, err := s.timer(cmd, id)
	if err != nil {
		return err
	}
	return s.do(cmd, func(ctx context.Context, c *client.Client) error {
		t, err := c.Schedule(ctx, timer)
		if errors.Is(err, client.ErrUnknown) {
			return fmt.Errorf("%w; run it again with --request-id %s", err, timer.RequestID)
		}
		if err != nil {
			return err
		}
		return printScheduled(cmd.OutOrStdout(), s.output, id, t)
	})
}

// timer builds the timer from the flags.
func (s *scheduleFlags) timer(cmd *cobra.Command, id string) (t client.Timer, err error) {
	for _, name := range []string{"every", "cron", "zone", "webhook"} {
		if cmd.Flags().Changed(name) {
			return t, &client.NotSupportedError{Field: "--" + name}
		}
	}
	t = client.Timer{
		ID: id, Queue: s.queue, ContentType: s.contentType, RequestID: s.requestID, Retry: client.RetryPolicy{Lease: s.lease},
	}
	if t.Due, t.After, err = s.parse(); err != nil {
		return t, err
	}
	if s.queue == "" {
		return t, usagef("--queue is needed")
	}
	policies := map[string]client.IfExists{"fail": client.Fail, "replace": client.Replace, "keep": client.Keep}
	var ok bool
	if t.IfExists, ok = policies[s.ifExists]; !ok {
		return t, usagef("--if-exists %q is not one of fail, replace, keep", s.ifExists)
	}
	if cmd.Flags().Changed("lease") && s.lease <= 0 {
		return t, usagef("--lease %v is not valid: 100ms to 24h", s.lease)
	}
	if t.Headers, err = parsePairs("--header", s.headers); err != nil {
		return t, err
	}
	if t.Labels, err = parsePairs("--label", s.labels); err != nil {
		return t, err
	}
	if t.RequestID == "" {
		t.RequestID = rand.Text()
	}
	t.Payload, err = readData(s.data, cmd.InOrStdin())
	return t, err
}

func parsePairs(flag string, list []string) (map[string]string, error) {
	if len(list) == 0 {
		return nil, nil
	}
	m := make(map[string]string, len(list))
	for _, text := range list {
		key, value, ok := strings.Cut(text, "=")
		if !ok || key == "" {
			return nil, usagef("%s %q is not valid: key=value is needed", flag, text)
		}
		if _, ok := m[key]; ok {
			return nil, usagef("%s %q is given twice", flag, key)
		}
		m[key] = value
	}
	return m, nil
}

func readData(data string, in io.Reader) ([]byte, error) {
	name, isFile := strings.CutPrefix(data, "@")
	switch {
	case isFile:
		f, err := os.Open(name)
		if err != nil {
			return nil, usagef("--data %s: %w", data, err)
		}
		defer f.Close()
		in = f
	case data != "-":
		return []byte(data), nil
	}
	payload, err := io.ReadAll(io.LimitReader(in, maxData))
	if err != nil {
		return nil, fmt.Errorf("--data %s: %w", data, err)
	}
	return payload, nil
}

// scheduledJSON is the answer of schedule and reschedule in JSON.
type scheduledJSON struct {
	ID        string `json:"id"`
	Due       string `json:"due"`
	Revision  int64  `json:"revision"`
	Kept      bool   `json:"kept,omitempty"`
	Shard     *int   `json:"shard,omitempty"`
	RequestID string `json:"request_id"`
}

func printScheduled(w io.Writer, f format, id string, t client.Scheduled) error {
	rows := []row{
		{"id", shown(id)},
		{"due", when(t.Due, time.Now())},
		{"revision", fmt.Sprint(t.Revision)},
		{"shard", fmt.Sprint(t.Shard)},
	}
	if t.Kept {
		rows = append(rows, row{"kept", "yes: a pending timer had the ID and stays as it is"})
	}
	j := scheduledJSON{ID: id, Due: stamp(t.Due), Revision: t.Revision, Kept: t.Kept, Shard: &t.Shard, RequestID: t.RequestID}
	return printOne(w, f, j, rows)
}
