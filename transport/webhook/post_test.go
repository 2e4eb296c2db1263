package webhook

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"log"
	"net/http"
	"net/http/httptest"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	logv1 "github.com/carillon-timers/carillon/proto/carillonlog/v1"
	"github.com/carillon-timers/carillon/raftfsm"
)

// verify is a receiver's check, written from the text of Standard Webhooks 1.0.0 alone: the content is ID, timestamp and body
// joined by full stops; one of the signatures in the list must be that of a secret that the receiver knows.
func verify(header http.Header, body []byte, secret string, now time.Time) error {
	id, timestamp := header.Get("webhook-id"), header.Get("webhook-timestamp")
	if id == "" || strings.Contains(id, ".") {
		return fmt.Errorf("webhook-id %q", id)
	}
	sent, err := strconv.ParseInt(timestamp, 10, 64)
	if err != nil || now.Unix()-sent > 300 || sent-now.Unix() > 300 {
		return fmt.Errorf("webhook-timestamp %q", timestamp)
	}
	if !strings.HasPrefix(secret, "whsec_") {
		return errors.New("not a secret")
	}
	key, err := base64.StdEncoding.DecodeString(secret[len("whsec_"):])
	if err != nil {
		return err
	}
	mac := hmac.New(sha256.New, key)
	fmt.Fprintf(mac, "%s.%s.%s", id, timestamp, body)
	for _, one := range strings.Split(header.Get("webhook-signature"), " ") {
		version, text, _ := strings.Cut(one, ",")
		if signature, err := base64.StdEncoding.DecodeString(text); version == "v1" && err == nil && hmac.Equal(signature, mac.Sum(nil)) {
			return nil
		}
	}
	return fmt.Errorf("no signature fits in %q", header.Get("webhook-signature"))
}

const (
	newSecret   = "whsec_C2FVsBQIhrscChlQIMV+b5sSYspob7oD"
	oldSecret   = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"
	otherSecret = "whsec_AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA"
)

// received is one request as a receiver saw it.
type received struct {
	*http.Request
	body []byte
}

// receiver answers with handler, and keeps what came.
func receiver(t *testing.T, handler http.HandlerFunc) (*httptest.Server, chan received) {
	t.Helper()
	got := make(chan received, 100)
	server := httptest.NewServer(keep(got, handler))
	t.Cleanup(server.Close)
	return server, got
}

func keep(got chan received, handler http.HandlerFunc) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		got <- received{r, body}
		if handler != nil {
			handler(w, r)
		}
	}
}

