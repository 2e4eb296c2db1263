package main

import (
	"fmt"
	"io"
	"strconv"
	"time"
)

// benchReport is the result of a bench.
type benchReport struct {
	Bench  string `json:"bench"`
	Began  string `json:"began"`
	Prefix string `json:"prefix"`
	// Settings are the flags that shaped the load.
	Settings map[string]any `json:"settings"`
	Measures []measure      `json:"measures"`
	Fires    *fires         `json:"fires,omitempty"`
	// Kept timers are still pending under the prefix: because of --keep, or because they could not be cancelled in time.
	Kept int64 `json:"kept,omitempty"`
	// FirstError is the text of the first operation that failed.
	FirstError  string `json:"first_error,omitempty"`
	Interrupted bool   `json:"interrupted,omitempty"`
}

// fires is what became of the timers that were to fire.
type fires struct {
	Scheduled int64 `json:"scheduled"`
	Delivered int64 `json:"delivered"`
	// Early deliveries reached the handler before the due time by this machine's clock, or were handed out before it by
	// the leader's.
	Early int64 `json:"early"`
	// Duplicates are deliveries after the first one of a timer.
	Duplicates int64 `json:"duplicates"`
	// Lost timers were accepted and not delivered in time.
	Lost int64 `json:"lost"`
	// Behind timers were accepted only after they were due: the load came too late, so they are no measure of lateness.
	Behind int64 `json:"behind"`
	// Unacked timers, counted up to 1,000, were still pending after the worker had its acks confirmed; -1 if that is not
	// known.
	Unacked int64 `json:"unacked"`
	// Gap is the longest time between two deliveries that followed each other; GapAt is when it began.
	Gap   float64 `json:"largest_gap_ms"`
	GapAt string  `json:"largest_gap_at,omitempty"`
	// WorstDue is the due time of the timer that was the latest.
	WorstDue string `json:"worst_due,omitempty"`
}

func (r *benchReport) print(w io.Writer, f format) error {
	if f == formatJSON {
		return printJSON(w, r)
	}
	var rows [][]string
	for _, m := range r.Measures {
		cells := []string{m.Name, thousands(int64(m.Count)), fmt.Sprintf("%.2f", m.Seconds), thousands(int64(m.Rate))}
		for _, v := range []float64{m.P50, m.P99, m.P999, m.Max} {
			if m.Max == 0 { // nothing was timed
				cells = append(cells, "-")
			} else {
				cells = append(cells, millis(v))
			}
		}
		rows = append(rows, append(cells, thousands(int64(m.Errors))))
	}
	header := []string{"WHAT", "TIMERS", "SECONDS", "PER SECOND", "P50 MS", "P99 MS", "P99.9 MS", "MAX MS", "ERRORS"}
	if err := printTable(w, header, rows); err != nil {
		return err
	}
	var notes []row
	if f := r.Fires; f != nil {
		notes = append(notes, f.rows()...)
	}
	if r.Kept > 0 {
		notes = append(notes, row{"kept", thousands(r.Kept) + " timers, whose IDs start with " + r.Prefix})
	}
	notes = append(notes, row{"first error", shown(r.FirstError)})
	if r.Interrupted {
		notes = append(notes, row{"interrupted", "yes: what was measured until then"})
	}
	return printOne(w, formatTable, nil, notes)
}

func (f *fires) rows() []row {
	unacked := thousands(f.Unacked)
	if f.Unacked < 0 {
		unacked = "not known"
	}
	rows := []row{
		{"early", thousands(f.Early)},
		{"duplicates", thousands(f.Duplicates)},
		{"lost", thousands(f.Lost)},
		{"unacked at the end", unacked},
		{"worst lateness", f.worst()},
		{"largest gap", f.gap()},
	}
	if f.Behind > 0 {
		rows = append(rows, row{"scheduled too late", thousands(f.Behind) + " (left out of the lateness: a longer --ahead or a lower --rate is needed)"})
	}
	return rows
}

func (f *fires) worst() string {
	if f.WorstDue == "" {
		return ""
	}
	return "of a timer due at " + f.WorstDue
}

func (f *fires) gap() string {
	if f.GapAt == "" {
		return ""
	}
	return fmt.Sprintf("%s ms without a delivery, from %s", millis(f.Gap), f.GapAt)
}

// problem is an error if the report shows a broken promise or operations that failed.
func (r *benchReport) problem() error {
	var failed uint64
	for _, m := range r.Measures {
		failed += m.Errors
	}
	switch f := r.Fires; {
	case f != nil && (f.Early > 0 || f.Lost > 0 || f.Unacked > 0):
		return fmt.Errorf("bench %s: %d early, %d lost, %d unacked", r.Bench, f.Early, f.Lost, f.Unacked)
	case r.Interrupted:
		return fmt.Errorf("bench %s: interrupted", r.Bench)
	case failed > 0:
		return fmt.Errorf("bench %s: %d operations failed, first: %s", r.Bench, failed, r.FirstError)
	}
	return nil
}

// thousands writes a number with commas.
func thousands(n int64) string {
	text := strconv.FormatInt(n, 10)
	start := 0
	if n < 0 {
		start = 1
	}
	for i := len(text) - 3; i > start; i -= 3 {
		text = text[:i] + "," + text[i:]
	}
	return text
}

// millis writes milliseconds with three digits or so.
func millis(v float64) string {
	switch {
	case v >= 100 || v <= -100:
		return thousands(int64(v + 0.5))
	case v >= 10:
		return strconv.FormatFloat(v, 'f', 1, 64)
	}
	return strconv.FormatFloat(v, 'f', 2, 64)
}

// stampOf shows nanoseconds since 1970 as an instant; nothing for 0.
func stampOf(ns int64) string {
	if ns == 0 {
		return ""
	}
	return stamp(time.Unix(0, ns))
}
