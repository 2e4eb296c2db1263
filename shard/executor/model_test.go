package executor

import (
	"cmp"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/carillon-timers/carillon/raftfsm"
)

// model knows which timers a Take must hand out, from the table alone.
type model struct {
	*bench
	r       *rand.Rand
	epoch   uint64
	leading bool
	serial  int
	// out are the deliveries of this epoch that were not answered.
	out []raftfsm.Token
}

func TestModel(t *testing.T) {
	t.Parallel()
	for i := range 4 {
		t.Run(fmt.Sprint(i), func(t *testing.T) {
			t.Parallel()
			m := &model{bench: newBench(t), r: seeded(t)}
			for step := range 800 {
				name := m.step()
				m.settle()
				if err := m.check(); err != nil {
					t.Fatalf("step %d (%s): %v", step, name, err)
				}
				if step%32 > 0 {
					continue
				}
				if err := m.exec.hand.wheel.Check(); err != nil {
					t.Fatalf("step %d (%s): %v", step, name, err)
				}
			}
			if m.exec.Stats().Fired == 0 {
				t.Fatal("nothing was ever handed out")
			}
		})
	}
}

func (m *model) anyID() string {
	if len(m.table.ids) == 0 {
		return ""
	}
	live := make([]string, 0, len(m.table.ids))
	for _, r := range m.table.slots {
		if r != nil {
			live = append(live, r.ID)
		}
	}
	return live[m.r.IntN(len(live))]
}

// due is a time around now: mostly soon, at times past, long past, far or the same as others.
func (m *model) due() int64 {
	switch m.r.IntN(8) {
	case 0:
		return m.millis() - m.r.Int64N(100_000)
	case 1:
		return m.millis() + m.r.Int64N(100_000_000)
	case 2:
		return m.r.Int64N(10)
	}
	return m.millis() + m.r.Int64N(50)
}

func (m *model) step() string {
	switch k := m.r.IntN(100); {
	case k < 30:
		for range 1 + m.r.IntN(20) {
			m.serial++
			m.table.schedule(fmt.Sprint(m.serial), fmt.Sprint(m.r.IntN(3)), m.due(), 100+m.r.Int64N(400), m.millis())
		}
		return "schedule"
	case k < 55:
		m.take()
		return "take"
	case k < 70:
		m.pass(time.Duration(m.r.Int64N(80)) * time.Millisecond)
		return "pass"
	case k < 80:
		m.answer()
		return "answer"
	case k < 84:
		m.table.remove(m.anyID(), 0)
		return "cancel"
	case k < 88:
		if id := m.anyID(); id != "" {
			m.table.reschedule(id, m.due())
		}
		return "reschedule"
	case k < 91:
		m.table.hold(m.anyID())
		return "hold"
	case k < 94:
		m.table.release(m.anyID())
		return "release"
	case k < 96:
		m.settleSome()
		return "lapse"
	case k < 99:
		m.flip()
		return "flip"
	}
	m.restore()
	return "restore"
}

// eligible are the timers that are due, not held and not out.
func (m *model) eligible(queue string) []*raftfsm.Record {
	var rs []*raftfsm.Record
	for slot, r := range m.table.slots {
		s := uint32(slot)
		if r != nil && r.Queue == queue && r.NextDue <= m.millis() && !m.table.held[s] && m.table.handed[s] != r.Revision {
			rs = append(rs, r)
		}
	}
	slices.SortFunc(rs, func(a, b *raftfsm.Record) int {
		return cmp.Or(cmp.Compare(a.NextDue, b.NextDue), cmp.Compare(a.Accepted, b.Accepted))
	})
	return rs
}

func (m *model) take() {
	m.settle()
	queue, n := fmt.Sprint(m.r.IntN(3)), 1+m.r.IntN(30)
	var want []string
	if m.leading {
		for _, r := range m.eligible(queue) {
			want = append(want, r.ID)
		}
		want = want[:min(n, len(want))]
	}
	got := m.exec.Take(q(queue), n)
	if !slices.Equal(ids(got), want) {
		m.t.Fatalf("take %d of queue %s: got %v, want %v", n, queue, ids(got), want)
	}
	for _, d := range got {
		if d.Record.NextDue > m.millis() || d.HandedOut != m.millis() || d.LeaseEnd != m.millis()+d.Record.Retry.Lease {
			m.t.Fatalf("handed out at %d: %+v", m.millis(), d)
		}
		m.out = append(m.out, d.Token)
	}
}

