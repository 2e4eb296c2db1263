package client

import (
	"fmt"
	"log/slog"
	"net"
	"os"
	"slices"
	"strconv"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
)

// Defaults of Config.
const (
	DefaultCallTimeout     = 30 * time.Second
	DefaultAttemptTimeout  = 5 * time.Second
	DefaultRefreshInterval = 30 * time.Second
)

// Config says how to reach a cluster. Only Addrs must be set; it is copied by Dial.
type Config struct {
	// Addrs are client addresses (host:port) of one or more nodes. The others are found through them; they stay the way
	// in when the addresses that the nodes advertise cannot be reached from here.
	Addrs []string
	// Namespace is the tenant of all timers of this client, 1 to 63 bytes of [a-z0-9-]; "default" if empty.
	Namespace string
	// Name names this process in logs and errors of the nodes, at most 255 bytes; the host name and process ID if empty.
	Name string
	// CallTimeout bounds a call whose context has no deadline, retries included; 30 s if 0.
	CallTimeout time.Duration
	// AttemptTimeout bounds one attempt of a call; then another node is tried. 5 s if 0. It is for a node that is slow: one that answers
	// nothing at all any more is left after 1.5 s.
	AttemptTimeout time.Duration
	// RefreshInterval is how often the members and leaders are read when nothing hints at a change; 30 s if 0.
	RefreshInterval time.Duration
	// Credentials secure the connections; nil means none.
	Credentials credentials.TransportCredentials
	// DialOptions are added to those of each connection: interceptors, a dialer. What an interceptor sees of ScheduleBatch and CancelBatch
	// has its items encoded already, as unknown fields.
	DialOptions []grpc.DialOption
	// Logger takes the warnings (a panic of a handler, a node that cannot be reached); slog.Default() if nil.
	Logger *slog.Logger
	// Now is the clock; time.Now if nil. It stamps Delivery.Received and measures the time since a first attempt.
	Now func() time.Time
}

func (c Config) withDefaults() Config {
	c.Addrs = slices.Clone(c.Addrs)
	c.DialOptions = slices.Clone(c.DialOptions)
	if c.Namespace == "" {
		c.Namespace = "default"
	}
	if c.Name == "" {
		host, _ := os.Hostname()
		c.Name = fmt.Sprintf("%s/%d", host, os.Getpid())
	}
	if c.CallTimeout == 0 {
		c.CallTimeout = DefaultCallTimeout
	}
	if c.AttemptTimeout == 0 {
		c.AttemptTimeout = DefaultAttemptTimeout
	}
	if c.RefreshInterval == 0 {
		c.RefreshInterval = DefaultRefreshInterval
	}
	if c.Logger == nil {
		c.Logger = slog.Default()
	}
	if c.Now == nil {
		c.Now = time.Now
	}
	return c
}

// Validate names the first field that is not valid, with its value and limit (an *InvalidError).
func (c Config) Validate() error {
	if len(c.Addrs) == 0 {
		return &InvalidError{Field: "address", Limit: "at least one address is needed"}
	}
	for _, addr := range c.Addrs {
		_, port, err := net.SplitHostPort(addr)
		if n, perr := strconv.ParseUint(port, 10, 16); err != nil || perr != nil || n == 0 {
			return &InvalidError{Field: "address", Value: quote(addr), Limit: "host:port is needed, with a port of 1 to 65535"}
		}
	}
	if c.Namespace != "" {
		if err := checkNamespace(c.Namespace); err != nil {
			return err
		}
	}
	if err := checkText("name", c.Name, 0, maxQueueBytes); err != nil {
		return err
	}
	for _, d := range []struct {
		field string
		value time.Duration
	}{
		{"call timeout", c.CallTimeout},
		{"attempt timeout", c.AttemptTimeout},
		{"refresh interval", c.RefreshInterval},
	} {
		if d.value < 0 {
			return &InvalidError{Field: d.field, Value: d.value.String(), Limit: "must not be negative"}
		}
	}
	return nil
}
