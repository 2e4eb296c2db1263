package transport

import (
	"context"
	"strings"
	"sync"

	carillonv1 "github.com/carillon-timers/carillon/proto/carillon/v1"
	logv1 "github.com/carillon-timers/carillon/proto/carillonlog/v1"
	"github.com/carillon-timers/carillon/raftfsm"
)

// deadParallel is how many shards a list of dead letters asks at a time.
const deadParallel = 8

func (d *deliveries) ListDeadLetters(ctx context.Context, r *carillonv1.ListDeadLettersRequest) (*carillonv1.ListDeadLettersResponse, error) {
	if err := checkListDeadLetters(r); err != nil {
		return nil, err
	}
	shards := d.server.backend.Shards()
	from := letterKey{}
	if r.Cursor != "" {
		var err error
		if from, err = readKey("cursor", r.Cursor, shards); err != nil {
			return nil, err
		}
	}
	page := &letterPage{limit: int(r.Limit)}
	if page.limit == 0 {
		page.limit = defaultPageItems
	}
	query := raftfsm.ListQuery{Namespace: namespaceOf(r.Namespace), Limit: page.limit, Dead: true}
	if r.Queue != "" {
		query.Filter = &logv1.Filter{Queue: queueOf(r.Queue)}
	}
	for first := from.shard; first < max(shards, 1) && !page.full; first += deadParallel {
		pages, err := d.deadPages(ctx, query, from, first, min(first+deadParallel, max(shards, 1)))
		if err != nil {
			return nil, err
		}
		for i, one := range pages {
			if page.add(first+i, one); page.full {
				break
			}
		}
	}
	return page.response(shards), nil
}

// deadPages reads the next letters of the shards from first to before end, at once.
func (d *deliveries) deadPages(ctx context.Context, query raftfsm.ListQuery, from letterKey, first, end int) ([]raftfsm.ListPage, error) {
	pages, errs := make([]raftfsm.ListPage, end-first), make([]error, end-first)
	var all sync.WaitGroup
	for s := first; s < end; s++ {
		q := query
		if s == from.shard {
			q.After = from.key
		}
		all.Go(func() { pages[s-first], errs[s-first] = d.server.backend.ListShard(ctx, s, q) })
	}
	all.Wait()
	for _, err := range errs {
		if err != nil {
			return nil, err
		}
	}
	return pages, nil
}

// letterPage collects a page of dead letters.
type letterPage struct {
	limit, bytes int
	letters      []*carillonv1.DeadLetter
	// last is up to where all is in the page; full is true if no more goes in.
	last letterKey
	full bool
}

func (p *letterPage) add(s int, page raftfsm.ListPage) {
	for _, status := range page.Timers {
		letter := deadLetter(s, status)
		size := letter.SizeVT()
		if len(p.letters) == p.limit || len(p.letters) > 0 && p.bytes+size > maxMessageBytes {
			p.full = true
			return
		}
		p.letters, p.bytes, p.last = append(p.letters, letter), p.bytes+size, letterKey{s, status.Record.ID}
	}
	if page.More {
		p.full = true
		if page.Last != "" {
			p.last = letterKey{s, page.Last}
		}
		return
	}
	p.last = letterKey{s + 1, ""}
}

func (p *letterPage) response(shards int) *carillonv1.ListDeadLettersResponse {
	resp := &carillonv1.ListDeadLettersResponse{Letters: p.letters}
	if p.last.shard < shards {
		resp.NextCursor = p.last.String()
	}
	return resp
}

// deadLetter shows a dead letter as the timer that it was.
func deadLetter(s int, status raftfsm.Status) *carillonv1.DeadLetter {
	dead := status.Record.Extra.GetDead()
	letter := &carillonv1.DeadLetter{
		Key:       letterKey{s, status.Record.ID}.String(),
		Timer:     timerStatus(status, s).Timer,
		Reason:    carillonv1.DeadReason(dead.GetReason()),
		LastError: status.Record.LastError,
		Attempts:  int32(dead.GetAttempts()),
		Died:      moment(dead.GetAtMs()),
		Shard:     int32(s),
	}
	letter.Timer.Namespace, letter.Timer.Id = strings.TrimPrefix(letter.Timer.Namespace, "\x00"), dead.GetId()
	return letter
}
