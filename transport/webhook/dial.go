package webhook

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"sync"
	"time"
)

const (
	// maxAddrs bounds the addresses of a name that are tried, dialStagger is how long one is waited for before the next is
	// tried beside it.
	maxAddrs    = 8
	dialStagger = 250 * time.Millisecond
)

// dialer connects to addresses that it has checked. The name is looked up once, so that what was checked is what is dialled.
type dialer struct {
	config *Config         // set before sharing
	ctx    context.Context // set before sharing; ends what is under way when the Poster stops
}

// resolveError and connectError say in which phase a connection failed.
type (
	resolveError struct{ err error }
	connectError struct{ err error }
)

func (e *resolveError) Error() string { return e.err.Error() }
func (e *resolveError) Unwrap() error { return e.err }
func (e *connectError) Error() string { return e.err.Error() }
func (e *connectError) Unwrap() error { return e.err }

// dial is http.Transport's DialContext. The transport goes on dialling when the request that asked for it has ended, so the
// time is bounded here.
func (d *dialer) dial(ctx context.Context, network, addr string) (net.Conn, error) {
	ctx, cancel := context.WithTimeout(ctx, d.config.DialTimeout)
	defer cancel()
	defer context.AfterFunc(d.ctx, cancel)()
	host, port, err := net.SplitHostPort(addr)
	if err != nil {
		return nil, &connectError{err}
	}
	addrs, err := d.addrs(ctx, host)
	if err != nil {
		return nil, err
	}
	conn, err := d.race(ctx, network, addrs, port)
	if err != nil {
		return nil, &connectError{err}
	}
	return conn, nil
}

// addrs are the addresses of a host that may be dialled.
func (d *dialer) addrs(ctx context.Context, host string) ([]netip.Addr, error) {
	policy := d.config.Policy
	if addr, err := netip.ParseAddr(host); err == nil {
		return []netip.Addr{addr}, policy.CheckAddr(addr)
	}
	name, rule := hostName(host)
	if rule != "" {
		return nil, &resolveError{errors.New(rule)}
	}
	all, err := d.config.Resolve(ctx, host)
	if err != nil {
		return nil, &resolveError{err}
	}
	if len(all) == 0 {
		return nil, &resolveError{fmt.Errorf("%s has no address", name)}
	}
	var fit []netip.Addr
	var refused error
	for _, addr := range all {
		addr = addr.Unmap()
		if err := policy.CheckAddr(addr); err != nil && !policy.allowsHost(name) {
			refused = fmt.Errorf("%s: %w", name, err)
			continue
		}
		fit = append(fit, addr)
	}
	if len(fit) == 0 {
		return nil, refused
	}
	return fit[:min(len(fit), maxAddrs)], nil
}

// race dials one address after the other, each a little later than the one before, and keeps the first that answers.
func (d *dialer) race(ctx context.Context, network string, addrs []netip.Addr, port string) (net.Conn, error) {
	if len(addrs) == 1 {
		return d.config.Dial(ctx, network, net.JoinHostPort(addrs[0].String(), port))
	}
	ctx, cancel := context.WithCancel(ctx)
	var (
		all  sync.WaitGroup
		mu   sync.Mutex
		won  net.Conn // guarded by mu
		errs []error  // guarded by mu
	)
	failed := make(chan struct{}, len(addrs))
	for i, addr := range addrs {
		if i > 0 && !stagger(ctx, failed) {
			break // one has answered, or the time is over
		}
		all.Go(func() {
			conn, err := d.config.Dial(ctx, network, net.JoinHostPort(addr.String(), port))
			mu.Lock()
			defer mu.Unlock()
			switch {
			case err != nil:
				errs = append(errs, err)
				failed <- struct{}{}
			case won != nil:
				_ = conn.Close() // it came second
			default:
				won = conn
				cancel()
			}
		})
	}
	all.Wait()
	cancel()
	if won != nil {
		return won, nil
	}
	return nil, errors.Join(errs...)
}

// stagger waits until the next address is to be tried: at once if one has failed. False means that none is.
func stagger(ctx context.Context, failed <-chan struct{}) bool {
	timer := time.NewTimer(dialStagger)
	defer timer.Stop()
	select {
	case <-failed:
		return ctx.Err() == nil
	case <-timer.C:
		return true
	case <-ctx.Done():
		return false
	}
}
