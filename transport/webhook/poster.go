package webhook

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/carillon-timers/carillon/shard/executor"
)

const (
	// takeMax bounds what is taken from one ready list at a time, so that those of one host take turns.
	takeMax = 32
	// failingAfter failures in a row to get an answer leave a host one post at a time.
	failingAfter = 3
	// sweepEvery is how often hosts are forgotten that had nothing for forgetAfter, which is longer than it takes to earn the
	// whole of a rate's burst.
	sweepEvery  = 10 * time.Second
	forgetAfter = 30 * time.Second

	idleConns       = 512
	idleConnTimeout = 90 * time.Second
	maxHeaderBytes  = 32 << 10
)

var (
	errStopping = errors.New("the node stops")
	errLate     = errors.New("the answer did not come in time")
)

// Poster posts due timers to their webhooks. It implements executor.Deliverer for the queues that IsQueue names.
//
// What is ready stays in the ready lists until its host has room: a delivery is taken when it can be posted at once.
type Poster struct {
	config    Config          // set before sharing
	transport *http.Transport // set before sharing
	secrets   atomic.Pointer[Secrets]
	ran       atomic.Bool

	// posting ends with the cause errStopping to break off what is posted, settling to give up what is settled.
	posting  context.Context // set before sharing
	breakOff context.CancelCauseFunc
	settling context.Context // set before sharing
	giveUp   context.CancelFunc
	// threads are the posts and the settlers.
	threads sync.WaitGroup

	settler settler
	counts  counts
	logs    logs

	mu sync.Mutex
	// stopping is true when nothing more is taken; guarded by mu.
	stopping bool
	// hosts are those that have something, or had a while ago, by scheme, host and port; guarded by mu.
	hosts map[string]*host
	// active is what was taken and is not settled, over all hosts; guarded by mu.
	active int
	// line has the hosts that could post if active were not at its limit; guarded by mu.
	line []*host
}

// host is where posts go to; guarded by Poster.mu.
type host struct {
	name string
	// feeds are the ready lists that may have something, ring those of them that are not being asked, in turn.
	feeds map[feedKey]*feed
	ring  []*feed
	// active is what is being posted.
	active int
	rate   bucket
	// failures counts the posts without an answer since the last one with one.
	failures int
	// waits is true while it is in line, alarm while a timer is set for the next post that its rate allows.
	waits, alarm bool
	// used is when it last had something.
	used time.Time
}

type feedKey struct {
	source executor.Source
	queue  executor.Queue
}

// feed is a ready list; guarded by Poster.mu.
type feed struct {
	feedKey
	// asked is true while it is being asked, again if it became ready meanwhile.
	asked, again bool
}

// IsQueue says whether a queue is that of a webhook's host.
func IsQueue(q executor.Queue) bool { return strings.HasPrefix(q.Name, queueMark) }

// New builds a Poster. It takes deliveries from the first Ready on.
func New(c Config) (*Poster, error) {
	if err := c.Validate(); err != nil {
		return nil, err
	}
	p := &Poster{config: c, hosts: map[string]*host{}}
	p.posting, p.breakOff = context.WithCancelCause(context.Background())
	p.settling, p.giveUp = context.WithCancel(context.Background())
	p.settler.poster = p
	p.logs.config = &p.config
	p.secrets.Store(&Secrets{})
	dialer := &dialer{config: &p.config, ctx: p.posting}
	p.transport = &http.Transport{
		DialContext:            dialer.dial,
		TLSClientConfig:        c.TLS.Clone(),
		TLSHandshakeTimeout:    c.TLSTimeout,
		ResponseHeaderTimeout:  c.HeaderTimeout,
		ForceAttemptHTTP2:      true,
		DisableCompression:     true, // no answer grows as it is read
		MaxIdleConns:           idleConns,
		MaxIdleConnsPerHost:    c.Concurrency,
		IdleConnTimeout:        idleConnTimeout,
		MaxResponseHeaderBytes: maxHeaderBytes,
		// A proxy would be dialled instead of the address that was checked.
		Proxy: nil,
		// A connection that a receiver has left without a word is found out, not waited for again and again.
		HTTP2: &http.HTTP2Config{SendPingTimeout: c.Timeout, PingTimeout: c.DialTimeout},
	}
	return p, nil
}

