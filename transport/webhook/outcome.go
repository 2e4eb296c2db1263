package webhook

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"net/http"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"github.com/carillon-timers/carillon/raftfsm"
)

// Outcome is what a post came to: its name is a label of the metrics.
type Outcome int

// Outcomes of a post.
const (
	// OK: 2xx. The delivery is acked.
	OK Outcome = iota
	// Gone: 410. A dead letter at once.
	Gone
	// Throttled: 429 or 503. Tried again, after Retry-After if there is one.
	Throttled
	// Rejected: another 4xx; Failed: another 5xx or no code of HTTP; Redirected: a redirect that is not followed.
	Rejected
	Failed
	Redirected
	// Forbidden: the address is not allowed.
	Forbidden
	// Unresolved, Unconnected, Insecure: the name has no address, no connection, the TLS handshake failed.
	Unresolved
	Unconnected
	Insecure
	// TimedOut: there was no answer in time. Broken: the connection broke, or what came was not HTTP.
	TimedOut
	Broken
	// Returned: it was broken off, or not begun, because the node stops. It counts as no attempt.
	Returned

	outcomes
)

var outcomeNames = [outcomes]string{
	"ok", "gone", "throttled", "rejected", "failed", "redirected", "forbidden", "unresolved", "unconnected", "insecure", "timed_out",
	"broken", "returned",
}

// String is the name of the outcome in logs and metrics.
func (o Outcome) String() string {
	if o < 0 || o >= outcomes {
		return "outcome " + strconv.Itoa(int(o))
	}
	return outcomeNames[o]
}

// answered says whether the host answered; unreachable whether it did not, for a reason that concerns the whole host.
func (o Outcome) answered() bool { return o <= Redirected }

func (o Outcome) unreachable() bool { return o >= Unresolved && o <= Broken }

// verdict is an outcome and what follows from it.
type verdict struct {
	outcome Outcome
	// text is the error that is kept with the timer.
	text string
	// delay is how long the receiver wants to be left alone; 0 leaves it to the timer's back-off.
	delay time.Duration
}

// maxRetryAfter bounds what a receiver can ask for: a longer wait is cut to it.
const maxRetryAfter = raftfsm.MaxBackoffMillis * time.Millisecond

// judge reads the head of an answer.
func judge(answer *http.Response, now time.Time) verdict {
	v := verdict{text: "HTTP " + strconv.Itoa(answer.StatusCode)}
	if name := http.StatusText(answer.StatusCode); name != "" {
		v.text += " " + name
	}
	switch code := answer.StatusCode; {
	case code >= 200 && code < 300:
		v.outcome = OK
		return v
	case code >= 300 && code < 400:
		v.outcome = Redirected
		return v
	case code == http.StatusGone:
		v.outcome = Gone
		return v
	case code == http.StatusTooManyRequests || code == http.StatusServiceUnavailable:
		v.outcome = Throttled
	case code >= 400 && code < 500:
		v.outcome = Rejected
	default:
		v.outcome = Failed
	}
	v.delay = retryAfter(answer.Header.Get("Retry-After"), now)
	return v
}

// retryAfter reads Retry-After, seconds or a date. What it cannot read, 0 and the past are as none: the timer's own back-off.
func retryAfter(value string, now time.Time) time.Duration {
	value = strings.TrimSpace(value)
	if value == "" {
		return 0
	}
	if !strings.ContainsFunc(value, func(r rune) bool { return r < '0' || r > '9' }) {
		seconds, err := strconv.ParseInt(value, 10, 64)
		if err != nil || seconds > int64(maxRetryAfter/time.Second) {
			return maxRetryAfter
		}
		return time.Duration(seconds) * time.Second
	}
	at, err := http.ParseTime(value)
	if err != nil {
		return 0
	}
	return min(max(0, at.Sub(now)), maxRetryAfter)
}

// phase is how far a post has come.
type phase int32

const (
	phaseConnect phase = iota
	phaseTLS
	phaseSend
	phaseWait
	phaseRead
)

var phaseNames = [...]string{"while connecting", "in the TLS handshake", "while sending", "while waiting for the answer", "while reading the answer"}

// progress is the phase of a post, set by the transport's goroutines.
type progress struct{ atomic.Int32 }

func (p *progress) reach(ph phase) { p.Store(int32(ph)) }

// blame reads the error of a post that got no answer.
func blame(ctx context.Context, err error, at phase) verdict {
	v := verdict{outcome: Broken, text: err.Error()}
	var address *AddressError
	var resolve *resolveError
	var connect *connectError
	var network net.Error
	switch cause := context.Cause(ctx); {
	case errors.Is(cause, errStopping):
		return verdict{outcome: Returned, text: errStopping.Error()}
	case errors.As(err, &address):
		v.outcome = Forbidden
	case errors.As(err, &resolve):
		v.outcome = Unresolved
	case errors.As(err, &connect):
		v.outcome = Unconnected
	case ctx.Err() != nil, errors.As(err, &network) && network.Timeout():
		v.outcome = TimedOut
		v.text = fmt.Sprintf("no answer in time (%s)", phaseNames[at])
	case at == phaseTLS, isTLS(err):
		v.outcome = Insecure
	}
	return v
}

func isTLS(err error) bool {
	var record tls.RecordHeaderError
	var certificate *tls.CertificateVerificationError
	var alert tls.AlertError
	var unknown x509.UnknownAuthorityError
	return errors.As(err, &record) || errors.As(err, &certificate) || errors.As(err, &alert) || errors.As(err, &unknown)
}
