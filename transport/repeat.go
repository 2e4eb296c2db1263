package transport

import (
	"errors"
	"fmt"
	"strconv"

	carillonv1 "github.com/carillon-timers/carillon/proto/carillon/v1"
	logv1 "github.com/carillon-timers/carillon/proto/carillonlog/v1"
	"github.com/carillon-timers/carillon/raftfsm"
	"github.com/carillon-timers/carillon/shard/recur"
)

// repeat is a Repeat that was checked.
type repeat struct {
	series     recur.Series
	fixedDelay bool
	// log is what the shard keeps of it.
	log *logv1.Repeat
}

func readRepeat(r *carillonv1.Repeat, l limits) (repeat, error) {
	if err := known("Repeat", r); err != nil {
		return repeat{}, err
	}
	rule, err := readRule(r)
	if err != nil {
		return repeat{}, err
	}
	out := repeat{recur.Series{Rule: rule, Start: recur.MinMillis, End: recur.MaxMillis}, r.FixedDelay, &logv1.Repeat{
		EveryMs: rule.Period(), Cron: r.GetCron(), Zone: r.Zone, FixedDelay: r.FixedDelay, MaxCount: r.MaxCount,
	}}
	if rule.Period() > 0 {
		out.log.Cron = "" // "@every 5s" is kept as the period that it is
	}
	if r.FixedDelay && rule.Period() == 0 {
		return out, invalid("fixed_delay", "true", "only with a period")
	}
	if err := out.readBounds(r, l); err != nil {
		return out, err
	}
	if r.MaxCount < 0 {
		return out, invalid("max_count", strconv.FormatInt(r.MaxCount, 10), "not negative")
	}
	if err := out.readMisfire(r); err != nil {
		return out, err
	}
	return out, out.readOverlap(r)
}

// readBounds reads start and end. In the log a start of 0 means none, so a period that counts from 1970 is written as one
// that counts from a period before: the due times are the same.
func (out *repeat) readBounds(r *carillonv1.Repeat, l limits) (err error) {
	if r.Start != nil {
		if out.series.Start, err = dueMillis("start", r.Start, l.now); err != nil {
			return err
		}
		if out.log.StartMs = out.series.Start; out.log.StartMs == 0 {
			out.log.StartMs = -out.log.EveryMs
		}
	}
	if r.End != nil {
		if out.series.End, err = floorMoment("end", r.End); err != nil {
			return err
		}
		if out.series.End < out.series.Start {
			return invalid("end", showTime(r.End), "not before start")
		}
		out.log.HasEnd, out.log.EndMs = true, out.series.End
	}
	return nil
}

func (out *repeat) readMisfire(r *carillonv1.Repeat) (err error) {
	all := r.Misfire == carillonv1.Misfire_MISFIRE_ALL
	switch _, ok := carillonv1.Misfire_name[int32(r.Misfire)]; {
	case !ok:
		return invalid("misfire", strconv.Itoa(int(r.Misfire)), "0 to 3")
	case r.MaxCatchUp < 0 || r.MaxCatchUp > recur.MaxCatchUp:
		return invalid("max_catch_up", strconv.Itoa(int(r.MaxCatchUp)), fmt.Sprintf("0 to %d", recur.MaxCatchUp))
	case r.MaxCatchUp > 0 && !all:
		return invalid("max_catch_up", strconv.Itoa(int(r.MaxCatchUp)), "only with misfire ALL")
	}
	out.log.Misfire = uint32(r.Misfire)
	if r.Misfire == carillonv1.Misfire_MISFIRE_UNSPECIFIED {
		out.log.Misfire = uint32(carillonv1.Misfire_MISFIRE_ONE)
	}
	if all {
		out.log.MaxCatchUp = uint32(max(r.MaxCatchUp, 1))
	}
	if r.MaxLateness != nil {
		out.log.MaxLateMs, err = boundedMillis("max_lateness", r.MaxLateness, 1, raftfsm.MaxAheadMillis, "1 ms to 100 years")
	}
	return err
}

