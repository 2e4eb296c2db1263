package transport

import (
	"context"

	carillonv1 "github.com/carillon-timers/carillon/proto/carillon/v1"
)

func (c *cluster) Forecast(ctx context.Context, r *carillonv1.ForecastRequest) (*carillonv1.ForecastResponse, error) {
	q, err := readForecast(r, c.server.limits())
	if err != nil {
		return nil, err
	}
	rows, err := c.server.backend.Forecast(ctx, q)
	if err != nil {
		return nil, err
	}
	resp := &carillonv1.ForecastResponse{Start: moment(q.From), Step: millis(q.Step)}
	for _, row := range rows {
		resp.Series = append(resp.Series, &carillonv1.ForecastSeries{
			Namespace: row.Namespace, Queue: shownQueue(row.Queue), Before: row.Before, Counts: row.Counts, After: row.After, Paused: row.Paused,
		})
	}
	return resp, nil
}