func TestPost(t *testing.T) {
	t.Parallel()
	server, got := receiver(t, nil)
	r := newRig(t, nil)
	secrets, err := ReadSecrets(strings.NewReader("# a comment\n\ndefault " + newSecret + " " + oldSecret + "\n"))
	if err != nil {
		t.Fatal(err)
	}
	r.SetSecrets(secrets)
	d := r.delivery("order 42/€\"%", server.URL+"/hook?x=1")
	d.Token.Attempt = 2
	d.Record.Due = 1_764_500_000_123
	d.Record.Headers = []raftfsm.Pair{
		{Key: "Authorization", Value: "Bearer x"}, {Key: "Connection", Value: "close"}, {Key: "Content-Length", Value: "1"}, {Key: "Host", Value: "evil"},
		{Key: "X-Own", Value: "yes"}, {Key: "bad name", Value: "x"}, {Key: "ce-id", Value: "forged"}, {Key: "webhook-signature", Value: "forged"}, {Key: "x-lines", Value: "a\r\nb: c"},
	}
	r.fire(d)
	c := r.wait(d.Record.ID).GetComplete()
	want := &logv1.Complete{Namespace: "default", Id: d.Record.ID, Revision: 5, Attempt: 2, TokenEpoch: 3, HandedMs: c.GetHandedMs()}
	if c.String() != want.String() || c.GetHandedMs() < d.HandedOut {
		t.Errorf("settled with %v, want %v", c, want)
	}
	request := <-got
	for name, want := range map[string]string{
		"Content-Type": "application/json", "Ce-Specversion": "1.0", "Ce-Source": "/carillon/namespaces/default", "Ce-Type": EventType,
		"Ce-Time": "2025-11-30T10:53:20.123Z", "Ce-Subject": "order%2042/%E2%82%AC%22%25", "Ce-Attempt": "3", "Ce-Epoch": "3", "Ce-Revision": "5",
		"Authorization": "Bearer x", "X-Own": "yes", "User-Agent": "Carillon", "X-Lines": "", "Connection": "", "Idempotency-Key": "", "Accept-Encoding": "",
	} {
		if have := request.Header.Get(name); have != want {
			t.Errorf("%s: %q, want %q", name, have, want)
		}
	}
	if request.Method != "POST" || request.URL.String() != "/hook?x=1" || string(request.body) != `{"a":1}` || request.ContentLength != 7 || request.Host == "evil" {
		t.Errorf("%s %s to %s with %q", request.Method, request.URL, request.Host, request.body)
	}
	id := request.Header.Get("Ce-Id")
	if !regexp.MustCompile(`^msg_[0-9a-f]{32}$`).MatchString(id) || request.Header.Get("Webhook-Id") != id {
		t.Errorf("ce-id %q, webhook-id %q", id, request.Header.Get("Webhook-Id"))
	}
	for secret, ok := range map[string]bool{newSecret: true, oldSecret: true, otherSecret: false} {
		if err := verify(request.Header, request.body, secret, time.Now()); (err == nil) != ok {
			t.Errorf("with %s: %v, want ok %v", secret, err, ok)
		}
	}
	if verify(request.Header, append(request.body, ' '), newSecret, time.Now()) == nil {
		t.Error("another body has the same signature")
	}
}

// The example of the specification's site: the signature is the same.
func TestSignatureVector(t *testing.T) {
	t.Parallel()
	key, err := readSecret("whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw")
	if err != nil {
		t.Fatal(err)
	}
	header := http.Header{}
	sign(header, "msg_p5jXN8AQM9LWM0D4loKWxJek", time.Unix(1614265330, 0), []byte(`{"test": 2432232314}`), [][]byte{key})
	if got, want := header.Get("Webhook-Signature"), "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE="; got != want {
		t.Errorf("%s, want %s", got, want)
	}
}

// ce-id is the same for all attempts of one due time, and another for all else.
func TestMessageID(t *testing.T) {
	t.Parallel()
	r := &rig{now: time.Now, source: &source{}, Poster: &Poster{}, t: t}
	id := func(change func(d *raftfsm.Record)) string {
		d := r.delivery("a", "http://8.8.8.8/")
		d.Record.Due, d.Record.Created = 1000, 500
		change(d.Record)
		return newJob(&host{}, d).id
	}
	same := id(func(*raftfsm.Record) {})
	if got := id(func(d *raftfsm.Record) {
		d.Attempt, d.Revision, d.NextDue, d.LastError, d.Accepted = 3, 99, 5000, "x", 70
	}); got != same {
		t.Errorf("another attempt: %s, want %s", got, same)
	}
	repeat := func(d *raftfsm.Record) { d.Extra.Repeat = &logv1.Repeat{TickMs: 2000} }
	seen := map[string]string{same: "itself"}
	for name, change := range map[string]func(d *raftfsm.Record){
		"another due time": func(d *raftfsm.Record) { d.Due = 1001 }, "another ID": func(d *raftfsm.Record) { d.ID = "b" },
		"another namespace": func(d *raftfsm.Record) { d.Namespace = "defaul" }, "scheduled anew": func(d *raftfsm.Record) { d.Created++ },
		"a tick": repeat,
	} {
		got := id(change)
		if seen[got] != "" {
			t.Errorf("%s has the ID of %s", name, seen[got])
		}
		seen[got] = name
	}
	if id(repeat) != id(func(d *raftfsm.Record) { repeat(d); d.Due = 2500 }) {
		t.Error("a tick that was placed elsewhere in its window has another ID")
	}
}

