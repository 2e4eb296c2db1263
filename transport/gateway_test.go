package transport

import (
	"bufio"
	"bytes"
	"context"
	"encoding/base64"
	"encoding/json"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc"

	carillonv1 "github.com/carillon-timers/carillon/proto/carillon/v1"
	"github.com/carillon-timers/carillon/raftfsm"
	"github.com/carillon-timers/carillon/shard"
)

// post makes a call over HTTP and returns the answer as JSON.
func post(t *testing.T, h http.Handler, path, body string) (int, map[string]any, http.Header) {
	t.Helper()
	r := httptest.NewRequest("POST", path, strings.NewReader(body))
	r.Header.Set("Content-Type", "application/json")
	return answerOf(t, h, r)
}

func answerOf(t *testing.T, h http.Handler, r *http.Request) (int, map[string]any, http.Header) {
	t.Helper()
	w := httptest.NewRecorder()
	h.ServeHTTP(w, r)
	var answer map[string]any
	if err := json.Unmarshal(w.Body.Bytes(), &answer); err != nil || w.Header().Get("Content-Type") != "application/json" {
		t.Fatalf("%s: %d %q: %v", r.URL.Path, w.Code, w.Body, err)
	}
	return w.Code, answer, w.Header()
}

// reasonOf is the reason and the field of an error.
func reasonOf(answer map[string]any) string {
	for _, d := range answer["details"].([]any) {
		if detail := d.(map[string]any); detail["@type"] == "type.googleapis.com/google.rpc.ErrorInfo" {
			metadata, _ := detail["metadata"].(map[string]any)
			field, _ := metadata["field"].(string)
			return strings.TrimSpace(detail["reason"].(string) + " " + field)
		}
	}
	return ""
}

func TestGatewayCalls(t *testing.T) {
	t.Parallel()
	backend := &fakeBackend{}
	h := NewServer(testConfig(), backend).Gateway()
	code, answer, _ := post(t, h, "/v1/timers/schedule", `{"timer": {"id": "a/b", "due": "2030-01-01T00:00:00Z", "queue": "q", "payload": "aGk="}, "requestId": "r"}`)
	if code != 200 || answer["due"] != "2030-01-01T00:00:00Z" || answer["revision"] != "1" {
		t.Errorf("got %d %v", code, answer)
	}
	if s := backend.applied()[0].GetSchedule(); s.Id != "a/b" || string(s.Payload) != "hi" || string(s.RequestId) != "r" {
		t.Errorf("got %v", s)
	}
	if code, answer, _ := post(t, h, "/v1/timers/get", `{"id": "a/b"}`); code != 200 || answer["timer"].(map[string]any)["state"] != "STATE_PENDING" {
		t.Errorf("got %d %v", code, answer)
	}
	if code, answer, _ := post(t, h, "/v1/cluster/status", ""); code != 200 || answer["nodeId"] != "n1" {
		t.Errorf("got %d %v", code, answer)
	}
	if code, answer, _ := post(t, h, "/v1/timers/preview", `{"repeat": {"cron": "0 9 * * *"}, "from": "2026-01-01T00:00:00Z", "count": 1}`); code != 200 || answer["times"] == nil {
		t.Errorf("got %d %v", code, answer)
	}
}

// Each unary call of the contract has its path; streams have none.
func TestGatewayServesAllUnaryCalls(t *testing.T) {
	t.Parallel()
	s := NewServer(testConfig(), &fakeBackend{})
	h := s.Gateway()
	for _, desc := range []grpc.ServiceDesc{carillonv1.Timers_ServiceDesc, carillonv1.Deliveries_ServiceDesc, carillonv1.Cluster_ServiceDesc} {
		for _, m := range desc.Methods {
			name := strings.ToLower(desc.ServiceName[len("carillon.v1."):])
			path := "/v1/" + name + "/" + strings.ToLower(m.MethodName[:1]) + m.MethodName[1:]
			if code, answer, _ := post(t, h, path, "{}"); code == 404 && answer["code"].(float64) == 12 || code >= 500 {
				t.Errorf("%s: %d %v", path, code, answer)
			}
		}
	}
	if code, _, _ := post(t, h, "/v1/deliveries/work", "{}"); code != 404 {
		t.Errorf("a stream: %d", code)
	}
}

