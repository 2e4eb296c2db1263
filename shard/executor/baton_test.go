package executor

import (
	"context"
	"fmt"
	"runtime"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

// While one worker's slow part lasts, what is pushed and what falls due goes out on time; a quick slow part wakes nobody.
func TestBatonLies(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		block := make(chan struct{})
		r := startRig(t, func(r *rig, src Source, q Queue) {
			if q.Name == "block" {
				<-block
			}
			r.consume(src, q)
		})
		r.table.lead(1)
		r.exec.Lead(1)
		for i := range 500 {
			r.in(fmt.Sprint(i), time.Duration(i+1)*time.Millisecond)
		}
		time.Sleep(600 * time.Millisecond)
		if n := r.loop.Stats().Passes; n != 1 {
			t.Errorf("the baton was passed %d times for quick deliveries, want once, to the first worker", n)
		}
		r.table.schedule("block", "block", time.Now().UnixMilli(), 60_000, 0)
		time.Sleep(10*time.Millisecond + 300*time.Microsecond)
		r.in("deadline", 5*time.Millisecond)
		time.Sleep(time.Millisecond)
		r.in("now", 0)
		time.Sleep(grace)
		synctest.Wait()
		r.mu.Lock()
		if last := r.got[len(r.got)-1].Record.ID; last != "now" {
			t.Errorf("%s was handed out last, want the timer that was pushed a grace ago", last)
		}
		r.mu.Unlock()
		time.Sleep(10 * time.Millisecond)
		r.mu.Lock()
		last := r.got[len(r.got)-1]
		if last.Record.ID != "deadline" || last.HandedOut != last.Record.NextDue {
			t.Errorf("%s was handed out at %d, due %d", last.Record.ID, last.HandedOut, last.Record.NextDue)
		}
		r.mu.Unlock()
		close(block)
	})
}

// A call that blocks keeps back nothing of what its turn has found beside it.
func TestBlockedCallKeepsBackNothing(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		block := make(chan struct{})
		r := startRig(t, func(r *rig, src Source, q Queue) {
			if q.Name == "block" {
				<-block
			}
			r.consume(src, q)
		})
		r.table.lead(1)
		r.exec.Lead(1)
		due := time.Now().Add(time.Second).UnixMilli()
		r.table.schedule("first", "block", due, 60_000, 0)
		r.table.schedule("beside", "q", due, 60_000, 0)
		time.Sleep(time.Second + helpAfter)
		synctest.Wait()
		r.mu.Lock()
		if got := ids(r.got); len(got) != 1 || got[0] != "beside" {
			t.Errorf("got %v", got)
		}
		r.mu.Unlock()
		close(block)
	})
}

// A timer that is pushed when it is due already must be handed out whatever the loop is doing: sleeping, in a turn, or in
// its slow part. The sleep is longer than the test, so a wake-up that is lost shows.
func TestNoPushIsLost(t *testing.T) {
	for _, procs := range []int{1, 2} {
		for name, s := range map[string]Sleeper{"native": defaultSleeper(), "timer": NewTimerSleeper()} {
			t.Run(fmt.Sprintf("%s/procs=%d", name, procs), func(t *testing.T) {
				defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(procs))
				pushAndWait(t, s)
			})
		}
	}
}

func pushAndWait(t *testing.T, s Sleeper) {
	loop := NewLoop(LoopOptions{Sleeper: s, Logger: quiet, Workers: 3})
	loop.clock.sleepMax = time.Hour
	table := newFakeTable()
	out := make(chan string, 100)
	e := loop.Add(Options{Table: table, Deliverer: readyFunc(func(src Source, q Queue) {
		for got := src.Take(q, 10); len(got) > 0; got = src.Take(q, 10) {
			for _, d := range got {
				table.remove(d.Record.ID, d.Token.Revision)
				out <- d.Record.ID
			}
		}
		if len(out)%3 == 0 {
			runtime.Gosched() // a slow part that is longer at times
		}
	})})
	table.feed = e.Feed()
	table.lead(1)
	e.Lead(1)
	ctx, cancel := context.WithCancel(t.Context())
	var run sync.WaitGroup
	run.Go(func() {
		if err := loop.Run(ctx); err != nil {
			t.Error(err)
		}
	})
	defer run.Wait()
	defer cancel()
	limit := time.After(20 * time.Second)
	begin := time.Now()
	for i := 0; i < 20_000 && time.Since(begin) < 700*time.Millisecond; i++ {
		for range 1 + i%3 {
			table.schedule(fmt.Sprint(i), fmt.Sprint(i%2), time.Now().UnixMilli(), 3_600_000, 0)
			select {
			case <-out:
			case <-limit:
				t.Fatalf("timer %d was pushed and not handed out", i)
			}
		}
	}
}

// A push that falls between the end of a turn and the moment at which the baton lies, while the slow part then waits for
// just that push, must bring the standby.
func TestNoPushIsLostAsTheBatonIsLaidDown(t *testing.T) {
	loop := NewLoop(LoopOptions{Logger: quiet, Workers: 3})
	loop.clock.sleepMax = time.Hour
	ctx, cancel := context.WithCancel(t.Context())
	var run sync.WaitGroup
	table := newFakeTable()
	gone, waited := make(chan struct{}, 1), make(chan struct{}, 1)
	e := loop.Add(Options{Table: table, Deliverer: readyFunc(func(src Source, q Queue) {
		for _, d := range src.Take(q, 1) {
			table.remove(d.Record.ID, d.Token.Revision)
			if q.Name == "go" {
				gone <- struct{}{}
				continue
			}
			select {
			case <-gone:
			case <-ctx.Done():
			}
			waited <- struct{}{}
		}
	})})
	table.feed = e.Feed()
	table.lead(1)
	e.Lead(1)
	run.Go(func() {
		if err := loop.Run(ctx); err != nil {
			t.Error(err)
		}
	})
	defer run.Wait()
	defer cancel()
	limit := time.After(20 * time.Second)
	begin := time.Now()
	for i := 0; time.Since(begin) < time.Second; i++ {
		table.schedule(fmt.Sprint("wait", i), "wait", time.Now().UnixMilli(), 3_600_000, 0)
		for spin := time.Now(); time.Since(spin) < time.Duration(i%150)*time.Microsecond; {
		}
		table.schedule(fmt.Sprint("go", i), "go", time.Now().UnixMilli(), 3_600_000, 0)
		select {
		case <-waited:
		case <-limit:
			t.Fatalf("round %d: a push was not seen", i)
		}
	}
}
