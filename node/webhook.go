package node

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	"github.com/carillon-timers/carillon/raftfsm"
	"github.com/carillon-timers/carillon/shard/executor"
	"github.com/carillon-timers/carillon/transport"
	"github.com/carillon-timers/carillon/transport/webhook"
)

// WebhookConfig says how timers are posted to webhooks. All nodes of a cluster should say the same.
type WebhookConfig struct {
	// Allow lists what may be posted to beyond public addresses: CIDRs, addresses, host names, or *. and the end of names.
	// Default: nothing.
	Allow []string
	// SecretsFile has a line for each namespace whose posts are signed: the namespace and one or two secrets (whsec_...), the
	// newer first. It is read again when it has changed. Empty: no post is signed.
	SecretsFile string
	// Concurrency is how many posts one host may have at the same time from this node, 1 to 1,000; 16 by default.
	Concurrency int
	// Rate is how many posts one host gets in a second from this node, at most 100,000; 0, the default, means no limit.
	Rate int
	// Timeout bounds one post, 100 ms to 1 h; 15 s by default. A timer whose lease is shorter gets less.
	Timeout time.Duration
	// Redirects is how many redirects (307 and 308) are followed, 0 to 10; 0 by default.
	Redirects int
}

func defaultWebhookConfig() WebhookConfig {
	c := webhook.DefaultConfig()
	return WebhookConfig{Concurrency: c.Concurrency, Rate: c.Rate, Timeout: c.Timeout, Redirects: c.Redirects}
}

// Validate names the first field that is wrong, its value and the limit: a *ConfigError. It does not read the file.
func (c WebhookConfig) Validate() error {
	wc, err := c.config()
	if err == nil {
		wc.Now, wc.Monotonic, wc.Settle = time.Now, time.Now, func(context.Context, []*raftfsm.Command) []error { return nil }
		err = wc.Validate()
	}
	var refused *webhook.ConfigError
	if errors.As(err, &refused) {
		return invalid("Webhooks."+refused.Field, refused.Value, refused.Limit)
	}
	return err
}

// config is the part of the Poster's config that comes from here.
func (c WebhookConfig) config() (webhook.Config, error) {
	wc := webhook.DefaultConfig()
	var err error
	wc.Policy, err = webhook.NewPolicy(c.Allow)
	wc.Concurrency, wc.Rate, wc.Timeout, wc.Redirects = c.Concurrency, c.Rate, c.Timeout, c.Redirects
	return wc, err
}

// secretsEvery is how often the file of secrets is looked at.
const secretsEvery = 5 * time.Second

// webhooks is the node's Poster and what it needs.
type webhooks struct {
	*webhook.Poster
	n      *Node
	policy *webhook.Policy
	// read is when and how long the file of secrets was as it was read last. Touched by open, then by watch alone.
	read fileMark
}

// fileMark tells whether a file has changed.
type fileMark struct {
	at   time.Time
	size int64
}

func newWebhooks(n *Node) (*webhooks, error) {
	c, err := n.config.Webhooks.config()
	if err != nil {
		return nil, err
	}
	w := &webhooks{n: n, policy: c.Policy}
	c.Now, c.Monotonic, c.Logger, c.StopTimeout = n.now, n.mono, n.log, n.config.StopTimeout/4
	c.UserAgent = "Carillon/" + n.config.Version
	c.Settle = w.settle
	if w.Poster, err = webhook.New(c); err != nil {
		return nil, err
	}
	return w, w.reload()
}

// settle brings answers to the leaders of their shards.
func (w *webhooks) settle(ctx context.Context, commands []*raftfsm.Command) []error {
	errs := make([]error, len(commands))
	for i, outcome := range w.n.router.Apply(ctx, commands) {
		errs[i] = outcome.Err
	}
	return errs
}

