package client

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"time"

	"google.golang.org/grpc/connectivity"

	carillonv1 "github.com/carillon-timers/carillon/proto/carillon/v1"
)

// Refreshing of the map.
const (
	refreshTimeout = 2 * time.Second
	refreshGap     = 200 * time.Millisecond
)

// Client is a connection to a cluster. It is safe for concurrent use; make one and keep it.
type Client struct {
	cfg    Config                  // set once
	router *router                 // set once
	base   context.Context         // ends with ErrClosed at Close; set once
	cancel context.CancelCauseFunc // set once
	hints  chan struct{}           // holds at most one wish for a refresh

	mu     sync.Mutex
	closed bool           // guarded by mu
	wg     sync.WaitGroup // Add is guarded by mu
}

// Dial connects to one of the addresses and reads the members and the shards. It returns when that is done, or with
// ErrUnavailable when the context ends (CallTimeout, if it has no deadline). A bad configuration is an *InvalidError.
func Dial(ctx context.Context, cfg Config) (*Client, error) {
	if err := cfg.Validate(); err != nil {
		return nil, fmt.Errorf("dial: %w", err)
	}
	c := &Client{cfg: cfg.withDefaults(), hints: make(chan struct{}, 1)}
	c.base, c.cancel = context.WithCancelCause(context.Background())
	c.router = newRouter(c.open, c.cfg.Now)
	if err := c.start(ctx); err != nil {
		c.Close()
		return nil, fmt.Errorf("dial: %w", err)
	}
	return c, nil
}

func (c *Client) start(ctx context.Context) error {
	for _, addr := range c.cfg.Addrs {
		if err := c.router.add(addr, true); err != nil {
			return err
		}
	}
	ctx, cancel := c.withDeadline(ctx)
	defer cancel()
	var last error
	for failures := 0; ; failures++ {
		err := c.firstRefresh(ctx)
		if err == nil {
			break
		}
		if !retriable(err) && ctx.Err() == nil {
			return err
		}
		if ctx.Err() == nil || last == nil {
			last = err
		}
		if sleep(ctx, pause(failures, firstPause, maxPause)) != nil {
			return gaveUp(ctx, false, last)
		}
	}
	c.spawn(func() { c.keepFresh(c.base) })
	return nil
}

// firstRefresh waits a moment for the first address that connects, so that one that hangs holds up nobody.
func (c *Client) firstRefresh(ctx context.Context) error {
	ready, cancel := context.WithTimeout(ctx, refreshTimeout)
	defer cancel()
	c.router.awaitReady(ready) // if none is, refresh says why
	return c.refresh(ctx)
}

// Close ends all calls with ErrClosed and waits for them. Work calls should have returned before.
func (c *Client) Close() error {
	c.mu.Lock()
	c.closed = true
	c.mu.Unlock()
	c.cancel(ErrClosed)
	for _, e := range c.router.list() {
		e.close()
	}
	c.wg.Wait()
	return nil
}

// spawn runs f in a goroutine that Close waits for; false says that the client is closed.
func (c *Client) spawn(f func()) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed {
		return false
	}
	c.wg.Go(f)
	return true
}

// withDeadline bounds a call and ties it to the client's life.
func (c *Client) withDeadline(ctx context.Context) (context.Context, context.CancelFunc) {
	cancelTimeout := context.CancelFunc(func() {})
	if _, ok := ctx.Deadline(); !ok {
		ctx, cancelTimeout = context.WithTimeout(ctx, c.cfg.CallTimeout)
	}
	ctx, cancel := context.WithCancelCause(ctx)
	stop := context.AfterFunc(c.base, func() { cancel(ErrClosed) })
	return ctx, func() {
		stop()
		cancel(nil)
		cancelTimeout()
	}
}

// connected hears of each change of a connection.
func (c *Client) connected(state connectivity.State) {
	c.router.touch()
	if state == connectivity.TransientFailure || state == connectivity.Idle {
		c.hint()
	}
}

// hint asks for a refresh soon.
func (c *Client) hint() {
	select {
	case c.hints <- struct{}{}:
	default:
	}
}

// keepFresh refreshes on hints and periodically.
func (c *Client) keepFresh(ctx context.Context) {
	for {
		timer := time.NewTimer(jitter(c.cfg.RefreshInterval))
		select {
		case <-c.hints:
		case <-timer.C:
		case <-ctx.Done():
		}
		timer.Stop()
		if ctx.Err() != nil {
			return
		}
		// A failure is met again by the call that needs the map; until then the old one serves.
		_ = c.refresh(ctx)
		if sleep(ctx, jitter(2*refreshGap)) != nil {
			return
		}
	}
}

// refresh reads the map from the first address that answers.
func (c *Client) refresh(ctx context.Context) error {
	var last error = &unavailableError{message: "no address"}
	for _, e := range c.router.list() {
		members, shards, err := readMap(ctx, e)
		if err != nil {
			if ctx.Err() != nil {
				return err
			}
			last = atAddress(e.addr, err)
			continue
		}
		c.router.update(members, shards)
		c.nameEndpoints(ctx)
		return nil
	}
	return last
}

func readMap(ctx context.Context, e *endpoint) (*carillonv1.MembersResponse, *carillonv1.ShardsResponse, error) {
	ctx, cancel := context.WithTimeout(ctx, refreshTimeout)
	defer cancel()
	members, err := e.cluster.Members(ctx, &carillonv1.MembersRequest{})
	if err != nil {
		return nil, nil, errorOf(err)
	}
	shards, err := e.cluster.Shards(ctx, &carillonv1.ShardsRequest{})
	if err != nil {
		return nil, nil, errorOf(err)
	}
	return members, shards, nil
}

// atAddress puts the address before what is wrong with it.
func atAddress(addr string, err error) error {
	var unavailable *unavailableError
	if errors.As(err, &unavailable) {
		named := *unavailable
		named.message = addr + ": " + strings.TrimPrefix(named.message, "dial tcp "+addr+": ")
		return &named
	}
	return err
}

// nameEndpoints asks the configured addresses that no member advertises which node they lead to: they may be the only
// way to it (a port that is forwarded).
func (c *Client) nameEndpoints(ctx context.Context) {
	for _, e := range c.router.unnamed() {
		ctx, cancel := context.WithTimeout(ctx, refreshTimeout)
		if pb, err := e.cluster.Status(ctx, &carillonv1.StatusRequest{}); err == nil {
			c.router.name(e, pb.GetNodeId())
		}
		cancel()
	}
}

// wrap says which call failed.
func wrap(call, id string, err error) error {
	if id == "" {
		return fmt.Errorf("%s: %w", call, err)
	}
	return fmt.Errorf("%s %s: %w", call, quote(id), err)
}
