package main

import (
	"fmt"
	"math"
	"runtime"
	"sync"
	"sync/atomic"
	"time"

	"github.com/carillon-timers/carillon/wheel/mpsc"
)

// message has the size of what the product sends through its queue.
type message struct {
	slot uint32
	_    uint32
	_    int64
	ref  uint64
}

// queue is one way from many producers to one consumer. drain calls f for what is there and returns the number.
type queue interface {
	push(m message)
	pushN(ms []message)
	drain(f func(message)) int
}

// doubleBuffer is the package under test.
type doubleBuffer struct {
	q   *mpsc.Queue[message]
	buf []message
}

func newDoubleBuffer(int) queue            { return &doubleBuffer{q: mpsc.New[message]()} }
func (d *doubleBuffer) push(m message)     { d.q.Push(m) }
func (d *doubleBuffer) pushN(ms []message) { d.q.PushN(ms) }
func (d *doubleBuffer) drain(f func(message)) int {
	d.buf = d.q.Drain(d.buf)
	for i := range d.buf {
		f(d.buf[i])
	}
	return len(d.buf)
}

// ring is a bounded ring: a producer takes a ticket, waits until its cell is free and marks it as written.
type ring struct {
	tail  atomic.Uint64
	_     [56]byte
	head  uint64 // the consumer's
	_     [56]byte
	cells [ringLen]ringCell
}

const ringLen = 4096

type ringCell struct {
	turn atomic.Uint64
	m    message
	_    [64 - 8 - 24]byte
}

func newRing(int) queue {
	r := &ring{}
	for i := range r.cells {
		r.cells[i].turn.Store(uint64(i))
	}
	return r
}

func (r *ring) write(t uint64, m message) {
	c := &r.cells[t%ringLen]
	for c.turn.Load() != t {
		runtime.Gosched()
	}
	c.m = m
	c.turn.Store(t + 1)
}

func (r *ring) push(m message) { r.write(r.tail.Add(1)-1, m) }

func (r *ring) pushN(ms []message) {
	t := r.tail.Add(uint64(len(ms))) - uint64(len(ms))
	for i, m := range ms {
		r.write(t+uint64(i), m)
	}
}

func (r *ring) drain(f func(message)) int {
	n := 0
	for ; n < ringLen; n++ {
		c := &r.cells[r.head%ringLen]
		if c.turn.Load() != r.head+1 {
			break
		}
		f(c.m)
		c.turn.Store(r.head + ringLen)
		r.head++
	}
	return n
}

// vyukov is the intrusive list of Dmitry Vyukov: one exchange for each push.
type vyukov struct {
	tail atomic.Pointer[vyukovNode]
	_    [56]byte
	head *vyukovNode // the consumer's
}

type vyukovNode struct {
	next atomic.Pointer[vyukovNode]
	m    message
}

func newVyukov(int) queue {
	v := &vyukov{head: &vyukovNode{}}
	v.tail.Store(v.head)
	return v
}

func (v *vyukov) push(m message) {
	n := &vyukovNode{m: m}
	v.tail.Swap(n).next.Store(n)
}

func (v *vyukov) pushN(ms []message) {
	for _, m := range ms {
		v.push(m)
	}
}

func (v *vyukov) drain(f func(message)) int {
	n := 0
	for next := v.head.next.Load(); next != nil; next = v.head.next.Load() {
		v.head = next
		f(next.m)
		n++
	}
	return n
}

// channel is a buffered channel.
type channel chan message

func newChannel(int) queue       { return make(channel, ringLen) }
func (c channel) push(m message) { c <- m }
func (c channel) pushN(ms []message) {
	for _, m := range ms {
		c <- m
	}
}

func (c channel) drain(f func(message)) int {
	for n := 0; ; n++ {
		select {
		case m := <-c:
			f(m)
		default:
			return n
		}
	}
}

// sharded is one double buffer for each few producers; it keeps no order between them.
type sharded struct {
	shards []doubleBuffer
}

func newSharded(producers int) queue {
	s := &sharded{shards: make([]doubleBuffer, min(producers, 8))}
	for i := range s.shards {
		s.shards[i].q = mpsc.New[message]()
	}
	return s
}

func (s *sharded) push(m message)     { s.shards[m.slot%uint32(len(s.shards))].push(m) }
func (s *sharded) pushN(ms []message) { s.shards[ms[0].slot%uint32(len(s.shards))].pushN(ms) }
func (s *sharded) drain(f func(message)) int {
	n := 0
	for i := range s.shards {
		n += s.shards[i].drain(f)
	}
	return n
}

var queues = []struct {
	name string
	make func(producers int) queue
}{
	{"double buffer (mpsc)", newDoubleBuffer},
	{"ring with tickets", newRing},
	{"Vyukov list", newVyukov},
	{"channel", newChannel},
	{"sharded buffers", newSharded},
}

// rate pushes total messages from producers in batches and returns millions a second that came out, and CPU ns for each.
func rate(q queue, producers, batch, total int) (perSecond, cpu float64) {
	each := total / producers / batch * batch
	var wg sync.WaitGroup
	began, cpuBegan := time.Now(), cpuNow()
	for p := range producers {
		wg.Go(func() {
			ms := make([]message, batch)
			for i := range ms {
				ms[i].slot = uint32(p)
			}
			for n := 0; n < each; n += batch {
				if batch == 1 {
					q.push(ms[0])
				} else {
					q.pushN(ms)
				}
			}
		})
	}
	sum := uint64(0)
	for got := 0; got < each*producers; {
		n := q.drain(func(m message) { sum += m.ref })
		if got += n; n == 0 {
			runtime.Gosched()
		}
	}
	took := time.Since(began)
	wg.Wait()
	sent := float64(each * producers)
	return sent / 1e6 / took.Seconds(), float64(cpuNow()-cpuBegan) / sent
}

// printQueues prints the rate of each candidate, the best of four runs taken in turn; queues are warm after the first.
func printQueues() {
	fmt.Print("\nQueue: million messages a second, and CPU ns for each, from 1 to 64 producers singly and in batches of 64 (best of 4)\n\n")
	fmt.Println("| queue | 1 x 1 | 2 x 1 | 8 x 1 | 64 x 1 | 1 x 64 | 2 x 64 | 8 x 64 | 64 x 64 |\n|---|---|---|---|---|---|---|---|---|")
	rows := make([]string, len(queues))
	for _, b := range []int{1, 64} {
		for _, p := range []int{1, 2, 8, 64} {
			best, least, made := make([]float64, len(queues)), make([]float64, len(queues)), make([]queue, len(queues))
			for turn := range 4 {
				for i, q := range queues {
					if turn == 0 {
						made[i], least[i] = q.make(p), math.Inf(1)
					}
					perSecond, cpu := rate(made[i], p, b, 1<<17)
					best[i], least[i] = max(best[i], perSecond), min(least[i], cpu)
				}
			}
			for i := range rows {
				rows[i] += fmt.Sprintf(" %.0f; %.0f |", best[i], least[i])
			}
		}
	}
	for i, q := range queues {
		fmt.Printf("| %s |%s\n", q.name, rows[i])
	}
}
