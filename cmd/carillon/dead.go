package main

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/spf13/cobra"

	"github.com/carillon-timers/carillon/client"
)

var _ = register(newDeadCommand)

func newDeadCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "dead",
		Short: "List, redrive or purge dead letters",
		Long: `List, redrive or purge dead letters: timers whose last attempt failed (--max-attempts of schedule), or that a consumer has
refused for good (client.Refuse, --refuse-code of work, or 410 from a webhook). They are kept until they are redriven or purged.`,
		Example: `  carillon dead list
  carillon dead redrive --all --queue mail
  carillon dead purge KEY`,
		Args: func(cmd *cobra.Command, args []string) error {
			if len(args) > 0 {
				return usagef("%q is not one of list, redrive, purge", args[0])
			}
			return usagef("one of list, redrive, purge is needed")
		},
		RunE: func(*cobra.Command, []string) error { return nil },
	}
	cmd.AddCommand(newDeadListCommand(), lettersCommand(lettersUse{
		name: "redrive", done: "redriven", short: "Make dead letters timers again, due at once",
		long: `Make dead letters timers again: due at once, without failed attempts, under their own ID. One whose ID is taken meanwhile stays
dead. A due time of a repeat that lives on gets an ID of its own, "{ID}@MILLISECONDS".`,
		call: (*client.Client).Redrive,
	}), lettersCommand(lettersUse{
		name: "purge", done: "purged", short: "Throw dead letters away, for ever",
		long: "Throw dead letters away, for ever.",
		call: (*client.Client).Purge,
	}))
	return cmd
}

func newDeadListCommand() *cobra.Command {
	var conn connection
	var output format
	var queue string
	var limit int
	cmd := &cobra.Command{
		Use:   "list",
		Short: "List dead letters, shard by shard in the order in which they died",
		Example: `  carillon dead list
  carillon dead list --queue mail -o json | jq -r '.[] | .key + " " + .last_error'`,
		Args: arguments(),
		RunE: func(cmd *cobra.Command, _ []string) error {
			if limit < 1 {
				return usagef("--limit %d is not valid: at least 1", limit)
			}
			return conn.do(cmd, func(ctx context.Context, c *client.Client) error {
				var list []client.DeadLetter
				more := false
				for l, err := range c.DeadLetters(ctx, client.DeadQuery{Queue: queue, Limit: min(limit+1, 1000)}) {
					if err != nil {
						return err
					}
					if more = len(list) == limit; more {
						break
					}
					list = append(list, l)
				}
				if err := printLetters(cmd.OutOrStdout(), output, list, time.Now()); err != nil {
					return err
				}
				if more {
					fmt.Fprintf(cmd.ErrOrStderr(), "carillon: there are more than %d; --limit shows them\n", limit)
				}
				return nil
			})
		},
	}
	f := cmd.Flags()
	f.StringVar(&queue, "queue", "", "only those that were for this `queue`")
	f.IntVar(&limit, "limit", 100, "at most this `number` of dead letters")
	conn.flagsWithNamespace(f)
	output.flag(f, formatTable)
	return cmd
}

// letterJSON is a dead letter in JSON.
type letterJSON struct {
	Key       string    `json:"key"`
	Died      string    `json:"died"`
	Reason    string    `json:"reason"`
	LastError string    `json:"last_error,omitempty"`
	Attempts  int       `json:"attempts"`
	Shard     int       `json:"shard"`
	Timer     timerJSON `json:"timer"`
}

func printLetters(w io.Writer, f format, list []client.DeadLetter, now time.Time) error {
	if f == formatJSON {
		letters := []letterJSON{}
		for _, l := range list {
			j := letterJSON{l.Key, stamp(l.Died), l.Reason.String(), l.LastError, l.Attempts, l.Shard, givenOf(l.Timer, l.Namespace)}
			j.Timer.Shard, j.Timer.Attempt = l.Shard, l.Attempts
			letters = append(letters, j)
		}
		return printJSON(w, letters)
	}
	var rows [][]string
	for _, l := range list {
		text := l.LastError
		if short := cut(text, 60); short != text {
			text = short + "..."
		}
		rows = append(rows, []string{
			shown(l.Key), distance(l.Died.Sub(now)), shown(l.Timer.ID), shown(target(l.Timer)), l.Reason.String(), fmt.Sprint(l.Attempts), shown(text),
		})
	}
	return printTable(w, []string{"KEY", "DIED", "TIMER", "TARGET", "REASON", "ATTEMPTS", "LAST ERROR"}, rows)
}

// lettersUse is what redrive and purge do not share.
type lettersUse struct {
	name, done, short, long string
	call                    func(*client.Client, context.Context, client.Letters) (int64, error)
}

func lettersCommand(use lettersUse) *cobra.Command {
	var conn connection
	var output format
	var l client.Letters
	cmd := &cobra.Command{
		Use:   use.name + " (KEY... | --all [--queue QUEUE])",
		Short: use.short,
		Long:  use.long + "\n\nKEYs are those that \"carillon dead list\" shows. If some stay dead, the exit code is 1 (3 if the first is not known).",
		Example: fmt.Sprintf(`  carillon dead %[1]s 13-000000000000000900000001
  carillon dead %[1]s --all --queue mail
  carillon dead list -o json | jq -r '.[].key' | xargs carillon dead %[1]s`, use.name),
		RunE: func(cmd *cobra.Command, args []string) error {
			switch {
			case l.All && len(args) > 0:
				return usagef("%q and --all: only one can be given", args[0])
			case !l.All && len(args) == 0:
				return usagef("KEY is missing; --all means all; usage: %s", cmd.UseLine())
			case l.Queue != "" && !l.All:
				return usagef("--queue goes with --all")
			}
			if l.Keys = args; l.RequestID == "" {
				l.RequestID = rand.Text()
			}
			return conn.do(cmd, func(ctx context.Context, c *client.Client) error {
				n, err := use.call(c, ctx, l)
				var some *client.LettersError
				if err != nil && !errors.As(err, &some) {
					return again(err, l.RequestID)
				}
				return errors.Join(printDone(cmd.OutOrStdout(), output, use.done, n, some), err)
			})
		},
	}
	f := cmd.Flags()
	f.BoolVar(&l.All, "all", false, "all dead letters of the namespace, or of --queue")
	f.StringVar(&l.Queue, "queue", "", "with --all: those that were for this `queue`")
	f.StringVar(&l.RequestID, "request-id", "", "an `ID` that makes repeated commands have the effect of one (default random)")
	conn.flagsWithNamespace(f)
	output.flag(f, formatTable)
	return cmd
}

func printDone(w io.Writer, f format, done string, n int64, some *client.LettersError) error {
	var failed []client.LetterFailure
	if some != nil {
		failed = some.Failed
	}
	if f == formatJSON {
		type failureJSON struct {
			Key   string `json:"key"`
			Error string `json:"error"`
		}
		list := []failureJSON{}
		for _, x := range failed {
			list = append(list, failureJSON{x.Key, x.Err.Error()})
		}
		return printJSON(w, map[string]any{done: n, "failed": list})
	}
	rows := []row{{done, fmt.Sprint(n)}}
	if len(failed) > 0 {
		rows = append(rows, row{"stay dead", fmt.Sprint(len(failed))})
	}
	return printOne(w, f, nil, rows)
}