func (out *repeat) readOverlap(r *carillonv1.Repeat) error {
	if _, ok := carillonv1.Overlap_name[int32(r.Overlap)]; !ok {
		return invalid("overlap", strconv.Itoa(int(r.Overlap)), "0 to 3")
	}
	out.log.Overlap = uint32(r.Overlap)
	if r.Overlap == carillonv1.Overlap_OVERLAP_UNSPECIFIED {
		out.log.Overlap = uint32(carillonv1.Overlap_OVERLAP_SKIP)
	}
	if r.FixedDelay && out.log.Overlap != uint32(carillonv1.Overlap_OVERLAP_SKIP) {
		return invalid("overlap", r.Overlap.String(), "SKIP with fixed_delay: no due time comes before the ack")
	}
	return nil
}

func readRule(r *carillonv1.Repeat) (*recur.Rule, error) {
	var rule *recur.Rule
	var err error
	switch kind := r.Rule.(type) {
	case *carillonv1.Repeat_Cron:
		rule, err = recur.Cron(kind.Cron, r.Zone)
	case *carillonv1.Repeat_Every:
		ms, merr := boundedMillis("every", kind.Every, 1, recur.MaxPeriodMillis, "1 ms to 100 years")
		if merr != nil {
			return nil, merr
		}
		if d := kind.Every; d.Nanos%nanosPerMilli != 0 {
			return nil, invalid("every", showSeconds(d.Seconds, d.Nanos), "whole milliseconds")
		}
		rule, err = recur.Every(ms, r.Zone)
	default:
		return nil, invalid("repeat", "(unset)", "every or cron must be set")
	}
	if wrong, ok := errors.AsType[*recur.Error](err); ok {
		return nil, invalid(wrong.Field, show(wrong.Value), wrong.Limit)
	}
	return rule, err
}

// first is the first due time of a repeat whose timer has none of its own, as far as this node can say: the leader, whose
// clock counts, computes the one that is kept.
func (out *repeat) first(l limits) (int64, error) {
	s, now := out.series, l.now.UnixMilli()
	if s.Rule.Period() > 0 && s.Start == recur.MinMillis {
		s.Start = now // nothing is due there: the first due time is a period later
	}
	due, ok := s.Next(now)
	if !ok {
		return 0, invalid("end", showMillis(s.End), "a due time after now")
	}
	return due, nil
}

// longestMillis is as long as any due time in Unix milliseconds is.
const longestMillis = "-99999999999999"

// checkChildren makes sure that the timers which OVERLAP_ALLOW makes of the due times have IDs, and those IDs the shard
// of the timer.
func checkChildren(id string, r *logv1.Repeat) error {
	if r.Overlap != uint32(carillonv1.Overlap_OVERLAP_ALLOW) {
		return nil
	}
	child := "{" + id + "}@" + longestMillis
	if carillonv1.HashTag(id) != id {
		child = id + "@" + longestMillis
	}
	if carillonv1.HashTag(child) != carillonv1.HashTag(id) {
		return invalid("id", show(id), "with overlap ALLOW an ID with a hash tag, or without braces")
	}
	if over := len(child) - raftfsm.MaxIDBytes; over > 0 {
		return invalid("id", show(id), fmt.Sprintf("with overlap ALLOW at most %d bytes", len(id)-over))
	}
	return nil
}

// repeatOf is a Repeat as a client sent it, with the defaults written out.
func repeatOf(r *logv1.Repeat) *carillonv1.Repeat {
	if r == nil {
		return nil
	}
	out := &carillonv1.Repeat{
		Zone: r.Zone, FixedDelay: r.FixedDelay, MaxCount: r.MaxCount,
		Misfire: carillonv1.Misfire(r.Misfire), MaxCatchUp: int32(r.MaxCatchUp), Overlap: carillonv1.Overlap(r.Overlap),
	}
	if r.Cron != "" {
		out.Rule = &carillonv1.Repeat_Cron{Cron: r.Cron}
	} else {
		out.Rule = &carillonv1.Repeat_Every{Every: millis(r.EveryMs)}
	}
	if r.StartMs != 0 {
		out.Start = moment(r.StartMs)
	}
	if r.HasEnd {
		out.End = moment(r.EndMs)
	}
	if r.MaxLateMs != 0 {
		out.MaxLateness = millis(r.MaxLateMs)
	}
	return out
}
