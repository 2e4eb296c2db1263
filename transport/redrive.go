package transport

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"maps"
	"slices"

	carillonv1 "github.com/carillon-timers/carillon/proto/carillon/v1"
	logv1 "github.com/carillon-timers/carillon/proto/carillonlog/v1"
	"github.com/carillon-timers/carillon/raftfsm"
	"github.com/carillon-timers/carillon/shard"
)

func (d *deliveries) Redrive(ctx context.Context, r *carillonv1.RedriveRequest) (*carillonv1.RedriveResponse, error) {
	if err := checkLetters("RedriveRequest", r); err != nil {
		return nil, err
	}
	s, err := d.settleLetters(ctx, r, func(keys []string, limit int, request string) *raftfsm.Command {
		return &raftfsm.Command{Kind: &logv1.Command_Redrive{Redrive: &logv1.Redrive{
			Namespace: namespaceOf(r.Namespace), Keys: keys, Queue: queueOf(r.Queue), Limit: uint32(limit), RequestId: requestID(request),
		}}}
	})
	if err != nil {
		return nil, err
	}
	return &carillonv1.RedriveResponse{Redriven: s.done, Failed: s.failed, More: s.more}, nil
}

func (d *deliveries) Purge(ctx context.Context, r *carillonv1.PurgeRequest) (*carillonv1.PurgeResponse, error) {
	if err := checkLetters("PurgeRequest", r); err != nil {
		return nil, err
	}
	s, err := d.settleLetters(ctx, r, func(keys []string, limit int, request string) *raftfsm.Command {
		return &raftfsm.Command{Kind: &logv1.Command_Purge{Purge: &logv1.Purge{
			Namespace: namespaceOf(r.Namespace), Keys: keys, Queue: queueOf(r.Queue), Limit: uint32(limit), RequestId: requestID(request),
		}}}
	})
	if err != nil {
		return nil, err
	}
	return &carillonv1.PurgeResponse{Purged: s.done, Failed: s.failed, More: s.more}, nil
}

// choosing is a request to redrive or to purge.
type choosing interface {
	GetNamespace() string
	GetKeys() []string
	GetQueue() string
	GetRequestId() string
}

// letterCommand makes the command of a part of a call; with keys the limit is 0.
type letterCommand func(keys []string, limit int, requestID string) *raftfsm.Command

// settleLetters settles the letters of a call. One shard comes after the other, in their order: so a call that is
// repeated with its request ID does, and answers, the same. An error leaves what was done before it: the repetition
// counts that too.
func (d *deliveries) settleLetters(ctx context.Context, r choosing, command letterCommand) (*letters, error) {
	shards := d.server.backend.Shards()
	chosen, err := readChosen(r.GetKeys(), r.GetQueue(), r.GetRequestId(), shards)
	if err != nil {
		return nil, err
	}
	s := &letters{backend: d.server.backend, request: r, command: command}
	for _, n := range slices.Sorted(maps.Keys(chosen)) {
		s.parts = 0
		if err := s.byKeys(ctx, n, chosen[n]); err != nil {
			return nil, err
		}
	}
	if chosen != nil {
		return s, nil
	}
	for n := range max(shards, 1) {
		if s.done >= MaxAnswers {
			s.more = true // the shards behind may have some
			break
		}
		s.parts = 0
		if err := s.all(ctx, n); err != nil {
			return nil, err
		}
	}
	return s, nil
}

// letters is what became of the letters of a call.
type letters struct {
	backend Backend
	request choosing
	command letterCommand
	parts   int // commands so far to the shard that is asked
	done    int64
	failed  []*carillonv1.LetterError
	more    bool
}

// send sends one command to a shard. Each part of what a shard is asked has a request ID of its own, which a repetition makes
// again.
func (s *letters) send(ctx context.Context, n int, keys []string, limit int) (raftfsm.Result, error) {
	id := s.request.GetRequestId()
	if id != "" && s.parts > 0 {
		id = fmt.Sprintf("%x", sha256.Sum256(fmt.Appendf(nil, "%s/%d", id, s.parts)))[:raftfsm.MaxRequestIDBytes]
	}
	s.parts++
	o := s.backend.ApplyShard(ctx, n, s.command(keys, limit, id))
	if o.Err == nil {
		o.Err = shard.ErrOf(o.Result)
	}
	if o.Err != nil {
		return o.Result, fmt.Errorf("shard %d, with %d letters done before: %w", n, s.done, o.Err)
	}
	s.done += o.Due
	return o.Result, nil
}

// note names the items that failed, as many as fit into an answer, but for those whose error is known to mean nothing.
func (s *letters) note(n int, items []raftfsm.Result, harmless func(error) bool) (failed int) {
	for _, item := range items {
		err := shard.ErrOf(item)
		if err == nil || harmless(err) {
			continue
		}
		if failed++; len(s.failed) < MaxAnswers {
			s.failed = append(s.failed, &carillonv1.LetterError{Key: letterKey{n, item.Key}.String(), Error: itemErrorOf(err)})
		}
	}
	return failed
}

// byKeys settles letters of a shard by their keys. A shard stops before a command grows too large, and says which keys it
// came to. The answer to a repetition does not say it: then all are sent again, and those that are gone were done.
func (s *letters) byKeys(ctx context.Context, n int, keys []string) error {
	repeated := false
	gone := func(err error) bool { return repeated && errors.Is(err, shard.ErrNotFound) }
	for left, tries := keys, 0; len(left) > 0; tries++ {
		result, err := s.send(ctx, n, left, 0)
		if err != nil {
			return err
		}
		s.note(n, result.Items, gone)
		if result.Answer != raftfsm.AnswerMore {
			return nil
		}
		if len(result.Items) == 0 {
			repeated = true
		}
		if tries > len(keys) {
			return fmt.Errorf("%w: shard %d does not come to all keys", shard.ErrUnavailable, n)
		}
		came := make(map[string]bool, len(result.Items))
		for _, item := range result.Items {
			came[item.Key] = true
		}
		left = slices.DeleteFunc(slices.Clone(left), func(key string) bool { return came[key] })
	}
	return nil
}

// all settles the letters of a shard from the first on. Those that fail stay in front, so what is behind them is chosen by
// key.
func (s *letters) all(ctx context.Context, n int) error {
	result, err := s.send(ctx, n, nil, MaxAnswers-int(s.done))
	if err != nil {
		return err
	}
	failed := s.note(n, result.Items, func(error) bool { return false })
	if result.Answer != raftfsm.AnswerMore || failed == 0 {
		s.more = s.more || result.Answer == raftfsm.AnswerMore
		return nil
	}
	query := raftfsm.ListQuery{Namespace: namespaceOf(s.request.GetNamespace()), After: result.Items[len(result.Items)-1].Key, Dead: true}
	if queue := s.request.GetQueue(); queue != "" {
		query.Filter = &logv1.Filter{Queue: queueOf(queue)}
	}
	for more := true; more; {
		if query.Limit = MaxAnswers - int(s.done); query.Limit <= 0 {
			s.more = true
			return nil
		}
		page, err := s.backend.ListShard(ctx, n, query)
		if err != nil {
			return err
		}
		var keys []string
		for _, status := range page.Timers {
			keys = append(keys, status.Record.ID)
		}
		if err := s.byKeys(ctx, n, keys); err != nil {
			return err
		}
		more, query.After = page.More && page.Last > query.After, page.Last
	}
	return nil
}
