package webhook

import (
	"bytes"
	"context"
	"fmt"
	"log/slog"
	"net/http"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/carillon-timers/carillon/raftfsm"
	"github.com/carillon-timers/carillon/shard"
	"github.com/carillon-timers/carillon/shard/executor"
)

// bubble runs a test in a bubble, with a network in memory.
func bubble(t *testing.T, change func(*Config), test func(t *testing.T, n *network, r *rig)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		n := newNetwork()
		r := newRig(t, func(c *Config) {
			n.use(c)
			if change != nil {
				change(c)
			}
		})
		test(t, n, r)
		r.stop()
		<-r.ended
	})
}

// gauge counts what runs at the same time.
type gauge struct {
	mu        sync.Mutex
	now, most int
	at        []time.Time
}

func (g *gauge) hold(d time.Duration) {
	g.mu.Lock()
	g.now++
	g.most = max(g.most, g.now)
	g.at = append(g.at, time.Now())
	g.mu.Unlock()
	time.Sleep(d)
	g.mu.Lock()
	g.now--
	g.mu.Unlock()
}

func TestConcurrency(t *testing.T) {
	t.Parallel()
	bubble(t, func(c *Config) { c.Concurrency = 3 }, func(t *testing.T, n *network, r *rig) {
		var a, b gauge
		n.serve(t, "8.8.8.8:80", func(http.ResponseWriter, *http.Request) { a.hold(time.Second) })
		n.serve(t, "8.8.4.4:80", func(http.ResponseWriter, *http.Request) { b.hold(time.Second) })
		for i := range 9 {
			r.fire(r.delivery(fmt.Sprint("a", i), "http://8.8.8.8/"), r.delivery(fmt.Sprint("b", i), "http://8.8.4.4/"))
		}
		synctest.Wait()
		if left := r.source.left(); left != 12 {
			t.Errorf("%d are in the ready lists while 6 are posted, want 12", left)
		}
		began := time.Now()
		for r.count() < 18 {
			time.Sleep(10 * time.Millisecond)
		}
		if took := time.Since(began); a.most != 3 || b.most != 3 || took > 3100*time.Millisecond {
			t.Errorf("at most %d and %d at the same time, %v in all; want 3, 3, 3 s", a.most, b.most, took)
		}
	})
}

// Hosts that take connections and say nothing hold up nobody else, however many timers wait for them.
func TestHungHosts(t *testing.T) {
	t.Parallel()
	bubble(t, nil, func(t *testing.T, n *network, r *rig) {
		n.silent(t, "8.8.8.8:80")
		n.serve(t, "8.8.4.4:80", func(http.ResponseWriter, *http.Request) {})
		for i := range 100 {
			r.fire(r.delivery(fmt.Sprint("silent", i), "http://8.8.8.8/"), r.delivery(fmt.Sprint("hole", i), "http://1.1.1.1/"))
		}
		for i := range 100 {
			began := time.Now()
			r.post(fmt.Sprint("well", i), "http://8.8.4.4/")
			if took := time.Since(began); took > 0 {
				t.Fatalf("post %d took %v", i, took)
			}
			time.Sleep(300 * time.Millisecond)
		}
		if n := r.outcome(OK); n != 100 {
			t.Errorf("%d posts were acked, want 100", n)
		}
		if s := r.Stats(); s.Failing != 2 {
			t.Errorf("%d hosts are failing, want 2", s.Failing)
		}
	})
}

