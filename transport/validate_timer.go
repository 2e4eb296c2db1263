package transport

import (
	"fmt"
	"strconv"

	carillonv1 "github.com/carillon-timers/carillon/proto/carillon/v1"
	logv1 "github.com/carillon-timers/carillon/proto/carillonlog/v1"
	"github.com/carillon-timers/carillon/raftfsm"
)

// wish is a timer that was checked, as it goes to its shard.
type wish struct {
	// due and delay are in milliseconds; isDelay says which of them counts, first that neither does: the leader takes
	// the repeat's first due time.
	due, delay     int64
	isDelay, first bool
	queue          string
	retry          *logv1.RetryPolicy
	// extra is nil if the timer has nothing of it.
	extra *logv1.Extra
}

func readTimer(t *carillonv1.Timer, l limits) (wish, error) {
	var w wish
	if err := checkTimer(t, l); err != nil {
		return w, err
	}
	var err error
	if w.retry, err = retryPolicy(t.Retry); err != nil {
		return w, err
	}
	queue, webhook, err := readTarget(t, l)
	if err != nil {
		return w, err
	}
	w.queue = queue
	var extra *logv1.Extra // most timers have nothing of it
	if t.Guarantee == carillonv1.Guarantee_GUARANTEE_AT_MOST_ONCE || webhook != "" || t.Repeat != nil || t.Window != nil || t.Expiry != nil {
		extra = &logv1.Extra{AtMostOnce: t.Guarantee == carillonv1.Guarantee_GUARANTEE_AT_MOST_ONCE, Webhook: webhook}
	}
	earliest, err := w.readWhen(t, extra, l)
	if err != nil {
		return w, err
	}
	if t.Window != nil {
		if extra.WindowMs, err = floorMillis("window", t.Window, maxWindowMillis, "0 to 24 h"); err != nil {
			return w, err
		}
		if every := extra.Repeat.GetEveryMs(); every > 0 && extra.WindowMs > every {
			return w, invalid("window", millis(extra.WindowMs).AsDuration().String(), "at most the period, "+millis(every).AsDuration().String())
		}
	}
	if t.Expiry != nil {
		if extra.ExpiryMs, err = readExpiry(t, earliest, l); err != nil {
			return w, err
		}
	}
	if extra != nil && extra.SizeVT() > 0 {
		w.extra = extra
	}
	return w, nil
}

// maxWindowMillis bounds a window.
const maxWindowMillis = 24 * 3600 * millisPerSecond

// checkTimer checks what needs no reading.
func checkTimer(t *carillonv1.Timer, l limits) error {
	if err := known("Timer", t); err != nil {
		return err
	}
	if err := checkKey(t.Namespace, t.Id); err != nil {
		return err
	}
	if len(t.Payload) > l.payload {
		return invalid("payload", byteCount(len(t.Payload)), "at most "+byteCount(l.payload))
	}
	if err := checkAttributes(t); err != nil {
		return err
	}
	if _, ok := carillonv1.Guarantee_name[int32(t.Guarantee)]; !ok {
		return invalid("guarantee", strconv.Itoa(int(t.Guarantee)), "0 to 2")
	}
	if t.Guarantee == carillonv1.Guarantee_GUARANTEE_AT_MOST_ONCE && t.Retry.GetMaxAttempts() > 1 {
		return invalid("retry.max_attempts", strconv.Itoa(int(t.Retry.MaxAttempts)), "0 or 1 with AT_MOST_ONCE")
	}
	return nil
}

// readWhen reads due time, delay and repeat; extra is set if there is one. It returns the due time as far as this node can say, Unix milliseconds.
func (w *wish) readWhen(t *carillonv1.Timer, extra *logv1.Extra, l limits) (earliest int64, err error) {
	w.isDelay = t.GetDelay() != nil
	w.first = t.Repeat != nil && t.When == nil
	if !w.first {
		if err := checkWhen(t.GetDue() != nil, w.isDelay); err != nil {
			return 0, err
		}
		if w.due, w.delay, err = when(t.GetDue(), t.GetDelay(), l); err != nil {
			return 0, err
		}
		if earliest = w.due; w.isDelay {
			earliest = l.now.UnixMilli() + w.delay
		}
	}
	if t.Repeat == nil {
		return earliest, nil
	}
	r, err := readRepeat(t.Repeat, l)
	if err != nil {
		return 0, err
	}
	if err := checkChildren(t.Id, r.log); err != nil {
		return 0, err
	}
	extra.Repeat = r.log
	if w.first {
		return r.first(l)
	}
	field := "due"
	if w.isDelay {
		field = "delay"
	}
	if !w.isDelay && earliest < r.series.Start || earliest > r.series.End {
		return 0, invalid(field, showMillis(earliest), "a due time from start to end")
	}
	return earliest, nil
}

