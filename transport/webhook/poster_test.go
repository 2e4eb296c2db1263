package webhook

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"slices"
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

func TestPhases(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name, url string
		change    func(*Config)
		outcome   Outcome
		text      string
		took      time.Duration
	}{
		{"no address", "http://nowhere.example/", nil, Unresolved, "no such host", 0},
		{"no connection", "http://1.1.1.1/", nil, Unconnected, "dial 1.1.1.1:80", 5 * time.Second},
		{"no handshake", "https://silent.example/", nil, TimedOut, "in the TLS handshake", 5 * time.Second},
		{"no answer", "http://silent.example/", nil, TimedOut, "while waiting for the answer", 15 * time.Second},
		{"no head", "http://silent.example/", func(c *Config) { c.HeaderTimeout = 3 * time.Second }, TimedOut, "while waiting for the answer", 3 * time.Second},
		{"whole", "http://1.1.1.1/", func(c *Config) { c.Timeout = time.Second }, TimedOut, "while connecting", time.Second},
		{"no body after ok", "http://endless.example/200", nil, OK, "", 0},
		{"no body after an error", "http://endless.example/500", nil, Failed, "HTTP 500 Internal Server Error: begin", 2 * time.Second},
		{"not HTTP", "http://rubbish.example/", nil, Broken, "malformed", 0},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			bubble(t, c.change, func(t *testing.T, n *network, r *rig) {
				n.name("silent.example", "8.8.8.8")
				n.name("endless.example", "8.8.4.4")
				n.name("rubbish.example", "9.9.9.9")
				n.silent(t, "8.8.8.8:80")
				n.silent(t, "8.8.8.8:443")
				n.serve(t, "8.8.4.4:80", func(w http.ResponseWriter, q *http.Request) {
					if q.URL.Path == "/500" {
						w.WriteHeader(500)
					}
					_, _ = io.WriteString(w, "begin")
					w.(http.Flusher).Flush()
					<-q.Context().Done()
				})
				n.rubbish(t, "9.9.9.9:80")
				began := time.Now()
				got := r.post("a", c.url)
				if took := time.Since(began); took != c.took {
					t.Errorf("took %v, want %v", took, c.took)
				}
				if r.outcome(c.outcome) != 1 || !strings.Contains(got.GetRetry().GetError(), c.text) || (c.outcome == OK) != (got.GetComplete() != nil) {
					t.Errorf("%v; want %v, %q", got, c.outcome, c.text)
				}
			})
		})
	}
}

// A post ends before the lease of its timer does, so that it can be settled and is never made twice at the same time.
func TestLeaseBoundsPost(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ lease, want time.Duration }{
		{100 * time.Millisecond, 75 * time.Millisecond}, {2 * time.Second, 1500 * time.Millisecond}, {10 * time.Second, 9 * time.Second},
		{time.Hour, 15 * time.Second},
	} {
		bubble(t, nil, func(t *testing.T, n *network, r *rig) {
			n.silent(t, "8.8.8.8:80")
			d := r.delivery("a", "http://8.8.8.8/")
			d.LeaseEnd = d.HandedOut + c.lease.Milliseconds()
			began := time.Now()
			r.fire(d)
			r.wait("a")
			if took := time.Since(began); took != c.want {
				t.Errorf("with a lease of %v the post took %v, want %v", c.lease, took, c.want)
			}
		})
	}
	bubble(t, nil, func(t *testing.T, n *network, r *rig) {
		d := r.delivery("a", "http://8.8.8.8/")
		d.LeaseEnd = d.HandedOut - 1
		r.fire(d)
		if got := r.wait("a").GetRetry(); !got.GetReturned() || len(n.dialled) > 0 {
			t.Errorf("after the lease: %v, dialled %v", got, n.dialled)
		}
	})
}