func TestGatewayRefuses(t *testing.T) {
	t.Parallel()
	outcomes := map[string]error{
		"missing": shard.ErrNotFound, "taken": shard.ErrAlreadyExists, "unknown": shard.ErrUnknown, "away": shard.ErrUnavailable,
		"full": &shard.OverloadedError{Limit: "x", RetryAfter: 1500 * time.Millisecond}, "paused": shard.ErrPaused,
	}
	h := NewServer(testConfig(), &fakeBackend{onApply: func(_ context.Context, cmd *raftfsm.Command) Outcome {
		return Outcome{Err: outcomes[cmd.GetCancel().Id]}
	}}).Gateway()
	for _, c := range []struct {
		path, body, reason string
		code               int
	}{
		{"/v1/timers/cancel", `{"id": "missing"}`, "TIMER_NOT_FOUND", 404},
		{"/v1/timers/cancel", `{"id": "taken"}`, "TIMER_ALREADY_EXISTS", 409},
		{"/v1/timers/cancel", `{"id": "unknown"}`, "OUTCOME_UNKNOWN", 500},
		{"/v1/timers/cancel", `{"id": "away"}`, "SHARD_UNAVAILABLE", 503},
		{"/v1/timers/cancel", `{"id": "full"}`, "LIMIT_REACHED", 429},
		{"/v1/timers/cancel", `{"id": "paused"}`, "TIMER_PAUSED", 400},
		{"/v1/timers/cancel", `{"id": ""}`, "INVALID_FIELD id", 400},
		{"/v1/timers/cancel", `{"id": 7}`, "INVALID_FIELD body", 400},
		{"/v1/timers/cancel", `{"id": "x", "idd": "y"}`, "INVALID_FIELD body", 400},
		{"/v1/timers/cancel", `{"id": "x"`, "INVALID_FIELD body", 400},
		{"/v1/timers/cancel", `[]`, "INVALID_FIELD body", 400},
		{"/v1/timers/schedule", `{"timer": {"id": "x", "delay": "1s", "queue": "q", "webhook": "https://example.com/"}}`, "INVALID_FIELD target", 400},
		{"/v1/timers/schedule", `{"timer": {"id": "x", "delay": "1s", "due": "2030-01-01T00:00:00Z", "queue": "q"}}`, "INVALID_FIELD when", 400},
		{"/v1/timers/scheduleBatch", `{"items": [{"timer": {"id": "x"}}, {"timer": {"repeat": {"every": "1s", "cron": "* * * * *"}}}]}`, "INVALID_FIELD rule", 400},
	} {
		code, answer, header := post(t, h, c.path, c.body)
		if code != c.code || reasonOf(answer) != c.reason {
			t.Errorf("%s: got %d %v, want %d %s", c.body, code, answer, c.code, c.reason)
		}
		if retry := header.Get("Retry-After"); (retry == "2") != (c.code == 429) {
			t.Errorf("%s: Retry-After %q", c.body, retry)
		}
	}
}

func TestGatewayRefusesOtherRequests(t *testing.T) {
	t.Parallel()
	s := NewServer(testConfig(), &fakeBackend{})
	h := s.Gateway()
	for _, c := range []struct {
		method, path, kind, body string
		code                     int
	}{
		{"GET", "/v1/timers/get", "application/json", "", 405},
		{"POST", "/v1/timers/nothing", "application/json", "", 404},
		{"POST", "/v1/timers/get", "text/plain", `{"id": "x"}`, 415},
		{"POST", "/v1/timers/get", "", `{"id": "x"}`, 415},
		{"POST", "/v1/timers/get", "application/json; charset=utf-8", `{"id": "x"}`, 404},
		{"POST", "/v1/timers/get", "application/json", strings.Repeat(" ", maxBodyBytes+1), 413},
	} {
		r := httptest.NewRequest(c.method, c.path, strings.NewReader(c.body))
		r.Header.Set("Content-Type", c.kind)
		if code, answer, _ := answerOf(t, h, r); code != c.code {
			t.Errorf("%s %s %s: got %d %v, want %d", c.method, c.path, c.kind, code, answer, c.code)
		}
	}
	// The largest payload fits.
	payload := base64.StdEncoding.EncodeToString(bytes.Repeat([]byte{1}, raftfsm.DefaultPayloadBytes))
	if code, answer, _ := post(t, h, "/v1/timers/schedule", `{"timer": {"id": "x", "delay": "1s", "queue": "q", "payload": "`+payload+`"}}`); code != 200 {
		t.Errorf("got %d %v", code, answer)
	}
	s.beginEnd()
	if code, answer, _ := post(t, h, "/v1/timers/get", `{"id": "x"}`); code != 503 || reasonOf(answer) != "SHARD_UNAVAILABLE" {
		t.Errorf("while it stops: %d %v", code, answer)
	}
}

// What is refused before its body was read does not wait for the body: a client that sent none held the connection.
func TestGatewayDoesNotWaitForARefusedBody(t *testing.T) {
	t.Parallel()
	server := httptest.NewServer(NewServer(testConfig(), &fakeBackend{}).Gateway())
	t.Cleanup(server.Close)
	conn, err := net.Dial("tcp", server.Listener.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	if err := conn.SetDeadline(time.Now().Add(20 * time.Second)); err != nil {
		t.Fatal(err)
	}
	if _, err := io.WriteString(conn, "POST /v1/timers/schedule HTTP/1.1\r\nHost: x\r\nContent-Type: text/plain\r\nContent-Length: 1000\r\n\r\n"); err != nil {
		t.Fatal(err)
	}
	answer, err := http.ReadResponse(bufio.NewReader(conn), nil)
	if err != nil {
		t.Fatal(err)
	}
	defer answer.Body.Close()
	if answer.StatusCode != http.StatusUnsupportedMediaType || !answer.Close {
		t.Errorf("%d, closed %v", answer.StatusCode, answer.Close)
	}
}

// The call that is one too many is told when to come again, and counted.
func TestGatewayIsBounded(t *testing.T) {
	t.Parallel()
	s := NewServer(testConfig(), &fakeBackend{})
	g := s.Gateway().(*gateway)
	for range maxHTTPCalls {
		g.room <- struct{}{}
	}
	code, answer, header := post(t, g, "/v1/timers/get", `{"id": "x"}`)
	if code != 429 || reasonOf(answer) != "LIMIT_REACHED" || header.Get("Retry-After") != "1" || s.Stats().RefusedHTTP != 1 {
		t.Errorf("got %d %v", code, answer)
	}
	<-g.room
	if code, answer, _ := post(t, g, "/v1/timers/get", `{"id": "x"}`); code != 404 || len(g.room) != maxHTTPCalls-1 {
		t.Errorf("got %d %v", code, answer)
	}
}