// SetSecrets replaces the secrets with which posts are signed from now on.
func (p *Poster) SetSecrets(s Secrets) { p.secrets.Store(&s) }

// Ready implements executor.Deliverer. It may take, and post in other goroutines, but waits for nobody.
func (p *Poster) Ready(src executor.Source, q executor.Queue) {
	name := strings.TrimPrefix(q.Name, queueMark)
	key := feedKey{src, q}
	p.mu.Lock()
	if p.stopping {
		p.mu.Unlock()
		return
	}
	h := p.hosts[name]
	if h == nil {
		h = &host{name: name, feeds: map[feedKey]*feed{}, rate: newBucket(p.config.Rate)}
		p.hosts[name] = h
	}
	h.used = p.config.Monotonic()
	f := h.feeds[key]
	switch {
	case f == nil:
		f = &feed{feedKey: key}
		h.feeds[key] = f
		h.ring = append(h.ring, f)
	case f.asked:
		f.again = true
	}
	p.mu.Unlock()
	p.pump(h)
}

// Forget drops what is remembered of a shard's ready lists: for a shard that this node keeps no more.
func (p *Poster) Forget(shard uint32) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, h := range p.hosts {
		ring := h.ring[:0]
		for _, f := range h.ring {
			if f.source.Shard() == shard {
				delete(h.feeds, f.feedKey)
				continue
			}
			ring = append(ring, f)
		}
		clear(h.ring[len(ring):])
		h.ring = ring
	}
}

// pump takes and posts what the host has room for.
func (p *Poster) pump(h *host) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for {
		n := p.room(h)
		if n == 0 {
			return
		}
		f := h.ring[0]
		h.ring[0] = nil
		h.ring = h.ring[1:]
		f.asked, f.again = true, false
		p.reserve(h, n)
		p.threads.Add(1) // a stop waits for what is being taken
		got := p.takeUnlocked(f, n)
		p.reserve(h, len(got)-n)
		h.rate.giveBack(n - len(got)) // what was not used
		f.asked = false
		switch {
		case len(got) == n || f.again:
			h.ring = append(h.ring, f)
		default:
			delete(h.feeds, f.feedKey)
		}
		for _, d := range got {
			p.start(h, d)
		}
		p.threads.Done()
		if len(got) < n {
			p.nextUnlocked() // room that was reserved is free again
		}
	}
}

// reserve counts n more posts of the host; p.mu is held.
func (p *Poster) reserve(h *host, n int) {
	h.active += n
	p.active += n
}

func (p *Poster) takeUnlocked(f *feed, n int) []executor.Delivery {
	p.mu.Unlock()
	defer p.mu.Lock()
	return f.source.Take(f.queue, n)
}

// room is how many deliveries may be taken for the host now; p.mu is held. The rate's part is taken already. If there is
// none, what makes room pumps again: a post that ends, the host's turn in line, the alarm of its rate.
func (p *Poster) room(h *host) int {
	if p.stopping || len(h.ring) == 0 {
		return 0
	}
	limit := p.config.Concurrency
	if h.failures >= failingAfter {
		limit = 1
	}
	n := min(limit-h.active, takeMax)
	if n <= 0 {
		return 0
	}
	if p.active >= MaxTotal {
		if !h.waits {
			h.waits = true
			p.line = append(p.line, h)
		}
		return 0
	}
	n = min(n, MaxTotal-p.active)
	now := p.config.Monotonic()
	allowed, wait := h.rate.allow(now, n)
	if allowed == 0 && !h.alarm {
		h.alarm = true
		time.AfterFunc(wait, func() {
			p.mu.Lock()
			h.alarm = false
			p.mu.Unlock()
			p.pump(h)
		})
	}
	return allowed
}

