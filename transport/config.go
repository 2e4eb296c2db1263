package transport

import (
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/carillon-timers/carillon/raftfsm"
)

// Limits of the server that are part of the contract.
const (
	// MaxCredits bounds what one stream may have outstanding: credits that are not used yet, and deliveries that are
	// not answered yet.
	MaxCredits = 10_000
	// MaxAnswers bounds the acks, and the nacks, of one message.
	MaxAnswers = 1000
	// MaxTokenBytes is above the longest token of a delivery.
	MaxTokenBytes = 512
	// MaxWorkerBytes bounds the name of a worker.
	MaxWorkerBytes = 255
	// HeartbeatLimit is the longest time between two heartbeats of a stream that is not stuck.
	HeartbeatLimit = 5 * time.Second

	// takeMax bounds what one turn of a subscriber takes, so that subscribers share a queue.
	takeMax = 64
	// maxReceiveBytes is above the 1 MiB of a batch, so that an overlong batch gets an error of ours that names the limit.
	maxReceiveBytes = raftfsm.MaxBatchBytes + 1<<20
	// maxMessageBytes cuts what is sent: pages, and messages of deliveries. One item may stick out.
	maxMessageBytes = 1 << 20
	// maxSendBytes is above maxMessageBytes by the largest item.
	maxSendBytes = maxMessageBytes + raftfsm.MaxPayloadBytes + 64<<10
	// maxHeaderBytes bounds the HTTP/2 headers of a call.
	maxHeaderBytes = 16 << 10
	// defaultPageItems is meant by a list limit of 0.
	defaultPageItems = 100
)

// Config says how the server behaves. NewServer copies it.
type Config struct {
	// Now is the wall clock. It bounds due times and is shown in heartbeats; needed.
	Now func() time.Time
	// Logger takes the logs; slog.Default by default.
	Logger *slog.Logger
	// MaxPayloadBytes bounds a payload: 64 KiB by default, at most 512 KiB.
	MaxPayloadBytes int
	// Webhooks checks the URL of a webhook when a timer is created, and gives scheme, host and port of it in one form
	// ("https://example.com:443"); its errors are *shard.InvalidError. Without it webhooks are refused.
	Webhooks func(url string) (string, error)
	// WebhookHeaders checks content type and headers of a timer with a webhook; its errors are *shard.InvalidError. It may be nil.
	WebhookHeaders func(contentType string, headers map[string]string) error
	// MaxConnections bounds the client connections; one more is closed at once. 10,000 by default.
	MaxConnections int
	// MaxStreams bounds the concurrent calls of one connection; more wait in the client. 4,096 by default.
	MaxStreams uint32
	// MaxWorkers bounds the Work streams of the node; one more gets LIMIT_REACHED. 10,000 by default.
	MaxWorkers int
	// CallTimeout ends a unary call that came without a deadline; 30 s by default.
	CallTimeout time.Duration
	// Heartbeat is the time between heartbeats; 4 s by default, under 5 s.
	Heartbeat time.Duration
	// SendTimeout ends a stream whose consumer has not read for so long; 60 s by default.
	SendTimeout time.Duration
	// StopTimeout is how long calls may finish after Run's context has ended; 5 s by default. Then they are cut off.
	StopTimeout time.Duration
	// SettleTimeout bounds how long the answers of a broken stream, and then the retries of what was not answered, may
	// take each; 5 s by default.
	SettleTimeout time.Duration
}

// DefaultConfig is a config that lacks only Now.
func DefaultConfig() Config {
	return Config{
		Logger:          slog.Default(),
		MaxPayloadBytes: raftfsm.DefaultPayloadBytes,
		MaxConnections:  10_000,
		MaxStreams:      4096,
		MaxWorkers:      10_000,
		CallTimeout:     30 * time.Second,
		Heartbeat:       4 * time.Second,
		SendTimeout:     60 * time.Second,
		StopTimeout:     5 * time.Second,
		SettleTimeout:   5 * time.Second,
	}
}

// Validate names the first field that is out of its limits.
func (c Config) Validate() error {
	if c.Now == nil {
		return errors.New("transport config: Now is not set")
	}
	if c.Logger == nil {
		return errors.New("transport config: Logger is not set")
	}
	if c.MaxPayloadBytes < 1 || c.MaxPayloadBytes > raftfsm.MaxPayloadBytes {
		return fmt.Errorf("transport config: MaxPayloadBytes %d is not within 1 and %d", c.MaxPayloadBytes, raftfsm.MaxPayloadBytes)
	}
	if c.MaxConnections < 1 {
		return fmt.Errorf("transport config: MaxConnections %d is below 1", c.MaxConnections)
	}
	if c.MaxStreams < 1 {
		return fmt.Errorf("transport config: MaxStreams %d is below 1", c.MaxStreams)
	}
	if c.MaxWorkers < 1 {
		return fmt.Errorf("transport config: MaxWorkers %d is below 1", c.MaxWorkers)
	}
	if c.Heartbeat >= HeartbeatLimit {
		return fmt.Errorf("transport config: Heartbeat %v is not under %v", c.Heartbeat, HeartbeatLimit)
	}
	for _, d := range []struct {
		name  string
		value time.Duration
	}{
		{"CallTimeout", c.CallTimeout},
		{"Heartbeat", c.Heartbeat},
		{"SendTimeout", c.SendTimeout},
		{"StopTimeout", c.StopTimeout},
		{"SettleTimeout", c.SettleTimeout},
	} {
		if d.value <= 0 {
			return fmt.Errorf("transport config: %s %v is not above 0", d.name, d.value)
		}
	}
	return nil
}
