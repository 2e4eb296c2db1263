package main

import (
	"github.com/spf13/pflag"

	"github.com/carillon-timers/carillon/node"
)

// webhookFlags are those of a server that say how webhooks are posted.
func webhookFlags(f *pflag.FlagSet, c *node.WebhookConfig) {
	webhookAccess(f, c)
	f.IntVar(&c.Concurrency, "webhook-concurrency", c.Concurrency, "how many posts one host may have at the same time from this node")
	f.IntVar(&c.Rate, "webhook-rate", c.Rate, "how many posts one host gets in a second from this node; 0 for no limit")
	f.DurationVar(&c.Timeout, "webhook-timeout", c.Timeout, "how long one post may take; a timer with a shorter lease gets less")
	f.IntVar(&c.Redirects, "webhook-redirects", c.Redirects, "how many redirects (307, 308) of a webhook are followed")
}

// webhookAccess are the flags that carillon dev has as well.
func webhookAccess(f *pflag.FlagSet, c *node.WebhookConfig) {
	f.StringSliceVar(&c.Allow, "webhook-allow", nil, "what webhooks may go to beyond public addresses: `CIDR|host`, also *.example.com, parted by commas")
	f.StringVar(&c.SecretsFile, "webhook-secrets", "", "sign posts with the secrets of this `file`: lines of a namespace and one or two secrets (whsec_...), the newer first")
}

// loopback is what webhooks of carillon dev may always go to.
var loopback = []string{"127.0.0.0/8", "::1"}
