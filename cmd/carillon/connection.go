package main

import (
	"context"
	"io"
	"os"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"google.golang.org/grpc"

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

// dial connects, within the context; on errs it says what it waits for if that takes long.
func (c *connection) dial(ctx context.Context, errs io.Writer) (cl *client.Client, err error) {
	var addrs []string
	for addr := range strings.SplitSeq(c.addr, ",") {
		if addr = strings.TrimSpace(addr); addr != "" {
			addrs = append(addrs, addr)
		}
	}
	r := &reach{addrs: addrs, errs: make(map[string]error)}
	config := client.Config{Addrs: addrs, Namespace: c.namespace, DialOptions: []grpc.DialOption{grpc.WithContextDialer(r.dial)}}
	r.during(errs, func() { cl, err = client.Dial(ctx, config) })
	return cl, err
}

// do connects, runs f within the timeout and closes.
func (c *connection) do(cmd *cobra.Command, f func(context.Context, *client.Client) error) error {
	if c.timeout <= 0 {
		return usagef("--timeout %v is not valid: must be positive", c.timeout)
	}
	ctx, cancel := context.WithTimeoutCause(cmd.Context(), c.timeout, &timeoutError{c.timeout})
	defer cancel()
	cl, err := c.dial(ctx, cmd.ErrOrStderr())
	if err != nil {
		return err
	}
	defer cl.Close()
	return f(ctx, cl)
}
