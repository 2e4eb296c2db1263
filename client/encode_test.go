package client

import (
	"bytes"
	"fmt"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"

	carillonv1 "github.com/carillon-timers/carillon/proto/carillon/v1"
)

// encodedTimers have all that a timer can have, in turns: an encoder that is used again must not mix them.
func encodedTimers() []Timer {
	due := time.Date(2030, 1, 2, 3, 4, 5, 6, time.UTC)
	return []Timer{
		{ID: "plain", Queue: "q", Due: due, Payload: []byte("payload")},
		{ID: "rich", Queue: "other", After: time.Minute, ContentType: "text", Headers: map[string]string{"a": "b"}, Labels: map[string]string{"c": "d"},
			Retry: RetryPolicy{Lease: time.Second, MaxAttempts: 3}, Window: time.Second, Expiry: due, IfExists: Replace, ExpectedRevision: 7, RequestID: "mine"},
		{ID: "hook", Webhook: "https://example.com/", Repeat: Repeat{Every: time.Hour}, AtMostOnce: true},
		{ID: "old", Queue: "q", Due: time.Unix(-5, 999)},
		{ID: "large", Queue: "q", Payload: bytes.Repeat([]byte("x"), 100_000)},
		{ID: "now", Queue: "q"},
	}
}

// The items of a batch are what a message made by itself would be, and keep nothing of the caller's timer.
func TestEncodedItems(t *testing.T) {
	t.Parallel()
	c := &Client{cfg: Config{Namespace: "shop", Now: time.Now}}
	timers := encodedTimers()
	b := c.newOps(len(timers))
	var batch []*attempt
	for i := range timers {
		o, err := b.schedule(&timers[i])
		if err != nil {
			t.Fatal(err)
		}
		o.attempt.begin(o, nil)
		batch = append(batch, &o.attempt)
	}
	request := &carillonv1.ScheduleBatchRequest{}
	request.ProtoReflect().SetUnknown(joined(batch))
	data, err := proto.Marshal(request)
	if err != nil {
		t.Fatal(err)
	}
	for _, timer := range timers {
		clear(timer.Payload)
	}
	var got carillonv1.ScheduleBatchRequest
	if err := proto.Unmarshal(data, &got); err != nil || len(got.Items) != len(timers) {
		t.Fatalf("%d items, %v", len(got.Items), err)
	}
	ids := make(map[string]bool)
	for i, timer := range encodedTimers() {
		want := new(encoder).request(&timer, "shop")
		if want.RequestId == "" {
			want.RequestId = batch[i].op.requestID
		}
		if ids[want.RequestId] = true; !proto.Equal(got.Items[i], want) {
			t.Errorf("%s:\n%v\nin place of\n%v", timer.ID, got.Items[i], want)
		}
	}
	if len(ids) != len(timers) {
		t.Errorf("request IDs: %v", ids)
	}
}

// A repeated attempt has a shorter delay, and else the same.
func TestShorten(t *testing.T) {
	t.Parallel()
	c := &Client{cfg: Config{Namespace: "shop", Now: time.Now}}
	timer := encodedTimers()[1]
	o, err := c.newOps(1).schedule(&timer)
	if err != nil {
		t.Fatal(err)
	}
	before := bytes.Clone(o.item)
	var got carillonv1.ScheduleBatchRequest
	if err := proto.Unmarshal(shorten(o.item, durationpb.New(time.Second)), &got); err != nil {
		t.Fatal(err)
	}
	want := new(encoder).request(&timer, "shop")
	want.Timer.When = &carillonv1.Timer_Delay{Delay: durationpb.New(time.Second)}
	if !proto.Equal(got.Items[0], want) || !bytes.Equal(before, o.item) {
		t.Errorf("%v\nin place of\n%v", got.Items[0], want)
	}
}

// Request IDs are 26 letters and differ, whether they are made alone or together.
func TestRequestIDs(t *testing.T) {
	t.Parallel()
	seen := make(map[string]bool)
	together := requestIDs{left: 100}
	for range 100 {
		for _, id := range []string{together.next(), newRequestID()} {
			if seen[id] || len(id) != requestIDBytes || strings.Trim(id, letters) != "" {
				t.Errorf("ID %q, seen before: %v", id, seen[id])
			}
			seen[id] = true
		}
	}
}

// What is checked of a text is told as before.
func TestCheckTextTells(t *testing.T) {
	t.Parallel()
	for value, want := range map[string]string{
		"": `id "" is not valid: 1 to 255 bytes of UTF-8 without NUL`, "a\x00": `id "a\x00" is not valid: 1 to 255 bytes of UTF-8 without NUL`,
		"\xff": `id "\xff" is not valid: 1 to 255 bytes of UTF-8 without NUL`, "fine": "<nil>",
		strings.Repeat("x", 300): "id of 300 bytes is not valid: 1 to 255 bytes of UTF-8 without NUL",
	} {
		if got := fmt.Sprint(checkText("id", value, 1, maxIDBytes)); got != want {
			t.Errorf("%q: %s", value, got)
		}
	}
}
