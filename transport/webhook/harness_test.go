package webhook

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"sync"
	"testing"
	"time"

	logv1 "github.com/carillon-timers/carillon/proto/carillonlog/v1"
	"github.com/carillon-timers/carillon/raftfsm"
	"github.com/carillon-timers/carillon/shard/executor"
)

// source is the ready lists of a shard.
type source struct {
	shard uint32
	now   func() time.Time // set before sharing

	mu    sync.Mutex
	ready map[executor.Queue][]executor.Delivery
	// during is called once, in the next Take, when it has taken; guarded by mu.
	during func()
}

func (s *source) Shard() uint32 { return s.shard }

func (s *source) Take(q executor.Queue, most int) []executor.Delivery {
	got, during := s.take(q, most)
	if during != nil {
		during()
	}
	return got
}

func (s *source) take(q executor.Queue, most int) ([]executor.Delivery, func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	during := s.during
	s.during = nil
	n := min(most, len(s.ready[q]))
	got := s.ready[q][:n:n]
	s.ready[q] = s.ready[q][n:]
	for i := range got { // a lease begins with the hand-out
		if d := &got[i]; d.LeaseEnd > d.HandedOut {
			now := s.now().UnixMilli()
			d.HandedOut, d.LeaseEnd = now, d.LeaseEnd-d.HandedOut+now
		}
	}
	return got, during
}

func (s *source) left() (n int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, q := range s.ready {
		n += len(q)
	}
	return n
}

// rig is a Poster with a shard whose answers the test sees.
type rig struct {
	*Poster
	t      testing.TB
	source *source
	stop   context.CancelFunc
	ended  chan struct{}
	err    error // of Run; set before ended is closed
	now    func() time.Time

	mu      sync.Mutex
	settled map[string]*raftfsm.Command // by timer ID; guarded by mu
	answer  func(*raftfsm.Command) error
	change  chan struct{} // holds a signal when something was settled
}

// newRig runs a Poster that may go to loopback until the test ends.
func newRig(t testing.TB, change func(*Config)) *rig {
	t.Helper()
	r := &rig{
		t: t, source: &source{ready: map[executor.Queue][]executor.Delivery{}}, ended: make(chan struct{}), now: time.Now,
		settled: map[string]*raftfsm.Command{}, change: make(chan struct{}, 1),
	}
	r.source.now = func() time.Time { return r.now() }
	c := DefaultConfig()
	c.Now, c.Monotonic, c.Settle, c.Logger = func() time.Time { return r.now() }, time.Now, r.settle, slog.New(slog.DiscardHandler)
	c.Policy = policy(t, "127.0.0.0/8", "::1")
	if change != nil {
		change(&c)
	}
	var err error
	if r.Poster, err = New(c); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	r.stop = cancel
	go func() { // ends with Run; the cleanup waits for it
		defer close(r.ended)
		r.err = r.Run(ctx)
	}()
	t.Cleanup(func() { cancel(); <-r.ended })
	return r
}

func (r *rig) settle(_ context.Context, commands []*raftfsm.Command) []error {
	r.mu.Lock()
	defer r.mu.Unlock()
	errs := make([]error, len(commands))
	for i, c := range commands {
		if r.answer != nil {
			errs[i] = r.answer(c)
		}
		if errs[i] == nil {
			id := c.GetComplete().GetId() + c.GetRetry().GetId()
			if r.settled[id] != nil {
				r.t.Errorf("%s was settled twice", id)
			}
			r.settled[id] = c
		}
	}
	select {
	case r.change <- struct{}{}:
	default:
	}
	return errs
}

// delivery is a timer that is due now.
func (r *rig) delivery(id, url string) executor.Delivery {
	now := r.now().UnixMilli()
	origin, err := r.config.Policy.CheckURL(url)
	if err != nil {
		origin = "http://elsewhere:80"
	}
	return executor.Delivery{
		Record: &raftfsm.Record{
			Namespace: "default", ID: id, Queue: queueMark + origin, Payload: []byte(`{"a":1}`), ContentType: "application/json",
			Retry: raftfsm.RetryPolicy{Lease: 30_000}, Due: now, NextDue: now, Accepted: 7, Revision: 5, Created: now,
			Extra: &logv1.Extra{Webhook: url},
		},
		Token:     raftfsm.Token{Shard: r.source.shard, Epoch: 3, Revision: 5, Namespace: "default", ID: id},
		HandedOut: now, LeaseEnd: now + 30_000,
	}
}

// atNextTake calls f in the next Take, when it has taken.
func (r *rig) atNextTake(f func()) {
	r.source.mu.Lock()
	defer r.source.mu.Unlock()
	r.source.during = f
}