// reload reads the file of secrets if it has changed.
func (w *webhooks) reload() error {
	path := w.n.config.Webhooks.SecretsFile
	if path == "" {
		return nil
	}
	info, err := os.Stat(path)
	if err != nil {
		return fmt.Errorf("webhook secrets: %w", err)
	}
	mark := fileMark{info.ModTime(), info.Size()}
	if mark == w.read {
		return nil
	}
	file, err := os.Open(path)
	if err != nil {
		return fmt.Errorf("webhook secrets: %w", err)
	}
	secrets, err := webhook.ReadSecrets(file)
	if err := errors.Join(err, file.Close()); err != nil {
		w.read = mark // one word about it, until it changes again
		return fmt.Errorf("%w (%s)", err, path)
	}
	w.read = mark
	w.SetSecrets(secrets)
	w.n.log.Info("webhook secrets were read", "file", path, "namespaces", len(secrets))
	return nil
}

// watch reads the file of secrets again when it changes. A file that is not valid leaves those that were read before.
func (w *webhooks) watch(ctx context.Context) error {
	tick := time.NewTicker(secretsEvery)
	defer tick.Stop()
	missing := false
	for {
		select {
		case <-tick.C:
		case <-ctx.Done():
			return nil
		}
		err := w.reload()
		if gone := errors.Is(err, os.ErrNotExist); err != nil && !(gone && missing) {
			w.n.log.Error("webhook secrets were not read; the ones from before stay", "error", err)
			missing = gone
		} else if err == nil {
			missing = false
		}
	}
}

// deliverers gives each queue's ready timers to the part that delivers them.
type deliverers struct {
	hub      *transport.Hub
	webhooks *webhooks
}

func (n *Node) deliverers() deliverers { return deliverers{n.server.Hub(), n.webhooks} }

// Ready implements executor.Deliverer.
func (d deliverers) Ready(src executor.Source, q executor.Queue) {
	if webhook.IsQueue(q) {
		d.webhooks.Ready(src, q)
		return
	}
	d.hub.Ready(src, q)
}

// forget drops what is remembered of a shard that this node keeps no more.
func (d deliverers) forget(shard uint32) {
	d.hub.Forget(shard)
	d.webhooks.Forget(shard)
}

// webhookFamilies are the metrics of webhooks.
var webhookFamilies = []family{
	{"webhook_seconds", "Posts to webhooks by what they came to, from the start to the head of the answer.", []string{"outcome"}},
	{"webhook_active", "Deliveries that are being posted to webhooks or settled.", nil},
	{"webhook_hosts", "Hosts of webhooks that have timers, or had some in the last half minute.", nil},
	{"webhook_hosts_failing", "Hosts that have not answered three times in a row: they get one post at a time.", nil},
	{"webhook_hosts_limited", "Hosts that wait because of the rate limit.", nil},
	{"webhook_hosts_waiting", "Hosts that wait because the limit of all hosts together is reached.", nil},
	{"webhook_settled_total", "Answers of webhooks, by what became of them.", []string{"outcome"}},
	{"webhook_lost_total", "Posts of at-most-once timers that failed.", nil},
}

func (m *metrics) webhooks(c *scrape) {
	s := m.n.webhooks.Stats()
	for _, o := range s.Outcomes {
		if o.Took.Count > 0 {
			c.histogram("webhook_seconds", o.Took, o.Outcome.String())
		}
	}
	c.gauge("webhook_active", float64(s.Active))
	c.gauge("webhook_hosts", float64(s.Hosts))
	c.gauge("webhook_hosts_failing", float64(s.Failing))
	c.gauge("webhook_hosts_limited", float64(s.Limited))
	c.gauge("webhook_hosts_waiting", float64(s.Waiting))
	c.counter("webhook_settled_total", s.Settled, "done")
	c.counter("webhook_settled_total", s.Stale, "stale")
	c.counter("webhook_settled_total", s.Unsettled, "failed")
	c.counter("webhook_lost_total", s.Lost)
	c.counter("panics_total", s.Panics, "webhook")
}
