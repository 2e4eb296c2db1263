package webhook

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net/http"
	"net/http/httptrace"
	"net/url"
	"runtime/debug"
	"strings"
	"time"

	"github.com/carillon-timers/carillon/raftfsm"
)

const (
	// textBytes is how much of an answer is kept as the error text, drainBytes how much more is read so that the connection can
	// be used again.
	textBytes  = 1 << 10
	drainBytes = 64 << 10
	// settleShare of a lease, but no more than settleMax, is left for settling when the post ends.
	settleShare = 4
	settleMax   = time.Second
)

// serve posts a delivery and settles it.
func (p *Poster) serve(j *job) {
	began := p.config.Monotonic()
	v, answer := p.postGuarded(j)
	took := p.config.Monotonic().Sub(began)
	p.counts.observe(v.outcome, took)
	if answer != nil && v.outcome != OK {
		v.text = joinText(v.text, readText(answer))
	}
	if v.outcome != OK {
		p.logs.failed(j, v, took)
	}
	if answer != nil { // the ack does not wait for the rest of the body, the host does
		p.threads.Go(func() {
			drain(answer)
			p.answered(j, v.outcome)
		})
	} else {
		p.answered(j, v.outcome)
	}
	p.settler.settle(j, v)
}

// postGuarded turns a panic into a failed post: no timer of one user may end the process of all.
func (p *Poster) postGuarded(j *job) (v verdict, answer *answer) {
	defer func() {
		if r := recover(); r != nil {
			p.counts.panics.Add(1)
			p.config.Logger.Error("a webhook panicked", "timer", j.Record.ID, "namespace", j.Record.Namespace, "panic", r, "stack", string(debug.Stack()))
			v, answer = verdict{outcome: Broken, text: "defect in Carillon"}, nil
		}
	}()
	return p.post(j)
}

// answer is the answer to a post whose body is still to be read.
type answer struct {
	body   io.ReadCloser
	cancel func() // ends the request
}

// limit is how long a post may take: less than Timeout if the lease ends before.
func (p *Poster) limit(j *job) time.Duration {
	if j.once || j.LeaseEnd == 0 {
		return p.config.Timeout
	}
	left := time.Duration(j.LeaseEnd-p.config.Now().UnixMilli()) * time.Millisecond
	return min(p.config.Timeout, left-min(left/settleShare, settleMax))
}

// post sends the delivery to its URL, and on where it is redirected to. The answer's body is still open if there is one.
func (p *Poster) post(j *job) (verdict, *answer) {
	limit := p.limit(j)
	if limit <= 0 {
		return verdict{outcome: Returned, text: "its lease was over before it could be posted"}, nil
	}
	t, rule := p.config.Policy.parse(j.url)
	if rule != "" {
		return verdict{outcome: Forbidden, text: "webhook: " + rule}, nil
	}
	ctx, cancelCause := context.WithCancelCause(p.posting)
	deadline := time.AfterFunc(limit, func() { cancelCause(errLate) })
	cancel := func() { deadline.Stop(); cancelCause(nil) }
	at := &progress{}
	ctx = httptrace.WithClientTrace(ctx, at.trace())
	for hop := 0; ; hop++ {
		request := p.request(ctx, j, t, hop == 0)
		response, err := p.transport.RoundTrip(request)
		if err != nil {
			v := blame(ctx, err, phase(at.Load()))
			cancel()
			return v, nil
		}
		v := judge(response, p.config.Now())
		if next, why := p.redirect(response, t, hop); next.url != nil {
			drain(p.opened(response, func() {}))
			t = next
			continue
		} else if why != "" {
			v.text += ": " + why
		}
		deadline.Stop()
		return v, p.opened(response, cancel)
	}
}

// opened bounds the reading of a body.
func (p *Poster) opened(response *http.Response, cancel func()) *answer {
	body := response.Body
	late := time.AfterFunc(p.config.BodyTimeout, func() { cancel(); _ = body.Close() })
	return &answer{body, func() { late.Stop(); cancel() }}
}

