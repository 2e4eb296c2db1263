package main

import (
	"bytes"
	"context"
	"encoding/json"
	"math/rand/v2"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/carillon-timers/carillon/client"
)

// Percentiles against those of the sorted durations: never lower, and at most a bucket's width higher.
func TestHistogramQuantiles(t *testing.T) {
	t.Parallel()
	random := rand.New(rand.NewPCG(1, 2))
	var parts [3]histogram
	var all []time.Duration
	for i := range 30_000 {
		d := time.Duration(random.ExpFloat64() * float64(time.Millisecond))
		if i%1000 == 0 {
			d = time.Duration(random.Int64N(int64(time.Hour)))
		}
		parts[i%3].add(d)
		all = append(all, d)
	}
	var h histogram
	for i := range parts {
		h.merge(&parts[i])
	}
	slices.Sort(all)
	if h.count != uint64(len(all)) || h.min != all[0] || h.max != all[len(all)-1] {
		t.Fatalf("got %d, %v to %v, want %d, %v to %v", h.count, h.min, h.max, len(all), all[0], all[len(all)-1])
	}
	for _, q := range []float64{0, 0.5, 0.9, 0.99, 0.999, 1} {
		want := all[max(int(q*float64(len(all)))-1, 0)]
		got := h.quantile(q)
		if got < want || float64(got) > float64(want)*(1+1.0/histogramSteps)+1 {
			t.Errorf("quantile %v: got %v, want %v or a little more", q, got, want)
		}
	}
}

func TestHistogramBuckets(t *testing.T) {
	t.Parallel()
	last := -1
	for _, d := range []time.Duration{-5, 0, 1, 255, 256, 511, 512, 513, 514, 1023, 1024, 1e6, 1e9, 1<<62 + 3, 1<<63 - 1} {
		i := bucket(d)
		if i < last {
			t.Errorf("bucket(%d) = %d, which is lower than that of a shorter time", d, i)
		}
		last = i
		if top := bucketTop(i); top < d || bucket(top) != i {
			t.Errorf("bucketTop(%d) = %d (bucket %d) for %d", i, top, bucket(top), d)
		}
	}
	var empty histogram
	if got := empty.quantile(0.99); got != 0 {
		t.Errorf("quantile of nothing is %v", got)
	}
	one := histogram{}
	one.add(-3 * time.Millisecond)
	one.merge(&empty)
	if got := one.quantile(0.5); got != -3*time.Millisecond {
		t.Errorf("quantile of one is %v", got)
	}
}

func TestLargestGap(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		times []int64
		gap   time.Duration
		at    int64
	}{
		{nil, 0, 0},
		{[]int64{7}, 0, 0},
		{[]int64{7, 7}, 0, 0},
		{[]int64{1, 3, 10, 12, 19}, 7, 3},
	} {
		if gap, at := largestGap(test.times); gap != test.gap || at != test.at {
			t.Errorf("%v: got %d at %d, want %d at %d", test.times, gap, at, test.gap, test.at)
		}
	}
}