// fire makes deliveries ready.
func (r *rig) fire(deliveries ...executor.Delivery) {
	for _, d := range deliveries {
		q := executor.Queue{Namespace: d.Record.Namespace, Name: d.Record.Queue}
		r.source.mu.Lock()
		r.source.ready[q] = append(r.source.ready[q], d)
		r.source.mu.Unlock()
		r.Ready(r.source, q)
	}
}

// wait returns what a timer was settled with.
func (r *rig) wait(id string) *raftfsm.Command {
	r.t.Helper()
	limit := time.NewTimer(time.Minute)
	defer limit.Stop()
	for {
		r.mu.Lock()
		c := r.settled[id]
		r.mu.Unlock()
		if c != nil {
			return c
		}
		select {
		case <-r.change:
		case <-limit.C:
			r.t.Fatalf("%s was not settled", id)
		}
	}
}

// post posts to a URL and returns the command that settled it.
func (r *rig) post(id, url string) *raftfsm.Command {
	r.t.Helper()
	r.fire(r.delivery(id, url))
	return r.wait(id)
}

func (r *rig) count() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return len(r.settled)
}

// outcome is how often a post came to an outcome.
func (r *rig) outcome(o Outcome) int { return int(r.Stats().Outcomes[o].Took.Count) }

// network is a network in memory with servers by address, for bubbles.
type network struct {
	mu      sync.Mutex
	servers map[string]func(net.Conn) // guarded by mu
	dialled []string                  // guarded by mu
	names   map[string][]netip.Addr
}

func newNetwork() *network {
	return &network{servers: map[string]func(net.Conn){}, names: map[string][]netip.Addr{}}
}

// use makes a config dial here.
func (n *network) use(c *Config) {
	c.Dial, c.Policy = n.dial, nil
	c.Resolve = func(_ context.Context, host string) ([]netip.Addr, error) {
		if addrs, ok := n.names[host]; ok {
			return addrs, nil
		}
		return nil, &net.DNSError{Err: "no such host", Name: host, IsNotFound: true}
	}
}

func (n *network) name(host string, addrs ...string) {
	for _, a := range addrs {
		n.names[host] = append(n.names[host], netip.MustParseAddr(a))
	}
}

func (n *network) dial(ctx context.Context, _, addr string) (net.Conn, error) {
	n.mu.Lock()
	n.dialled = append(n.dialled, addr)
	serve := n.servers[addr]
	n.mu.Unlock()
	if serve == nil { // a black hole
		<-ctx.Done()
		return nil, fmt.Errorf("dial %s: %w", addr, ctx.Err())
	}
	near, far := net.Pipe()
	serve(far)
	return near, nil
}

// serve answers at an address until the test ends.
func (n *network) serve(t *testing.T, addr string, handler http.HandlerFunc) {
	ln := &pipeListener{conns: make(chan net.Conn, 1024), closed: make(chan struct{})}
	server := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, q *http.Request) {
		_, _ = io.Copy(io.Discard, q.Body) // only then the server sees that the client has gone
		handler(w, q)
	})}
	done := make(chan struct{})
	go func() { defer close(done); _ = server.Serve(ln) }() // ends with Close; the cleanup waits for it
	n.mu.Lock()
	n.servers[addr] = func(c net.Conn) { ln.conns <- c }
	n.mu.Unlock()
	t.Cleanup(func() { _ = server.Close(); <-done })
}

// silent takes connections at an address and says nothing.
func (n *network) silent(t *testing.T, addr string) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.servers[addr] = func(c net.Conn) {
		done := make(chan struct{})
		go func() { defer close(done); _, _ = io.Copy(io.Discard, c) }() // ends with the connection; the cleanup waits for it
		t.Cleanup(func() { _ = c.Close(); <-done })
	}
}

type pipeListener struct {
	conns  chan net.Conn
	closed chan struct{}
	once   sync.Once
}

func (l *pipeListener) Accept() (net.Conn, error) {
	select {
	case c := <-l.conns:
		return c, nil
	case <-l.closed:
		return nil, net.ErrClosed
	}
}

func (l *pipeListener) Close() error   { l.once.Do(func() { close(l.closed) }); return nil }
func (l *pipeListener) Addr() net.Addr { return &net.TCPAddr{} }

// rubbish answers at an address with what is not HTTP.
func (n *network) rubbish(t *testing.T, addr string) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.servers[addr] = func(c net.Conn) {
		done := make(chan struct{})
		go func() { // ends with the connection; the cleanup waits for it
			defer close(done)
			_, _ = c.Read(make([]byte, 1))
			go func() { _, _ = io.Copy(io.Discard, c) }() // ends with the connection
			_, _ = io.WriteString(c, "SSH-2.0-OpenSSH\r\n\r\n")
		}()
		t.Cleanup(func() { _ = c.Close(); <-done })
	}
}
