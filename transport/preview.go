package transport

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	carillonv1 "github.com/carillon-timers/carillon/proto/carillon/v1"
	"github.com/carillon-timers/carillon/raftfsm"
	"github.com/carillon-timers/carillon/shard/recur"
)

// Limits of a preview.
const (
	// MaxPreviewItems bounds the due times of one answer.
	MaxPreviewItems = 1000
	// defaultPreviewItems is meant by a count of 0.
	defaultPreviewItems = 10
)

// Preview answers by itself: what is due when depends on the request and on the embedded time zones alone.
func (t *timers) Preview(_ context.Context, r *carillonv1.PreviewRequest) (*carillonv1.PreviewResponse, error) {
	l := t.limits()
	p, err := readPreview(r, l)
	if err != nil {
		return nil, err
	}
	rule := p.repeat.series.Rule
	resp := &carillonv1.PreviewResponse{Zone: rule.Zone().Name(), ZoneVersion: recur.ZoneVersion()}
	due, ok := p.repeat.series.Next(p.from)
	for ; ok && len(resp.Times) < p.count; due, ok = p.repeat.series.Next(due) {
		local := rule.Local(due)
		item := &carillonv1.PreviewTime{Due: moment(due), Local: local.Time, ZoneName: local.Zone}
		if local.Note != "" {
			item.Notes = append(item.Notes, local.Note)
		}
		if p.repeat.fixedDelay && len(resp.Times) == 0 {
			item.Notes = append(item.Notes, "as if each delivery were acked at once: a fixed delay counts from the ack")
		}
		resp.Times = append(resp.Times, item)
	}
	resp.More = ok && !p.all
	return resp, nil
}

// preview is a request that was checked.
type preview struct {
	repeat repeat
	from   int64 // Unix milliseconds
	count  int
	all    bool // count is all that the repeat has
}

func readPreview(r *carillonv1.PreviewRequest, l limits) (preview, error) {
	p := preview{from: l.now.UnixMilli(), count: defaultPreviewItems}
	if err := known("PreviewRequest", r); err != nil {
		return p, err
	}
	if r.Repeat == nil {
		return p, invalid("repeat", "(unset)", "must be set")
	}
	var err error
	if p.repeat, err = readRepeat(r.Repeat, l); err != nil {
		return p, err
	}
	if r.From != nil {
		if p.from, err = floorMoment("from", r.From); err != nil {
			return p, err
		}
	}
	switch {
	case r.Count < 0 || r.Count > MaxPreviewItems:
		return p, invalid("count", strconv.Itoa(int(r.Count)), fmt.Sprintf("0 to %d", MaxPreviewItems))
	case r.Count > 0:
		p.count = int(r.Count)
	}
	if most := r.Repeat.MaxCount; most > 0 && most <= int64(p.count) {
		p.count, p.all = int(most), true
	}
	s := &p.repeat.series
	if r.Repeat.Start == nil && s.Rule.Period() > 0 {
		s.Start = p.from // nothing is due there: what is shown comes after it
	}
	s.End = min(s.End, max(p.from, s.Start)+raftfsm.MaxAheadMillis)
	return p, nil
}

// repeat is a Repeat that was checked.
type repeat struct {
	series     recur.Series
	fixedDelay bool
}

func readRepeat(r *carillonv1.Repeat, l limits) (repeat, error) {
	if err := known("Repeat", r); err != nil {
		return repeat{}, err
	}
	rule, err := readRule(r)
	if err != nil {
		return repeat{}, err
	}
	out := repeat{recur.Series{Rule: rule, Start: recur.MinMillis, End: recur.MaxMillis}, r.FixedDelay}
	if r.FixedDelay && rule.Period() == 0 {
		return out, invalid("fixed_delay", "true", "only with a period")
	}
	if r.Start != nil {
		if out.series.Start, err = dueMillis("start", r.Start, l.now); err != nil {
			return out, err
		}
	}
	if r.End != nil {
		if out.series.End, err = floorMoment("end", r.End); err != nil {
			return out, err
		}
		if out.series.End < out.series.Start {
			return out, invalid("end", r.End.AsTime().Format(time.RFC3339Nano), "not before start")
		}
	}
	if r.MaxCount < 0 {
		return out, invalid("max_count", strconv.FormatInt(r.MaxCount, 10), "not negative")
	}
	return out, nil
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

// floorMoment turns a time into Unix milliseconds, rounded down.
func floorMoment(field string, t *timestamppb.Timestamp) (int64, error) {
	if err := t.CheckValid(); err != nil {
		return 0, invalid(field, showSeconds(t.GetSeconds(), t.GetNanos()), "a time from 0001-01-01 to 9999-12-31, nanos from 0 to 999,999,999")
	}
	return t.Seconds*millisPerSecond + int64(t.Nanos)/nanosPerMilli, nil
}
