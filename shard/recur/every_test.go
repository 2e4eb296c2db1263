package recur

import (
	"math"
	"reflect"
	"slices"
	"testing"
)

func every(t testing.TB, period int64) *Rule {
	t.Helper()
	r, err := Every(period, "")
	if err != nil {
		t.Fatal(err)
	}
	return r
}

func TestEvery(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		period, start, end, after, want int64
		ok                              bool
	}{
		{period: 1500, start: 1000, end: MaxMillis, after: 0, want: 1000, ok: true},
		{period: 1500, start: 1000, end: MaxMillis, after: 999, want: 1000, ok: true},
		{period: 1500, start: 1000, end: MaxMillis, after: 1000, want: 2500, ok: true},
		{period: 1500, start: 1000, end: MaxMillis, after: 2499, want: 2500, ok: true},
		{period: 1500, start: -1000, end: MaxMillis, after: -2000, want: -1000, ok: true},
		{period: 1500, start: -1000, end: MaxMillis, after: -1, want: 500, ok: true},
		{period: 1, start: 0, end: MaxMillis, after: 123, want: 124, ok: true},
		{period: 10, start: 0, end: 30, after: 20, want: 30, ok: true},
		{period: 10, start: 0, end: 30, after: 30},
		{period: 10, start: 40, end: 30, after: 0},
		{period: MaxPeriodMillis, start: MaxMillis - 1, end: MaxMillis, after: MaxMillis - 1},
		{period: 1, start: math.MinInt64, end: math.MaxInt64, after: math.MinInt64, want: MinMillis, ok: true},
		{period: MaxPeriodMillis, start: math.MinInt64, end: math.MaxInt64, after: math.MaxInt64},
		{period: 1, start: math.MaxInt64, end: math.MinInt64, after: 0},
		{period: 7, start: 0, end: math.MaxInt64, after: MaxMillis - 1},
	} {
		s := Series{every(t, c.period), c.start, c.end}
		if got, ok := s.Next(c.after); got != c.want && ok || ok != c.ok {
			t.Errorf("%+v: got %d, %v", c, got, ok)
		}
	}
	for _, period := range []int64{0, -1, MaxPeriodMillis + 1, math.MinInt64, math.MaxInt64} {
		if _, err := Every(period, ""); err == nil {
			t.Errorf("a period of %d ms is accepted", period)
		}
	}
	// A period of 1,500 ms is not 1 s, also in a cron expression.
	if got, want := (Series{series(t, "@every 1500ms", "Asia/Tokyo").Rule, 500, MaxMillis}).list(500, 3), []string{
		"1970-01-01T00:00:02Z", "1970-01-01T00:00:03.5Z", "1970-01-01T00:00:05Z"}; !slices.Equal(got, want) {
		t.Errorf("@every: %v", got)
	}
}

