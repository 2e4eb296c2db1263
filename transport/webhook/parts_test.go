package webhook

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/carillon-timers/carillon/raftfsm"
	"github.com/carillon-timers/carillon/shard"
)

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
		"24 to 64": "default whsec_AAAA", "line 2": "a " + newSecret + "\na " + oldSecret, "namespace": "A " + newSecret, "the namespace comes first": newSecret + " default",
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
