package main

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/spf13/pflag"

	"github.com/carillon-timers/carillon/node"
)

func TestWebhookFlags(t *testing.T) {
	t.Parallel()
	c := node.DefaultConfig().Webhooks
	f := pflag.NewFlagSet("server", pflag.ContinueOnError)
	webhookFlags(f, &c)
	err := f.Parse([]string{
		"--webhook-allow", "10.0.0.0/8,*.svc", "--webhook-allow", "hooks", "--webhook-secrets", "s", "--webhook-concurrency", "3", "--webhook-rate", "50",
		"--webhook-timeout", "2s", "--webhook-redirects", "1",
	})
	want := node.WebhookConfig{SecretsFile: "s", Concurrency: 3, Rate: 50, Timeout: 2 * time.Second, Redirects: 1}
	allow := []string{"10.0.0.0/8", "*.svc", "hooks"}
	if err != nil || !slices.Equal(c.Allow, allow) {
		t.Errorf("allow %q, %v; want %q", c.Allow, err, allow)
	}
	c.Allow = nil
	if got := c; got.SecretsFile != want.SecretsFile || got.Concurrency != want.Concurrency || got.Rate != want.Rate || got.Timeout != want.Timeout || got.Redirects != want.Redirects {
		t.Errorf("%+v, want %+v", got, want)
	}
}

func TestWrongWebhookFlags(t *testing.T) {
	t.Parallel()
	for flag, part := range map[string]string{
		"--webhook-allow=10.0.0.1/8": "10.0.0.0/8", "--webhook-concurrency=0": "--webhook-concurrency 0 is", "--webhook-rate=-1": "--webhook-rate -1 is", "--webhook-timeout=1ms": "--webhook-timeout 1ms is",
		"--webhook-redirects=11": "--webhook-redirects 11 is",
	} {
		if got := carillon(t, "", "server", "--id", "n1", "--dir", t.TempDir(), flag); got.code != exitUsage || !strings.Contains(got.errs, part) {
			t.Errorf("%s: %v, want %q", flag, got, part)
		}
	}
}

// Webhooks of carillon dev may go to this machine, whatever else is allowed.
func TestDevAllowsLoopback(t *testing.T) {
	t.Parallel()
	o := devOptions{nodes: 1, webhooks: node.WebhookConfig{Allow: []string{"hooks.internal"}, SecretsFile: "s"}}
	c := o.config(0, t.TempDir())
	if want := []string{"127.0.0.0/8", "::1", "hooks.internal"}; !slices.Equal(c.Webhooks.Allow, want) || c.Webhooks.SecretsFile != "s" {
		t.Errorf("%+v, want %q", c.Webhooks, want)
	}
	if err := c.Validate(); err != nil {
		t.Error(err)
	}
}
