package transport

import (
	"bufio"
	"bytes"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	carillonv1 "github.com/carillon-timers/carillon/proto/carillon/v1"
	"github.com/carillon-timers/carillon/transport/webhook"
)

// refusal is a line of testdata/refuse.jsonl: what create must refuse, and the field that the error names.
type refusal struct {
	Cron, Zone, Every, Webhook, Queue *string
	ID                                *string
	IDBytes                           int    `json:"id_bytes"`
	IDHex                             string `json:"id_hex"`
	Delay, Lease, At                  string
	DelayMS                           int64  `json:"delay_ms"`
	PayloadBytes                      int    `json:"payload_bytes"`
	MaxAttempts                       *int32 `json:"max_attempts"`
	Field, Why                        string
}

// timer builds what the line describes.
func (r refusal) timer(t *testing.T) *carillonv1.Timer {
	t.Helper()
	timer := goodTimer("x")
	switch {
	case r.ID != nil:
		timer.Id = *r.ID
	case r.IDBytes > 0:
		timer.Id = strings.Repeat("a", r.IDBytes)
	case r.IDHex != "":
		b, err := hex.DecodeString(r.IDHex)
		if err != nil {
			t.Fatal(err)
		}
		timer.Id = string(b)
	case r.Cron != nil:
		timer.When, timer.Repeat = nil, &carillonv1.Repeat{Rule: &carillonv1.Repeat_Cron{Cron: *r.Cron}}
		if r.Zone != nil {
			timer.Repeat.Zone = *r.Zone
		}
	case r.Every != nil:
		timer.When, timer.Repeat = nil, &carillonv1.Repeat{Rule: &carillonv1.Repeat_Every{Every: duration(t, *r.Every)}}
	case r.Webhook != nil && *r.Webhook != "":
		timer.Target = &carillonv1.Timer_Webhook{Webhook: *r.Webhook} // one that is set last wins in a oneof
	case r.Queue != nil:
		timer.Target = nil
	case r.Delay != "":
		timer.When = &carillonv1.Timer_Delay{Delay: duration(t, r.Delay)}
	case r.DelayMS != 0:
		timer.When = &carillonv1.Timer_Delay{Delay: &durationpb.Duration{Seconds: r.DelayMS / 1000, Nanos: int32(r.DelayMS%1000) * 1e6}}
	case r.At != "":
		timer.When = &carillonv1.Timer_Due{Due: timestamp(r.At)}
	case r.PayloadBytes > 0:
		timer.Payload = bytes.Repeat([]byte("x"), r.PayloadBytes)
	case r.MaxAttempts != nil:
		timer.Retry = &carillonv1.RetryPolicy{MaxAttempts: *r.MaxAttempts}
	case r.Lease != "":
		timer.Retry = &carillonv1.RetryPolicy{Lease: duration(t, r.Lease)}
	default:
		t.Fatalf("this line sets nothing: %+v", r)
	}
	return timer
}

func duration(t *testing.T, s string) *durationpb.Duration {
	t.Helper()
	d, err := time.ParseDuration(s)
	if err != nil {
		t.Fatal(err)
	}
	return durationpb.New(d)
}

// timestamp is the time, or, for one that does not exist, what a careless client makes of year 0.
func timestamp(s string) *timestamppb.Timestamp {
	at, err := time.Parse(time.RFC3339, s)
	if err != nil {
		at = time.Date(0, 0, 0, 0, 0, 0, 0, time.UTC)
	}
	return timestamppb.New(at)
}

func goodTimer(id string) *carillonv1.Timer {
	return &carillonv1.Timer{Id: id, When: &carillonv1.Timer_Delay{Delay: durationpb.New(time.Minute)}, Target: &carillonv1.Timer_Queue{Queue: "q"}}
}

// testWebhooks are the rules of the servers for webhooks, with what is allowed.
func testWebhooks(allow []string) func(string) (string, error) {
	policy, err := webhook.NewPolicy(allow)
	if err != nil {
		panic(err)
	}
	return policy.CheckURL
}

// twoTargets is the line whose message cannot be built: of a oneof the last that is set counts. HTTP refuses it.
func (r refusal) twoTargets() bool { return r.Queue != nil && *r.Queue != "" && r.Webhook != nil }

func TestScheduleRefusesEachLine(t *testing.T) {
	t.Parallel()
	backend := &fakeBackend{}
	c := testConfig()
	c.Webhooks = testWebhooks(nil)
	h := serve(t, c, backend)
	file, err := os.Open("testdata/refuse.jsonl")
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	lines := 0
	for scan := bufio.NewScanner(file); scan.Scan(); lines++ {
		var r refusal
		if err := json.Unmarshal(scan.Bytes(), &r); err != nil {
			t.Fatal(err)
		}
		if r.twoTargets() {
			body := fmt.Sprintf(`{"timer": {"id": "x", "delay": "1s", "queue": %q, "webhook": %q}}`, *r.Queue, *r.Webhook)
			if _, answer, _ := post(t, h.server.Gateway(), "/v1/timers/schedule", body); reasonOf(answer) != "INVALID_FIELD "+r.Field {
				t.Errorf("%s: got %v", scan.Text(), answer)
			}
			continue
		}
		request := &carillonv1.ScheduleRequest{Timer: r.timer(t)}
		got := refusedField(t, h, request)
		if got != "INVALID_FIELD "+r.Field {
			t.Errorf("%s: got %q", scan.Text(), got)
		}
	}
	if lines < 41 {
		t.Errorf("only %d lines", lines)
	}
	if got := backend.applied(); len(got) != 0 {
		t.Errorf("%d commands got through", len(got))
	}
	if got := refusedField(t, h, &carillonv1.ScheduleRequest{Timer: goodTimer("x")}); got != "" {
		t.Errorf("the next good call is refused: %s", got)
	}
}

// refusedField sends the request through the codec as raw bytes, since a good client would not send broken UTF-8, and
// returns the reason and the field of the error; empty if there is none.
func refusedField(t *testing.T, h *harness, r *carillonv1.ScheduleRequest) string {
	t.Helper()
	err := h.invoke("/carillon.v1.Timers/Schedule", r, &carillonv1.ScheduleResponse{})
	if err == nil {
		return ""
	}
	info := infoOf(t, status.Convert(err))
	return info.Reason + " " + info.Metadata["field"]
}
