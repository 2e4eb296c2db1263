package node

import (
	"runtime"
	"testing"
	"time"
)

// fakeGC is a heap in which a process allocates, and that is collected whenever its room is full.
type fakeGC struct {
	percent int
	sets    int
	sample  gcSample
	cleaned int
	rate    float64 // bytes allocated in a second
	cost    float64 // processor time of one collection, in seconds
	now     time.Time
}

func (g *fakeGC) pacer(chosen bool) *gcPacer {
	g.percent, g.sample.procs = gcPercent, 2
	return &gcPacer{
		read:   func() gcSample { return g.told() },
		chosen: func() bool { return chosen },
		clean: func() {
			g.cleaned++
			g.sample.spent += 10 * g.cost // as if many timers were pending
		},
		set: func(percent int) {
			g.percent = percent
			g.sets++
		},
	}
}

func (g *fakeGC) told() gcSample {
	g.sample.percent = g.percent
	return g.sample
}

func (g *fakeGC) room() float64 { return float64(g.sample.live) * float64(g.percent) / 100 }

func (g *fakeGC) run(p *gcPacer, seconds int) {
	for range seconds {
		g.sample.spent += g.rate / g.room() * g.cost
		g.now = g.now.Add(gcEvery)
		if p.look(g.now) {
			p.tidy()
		}
	}
}

// The room is a tenth in quiet times; under load as much as keeps the collector at its share, and never more than Go's default;
// and small again afterwards. With little that lives it is 32 MiB.
func TestCollectorIsPaced(t *testing.T) {
	t.Parallel()
	const MiB = 1 << 20
	g := &fakeGC{sample: gcSample{live: 1200 * MiB}, cost: 0.06}
	p := g.pacer(false)
	p.hold(g.now)
	within := func(what string, low, high float64) {
		t.Helper()
		if room := g.room() / MiB; room < low || room > high {
			t.Errorf("%s the room is %.0f MiB, want %.0f to %.0f", what, room, low, high)
		}
	}
	g.run(p, 30)
	within("quiet:", 110, 130)
	sets := g.sets
	g.run(p, 60)
	if g.sets != sets {
		t.Errorf("the room was set %d times in a quiet minute", g.sets-sets)
	}
	g.rate = 100 * MiB // 0.06 s for each room, of 0.02 s a second: a room of 300 MiB
	g.run(p, 60)
	within("busy:", 240, 360)
	g.rate = 5000 * MiB
	g.run(p, 60)
	within("very busy:", 1100, 1250)
	if g.cleaned != 0 {
		t.Errorf("%d collections were asked for under load", g.cleaned)
	}
	g.rate, g.sample.live, g.cost = 1*MiB, 10*MiB, 0.003
	g.run(p, 60)
	if g.cleaned != 1 {
		t.Errorf("%d collections were asked for as the load ended, want one", g.cleaned)
	}
	within("nothing pending:", 30, 36)
	p.release()
	if g.percent != gcPercent {
		t.Errorf("afterwards GOGC is %d", g.percent)
	}
}

// Who has set GOGC, by the environment or in the program, has chosen. Two nodes of one process look once a second together, and the
// first that stops leaves the other its room.
func TestCollectorIsLeftAlone(t *testing.T) {
	t.Parallel()
	g := &fakeGC{sample: gcSample{live: 1 << 30}}
	p := g.pacer(true)
	p.hold(g.now)
	g.run(p, 30)
	p.release()
	if g.sets != 0 {
		t.Error("GOGC of the environment was overruled")
	}
	p = g.pacer(false)
	g.percent = 30
	p.hold(g.now)
	g.run(p, 30)
	p.release()
	if g.percent != 30 {
		t.Errorf("GOGC was set to 30 by the program, now it is %d", g.percent)
	}
	for _, off := range []int{30, -1} {
		p = g.pacer(false)
		p.hold(g.now)
		g.run(p, 30)
		g.percent = off
		g.run(p, 30)
		if p.release(); g.percent != off {
			t.Errorf("GOGC was set to %d by the program while a node ran, now it is %d", off, g.percent)
		}
	}
	p = g.pacer(false)
	p.hold(g.now)
	p.hold(g.now)
	g.run(p, 30)
	if p.release(); g.percent > 12 {
		t.Errorf("one of two nodes stopped: GOGC is %d", g.percent)
	}
	reads := 0
	p.read = func() gcSample { reads++; return g.told() }
	p.look(g.now.Add(gcEvery))
	p.look(g.now.Add(gcEvery))
	if reads != 1 {
		t.Errorf("two looks at one time read %d times", reads)
	}
}

// The names of the metrics are the runtime's: this fails if they change.
func TestCollectorIsRead(t *testing.T) {
	t.Parallel()
	runtime.GC()
	if s := readCollector(); s.procs < 1 || s.spent <= 0 || s.live == 0 || s.percent == 0 {
		t.Errorf("read %+v", s)
	}
}
