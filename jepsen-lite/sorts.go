package main

import (
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"
)

// maxAttempts is how often a Doomed timer is tried.
const maxAttempts = 3

// parent is the ID of the repeat that a due time with a timer of its own came from ("{ID}@MILLIS"), or the ID itself.
func parent(id string) string {
	name, _, ok := strings.Cut(id, "}@")
	if ok && strings.HasPrefix(name, "{") {
		return name[1:]
	}
	return id
}

// judgeSort judges a timer that is not a plain one:
//
//	a repeat rings for due times of its grid only, each not before its time, each until it was acked. Each: none is missed. Counted and
//	Delayed: exactly so many; Delayed: each its period after the ack of the one before. Counted catches up with the newest due time
//	only, also with one that was out when its leader died: the next leader does not know of it, and neither acks nor counts it.
//	a Doomed one is tried no more often than allowed, is a dead letter then, once, and rings again when it was redriven
//	a timer that is at most once arrives once or not at all
func (s *story) judgeSort(r *Report) {
	fail := func(promise, format string, args ...any) {
		r.Violations = append(r.Violations, Violation{promise, s.id, fmt.Sprintf(format, args...), s.all})
	}
	if s.schedule.Outcome == Failed && len(s.deliveries) > 0 {
		fail("P3 durable", "was refused and is delivered all the same")
	}
	for _, d := range s.deliveries {
		if received := d.Start / int64(time.Millisecond); d.HandedOut < d.Due || received < d.Due {
			fail("P2 never early", "due %s, handed out %s, received %s", clock(d.Due), clock(d.HandedOut), clock(received))
		}
	}
	s.judgeFences(fail)
	switch s.schedule.Sort {
	case Doomed:
		r.Letters += len(s.letters)
		s.judgeDoomed(fail)
	case Once:
		r.Onces++
		if len(s.deliveries) == 0 && s.schedule.Outcome == OK {
			r.Unrung++
		}
		if len(s.deliveries) > 1 {
			fail("P10 at most once", "arrived %d times", len(s.deliveries))
		}
	default:
		acked := s.ackedTicks()
		r.Ticks += len(acked)
		s.judgeTicks(acked, fail)
	}
}

// judgeFences judges the fence of each timer of the story: with Each, every due time is one.
func (s *story) judgeFences(fail failFunc) {
	byID := map[string][]Event{}
	for _, d := range s.deliveries {
		byID[d.ID] = append(byID[d.ID], d)
	}
	for _, id := range slices.Sorted(maps.Keys(byID)) {
		one := story{deliveries: byID[id]}
		one.judgeFence(fail)
	}
}

// ackedTicks are the due times that were acked, each with the first delivery that was.
func (s *story) ackedTicks() map[int64]Event {
	acked := map[int64]Event{}
	for _, d := range s.deliveries {
		if first, ok := acked[d.Due]; d.acked() && (!ok || d.End < first.End) {
			acked[d.Due] = d
		}
	}
	return acked
}

// replaced are the due times of a Counted repeat that another leader may have gone on from by the misfire policy.
func (s *story) replaced() map[int64]bool {
	out := map[int64]bool{}
	for i := 1; i < len(s.deliveries) && s.schedule.Sort == Counted; i++ {
		if a, b := s.deliveries[i-1], s.deliveries[i]; a.Epoch < b.Epoch && a.Due < b.Due {
			out[a.Due] = true
		}
	}
	return out
}

// ticks is how many due times were delivered.
func (s *story) ticks() int {
	ticks := map[int64]bool{}
	for _, d := range s.deliveries {
		ticks[d.Due] = true
	}
	return len(ticks)
}

func (s *story) judgeTicks(acked map[int64]Event, fail failFunc) {
	first, every, replaced := s.schedule.Due, s.schedule.Every, s.replaced()
	for _, d := range s.deliveries {
		if _, ok := acked[d.Due]; !ok && !replaced[d.Due] {
			fail("P3 at least once", "%s was not delivered again until it was acked", clock(d.Due))
		}
		if off := d.Due - first; s.schedule.Sort != Delayed && (off < 0 || off%every != 0 || s.schedule.Last > 0 && d.Due > s.schedule.Last) {
			fail("P5 one timer, one state", "rang for %s, which is not on its grid", clock(d.Due))
		}
		if child, at, ok := strings.Cut(d.ID, "}@"); ok && at != strconv.FormatInt(d.Due, 10) {
			fail("P5 one timer, one state", "%s}@%s rang for %s", child, at, clock(d.Due))
		}
	}
	if s.schedule.Outcome != OK {
		return
	}
	switch s.schedule.Sort {
	case Each:
		for at := first; at <= s.schedule.Last; at += every {
			if _, ok := acked[at]; !ok {
				fail("P3 at least once", "never rang for %s", clock(at))
			}
		}
	case Counted:
		if n := s.ticks(); n < s.schedule.Count || n > s.schedule.Count+len(replaced) {
			fail("P3 at least once", "rang for %d due times, not %d; %d of them may have been out when a leader died", n, s.schedule.Count, len(replaced))
		}
	case Delayed:
		if len(acked) != s.schedule.Count {
			fail("P3 at least once", "rang for %d due times, not %d", len(acked), s.schedule.Count)
		}
	}
	if s.schedule.Sort == Delayed {
		ticks := slices.Sorted(maps.Keys(acked))
		for i := 1; i < len(ticks); i++ {
			if before := acked[ticks[i-1]].Start / int64(time.Millisecond); ticks[i] < before+every {
				fail("P2 never early", "rang for %s, less than %d ms after %s was answered", clock(ticks[i]), every, clock(before))
			}
		}
	}
}

func (s *story) judgeDoomed(fail failFunc) {
	tried := map[int]bool{}
	rung := false
	for _, d := range s.deliveries {
		tried[d.Attempt] = true
		rung = rung || d.acked()
		if d.Attempt > maxAttempts {
			fail("dead letters", "attempt %d, %d are allowed", d.Attempt, maxAttempts)
		}
	}
	if s.schedule.Outcome != OK && len(s.deliveries) == 0 {
		return
	}
	if len(s.letters) != 1 {
		fail("dead letters", "is %d dead letters, not 1", len(s.letters))
		return
	}
	if l := s.letters[0]; l.Attempt != maxAttempts || l.Due != s.schedule.Due {
		fail("dead letters", "the dead letter tells of %d attempts and of %s", l.Attempt, clock(l.Due))
	}
	if !tried[1] {
		fail("dead letters", "died without a first attempt")
	}
	if s.redriven && !rung {
		fail("P3 at least once", "was redriven and never delivered")
	}
}
