package client

import (
	"context"
	"sync/atomic"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/connectivity"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/keepalive"

	carillonv1 "github.com/carillon-timers/carillon/proto/carillon/v1"
	"github.com/carillon-timers/carillon/proto/codec"
)

// Limits of a connection. The keep-alive goes with the server's, which allows a ping each 10 s.
const (
	maxMessageBytes  = 16 << 20
	keepaliveTime    = 20 * time.Second
	keepaliveTimeout = 10 * time.Second
	connectTimeout   = 3 * time.Second
	maxConnectDelay  = 2 * time.Second
)

// endpoint is one address and its connection.
type endpoint struct {
	addr       string
	conn       *grpc.ClientConn
	timers     carillonv1.TimersClient
	deliveries carillonv1.DeliveriesClient
	cluster    carillonv1.ClusterClient
	schedules  *lane
	cancels    *lane

	configured   bool         // set once, by the router
	node         string       // the node it leads to, if that was asked; guarded by router.mu
	suspectUntil atomic.Int64 // Unix nanoseconds
}

func (c *Config) dial(addr string) (*grpc.ClientConn, error) {
	creds := c.Credentials
	if creds == nil {
		creds = insecure.NewCredentials()
	}
	options := append([]grpc.DialOption{
		grpc.WithTransportCredentials(creds),
		grpc.WithKeepaliveParams(keepalive.ClientParameters{
			Time: keepaliveTime, Timeout: keepaliveTimeout, PermitWithoutStream: true,
		}),
		grpc.WithConnectParams(grpc.ConnectParams{
			Backoff:           backoff.Config{BaseDelay: 100 * time.Millisecond, Multiplier: 1.6, Jitter: 0.2, MaxDelay: maxConnectDelay},
			MinConnectTimeout: connectTimeout,
		}),
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(maxMessageBytes), grpc.MaxCallSendMsgSize(maxMessageBytes), grpc.ForceCodecV2(codec.New())),
		grpc.WithIdleTimeout(0), // a failover must not wait for a connection
		grpc.WithDisableRetry(), // retries are ours: they keep the request ID
		grpc.WithNoProxy(),      // nodes are reached directly
		grpc.WithDisableServiceConfig(),
		grpc.WithUserAgent("carillon-go"),
	}, c.DialOptions...)
	return grpc.NewClient("passthrough:///"+addr, options...)
}

// open makes the endpoint of an address and starts to connect.
func (c *Client) open(addr string) (*endpoint, error) {
	conn, err := c.cfg.dial(addr)
	if err != nil {
		return nil, &InvalidError{Field: "address", Value: quote(addr), Limit: err.Error()}
	}
	e := &endpoint{
		addr:       addr,
		conn:       conn,
		timers:     carillonv1.NewTimersClient(conn),
		deliveries: carillonv1.NewDeliveriesClient(conn),
		cluster:    carillonv1.NewClusterClient(conn),
	}
	e.schedules = newLane(c.spawn, func(batch []*attempt) { c.sendSchedules(e, batch) })
	e.cancels = newLane(c.spawn, func(batch []*attempt) { c.sendCancels(e, batch) })
	if !c.spawn(func() { e.watch(c.base, c.connected) }) {
		_ = conn.Close()
		return nil, ErrClosed
	}
	return e, nil
}

func (e *endpoint) ready() bool { return e.conn.GetState() == connectivity.Ready }

func (e *endpoint) suspect(now time.Time) bool { return now.UnixNano() < e.suspectUntil.Load() }

func (e *endpoint) close() { _ = e.conn.Close() }

// watch keeps the connection up and tells of each change until the context ends or the connection is closed.
func (e *endpoint) watch(ctx context.Context, tell func(connectivity.State)) {
	for {
		state := e.conn.GetState()
		tell(state)
		switch state {
		case connectivity.Shutdown:
			return
		case connectivity.Idle:
			e.conn.Connect()
		}
		if !e.conn.WaitForStateChange(ctx, state) {
			return
		}
	}
}
