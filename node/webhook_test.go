package node

import (
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/carillon-timers/carillon/client"
)

// hook is a receiver of webhooks.
type hook struct {
	*httptest.Server
	mu   sync.Mutex
	got  map[string][]http.Header // by timer ID; guarded by mu
	hold chan struct{}            // posts to /hold wait until it is closed
}

func newHook(t *testing.T) *hook {
	h := &hook{got: map[string][]http.Header{}, hold: make(chan struct{})}
	h.Server = httptest.NewServer(h)
	t.Cleanup(h.Close)
	return h
}

func (h *hook) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	_, _ = io.Copy(io.Discard, r.Body)
	h.mu.Lock()
	id := r.Header.Get("Ce-Subject")
	h.got[id] = append(h.got[id], r.Header)
	first := len(h.got[id]) == 1
	h.mu.Unlock()
	switch {
	case r.URL.Path == "/gone":
		w.WriteHeader(http.StatusGone)
	case r.URL.Path == "/busy" && first:
		w.Header().Set("Retry-After", "1")
		w.WriteHeader(http.StatusServiceUnavailable)
	case r.URL.Path == "/fail":
		w.WriteHeader(http.StatusInternalServerError)
		_, _ = io.WriteString(w, "no")
	case r.URL.Path == "/hold":
		select {
		case <-h.hold:
		case <-r.Context().Done():
		}
	}
}

func (h *hook) of(id string) []http.Header {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.got[id]
}

// posts counts those of timers whose IDs begin with a prefix.
func (h *hook) posts(prefix string) (n int) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for id, got := range h.got {
		if strings.HasPrefix(id, prefix) {
			n += len(got)
		}
	}
	return n
}

func (c *testCluster) startWithHooks(count int, secrets string) {
	c.t.Helper()
	for i := range count {
		config := c.config(fmt.Sprint("n", i+1), count)
		config.Webhooks.Allow, config.Webhooks.SecretsFile = []string{"127.0.0.0/8"}, secrets
		c.start(config)
	}
	c.waitReady()
}

