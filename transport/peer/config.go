package peer

import (
	"context"
	"fmt"
	"log/slog"
	"net"
	"time"
)

// Fixed limits of the wire format.
const (
	// fragmentBytes is the most payload that one frame carries; a larger message travels in several, so that a small
	// urgent frame never waits for more than one of them and what the writer has in hand.
	fragmentBytes = 128 << 10
	// flushBytes is how much the writer collects before it writes.
	flushBytes = 64 << 10
	// activeMax is how many messages of several fragments a connection has under way at once. With many more, on a slow
	// way, each would pass its deadline half sent, and all would be sent again.
	activeMax = 4
	// flapsMax is how many connections in a row may break within BackoffMax and still be dialled again at once.
	flapsMax = 3
	// idleBuffer is the writer's buffer on a connection with nothing to send.
	idleBuffer = 4 << 10
	// maxFrameBytes bounds the payload of a frame that is read: a fragment and its length prefix.
	maxFrameBytes = fragmentBytes + 4
	// maxNameBytes bounds node IDs, cluster IDs, boot IDs and versions.
	maxNameBytes = 255
	// maxHandshakes bounds the connections that have been accepted and have not introduced themselves yet.
	maxHandshakes = 128
	// urgentMax bounds the urgent lane of a connection, in messages.
	urgentMax = 8192
	// minSnapshotRate is the least SnapshotRate, in bytes per second: below it a chunk takes longer than a stall.
	minSnapshotRate = 64 << 10
)

// Config is what a Mux needs. The zero value of every limit and duration means its default.
type Config struct {
	// NodeID is this node's name, 1 to 255 bytes; it is the raft.ServerAddress of its replicas.
	NodeID string
	// BootID names this run of the process, up to 255 bytes; a node that restarts has a new one.
	BootID string
	// Version is the program's version; it is shown to peers and not compared.
	Version string
	// ClusterID returns the cluster's ID, or "" while the node belongs to none. It may grow from "" to an ID while the
	// mux runs, and never change afterwards. It is called often and must not wait. Nil means always "".
	ClusterID func() string
	// Resolve returns the address of a node, host:port. It is called before each dial and must not wait.
	Resolve func(node string) (addr string, ok bool)
	// Dial opens a connection. Nil means a net.Dialer over TCP.
	Dial func(ctx context.Context, addr string) (net.Conn, error)
	// OnPeerLost is called when the connection to a node breaks and the immediate re-dials (0, 2, 10 and 40 ms after)
	// fail. refused says that the process with bootID is gone, or has closed its listener in order to end: the last
	// dial was answered with "connection refused", or another boot has answered in its place. Else nothing is proven. It is called from a goroutine of its own and may
	// wait. Nil means nobody asks.
	OnPeerLost func(node string, bootID string, refused bool)
	// Logger is where losses, refusals and bad frames are logged. Nil discards.
	Logger *slog.Logger

	// CallTimeout is the deadline of a Raft call, and of a Call whose context has none. Default 5 s. A request with
	// large entries gets one more second per MiB.
	CallTimeout time.Duration
	// DialTimeout bounds one dial with its handshake. Default 1 s.
	DialTimeout time.Duration
	// DeadAfter is how long a connection may be silent before it counts as broken; each side sends something at least
	// every third of it. Default 3 s.
	DeadAfter time.Duration
	// BackoffMin and BackoffMax bound the pause after a dial that failed; it doubles. Defaults 10 ms and 1 s.
	BackoffMin, BackoffMax time.Duration

	// MaxMessage is the largest message, in bytes, sent or received. Default 64 MiB. Beyond: ErrTooLarge.
	MaxMessage int
	// GroupQueue is the most messages that one group may have waiting, per connection on the way out and per group on
	// the way in. Default 256. Beyond: ErrQueueFull, or RemoteError of KindBusy.
	GroupQueue int
	// GroupQueueBytes bounds the same in bytes; a single larger message passes alone. Default 64 MiB.
	GroupQueueBytes int
	// Handlers and GroupHandlers bound the calls served at once, in all and per group. Defaults 1,024 and 256.
	// Beyond: RemoteError of KindBusy.
	Handlers, GroupHandlers int
	// AppendBytes bounds the entries of one AppendEntries request; one that is larger is cut to the entries that fit, at
	// least one, and Raft sends the rest in the next. Default 4 MiB, at most half of MaxMessage. Raft itself bounds their number only.
	AppendBytes int
	// PipelineDepth is the most AppendEntries of one pipeline in flight. Default 4, at least 2.
	PipelineDepth int

	// SnapshotRate bounds the bytes per second of all snapshots that this node sends. Default 64 MiB/s, at least
	// 64 KiB/s. SnapshotSends bounds how many are under way at once, until their last byte. Default 2; the
	// others wait.
	SnapshotRate  int
	SnapshotSends int
	// SnapshotStall is how long a transfer may make no progress. Default 10 s.
	SnapshotStall time.Duration
	// RestoreTimeout is how long a follower may take from the last byte to its answer. Default 10 min.
	RestoreTimeout time.Duration
}