// DNS rebinding: what a name resolves to is checked, and what was checked is dialled.
func TestResolvedAddresses(t *testing.T) {
	t.Parallel()
	ok := func(http.ResponseWriter, *http.Request) {}
	bubble(t, nil, func(t *testing.T, n *network, r *rig) {
		for _, addr := range []string{"10.0.0.5:80", "8.8.8.8:80", "127.0.0.1:80"} {
			n.serve(t, addr, ok)
		}
		n.name("private.example", "10.0.0.5", "::1")
		n.name("mixed.example", "10.0.0.5", "8.8.8.8")
		n.name("mapped.example", "::ffff:127.0.0.1")
		n.name("slow.example", "2606:4700::1", "8.8.8.8") // the first is a black hole
		for name, want := range map[string]Outcome{"private": Forbidden, "mapped": Forbidden, "mixed": OK} {
			before := r.outcome(want)
			if got := r.post(name, "http://"+name+".example/"); r.outcome(want) != before+1 {
				t.Errorf("%s: %v, want %v", name, got, want)
			}
		}
		if want := []string{"8.8.8.8:80"}; !slices.Equal(n.dialled, want) {
			t.Errorf("dialled %v, want %v", n.dialled, want)
		}
		began := time.Now()
		if r.post("slow", "http://slow.example/"); time.Since(began) != dialStagger {
			t.Errorf("the second address was tried after %v", time.Since(began))
		}
		// The name changes between two posts: a private address is refused although the URL is the same, and also when the
		// first connection is closed.
		n.name("moving.example", "8.8.8.8")
		r.post("before", "http://moving.example/")
		r.transport.CloseIdleConnections()
		n.names["moving.example"] = n.names["private.example"]
		if got := r.post("after", "http://moving.example/"); !strings.Contains(got.GetRetry().GetError(), "not a public address") {
			t.Errorf("after the name had moved: %v", got)
		}
	})
	allow := func(c *Config) { c.Policy = policy(t, "*.internal", "10.0.0.0/8") }
	bubble(t, allow, func(t *testing.T, n *network, r *rig) {
		n.serve(t, "192.168.0.1:80", ok)
		n.serve(t, "10.0.0.5:80", ok)
		n.name("a.internal", "192.168.0.1")
		n.name("b.example", "10.0.0.5", "192.168.0.1")
		r.post("a", "http://a.internal/")
		r.post("b", "http://b.example/")
		if want := []string{"192.168.0.1:80", "10.0.0.5:80"}; !slices.Equal(n.dialled, want) || r.outcome(OK) != 2 {
			t.Errorf("dialled %v, want %v", n.dialled, want)
		}
	})
}

