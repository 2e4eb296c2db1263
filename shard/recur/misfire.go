package recur

import "slices"

// Misfire says what becomes of due times that passed while nobody could fire.
type Misfire uint8

// The policies.
const (
	// MisfireOne fires once for all that were missed: the newest of them.
	MisfireOne Misfire = iota
	// MisfireNone fires nothing that was missed.
	MisfireNone
	// MisfireAll fires each, but no more than the newest Policy.Max.
	MisfireAll
)

// Limits of a catching up.
const (
	// MaxCatchUp is the highest Policy.Max.
	MaxCatchUp = 1000
	// OnTimeMillis is how late a due time may be taken up and still not be missed under MisfireNone, unless the policy
	// has its own maximum: no machine is on time to the instant.
	OnTimeMillis = 1000
	// maxCounted bounds the due times of a cron rule that Turn counts, for Turn.Dropped.
	maxCounted = 2 * MaxCatchUp
)

// Policy is how a series catches up.
type Policy struct {
	Misfire Misfire
	// Max is the most due times that MisfireAll fires in one turn: 1 to MaxCatchUp; less is taken for 1, more for
	// MaxCatchUp.
	Max int
	// MaxLateMillis is how late a due time may be taken up; what is later is dropped. 0 means any lateness, and under
	// MisfireNone OnTimeMillis.
	MaxLateMillis int64
}

// Armed is what a timer waits for and what time it is, in Unix milliseconds.
type Armed struct{ Due, Now int64 }

// Turn is what follows from a due time that has come.
type Turn struct {
	// Fire are the due times to fire now, oldest first.
	Fire []int64
	// Dropped counts the due times that passed and are not fired; of a cron rule no more
	// than the first 2,000 that passed are counted.
	Dropped int64
	// Next is the first due time after now, on the same grid as ever; it counts only unless Ended.
	Next int64
	// Ended: nothing is due any more.
	Ended bool
}

// Turn says what to fire of the due times from a.Due up to a.Now, and what to wait for next. If a.Due is still to come,
// nothing is fired and Next is a.Due. The first due time of a turn need not be on the grid: a timer that was moved by
// hand fires where it was put.
func (s Series) Turn(p Policy, a Armed) Turn {
	turn := s.CatchUp(p, a)
	if a.Due, a.Now = within(a.Due), within(a.Now); a.Due <= a.Now {
		turn.Dropped = s.count(a) - int64(len(turn.Fire))
	}
	return turn
}

// CatchUp is Turn without Dropped, which takes much longer to count than the rest: mostly one due time has passed, and that
// costs one Next.
func (s Series) CatchUp(p Policy, a Armed) Turn {
	a.Due, a.Now = within(a.Due), within(a.Now)
	if a.Due > a.Now {
		return Turn{Next: a.Due}
	}
	limit, most := p.MaxLateMillis, 1
	switch p.Misfire {
	case MisfireNone:
		if limit <= 0 {
			limit = OnTimeMillis
		}
	case MisfireAll:
		most = min(max(p.Max, 1), MaxCatchUp)
	}
	oldest := a.Due
	if limit > 0 {
		oldest = max(oldest, a.Now-min(limit, MaxMillis-MinMillis))
	}
	next, ok := s.Next(a.Due)
	if ok && next <= a.Now {
		next, ok = s.Next(a.Now)
		return Turn{Fire: s.newest(a, oldest, most), Next: next, Ended: !ok}
	}
	turn := Turn{Ended: !ok}
	if ok {
		turn.Next = next
	}
	if a.Due >= oldest {
		turn.Fire = []int64{a.Due}
	}
	return turn
}

// newest returns the newest due times between oldest and now, at most so many, oldest first.
func (s Series) newest(a Armed, oldest int64, most int) []int64 {
	var list []int64
	step := int64(1)
	for now := a.Now; len(list) < most && now >= oldest; {
		due, ok := s.last(max(oldest, a.Due+1), now, step)
		if !ok {
			break
		}
		step = now - due + 1 // the one before may be as far away
		list, now = append(list, due), due-1
	}
	if len(list) < most && a.Due >= oldest {
		list = append(list, a.Due)
	}
	slices.Reverse(list)
	return list
}

// within brings a time into the bounds.
func within(t int64) int64 { return min(max(t, MinMillis), MaxMillis) }

// last returns the last due time of the grid from low to high, both included; step is a guess how far from high it is. It
// only needs Next, which grows with its argument: it goes back in ever longer steps, then forward to the last one.
func (s Series) last(low, high, step int64) (int64, bool) {
	if low > high {
		return 0, false
	}
	above, found := high, int64(0) // what comes after above is over high
	for ; ; step *= 2 {
		at := max(high-step, low-1)
		due, ok := s.Next(at)
		if ok && due <= high {
			found = due
			break
		}
		if above = at; at < low {
			return 0, false
		}
	}
	for tries := 0; above-found > 1; tries++ {
		at := found
		if tries >= maxForward {
			at += (above - found) / 2
		}
		due, ok := s.Next(at)
		switch {
		case ok && due <= high:
			found = due
		case at == found:
			return found, true
		default:
			above = at
		}
	}
	return found, true
}

// maxForward is how often last tries whether what it found is the last, before it halves what is between.
const maxForward = 3

// count counts the due times from a.Due to a.Now.
func (s Series) count(a Armed) int64 {
	n := int64(1)
	due, ok := s.Next(a.Due)
	if period := s.Rule.period; period > 0 {
		if end := min(a.Now, s.End); ok && due <= end {
			n += (end-due)/period + 1
		}
		return n
	}
	for ; ok && due <= a.Now && n < maxCounted; n++ {
		due, ok = s.Next(due)
	}
	return n
}
