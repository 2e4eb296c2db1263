package client

import (
	"context"
	"fmt"
	"iter"
	"maps"
	"time"

	carillonv1 "github.com/carillon-timers/carillon/proto/carillon/v1"
)

// Filter chooses timers; all that is set must fit.
type Filter struct {
	// Labels that a timer must have, with these values.
	Labels map[string]string
	// States are Pending, Firing and Paused; none means all of them.
	States []State
	// DueFrom and DueBefore bound the next due time: from the first, before the second; the zero time is no bound.
	DueFrom, DueBefore time.Time
	// Queue that a timer must be for; empty means any target.
	Queue string
}

func (f Filter) check() error {
	for k, v := range f.Labels {
		if err := checkText("filter.labels", k, 1, maxAttributeBytes); err != nil {
			return err
		}
		if err := checkText("filter.labels", v, 0, maxAttributeBytes); err != nil {
			return err
		}
	}
	return checkText("filter.queue", f.Queue, 0, maxQueueBytes)
}

// proto is nil if nothing is set.
func (f Filter) proto() *carillonv1.Filter {
	pb := &carillonv1.Filter{
		Labels: maps.Clone(f.Labels), DueFrom: optionalTime(f.DueFrom), DueBefore: optionalTime(f.DueBefore), Queue: f.Queue,
	}
	for _, s := range f.States {
		pb.States = append(pb.States, carillonv1.State(s))
	}
	if pb.SizeVT() == 0 {
		return nil
	}
	return pb
}

// ListQuery asks for the timers that are not finished, in the order of their IDs.
type ListQuery struct {
	// Prefix of the IDs; empty lists all.
	Prefix string
	// Filter chooses among them.
	Filter Filter
	// Limit is the most timers of a page, 1 to 1,000; 0 means 100. A page also ends at 1 MiB.
	Limit int
	// Cursor is Page.Next of the page before; empty starts.
	Cursor string
}

// Page is a page of a list; Next is empty on the last one. With a filter a page may be short, or empty, and not be the
// last: a call looks at a bounded number of timers.
type Page struct {
	Timers []TimerStatus
	Next   string
}

// ListPage returns one page of the timers. Errors: *InvalidError, *NotSupportedError, ErrUnavailable, ErrClosed.
func (c *Client) ListPage(ctx context.Context, q ListQuery) (Page, error) {
	if err := q.check(); err != nil {
		return Page{}, wrap("list", "", err)
	}
	request := &carillonv1.ListRequest{
		Namespace: c.cfg.Namespace, Prefix: q.Prefix, Limit: int32(q.Limit), Cursor: q.Cursor, Filter: q.Filter.proto(),
	}
	var pb *carillonv1.ListResponse
	err := c.read(ctx, c.cfg.Namespace, "", func(ctx context.Context, e *endpoint) (err error) {
		pb, err = e.timers.List(ctx, request)
		return err
	})
	if err != nil {
		return Page{}, wrap("list", "", err)
	}
	page := Page{Timers: make([]TimerStatus, 0, len(pb.GetTimers())), Next: pb.GetNextCursor()}
	for _, t := range pb.GetTimers() {
		page.Timers = append(page.Timers, statusOf(t))
	}
	return page, nil
}

func (q ListQuery) check() error {
	if err := checkText("prefix", q.Prefix, 0, maxIDBytes); err != nil {
		return err
	}
	if err := checkLimit(q.Limit); err != nil {
		return err
	}
	if err := q.Filter.check(); err != nil {
		return err
	}
	return checkText("cursor", q.Cursor, 0, maxIDBytes)
}

func checkLimit(limit int) error {
	if limit < 0 || limit > maxBatchItems {
		return &InvalidError{"limit", fmt.Sprint(limit), "1 to 1,000"}
	}
	return nil
}

// List goes through the timers that are not finished in the order of their IDs, page by page; q.Limit is the size of the
// pages, which are fetched as they are needed, each with a deadline of its own. It ends at the first error.
func (c *Client) List(ctx context.Context, q ListQuery) iter.Seq2[TimerStatus, error] {
	return pages(q.Cursor, func(cursor string) ([]TimerStatus, string, error) {
		q.Cursor = cursor
		page, err := c.ListPage(ctx, q)
		return page.Timers, page.Next, err
	})
}

// pages goes through what is listed page by page.
func pages[T any](cursor string, page func(cursor string) (items []T, next string, err error)) iter.Seq2[T, error] {
	return func(yield func(T, error) bool) {
		for at := cursor; ; {
			items, next, err := page(at)
			if err != nil {
				var none T
				yield(none, err)
				return
			}
			for _, item := range items {
				if !yield(item, nil) {
					return
				}
			}
			if next == "" {
				return
			}
			at = next
		}
	}
}

// CountQuery chooses what is counted.
type CountQuery struct {
	// Prefix of the IDs; empty counts all.
	Prefix string
	Filter Filter
}

// Count counts what List would list, as it stands shard by shard. Errors are those of ListPage.
func (c *Client) Count(ctx context.Context, q CountQuery) (int64, error) {
	err := checkText("prefix", q.Prefix, 0, maxIDBytes)
	if err == nil {
		err = q.Filter.check()
	}
	if err != nil {
		return 0, wrap("count", "", err)
	}
	request := &carillonv1.CountRequest{Namespace: c.cfg.Namespace, Prefix: q.Prefix, Filter: q.Filter.proto()}
	var pb *carillonv1.CountResponse
	err = c.read(ctx, c.cfg.Namespace, "", func(ctx context.Context, e *endpoint) (err error) {
		pb, err = e.timers.Count(ctx, request)
		return err
	})
	if err != nil {
		return 0, wrap("count", "", err)
	}
	return pb.GetCount(), nil
}
