package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"sync"
	"time"

	"github.com/spf13/cobra"

	"github.com/carillon-timers/carillon/client"
)

var _ = register(newWorkCommand)

// maxWorkConcurrency is the SDK's limit; its 0, which means the default, is refused.
const maxWorkConcurrency = 10_000

// workFlags are the flags of work.
type workFlags struct {
	connection
	output      format
	concurrency int
	count       int
	name        string
	refuseCode  int
	extend      bool
}

func newWorkCommand() *cobra.Command {
	var w workFlags
	cmd := &cobra.Command{
		Use:   "work QUEUE [-- COMMAND [ARG...]]",
		Short: "Receive what falls due on a queue",
		Long: `Receive what falls due on a queue, until Ctrl-C. Each delivery is printed as a line of JSON and acked.

With a COMMAND, the command runs for each delivery instead, with the payload on standard input; exit code 0 acks, any
other one lets the timer be delivered again after its back-off, and that of --refuse-code sends it to the dead letters. The
command is ended when the delivery's lease ends, which --extend puts off. Its environment has CARILLON_NAMESPACE, CARILLON_ID,
CARILLON_QUEUE, CARILLON_DUE, CARILLON_HANDED_OUT, CARILLON_LEASE_END, CARILLON_LATENESS_MS, CARILLON_ATTEMPT, CARILLON_LAST (1 if
a failure is the end: the dead letters), CARILLON_AT_MOST_ONCE (1 or 0), CARILLON_EPOCH, CARILLON_REVISION, CARILLON_SHARD,
CARILLON_CONTENT_TYPE, and CARILLON_HEADER_X and CARILLON_LABEL_X for each header and label X (in capitals, other signs than
letters and digits as _).

What was received and not begun when the work ends is given back, and no attempt is counted; at-most-once timers cannot be given
back: they are printed, or the command runs for them, also beyond --count.

lateness_ms is how long after its due time the delivery arrived, by the clock of this machine; of a later attempt with all
back-offs. handed_out is the leader's clock.`,
		Example: `  carillon work demo
  carillon work demo --count 1 | jq -r .payload
  carillon work mail --concurrency 4 -- ./send-mail.sh
  carillon work videos --extend --refuse-code 65 -- ./encode.sh
  carillon work demo -- sh -c 'echo "$CARILLON_ID: $(cat)"'`,
		Args: func(cmd *cobra.Command, args []string) error {
			switch dash := cmd.ArgsLenAtDash(); {
			case dash == 0 || len(args) == 0:
				return usagef("QUEUE is missing; usage: %s", cmd.UseLine())
			case dash < 0 && len(args) > 1:
				return usagef("%q is one argument too many; a command comes after --", args[1])
			case dash > 1:
				return usagef("%q is one argument too many; usage: %s", args[1], cmd.UseLine())
			case dash == 1 && len(args) == 1:
				return usagef("COMMAND is missing after --")
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, args []string) error { return w.run(cmd, args[0], args[1:]) },
	}
	f := cmd.Flags()
	f.IntVar(&w.concurrency, "concurrency", client.DefaultConcurrency, "the most `deliveries` that are dealt with at once, 1 to 10,000")
	f.IntVar(&w.count, "count", 0, "end after this `number` of deliveries; 0 means never")
	f.StringVar(&w.name, "name", "", "the worker's `name` in the logs of the nodes (default host and process)")
	f.IntVar(&w.refuseCode, "refuse-code", 0, "the exit `code` of COMMAND that sends the timer to the dead letters, 1 to 255 (default none)")
	f.BoolVar(&w.extend, "extend", false, "extend the lease again and again while COMMAND runs")
	w.connection.flagsWithNamespace(f)
	w.output.flag(f, formatJSON)
	f.Lookup("timeout").Usage = "give up if no node is reached within this `time`"
	return cmd
}

func (w *workFlags) run(cmd *cobra.Command, queue string, command []string) error {
	if w.count < 0 {
		return usagef("--count %d is not valid: must not be negative", w.count)
	}
	if w.concurrency < 1 || w.concurrency > maxWorkConcurrency {
		return usagef("--concurrency %d is not valid: 1 to 10,000", w.concurrency)
	}
	switch {
	case w.refuseCode < 0 || w.refuseCode > 255 || w.refuseCode == 0 && cmd.Flags().Changed("refuse-code"):
		return usagef("--refuse-code %d is not valid: 1 to 255", w.refuseCode)
	case (w.refuseCode > 0 || w.extend) && len(command) == 0:
		return usagef("--refuse-code and --extend are for a COMMAND")
	}
	if w.timeout <= 0 {
		return usagef("--timeout %v is not valid: must be positive", w.timeout)
	}
	dial, cancelDial := context.WithTimeoutCause(cmd.Context(), w.timeout, &timeoutError{w.timeout})
	defer cancelDial()
	c, err := w.dial(dial, cmd.ErrOrStderr())
	if err != nil {
		return err
	}
	defer c.Close()

	ctx, cancel := context.WithCancelCause(cmd.Context())
	defer cancel(nil)
	options := client.WorkOptions{Concurrency: w.concurrency, Name: w.name}
	handle := w.printer(cmd.OutOrStdout(), cancel)
	if len(command) > 0 {
		handle = commandHandler(command, w.refuseCode, cmd.OutOrStdout(), cmd.ErrOrStderr())
		if w.extend {
			handle = extending(handle)
		}
	}
	if w.count > 0 {
		options.Concurrency = min(w.concurrency, w.count)
		handle = countdown(w.count, handle, func() { cancel(nil) })
	}
	if err := c.Work(ctx, queue, handle, options); err != nil {
		return err
	}
	if err := context.Cause(ctx); errors.Is(err, errOutput) {
		return err
	}
	return nil
}

// errOutput: standard output cannot be written any more (a closed pipe).
var errOutput = errors.New("cannot write the delivery")

// deliveryJSON is a delivery in JSON; the names are those of the contract.
type deliveryJSON struct {
	Namespace     string            `json:"namespace"`
	ID            string            `json:"id"`
	Queue         string            `json:"queue"`
	Payload       *string           `json:"payload,omitempty"`
	PayloadBase64 []byte            `json:"payload_base64,omitempty"`
	ContentType   string            `json:"content_type,omitempty"`
	Headers       map[string]string `json:"headers,omitempty"`
	Labels        map[string]string `json:"labels,omitempty"`
	Due           string            `json:"due"`
	HandedOut     string            `json:"handed_out"`
	Received      string            `json:"received"`
	LeaseEnd      string            `json:"lease_end,omitempty"`
	LatenessMs    float64           `json:"lateness_ms"`
	Attempt       int               `json:"attempt"`
	Last          bool              `json:"last,omitempty"`
	AtMostOnce    bool              `json:"at_most_once,omitempty"`
	Epoch         int64             `json:"epoch"`
	Revision      int64             `json:"revision"`
	Shard         int               `json:"shard"`
}

func lateness(d client.Delivery) float64 {
	return float64(d.Received.Sub(d.Due).Microseconds()) / 1000
}

func deliveryOf(d client.Delivery) deliveryJSON {
	j := deliveryJSON{
		Namespace: d.Namespace, ID: d.ID, Queue: d.Queue, ContentType: d.ContentType, Headers: d.Headers, Labels: d.Labels,
		Due: stamp(d.Due), HandedOut: stamp(d.HandedOut), Received: d.Received.UTC().Format("2006-01-02T15:04:05.000000Z07:00"),
		LeaseEnd: stamp(d.LeaseEnd), LatenessMs: lateness(d), Attempt: d.Attempt, Last: d.Last, AtMostOnce: d.AtMostOnce, Epoch: d.Epoch, Revision: d.Revision, Shard: d.Shard,
	}
	j.Payload, j.PayloadBase64 = payloadOf(d.Payload)
	return j
}

// printer prints each delivery on a line; when that fails, the work ends and the delivery is not acked.
func (w *workFlags) printer(out io.Writer, cancel context.CancelCauseFunc) client.Handler {
	var mu sync.Mutex // one line after the other
	return func(_ context.Context, d client.Delivery) error {
		mu.Lock()
		defer mu.Unlock()
		err := w.print(out, d)
		if err != nil {
			err = fmt.Errorf("%w: %w", errOutput, err)
			cancel(err)
		}
		return err
	}
}

func (w *workFlags) print(out io.Writer, d client.Delivery) error {
	if w.output == formatJSON {
		return printJSON(out, deliveryOf(d))
	}
	note := ""
	switch {
	case d.AtMostOnce:
		note = "at most once  "
	case d.Last:
		note = "the last one  "
	}
	_, err := fmt.Fprintf(out, "%s  %-24s  attempt %d  %slate %.1f ms  %s\n",
		stamp(d.Due), shown(d.ID), d.Attempt, note, lateness(d), shownPayload(d.Payload))
	return err
}

// countdown ends the work after n deliveries; what comes beyond is given back then, but for what is at most once.
func countdown(n int, handle client.Handler, end func()) client.Handler {
	var mu sync.Mutex
	begun, done := 0, 0
	return func(ctx context.Context, d client.Delivery) error {
		mu.Lock()
		begun++
		beyond := begun > n && !d.AtMostOnce
		mu.Unlock()
		if beyond {
			<-ctx.Done() // else it would come back at once
			return client.ErrGiveBack
		}
		err := handle(ctx, d)
		mu.Lock()
		defer mu.Unlock()
		if done++; done == n {
			end()
		}
		return err
	}
}

// extending keeps the lease of what is handled: each time half of it is over it is extended.
func extending(handle client.Handler) client.Handler {
	return func(ctx context.Context, d client.Delivery) error {
		if d.AtMostOnce {
			return handle(ctx, d)
		}
		var wg sync.WaitGroup
		defer wg.Wait()
		running, stop := context.WithCancel(ctx)
		defer stop()
		ticker := time.NewTicker(max(d.LeaseEnd.Sub(d.HandedOut)/2, 10*time.Millisecond))
		wg.Go(func() {
			defer ticker.Stop()
			for {
				select {
				case <-running.Done():
					return
				case <-ticker.C:
				}
				if _, err := d.ExtendLease(running, 0); errors.Is(err, client.ErrStale) {
					return // the end of ctx says so
				}
			}
		})
		return handle(ctx, d)
	}
}
