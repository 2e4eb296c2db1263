package transport

import (
	"fmt"
	"strings"

	carillonv1 "github.com/carillon-timers/carillon/proto/carillon/v1"
	"github.com/carillon-timers/carillon/raftfsm"
	"github.com/carillon-timers/carillon/shard"
)

// A webhook timer lies in a queue whose name begins with NUL, which no client can write, and goes on with scheme, host
// and port of the URL: so what is kept for each queue is kept for each host. Clients see, and may give, that name
// without the NUL.
const webhookMark = "\x00"

// webhookQueue checks the URL of a webhook and gives the queue for it.
func (l limits) webhookQueue(url string) (string, error) {
	if l.webhooks == nil {
		return "", &shard.NotSupportedError{Field: "webhook"}
	}
	if err := checkText("webhook", url); err != nil {
		return "", err
	}
	host, err := l.webhooks(url)
	if err != nil {
		return "", err
	}
	if len(webhookMark+host) > raftfsm.MaxQueueBytes {
		return "", invalid("webhook", show(url), fmt.Sprintf("scheme, host and port of at most %d bytes", raftfsm.MaxQueueBytes-len(webhookMark)))
	}
	return webhookMark + host, nil
}

// queueOf is the queue that a client means: a text that begins like a URL is a webhook's scheme, host and port.
func queueOf(name string) string {
	if strings.HasPrefix(name, "http://") || strings.HasPrefix(name, "https://") {
		return webhookMark + name
	}
	return name
}

// shownQueue is the name that clients see of a queue.
func shownQueue(queue string) string { return strings.TrimPrefix(queue, webhookMark) }

// setTarget says for whom a timer is; a finished webhook timer has only the host left.
func setTarget(t *carillonv1.Timer, queue, webhook string) {
	switch {
	case webhook != "":
		t.Target = &carillonv1.Timer_Webhook{Webhook: webhook}
	case strings.HasPrefix(queue, webhookMark):
		t.Target = &carillonv1.Timer_Webhook{Webhook: shownQueue(queue)}
	default:
		t.Target = &carillonv1.Timer_Queue{Queue: queue}
	}
}
