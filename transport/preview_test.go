package transport

import (
	"math"
	"slices"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	carillonv1 "github.com/carillon-timers/carillon/proto/carillon/v1"
	"github.com/carillon-timers/carillon/shard/recur"
)

func cronRepeat(expr string) *carillonv1.Repeat {
	return &carillonv1.Repeat{Rule: &carillonv1.Repeat_Cron{Cron: expr}}
}

func everyRepeat(d time.Duration) *carillonv1.Repeat {
	return &carillonv1.Repeat{Rule: &carillonv1.Repeat_Every{Every: durationpb.New(d)}}
}

// at is a time of the contract.
func at(t *testing.T, text string) *timestamppb.Timestamp {
	t.Helper()
	when, err := time.Parse(time.RFC3339Nano, text)
	if err != nil {
		t.Fatal(err)
	}
	return timestamppb.New(when)
}

// shownTimes are the due times of an answer, each with its notes.
func shownTimes(r *carillonv1.PreviewResponse) []string {
	var texts []string
	for _, x := range r.Times {
		texts = append(texts, strings.TrimSpace(x.Due.AsTime().Format(time.RFC3339Nano)+" "+x.Local+" "+x.ZoneName+" "+strings.Join(x.Notes, "; ")))
	}
	return texts
}

func TestPreview(t *testing.T) {
	t.Parallel()
	h := serve(t, testConfig(), &fakeBackend{})
	preview := func(r *carillonv1.PreviewRequest) *carillonv1.PreviewResponse {
		t.Helper()
		resp := &carillonv1.PreviewResponse{}
		if err := h.invoke("/carillon.v1.Timers/Preview", r, resp); err != nil {
			t.Fatal(err)
		}
		return resp
	}
	for _, c := range []struct {
		name   string
		repeat *carillonv1.Repeat
		from   string
		count  int32
		want   []string
		more   bool
	}{
		{"over the gap", &carillonv1.Repeat{Rule: &carillonv1.Repeat_Cron{Cron: "30 2 * * *"}, Zone: "Europe/Berlin"}, "2026-03-28T00:00:00Z", 3, []string{
			"2026-03-28T01:30:00Z 2026-03-28T02:30:00+01:00 CET",
			"2026-03-29T01:00:00Z 2026-03-29T03:00:00+02:00 CEST 02:30 is skipped by DST, moved to 03:00",
			"2026-03-30T00:30:00Z 2026-03-30T02:30:00+02:00 CEST"}, true},
		{"a period", everyRepeat(1500 * time.Millisecond), "2026-01-01T00:00:00.0009Z", 2, []string{
			"2026-01-01T00:00:01.5Z 2026-01-01T00:00:01.5Z UTC", "2026-01-01T00:00:03Z 2026-01-01T00:00:03Z UTC"}, true},
		{"a period from its start to its end", &carillonv1.Repeat{Rule: &carillonv1.Repeat_Every{Every: durationpb.New(time.Hour)},
			Zone: "Asia/Tokyo", Start: at(t, "2026-01-01T00:00:00Z"), End: at(t, "2026-01-01T01:59:59Z"), FixedDelay: true}, "2025-01-01T00:00:00Z", 0, []string{
			"2026-01-01T00:00:00Z 2026-01-01T09:00:00+09:00 JST as if each delivery were acked at once: a fixed delay counts from the ack",
			"2026-01-01T01:00:00Z 2026-01-01T10:00:00+09:00 JST"}, false},
		{"up to the maximum", &carillonv1.Repeat{Rule: &carillonv1.Repeat_Cron{Cron: "@daily"}, MaxCount: 1}, "2026-01-01T00:00:00Z", 5, []string{
			"2026-01-02T00:00:00Z 2026-01-02T00:00:00Z UTC"}, false},
		{"after its end", &carillonv1.Repeat{Rule: &carillonv1.Repeat_Cron{Cron: "@daily"}, End: at(t, "2020-01-01T00:00:00Z")}, "2026-01-01T00:00:00Z", 5, nil, false},
		{"at the end of time", cronRepeat("* * * * *"), "9999-12-31T23:58:30Z", 5, []string{"9999-12-31T23:59:00Z 9999-12-31T23:59:00Z UTC"}, false},
	} {
		resp := preview(&carillonv1.PreviewRequest{Repeat: c.repeat, From: at(t, c.from), Count: c.count})
		if got := shownTimes(resp); !slices.Equal(got, c.want) || resp.More != c.more {
			t.Errorf("%s: got %q, more: %v", c.name, got, resp.More)
		}
		if want := c.repeat.Zone; resp.ZoneVersion != recur.ZoneVersion() || resp.Zone != want && (want != "" || resp.Zone != "UTC") {
			t.Errorf("%s: zone %q of %q", c.name, resp.Zone, resp.ZoneVersion)
		}
	}

	now := time.Now()
	resp := preview(&carillonv1.PreviewRequest{Repeat: cronRepeat("* * * * * *")})
	if len(resp.Times) != 10 || !resp.More || resp.Times[0].Due.AsTime().Before(now) || resp.Times[0].Due.AsTime().After(time.Now().Add(time.Second)) {
		t.Errorf("the defaults: %v", shownTimes(resp))
	}
	resp = preview(&carillonv1.PreviewRequest{Repeat: cronRepeat("0 0 29 2 *"), Count: 1000, From: at(t, "2026-01-01T00:00:00Z")})
	if n := len(resp.Times); n != 24 || resp.More { // 2100 is no leap year
		t.Errorf("%d leap days in 100 years, more: %v", n, resp.More)
	}
	resp = preview(&carillonv1.PreviewRequest{Repeat: everyRepeat(time.Millisecond), Count: 1000})
	if n := len(resp.Times); n != 1000 || !resp.More {
		t.Errorf("%d of 1,000 due times", n)
	}
}

