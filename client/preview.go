package client

import (
	"context"
	"math"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	carillonv1 "github.com/carillon-timers/carillon/proto/carillon/v1"
)

// Repeat says when something is due again and again: exactly one of Every and Cron is set. This version can show its due
// times (Preview), not schedule it.
type Repeat struct {
	// Every is a fixed period of whole milliseconds, 1 ms to 100 years: due at Start, Start + Every, Start + 2 Every, ...
	Every time.Duration
	// Cron is an expression of five fields, of six with seconds in front, a macro as @daily, or @every with a duration.
	// If its hour field begins with "*" it follows real time, else the clock on the wall: local times that a change of the
	// clock skips are due once, together, right afterwards; a local time that occurs twice is due the first time.
	Cron string
	// Zone is the IANA name of the time zone that Cron follows; empty means UTC.
	Zone string
	// FixedDelay counts Every from the ack of one delivery to the next due time.
	FixedDelay bool
	// Start, if set, is the earliest due time; End the latest.
	Start, End time.Time
	// MaxCount ends the repeat after so many due times; 0 means no limit.
	MaxCount int64
}

// PreviewQuery asks when a repeat would be due.
type PreviewQuery struct {
	Repeat
	// From is the instant after which due times are shown; the zero time means now, by the clock of the node that answers.
	From time.Time
	// Count is how many are shown, 1 to 1,000; 0 means 10.
	Count int
}

// Preview is the answer to a PreviewQuery.
type Preview struct {
	// Times are in order. None is more than 100 years after From and Start.
	Times []PreviewTime
	// More due times follow within these 100 years.
	More bool
	// Zone is the time zone of the local times, ZoneVersion the release of the IANA database that the node has embedded.
	Zone, ZoneVersion string
}

// PreviewTime is one due time.
type PreviewTime struct {
	Due time.Time
	// Local is Due in RFC 3339 with the offset of the zone, ZoneName the short name of that offset, as CEST.
	Local, ZoneName string
	// Notes say what a change of the clock or a setting has to do with this due time.
	Notes []string
}

// Preview returns when a repeat would be due. Nothing is scheduled. Errors: *InvalidError with the field cron, zone, every
// or another of Repeat, *NotSupportedError if the node's version has no preview, ErrUnavailable, ErrClosed.
func (c *Client) Preview(ctx context.Context, q PreviewQuery) (Preview, error) {
	if err := q.Repeat.check(); err != nil {
		return Preview{}, wrap("preview", "", err)
	}
	request := q.request()
	var pb *carillonv1.PreviewResponse
	err := c.read(ctx, c.cfg.Namespace, "", func(ctx context.Context, e *endpoint) (err error) {
		pb, err = e.timers.Preview(ctx, request)
		return err
	})
	if err != nil {
		return Preview{}, wrap("preview", "", err)
	}
	p := Preview{
		Times: make([]PreviewTime, 0, len(pb.GetTimes())), More: pb.GetMore(), Zone: pb.GetZone(), ZoneVersion: pb.GetZoneVersion(),
	}
	for _, t := range pb.GetTimes() {
		p.Times = append(p.Times, PreviewTime{
			Due: timeOf(t.GetDue()), Local: t.GetLocal(), ZoneName: t.GetZoneName(), Notes: t.GetNotes(),
		})
	}
	return p, nil
}

func (q PreviewQuery) request() *carillonv1.PreviewRequest {
	return &carillonv1.PreviewRequest{
		Repeat: q.Repeat.proto(), From: optionalTime(q.From), Count: int32(min(max(q.Count, math.MinInt32), math.MaxInt32)),
	}
}

// check finds what the message could not carry; the server checks the rest.
func (r Repeat) check() error {
	switch {
	case r.Every == 0 && r.Cron == "":
		return &InvalidError{"repeat", "", "every or cron must be set"}
	case r.Every != 0 && r.Cron != "":
		return &InvalidError{"every", r.Every.String(), "must not be set beside cron"}
	}
	if err := checkText("cron", r.Cron, 0, maxCronBytes); err != nil {
		return err
	}
	return checkText("zone", r.Zone, 0, maxZoneBytes)
}

func (r Repeat) proto() *carillonv1.Repeat {
	pb := &carillonv1.Repeat{
		Zone: r.Zone, FixedDelay: r.FixedDelay, Start: optionalTime(r.Start), End: optionalTime(r.End), MaxCount: r.MaxCount,
	}
	if r.Cron != "" {
		pb.Rule = &carillonv1.Repeat_Cron{Cron: r.Cron}
	} else {
		pb.Rule = &carillonv1.Repeat_Every{Every: durationpb.New(r.Every)}
	}
	return pb
}

// optionalTime leaves the field of a zero time unset.
func optionalTime(t time.Time) *timestamppb.Timestamp {
	if t.IsZero() {
		return nil
	}
	return timestamppb.New(t)
}
