package client

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"iter"
	"time"

	carillonv1 "github.com/carillon-timers/carillon/proto/carillon/v1"
)

// DeadReason says why a timer died.
type DeadReason int32

// The reasons.
const (
	// DeadAttempts: the last attempt failed or was not answered in time.
	DeadAttempts = DeadReason(carillonv1.DeadReason_DEAD_REASON_ATTEMPTS)
	// DeadRefused: the consumer said that it never wants it (Refuse, or 410 from a webhook).
	DeadRefused = DeadReason(carillonv1.DeadReason_DEAD_REASON_REFUSED)
)

func (r DeadReason) String() string {
	switch r {
	case DeadAttempts:
		return "attempts"
	case DeadRefused:
		return "refused"
	}
	return fmt.Sprintf("reason(%d)", int32(r))
}

// DeadLetter is a timer that will not be tried again by itself.
type DeadLetter struct {
	// Key names the dead letter; opaque.
	Key string
	// Timer as it was, with payload; Due is the due time that failed.
	Timer     Timer
	Namespace string
	Reason    DeadReason
	LastError string
	Attempts  int
	Died      time.Time
	Shard     int
}

// DeadQuery asks for dead letters, shard by shard in the order in which they died.
type DeadQuery struct {
	// Queue that they were for; empty means any target.
	Queue string
	// Limit is the most of a page, 1 to 1,000; 0 means 100. A page also ends at 1 MiB.
	Limit int
	// Cursor is DeadPage.Next of the page before; empty starts.
	Cursor string
}

// DeadPage is a page of dead letters; Next is empty on the last one.
type DeadPage struct {
	Letters []DeadLetter
	Next    string
}

// DeadLetterPage returns one page of the dead letters. Errors: *InvalidError, *NotSupportedError, ErrUnavailable, ErrClosed.
func (c *Client) DeadLetterPage(ctx context.Context, q DeadQuery) (DeadPage, error) {
	err := checkText("queue", q.Queue, 0, maxQueueBytes)
	if err == nil {
		err = checkLimit(q.Limit)
	}
	if err == nil {
		err = checkText("cursor", q.Cursor, 0, maxIDBytes)
	}
	if err != nil {
		return DeadPage{}, wrap("dead letters", "", err)
	}
	request := &carillonv1.ListDeadLettersRequest{Namespace: c.cfg.Namespace, Queue: q.Queue, Limit: int32(q.Limit), Cursor: q.Cursor}
	var pb *carillonv1.ListDeadLettersResponse
	err = c.read(ctx, c.cfg.Namespace, "", func(ctx context.Context, e *endpoint) (err error) {
		pb, err = e.deliveries.ListDeadLetters(ctx, request)
		return err
	})
	if err != nil {
		return DeadPage{}, wrap("dead letters", "", err)
	}
	page := DeadPage{Letters: make([]DeadLetter, 0, len(pb.GetLetters())), Next: pb.GetNextCursor()}
	for _, l := range pb.GetLetters() {
		page.Letters = append(page.Letters, DeadLetter{
			Key: l.GetKey(), Timer: timerOf(l.GetTimer()), Namespace: l.GetTimer().GetNamespace(), Reason: DeadReason(l.GetReason()),
			LastError: l.GetLastError(), Attempts: int(l.GetAttempts()), Died: timeOf(l.GetDied()), Shard: int(l.GetShard()),
		})
	}
	return page, nil
}

// DeadLetters goes through the dead letters page by page, as List does.
func (c *Client) DeadLetters(ctx context.Context, q DeadQuery) iter.Seq2[DeadLetter, error] {
	return pages(q.Cursor, func(cursor string) ([]DeadLetter, string, error) {
		q.Cursor = cursor
		page, err := c.DeadLetterPage(ctx, q)
		return page.Letters, page.Next, err
	})
}

// Letters chooses dead letters: either Keys or All.
type Letters struct {
	// Keys of the dead letters, any number.
	Keys []string
	// All means all of the namespace, or of the Queue if that is set.
	All   bool
	Queue string
	// RequestID is as in Timer; it covers all that one call of Redrive or Purge does.
	RequestID string
}

func (l Letters) check() error {
	switch {
	case l.All == (len(l.Keys) > 0):
		return &InvalidError{"keys", "", "either keys or all must be given"}
	case l.Queue != "" && !l.All:
		return &InvalidError{"queue", quote(l.Queue), "goes with all, not with keys"}
	}
	for _, key := range l.Keys {
		if err := checkText("keys", key, 1, maxIDBytes); err != nil {
			return err
		}
	}
	if err := checkText("queue", l.Queue, 0, maxQueueBytes); err != nil {
		return err
	}
	return checkText("request_id", l.RequestID, 0, maxRequestIDBytes)
}

