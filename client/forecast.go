package client

import (
	"context"
	"time"

	carillonv1 "github.com/carillon-timers/carillon/proto/carillon/v1"
)

// ForecastQuery asks how many timers fall due when.
type ForecastQuery struct {
	// Namespace and Queue choose timers; empty means all. The client's own namespace has no say here.
	Namespace, Queue string
	// From is the first instant that is counted; the zero time means now.
	From time.Time
	// Step is 1 s, 1 min or 1 h; 0 means 1 min. Steps begin at whole ones.
	Step time.Duration
	// Steps are how many are counted, 1 to 3,600; 0 means 60.
	Steps int
}

// Forecast is the answer to a ForecastQuery, exact at the moment at which each leader counted.
type Forecast struct {
	// Start is the beginning of the first step.
	Start time.Time
	Step  time.Duration
	// Series are sorted by namespace and queue; at most 1,000, the rest is in the last one, without names.
	Series []ForecastSeries
}

// ForecastSeries are the counts of a queue of a namespace. Of a repeat the next due time counts alone.
type ForecastSeries struct {
	Namespace string
	// Queue, or scheme and host of a webhook.
	Queue string
	// Before and After count what lies before the first and behind the last step.
	Before int64
	Counts []int64
	After  int64
	// Paused timers are in no other count.
	Paused int64
}

// Forecast counts what falls due. Errors: *InvalidError, *NotSupportedError, ErrUnavailable, ErrClosed.
func (c *Client) Forecast(ctx context.Context, q ForecastQuery) (Forecast, error) {
	err := checkText("queue", q.Queue, 0, maxQueueBytes)
	if err == nil && q.Namespace != "" {
		err = checkNamespace(q.Namespace)
	}
	if err != nil {
		return Forecast{}, wrap("forecast", "", err)
	}
	request := &carillonv1.ForecastRequest{
		Namespace: q.Namespace, Queue: q.Queue, From: optionalTime(q.From), Step: optional(q.Step), Steps: int32Of(q.Steps),
	}
	var pb *carillonv1.ForecastResponse
	err = c.read(ctx, c.cfg.Namespace, "", func(ctx context.Context, e *endpoint) (err error) {
		pb, err = e.cluster.Forecast(ctx, request)
		return err
	})
	if err != nil {
		return Forecast{}, wrap("forecast", "", err)
	}
	f := Forecast{Start: timeOf(pb.GetStart()), Step: pb.GetStep().AsDuration(), Series: make([]ForecastSeries, 0, len(pb.GetSeries()))}
	for _, s := range pb.GetSeries() {
		f.Series = append(f.Series, ForecastSeries{
			Namespace: s.GetNamespace(), Queue: s.GetQueue(), Before: s.GetBefore(), Counts: s.GetCounts(), After: s.GetAfter(), Paused: s.GetPaused(),
		})
	}
	return f, nil
}
