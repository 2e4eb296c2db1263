package main

import (
	"fmt"
	"net/url"
	"strings"
	"time"

	"github.com/carillon-timers/carillon/client"
)

// timerJSON is a timer in JSON; the names are those of the contract. A payload that is no text is in payload_base64. Times are
// written as the flags take them: 1h30m, 2d.
type timerJSON struct {
	Namespace     string            `json:"namespace"`
	ID            string            `json:"id"`
	State         string            `json:"state,omitempty"`
	Due           string            `json:"due"`
	NextDue       string            `json:"next_due,omitempty"`
	TimeLeft      string            `json:"time_left,omitempty"`
	Queue         string            `json:"queue,omitempty"`
	Webhook       string            `json:"webhook,omitempty"`
	Payload       *string           `json:"payload,omitempty"`
	PayloadBase64 []byte            `json:"payload_base64,omitempty"`
	ContentType   string            `json:"content_type,omitempty"`
	Headers       map[string]string `json:"headers,omitempty"`
	Labels        map[string]string `json:"labels,omitempty"`
	Repeat        *repeatJSON       `json:"repeat,omitempty"`
	Fired         int64             `json:"fired,omitempty"`
	Retry         *retryJSON        `json:"retry,omitempty"`
	Window        string            `json:"window,omitempty"`
	Expiry        string            `json:"expiry,omitempty"`
	AtMostOnce    bool              `json:"at_most_once,omitempty"`
	Revision      int64             `json:"revision,omitempty"`
	Attempt       int               `json:"attempt"`
	Created       string            `json:"created,omitempty"`
	LastError     string            `json:"last_error,omitempty"`
	Shard         int               `json:"shard"`
}

type repeatJSON struct {
	Every       string `json:"every,omitempty"`
	FixedDelay  bool   `json:"fixed_delay,omitempty"`
	Cron        string `json:"cron,omitempty"`
	Zone        string `json:"zone,omitempty"`
	Start       string `json:"start,omitempty"`
	End         string `json:"end,omitempty"`
	MaxCount    int64  `json:"max_count,omitempty"`
	Misfire     string `json:"misfire"`
	MaxCatchUp  int    `json:"max_catch_up,omitempty"`
	MaxLateness string `json:"max_lateness,omitempty"`
	Overlap     string `json:"overlap"`
}

type retryJSON struct {
	Lease          string  `json:"lease,omitempty"`
	InitialBackoff string  `json:"initial_backoff,omitempty"`
	MaxBackoff     string  `json:"max_backoff,omitempty"`
	Multiplier     float64 `json:"multiplier,omitempty"`
	MaxAttempts    int     `json:"max_attempts,omitempty"`
}

func timerOf(t client.TimerStatus) timerJSON {
	j := givenOf(t.Timer, t.Namespace)
	j.State, j.NextDue, j.TimeLeft, j.Fired = t.State.String(), stamp(t.NextDue), spanOf(t.TimeLeft), t.Fired
	j.Revision, j.Attempt, j.Created, j.LastError, j.Shard = t.Revision, t.Attempt, stamp(t.Created), t.LastError, t.Shard
	return j
}

// givenOf is the part of a timer that was given by who scheduled it.
func givenOf(t client.Timer, namespace string) timerJSON {
	j := timerJSON{
		Namespace: namespace, ID: t.ID, Due: stamp(t.Due), Queue: t.Queue, Webhook: t.Webhook, ContentType: t.ContentType,
		Headers: t.Headers, Labels: t.Labels, Window: spanOf(t.Window), Expiry: stamp(t.Expiry), AtMostOnce: t.AtMostOnce,
	}
	j.Payload, j.PayloadBase64 = payloadOf(t.Payload)
	if r := t.Repeat; r != (client.Repeat{}) {
		j.Repeat = &repeatJSON{
			Every: spanOf(r.Every), FixedDelay: r.FixedDelay, Cron: r.Cron, Zone: r.Zone, Start: stamp(r.Start), End: stamp(r.End),
			MaxCount: r.MaxCount, Misfire: r.Misfire.String(), MaxCatchUp: r.MaxCatchUp, MaxLateness: spanOf(r.MaxLateness),
			Overlap: r.Overlap.String(),
		}
	}
	if r := t.Retry; r != (client.RetryPolicy{}) {
		j.Retry = &retryJSON{spanOf(r.Lease), spanOf(r.InitialBackoff), spanOf(r.MaxBackoff), r.Multiplier, r.MaxAttempts}
	}
	return j
}