// noLetter is ErrNotFound of a dead letter.
type noLetter struct{}

func (noLetter) Error() string { return "no such dead letter" }

func (noLetter) Is(target error) bool { return target == ErrNotFound }

// LetterFailure is a dead letter that stays dead, and why: ErrNotFound (no such dead letter), ErrAlreadyExists (its timer's
// ID is taken), or another error.
type LetterFailure struct {
	Key string
	Err error
}

// LettersError says that dead letters stay dead; Done of them do not. It unwraps to the first one's error.
type LettersError struct {
	Done   int64
	Failed []LetterFailure
}

func (e *LettersError) Error() string {
	first := e.Failed[0]
	return fmt.Sprintf("%d done, %d failed, first %s: %v", e.Done, len(e.Failed), quote(first.Key), first.Err)
}

// Unwrap returns the error of the first one that failed.
func (e *LettersError) Unwrap() error { return e.Failed[0].Err }

// Redrive makes dead letters timers again: due at once, without failed attempts, under their own ID; a due time of a repeat
// that lives on under the ID that OverlapAllow would give it. It returns how many; the error is nil if none was refused,
// else a *LettersError, or one that ended the call, after what was counted so far: *InvalidError, *OverloadedError,
// ErrUnavailable, ErrUnknown, ErrClosed.
func (c *Client) Redrive(ctx context.Context, l Letters) (int64, error) {
	return c.letters(ctx, "redrive", l, func(ctx context.Context, e *endpoint, keys []string, requestID string) (lettersAnswer, error) {
		return e.deliveries.Redrive(ctx, &carillonv1.RedriveRequest{
			Namespace: c.cfg.Namespace, Keys: keys, Queue: l.Queue, RequestId: requestID,
		})
	})
}

// Purge throws dead letters away, for ever. Its answers are those of Redrive.
func (c *Client) Purge(ctx context.Context, l Letters) (int64, error) {
	return c.letters(ctx, "purge", l, func(ctx context.Context, e *endpoint, keys []string, requestID string) (lettersAnswer, error) {
		return e.deliveries.Purge(ctx, &carillonv1.PurgeRequest{
			Namespace: c.cfg.Namespace, Keys: keys, Queue: l.Queue, RequestId: requestID,
		})
	})
}

// lettersAnswer is what the answers of Redrive and Purge share.
type lettersAnswer interface {
	GetFailed() []*carillonv1.LetterError
	GetMore() bool
}

func doneOf(a lettersAnswer) int64 {
	switch pb := a.(type) {
	case *carillonv1.RedriveResponse:
		return pb.GetRedriven()
	case *carillonv1.PurgeResponse:
		return pb.GetPurged()
	}
	return 0
}

// letters makes as many calls as it takes, each with a request ID of its own that follows from the first.
func (c *Client) letters(ctx context.Context, name string, l Letters,
	call func(context.Context, *endpoint, []string, string) (lettersAnswer, error)) (int64, error) {
	if err := l.check(); err != nil {
		return 0, wrap(name, "", err)
	}
	if l.RequestID == "" {
		l.RequestID = newRequestID()
	}
	result := &LettersError{}
	seen := make(map[string]bool) // keys that failed: without keys the node meets them again
	keys := l.Keys
	for n := 0; ; n++ {
		some := keys[:min(len(keys), maxLetters)]
		keys = keys[len(some):]
		var answer lettersAnswer
		err := c.repeat(ctx, c.newOp(c.cfg.Namespace, "", true), func(ctx context.Context, e *endpoint, _ time.Duration) (err error) {
			answer, err = call(ctx, e, some, nthRequestID(l.RequestID, n))
			return err
		})
		if err != nil {
			return result.Done, wrap(name, "", err)
		}
		news := doneOf(answer) > 0
		result.Done += doneOf(answer)
		for _, f := range answer.GetFailed() {
			if !seen[f.GetKey()] {
				seen[f.GetKey()], news = true, true
				err := itemErrorOf(f.GetError())
				if err == ErrNotFound {
					err = noLetter{}
				}
				result.Failed = append(result.Failed, LetterFailure{f.GetKey(), err})
			}
		}
		if len(keys) == 0 && (!l.All || !answer.GetMore() || !news) {
			break
		}
	}
	if len(result.Failed) > 0 {
		return result.Done, wrap(name, "", result)
	}
	return result.Done, nil
}

// nthRequestID is the request ID of the nth call, from 0, that one request ID covers.
func nthRequestID(id string, n int) string {
	if n == 0 {
		return id
	}
	sum := sha256.Sum256(fmt.Appendf(nil, "%s/%d", id, n))
	return hex.EncodeToString(sum[:16])
}
