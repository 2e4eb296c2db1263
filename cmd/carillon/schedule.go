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

// parse returns the due time or the delay; exactly one of the flags must be set, or none if there is a repeat.
func (w *whenFlags) parse(repeat bool) (due time.Time, after time.Duration, err error) {
	switch {
	case w.in == "" && w.at == "" && repeat:
		return due, 0, nil
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
	repeatFlags
	output                        format
	queue, web, data, contentType string
	headers, labels               []string
	lease, backoff, maxBackoff    time.Duration
	multiplier                    float64
	maxAttempts                   int
	window                        time.Duration
	expires                       string
	atMostOnce                    bool
	ifExists, requestID           string
	expectedRevision              int64
}

func newScheduleCommand() *cobra.Command {
	var s scheduleFlags
	cmd := &cobra.Command{
		Use:   "schedule ID (--in TIME | --at INSTANT | --every TIME | --cron EXPRESSION) (--queue QUEUE | --webhook URL)",
		Short: "Schedule a timer",
		Long: `Schedule a timer. When the command ends with exit code 0, the timer is on the disks of a majority.

A timer fires once (--in, --at), or again and again (--every, --cron; then --in or --at is the first due time, if it is given).
"carillon preview" shows when a repeat would be due. A delivery that fails, or is not answered within --lease, is tried again
after --backoff, twice as long each time, until it is acked, expires, or was tried --max-attempts times.

If the outcome is not known (exit code 4), run the command again with the same --request-id: it then has the effect of one.`,
		Example: `  carillon schedule hello --in 2s --queue demo --data hi
  carillon schedule order-42/expire --at 2030-01-31T08:00:00Z --queue orders --data @order.json --content-type application/json
  carillon schedule '{order-42}/remind' --in 2d --queue mail --label customer=7 --if-exists replace
  carillon schedule report --cron "0 9 * * 1-5" --zone Europe/Berlin --queue reports
  carillon schedule poll --every 5s --fixed-delay --queue poll --max-attempts 3
  carillon schedule invoice-7 --in 1h --webhook https://shop.example/hooks/invoice --expires 1d
  date | carillon schedule now --in 0s --queue demo --data -`,
		Args: arguments("ID"),
		RunE: func(cmd *cobra.Command, args []string) error { return s.run(cmd, args[0]) },
	}
	s.flags(cmd.Flags())
	return cmd
}

func (s *scheduleFlags) flags(f *pflag.FlagSet) {
	f.SortFlags = false // in the order in which they are met
	s.whenFlags.flags(f)
	s.repeatFlags.flags(f)
	f.StringVar(&s.queue, "queue", "", "the `queue` whose workers receive it")
	f.StringVar(&s.web, "webhook", "", "the http or https `URL` to which it is posted, instead of a queue")
	f.StringVar(&s.data, "data", "", "the `payload`: a text, @FILE, or - for standard input")
	f.StringVar(&s.contentType, "content-type", "", "what the payload is, as a media `type`")
	f.StringArrayVar(&s.headers, "header", nil, "a header `key=value` that travels with each delivery; can be repeated")
	f.StringArrayVar(&s.labels, "label", nil, "a label `key=value` for finding the timer; can be repeated")
	spanVar(f, &s.lease, "lease", "how long a delivery may stay unanswered before it is tried again, 100ms to 1d (default 30s)")
	spanVar(f, &s.backoff, "backoff", "the wait before the second attempt, 1ms to 1d (default 1s)")
	spanVar(f, &s.maxBackoff, "max-backoff", "the longest wait, --backoff to 1d (default 5m, or --backoff if that is longer)")
	f.Float64Var(&s.multiplier, "multiplier", 0, "makes each wait longer than the last by this `factor`, 1 to 100 (default 2)")
	f.IntVar(&s.maxAttempts, "max-attempts", 0, "send it to the dead letters after this `number` of attempts (default no limit)")
	spanVar(f, &s.window, "window", "place each due time where the fewest timers are, at most so much later, up to 1d (default exact)")
	f.StringVar(&s.expires, "expires", "", "the `instant` after which a delivery is of no use, RFC 3339 or a time from now")
	f.BoolVar(&s.atMostOnce, "at-most-once", false, "complete it before it is handed out: never twice, but lost if its worker fails")
	f.StringVar(&s.ifExists, "if-exists", "fail", "`what` to do if a pending timer has the ID: fail, replace or keep")
	f.Int64Var(&s.expectedRevision, "expected-revision", 0, "with --if-exists replace: only if this is the timer's `revision`")
	f.StringVar(&s.requestID, "request-id", "", "an `ID` that makes repeated commands have the effect of one (default random)")
	s.connection.flagsWithNamespace(f)
	s.output.flag(f, formatTable)
}

func (s *scheduleFlags) run(cmd *cobra.Command, id string) error {
	timer, err := s.timer(cmd, id)
	if err != nil {
		return err
	}
	return s.do(cmd, func(ctx context.Context, c *client.Client) error {
		t, err := c.Schedule(ctx, timer)
		if err != nil {
			return again(err, timer.RequestID)
		}
		return printScheduled(cmd.OutOrStdout(), s.output, timer, t)
	})
}

// again says how a command whose outcome is not known is repeated.
func again(err error, requestID string) error {
	if errors.Is(err, client.ErrUnknown) {
		return fmt.Errorf("%w; run it again with --request-id %s", err, requestID)
	}
	return err
}

// timer builds the timer from the flags.
func (s *scheduleFlags) timer(cmd *cobra.Command, id string) (t client.Timer, err error) {
	f, now := cmd.Flags(), time.Now()
	t = client.Timer{
		ID: id, Queue: s.queue, Webhook: s.web, ContentType: s.contentType, RequestID: s.requestID, ExpectedRevision: s.expectedRevision,
		Window: s.window, AtMostOnce: s.atMostOnce,
		Retry: client.RetryPolicy{
			Lease: s.lease, InitialBackoff: s.backoff, MaxBackoff: s.maxBackoff, Multiplier: s.multiplier, MaxAttempts: s.maxAttempts,
		},
	}
	if t.Repeat, err = s.repeat(f, now); err != nil {
		return t, err
	}
	if t.Due, t.After, err = s.parse(t.Repeat != client.Repeat{}); err != nil {
		return t, err
	}
	if err = s.checkRest(f); err != nil {
		return t, err
	}
	if t.Expiry, err = parseInstant("expires", s.expires, now); err != nil {
		return t, err
	}
	t.IfExists, err = oneOf("if-exists", s.ifExists, []string{"fail", "replace", "keep"}, []client.IfExists{client.Fail, client.Replace, client.Keep})
	if err != nil {
		return t, err
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

// checkRest refuses what the timer could not carry, or would carry as a default.
func (s *scheduleFlags) checkRest(f *pflag.FlagSet) error {
	switch {
	case s.queue == "" && s.web == "":
		return usagef("--queue or --webhook is needed")
	case s.queue != "" && s.web != "":
		return usagef("--queue %s and --webhook %s: only one can be given", s.queue, s.web)
	case f.Changed("multiplier") && s.multiplier == 0:
		return usagef("--multiplier 0 is not valid: 1 to 100")
	case f.Changed("max-attempts") && s.maxAttempts < 1:
		return usagef("--max-attempts %d is not valid: 1 to 1,000,000", s.maxAttempts)
	case s.expectedRevision != 0 && s.ifExists != "replace":
		return usagef("--expected-revision goes with --if-exists replace")
	}
	for _, flag := range []struct {
		name, limit string
		value       time.Duration
	}{
		{"lease", "100ms to 1d", s.lease}, {"backoff", "1ms to 1d", s.backoff}, {"max-backoff", "--backoff to 1d", s.maxBackoff},
		{"window", "up to 1d", s.window},
	} {
		if f.Changed(flag.name) && flag.value <= 0 {
			return usagef("--%s %s is not valid: %s", flag.name, flag.value, flag.limit)
		}
	}
	return nil
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

// scheduledJSON is the answer of schedule, reschedule, pause, resume and fire in JSON.
type scheduledJSON struct {
	ID        string `json:"id"`
	Due       string `json:"due,omitempty"`
	Revision  int64  `json:"revision"`
	Kept      bool   `json:"kept,omitempty"`
	Shard     *int   `json:"shard,omitempty"`
	RequestID string `json:"request_id"`
}

func printScheduled(w io.Writer, f format, timer client.Timer, t client.Scheduled) error {
	rows := []row{
		{"id", shown(timer.ID)},
		{"due", when(t.Due, time.Now())},
		{"repeat", repeatText(timer.Repeat)},
		{"revision", fmt.Sprint(t.Revision)},
		{"shard", fmt.Sprint(t.Shard)},
	}
	if t.Kept {
		rows[2].value = "" // it may not be that of the timer that stays
		rows = append(rows, row{"kept", "yes: a pending timer had the ID and stays as it is"})
	}
	j := scheduledJSON{ID: timer.ID, Due: stamp(t.Due), Revision: t.Revision, Kept: t.Kept, Shard: &t.Shard, RequestID: t.RequestID}
	return printOne(w, f, j, rows)
}
