package raftfsm

import logv1 "github.com/carillon-timers/carillon/proto/carillonlog/v1"

// grid computes the due times of periods in a few words; the real rules are tested in shard/recur.
type grid struct{}

func (grid) Next(r *logv1.Repeat, after int64) (int64, bool) {
	due := r.StartMs
	if every := max(1, r.EveryMs); after >= due {
		due += ((after-due)/every + 1) * every
	}
	return due, !r.HasEnd || due <= r.EndMs
}

func (g grid) Turn(r *logv1.Repeat, now int64) Turn {
	if r.TickMs > now {
		return Turn{Next: r.TickMs}
	}
	most, limit := 1, r.MaxLateMs
	switch {
	case r.Misfire == misfireAll:
		most = max(1, int(r.MaxCatchUp))
	case r.Misfire == misfireNone && limit == 0:
		limit = onTimeMillis
	}
	next, ok := g.Next(r, now)
	turn := Turn{Next: next, Ended: !ok}
	last := next - max(1, r.EveryMs)
	for r.HasEnd && last > r.EndMs {
		last -= ((last-r.EndMs-1)/max(1, r.EveryMs) + 1) * max(1, r.EveryMs)
	}
	for ; last > r.TickMs && last >= r.StartMs && len(turn.Fire) < most; last -= max(1, r.EveryMs) {
		turn.Fire = append([]int64{last}, turn.Fire...)
	}
	if len(turn.Fire) < most {
		turn.Fire = append([]int64{r.TickMs}, turn.Fire...)
	}
	for limit > 0 && len(turn.Fire) > 0 && now-turn.Fire[0] > limit {
		turn.Fire = turn.Fire[1:]
	}
	return turn
}