// When the limit of all hosts together is reached, those that wait have their turns, and a host that does not answer is left a
// single place of it.
func TestTotal(t *testing.T) {
	t.Parallel()
	bubble(t, func(c *Config) { c.Concurrency = MaxConcurrency }, func(t *testing.T, n *network, r *rig) {
		n.silent(t, "8.8.8.8:80")
		n.silent(t, "9.9.9.9:80")
		n.serve(t, "8.8.4.4:80", func(http.ResponseWriter, *http.Request) {})
		for i := range 1200 {
			r.fire(r.delivery(fmt.Sprint("a", i), "http://8.8.8.8/"), r.delivery(fmt.Sprint("b", i), "http://9.9.9.9/"))
		}
		r.fire(r.delivery("well", "http://8.8.4.4/"))
		synctest.Wait()
		if s := r.Stats(); s.Active != MaxTotal || s.Waiting == 0 {
			t.Errorf("%d active, %d waiting; want %d and some", s.Active, s.Waiting, MaxTotal)
		}
		r.wait("well")
		time.Sleep(time.Minute)
		synctest.Wait() // posts time out at this very instant
		if s := r.Stats(); s.Active != 2 || s.Failing != 2 {
			t.Errorf("%d active, %d failing; want 2, 2", s.Active, s.Failing)
		}
	})
}

func TestFailingHostRecovers(t *testing.T) {
	t.Parallel()
	bubble(t, func(c *Config) { c.Concurrency = 4 }, func(t *testing.T, n *network, r *rig) {
		var mu sync.Mutex
		var load gauge
		hang := true
		n.serve(t, "8.8.8.8:80", func(w http.ResponseWriter, q *http.Request) {
			mu.Lock()
			wait := hang
			mu.Unlock()
			if wait {
				<-q.Context().Done()
				return
			}
			load.hold(100 * time.Millisecond)
		})
		for i := range 40 {
			r.fire(r.delivery(fmt.Sprint(i), "http://8.8.8.8/"))
		}
		time.Sleep(16 * time.Second)
		// Two of the four places were filled again before the third failure.
		if s := r.Stats(); r.outcome(TimedOut) != 4 || s.Active != 2 || s.Failing != 1 {
			t.Errorf("%d timed out, %d active, %d failing; want 4, 2, 1", r.outcome(TimedOut), s.Active, s.Failing)
		}
		mu.Lock()
		hang = false
		mu.Unlock()
		time.Sleep(17 * time.Second)
		if s := r.Stats(); load.most != 4 || s.Failing != 0 || r.source.left() != 0 {
			t.Errorf("%d at a time, %d failing, %d left; want 4, 0, 0", load.most, s.Failing, r.source.left())
		}
	})
}

func TestRate(t *testing.T) {
	t.Parallel()
	for _, rate := range []int{1, 7, 50, 2000} {
		t.Run(fmt.Sprint(rate), func(t *testing.T) {
			t.Parallel()
			bubble(t, func(c *Config) { c.Rate = rate }, func(t *testing.T, n *network, r *rig) {
				var load gauge
				n.serve(t, "8.8.8.8:80", func(http.ResponseWriter, *http.Request) { load.hold(0) })
				burst := max(1, rate/10)
				total := 3*rate + burst
				for i := range total {
					r.fire(r.delivery(fmt.Sprint(i), "http://8.8.8.8/"))
				}
				began := time.Now()
				for r.count() < total {
					time.Sleep(time.Millisecond)
				}
				if took := time.Since(began); took < 2990*time.Millisecond || took > 3300*time.Millisecond {
					t.Errorf("%d took %v, want 3 s", total, took)
				}
				for i := range load.at {
					if end := i + rate + burst; end < len(load.at) && load.at[end].Sub(load.at[i]) < 990*time.Millisecond {
						t.Fatalf("%d within %v", rate+burst+1, load.at[end].Sub(load.at[i]))
					}
				}
			})
		})
	}
}

