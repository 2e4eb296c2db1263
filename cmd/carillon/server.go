package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"strings"
	"sync"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/carillon-timers/carillon/node"
)

var _ = register(newServerCommand)

// logFlags are --log-level and --log-format.
type logFlags struct{ level, format string }

func (l *logFlags) flags(f *pflag.FlagSet, level string) {
	f.StringVar(&l.level, "log-level", level, "what is logged: debug, info, warn or error")
	f.StringVar(&l.format, "log-format", "text", "how it is logged: text or json")
}

// logger returns the logger and its level, which may be changed later.
func (l *logFlags) logger(w io.Writer) (*slog.Logger, *slog.LevelVar, error) {
	level := new(slog.LevelVar)
	if err := level.UnmarshalText([]byte(l.level)); err != nil || strings.ContainsAny(l.level, "+-") {
		return nil, nil, usagef("--log-level %q is not valid: debug, info, warn or error", l.level)
	}
	options := &slog.HandlerOptions{Level: level}
	switch l.format {
	case "text":
		return slog.New(slog.NewTextHandler(w, options)), level, nil
	case "json":
		return slog.New(slog.NewJSONHandler(w, options)), level, nil
	}
	return nil, nil, usagef("--log-format %q is not valid: text or json", l.format)
}

func newServerCommand() *cobra.Command {
	c := node.DefaultConfig()
	c.Version = buildVersion()
	var logs logFlags
	var huge bool
	cmd := &cobra.Command{
		Use:   "server --id ID --dir DIR",
		Short: "Run one node of a cluster",
		Long: `Run one node of a cluster until it gets SIGINT or SIGTERM; then it hands its leaderships over and stops.

The first start of a cluster needs --bootstrap-expect, the same on all its nodes: when that many have found each
other through --join, they create the cluster together. A node started without it joins the cluster that --join
finds. A node with data needs neither: it finds the others where they were, or through --join if all have moved.

The data folder belongs to one node ID for ever. A node that has lost its folder must come back under a new ID.

On Linux short sleeps of its threads may last up to $CARILLON_TIMER_SLACK longer (default 500us; 0 leaves the system's): timers do not
come later for it.`,
		Example: `  carillon server --id n1 --dir /var/lib/carillon --join n1.example,n2.example,n3.example --bootstrap-expect 3
  carillon server --id n1 --dir d1 --bootstrap-expect 1    # a cluster of one`,
		Args: arguments(),
		RunE: func(cmd *cobra.Command, _ []string) error {
			logger, _, err := logs.logger(cmd.ErrOrStderr())
			if err != nil {
				return err
			}
			if c.ID == "" || c.Dir == "" {
				return usagef("--id and --dir are needed; usage: %s", cmd.UseLine())
			}
			if cmd.Flags().Changed("shards") && c.Shards == 0 {
				return usagef("--shards 0 is not valid: 1 to %d", node.MaxShards)
			}
			if err := c.Validate(); err != nil {
				return flagError(err)
			}
			if huge {
				ctx, cancel := context.WithCancel(cmd.Context())
				var pages sync.WaitGroup
				pages.Go(func() { tellHugePages(ctx, logger) })
				defer pages.Wait()
				defer cancel()
			}
			return serve(cmd.Context(), c, node.Deps{Logger: logger}, cmd.OutOrStdout())
		},
	}
	serverFlags(cmd.Flags(), &c)
	cmd.Flags().BoolVar(&huge, "huge-pages", true, "ask the system for huge pages for the memory of the timers (Linux)")
	logs.flags(cmd.Flags(), "info")
	return cmd
}

// logStoreUsage describes --log-store of server and dev.
const logStoreUsage = "how the Raft logs are kept, a `kind`: segment (one log for all shards) or bolt (a file per shard); fixed when the folder is made, " +
	"segment in a new one"

