package webhook

import (
	"context"
	"crypto/tls"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"time"

	"github.com/carillon-timers/carillon/raftfsm"
)

// Limits of a Poster's configuration.
const (
	// MaxConcurrency bounds what one host may be configured to be sent at the same time, MaxRate what in one second.
	MaxConcurrency = 1000
	MaxRate        = 100_000
	// MinTimeout and MaxTimeout bound the whole of one post.
	MinTimeout = 100 * time.Millisecond
	MaxTimeout = time.Hour
	// MaxRedirects bounds how many redirects may be followed.
	MaxRedirects = 10
	// MaxTotal bounds what all hosts together are sent at the same time, their unsettled answers included.
	MaxTotal = 1024
)

// Config says how a Poster posts. It is copied in New.
type Config struct {
	// Now is the wall clock: signatures, Retry-After and leases. Monotonic is for durations. Both are needed.
	Now, Monotonic func() time.Time
	// Logger takes the logs; slog.Default by default.
	Logger *slog.Logger
	// Settle brings commands (Complete, Retry) to the leaders of their shards and answers in their order; nil is done. Needed.
	Settle func(ctx context.Context, commands []*raftfsm.Command) []error
	// Policy says which addresses are allowed; nil means public ones alone.
	Policy *Policy
	// Concurrency is how many posts one host (scheme, host and port) may have at the same time from this node, 1 to 1,000; 16 by
	// default. A host that has not answered three times in a row gets one at a time until it does.
	Concurrency int
	// Rate is how many posts one host gets in a second from this node, evenly, up to a tenth more after a pause; 0, the
	// default, means no limit but Concurrency. At most 100,000.
	Rate int
	// Timeout bounds one post in all, up to the head of the answer, 100 ms to 1 h; 15 s by default. A timer whose lease is shorter gets
	// less: its post ends before its lease does.
	Timeout time.Duration
	// DialTimeout bounds looking up the name and connecting, TLSTimeout the handshake, HeaderTimeout the wait for the head of the
	// answer after the request was sent, BodyTimeout reading its body. Defaults 5 s, 5 s, 0 (Timeout alone) and 2 s.
	DialTimeout, TLSTimeout, HeaderTimeout, BodyTimeout time.Duration
	// Redirects is how many redirects (307 and 308) are followed, 0 to 10; 0 by default: they are failures.
	Redirects int
	// StopTimeout bounds a stop; 5 s by default. For half of it posts may finish, then they are broken off and given back.
	StopTimeout time.Duration
	// UserAgent is sent with each post, unless the timer has one of its own. Default "Carillon".
	UserAgent string

	// Resolve looks a host name up and Dial connects to an address; both are the system's by default.
	Resolve func(ctx context.Context, host string) ([]netip.Addr, error)
	Dial    func(ctx context.Context, network, addr string) (net.Conn, error)
	// TLS is what TLS needs beyond the defaults (roots, for tests); it may be nil.
	TLS *tls.Config
}

// DefaultConfig is a config that lacks only Now, Monotonic and Settle.
func DefaultConfig() Config {
	var dialer net.Dialer
	return Config{
		Logger:      slog.Default(),
		Concurrency: 16,
		Timeout:     15 * time.Second,
		DialTimeout: 5 * time.Second,
		TLSTimeout:  5 * time.Second,
		BodyTimeout: 2 * time.Second,
		StopTimeout: 5 * time.Second,
		UserAgent:   "Carillon",
		Resolve: func(ctx context.Context, host string) ([]netip.Addr, error) {
			return net.DefaultResolver.LookupNetIP(ctx, "ip", host)
		},
		Dial: dialer.DialContext,
	}
}

// ConfigError names the field of Config that is not valid (Allow is what NewPolicy was given), its value and the limit.
type ConfigError struct{ Field, Value, Limit string }

func (e *ConfigError) Error() string {
	return fmt.Sprintf("webhook config: %s: %s is not valid: %s", e.Field, e.Value, e.Limit)
}

// Validate names the first field that is out of its limits, its value and the limit: a *ConfigError.
func (c Config) Validate() error {
	invalid := func(field string, value any, limit string) error {
		return &ConfigError{field, fmt.Sprint(value), limit}
	}
	switch {
	case c.Now == nil || c.Monotonic == nil || c.Logger == nil || c.Settle == nil || c.Resolve == nil || c.Dial == nil:
		return invalid("Now, Monotonic, Logger, Settle, Resolve, Dial", "(unset)", "all must be set")
	case c.Concurrency < 1 || c.Concurrency > MaxConcurrency:
		return invalid("Concurrency", c.Concurrency, fmt.Sprintf("1 to %d", MaxConcurrency))
	case c.Rate < 0 || c.Rate > MaxRate:
		return invalid("Rate", c.Rate, fmt.Sprintf("1 to %d, or 0 for no limit", MaxRate))
	case c.Timeout < MinTimeout || c.Timeout > MaxTimeout:
		return invalid("Timeout", c.Timeout, fmt.Sprintf("%v to %v", MinTimeout, MaxTimeout))
	case c.DialTimeout <= 0 || c.TLSTimeout <= 0 || c.BodyTimeout <= 0:
		return invalid("DialTimeout, TLSTimeout, BodyTimeout", []time.Duration{c.DialTimeout, c.TLSTimeout, c.BodyTimeout}, "above 0")
	case c.HeaderTimeout < 0:
		return invalid("HeaderTimeout", c.HeaderTimeout, "above 0, or 0 for Timeout")
	case c.Redirects < 0 || c.Redirects > MaxRedirects:
		return invalid("Redirects", c.Redirects, fmt.Sprintf("0 to %d", MaxRedirects))
	case c.StopTimeout <= 0:
		return invalid("StopTimeout", c.StopTimeout, "above 0")
	case !validValue(c.UserAgent):
		return invalid("UserAgent", fmt.Sprintf("%q", c.UserAgent), "what HTTP can carry in a header")
	}
	return nil
}