// Two namespaces that share a host have their turns.
func TestNamespacesTakeTurns(t *testing.T) {
	t.Parallel()
	bubble(t, func(c *Config) { c.Concurrency = 1 }, func(t *testing.T, n *network, r *rig) {
		var mu sync.Mutex
		var order []string
		n.serve(t, "8.8.8.8:80", func(_ http.ResponseWriter, q *http.Request) {
			mu.Lock()
			defer mu.Unlock()
			order = append(order, q.Header.Get("Ce-Subject")[:1])
			time.Sleep(time.Millisecond)
		})
		for _, namespace := range []string{"a", "b"} {
			for i := range 5 {
				d := r.delivery(fmt.Sprint(namespace, i), "http://8.8.8.8/")
				d.Record.Namespace = namespace
				r.fire(d)
			}
		}
		for r.count() < 10 {
			time.Sleep(time.Millisecond)
		}
		if got := strings.Join(order, ""); got != "aabababbab" && strings.Contains(got[1:9], "aaa") {
			t.Errorf("order %s: not in turns", got)
		}
	})
}

// An at-most-once timer is settled before it is handed out: it is posted once, whatever comes of it.
func TestAtMostOnce(t *testing.T) {
	t.Parallel()
	bubble(t, nil, func(t *testing.T, n *network, r *rig) {
		n.serve(t, "8.8.8.8:80", func(w http.ResponseWriter, q *http.Request) {
			if q.URL.Path == "/bad" {
				w.WriteHeader(500)
			}
		})
		for _, path := range []string{"good", "bad"} {
			d := r.delivery(path, "http://8.8.8.8/"+path)
			d.Record.Extra.AtMostOnce, d.LeaseEnd = true, 0
			r.fire(d)
		}
		time.Sleep(time.Second)
		s := r.Stats()
		if r.count() != 0 || r.outcome(OK) != 1 || r.outcome(Failed) != 1 || s.Lost != 1 || s.Active != 0 {
			t.Errorf("%d settled, %+v", r.count(), s)
		}
	})
}

// A stop lets posts finish for half of its time, then it breaks them off and gives them back without counting an attempt.
func TestStop(t *testing.T) {
	t.Parallel()
	bubble(t, nil, func(t *testing.T, n *network, r *rig) {
		n.silent(t, "8.8.8.8:80")
		n.serve(t, "8.8.4.4:80", func(http.ResponseWriter, *http.Request) { time.Sleep(2 * time.Second) })
		for i := range 20 { // four of the hung ones stay in the ready list
			r.fire(r.delivery(fmt.Sprint("hung", i), "http://8.8.8.8/"))
		}
		r.fire(r.delivery("slow", "http://8.8.4.4/"))
		synctest.Wait()
		began := time.Now()
		r.stop()
		<-r.ended
		if took := time.Since(began); took != 2500*time.Millisecond || r.err != nil {
			t.Errorf("the stop took %v, %v; want 2.5 s", took, r.err)
		}
		if r.wait("slow").GetComplete() == nil {
			t.Error("a post that ended in time was not acked")
		}
		if got := r.wait("hung0").GetRetry(); !got.GetReturned() || got.GetDead() || got.GetHasDelay() {
			t.Errorf("a post that was broken off: %v", got)
		}
		if r.count() != 17 || r.source.left() != 4 || r.outcome(Returned) != 16 {
			t.Errorf("%d settled, %d left, %d returned; want 17, 4, 16", r.count(), r.source.left(), r.outcome(Returned))
		}
		r.fire(r.delivery("late", "http://8.8.4.4/"))
		synctest.Wait()
		if r.source.left() != 5 {
			t.Error("it took after the stop")
		}
	})
}

// A shard that does not answer does not hold up the stop.
func TestStopWithoutLeader(t *testing.T) {
	t.Parallel()
	bubble(t, nil, func(t *testing.T, n *network, r *rig) {
		n.silent(t, "8.8.8.8:80")
		r.answer = func(*raftfsm.Command) error { return shard.ErrUnavailable }
		r.fire(r.delivery("a", "http://8.8.8.8/"))
		synctest.Wait()
		began := time.Now()
		r.stop()
		<-r.ended
		if took := time.Since(began); took > r.config.StopTimeout || r.err != nil || r.Stats().Unsettled != 1 {
			t.Errorf("the stop took %v, %v, %d unsettled", took, r.err, r.Stats().Unsettled)
		}
	})
}