// DefaultConfig returns the defaults; NodeID and Resolve remain to be set.
func DefaultConfig() Config {
	return Config{
		CallTimeout: 5 * time.Second, DialTimeout: time.Second, DeadAfter: 3 * time.Second,
		BackoffMin: 10 * time.Millisecond, BackoffMax: time.Second,
		MaxMessage: 64 << 20, GroupQueue: 256, GroupQueueBytes: 64 << 20, Handlers: 1024, GroupHandlers: 256,
		AppendBytes: 4 << 20, PipelineDepth: 4, SnapshotRate: 64 << 20, SnapshotSends: 2, SnapshotStall: 10 * time.Second,
		RestoreTimeout: 10 * time.Minute,
	}
}

// withDefaults fills in what is zero.
func (c Config) withDefaults() Config {
	d := DefaultConfig()
	for _, p := range []struct{ v, def *time.Duration }{
		{&c.CallTimeout, &d.CallTimeout}, {&c.DialTimeout, &d.DialTimeout}, {&c.DeadAfter, &d.DeadAfter},
		{&c.BackoffMin, &d.BackoffMin}, {&c.BackoffMax, &d.BackoffMax}, {&c.SnapshotStall, &d.SnapshotStall},
		{&c.RestoreTimeout, &d.RestoreTimeout},
	} {
		if *p.v == 0 {
			*p.v = *p.def
		}
	}
	for _, p := range []struct{ v, def *int }{
		{&c.MaxMessage, &d.MaxMessage}, {&c.GroupQueue, &d.GroupQueue}, {&c.GroupQueueBytes, &d.GroupQueueBytes},
		{&c.Handlers, &d.Handlers}, {&c.GroupHandlers, &d.GroupHandlers}, {&c.PipelineDepth, &d.PipelineDepth},
		{&c.SnapshotRate, &d.SnapshotRate}, {&c.SnapshotSends, &d.SnapshotSends},
	} {
		if *p.v == 0 {
			*p.v = *p.def
		}
	}
	if c.AppendBytes == 0 {
		c.AppendBytes = min(d.AppendBytes, c.MaxMessage/2)
	}
	if c.ClusterID == nil {
		c.ClusterID = func() string { return "" }
	}
	if c.Resolve == nil {
		c.Resolve = func(string) (string, bool) { return "", false }
	}
	if c.Dial == nil {
		c.Dial = func(ctx context.Context, addr string) (net.Conn, error) {
			return new(net.Dialer).DialContext(ctx, "tcp", addr)
		}
	}
	if c.Logger == nil {
		c.Logger = slog.New(slog.DiscardHandler)
	}
	return c
}

// Validate names the first field that is out of its limits. A zero limit or duration stands for its default.
func (c Config) Validate() error {
	c = c.withDefaults()
	if n := len(c.NodeID); n == 0 || n > maxNameBytes {
		return fmt.Errorf("peer config: NodeID is %d bytes, must be 1 to %d", n, maxNameBytes)
	}
	for name, v := range map[string]string{"BootID": c.BootID, "Version": c.Version} {
		if len(v) > maxNameBytes {
			return fmt.Errorf("peer config: %s is %d bytes, must be at most %d", name, len(v), maxNameBytes)
		}
	}
	for name, d := range map[string]time.Duration{
		"CallTimeout": c.CallTimeout, "DialTimeout": c.DialTimeout, "DeadAfter": c.DeadAfter, "BackoffMin": c.BackoffMin,
		"SnapshotStall": c.SnapshotStall, "RestoreTimeout": c.RestoreTimeout,
	} {
		if d < time.Millisecond {
			return fmt.Errorf("peer config: %s is %v, must be at least 1ms", name, d)
		}
	}
	if c.BackoffMax < c.BackoffMin {
		return fmt.Errorf("peer config: BackoffMax %v is less than BackoffMin %v", c.BackoffMax, c.BackoffMin)
	}
	for _, l := range []struct {
		name          string
		v, least, max int
	}{
		{"MaxMessage", c.MaxMessage, fragmentBytes, 1 << 30}, {"GroupQueue", c.GroupQueue, 8, 1 << 20},
		{"GroupQueueBytes", c.GroupQueueBytes, fragmentBytes, 1 << 40}, {"Handlers", c.Handlers, 1, 1 << 20},
		{"GroupHandlers", c.GroupHandlers, 1, 1 << 20}, {"PipelineDepth", c.PipelineDepth, 2, 128},
		{"AppendBytes", c.AppendBytes, 1, max(c.MaxMessage/2, 1)},
		{"SnapshotRate", c.SnapshotRate, minSnapshotRate, 1 << 40}, {"SnapshotSends", c.SnapshotSends, 1, 256},
	} {
		if l.v < l.least || l.v > l.max {
			return fmt.Errorf("peer config: %s is %d, must be %d to %d", l.name, l.v, l.least, l.max)
		}
	}
	return nil
}
