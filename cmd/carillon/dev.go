package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/carillon-timers/carillon/node"
)

var _ = register(newDevCommand)

// Ports of carillon dev: node i (from 0) takes port + 100 i for clients, and the numbers behind it as a server has them.
const (
	devStep        = 100
	devPeer        = 1
	devGossip      = 2
	devHTTP        = 80
	devMaxNodes    = 9
	devDefaultPort = 7400

	defaultDevLevel = "warn"
	// devStop is how long a node of carillon dev may take to stop.
	devStop = 4 * time.Second
)

// devOptions are the flags of carillon dev.
type devOptions struct {
	nodes, shards, port int
	dir, logStore       string
	logs                logFlags
	webhooks            node.WebhookConfig // what its flags say
}

func newDevCommand() *cobra.Command {
	var o devOptions
	cmd := &cobra.Command{
		Use:   "dev",
		Short: "Run a whole cluster in this process, with no set-up",
		Long: `Run a whole cluster in this process, with no set-up, until Ctrl-C.

Node i (from 1) listens on 127.0.0.1: clients on port + 100*(i-1), peers on the next port, gossip on the one after
that, HTTP on 80 above: with the defaults 7400, 7401, 7402, 7480; 7500 and so on; 7600 and so on.

Webhooks may go to public addresses, to this machine (127.0.0.0/8, ::1) and to what --webhook-allow says.

Without --dir the data lies in a temporary folder that is removed at the end.`,
		Example: `  carillon dev
  carillon dev --nodes 1 --port 9000
  carillon dev --dir cluster    # keeps the timers for the next start`,
		Args: arguments(),
		RunE: func(cmd *cobra.Command, _ []string) error {
			return o.run(cmd.Context(), cmd.OutOrStdout(), cmd.ErrOrStderr())
		},
	}
	f := cmd.Flags()
	f.SortFlags = false
	f.IntVar(&o.nodes, "nodes", 3, fmt.Sprintf("how many nodes, 1 to %d", devMaxNodes))
	f.StringVar(&o.dir, "dir", "", "keep the data in this `folder`")
	f.IntVar(&o.shards, "shards", 0, fmt.Sprintf("shard `count`, fixed when the cluster is created (default %d)", node.DefaultShards))
	f.IntVar(&o.port, "port", devDefaultPort, "the first node's port for clients")
	f.StringVar(&o.logStore, "log-store", "", logStoreUsage)
	webhookAccess(f, &o.webhooks)
	o.logs.flags(f, defaultDevLevel)
	return cmd
}

func (o *devOptions) run(ctx context.Context, out, errs io.Writer) (err error) {
	if err := o.check(); err != nil {
		return err
	}
	logger, level, err := o.logs.logger(errs)
	if err != nil {
		return err
	}
	// When all nodes stop together each finds the others gone, which is no news.
	defer context.AfterFunc(ctx, func() { level.Set(max(level.Level(), o.levelAtStop())) })()
	if err := o.checkPorts(); err != nil {
		return err
	}
	dir, note := o.dir, "kept"
	if dir == "" {
		if dir, err = os.MkdirTemp("", "carillon-dev-"); err != nil {
			return fmt.Errorf("temporary folder: %w", err)
		}
		note = "removed at the end"
		defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	}
	if err := o.checkDir(); err != nil {
		return err
	}
	var nodes []*node.Node
	for i := range o.nodes {
		n, err := node.New(o.config(i, dir), node.Deps{Logger: logger})
		if err != nil {
			return flagError(err)
		}
		nodes = append(nodes, n)
	}
	fmt.Fprintf(out, "Carillon starts %s ...\n", plural(o.nodes, "node"))
	err = runNodes(ctx, nodes, func() { o.greet(out, nodes, dir, note) })
	if err == nil {
		fmt.Fprintln(out, "Carillon has stopped.")
	}
	return err
}

// levelAtStop is what is logged once the nodes stop: who has asked for more than warnings gets all.
func (o *devOptions) levelAtStop() slog.Level {
	if o.logs.level == defaultDevLevel {
		return slog.LevelError
	}
	return slog.LevelDebug
}

