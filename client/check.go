package client

import (
	"fmt"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"
)

// Limits of the contract that are checked here, so that a bad timer costs no call and cannot spoil the batch of others.
// The server checks them and all others.
const (
	maxNamespaceBytes = 63
	maxIDBytes        = 255
	maxQueueBytes     = 255
	maxWebhookBytes   = 2048
	maxLetters        = 1000
	maxRequestIDBytes = 64
	maxPayloadBytes   = 512 << 10
	maxAttributeBytes = 8 << 10
	maxErrorBytes     = 1 << 10
	maxCronBytes      = 256
	maxZoneBytes      = 255 // above the longest name
	maxAhead          = 36525 * 24 * time.Hour
)

func (t *Timer) check() error {
	if err := checkText("id", t.ID, 1, maxIDBytes); err != nil {
		return err
	}
	if err := t.checkTarget(); err != nil {
		return err
	}
	if err := checkText("request_id", t.RequestID, 0, maxRequestIDBytes); err != nil {
		return err
	}
	if err := checkWhen(t.Due, t.After); err != nil {
		return err
	}
	if n := len(t.Payload); n > maxPayloadBytes {
		return &InvalidError{"payload", fmt.Sprintf("of %d bytes", n), fmt.Sprintf("at most %d bytes", maxPayloadBytes)}
	}
	if t.Repeat.set() {
		if err := t.Repeat.check(); err != nil {
			return err
		}
	}
	return t.checkAttributes()
}

func (t *Timer) checkTarget() error {
	switch {
	case t.Webhook == "":
		return checkText("queue", t.Queue, 1, maxQueueBytes)
	case t.Queue != "":
		return &InvalidError{"webhook", quote(t.Webhook), "must not be set beside a queue"}
	}
	return checkText("webhook", t.Webhook, 1, maxWebhookBytes)
}

func (t *Timer) checkAttributes() error {
	size := len(t.ContentType)
	if !utf8.ValidString(t.ContentType) {
		return &InvalidError{"content_type", quote(t.ContentType), "must be UTF-8"}
	}
	for _, part := range [2]struct {
		field string
		pairs map[string]string
	}{{"headers", t.Headers}, {"labels", t.Labels}} {
		for k, v := range part.pairs {
			size += len(k) + len(v)
			if !utf8.ValidString(k) || !utf8.ValidString(v) {
				return &InvalidError{part.field, quote(k + "=" + v), "must be UTF-8"}
			}
		}
	}
	if size > maxAttributeBytes {
		return &InvalidError{"headers", fmt.Sprintf("of %d bytes, with labels and content type,", size),
			fmt.Sprintf("at most %d bytes", maxAttributeBytes)}
	}
	return nil
}

func checkWhen(due time.Time, after time.Duration) error {
	switch {
	case after < 0:
		return &InvalidError{"delay", after.String(), "must not be negative"}
	case after > maxAhead:
		return &InvalidError{"delay", after.String(), "at most 100 years"}
	case after != 0 && !due.IsZero():
		return &InvalidError{"delay", after.String(), "must not be set beside a due time"}
	}
	return nil
}

func checkText(field, value string, least, most int) error {
	n := len(value)
	if n >= least && n <= most && utf8.ValidString(value) && strings.IndexByte(value, 0) < 0 {
		return nil
	}
	shown := quote(value)
	if (n < least || n > most) && n > 64 {
		shown = fmt.Sprintf("of %d bytes", n)
	}
	return &InvalidError{field, shown, fmt.Sprintf("%d to %d bytes of UTF-8 without NUL", least, most)}
}

func checkNamespace(value string) error {
	ok := len(value) >= 1 && len(value) <= maxNamespaceBytes
	for i := 0; ok && i < len(value); i++ {
		c := value[i]
		ok = c >= 'a' && c <= 'z' || c >= '0' && c <= '9' || c == '-'
	}
	if !ok {
		return &InvalidError{"namespace", quote(value), fmt.Sprintf("1 to %d bytes of [a-z0-9-]", maxNamespaceBytes)}
	}
	return nil
}

// quote shows a value on one line, cut if it is long.
func quote(value string) string {
	if len(value) > 64 {
		return strconv.QuoteToASCII(value[:64]) + "..."
	}
	return strconv.QuoteToASCII(value)
}
