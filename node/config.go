package node

import (
	"context"
	"fmt"
	"log/slog"
	"net"
	"strings"
	"time"

	"github.com/carillon-timers/carillon/shard"
)

// Limits of a node's configuration and of a cluster.
const (
	// DefaultShards is the shard count of a cluster that is created without one.
	DefaultShards = 16
	// MaxShards bounds the shard count.
	MaxShards = 256
	// MaxNodeIDBytes bounds a node ID: 1 to 63 bytes of [A-Za-z0-9._-].
	MaxNodeIDBytes = 63
	// MaxDirectoryVoters bounds the voters of the directory group; further nodes only listen.
	MaxDirectoryVoters = 5
	// ReplicasPerShard is how many replicas a shard has, if the cluster has as many nodes.
	ReplicasPerShard = 3
	// MaxLoops bounds the timer loops of a node.
	MaxLoops = 16
)

// Config says who a node is, where it listens and what it joins. It is copied in New.
type Config struct {
	// ID names the node in the cluster, for ever: 1 to 63 bytes of [A-Za-z0-9._-]. No default.
	ID string
	// Dir holds all that the node keeps; it is created if it is not there. One process at a time. No default.
	Dir string

	// ClientAddr, PeerAddr, GossipAddr and HTTPAddr are what the node listens on, host:port; port 0 takes a free one. An
	// empty host means all interfaces. Defaults: ports 7400, 7401, 7402 and 7480 on all interfaces. An empty HTTPAddr
	// serves no HTTP.
	ClientAddr, PeerAddr, GossipAddr, HTTPAddr string
	// AdvertiseHost is the host by which others reach this node. Default: the host of each listener, or, if that is empty
	// or unspecified, the first address of this machine that is not loopback.
	AdvertiseHost string
	// AdvertiseClientAddr, AdvertisePeerAddr, AdvertiseGossipAddr and AdvertiseHTTPAddr, host:port, each replace what
	// follows from the listener and AdvertiseHost, for nodes behind a translation of addresses.
	AdvertiseClientAddr, AdvertisePeerAddr, AdvertiseGossipAddr, AdvertiseHTTPAddr string

	// Join lists gossip addresses of other nodes; the node's own is ignored. Default: none.
	Join []string
	// BootstrapExpect is with how many nodes (itself included) this node creates a cluster if there is none yet; 0 never
	// creates one. All of them must say the same. A node with data ignores it. 0 to 64.
	BootstrapExpect int
	// Shards is the shard count of the cluster, 1 to 256, fixed when it is created; a start that says another number is
	// refused. 0 (the default) takes the cluster's, and DefaultShards to create one.
	Shards int

	// HeartbeatTimeout, ElectionTimeout and LeaseTimeout are those of all Raft groups. Defaults 500, 500 and 400 ms; the
	// lease is at most nine tenths of the heartbeat.
	HeartbeatTimeout, ElectionTimeout, LeaseTimeout time.Duration
	// Loops is how many timer loops fire the shards, 1 to 16. Default 1.
	Loops int
	// RouteTimeout bounds how long a call that was not applied is tried again while a shard has no leader. Default 1 s.
	RouteTimeout time.Duration
	// BalanceAfter is how long a shard's preferred leader must have been alive, and the shard led by another, before the
	// leadership is handed back. Default 5 s; at least twice the election time-out.
	BalanceAfter time.Duration
	// StopTimeout bounds a stop in all. Default 10 s; at least 1 s.
	StopTimeout time.Duration
	// RejoinEvery is how often gossip is tried with seeds and members that are not seen. Default 15 s; at least 1 s.
	RejoinEvery time.Duration
	// LogStore is where the Raft logs lie: LogStoreSegment or LogStoreBolt. A data folder keeps the one that it was made with;
	// empty, the default, is that one, and LogStoreSegment in a new folder.
	LogStore string
	// SnapshotEntries is after how many log entries a shard's state is written to a snapshot (or after 64 MiB of log). The log
	// since the last one is what a start has to read again. 100 to 10,000,000; default 32,768.
	SnapshotEntries int
	// Webhooks says how timers are posted to webhooks.
	Webhooks WebhookConfig
	// PProf serves /debug/pprof on the HTTP address. Default off.
	PProf bool
	// Version is shown to others. Default "dev".
	Version string
}

// Deps are what a node takes from outside; every field may be zero.
type Deps struct {
	// Now is the wall clock. Default time.Now.
	Now func() time.Time
	// Logger takes all logs, also those of the libraries. Default slog.Default().
	Logger *slog.Logger
	// Listen opens the client, peer and HTTP listeners. Default net.Listen.
	Listen func(network, addr string) (net.Listener, error)
	// Dial opens connections to peers. Default net.Dialer.
	Dial func(ctx context.Context, addr string) (net.Conn, error)
}

// DefaultConfig returns the defaults; ID and Dir must be set.
func DefaultConfig() Config {
	return Config{
		ClientAddr: ":7400", PeerAddr: ":7401", GossipAddr: ":7402", HTTPAddr: ":7480",
		HeartbeatTimeout: 500 * time.Millisecond,
		ElectionTimeout:  500 * time.Millisecond,
		LeaseTimeout:     400 * time.Millisecond,
		Loops:            1,
		RouteTimeout:     time.Second,
		BalanceAfter:     5 * time.Second,
		StopTimeout:      10 * time.Second,
		RejoinEvery:      15 * time.Second,
		SnapshotEntries:  int(shard.DefaultConfig().SnapshotEntries),
		Webhooks:         defaultWebhookConfig(),
		Version:          "dev",
	}
}