// What became of each timer: on time, late, early, twice, never, and accepted only after it was due.
func TestArrivals(t *testing.T) {
	t.Parallel()
	number := map[string]int64{"0": 0, "1": 1, "2": 2, "3": 3, "4": 4, "5": 5, "9": 9}
	a := newArrivals(6, func(id string) (int64, bool) { i, ok := number[id]; return i, ok }, &progress{})
	now := time.Now()
	ago := now.Add(-time.Second)
	for i := range int64(5) {
		a.accepted[i].Store(ago.Add(-time.Second).UnixNano())
	}
	a.accepted[5].Store(now.UnixNano())
	a.expect(5)
	for _, d := range []client.Delivery{
		{ID: "0", Due: ago, HandedOut: now},
		{ID: "1", Due: ago.Add(-time.Second / 2), HandedOut: now},
		{ID: "2", Due: now.Add(time.Hour), HandedOut: now.Add(time.Hour)}, // early by our clock
		{ID: "3", Due: ago, HandedOut: ago.Add(-1)},                       // early by the leader's
		{ID: "0", Due: ago, HandedOut: now},
		{ID: "5", Due: ago, HandedOut: now},
		{ID: "9", Due: ago, HandedOut: now},
		{ID: "other", Due: ago, HandedOut: now},
	} {
		if err := a.handle(t.Context(), d); err != nil {
			t.Fatal(err)
		}
	}
	select {
	case <-a.all:
	default:
		t.Error("all expected deliveries have come, but all is open")
	}
	m, f := a.sum("lateness", time.Time{})
	want := fires{Scheduled: 6, Delivered: 5, Early: 2, Duplicates: 1, Lost: 1, Behind: 1, Unacked: -1,
		Gap: f.Gap, GapAt: f.GapAt, WorstDue: stamp(ago.Add(-time.Second / 2))}
	if *f != want {
		t.Errorf("got  %+v\nwant %+v", *f, want)
	}
	if m.Count != 5 || m.Max < 1500 || m.P50 < 1000 {
		t.Errorf("measure %+v", m)
	}
}

// Each number is done once, in calls of at most the batch, and the count ends it.
func TestLoadCounts(t *testing.T) {
	t.Parallel()
	seen := make([]atomic.Int32, 1003)
	l := load{callers: 7, batch: 10, count: int64(len(seen)), limit: time.Minute}
	done := l.run(t.Context(), func(_ context.Context, first, n int64) int64 {
		if n > 10 {
			t.Errorf("a call of %d", n)
		}
		for i := first; i < first+n; i++ {
			seen[i].Add(1)
		}
		if first == 0 {
			return 4
		}
		return 0
	})
	for i := range seen {
		if seen[i].Load() != 1 {
			t.Fatalf("number %d was done %d times", i, seen[i].Load())
		}
	}
	if m := done.measure("x"); m.Count != 999 || m.Errors != 4 || done.calls.count != 101 {
		t.Errorf("got %+v in %d calls", m, done.calls.count)
	}
	ctx, cancel := context.WithCancel(t.Context())
	l = load{callers: 2, batch: 1, limit: time.Hour, rate: 1e-6}
	done = l.run(ctx, func(context.Context, int64, int64) int64 { cancel(); return 0 })
	if got := done.begun - done.skipped; got != 1 {
		t.Errorf("%d calls before the end of the context, want 1", got)
	}
}

func TestBenchTable(t *testing.T) {
	t.Parallel()
	var h histogram
	for i := range 1000 {
		h.add(time.Duration(i+1) * time.Millisecond)
	}
	r := benchReport{
		Bench: "fire", Prefix: "bench-x/", Measures: []measure{newMeasure("lateness", 1_234_567, 2, 10*time.Second, &h)},
		Fires: &fires{Early: 1, Duplicates: 2, Lost: 3, Behind: 4, Unacked: -1}, Kept: 5000, FirstError: "bad\nluck",
	}
	var out bytes.Buffer
	if err := r.print(&out, formatTable); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{
		"WHAT      TIMERS     SECONDS  PER SECOND  P50 MS  P99 MS  P99.9 MS  MAX MS  ERRORS\n",
		"lateness  1,234,567  10.00    123,456     500     992     1,000     1,000   2\n",
		"early               1\n", "lost                3\n", "unacked at the end  not known\n", "scheduled too late  4 (",
		"kept                5,000 timers, whose IDs start with bench-x/\n", "first error         \"bad\\nluck\"\n",
	} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("want %q in\n%s", want, out.String())
		}
	}
	if err := r.problem(); err == nil || !strings.Contains(err.Error(), "1 early, 3 lost") {
		t.Errorf("problem: %v", err)
	}
}