func (o *devOptions) check() error {
	switch top := 65535 - devStep*(o.nodes-1) - devHTTP; {
	case o.nodes < 1 || o.nodes > devMaxNodes:
		return usagef("--nodes %d is not valid: 1 to %d", o.nodes, devMaxNodes)
	case o.port < 1 || o.port > top:
		return usagef("--port %d is not valid: 1 to %d for %s", o.port, top, plural(o.nodes, "node"))
	case o.shards < 0 || o.shards > node.MaxShards:
		return usagef("--shards %d is not valid: 1 to %d", o.shards, node.MaxShards)
	}
	return nil
}

// checkPorts looks at all ports before anything is started, so that the answer is clear.
func (o *devOptions) checkPorts() error {
	for i := range o.nodes {
		for _, offset := range []int{0, devPeer, devGossip, devHTTP} {
			addr := o.addr(i, offset)
			ln, err := net.Listen("tcp", addr)
			if err != nil {
				return fmt.Errorf("port %s is taken (by another carillon?): choose others with --port, for example --port %d: %w",
					strconv.Itoa(o.port+devStep*i+offset), o.port+devStep*devMaxNodes+devStep, err)
			}
			if err := ln.Close(); err != nil {
				return err
			}
		}
	}
	return nil
}

// checkDir refuses to start fewer nodes than the folder's cluster has: they may have no majority.
func (o *devOptions) checkDir() error {
	if o.dir == "" {
		return nil
	}
	for i := o.nodes; i < devMaxNodes; i++ {
		if _, err := os.Stat(filepath.Join(o.dir, devID(i), "node.json")); err == nil {
			return usagef("--nodes %d is not valid: %s holds the data of more nodes (%s): say --nodes %d or more", o.nodes, o.dir, devID(i), i+1)
		}
	}
	return nil
}

func devID(i int) string { return "n" + strconv.Itoa(i+1) }

func (o *devOptions) addr(i, offset int) string {
	return net.JoinHostPort("127.0.0.1", strconv.Itoa(o.port+devStep*i+offset))
}

func (o *devOptions) config(i int, dir string) node.Config {
	c := node.DefaultConfig()
	c.ID, c.Dir, c.Version = devID(i), filepath.Join(dir, devID(i)), buildVersion()
	c.ClientAddr, c.PeerAddr, c.GossipAddr, c.HTTPAddr = o.addr(i, 0), o.addr(i, devPeer), o.addr(i, devGossip), o.addr(i, devHTTP)
	for k := range o.nodes {
		c.Join = append(c.Join, o.addr(k, devGossip))
	}
	c.BootstrapExpect, c.Shards, c.StopTimeout = o.nodes, o.shards, devStop
	c.Webhooks.Allow, c.Webhooks.SecretsFile = slices.Concat(loopback, o.webhooks.Allow), o.webhooks.SecretsFile
	c.LogStore = o.logStore
	return c
}

func (o *devOptions) greet(out io.Writer, nodes []*node.Node, dir, note string) {
	fmt.Fprintf(out, "Carillon runs: %s in this process.\n\n", plural(o.nodes, "node"))
	for i, n := range nodes {
		a := n.Addrs()
		fmt.Fprintf(out, "  %s  clients %s  health and metrics http://%s\n", devID(i), a.Client, a.HTTP)
	}
	fmt.Fprintf(out, "  data in %s (%s)\n\nThree things to try, in another terminal:\n\n", dir, note)
	if o.port != devDefaultPort {
		fmt.Fprintf(out, "  export CARILLON_ADDR=%s\n", o.addr(0, 0))
	}
	fmt.Fprintf(out, `  %[1]s schedule hello --in 2s --queue demo --data hi
  %[1]s work demo
  %[1]s cluster status

Ctrl-C stops it.
`, callName(os.Args[0]))
}

// callName is how a shell calls this program as it was called.
func callName(arg string) string {
	if strings.ContainsFunc(arg, func(r rune) bool { return strings.ContainsRune(" \t\n'\"\\$&;|()<>*?[#~`", r) }) {
		return "'" + strings.ReplaceAll(arg, "'", `'\''`) + "'"
	}
	return arg
}

func plural(n int, noun string) string {
	if n == 1 {
		return "1 " + noun
	}
	return strconv.Itoa(n) + " " + noun + "s"
}