// Webhooks in a real cluster: acked, dead at once, tried again when the receiver says so, refused, and given on to the next
// leader.
func TestWebhooks(t *testing.T) {
	t.Parallel()
	secrets := filepath.Join(t.TempDir(), "secrets")
	if err := os.WriteFile(secrets, []byte("default whsec_C2FVsBQIhrscChlQIMV+b5sSYspob7oD\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	c := newTestCluster(t, spineShards)
	c.startWithHooks(3, secrets)
	h := newHook(t)
	cl := c.client()
	schedule := func(id, url string) {
		t.Helper()
		timer := client.Timer{ID: id, After: 50 * time.Millisecond, Webhook: url, Payload: []byte(id), Headers: map[string]string{"X-Own": "yes"}}
		if _, err := cl.Schedule(t.Context(), timer); err != nil {
			t.Fatal(err)
		}
	}
	for i := range 20 {
		schedule(fmt.Sprint("ok-", i), h.URL+"/ok")
	}
	schedule("gone", h.URL+"/gone")
	schedule("busy", h.URL+"/busy")
	for i := range 20 {
		id := fmt.Sprint("ok-", i)
		c.awaitState(cl, id, client.Fired)
		if got := h.of(id); len(got) == 0 || got[0].Get("X-Own") != "yes" || !strings.HasPrefix(got[0].Get("Webhook-Signature"), "v1,") {
			t.Errorf("%s came with %v", id, got)
		}
	}
	c.awaitState(cl, "gone", client.Dead)
	c.awaitState(cl, "busy", client.Fired)
	if got := h.of("busy"); len(got) != 2 || got[0].Get("Ce-Id") != got[1].Get("Ce-Id") || got[1].Get("Ce-Attempt") != "2" {
		t.Errorf("a receiver that was busy once got %v", got)
	}
	c.refusedHooks(cl)
	c.hookAcrossLeaders(cl, h)
	_, page := c.httpGet("n2", "/metrics")
	if !strings.Contains(page, `carillon_webhook_seconds_count{outcome="`) {
		t.Error("no metric of webhooks")
	}
}

func (c *testCluster) awaitState(cl *client.Client, id string, want client.State) {
	c.t.Helper()
	eventually(c.t, func() error {
		if s, err := cl.Get(c.t.Context(), id); err != nil || s.State != want {
			return fmt.Errorf("%s: state %v, %w; want %v", id, s.State, err, want)
		}
		return nil
	})
}

func (c *testCluster) refusedHooks(cl *client.Client) {
	c.t.Helper()
	for part, timer := range map[string]client.Timer{
		"link-local": {Webhook: "http://169.254.169.254/latest"}, "scheme": {Webhook: "ftp://example.com/"}, "private": {Webhook: "http://10.0.0.1/"},
		"IPv4-mapped": {Webhook: "http://[::ffff:10.0.0.1]/"}, "Host": {Webhook: "https://example.com/", Headers: map[string]string{"Host": "x"}},
	} {
		timer.ID = "refused"
		_, err := cl.Schedule(c.t.Context(), timer)
		if err == nil || !strings.Contains(err.Error(), part) || !strings.Contains(err.Error(), "webhook") {
			c.t.Errorf("%+v: %v, want %q", timer, err, part)
		}
	}
}

// The leader stops while a receiver holds its post: the post is broken off and given back, and the next leader posts it again,
// with the same ce-id, no attempt counted, under a later epoch.
func (c *testCluster) hookAcrossLeaders(cl *client.Client, h *hook) {
	t := c.t
	t.Helper()
	for s := range spineShards { // one in each shard, so that n1 leads some of them
		timer := client.Timer{ID: "hold-" + idOf(s, spineShards), Webhook: h.URL + "/hold"}
		if _, err := cl.Schedule(t.Context(), timer); err != nil {
			t.Fatal(err)
		}
	}
	for s := range spineShards {
		eventually(t, func() error {
			if len(h.of("hold-"+idOf(s, spineShards))) == 0 {
				return fmt.Errorf("the post of shard %d has not come", s)
			}
			return nil
		})
	}
	cl = c.client("n2", "n3")
	c.stop("n1")
	close(h.hold)
	again := 0
	for s := range spineShards {
		id := "hold-" + idOf(s, spineShards)
		c.awaitState(cl, id, client.Fired)
		got := h.of(id)
		if len(got) == 1 {
			continue // another node's shard
		}
		again++
		if last := got[len(got)-1]; last.Get("Ce-Id") != got[0].Get("Ce-Id") || epoch(last) <= epoch(got[0]) || last.Get("Ce-Attempt") != "1" {
			t.Errorf("%s came as %v, then as %v", id, got[0], last)
		}
	}
	if again == 0 {
		t.Error("n1 led no shard")
	}
}

// The leader is cut off while a receiver holds its posts: the next leader posts again under a later epoch, and when both posts
// are answered and the node is back, each timer has fired once and for all.
func TestWebhooksOfNodeCutOff(t *testing.T) {
	t.Parallel()
	c := newTestCluster(t, spineShards)
	wire := &cable{conns: map[net.Conn]struct{}{}}
	for i := range 3 {
		config, deps := c.config(fmt.Sprint("n", i+1), 3), Deps{}
		config.Webhooks.Allow, config.Webhooks.Concurrency = []string{"127.0.0.1"}, 64
		if i == 0 {
			deps = Deps{Listen: wire.listen, Dial: wire.dial}
		}
		c.startWith(config, deps)
	}
	c.waitReady()
	h := newHook(t)
	cl := c.client("n2", "n3")
	var ids []string
	for i := range 40 {
		ids = append(ids, fmt.Sprint("hold-", i))
		timer := client.Timer{ID: ids[i], Webhook: h.URL + "/hold"}
		if _, err := cl.Schedule(t.Context(), timer); err != nil {
			t.Fatal(err)
		}
	}
	eventually(t, func() error {
		if n := h.posts("hold-"); n < len(ids) {
			return fmt.Errorf("%d of %d posts have come", n, len(ids))
		}
		return nil
	})
	wire.set(true)
	again := func() (n int) {
		for _, id := range ids {
			if got := h.of(id); len(got) > 1 {
				n++
				if last := got[len(got)-1]; last.Get("Ce-Id") != got[0].Get("Ce-Id") || epoch(last) <= epoch(got[0]) {
					t.Errorf("%s came as %v, then as %v", id, got[0], last)
				}
			}
		}
		return n
	}
	eventually(t, func() error {
		if again() == 0 {
			return errors.New("the next leader has not posted")
		}
		return nil
	})
	close(h.hold)
	for _, id := range ids {
		c.awaitState(cl, id, client.Fired)
	}
	wire.set(false)
	total := h.posts("hold-")
	c.awaitHealed()
	if again(); h.posts("hold-") != total {
		t.Errorf("%d posts after all had fired", h.posts("hold-")-total)
	}
}

// awaitHealed waits until n1 has no delivery to settle and leads again.
func (c *testCluster) awaitHealed() {
	c.t.Helper()
	eventually(c.t, func() error {
		shards, err := c.client().Shards(c.t.Context())
		leads := 0
		for _, s := range shards {
			if s.Leader == "n1" {
				leads++
			}
		}
		if active := c.nodes["n1"].webhooks.Stats().Active; err != nil || active > 0 || leads == 0 {
			return fmt.Errorf("n1 has %d deliveries and leads %d shards, %w", active, leads, err)
		}
		return nil
	})
}

// Repeats, at-most-once timers and dead letters of webhooks.
func TestWebhookKinds(t *testing.T) {
	t.Parallel()
	c := newTestCluster(t, 1)
	c.startWithHooks(1, "")
	h := newHook(t)
	cl := c.client()
	for _, timer := range []client.Timer{
		{ID: "repeat", Webhook: h.URL + "/ok", Repeat: client.Repeat{Every: 50 * time.Millisecond, MaxCount: 5}},
		{ID: "once", Webhook: h.URL + "/fail", AtMostOnce: true},
		{ID: "dead", Webhook: h.URL + "/fail", Retry: client.RetryPolicy{MaxAttempts: 2, InitialBackoff: time.Millisecond}},
	} {
		if _, err := cl.Schedule(t.Context(), timer); err != nil {
			t.Fatal(err)
		}
	}
	c.awaitState(cl, "repeat", client.Fired)
	c.awaitState(cl, "once", client.Fired)
	c.awaitState(cl, "dead", client.Dead)
	seen := map[string]bool{}
	for _, header := range h.of("repeat") {
		seen[header.Get("Ce-Id")+header.Get("Ce-Time")] = true
	}
	if len(seen) != 5 {
		t.Errorf("%d due times of the repeat came, want 5: %v", len(seen), h.of("repeat"))
	}
	eventually(t, func() error { // it is settled before it is posted
		if n := len(h.of("once")); n != 1 {
			return fmt.Errorf("the at-most-once timer came %d times", n)
		}
		return nil
	})
	page, err := cl.DeadLetterPage(t.Context(), client.DeadQuery{})
	if err != nil || len(page.Letters) != 1 || page.Letters[0].LastError != "HTTP 500 Internal Server Error: no" || page.Letters[0].Timer.Webhook != h.URL+"/fail" {
		t.Errorf("dead letters %+v, %v", page, err)
	}
	if n := len(h.of("dead")); n != 2 {
		t.Errorf("%d attempts, want 2", n)
	}
}

func epoch(h http.Header) int {
	n, _ := strconv.Atoi(h.Get("Ce-Epoch"))
	return n
}

// A file of secrets that changes is read again; one that is damaged leaves the old ones.
func TestSecretsFile(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "secrets")
	write := func(text string) {
		t.Helper()
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	config := DefaultConfig()
	config.ID, config.Dir, config.Webhooks.SecretsFile = "n1", t.TempDir(), path
	n, err := New(config, Deps{Logger: testLogger(t)})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := newWebhooks(n); err == nil {
		t.Error("it started without its file of secrets")
	}
	write("default whsec_C2FVsBQIhrscChlQIMV+b5sSYspob7oD\n")
	w, err := newWebhooks(n)
	if err != nil {
		t.Fatal(err)
	}
	write("default nonsense\n")
	if err := w.reload(); err == nil || !strings.Contains(err.Error(), "line 1") || !strings.Contains(err.Error(), path) {
		t.Errorf("a damaged file: %v", err)
	}
	if err := w.reload(); err != nil {
		t.Errorf("the same damaged file again: %v", err)
	}
	write("default whsec_C2FVsBQIhrscChlQIMV+b5sSYspob7oD whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw\n")
	if err := w.reload(); err != nil {
		t.Error(err)
	}
}

func TestWebhookConfig(t *testing.T) {
	t.Parallel()
	for part, change := range map[string]func(*WebhookConfig){
		"Allow": func(c *WebhookConfig) { c.Allow = []string{"10.0.0.1/8"} }, "Concurrency": func(c *WebhookConfig) { c.Concurrency = 0 },
		"Rate": func(c *WebhookConfig) { c.Rate = -1 }, "Timeout": func(c *WebhookConfig) { c.Timeout = 0 }, "Redirects": func(c *WebhookConfig) { c.Redirects = 99 },
	} {
		config := DefaultConfig()
		config.ID, config.Dir = "n1", "d"
		change(&config.Webhooks)
		if err := config.Validate(); err == nil || !strings.Contains(err.Error(), part) {
			t.Errorf("%s: %v", part, err)
		}
	}
}