// Validate names the first field that is wrong, its value and the limit: a *ConfigError.
func (c Config) Validate() error {
	if err := validNodeID(c.ID); err != nil {
		return err
	}
	if c.Dir == "" {
		return invalid("Dir", `""`, "must be set")
	}
	if err := c.validateAddrs(); err != nil {
		return err
	}
	if err := validLogStore(c.LogStore); err != nil {
		return err
	}
	if err := c.Webhooks.Validate(); err != nil {
		return err
	}
	switch {
	case c.BootstrapExpect < 0 || c.BootstrapExpect > 64:
		return invalid("BootstrapExpect", c.BootstrapExpect, "0 to 64")
	case c.Shards < 0 || c.Shards > MaxShards:
		return invalid("Shards", c.Shards, fmt.Sprintf("1 to %d, or 0 for the cluster's", MaxShards))
	case c.Loops < 1 || c.Loops > MaxLoops:
		return invalid("Loops", c.Loops, fmt.Sprintf("1 to %d", MaxLoops))
	case c.HeartbeatTimeout < 20*time.Millisecond || c.HeartbeatTimeout > time.Minute:
		return invalid("HeartbeatTimeout", c.HeartbeatTimeout, "20ms to 1m")
	case c.ElectionTimeout < c.HeartbeatTimeout || c.ElectionTimeout > time.Minute:
		return invalid("ElectionTimeout", c.ElectionTimeout, fmt.Sprintf("HeartbeatTimeout (%v) to 1m", c.HeartbeatTimeout))
	case c.LeaseTimeout < 10*time.Millisecond || c.LeaseTimeout > c.HeartbeatTimeout*9/10:
		return invalid("LeaseTimeout", c.LeaseTimeout, fmt.Sprintf("10ms to 9/10 of HeartbeatTimeout (%v)", c.HeartbeatTimeout*9/10))
	case c.RouteTimeout <= 0 || c.RouteTimeout > time.Minute:
		return invalid("RouteTimeout", c.RouteTimeout, "above 0, at most 1m")
	case c.BalanceAfter < 2*c.ElectionTimeout:
		return invalid("BalanceAfter", c.BalanceAfter, fmt.Sprintf("at least twice ElectionTimeout (%v)", c.ElectionTimeout))
	case c.StopTimeout < time.Second || c.StopTimeout > 10*time.Minute:
		return invalid("StopTimeout", c.StopTimeout, "1s to 10m")
	case c.RejoinEvery < time.Second || c.RejoinEvery > time.Hour:
		return invalid("RejoinEvery", c.RejoinEvery, "1s to 1h")
	case c.SnapshotEntries < 100 || c.SnapshotEntries > 10_000_000:
		return invalid("SnapshotEntries", c.SnapshotEntries, "100 to 10,000,000")
	case len(c.Version) > 64:
		return invalid("Version", c.Version, "at most 64 bytes")
	}
	return nil
}

func (c Config) validateAddrs() error {
	for _, a := range []struct {
		name, value string
		optional    bool
	}{
		{"ClientAddr", c.ClientAddr, false}, {"PeerAddr", c.PeerAddr, false}, {"GossipAddr", c.GossipAddr, false},
		{"HTTPAddr", c.HTTPAddr, true}, {"AdvertiseClientAddr", c.AdvertiseClientAddr, true},
		{"AdvertisePeerAddr", c.AdvertisePeerAddr, true}, {"AdvertiseGossipAddr", c.AdvertiseGossipAddr, true},
		{"AdvertiseHTTPAddr", c.AdvertiseHTTPAddr, true},
	} {
		if a.value == "" && a.optional {
			continue
		}
		if err := validAddr(a.value); err != nil {
			return invalid(a.name, fmt.Sprintf("%q", a.value), err.Error())
		}
	}
	for _, seed := range c.Join {
		if err := validAddr(withPort(seed, defaultGossipPort)); err != nil {
			return invalid("Join", fmt.Sprintf("%q", seed), err.Error())
		}
	}
	return nil
}

const defaultGossipPort = "7402"

// ConfigError names the field of Config that is not valid (those of Webhooks as "Webhooks.Rate"), its value and the limit.
type ConfigError struct{ Field, Value, Limit string }

func (e *ConfigError) Error() string {
	return fmt.Sprintf("config: %s: %s is not valid: %s", e.Field, e.Value, e.Limit)
}

func invalid(field string, value any, limit string) error {
	return &ConfigError{field, fmt.Sprint(value), limit}
}

func validNodeID(id string) error {
	ok := func(r rune) bool {
		return r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9' || strings.ContainsRune("._-", r)
	}
	if id == "" || len(id) > MaxNodeIDBytes || strings.ContainsFunc(id, func(r rune) bool { return !ok(r) }) {
		return invalid("ID", fmt.Sprintf("%q", id), fmt.Sprintf("1 to %d bytes of [A-Za-z0-9._-]", MaxNodeIDBytes))
	}
	return nil
}

func validAddr(addr string) error {
	_, port, err := net.SplitHostPort(addr)
	if err != nil {
		return fmt.Errorf("must be host:port (%w)", err)
	}
	if _, err := net.LookupPort("tcp", port); err != nil {
		return fmt.Errorf("must be host:port (%w)", err)
	}
	return nil
}

// withPort adds a port to a host name or IP address that has none; anything else stays as it is.
func withPort(addr, port string) string {
	host := strings.Trim(addr, "[]")
	if strings.Contains(host, ":") && net.ParseIP(host) == nil {
		return addr
	}
	return net.JoinHostPort(host, port)
}
