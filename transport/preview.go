package transport

import (
	"context"
	"fmt"
	"strconv"

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