func TestNumbersAndBars(t *testing.T) {
	t.Parallel()
	for n, want := range map[int64]string{0: "0", 999: "999", 1000: "1,000", -1234567: "-1,234,567", -12: "-12"} {
		if got := thousands(n); got != want {
			t.Errorf("thousands(%d) = %s, want %s", n, got, want)
		}
	}
	for v, want := range map[float64]string{0.004: "0.00", 1.5: "1.50", 12.34: "12.3", 1234.5: "1,235"} {
		if got := millis(v); got != want {
			t.Errorf("millis(%v) = %s, want %s", v, got, want)
		}
	}
	got := progressLine("fire", 500, 1000, time.Second, 0)
	if want := "fire      [############............]  50%  500  500/s  1s"; got != want {
		t.Errorf("got  %s\nwant %s", got, want)
	}
	if got := progressLine("x", 5, 0, 3*time.Second, 2*time.Second); !strings.Contains(got, "100%") {
		t.Errorf("beyond its time: %s", got)
	}
}

func TestBenchFlags(t *testing.T) {
	t.Parallel()
	for _, test := range []struct{ args, errs string }{
		{"bench", "one of schedule, cancel, fire, failover, mixed is needed"},
		{"bench what", `"what" is not one of schedule`},
		{"bench schedule --callers 0", "--callers 0 is not valid: 1 to 10,000"},
		{"bench schedule --batch 1001", "--batch 1001 is not valid: 1 to 1,000"},
		{"bench schedule --payload -1", "--payload -1 is not valid"},
		{"bench fire --payload 65537", "--payload 65537 is not valid: 0 to 65,536"},
		{"bench schedule --callers x", `--callers "x" is not valid: a whole number (how many callers at once`},
		{"bench schedule --duration 5", `--duration "5" is not valid: a time such as 300ms, 5s or 1h (`},
		{"bench schedule --rate fast", `--rate "fast" is not valid: a number (`},
		{"bench schedule --count 10000001", "--count 10000001 is not valid: 0 to 10,000,000"},
		{"bench schedule --duration 2h", "--duration 2h0m0s is not valid"},
		{"bench schedule --rate NaN", "--rate NaN is not valid"},
		{"bench schedule --in 1s", "--in 1s is not valid: 1m to"},
		{"bench schedule extra", `"extra" is one argument too many`},
		{"bench cancel --count 0", "--count 0 is not valid"},
		{"bench fire --rate 0", "--rate 0 is not valid"},
		{"bench fire --rate 100000 --duration 30m", "at most 10,000,000 timers in all"},
		{"bench fire --burst 5 --drain 5", "only one can be given"},
		{"bench fire --drain -5", "--drain -5 is not valid"},
		{"bench fire --concurrency 0", "--concurrency 0 is not valid"},
		{"bench failover --ahead 1ms", "--ahead 1ms is not valid"},
		{"bench failover --wait 0s", "--wait 0s is not valid"},
		{"bench mixed --batch 2", "--batch 2 is not valid"},
	} {
		if r := carillon(t, "", strings.Fields(test.args)...); r.code != exitUsage || !strings.Contains(r.errs, test.errs) {
			t.Errorf("carillon %s: want exit code 2 and %q: %v", test.args, test.errs, r)
		}
	}
}

