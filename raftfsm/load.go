package raftfsm

// load counts the armed timers by the second in which they are next due, so that a window can be filled evenly. It is nil until
// the first timer with a window asks; from then on it is exact. It is the leader's alone: what it says goes into the log.
type load struct {
	// seconds has the counts that are not 0; minutes what is known of 64 seconds together.
	seconds map[int64]uint32
	minutes map[int64]loadMinute
	// placed are the due times that one call of Stamp has placed: they count for those behind them.
	placed []int64
}

// loadMinute is about 64 seconds.
type loadMinute struct {
	// used is how many of the seconds have a timer.
	used uint8
	// least is the smallest count of its seconds, 0 if that is not known or one of them has none.
	least uint32
}

const (
	loadBits   = 6
	loadLength = 1 << loadBits
)

func secondOf(millis int64) int64 {
	s := millis / 1000
	if millis%1000 < 0 {
		s--
	}
	return s
}

func (l *load) add(due int64, n int) {
	if l.seconds == nil {
		return
	}
	at := secondOf(due)
	count := l.seconds[at]
	m := l.minutes[at>>loadBits]
	now := uint32(int(count) + n)
	switch {
	case count == 0:
		m.used++
	case now == 0:
		m.used--
	}
	if count <= m.least {
		m.least = 0
	} else if now < m.least {
		m.least = now
	}
	if now == 0 {
		delete(l.seconds, at)
	} else {
		l.seconds[at] = now
	}
	if m.used == 0 {
		delete(l.minutes, at>>loadBits)
	} else {
		l.minutes[at>>loadBits] = m
	}
}

// least is the second from first to last that has the fewest timers; of equal ones the first from start on, going round.
func (l *load) least(first, last, start int64) int64 {
	best, count := l.leastOf(start, last, start, ^uint32(0))
	best, _ = l.leastOf(first, start-1, best, count)
	return best
}

// leastOf looks for a count below the given one from first to last.
func (l *load) leastOf(first, last, best int64, count uint32) (int64, uint32) {
	for at := first; at <= last && count > 0; {
		begin := at >> loadBits << loadBits
		whole := at == begin && begin+loadLength-1 <= last
		if whole && l.leastIn(at>>loadBits) >= count {
			at += loadLength
			continue
		}
		for end := min(begin+loadLength-1, last); at <= end && count > 0; at++ {
			if n := l.seconds[at]; n < count {
				best, count = at, n
			}
		}
	}
	return best, count
}

// leastIn is the smallest count of the 64 seconds.
func (l *load) leastIn(minute int64) uint32 {
	m := l.minutes[minute]
	if m.used < loadLength {
		return 0
	}
	if m.least == 0 {
		m.least = ^uint32(0)
		for at := minute << loadBits; at < (minute+1)<<loadBits; at++ {
			m.least = min(m.least, l.seconds[at])
		}
		l.minutes[minute] = m
	}
	return m.least
}

// place is a due time from tick on, at most window later and before the expiry (0 for none), in the second with the fewest
// timers. Salt chooses among equal seconds, and the millisecond.
func (s *state) place(tick, window, expiry int64, salt uint64) int64 {
	last := min(tick+window, maxDueMillis)
	if expiry != 0 {
		last = min(last, expiry-1)
	}
	if last <= tick {
		return tick
	}
	if s.load.seconds == nil {
		s.load = load{seconds: map[int64]uint32{}, minutes: map[int64]loadMinute{}}
		s.table.each(func(r *record) {
			if !s.table.profiles[r.profile].parked {
				s.load.add(r.nextDue, 1)
			}
		})
	}
	low, high := s.load.choose(tick, last, salt)
	due := low + int64(salt>>32%uint64(high-low+1))
	s.load.placed = append(s.load.placed, due)
	s.load.add(due, 1)
	return due
}

// choose is the part of a second, from tick to last, that has the fewest timers for its length. Only the first and the last can be
// shorter than a second: a window that ends a millisecond into one is not to put a whole second's share there.
func (l *load) choose(tick, last int64, salt uint64) (low, high int64) {
	part := func(second int64) (low, high int64) { return max(tick, second*1000), min(last, second*1000+999) }
	from, to := secondOf(tick), secondOf(last)
	first, end := from, to
	if low, high = part(from); high-low < 999 {
		first++
	}
	if low, high := part(to); high-low < 999 {
		end--
	}
	best := from
	if first <= end {
		best = l.least(first, end, first+int64(salt%uint64(end-first+1)))
	}
	low, high = part(best)
	for _, second := range [2]int64{from, to} {
		a, b := part(second)
		if int64(l.seconds[second]+1)*(high-low+1) < int64(l.seconds[best]+1)*(b-a+1) {
			best, low, high = second, a, b
		}
	}
	return low, high
}

// forgetPlaced is called when a Stamp is over: what becomes of its due times is for Apply to say.
func (l *load) forgetPlaced() {
	for _, due := range l.placed {
		l.add(due, -1)
	}
	l.placed = l.placed[:0]
}