// What could not be settled is tried again until the lease is over: a leader may be on its way.
func TestSettleAgain(t *testing.T) {
	t.Parallel()
	bubble(t, nil, func(t *testing.T, n *network, r *rig) {
		n.serve(t, "8.8.8.8:80", func(http.ResponseWriter, *http.Request) {})
		calls := map[string]int{}
		r.answer = func(c *raftfsm.Command) error {
			id := c.GetComplete().GetId()
			calls[id]++
			switch {
			case id == "stale":
				return shard.ErrStaleToken
			case id == "never":
				return &shard.NotLeaderError{}
			case id == "odd":
				return &shard.InvalidError{Field: "x"}
			case id == "again" && calls[id] < 4:
				return []error{shard.ErrUnavailable, shard.ErrUnknown, &shard.OverloadedError{Limit: "x"}}[calls[id]-1]
			}
			return nil
		}
		for _, id := range []string{"stale", "never", "odd", "again"} {
			r.fire(r.delivery(id, "http://8.8.8.8/"))
		}
		r.wait("again")
		time.Sleep(time.Minute)
		s := r.Stats()
		if s.Settled != 1 || s.Stale != 1 || s.Unsettled != 2 || s.Active != 0 || calls["stale"] != 1 || calls["odd"] != 1 || calls["never"] < 25 || calls["never"] > 45 {
			t.Errorf("calls %v, %+v", calls, s)
		}
	})
}

// A shard without a leader holds up the answers of no other.
func TestSettlePerShard(t *testing.T) {
	t.Parallel()
	bubble(t, nil, func(t *testing.T, n *network, r *rig) {
		n.serve(t, "8.8.8.8:80", func(http.ResponseWriter, *http.Request) {})
		settle := r.config.Settle
		r.config.Settle = func(ctx context.Context, commands []*raftfsm.Command) []error {
			if commands[0].GetComplete().GetId() == "stuck" {
				<-ctx.Done()
				return []error{shard.ErrUnknown}
			}
			return settle(ctx, commands)
		}
		stuck, well := r.delivery("stuck", "http://8.8.8.8/"), r.delivery("well", "http://8.8.8.8/")
		stuck.Token.Shard = 1
		r.fire(stuck)
		synctest.Wait()
		began := time.Now()
		r.fire(well)
		if r.wait("well"); time.Since(began) > 0 {
			t.Errorf("waited %v", time.Since(began))
		}
	})
}

// What becomes ready while its ready list is being asked is not forgotten.
func TestReadyDuringTake(t *testing.T) {
	t.Parallel()
	bubble(t, nil, func(t *testing.T, n *network, r *rig) {
		n.serve(t, "8.8.8.8:80", func(http.ResponseWriter, *http.Request) {})
		r.atNextTake(func() { r.fire(r.delivery("second", "http://8.8.8.8/")) })
		r.fire(r.delivery("first", "http://8.8.8.8/"))
		synctest.Wait()
		if r.count() != 2 {
			t.Errorf("%d settled, want 2", r.count())
		}
	})
}

// Places that were held while a ready list was asked, and not needed, go to a host that came meanwhile.
func TestReservedPlaces(t *testing.T) {
	t.Parallel()
	bubble(t, func(c *Config) { c.Concurrency = MaxConcurrency }, func(t *testing.T, n *network, r *rig) {
		n.silent(t, "8.8.8.8:80")
		n.silent(t, "9.9.9.9:80")
		n.serve(t, "8.8.4.4:80", func(http.ResponseWriter, *http.Request) {})
		for i := range MaxConcurrency {
			r.fire(r.delivery(fmt.Sprint("silent", i), "http://8.8.8.8/"))
		}
		synctest.Wait()
		if s := r.Stats(); s.Active != MaxConcurrency {
			t.Fatalf("%d active", s.Active)
		}
		r.atNextTake(func() { r.fire(r.delivery("well", "http://8.8.4.4/")) })
		r.fire(r.delivery("silent", "http://9.9.9.9/"))
		synctest.Wait()
		if r.count() != 1 {
			t.Error("a host waits although there is room")
		}
	})
}

