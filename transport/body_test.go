package transport

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"
)

// What is wrong with a body is told as it is: "more" and the time limit stood for all.
func TestGatewayTellsWhatIsWrongWithABody(t *testing.T) {
	t.Parallel()
	server := httptest.NewServer(NewServer(testConfig(), &fakeBackend{}).Gateway())
	t.Cleanup(server.Close)
	chunked := "Transfer-Encoding: chunked\r\n\r\n"
	long := strings.Repeat(" ", maxBodyBytes+1)
	for name, c := range map[string]struct{ head, body, value string }{
		"too long":           {fmt.Sprintf("Content-Length: %d\r\n\r\n", len(long)), long, "body: 4194305 bytes is not valid: at most 4194304 bytes (4 MiB)"},
		"too long, in parts": {chunked, fmt.Sprintf("%x\r\n%s\r\n0\r\n\r\n", len(long), long), "body: over 4194304 bytes is not valid: at most 4194304 bytes (4 MiB)"},
		"cut off":            {"Content-Length: 100\r\n\r\n", `{"id": "x"`, "body: cut off after 10 bytes is not valid: a whole body, of 100 bytes as its Content-Length says"},
		"cut off, in parts":  {chunked, "5\r\n{\"id\"\r\n", "body: cut off after 5 bytes is not valid: a whole body, with its end"},
		"empty":              {"Content-Length: 0\r\n\r\n", "", "body: (empty) is not valid: a ScheduleBatchRequest in protobuf's JSON, at least {}"},
	} {
		conn, err := net.Dial("tcp", server.Listener.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		if err := conn.SetDeadline(time.Now().Add(20 * time.Second)); err != nil {
			t.Fatal(err)
		}
		_, err = io.WriteString(conn, "POST /v1/timers/scheduleBatch HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"+c.head+c.body)
		if err != nil {
			t.Fatal(err)
		}
		if err := conn.(*net.TCPConn).CloseWrite(); err != nil {
			t.Fatal(err)
		}
		answer, err := http.ReadResponse(bufio.NewReader(conn), nil)
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		text, err := io.ReadAll(answer.Body)
		if err != nil || answer.StatusCode/100 != 4 || !strings.Contains(string(text), c.value) {
			t.Errorf("%s: %d %s, %v", name, answer.StatusCode, text, err)
		}
		if err := answer.Body.Close(); err != nil {
			t.Error(err)
		}
		if err := conn.Close(); err != nil {
			t.Error(err)
		}
	}
}
