package main

import (
	"context"
	"fmt"
	"strings"

	"github.com/carillon-timers/carillon/jepsen-lite/local"
)

// bench runs `carillon bench` and keeps what it complains about as a note.
func (s *session) bench(ctx context.Context, args ...string) (local.Report, error) {
	r, err := s.cluster.Bench(ctx, args...)
	if r.Problem != "" {
		s.notes = append(s.notes, fmt.Sprintf("`bench %s`: %s", strings.Join(args, " "), r.Problem))
	}
	return r, err
}

func (s *session) add(rows ...row) { s.rows = append(s.rows, rows...) }

// schedule is T5: durable schedules a second.
func (s *session) schedule(ctx context.Context) error {
	for _, load := range []struct {
		what, callers, batch string
		goal, stretch        float64
	}{
		{"schedules, one caller", "1", "1", 1200, 2500},
		{"schedules, 64 callers", "64", "1", 20_000, 40_000},
		{"schedules, 512 callers", "512", "1", 50_000, 100_000},
		{"schedules, 8 callers with batches of 500", "8", "500", 150_000, 300_000},
	} {
		r, err := s.bench(ctx, "schedule", "--callers", load.callers, "--batch", load.batch, "--count", "0", "--duration", s.duration.String())
		if err != nil {
			return err
		}
		s.add(row{Target: "T5", What: load.what, Value: r.Measure("schedule").Rate, Unit: "/s", Goal: load.goal, Stretch: load.stretch, More: true})
	}
	return nil
}

func (s *session) cancel(ctx context.Context) error {
	count := int(40_000 * s.duration.Seconds())
	r, err := s.bench(ctx, "cancel", "--callers", "64", "--count", fmt.Sprint(count), "--duration", s.duration.String())
	if err != nil {
		return err
	}
	s.add(row{Target: "T5", What: "cancels, 64 callers", Value: r.Measure("cancel").Rate, Unit: "/s", Goal: 15_000, Stretch: 40_000, More: true})
	return nil
}

// fire is T6: lateness from the due time to the worker's handler.
func (s *session) fire(ctx context.Context) error {
	for _, load := range []struct {
		rate, name             string
		p50, p99, best50, best float64
	}{
		{"1000", "1k fires/s", 1.5, 8, 0.5, 3},
		{"10000", "10k fires/s", 3, 20, 0, 10},
	} {
		r, err := s.bench(ctx, "fire", "--rate", load.rate, "--duration", (2 * s.duration).String())
		if err != nil {
			return err
		}
		m := r.Measure("lateness")
		s.add(
			row{Target: "T6", What: "lateness at " + load.name + ", p50", Value: m.P50, Unit: "ms", Goal: load.p50, Stretch: load.best50},
			row{Target: "T6", What: "lateness at " + load.name + ", p99", Value: m.P99, Unit: "ms", Goal: load.p99, Stretch: load.best},
			row{Target: "T6", What: "early at " + load.name, Value: float64(r.Fires.Early), Zero: true},
		)
	}
	return nil
}

// drained is T7: sustained fires a second, with acks committed.
func (s *session) drained(ctx context.Context) error {
	r, err := s.bench(ctx, "fire", "--drain", fmt.Sprint(s.options.drain), "--concurrency", "1000")
	if err != nil {
		return err
	}
	s.add(row{Target: "T7", What: fmt.Sprintf("fires with acks committed, %s overdue", number(float64(s.options.drain))),
		Value: r.Measure("drain with acks").Rate, Unit: "/s", Goal: 40_000, Stretch: 100_000, More: true})
	return nil
}

// burst is T8: 10,000 timers due at one instant.
func (s *session) burst(ctx context.Context) error {
	r, err := s.bench(ctx, "fire", "--burst", "10000", "--concurrency", "1000")
	if err != nil {
		return err
	}
	s.add(row{Target: "T8", What: "10,000 due at one instant: all handed out", Value: r.Measure("burst").Max, Unit: "ms", Goal: 150, Stretch: 60})
	return nil
}