// A ready list that turns out to be empty uses up nothing of the rate.
func TestUnusedRate(t *testing.T) {
	t.Parallel()
	bubble(t, func(c *Config) { c.Rate = 1 }, func(t *testing.T, n *network, r *rig) {
		n.serve(t, "8.8.8.8:80", func(http.ResponseWriter, *http.Request) {})
		r.Ready(r.source, executor.Queue{Namespace: "default", Name: queueMark + "http://8.8.8.8:80"})
		r.fire(r.delivery("a", "http://8.8.8.8/"))
		synctest.Wait()
		if r.count() != 1 {
			t.Error("a post waits for a rate that nobody has used")
		}
	})
}

func TestForgetAndSweep(t *testing.T) {
	t.Parallel()
	bubble(t, func(c *Config) { c.Concurrency = 1 }, func(t *testing.T, n *network, r *rig) {
		n.serve(t, "8.8.8.8:80", func(http.ResponseWriter, *http.Request) { time.Sleep(time.Second) })
		r.fire(r.delivery("a", "http://8.8.8.8/"), r.delivery("b", "http://8.8.8.8/"))
		synctest.Wait()
		r.Forget(r.source.shard)
		time.Sleep(5 * time.Second)
		if r.source.left() != 1 {
			t.Error("it took from a shard that was forgotten")
		}
		r.Ready(r.source, executor.Queue{Namespace: "default", Name: queueMark + "http://8.8.8.8:80"})
		r.wait("b")
		if s := r.Stats(); s.Hosts != 1 {
			t.Errorf("%d hosts, want 1", s.Hosts)
		}
		time.Sleep(time.Minute)
		if s := r.Stats(); s.Hosts != 0 {
			t.Errorf("%d hosts after a minute of nothing, want 0", s.Hosts)
		}
	})
}

// One line for each class in ten seconds, which says how many it stands for; and never a URL, which may hold a secret.
func TestLogs(t *testing.T) {
	t.Parallel()
	var out bytes.Buffer
	bubble(t, func(c *Config) { c.Logger = slog.New(slog.NewTextHandler(&out, nil)) }, func(t *testing.T, n *network, r *rig) {
		n.serve(t, "8.8.8.8:80", func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(500) })
		for i := range 50 {
			r.post(fmt.Sprint("a", i), "http://8.8.8.8/?secret=hunter2")
			r.post(fmt.Sprint("b", i), "http://nowhere.example/hunter2")
		}
		time.Sleep(logEvery)
		r.post("last", "http://8.8.8.8/")
		text := out.String()
		for part, want := range map[string]int{"outcome=failed": 2, "outcome=unresolved": 1, "more_since_last_line=49": 1, "hunter2": 0, "host=http://8.8.8.8:80": 2} {
			if got := strings.Count(text, part); got != want {
				t.Errorf("%s: %d times, want %d in\n%s", part, got, want, text)
			}
		}
	})
}

// A defect that one timer's data wakes does not end the process.
func TestPanic(t *testing.T) {
	t.Parallel()
	bubble(t, nil, func(t *testing.T, n *network, r *rig) {
		d := r.delivery("a", "http://8.8.8.8/")
		r.secrets.Store(nil)
		r.fire(d)
		if got := r.wait("a").GetRetry(); got.GetError() != "defect in Carillon" || r.Stats().Panics != 1 {
			t.Errorf("%v, %d panics", got, r.Stats().Panics)
		}
	})
}

func TestRunTwice(t *testing.T) {
	t.Parallel()
	bubble(t, nil, func(t *testing.T, _ *network, r *rig) {
		synctest.Wait()
		if err := r.Run(context.Background()); err == nil {
			t.Error("it ran twice")
		}
	})
}
