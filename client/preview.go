package client

import (
	"context"
	"time"

	carillonv1 "github.com/carillon-timers/carillon/proto/carillon/v1"
)

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
		Repeat: q.Repeat.proto(), From: optionalTime(q.From), Count: int32Of(q.Count),
	}
}