// Each load against a real node, small: nothing fails, nothing is left.
func TestBenchLoads(t *testing.T) {
	startNode(t)
	for _, test := range []struct {
		args     string
		measures []string
	}{
		{"schedule --callers 4 --count 60", []string{"schedule"}},
		{"schedule --callers 2 --batch 50 --count 120 --rate 2000", []string{"schedule"}},
		{"cancel --callers 4 --count 50", []string{"cancel"}},
		{"cancel --callers 2 --batch 40 --count 100", []string{"cancel"}},
		{"fire --rate 300 --duration 200ms --ahead 300ms", []string{"schedule", "lateness"}},
		{"fire --burst 200 --ahead 300ms", []string{"schedule", "burst"}},
		{"fire --drain 300 --concurrency 20", []string{"schedule", "drain", "drain with acks"}},
		{"failover --rate 300 --duration 200ms --ahead 300ms", []string{"schedule", "lateness"}},
		{"mixed --rate 400 --duration 500ms --ahead 150ms --wait 5s", []string{"schedule", "reschedule", "cancel", "get", "lateness"}},
	} {
		r := carillon(t, "", append(append([]string{"bench"}, strings.Fields(test.args)...), "-o", "json")...)
		var report benchReport
		if err := json.Unmarshal([]byte(r.out), &report); r.code != exitDone || err != nil {
			t.Errorf("bench %s: %v: %v", test.args, err, r)
			continue
		}
		var names []string
		for _, m := range report.Measures {
			names = append(names, m.Name)
			if m.Count == 0 || m.Rate <= 0 || m.Errors > 0 {
				t.Errorf("bench %s: %+v", test.args, m)
			}
		}
		if !slices.Equal(names, test.measures) {
			t.Errorf("bench %s: measures %v, want %v", test.args, names, test.measures)
		}
	}
	if r := carillon(t, "", "list", "-o", "json"); r.out != "[]\n" {
		t.Errorf("timers are left: %v", r)
	}
	r := carillon(t, "", "bench", "schedule", "--count", "30", "--batch", "10", "--callers", "1", "--keep")
	if r.code != exitDone || !strings.Contains(r.out, "30 timers, whose IDs start with bench-") {
		t.Errorf("--keep: %v", r)
	}
}

// An interrupted run says what it has measured and takes its timers away.
func TestBenchInterrupted(t *testing.T) {
	startNode(t)
	for _, args := range []string{
		"bench fire --rate 100 --duration 1m --ahead 500ms",
		"bench schedule --callers 200 --count 0 --duration 1m", // many calls are under way when it ends
	} {
		ctx, cancel := context.WithTimeout(t.Context(), 700*time.Millisecond)
		var out, errs bytes.Buffer
		code := run(ctx, strings.Fields(args), strings.NewReader(""), &out, &errs)
		cancel()
		if code != exitFailed || !strings.Contains(out.String(), "interrupted") || strings.Contains(out.String(), "first error") ||
			!strings.Contains(errs.String(), "interrupted") {
			t.Errorf("carillon %s: exit code %d\n%s%s", args, code, out.String(), errs.String())
		}
	}
	if r := carillon(t, "", "list", "-o", "json"); r.out != "[]\n" {
		t.Errorf("timers are left: %v", r)
	}
}

// A run that began no timer ends at once: its clean-up once cancelled IDs that never were for 30 seconds, as fast as it could,
// and then failed to count what was left.
func TestBenchNothingBegun(t *testing.T) {
	startNode(t)
	for _, args := range []string{"schedule", "fire", "mixed"} {
		began := time.Now()
		r := carillon(t, "", "bench", args, "--duration", "1ns")
		if took := time.Since(began); r.code != exitDone || strings.Contains(r.out, "first error") || took > cleanLimit/2 {
			t.Errorf("bench %s: after %v: %v", args, took, r)
		}
	}
}

// The number of an ID comes back from it, in the order of the numbers as long as they have nine digits.
func TestBenchIDs(t *testing.T) {
	t.Parallel()
	b := &bench{prefix: "bench-abcdefgh/"}
	for i, want := range map[int64]string{
		0: "bench-abcdefgh/000000000", 42: "bench-abcdefgh/000000042", 999_999_999: "bench-abcdefgh/999999999", 1_000_000_000: "bench-abcdefgh/1000000000",
	} {
		n, ok := b.number(b.id(i))
		if id := b.id(i); id != want || n != i || !ok {
			t.Errorf("%d: %s, and back %d %v", i, id, n, ok)
		}
	}
}