func TestTurn(t *testing.T) {
	t.Parallel()
	const s, m = 1000, 60_000
	grid := Series{every(t, 15*s), 0, MaxMillis}
	for _, c := range []struct {
		name   string
		policy Policy
		armed  Armed
		want   Turn
	}{
		{"on time", Policy{}, Armed{30 * s, 30*s + 1}, Turn{Fire: []int64{30 * s}, Next: 45 * s}},
		{"on time, none", Policy{Misfire: MisfireNone}, Armed{30 * s, 30*s + 1000}, Turn{Fire: []int64{30 * s}, Next: 45 * s}},
		{"late, none", Policy{Misfire: MisfireNone}, Armed{30 * s, 30*s + 1001}, Turn{Dropped: 1, Next: 45 * s}},
		{"early", Policy{}, Armed{30 * s, 29 * s}, Turn{Next: 30 * s}},
		{"down 5 min, none", Policy{Misfire: MisfireNone}, Armed{0, 5*m + 7*s}, Turn{Dropped: 21, Next: 5*m + 15*s}},
		{"down 5 min, one", Policy{}, Armed{0, 5*m + 7*s}, Turn{Fire: []int64{5 * m}, Dropped: 20, Next: 5*m + 15*s}},
		{"down 5 min, all", Policy{Misfire: MisfireAll, Max: 3}, Armed{0, 5*m + 7*s},
			Turn{Fire: []int64{5*m - 30*s, 5*m - 15*s, 5 * m}, Dropped: 18, Next: 5*m + 15*s}},
		{"down 30 s, all", Policy{Misfire: MisfireAll, Max: 10}, Armed{0, 30 * s}, Turn{Fire: []int64{0, 15 * s, 30 * s}, Next: 45 * s}},
		{"none with its own lateness", Policy{Misfire: MisfireNone, MaxLateMillis: 10 * s}, Armed{0, 5*m + 7*s},
			Turn{Fire: []int64{5 * m}, Dropped: 20, Next: 5*m + 15*s}},
		{"one, too late", Policy{MaxLateMillis: 5 * s}, Armed{0, 5*m + 7*s}, Turn{Dropped: 21, Next: 5*m + 15*s}},
		{"all, some too late", Policy{Misfire: MisfireAll, Max: 10, MaxLateMillis: 30 * s}, Armed{0, 5*m + 7*s},
			Turn{Fire: []int64{5*m - 15*s, 5 * m}, Dropped: 19, Next: 5*m + 15*s}},
		{"moved by hand", Policy{Misfire: MisfireAll, Max: 10}, Armed{7 * s, 31 * s}, Turn{Fire: []int64{7 * s, 15 * s, 30 * s}, Next: 45 * s}},
		{"lateness beyond all bounds", Policy{MaxLateMillis: math.MaxInt64}, Armed{0, 7 * s}, Turn{Fire: []int64{0}, Next: 15 * s}},
		{"max of nothing", Policy{Misfire: MisfireAll}, Armed{0, 20 * s}, Turn{Fire: []int64{15 * s}, Dropped: 1, Next: 30 * s}},
	} {
		if got := grid.Turn(c.policy, c.armed); !reflect.DeepEqual(got, c.want) {
			t.Errorf("%s: got %+v, want %+v", c.name, got, c.want)
		}
	}
	ending := Series{every(t, 15*s), 0, 40 * s}
	if got := ending.Turn(Policy{}, Armed{30 * s, 5 * m}); !reflect.DeepEqual(got, Turn{Fire: []int64{30 * s}, Ended: true}) {
		t.Errorf("at its end: %+v", got)
	}
	for _, a := range []Armed{{math.MinInt64, math.MaxInt64}, {math.MaxInt64, math.MinInt64}, {math.MaxInt64, math.MaxInt64}} {
		for _, misfire := range []Misfire{MisfireOne, MisfireNone, MisfireAll} {
			grid.Turn(Policy{Misfire: misfire, Max: math.MaxInt, MaxLateMillis: math.MaxInt64}, a)
			series(t, "* * * * *", "Europe/Berlin").Turn(Policy{Misfire: misfire, Max: math.MaxInt}, a)
		}
	}
}

// Through a night of a clock change, after a stop: what is fired are due times of the rule, and the grid goes on.
func TestTurnOfCron(t *testing.T) {
	t.Parallel()
	s := series(t, "*/10 2 * * *", "America/New_York")
	armed := Armed{millis(t, "2026-03-07T07:40:00Z"), millis(t, "2026-03-09T06:15:00Z")}
	got := s.Turn(Policy{Misfire: MisfireAll, Max: 4}, armed)
	want := Turn{Fire: []int64{
		millis(t, "2026-03-07T07:50:00Z"), millis(t, "2026-03-08T07:00:00Z"),
		millis(t, "2026-03-09T06:00:00Z"), millis(t, "2026-03-09T06:10:00Z"),
	}, Dropped: 1, Next: millis(t, "2026-03-09T06:20:00Z")}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("got %+v, want %+v", got, want)
	}
	leap := series(t, "0 0 29 2 *", "")
	got = leap.Turn(Policy{}, Armed{millis(t, "2004-02-29T00:00:00Z"), millis(t, "2103-01-01T00:00:00Z")})
	want = Turn{Fire: []int64{millis(t, "2096-02-29T00:00:00Z")}, Dropped: 23, Next: millis(t, "2104-02-29T00:00:00Z")}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("leap days: got %+v, want %+v", got, want)
	}
}
