package client

import (
	"runtime"
	"sync"
	"sync/atomic"
)

// Limits of a batch, and how many full ones may be in flight.
const (
	laneWindow    = 2
	maxBatchItems = 1000
	maxBatchBytes = 512 << 10
)

// lane joins the calls of one kind to one address: it sends at once while nothing is in flight, else it collects. Beside
// a batch in flight only a full one is sent: a node's cost is that of the log entries, one per batch and shard, so batches
// of half the size would cost twice as much.
type lane struct {
	spawn func(func()) bool      // set once
	send  func(batch []*attempt) // set once; fills in the outcomes

	mu       sync.Mutex
	queue    []*attempt // guarded by mu
	bytes    int        // of the queue, as if none had been abandoned; guarded by mu
	inFlight int        // guarded by mu
	window   int        // laneWindow, or 1 while the node is overloaded; guarded by mu
}

// attempt is one item of one batch.
type attempt struct {
	op    *op
	size  int
	round *round
	state atomic.Int32 // one of the constants below
	err   error        // written by the sender before attemptFinished
	reply any          // likewise
}

const (
	attemptQueued = iota
	attemptSent
	attemptAbandoned
	attemptFinished
)

// abandon takes a queued attempt back; false says that it has been sent.
func (a *attempt) abandon() bool {
	return a.state.CompareAndSwap(attemptQueued, attemptAbandoned)
}

// round is closed when all its attempts have an outcome.
type round struct {
	left atomic.Int32
	done chan struct{}
}

func newRound(n int) *round {
	r := &round{done: make(chan struct{})}
	r.left.Store(int32(n))
	return r
}

func (a *attempt) finish(reply any, err error) {
	a.reply, a.err = reply, err
	a.state.Store(attemptFinished)
	if a.round.left.Add(-1) == 0 {
		close(a.round.done)
	}
}

func newLane(spawn func(func()) bool, send func([]*attempt)) *lane {
	return &lane{spawn: spawn, send: send, window: laneWindow}
}

// submit never blocks.
func (l *lane) submit(attempts []*attempt) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.queue = append(l.queue, attempts...)
	for _, a := range attempts {
		l.bytes += a.size
	}
	for l.mayLocked(l.inFlight) {
		l.inFlight++
		if !l.spawn(l.run) {
			l.inFlight--
			for batch := l.takeLocked(); len(batch) > 0; batch = l.takeLocked() {
				failAll(batch, ErrClosed)
			}
			return
		}
	}
}

// mayLocked says whether a batch may be sent beside others in flight.
func (l *lane) mayLocked(others int) bool {
	full := len(l.queue) >= maxBatchItems || l.bytes >= maxBatchBytes
	return others == 0 || full && others < l.window
}

// run sends batch after batch until nothing waits. Before each it lets others run once: the callers of the batch that was
// answered come back one after the other, and the first of them would travel alone.
func (l *lane) run() {
	for {
		runtime.Gosched()
		l.mu.Lock()
		var batch []*attempt
		if l.mayLocked(l.inFlight - 1) { // else another sender takes what waits
			batch = l.takeLocked()
		}
		if len(batch) == 0 {
			l.inFlight--
			l.mu.Unlock()
			return
		}
		l.mu.Unlock()
		l.send(batch)
	}
}

// takeLocked takes the next batch and marks it as sent.
func (l *lane) takeLocked() []*attempt {
	var batch []*attempt
	bytes, i := 0, 0
	for ; i < len(l.queue) && len(batch) < maxBatchItems; i++ {
		a := l.queue[i]
		if len(batch) > 0 && bytes+a.size > maxBatchBytes {
			break
		}
		l.bytes -= a.size
		if a.state.CompareAndSwap(attemptQueued, attemptSent) {
			batch, bytes = append(batch, a), bytes+a.size
		}
	}
	clear(l.queue[:i])
	if l.queue = l.queue[i:]; len(l.queue) == 0 {
		l.queue = nil
	}
	return batch
}

// turnAway ends what waits with the error, so that it goes elsewhere: the node did not answer the batch before.
func (l *lane) turnAway(err error) {
	l.mu.Lock()
	var all []*attempt
	for len(l.queue) > 0 {
		all = append(all, l.takeLocked()...)
	}
	l.mu.Unlock()
	failAll(all, err)
}

// throttle makes the lane gentler while the node is overloaded, and restores it afterwards.
func (l *lane) throttle(overloaded bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.window = laneWindow
	if overloaded {
		l.window = 1
	}
}

func failAll(batch []*attempt, err error) {
	for _, a := range batch {
		a.finish(nil, err)
	}
}
