package raftfsm

import (
	"fmt"
	"math"
	"strings"
	"unicode/utf8"
)

// minDueMillis is the start of the year 1, the earliest instant that a protobuf timestamp can hold.
const minDueMillis = -62_135_596_800_000

// maxDueMillis is the end of the year 9999, the latest instant that one can hold.
const maxDueMillis = 253_402_300_799_999

// What a client can send is checked before it is proposed. These checks are the last line: they depend on the log alone, so
// all replicas refuse the same, and they keep what is in the table within the sizes that its indexes assume.

// A check returns the result of a command that it refuses, and nil if there is nothing against it.

func invalid(field, format string, args ...any) *Result {
	return &Result{Code: Invalid, Detail: field + ": " + fmt.Sprintf(format, args...)}
}

func space(namespace string) string {
	if namespace == "" {
		return DefaultNamespace
	}
	return namespace
}

func validName(field, text string, limit int) *Result {
	if len(text) == 0 || len(text) > limit {
		return invalid(field, "%d bytes; 1 to %d are allowed", len(text), limit)
	}
	if !utf8.ValidString(text) || strings.IndexByte(text, 0) >= 0 {
		return invalid(field, "not UTF-8 without NUL")
	}
	return nil
}

func validKey(namespace, id string) *Result {
	if len(namespace) > MaxNamespaceBytes {
		return invalid("namespace", "%d bytes; 1 to %d are allowed", len(namespace), MaxNamespaceBytes)
	}
	for i := range len(namespace) {
		if c := namespace[i]; (c < 'a' || c > 'z') && (c < '0' || c > '9') && c != '-' {
			return invalid("namespace", "only a-z, 0-9 and - are allowed")
		}
	}
	return validName("id", id, MaxIDBytes)
}

func validRequestID(id []byte) *Result {
	if len(id) > MaxRequestIDBytes {
		return invalid("request_id", "%d bytes; at most %d are allowed", len(id), MaxRequestIDBytes)
	}
	return nil
}

// validDue checks an absolute due time against the entry's clock; a delay that is rounded up may be one more.
func (s *state) validDue(due int64, isDelay bool) *Result {
	switch {
	case isDelay:
		return invalid("delay", "the leader did not turn it into a due time")
	case due < minDueMillis:
		return invalid("due", "%d is before the year 1", due)
	case due-s.clock > MaxAheadMillis+1:
		return invalid("due", "more than %d ms ahead", int64(MaxAheadMillis))
	}
	return nil
}

func validPairs(field string, pairs []Pair) (size int, refused *Result) {
	for i, p := range pairs {
		if p.Key == "" || !utf8.ValidString(p.Key) || !utf8.ValidString(p.Value) {
			return 0, invalid(field, "a key is empty, or a text is not UTF-8")
		}
		if i > 0 && pairs[i-1].Key >= p.Key {
			return 0, invalid(field, "keys are not sorted or not unique")
		}
		size += len(p.Key) + len(p.Value)
	}
	return size, nil
}

func (s *state) validSchedule(e *entry, c *command) *Result {
	if r := validKey(c.namespace, c.id); r != nil {
		return r
	}
	if r := validTarget(c.queue, c.extra().GetWebhook()); r != nil {
		return r
	}
	if r := validRequestID(c.requestID); r != nil {
		return r
	}
	if r := s.validDue(c.due, c.isDelay); r != nil {
		return r
	}
	if len(c.payload) > MaxPayloadBytes {
		return invalid("payload", "%d bytes; at most %d are allowed", len(c.payload), MaxPayloadBytes)
	}
	headers, r := validPairs("headers", e.headers(c))
	if r != nil {
		return r
	}
	labels, r := validPairs("labels", e.labels(c))
	if r != nil {
		return r
	}
	if size := headers + labels + len(c.contentType); size > MaxAttributeBytes || !utf8.ValidString(c.contentType) {
		return invalid("headers", "headers, labels and content type are %d bytes of text; at most %d of UTF-8 are allowed", size, MaxAttributeBytes)
	}
	if c.ifExists > ifExistsKeep {
		return invalid("if_exists", "%d is not a policy", c.ifExists)
	}
	if x := c.extra(); x != nil {
		if r := s.validExtra(c, x); r != nil {
			return r
		}
	}
	return validRetry(&c.retry)
}

// maxMultiplier bounds the growth of a back-off; MaxBackoffMillis bounds its length anyway.
const maxMultiplier = 1000

// validRetry checks a policy as it was sent.
func validRetry(p *RetryPolicy) *Result {
	switch {
	case p.Lease != 0 && (p.Lease < MinLeaseMillis || p.Lease > MaxLeaseMillis):
		return invalid("retry.lease", "%d ms; %d to %d are allowed", p.Lease, MinLeaseMillis, MaxLeaseMillis)
	case p.InitialBackoff < 0 || p.InitialBackoff > MaxBackoffMillis:
		return invalid("retry.initial_backoff", "%d ms; 0 to %d are allowed", p.InitialBackoff, MaxBackoffMillis)
	case p.MaxBackoff < 0 || p.MaxBackoff > MaxBackoffMillis:
		return invalid("retry.max_backoff", "%d ms; 0 to %d are allowed", p.MaxBackoff, MaxBackoffMillis)
	case math.IsNaN(p.Multiplier) || p.Multiplier != 0 && (p.Multiplier < 1 || p.Multiplier > maxMultiplier):
		return invalid("retry.multiplier", "%v; 1 to %d are allowed", p.Multiplier, maxMultiplier)
	case p.MaxAttempts > MaxAttempts:
		return invalid("retry.max_attempts", "%d; 0 to %d are allowed", p.MaxAttempts, MaxAttempts)
	}
	return nil
}

// policyOf fills what is not set with the defaults. The defaults are part of the log's meaning: entries without a value
// are in old logs, so the constants never change.
func policyOf(p RetryPolicy) RetryPolicy {
	r := RetryPolicy{DefaultLeaseMillis, DefaultInitialBackoffMillis, DefaultMaxBackoffMillis, DefaultMultiplier, p.MaxAttempts}
	if p.Lease != 0 {
		r.Lease = p.Lease
	}
	if p.InitialBackoff != 0 {
		r.InitialBackoff = p.InitialBackoff
	}
	if p.MaxBackoff != 0 {
		r.MaxBackoff = p.MaxBackoff
	}
	if p.Multiplier != 0 {
		r.Multiplier = p.Multiplier
	}
	return r
}
