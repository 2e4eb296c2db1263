package raftfsm

import (
	"bytes"
	"fmt"
	"math"
	"math/rand/v2"
	"os"
	"strings"
	"testing"
	"unsafe"

	carillonv1 "github.com/carillon-timers/carillon/proto/carillon/v1"
	logv1 "github.com/carillon-timers/carillon/proto/carillonlog/v1"
)

// What few timers have must cost the others nothing: neither in the record, nor in the blob, nor in the state hash, so a
// snapshot of the first version is read, and gives the hash that it gave then.
func TestPlainTimersTakeNoRoom(t *testing.T) {
	t.Parallel()
	if got := unsafe.Sizeof(page{}) / pageSize; got != 8 {
		t.Errorf("a slot has %d bytes", got)
	}
	c := body{id: "order-1", due: 5000, created: 4000, payload: []byte("hello")}
	if got, want := blobSize(c.inner(&record{nextDue: 5000})), 4+1+2+len("order-1")+3+2+2+len("hello"); got != want {
		t.Errorf("a blob has %d bytes, want %d", got, want)
	}
	first, err := os.ReadFile("testdata/first.snapshot")
	if err != nil {
		t.Fatal(err)
	}
	r := newReplica(t, Options{})
	if err := r.f.Restore(bytes.NewReader(first)); err != nil {
		t.Fatal(err)
	}
	r.next = 5
	r.check()
	if got := r.f.Hash(); got != 0x711f886e65b7ce91 {
		t.Errorf("the hash of the first snapshot is %016x", got)
	}
	r.one(3, 3000, &Command{Kind: &logv1.Command_Pause{Pause: &logv1.Pause{Id: "timer-00"}}})
	r.one(3, 3000, &Command{Kind: &logv1.Command_Resume{Resume: &logv1.Resume{Id: "timer-00"}}})
	if p := r.f.s.table.profiles[r.f.s.table.at(r.slot("timer-00")).profile]; p.extra || p.parked {
		t.Errorf("a timer that was paused and resumed is not plain: %+v", p)
	}
}

// A limit that is reached is an error that names the field, the value and the limit.
func TestExtraIsChecked(t *testing.T) {
	t.Parallel()
	every := func(change func(r *logv1.Repeat)) *logv1.Extra {
		x := &logv1.Extra{Repeat: &logv1.Repeat{EveryMs: 100, Misfire: misfireOne, Overlap: overlapSkip, TickMs: 2000}}
		change(x.Repeat)
		return x
	}
	long := strings.Repeat("x", 300)
	for want, x := range map[string]*logv1.Extra{
		"extra: it has fields that a schedule cannot set":                                  {Paused: true},
		"expiry: 2000 is not after the due time 2000":                                      {ExpiryMs: 2000},
		"expiry: more than 3155760000000 ms ahead":                                         {ExpiryMs: math.MaxInt64},
		"window: 86400001 ms; 0 to 86400000 are allowed":                                   {WindowMs: MaxWindowMillis + 1},
		"webhook: its queue does not begin with NUL":                                       {Webhook: "https://example.com"},
		"webhook: 2049 bytes; at most 2048 of UTF-8 are allowed":                           {Webhook: strings.Repeat("x", 2049)},
		"repeat.every: 0 ms; 1 to 3155760000000 are allowed":                               every(func(r *logv1.Repeat) { r.EveryMs = 0 }),
		"repeat.cron: not together with every":                                             every(func(r *logv1.Repeat) { r.Cron = "* * * * *" }),
		"repeat.cron: 300 bytes; at most 256 are allowed":                                  every(func(r *logv1.Repeat) { r.EveryMs, r.Cron = 0, long }),
		"repeat.zone: 300 bytes; at most 256 are allowed":                                  every(func(r *logv1.Repeat) { r.Zone = long }),
		"repeat.fixed_delay: only with every":                                              every(func(r *logv1.Repeat) { r.EveryMs, r.Cron, r.FixedDelay = 0, "* * * * *", true }),
		"repeat.start: 9223372036854775807 is not in the years 1 to 9999":                  every(func(r *logv1.Repeat) { r.StartMs = math.MaxInt64 }),
		"repeat.end: 9223372036854775807 is not in the years 1 to 9999":                    every(func(r *logv1.Repeat) { r.HasEnd, r.EndMs = true, math.MaxInt64 }),
		"repeat.end: 1999 is before the first due time 2000":                               every(func(r *logv1.Repeat) { r.HasEnd, r.EndMs = true, 1999 }),
		"repeat.max_count: -1; at least 0 is allowed":                                      every(func(r *logv1.Repeat) { r.MaxCount = -1 }),
		"repeat.misfire: 4 is not a policy":                                                every(func(r *logv1.Repeat) { r.Misfire = 4 }),
		"repeat.max_catch_up: 1001; 0 to 1000 are allowed":                                 every(func(r *logv1.Repeat) { r.MaxCatchUp = 1001 }),
		"repeat.max_lateness: -1 ms; 0 to 3155760000000 are allowed":                       every(func(r *logv1.Repeat) { r.MaxLateMs = -1 }),
		"repeat.overlap: 0 is not a policy":                                                every(func(r *logv1.Repeat) { r.Overlap = 0 }),
		"repeat.overlap: allow needs a fixed rate":                                         every(func(r *logv1.Repeat) { r.Overlap, r.FixedDelay = overlapAllow, true }),
		"repeat: it has fields that a schedule cannot set":                                 every(func(r *logv1.Repeat) { r.Fired = 1 }),
		"repeat: its due time 2001 is after 2000, or before the year 1":                    every(func(r *logv1.Repeat) { r.TickMs = 2001 }),
		"retry.max_attempts: 2; an at-most-once timer has 1":                               {AtMostOnce: true},
		"retry.max_attempts: 1000001; 0 to 1000000 are allowed":                            {ExpiryMs: 3000},
		"id: with a due time behind it it has 268 bytes; at most 255 are allowed":          every(func(r *logv1.Repeat) { r.Overlap = overlapAllow }),
		"id: braces without a hash tag: a due time could not be a timer on the same shard": every(func(r *logv1.Repeat) { r.Overlap = overlapAllow }),
	} {
		c := schedule("a", 2000).GetSchedule()
		c.Extra, c.Retry = x, &logv1.RetryPolicy{}
		switch {
		case strings.Contains(want, "1000001"):
			c.Retry.MaxAttempts = MaxAttempts + 1
		case x.AtMostOnce:
			c.Retry.MaxAttempts = 2
		case strings.Contains(want, "268 bytes"):
			c.Id = strings.Repeat("i", 250)
		case strings.Contains(want, "braces"):
			c.Id = "a}b"
		}
		r := newReplica(t, Options{})
		a := r.apply(&logv1.Entry{Epoch: 1, ClockMs: 1000, Commands: []*Command{scheduleOf(c)}})
		if got := a.Results[0]; got.Code != Invalid || got.Detail != want {
			t.Errorf("got %s, want %s", resultText(got), want)
		}
	}
}

