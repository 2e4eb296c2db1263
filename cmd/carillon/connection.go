package main

import (
	"context"
	"os"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/carillon-timers/carillon/client"
)

const defaultAddr = "127.0.0.1:7400"

// connection holds the flags of every command that talks to a cluster.
type connection struct {
	addr      string
	namespace string
	timeout   time.Duration
}

func (c *connection) flags(f *pflag.FlagSet) {
	addr := os.Getenv("CARILLON_ADDR")
	if addr == "" {
		addr = defaultAddr
	}
	f.StringVar(&c.addr, "addr", addr, "client `address` of one or more nodes, separated by commas ($CARILLON_ADDR)")
	f.DurationVar(&c.timeout, "timeout", 10*time.Second, "give up after this `time`, retries included")
}

// flagsWithNamespace adds the tenant, for the commands about timers.
func (c *connection) flagsWithNamespace(f *pflag.FlagSet) {
	c.flags(f)
	f.StringVar(&c.namespace, "namespace", "default", "the `tenant` of the timer")
}

// dial connects, within the context.
func (c *connection) dial(ctx context.Context) (*client.Client, error) {
	var addrs []string
	for addr := range strings.SplitSeq(c.addr, ",") {
		if addr = strings.TrimSpace(addr); addr != "" {
			addrs = append(addrs, addr)
		}
	}
	return client.Dial(ctx, client.Config{Addrs: addrs, Namespace: c.namespace})
}

// do connects, runs f within the timeout and closes.
func (c *connection) do(cmd *cobra.Command, f func(context.Context, *client.Client) error) error {
	if c.timeout <= 0 {
		return usagef("--timeout %v is not valid: must be positive", c.timeout)
	}
	ctx, cancel := context.WithTimeoutCause(cmd.Context(), c.timeout, &timeoutError{c.timeout})
	defer cancel()
	cl, err := c.dial(ctx)
	if err != nil {
		return err
	}
	defer cl.Close()
	return f(ctx, cl)
}