func readExpiry(t *carillonv1.Timer, earliest int64, l limits) (int64, error) {
	expiry, err := floorMoment("expiry", t.Expiry)
	switch {
	case err != nil:
		return 0, err
	case expiry <= earliest:
		return 0, invalid("expiry", showTime(t.Expiry), "after the due time")
	case expiry > l.now.UnixMilli()+raftfsm.MaxAheadMillis:
		return 0, invalid("expiry", showTime(t.Expiry), "at most 100 years ahead")
	}
	return expiry, nil
}

// readTarget gives the queue in which the shard keeps the timer, and the URL of a webhook.
func readTarget(t *carillonv1.Timer, l limits) (queue, webhook string, err error) {
	if url := t.GetWebhook(); url != "" {
		if queue, err = l.webhookQueue(url); err == nil && l.webhookHeaders != nil {
			err = l.webhookHeaders(t.ContentType, t.Headers)
		}
		return queue, url, err
	}
	if t.GetQueue() == "" {
		return "", "", invalid("target", "(none)", "a queue or a webhook must be set")
	}
	return t.GetQueue(), "", checkName("queue", t.GetQueue(), raftfsm.MaxQueueBytes)
}

func checkAttributes(t *carillonv1.Timer) error {
	if err := checkText("content_type", t.ContentType); err != nil {
		return err
	}
	size := len(t.ContentType)
	for _, part := range []struct {
		field string
		pairs map[string]string
	}{{"headers", t.Headers}, {"labels", t.Labels}} {
		for key, value := range part.pairs {
			size += len(key) + len(value)
			if key == "" {
				return invalid(part.field, `""`, "keys must not be empty")
			}
			if err := checkText(part.field, key); err != nil {
				return err
			}
			if err := checkText(part.field+"["+show(key)+"]", value); err != nil {
				return err
			}
		}
	}
	if size > raftfsm.MaxAttributeBytes {
		return invalid("headers", byteCount(size), "headers, labels and content_type together at most "+byteCount(raftfsm.MaxAttributeBytes))
	}
	return nil
}

// maxAttempts is the highest limit of attempts.
const maxAttempts = 1_000_000

// defaultRetry is the policy of all timers that have none of their own; nobody writes to it.
var defaultRetry = newRetry()

func newRetry() *logv1.RetryPolicy {
	return &logv1.RetryPolicy{
		LeaseMs:          raftfsm.DefaultLeaseMillis,
		InitialBackoffMs: raftfsm.DefaultInitialBackoffMillis,
		MaxBackoffMs:     raftfsm.DefaultMaxBackoffMillis,
		Multiplier:       raftfsm.DefaultMultiplier,
	}
}

// retryPolicy checks a policy and fills in the defaults.
func retryPolicy(r *carillonv1.RetryPolicy) (*logv1.RetryPolicy, error) {
	if r == nil {
		return defaultRetry, nil
	}
	p := newRetry()
	if err := known("RetryPolicy", r); err != nil {
		return nil, err
	}
	if r.MaxAttempts < 0 || r.MaxAttempts > maxAttempts {
		return nil, invalid("retry.max_attempts", strconv.Itoa(int(r.MaxAttempts)), fmt.Sprintf("0 to %d", maxAttempts))
	}
	p.MaxAttempts = uint32(r.MaxAttempts)
	if m := r.Multiplier; m != 0 {
		if !(m >= 1 && m <= 100) { // also not a number
			return nil, invalid("retry.multiplier", strconv.FormatFloat(m, 'g', -1, 64), "1 to 100")
		}
		p.Multiplier = m
	}
	return p, readWaits(p, r)
}

// readWaits reads the durations of a policy.
func readWaits(p *logv1.RetryPolicy, r *carillonv1.RetryPolicy) (err error) {
	if d := r.Lease; d != nil {
		p.LeaseMs, err = boundedMillis("retry.lease", d, raftfsm.MinLeaseMillis, raftfsm.MaxLeaseMillis, leaseLimit)
		if err != nil {
			return err
		}
	}
	if d := r.InitialBackoff; d != nil {
		p.InitialBackoffMs, err = boundedMillis("retry.initial_backoff", d, 1, raftfsm.MaxBackoffMillis, "1 ms to 24 h")
		if err != nil {
			return err
		}
	}
	p.MaxBackoffMs = max(p.MaxBackoffMs, p.InitialBackoffMs)
	if d := r.MaxBackoff; d != nil {
		limit := fmt.Sprintf("initial_backoff (%d ms) to 24 h", p.InitialBackoffMs)
		p.MaxBackoffMs, err = boundedMillis("retry.max_backoff", d, 1, raftfsm.MaxBackoffMillis, limit)
		if err == nil && p.MaxBackoffMs < p.InitialBackoffMs {
			err = invalid("retry.max_backoff", showSeconds(d.Seconds, d.Nanos), limit)
		}
	}
	return err
}

// leaseLimit is what a lease may be.
const leaseLimit = "100 ms to 24 h"