// A child must lie on the shard of its parent, by the rule of the public contract.
func TestChildrenShareTheShard(t *testing.T) {
	t.Parallel()
	rng := rand.New(rand.NewPCG(5, 1))
	for range 20_000 {
		id := ""
		for range 1 + rng.IntN(8) {
			id += string("ab{}@"[rng.IntN(5)])
		}
		if hashTag(id) != carillonv1.HashTag(id) {
			t.Fatalf("the hash tag of %q is %q, the contract says %q", id, hashTag(id), carillonv1.HashTag(id))
		}
		child, refused := childID(id, 1234)
		if refused == nil && carillonv1.ShardOf("", child, 256) != carillonv1.ShardOf("", id, 256) {
			t.Fatalf("%q and its child %q are on different shards", id, child)
		}
		if refused != nil && !strings.ContainsAny(id, "{}") {
			t.Fatalf("%q has no child: %s", id, refused.Detail)
		}
	}
}

// Timers with a window lie evenly, also when one Stamp places them all, and beside timers that are where they are.
func TestWindowIsFilledEvenly(t *testing.T) {
	t.Parallel()
	r := newReplica(t, Options{})
	r.apply(begin(1, 1000))
	for i := range 100 {
		for n := range i % 3 {
			r.apply(&logv1.Entry{Epoch: 1, ClockMs: 1000, Commands: []*Command{schedule(fmt.Sprintf("there-%d-%d", i, n), int64(100_000+i*1000))}})
		}
	}
	var cmds []*Command
	for i := range 900 {
		c := schedule(fmt.Sprintf("spread-%d", i), 100_000).GetSchedule()
		c.Extra = &logv1.Extra{WindowMs: 99_999}
		cmds = append(cmds, scheduleOf(c))
	}
	e, _ := r.stamped(1, 2000, cmds[:500]...)
	r.apply(e)
	e, _ = r.stamped(1, 2000, cmds[500:]...)
	r.apply(e)
	rows, err := r.f.Forecast(ForecastQuery{From: 100_000, Step: 1000, Steps: 100})
	if err != nil {
		t.Fatal(err)
	}
	for second, n := range rows[0].Counts {
		if n < 9 || n > 10 {
			t.Errorf("second %d has %d timers: %v", second, n, rows[0].Counts)
		}
	}
	if rows[0].Before != 0 || rows[0].After != 0 {
		t.Errorf("%d before, %d behind the window", rows[0].Before, rows[0].After)
	}
}

