package raftfsm

import (
	"slices"

	logv1 "github.com/carillon-timers/carillon/proto/carillonlog/v1"
)

// grid computes the due times of periods, in the simplest way; the real ones are tested in shard/recur.
type grid struct{}

func (grid) Next(r *logv1.Repeat, after int64) (int64, bool) {
	due := r.StartMs
	if after >= due {
		due += ((after-due)/r.EveryMs + 1) * r.EveryMs
	}
	return due, !r.HasEnd || due <= r.EndMs
}

func (g grid) Turn(r *logv1.Repeat, now int64) Turn {
	if r.TickMs > now {
		return Turn{Next: r.TickMs}
	}
	var passed []int64
	for due, ok := r.TickMs, true; ok && due <= now; due, ok = g.Next(r, due) {
		passed = append(passed, due)
	}
	most, limit := 1, r.MaxLateMs
	switch {
	case r.Misfire == misfireAll:
		most = max(1, int(r.MaxCatchUp))
	case r.Misfire == misfireNone && limit == 0:
		limit = onTimeMillis
	}
	if limit > 0 {
		passed = slices.DeleteFunc(passed, func(due int64) bool { return now-due > limit })
	}
	next, ok := g.Next(r, now)
	return Turn{Fire: passed[max(0, len(passed)-most):], Next: next, Ended: !ok}
}