// spanOf shows a time, nothing for 0.
func spanOf(d time.Duration) string {
	if d == 0 {
		return ""
	}
	return spanText(d)
}

// target is where a timer goes.
func target(t client.Timer) string {
	if t.Webhook == "" {
		return t.Queue
	}
	u, err := url.Parse(t.Webhook)
	if err != nil {
		return t.Webhook
	}
	return u.Scheme + "://" + u.Host
}

// shortRepeat says in a few words when a timer repeats; nothing if it does not.
func shortRepeat(r client.Repeat) string {
	switch {
	case r.Cron != "" && r.Zone != "":
		return shown(r.Cron + " " + r.Zone)
	case r.Cron != "":
		return shown(r.Cron)
	case r.Every != 0 && r.FixedDelay:
		return spanText(r.Every) + " after ack"
	case r.Every != 0:
		return "every " + spanText(r.Every)
	}
	return ""
}

// repeatText says all of a repeat but how often it has fired; policies that are the default are left out.
func repeatText(r client.Repeat) string {
	text := shortRepeat(r)
	if text == "" {
		return ""
	}
	for _, part := range []struct{ name, value string }{
		{"from", stamp(r.Start)}, {"until", stamp(r.End)}, {"misfire", misfireText(r)}, {"overlap", overlapText(r)},
	} {
		if part.value != "" {
			text += ", " + part.name + " " + part.value
		}
	}
	if r.MaxCount > 0 {
		text += fmt.Sprintf(", %d times", r.MaxCount)
	}
	return text
}

func misfireText(r client.Repeat) string {
	var parts []string
	switch r.Misfire {
	case client.MisfireNone:
		parts = append(parts, "none")
	case client.MisfireAll:
		parts = append(parts, fmt.Sprintf("all (newest %d)", max(1, r.MaxCatchUp)))
	}
	if r.MaxLateness > 0 {
		if len(parts) == 0 {
			parts = append(parts, "one")
		}
		parts = append(parts, "at most "+spanText(r.MaxLateness)+" late")
	}
	return strings.Join(parts, " ")
}

func overlapText(r client.Repeat) string {
	if r.Overlap == client.OverlapOne || r.Overlap == client.OverlapAllow {
		return r.Overlap.String()
	}
	return ""
}

// firedText counts the due times of a repeat that were fired; nothing if it is none.
func firedText(t client.TimerStatus) string {
	if t.Fired == 0 && t.Repeat == (client.Repeat{}) {
		return ""
	}
	return fmt.Sprint(t.Fired)
}

// retryText says how a delivery is tried again.
func retryText(r client.RetryPolicy) string {
	if r == (client.RetryPolicy{}) {
		return ""
	}
	text := fmt.Sprintf("lease %s, back-off %s to %s, times %g", spanText(r.Lease), spanText(r.InitialBackoff), spanText(r.MaxBackoff), r.Multiplier)
	if r.MaxAttempts > 0 {
		text += fmt.Sprintf(", at most %d attempts", r.MaxAttempts)
	}
	return text
}

func timerRows(t client.TimerStatus, now time.Time) []row {
	rows := []row{
		{"id", shown(t.ID)},
		{"namespace", t.Namespace},
		{"state", t.State.String()},
		{"due", when(t.Due, now)},
	}
	switch {
	case t.State == client.Pending && !t.NextDue.Equal(t.Due):
		rows = append(rows, row{"next attempt", when(t.NextDue, now)})
	case t.TimeLeft > 0:
		rows = append(rows, row{"time left", spanText(t.TimeLeft) + " (frozen)"})
	}
	rows = append(rows, row{"repeat", repeatText(t.Repeat)}, row{"fired", firedText(t)})
	guarantee := ""
	if t.AtMostOnce {
		guarantee = "at most once"
	}
	return append(rows,
		row{"queue", shown(t.Queue)},
		row{"webhook", shown(t.Webhook)},
		row{"payload", shownPayload(t.Payload)},
		row{"content type", shown(t.ContentType)},
		row{"headers", pairs(t.Headers)},
		row{"labels", pairs(t.Labels)},
		row{"window", spanOf(t.Window)},
		row{"expires", when(t.Expiry, now)},
		row{"guarantee", guarantee},
		row{"retry", retryText(t.Retry)},
		row{"failed attempts", fmt.Sprint(t.Attempt)},
		row{"last error", shown(t.LastError)},
		row{"created", when(t.Created, now)},
		row{"revision", fmt.Sprint(t.Revision)},
		row{"shard", fmt.Sprint(t.Shard)},
	)
}