// answer acks, nacks or loses the answers of some deliveries, also of former epochs.
func (m *model) answer() {
	for range min(len(m.out), 1+m.r.IntN(10)) {
		i := m.r.IntN(len(m.out))
		token := m.out[i]
		m.out = slices.Delete(m.out, i, i+1)
		switch m.r.IntN(4) {
		case 0:
			m.table.retry(token.ID, token.Revision, m.due())
		case 1, 2:
			m.table.remove(token.ID, token.Revision)
		}
	}
}

// settleSome applies half of the lapsed leases and loses the others.
func (m *model) settleSome() {
	for _, c := range m.settled {
		retry := c.GetRetry()
		if retry.GetTokenEpoch() > m.epoch || retry.GetHasDelay() || retry.GetError() == "" {
			m.t.Fatalf("settled %v under epoch %d", retry, m.epoch)
		}
		if m.r.IntN(2) == 0 {
			m.table.retry(retry.GetId(), retry.GetRevision(), m.due())
		}
	}
	m.settled = nil
}

func (m *model) flip() {
	if m.r.IntN(2) == 0 {
		m.exec.Follow()
		m.leading = false
		if got := m.exec.Take(q("0"), 1); got != nil {
			m.t.Fatalf("a follower handed out %v", ids(got))
		}
		return
	}
	if m.leading && m.r.IntN(4) == 0 {
		m.exec.Lead(m.epoch) // again, though the table leads on: what it handed out stays so
		return
	}
	m.epoch++
	m.lead(m.epoch)
	m.leading = true
}

func (m *model) restore() {
	var order []uint32
	for slot, r := range m.table.slots {
		if r != nil {
			order = append(order, uint32(slot))
		}
	}
	slices.SortFunc(order, func(a, b uint32) int {
		x, y := m.table.slots[a], m.table.slots[b]
		return cmp.Or(cmp.Compare(x.NextDue, y.NextDue), cmp.Compare(x.Accepted, y.Accepted))
	})
	m.table.restore(order)
}

// When a timer was taken out of the wheel as it was handed out, flips of the leadership with lost answers stranded one in
// six. So: whatever is lost, each of 1,000 timers is delivered in the end, and nothing but an op took it from the wheel.
func TestFlipsStrandNothing(t *testing.T) {
	t.Parallel()
	m := &model{bench: newBench(t), r: seeded(t)}
	const timers = 1000
	for i := range timers {
		m.table.schedule(fmt.Sprint(i), fmt.Sprint(i%3), m.millis()+m.r.Int64N(2000), 100+m.r.Int64N(900), m.millis())
	}
	for range 300 {
		m.pass(time.Duration(m.r.Int64N(40)) * time.Millisecond)
		if m.r.IntN(4) == 0 {
			m.flip()
		}
		if m.r.IntN(3) > 0 { // else the turn comes later than the flip
			m.settle()
			m.take()
		}
		if m.r.IntN(5) == 0 {
			m.answer()
		}
		m.settleSome()
	}
	left := m.table.pending()
	if left == 0 || left == timers {
		t.Fatalf("%d of %d timers are left after the flips: the test shows nothing", left, timers)
	}
	m.epoch++
	m.lead(m.epoch)
	for i := range 300 {
		if i == 150 {
			m.pass(48 * time.Hour) // for those that a nack has put far off
		}
		m.settle()
		for queue := range 3 {
			for _, d := range m.exec.Take(q(fmt.Sprint(queue)), 50) {
				m.table.remove(d.Record.ID, d.Token.Revision)
			}
		}
		for _, c := range m.settled {
			m.table.retry(c.GetRetry().GetId(), c.GetRetry().GetRevision(), m.millis())
		}
		m.settled = nil
		m.pass(20 * time.Millisecond)
	}
	m.settle()
	if n := m.table.pending(); n != 0 {
		t.Fatalf("%d of %d timers are stranded", n, left)
	}
	if err := m.check(); err != nil {
		t.Fatal(err)
	}
}