func TestOutcomes(t *testing.T) {
	t.Parallel()
	server, _ := receiver(t, func(w http.ResponseWriter, r *http.Request) {
		code, _ := strconv.Atoi(r.URL.Query().Get("code"))
		if after := r.URL.Query().Get("after"); after != "" {
			w.Header().Set("Retry-After", after)
		}
		w.Header().Set("Location", "/?code=200")
		w.WriteHeader(code)
		if code != 204 && code != 304 {
			_, _ = io.WriteString(w, r.URL.Query().Get("text"))
		}
	})
	r := newRig(t, nil)
	at := time.Date(2026, 11, 30, 12, 0, 0, 0, time.UTC)
	r.now = func() time.Time { return at }
	retry := func(text string, delay int64) *logv1.Retry {
		return &logv1.Retry{Error: text, DelayMs: delay, HasDelay: delay != 0}
	}
	for i, c := range []struct {
		query   string
		outcome Outcome
		want    *logv1.Retry // nil: completed
	}{
		{"code=200", OK, nil}, {"code=202&text=thanks", OK, nil}, {"code=204", OK, nil}, {"code=299&after=60", OK, nil},
		{"code=410&text=no+more", Gone, &logv1.Retry{Error: "HTTP 410 Gone: no more", Dead: true}},
		{"code=429&after=120", Throttled, retry("HTTP 429 Too Many Requests", 120_000)},
		{"code=503&after=Mon,+30+Nov+2026+12:00:30+GMT", Throttled, retry("HTTP 503 Service Unavailable", 30_000)},
		{"code=503&after=Mon,+30+Nov+2026+11:59:00+GMT", Throttled, retry("HTTP 503 Service Unavailable", 0)},
		{"code=503&after=0", Throttled, retry("HTTP 503 Service Unavailable", 0)},
		{"code=503&after=soon", Throttled, retry("HTTP 503 Service Unavailable", 0)},
		{"code=503&after=-5", Throttled, retry("HTTP 503 Service Unavailable", 0)},
		{"code=503&after=99999999999999999999", Throttled, retry("HTTP 503 Service Unavailable", 24*3600*1000)},
		{"code=503&after=Mon,+30+Nov+2099+12:00:30+GMT", Throttled, retry("HTTP 503 Service Unavailable", 24*3600*1000)},
		{"code=503", Throttled, retry("HTTP 503 Service Unavailable", 0)},
		{"code=500&text=%20%ff+a%0ab%00c%20", Failed, retry("HTTP 500 Internal Server Error: ? a bc", 0)},
		{"code=502&after=7", Failed, retry("HTTP 502 Bad Gateway", 7000)},
		{"code=404", Rejected, retry("HTTP 404 Not Found", 0)}, {"code=400&text=%3cb%3e", Rejected, retry("HTTP 400 Bad Request: <b>", 0)},
		{"code=799", Failed, retry("HTTP 799", 0)},
		{"code=302", Redirected, retry("HTTP 302 Found: redirects are not followed (--webhook-redirects)", 0)},
		{"code=308", Redirected, retry("HTTP 308 Permanent Redirect: redirects are not followed (--webhook-redirects)", 0)},
		{"code=304", Redirected, retry("HTTP 304 Not Modified: redirects are not followed (--webhook-redirects)", 0)},
	} {
		id, before := fmt.Sprint("t", i), r.outcome(c.outcome)
		got := r.post(id, server.URL+"/?"+c.query)
		if r.outcome(c.outcome) != before+1 {
			t.Errorf("%s: not counted as %v", c.query, c.outcome)
		}
		if c.want == nil {
			if got.GetComplete() == nil {
				t.Errorf("%s: %v, want an ack", c.query, got)
			}
			continue
		}
		c.want.Namespace, c.want.Id, c.want.Revision, c.want.TokenEpoch, c.want.HandedMs = "default", id, 5, 3, at.UnixMilli()
		if got.GetRetry().String() != c.want.String() {
			t.Errorf("%s:\n%v, want\n%v", c.query, got.GetRetry(), c.want)
		}
	}
}