func TestPreviewRefuses(t *testing.T) {
	t.Parallel()
	h := serve(t, testConfig(), &fakeBackend{})
	good := func(change func(r *carillonv1.PreviewRequest)) *carillonv1.PreviewRequest {
		r := &carillonv1.PreviewRequest{Repeat: cronRepeat("0 9 * * *")}
		change(r)
		return r
	}
	for name, c := range map[string]struct {
		field   string
		request *carillonv1.PreviewRequest
	}{
		"nothing":            {"repeat", &carillonv1.PreviewRequest{}},
		"no rule":            {"repeat", &carillonv1.PreviewRequest{Repeat: &carillonv1.Repeat{Zone: "UTC"}}},
		"cron":               {"cron", &carillonv1.PreviewRequest{Repeat: cronRepeat("0 9 * *")}},
		"cron that is long":  {"cron", &carillonv1.PreviewRequest{Repeat: cronRepeat(strings.Repeat("\xff", 100_000))}},
		"every of nothing":   {"every", &carillonv1.PreviewRequest{Repeat: everyRepeat(0)}},
		"every, negative":    {"every", &carillonv1.PreviewRequest{Repeat: everyRepeat(-time.Second)}},
		"every, below a ms":  {"every", &carillonv1.PreviewRequest{Repeat: everyRepeat(time.Millisecond - 1)}},
		"every, and a bit":   {"every", &carillonv1.PreviewRequest{Repeat: everyRepeat(time.Millisecond + 1)}},
		"every, overflowing": {"every", &carillonv1.PreviewRequest{Repeat: &carillonv1.Repeat{Rule: &carillonv1.Repeat_Every{Every: &durationpb.Duration{Seconds: math.MaxInt64}}}}},
		"zone":               {"zone", good(func(r *carillonv1.PreviewRequest) { r.Repeat.Zone = "Mars/Olympus" })},
		"fixed delay":        {"fixed_delay", good(func(r *carillonv1.PreviewRequest) { r.Repeat.FixedDelay = true })},
		"start":              {"start", good(func(r *carillonv1.PreviewRequest) { r.Repeat.Start = at(t, "2200-01-01T00:00:00Z") })},
		"end":                {"end", good(func(r *carillonv1.PreviewRequest) { r.Repeat.End = &timestamppb.Timestamp{Nanos: -1} })},
		"end before start": {"end", good(func(r *carillonv1.PreviewRequest) {
			r.Repeat.Start, r.Repeat.End = at(t, "2026-01-01T00:00:00.0001Z"), at(t, "2026-01-01T00:00:00.0002Z")
		})},
		"max count": {"max_count", good(func(r *carillonv1.PreviewRequest) { r.Repeat.MaxCount = -1 })},
		"from":      {"from", good(func(r *carillonv1.PreviewRequest) { r.From = &timestamppb.Timestamp{Seconds: math.MaxInt64} })},
		"count":     {"count", good(func(r *carillonv1.PreviewRequest) { r.Count = 1001 })},
		"count -1":  {"count", good(func(r *carillonv1.PreviewRequest) { r.Count = -1 })},
	} {
		err := h.invoke("/carillon.v1.Timers/Preview", c.request, &carillonv1.PreviewResponse{})
		if err == nil {
			t.Errorf("%s: accepted", name)
			continue
		}
		info := infoOf(t, status.Convert(err))
		if info.Reason != ReasonInvalidField || info.Metadata["field"] != c.field || info.Metadata["value"] == "" || info.Metadata["limit"] == "" {
			t.Errorf("%s: %v", name, info)
		}
	}
}
