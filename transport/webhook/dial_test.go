package webhook

import (
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"
)

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
		for _, addr := range []string{"10.0.0.5:80", "8.8.8.8:80", "8.8.4.4:80", "127.0.0.1:80"} {
			n.serve(t, addr, ok)
		}
		n.name("private.example", "10.0.0.5", "::1")
		n.name("mixed.example", "10.0.0.5", "8.8.8.8")
		n.name("mapped.example", "::ffff:127.0.0.1")
		n.name("public.example", "::ffff:8.8.4.4")        // how some resolvers write an IPv4 address
		n.name("slow.example", "2606:4700::1", "8.8.8.8") // the first is a black hole
		for name, want := range map[string]Outcome{"private": Forbidden, "mapped": Forbidden, "mixed": OK, "public": OK} {
			before := r.outcome(want)
			if got := r.post(name, "http://"+name+".example/"); r.outcome(want) != before+1 {
				t.Errorf("%s: %v, want %v", name, got, want)
			}
		}
		slices.Sort(n.dialled) // the names came in any order
		if want := []string{"8.8.4.4:80", "8.8.8.8:80"}; !slices.Equal(n.dialled, want) {
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