// The body of an answer costs neither memory nor time: its first KiB is kept, the rest is thrown away.
func TestLongAnswer(t *testing.T) {
	t.Parallel()
	var sent atomic.Int64
	server, _ := receiver(t, func(w http.ResponseWriter, r *http.Request) {
		w.WriteHeader(500)
		for {
			n, err := io.WriteString(w, strings.Repeat("ä", 4096))
			sent.Add(int64(n))
			if err != nil {
				return
			}
		}
	})
	r := newRig(t, nil)
	text := r.post("a", server.URL).GetRetry().GetError()
	if len(text) > raftfsm.MaxErrorBytes || len(text) < 900 || strings.Trim(strings.TrimPrefix(text, "HTTP 500 Internal Server Error: "), "ä") != "" {
		t.Errorf("%d bytes: %q", len(text), text)
	}
	server.CloseClientConnections()
	if sent.Load() > 64<<20 {
		t.Errorf("%d bytes were read", sent.Load())
	}
}

func TestRedirects(t *testing.T) {
	t.Parallel()
	plain, fromPlain := receiver(t, nil)
	other, fromOther := receiver(t, nil)
	routes := map[string]struct {
		code int
		to   string
	}{
		"/same": {307, "/end"}, "/other": {308, other.URL + "/end"}, "/get": {302, "/end"}, "/see": {303, "/end"}, "/loop": {307, "/loop"},
		"/private": {307, "http://10.0.0.1/"}, "/file": {307, "file:///etc/passwd"}, "/none": {307, ""},
	}
	plain.Config.Handler = keep(fromPlain, func(w http.ResponseWriter, r *http.Request) {
		if route, is := routes[r.URL.Path]; is {
			if route.to != "" {
				w.Header().Set("Location", route.to)
			}
			w.WriteHeader(route.code)
		}
	})
	r := newRig(t, func(c *Config) { c.Redirects = 2 })
	follow := func(path, want string) {
		t.Helper()
		d := r.delivery(path, plain.URL+path)
		d.Record.Headers = []raftfsm.Pair{{Key: "Authorization", Value: "mine"}}
		r.fire(d)
		got := r.wait(path)
		if text := got.GetRetry().GetError(); want == "" && got.GetComplete() == nil || !strings.Contains(text, want) {
			t.Errorf("%s: %v, want %q", path, got, want)
		}
	}
	follow("/same", "")
	<-fromPlain
	if end := <-fromPlain; end.URL.Path != "/end" || end.Method != "POST" || string(end.body) != `{"a":1}` || end.Header.Get("Authorization") != "mine" {
		t.Errorf("followed with %s %s, body %q, header %v", end.Method, end.URL, end.body, end.Header)
	}
	follow("/other", "")
	if end := <-fromOther; end.Method != "POST" || string(end.body) != `{"a":1}` || end.Header.Get("Authorization") != "" || end.Header.Get("Ce-Id") == "" {
		t.Errorf("followed with %s, body %q, header %v", end.Method, end.body, end.Header)
	}
	follow("/get", "only 307 and 308")
	follow("/see", "only 307 and 308")
	follow("/loop", "more than 2 redirects")
	follow("/private", "private")
	follow("/file", "scheme")
	follow("/none", "no Location")
	if n := len(fromOther); n != 0 {
		t.Errorf("%d posts more went elsewhere", n)
	}
}