// The second with the fewest timers is found as by looking at each.
func TestLeastLoadedSecond(t *testing.T) {
	t.Parallel()
	rng := rand.New(rand.NewPCG(6, 1))
	l := load{seconds: map[int64]uint32{}, minutes: map[int64]loadMinute{}}
	var due []int64
	for range 20_000 {
		if len(due) > 1200 {
			i := rng.IntN(len(due))
			l.add(due[i], -1)
			due[i] = due[len(due)-1]
			due = due[:len(due)-1]
		} else {
			due = append(due, rng.Int64N(500_000)-100_000)
			l.add(due[len(due)-1], 1)
		}
		first := rng.Int64N(300) - 100
		last := first + rng.Int64N(300)
		start := first + rng.Int64N(last-first+1)
		want, count := start, l.seconds[start]
		for _, span := range [2][2]int64{{start, last}, {first, start - 1}} {
			for at := span[0]; at <= span[1]; at++ {
				if l.seconds[at] < count {
					want, count = at, l.seconds[at]
				}
			}
		}
		if got := l.least(first, last, start); got != want {
			t.Fatalf("from %d to %d, beginning at %d: got %d with %d, want %d with %d", first, last, start, got, l.seconds[got], want, count)
		}
	}
}

// The rows with names are the first, and nothing is lost of the rest; a change meanwhile changes nothing.
func TestForecastRows(t *testing.T) {
	t.Parallel()
	r := newReplica(t, Options{})
	want := map[string]int64{}
	e := &logv1.Entry{Epoch: 1, ClockMs: 1}
	for i := range 300 {
		c := schedule(fmt.Sprint("t", i), int64(i)).GetSchedule()
		c.Queue = fmt.Sprintf("q%02d", i*7%30)
		want[c.Queue]++
		e.Commands = append(e.Commands, scheduleOf(c))
	}
	r.apply(e)
	rows, err := r.f.Forecast(ForecastQuery{From: 100, Step: 50, Steps: 2, Rows: 10})
	if err != nil || len(rows) != 10+1 && len(rows) != 10 {
		t.Fatalf("%d rows, %v", len(rows), err)
	}
	var sum int64
	for i, row := range rows {
		n := row.Before + row.After + row.Counts[0] + row.Counts[1]
		sum += n
		if row.Queue != "" && (row.Queue != fmt.Sprintf("q%02d", i) || n != want[row.Queue]) {
			t.Errorf("row %d: %+v, want %d", i, row, want[row.Queue])
		}
	}
	if sum != 300 || rows[len(rows)-1].Queue != "" {
		t.Errorf("%d timers, the last row is %q", sum, rows[len(rows)-1].Queue)
	}
	for field, q := range map[string]ForecastQuery{
		"step":  {Steps: 1},
		"steps": {Step: 1, Steps: MaxForecastSteps + 1},
		"from":  {Step: 1, Steps: 1, From: math.MaxInt64},
	} {
		if _, err := r.f.Forecast(q); err == nil || !strings.HasPrefix(err.Error(), field+":") {
			t.Errorf("%s: %v", field, err)
		}
	}
}

// The last part of a window may be a millisecond: it is no second.
func TestWindowEndsWithinASecond(t *testing.T) {
	t.Parallel()
	for _, window := range []int64{1000, 1500, 10_000, -1000} {
		start := int64(100_700)
		if window < 0 {
			start, window = 100_000, -window
		}
		r := newReplica(t, Options{})
		var cmds []*Command
		for i := range 1000 {
			c := schedule(fmt.Sprintf("spread-%d", i), start).GetSchedule()
			c.Extra = &logv1.Extra{WindowMs: window}
			cmds = append(cmds, scheduleOf(c))
		}
		e, _ := r.stamped(1, 2000, cmds...)
		r.apply(e)
		rows, err := r.f.Forecast(ForecastQuery{From: start, Step: 100, Steps: int(window/100) + 1})
		if err != nil {
			t.Fatal(err)
		}
		counts, fair := rows[0].Counts, 1000*100/window
		for i, n := range counts[:len(counts)-1] {
			if n > fair*2+8 || n < fair/3-4 {
				t.Errorf("window %d: the part %d of 100 ms has %d timers, fair is %d", window, i, n, fair)
			}
		}
		if last := counts[len(counts)-1]; last > 12 {
			t.Errorf("window %d: its last millisecond has %d timers", window, last)
		}
	}
}