// request makes the request of one hop. Where the timer's user did not send it to, it goes without his headers.
func (p *Poster) request(ctx context.Context, j *job, t target, first bool) *http.Request {
	header := http.Header{}
	if first || t.origin == j.host.name {
		header = ownHeaders(j.Record.Headers)
	}
	describe(header, j)
	sign(header, j.id, p.config.Now(), j.Record.Payload, (*p.secrets.Load())[j.Record.Namespace])
	if header.Get("User-Agent") == "" {
		header.Set("User-Agent", p.config.UserAgent)
	}
	if _, own := header["Idempotency-Key"]; !own && !j.once {
		// An empty key is not sent. It tells the transport that the post may be sent again when a kept connection turns out
		// to be closed: the receiver can tell by ce-id. A timer that is at-most-once is not.
		header["Idempotency-Key"] = nil
	}
	request := &http.Request{
		Method: http.MethodPost, URL: t.url, Host: t.url.Host, Header: header,
		Proto: "HTTP/1.1", ProtoMajor: 1, ProtoMinor: 1, ContentLength: int64(len(j.Record.Payload)), Body: http.NoBody,
	}
	if payload := j.Record.Payload; len(payload) > 0 {
		request.GetBody = func() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(payload)), nil }
		request.Body = io.NopCloser(bytes.NewReader(payload))
	}
	return request.WithContext(ctx)
}

// redirect is where an answer sends the post on to; why says why it does not go there.
func (p *Poster) redirect(response *http.Response, from target, hop int) (to target, why string) {
	code := response.StatusCode
	if code < 300 || code >= 400 {
		return target{}, ""
	}
	location := response.Header.Get("Location")
	switch {
	case p.config.Redirects == 0:
		return target{}, "redirects are not followed (--webhook-redirects)"
	case code != http.StatusTemporaryRedirect && code != http.StatusPermanentRedirect:
		return target{}, "only 307 and 308 keep a post what it is"
	case hop >= p.config.Redirects:
		return target{}, fmt.Sprintf("more than %d redirects (--webhook-redirects)", p.config.Redirects)
	case location == "":
		return target{}, "there is no Location"
	}
	reference, err := url.Parse(location)
	if err != nil {
		return target{}, "its Location is not a URL"
	}
	absolute := from.url.ResolveReference(reference)
	absolute.Fragment = ""
	to, rule := p.config.Policy.parse(absolute.String())
	switch {
	case rule != "":
		return target{}, "its Location is refused: " + rule
	case from.url.Scheme == "https" && to.url.Scheme != "https":
		return target{}, "it leads from https to http"
	}
	return to, ""
}

// trace notes the phases.
func (p *progress) trace() *httptrace.ClientTrace {
	return &httptrace.ClientTrace{
		GetConn:              func(string) { p.reach(phaseConnect) },
		TLSHandshakeStart:    func() { p.reach(phaseTLS) },
		GotConn:              func(httptrace.GotConnInfo) { p.reach(phaseSend) },
		WroteRequest:         func(httptrace.WroteRequestInfo) { p.reach(phaseWait) },
		GotFirstResponseByte: func() { p.reach(phaseRead) },
	}
}

// readText reads the beginning of an answer's body.
func readText(a *answer) string {
	text, _ := io.ReadAll(io.LimitReader(a.body, textBytes)) // what came before an error is worth keeping, too
	return string(text)
}

// drain reads the rest of a body, within limits, and closes it.
func drain(a *answer) {
	_, _ = io.CopyN(io.Discard, a.body, drainBytes) // a body that is longer, or breaks, costs the connection
	_ = a.body.Close()
	a.cancel()
}

// joinText joins the head and the body of an answer into one error text of at most raftfsm.MaxErrorBytes.
func joinText(head, body string) string {
	text := head
	if body = strings.TrimSpace(body); body != "" {
		text += ": " + body
	}
	return cleanText(text)
}

// cleanText makes text fit to be kept and shown: valid UTF-8 without control characters, not too long.
func cleanText(text string) string {
	text = strings.Map(func(r rune) rune {
		switch {
		case r == '\n' || r == '\t':
			return ' '
		case r < ' ' || r == 0x7f || r >= 0x80 && r < 0xa0:
			return -1
		}
		return r
	}, strings.ToValidUTF8(text, "?"))
	if len(text) > raftfsm.MaxErrorBytes {
		text = strings.ToValidUTF8(text[:raftfsm.MaxErrorBytes], "")
	}
	return text
}