func TestRedirectFromHTTPS(t *testing.T) {
	t.Parallel()
	plain, got := receiver(t, nil)
	secure := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Location", plain.URL)
		w.WriteHeader(307)
	}))
	t.Cleanup(secure.Close)
	r := newRig(t, func(c *Config) { c.Redirects, c.TLS = 1, secure.Client().Transport.(*http.Transport).TLSClientConfig })
	if text := r.post("a", secure.URL).GetRetry().GetError(); !strings.Contains(text, "from https to http") || len(got) > 0 {
		t.Errorf("%q, %d posts in the clear", text, len(got))
	}
}

func TestHTTP2AndReuse(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name  string
		proto string
		start func(s *httptest.Server)
	}{
		{"h2", "HTTP/2.0", func(s *httptest.Server) { s.EnableHTTP2 = true; s.StartTLS() }},
		{"tls", "HTTP/1.1", func(s *httptest.Server) { s.StartTLS() }},
		{"plain", "HTTP/1.1", func(s *httptest.Server) { s.Start() }},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			got := make(chan received, 100)
			server := httptest.NewUnstartedServer(keep(got, nil))
			c.start(server)
			t.Cleanup(server.Close)
			r := newRig(t, func(config *Config) {
				if tr, ok := server.Client().Transport.(*http.Transport); ok && tr.TLSClientConfig != nil {
					config.TLS = tr.TLSClientConfig.Clone()
					config.TLS.NextProtos = nil
				}
			})
			from := map[string]bool{}
			for i := range 10 {
				if got := r.post(fmt.Sprint(i), server.URL); got.GetComplete() == nil {
					t.Fatal(got)
				}
				request := <-got
				from[request.RemoteAddr] = true
				if request.Proto != c.proto {
					t.Errorf("%s, want %s", request.Proto, c.proto)
				}
			}
			// The connection is free again only after the body is drained, which the next post may overtake.
			if len(from) > 3 {
				t.Errorf("%d connections for ten posts one after the other", len(from))
			}
		})
	}
}

// A connection that was kept and that the receiver has closed meanwhile costs no attempt; but a post of an at-most-once timer is
// not made again, as nobody knows whether it was read.
func TestClosedConnection(t *testing.T) {
	t.Parallel()
	var mu sync.Mutex
	seen := map[string]int{} // by remote address; guarded by mu
	server, got := receiver(t, func(w http.ResponseWriter, r *http.Request) {
		mu.Lock()
		seen[r.RemoteAddr]++
		second := seen[r.RemoteAddr] > 1
		mu.Unlock()
		if second { // as if it had been closed just before
			conn, _, _ := w.(http.Hijacker).Hijack()
			_ = conn.Close()
		}
	})
	r := newRig(t, func(c *Config) { c.Concurrency = 1 })
	for i := range 6 {
		if got := r.post(fmt.Sprint(i), server.URL); got.GetComplete() == nil {
			t.Fatalf("post %d: %v", i, got)
		}
	}
	once := r.delivery("once", server.URL)
	once.Record.Extra.AtMostOnce, once.LeaseEnd = true, 0
	r.fire(once)
	r.post("after", server.URL)
	count := 0
	for len(got) > 0 {
		if request := <-got; request.Header.Get("Ce-Subject") == "once" {
			count++
		}
	}
	if lost := r.Stats().Lost; count != 1 || lost > 1 || r.outcome(Broken) != int(lost) {
		t.Errorf("the at-most-once timer came %d times, %d lost, %d broken", count, lost, r.outcome(Broken))
	}
}

func TestUntrusted(t *testing.T) {
	t.Parallel()
	secure := httptest.NewUnstartedServer(http.NotFoundHandler())
	secure.Config.ErrorLog = log.New(io.Discard, "", 0) // it complains of the handshake
	secure.StartTLS()
	t.Cleanup(secure.Close)
	plain, _ := receiver(t, nil)
	r := newRig(t, nil)
	for id, url := range map[string]string{"unknown authority": secure.URL, "not TLS": strings.Replace(plain.URL, "http", "https", 1)} {
		r.post(id, url)
	}
	if n := r.outcome(Insecure); n != 2 {
		t.Errorf("%d posts were insecure, want 2: %v", n, r.settled)
	}
}