func serverFlags(f *pflag.FlagSet, c *node.Config) {
	f.SortFlags = false
	f.StringVar(&c.ID, "id", "", "the node's `name` in the cluster, for ever")
	f.StringVar(&c.Dir, "dir", "", "the data `folder`, made if it is not there")
	f.StringVar(&c.ClientAddr, "client", c.ClientAddr, "listen here for clients, `host:port`")
	f.StringVar(&c.PeerAddr, "peer", c.PeerAddr, "listen here for the other nodes, `host:port`")
	f.StringVar(&c.GossipAddr, "gossip", c.GossipAddr, "listen here for gossip, `host:port` (TCP and UDP)")
	f.StringVar(&c.HTTPAddr, "http", c.HTTPAddr, "listen here for health and metrics, `host:port`; empty for none")
	f.StringSliceVar(&c.Join, "join", nil, "gossip `addresses` of other nodes, parted by commas; this node's own does no harm")
	f.IntVar(&c.BootstrapExpect, "bootstrap-expect", 0, "create a cluster of `N` nodes if there is none")
	f.IntVar(&c.Shards, "shards", 0, fmt.Sprintf("shard `count` of the cluster, fixed when it is created (default %d)", node.DefaultShards))
	f.StringVar(&c.AdvertiseHost, "advertise", "", "the `host` by which others reach this node (default: that of the listeners, or this machine's first address)")
	f.StringVar(&c.AdvertiseClientAddr, "advertise-client", "", "the `host:port` by which clients reach this node")
	f.StringVar(&c.AdvertisePeerAddr, "advertise-peer", "", "the `host:port` by which the other nodes reach this node")
	f.StringVar(&c.AdvertiseGossipAddr, "advertise-gossip", "", "the `host:port` by which gossip reaches this node")
	f.StringVar(&c.AdvertiseHTTPAddr, "advertise-http", "", "the `host:port` by which HTTP reaches this node")
	f.DurationVar(&c.StopTimeout, "stop-timeout", c.StopTimeout, "how long a stop may take")
	f.StringVar(&c.LogStore, "log-store", "", logStoreUsage)
	f.IntVar(&c.SnapshotEntries, "snapshot-entries", c.SnapshotEntries, "write a snapshot of a shard after this `number` of log entries, or 64 MiB of log")
	webhookFlags(f, &c.Webhooks)
	f.IntVar(&c.Loops, "loops", c.Loops, "how many timer loops fire the shards")
	f.BoolVar(&c.PProf, "pprof", false, "serve /debug/pprof on the HTTP address")
}

// configFlags are the flags of the fields of node.Config that a command line can get wrong.
var configFlags = map[string]string{
	"ID": "id", "Dir": "dir", "ClientAddr": "client", "PeerAddr": "peer", "GossipAddr": "gossip", "HTTPAddr": "http", "Join": "join",
	"BootstrapExpect": "bootstrap-expect", "Shards": "shards", "AdvertiseHost": "advertise", "AdvertiseClientAddr": "advertise-client",
	"AdvertisePeerAddr": "advertise-peer", "AdvertiseGossipAddr": "advertise-gossip", "AdvertiseHTTPAddr": "advertise-http",
	"StopTimeout": "stop-timeout", "LogStore": "log-store", "SnapshotEntries": "snapshot-entries", "Loops": "loops", "Webhooks.Allow": "webhook-allow",
	"Webhooks.Concurrency": "webhook-concurrency", "Webhooks.Rate": "webhook-rate", "Webhooks.Timeout": "webhook-timeout",
	"Webhooks.Redirects": "webhook-redirects",
}

// flagError says what is wrong with a config in the words of the command line.
func flagError(err error) error {
	var wrong *node.ConfigError
	if errors.As(err, &wrong) && configFlags[wrong.Field] != "" {
		return usagef("--%s %s is not valid: %s", configFlags[wrong.Field], wrong.Value, wrong.Limit)
	}
	return &usageError{err}
}

// serve runs one node until the context ends, and says on out when it is ready.
func serve(ctx context.Context, c node.Config, d node.Deps, out io.Writer) error {
	n, err := node.New(c, d)
	if err != nil {
		return flagError(err)
	}
	return runNodes(ctx, []*node.Node{n}, func() {
		a := n.Addrs()
		fmt.Fprintf(out, "carillon %s is ready: clients %s, peers %s, gossip %s, HTTP %s\n", c.ID, a.Client, a.Peer, a.Gossip, orNone(a.HTTP))
	})
}

func orNone(s string) string {
	if s == "" {
		return "none"
	}
	return s
}

// runNodes runs nodes until the context ends or one of them stops by itself; ready is called once, when all are.
func runNodes(ctx context.Context, nodes []*node.Node, ready func()) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	errs := make([]error, len(nodes))
	var all sync.WaitGroup
	for i, n := range nodes {
		all.Go(func() {
			defer cancel()
			errs[i] = n.Run(ctx)
		})
	}
	allReady := true
	for _, n := range nodes {
		select {
		case <-n.Ready():
		case <-ctx.Done():
			allReady = false
		}
	}
	if allReady {
		ready()
	}
	all.Wait()
	return errors.Join(errs...)
}
