package main

import (
	"bufio"
	"encoding/json"
	"fmt"
	"os"
	"sync"
	"time"
)

// Kind is what a client did, or what happened to it.
type Kind string

// Kinds of events.
const (
	Schedule   Kind = "schedule"
	Reschedule Kind = "reschedule"
	Cancel     Kind = "cancel"
	Deliver    Kind = "deliver"
	// Letter is a dead letter that was found at the end, Redrive the call that made it a timer again.
	Letter  Kind = "letter"
	Redrive Kind = "redrive"
	Fault   Kind = "fault"
)

// Sort is what a timer is meant to show.
type Sort string

// Sorts of timers. A plain one fires once and is acked, nacked, left unanswered, moved or cancelled.
const (
	Plain Sort = ""
	// Each repeats on a grid, and each due time is a timer of its own; none may be missed.
	Each Sort = "each"
	// Counted repeats on a grid, skips what overlaps, and ends by its count.
	Counted Sort = "counted"
	// Delayed repeats a while after each ack, and ends by its count.
	Delayed Sort = "delayed"
	// Doomed is nacked until it is a dead letter, and acked after it was redriven.
	Doomed Sort = "doomed"
	// Once is at most once.
	Once Sort = "once"
)

// Outcome is what the client knows of a call.
type Outcome string

// Outcomes. Unknown means that the call may or may not have had its effect.
const (
	OK      Outcome = "ok"
	Failed  Outcome = "failed"
	Unknown Outcome = "unknown"
)

// Event is one line of the history. Times are Unix nanoseconds of the one machine that the run is on.
type Event struct {
	Kind    Kind    `json:"kind"`
	ID      string  `json:"id,omitempty"`
	Start   int64   `json:"start"`
	End     int64   `json:"end"`
	Outcome Outcome `json:"outcome,omitempty"`
	// Answer is the answer of a cancel: cancelled, firing, fired, not found; or what a fault did.
	Answer string `json:"answer,omitempty"`
	Error  string `json:"error,omitempty"`
	// Due is Unix milliseconds: what a schedule or reschedule was told, or what a delivery says.
	Due int64 `json:"due,omitempty"`

	// Of a schedule: what sort of timer it is, its period in milliseconds, its last due time and the count that ends it.
	Sort  Sort  `json:"sort,omitempty"`
	Every int64 `json:"every,omitempty"`
	Last  int64 `json:"last,omitempty"`
	Count int   `json:"count,omitempty"`

	// Of a delivery: the leader's clock at the hand-out in Unix milliseconds, the fence, who got it and what it answered.
	HandedOut int64  `json:"handedOut,omitempty"`
	Epoch     uint64 `json:"epoch,omitempty"`
	Revision  uint64 `json:"revision,omitempty"`
	Attempt   int    `json:"attempt,omitempty"`
	Worker    string `json:"worker,omitempty"`
	Nacked    bool   `json:"nacked,omitempty"`
	// Silent: the worker let the lease end without an answer.
	Silent bool `json:"silent,omitempty"`
}

// String is one line of a timer's story.
func (e Event) String() string {
	at := time.Unix(0, e.Start).Format("15:04:05.000")
	took := time.Duration(e.End - e.Start).Round(100 * time.Microsecond)
	switch e.Kind {
	case Deliver:
		answer := "acked"
		switch {
		case e.Nacked:
			answer = "nacked"
		case e.Silent:
			answer = "not answered"
		}
		return fmt.Sprintf("%s deliver to %s due %s handed out %s (epoch %d, revision %d, attempt %d) %s", at, e.Worker,
			clock(e.Due), clock(e.HandedOut), e.Epoch, e.Revision, e.Attempt, answer)
	case Fault:
		return fmt.Sprintf("%s fault %s", at, e.Answer)
	default:
		s := fmt.Sprintf("%s %s %s (took %v)", at, e.Kind, e.Outcome, took)
		if e.Due != 0 {
			s += " due " + clock(e.Due)
		}
		if e.Answer != "" {
			s += ": " + e.Answer
		}
		if e.Error != "" {
			s += ": " + e.Error
		}
		return s
	}
}

// acked says, of a delivery, that the worker dealt with it.
func (e Event) acked() bool { return !e.Nacked && !e.Silent }

func clock(millis int64) string { return time.UnixMilli(millis).Format("15:04:05.000") }

// History collects the events of a run; any goroutine may add.
type History struct {
	mu     sync.Mutex
	events []Event // guarded by mu
}

// Add appends an event.
func (h *History) Add(e Event) {
	h.mu.Lock()
	h.events = append(h.events, e)
	h.mu.Unlock()
}

// Events returns a copy of all so far.
func (h *History) Events() []Event {
	h.mu.Lock()
	defer h.mu.Unlock()
	return append([]Event(nil), h.events...)
}

// Save writes the history as JSON lines.
func (h *History) Save(path string) error {
	f, err := os.Create(path)
	if err != nil {
		return fmt.Errorf("save history: %w", err)
	}
	defer f.Close()
	w := bufio.NewWriter(f)
	enc := json.NewEncoder(w)
	for _, e := range h.Events() {
		if err := enc.Encode(e); err != nil {
			return fmt.Errorf("save history: %w", err)
		}
	}
	if err := w.Flush(); err != nil {
		return fmt.Errorf("save history: %w", err)
	}
	return nil
}