// A URL that was allowed when its timer was created and is not any more is not posted to; the timer goes on by its policy.
func TestForbiddenURL(t *testing.T) {
	t.Parallel()
	bubble(t, nil, func(t *testing.T, n *network, r *rig) {
		for i, url := range []string{"http://127.0.0.1/", "", "ftp://x/"} {
			if got := r.post(fmt.Sprint(i), url).GetRetry(); got == nil || got.Dead || got.Returned || !strings.HasPrefix(got.Error, "webhook: ") {
				t.Errorf("%q: %v", url, got)
			}
		}
		if r.outcome(Forbidden) != 3 || len(n.dialled) != 0 {
			t.Errorf("%d forbidden, dialled %v", r.outcome(Forbidden), n.dialled)
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

func TestConfigs(t *testing.T) {
	t.Parallel()
	good := func() Config {
		c := DefaultConfig()
		c.Now, c.Monotonic, c.Settle = time.Now, time.Now, func(context.Context, []*raftfsm.Command) []error { return nil }
		return c
	}
	if err := good().Validate(); err != nil {
		t.Fatal(err)
	}
	for field, change := range map[string]func(c *Config){
		"Now": func(c *Config) { c.Now = nil }, "Concurrency": func(c *Config) { c.Concurrency = 0 }, "Rate": func(c *Config) { c.Rate = -1 },
		"Timeout": func(c *Config) { c.Timeout = time.Millisecond }, "DialTimeout": func(c *Config) { c.DialTimeout = 0 },
		"HeaderTimeout": func(c *Config) { c.HeaderTimeout = -1 }, "Redirects": func(c *Config) { c.Redirects = 11 },
		"StopTimeout": func(c *Config) { c.StopTimeout = 0 }, "UserAgent": func(c *Config) { c.UserAgent = "a\nb" },
	} {
		c := good()
		change(&c)
		if err := c.Validate(); err == nil || !strings.Contains(err.Error(), field) {
			t.Errorf("%s: %v", field, err)
		}
	}
}

func TestSecrets(t *testing.T) {
	t.Parallel()
	for name, text := range map[string]string{
		"line 1": "default", "3 secrets": "default " + newSecret + " " + newSecret + " " + newSecret, "whsec_": "default abc", "base64": "default whsec_!!!",
		"24 to 64": "default whsec_AAAA", "line 2": "a " + newSecret + "\na " + oldSecret, "namespace": "A " + newSecret,
		"over": strings.Repeat("# x\n", maxSecretsBytes/4+1),
	} {
		_, err := ReadSecrets(strings.NewReader(text))
		if err == nil || !strings.Contains(err.Error(), name) || strings.Contains(err.Error(), newSecret[8:]) {
			t.Errorf("%s: %v", name, err)
		}
	}
	got, err := ReadSecrets(strings.NewReader("a " + newSecret + "\n  b\t" + oldSecret + " " + newSecret + "\n"))
	if err != nil || len(got["a"]) != 1 || len(got["b"]) != 2 || !slices.Equal(got["a"][0], got["b"][1]) {
		t.Errorf("%v, %v", got, err)
	}
}

func TestHeaders(t *testing.T) {
	t.Parallel()
	if err := CheckHeaders("application/json", map[string]string{"Authorization": "Bearer x", "X-A": "", "x-b": "größer\t"}); err != nil {
		t.Error(err)
	}
	for _, name := range []string{"connection", "TE", "Host", "content-length", "Content-Type", "ce-id", "CE-x", "webhook-signature", "transfer-encoding", "proxy-authorization", "", "a b", "a:", "ä"} {
		var invalid *shard.InvalidError
		if err := CheckHeaders("", map[string]string{name: "x"}); !errors.As(err, &invalid) || !strings.HasPrefix(invalid.Field, "headers[") {
			t.Errorf("%q: %v", name, err)
		}
		if len(ownHeaders([]raftfsm.Pair{{Key: name, Value: "x"}})) != 0 {
			t.Errorf("%q would be sent", name)
		}
	}
	for _, value := range []string{"a\r\nb: c", "a\nb", "\x00", "\x7f"} {
		if CheckHeaders("", map[string]string{"a": value}) == nil || CheckHeaders(value, nil) == nil {
			t.Errorf("%q was accepted", value)
		}
	}
}

func FuzzTexts(f *testing.F) {
	f.Add("120", "a\nb")
	f.Add("Mon, 30 Nov 2026 12:00:30 GMT", strings.Repeat("é", 600))
	f.Add("-1", "\xff\x00")
	now := time.Date(2026, 11, 30, 12, 0, 0, 0, time.UTC)
	f.Fuzz(func(t *testing.T, after, text string) {
		if d := retryAfter(after, now); d < 0 || d > maxRetryAfter {
			t.Fatalf("Retry-After %q: %v", after, d)
		}
		clean := cleanText(text)
		if len(clean) > raftfsm.MaxErrorBytes || !validValue(clean) || cleanText(clean) != clean {
			t.Fatalf("%q became %q", text, clean)
		}
		if p := percent(text); strings.ContainsFunc(p, func(r rune) bool { return r <= ' ' || r > '~' || r == '"' }) {
			t.Fatalf("%q became %q", text, p)
		}
	})
}
