package main

import (
	"context"
	"errors"
	"testing"
	"time"
)

func TestQuantile(t *testing.T) {
	t.Parallel()
	var sorted []time.Duration
	for i := range 100 {
		sorted = append(sorted, time.Duration(i+1)*time.Millisecond)
	}
	for q, want := range map[float64]float64{0: 1, 0.5: 50, 0.99: 99, 0.991: 100, 1: 100} {
		if got := quantile(sorted, q); got != want {
			t.Errorf("quantile(%v) = %v, want %v", q, got, want)
		}
	}
	if got := quantile(nil, 0.5); got != 0 {
		t.Errorf("of nothing: %v", got)
	}
}

func TestMarkdown(t *testing.T) {
	t.Parallel()
	got := markdown("2 CPUs", []result{
		{"A", []float64{1000, 20_000, 30_000, 1_500_000}, 1000, fires{P50: 0.5, P99: 2, Max: 3}, &fires{Max: 50}},
		{"B", []float64{500, 2000, 60_000, 0}, 1000, fires{P50: 100, P99: 200, Max: 300, Early: 1, Lost: 2, Twice: 3}, nil},
	})
	want := `2 CPUs.

| | A | B | ratio |
|---|---:|---:|---:|
| schedules/s, one caller | 1,000 | 500 | 2x |
| schedules/s, 64 callers | 20,000 | 2,000 | 10x |
| schedules/s, 512 callers | 30,000 | 60,000 | 0.5x |
| schedules/s, 8 callers with batches of 500 | 1,500,000 | 0 | - |
| lateness p50 at 1,000 fires/s, ms | 0.50 | 100 | 0.005x |
| lateness p99 at 1,000 fires/s, ms | 2 | 200 | 0.01x |
| lateness, greatest at 1,000 fires/s, ms | 3 | 300 | 0.01x |
| early | 0 | 1 | |
| lost | 0 | 2 | |
| delivered twice | 0 | 3 | |
| kill -9 of the leader at 1,000 fires/s: worst lateness, ms | 50 | - | - |
| lost by it | 0 | - | |

Ratios are A to the system left of them: more is better for rates, less for lateness.
`
	if got != want {
		t.Errorf("got\n%s\nwant\n%s", got, want)
	}
}

func TestCallers(t *testing.T) {
	t.Parallel()
	done, err := callers(t.Context(), 3, 10, 95, time.Now().Add(time.Minute), func(_ context.Context, first, n int64) error {
		if first+n > 95 {
			t.Errorf("%d numbers from %d", n, first)
		}
		return nil
	})
	if done != 95 || err != nil {
		t.Errorf("got %d, %v", done, err)
	}
	bad := errors.New("bad")
	if _, err := callers(t.Context(), 3, 10, 0, time.Now().Add(time.Minute), func(context.Context, int64, int64) error { return bad }); !errors.Is(err, bad) {
		t.Errorf("got %v", err)
	}
}

// fake hands out at once, one early and one twice, and loses one.
type fake struct{ timers chan timer }

func (f *fake) Title() string                       { return "fake" }
func (f *fake) Start(context.Context, string) error { return nil }
func (f *fake) Stop()                               {}

func (f *fake) Schedule(_ context.Context, timers []timer) error {
	for _, t := range timers {
		f.timers <- t
	}
	return nil
}

func (f *fake) Work(ctx context.Context, handle func(string)) error {
	for n := 0; ; n++ {
		select {
		case t := <-f.timers:
			switch {
			case n == 0: // early
			case pause(ctx, time.Until(t.due)) != nil:
				return nil
			}
			handle(t.id)
			if n == 1 {
				handle(t.id)
			}
		case <-ctx.Done():
			return nil
		}
	}
}

func TestFire(t *testing.T) {
	t.Parallel()
	d := driver{system: &fake{make(chan timer, 100)}}
	f, err := d.fire(t.Context(), 100, 300*time.Millisecond)
	if err != nil {
		t.Fatal(err)
	}
	if f.Count != 30 || f.Early != 1 || f.Twice != 1 || f.Lost != 0 || f.P50 < 0 {
		t.Errorf("got %+v", f)
	}
}