// nextUnlocked pumps the hosts that wait in line while there is room; p.mu is held, but not meanwhile.
func (p *Poster) nextUnlocked() {
	for len(p.line) > 0 && p.active < MaxTotal {
		h := p.line[0]
		p.line[0] = nil
		p.line = p.line[1:]
		h.waits = false
		p.mu.Unlock()
		p.pump(h)
		p.mu.Lock()
	}
}

// start posts a delivery; p.mu is held.
func (p *Poster) start(h *host, d executor.Delivery) {
	j := newJob(h, d)
	if p.stopping && !j.once { // it was taken while the stop began
		p.threads.Go(func() { p.settler.settle(j, verdict{outcome: Returned, text: errStopping.Error()}) })
		h.active--
		return
	}
	p.threads.Go(func() { p.serve(j) })
}

// newJob reads what a post needs out of a delivery.
func newJob(h *host, d executor.Delivery) *job {
	j := &job{Delivery: d, host: h, due: d.Record.Due}
	if extra := d.Record.Extra; extra != nil {
		j.url, j.once = extra.Webhook, extra.AtMostOnce
		if extra.Repeat != nil {
			j.due = extra.Repeat.TickMs
		}
	}
	j.id = messageID(d.Record, j.due)
	return j
}

// answered notes whether a host answered, and makes room for its next post.
func (p *Poster) answered(j *job, v Outcome) {
	p.mu.Lock()
	h := j.host
	h.active--
	h.used = p.config.Monotonic()
	switch {
	case v.answered():
		h.failures = 0
	case v.unreachable():
		h.failures++
	}
	p.mu.Unlock()
	p.pump(h)
}

// settled makes room for a delivery of any host.
func (p *Poster) settled() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.active--
	p.nextUnlocked()
}

// Run keeps house until the context ends, and then stops within StopTimeout: nothing more is taken, posts may finish for half
// of that, what is left is broken off and given back. It returns when all has ended.
func (p *Poster) Run(ctx context.Context) error {
	if p.ran.Swap(true) {
		return errors.New("webhook: Run was called before")
	}
	sweep := time.NewTicker(sweepEvery)
	defer sweep.Stop()
	for ctx.Err() == nil {
		select {
		case <-sweep.C:
			p.sweep()
		case <-ctx.Done():
		}
	}
	p.mu.Lock()
	p.stopping = true
	p.mu.Unlock()
	ended := make(chan struct{})
	var waiter sync.WaitGroup
	waiter.Go(func() { p.threads.Wait(); close(ended) })
	defer p.transport.CloseIdleConnections()
	inTime := endsWithin(ended, p.config.StopTimeout/2)
	p.breakOff(errStopping)
	inTime = inTime || endsWithin(ended, p.config.StopTimeout/4)
	p.giveUp()
	if inTime || endsWithin(ended, p.config.StopTimeout/4) {
		return nil
	}
	return fmt.Errorf("webhook: %d deliveries did not end in time", p.Stats().Active)
}

func endsWithin(ended <-chan struct{}, limit time.Duration) bool {
	timer := time.NewTimer(limit)
	defer timer.Stop()
	select {
	case <-ended:
		return true
	case <-timer.C:
		return false
	}
}

// sweep forgets hosts that had nothing for a while.
func (p *Poster) sweep() {
	p.mu.Lock()
	defer p.mu.Unlock()
	now := p.config.Monotonic()
	for name, h := range p.hosts {
		if h.active == 0 && len(h.feeds) == 0 && !h.waits && !h.alarm && now.Sub(h.used) > forgetAfter {
			delete(p.hosts, name)
		}
	}
}
