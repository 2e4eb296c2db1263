package webhook

import (
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/carillon-timers/carillon/raftfsm"
	"github.com/carillon-timers/carillon/shard"
	"github.com/carillon-timers/carillon/shard/executor"
)

const (
	// EventType is the CloudEvents type of every post.
	EventType = "io.github.carillon-timers.timer.due"
	// sourcePrefix and the namespace are the CloudEvents source.
	sourcePrefix = "/carillon/namespaces/"

	timeFormat = "2006-01-02T15:04:05.000Z07:00"
)

// ours are the headers that a timer cannot set: those of one connection, those that HTTP or Carillon writes itself.
var ours = map[string]string{
	"Connection": "of one connection", "Keep-Alive": "of one connection", "Proxy-Authenticate": "of one connection",
	"Proxy-Authorization": "of one connection", "Proxy-Connection": "of one connection", "Te": "of one connection",
	"Trailer": "of one connection", "Transfer-Encoding": "of one connection", "Upgrade": "of one connection",
	"Expect": "of one connection", "Host": "from the URL", "Content-Length": "from the payload", "Content-Type": "from content_type",
	"Accept-Encoding": "the answer is read as it is",
}

// ownHeader says why a timer cannot set a header; empty if it can.
func ownHeader(name string) string {
	canonical := http.CanonicalHeaderKey(name)
	if why, is := ours[canonical]; is {
		return why
	}
	if strings.HasPrefix(canonical, "Ce-") || strings.HasPrefix(canonical, "Webhook-") {
		return "written by Carillon"
	}
	return ""
}

// CheckHeaders checks content type and headers of a timer with a webhook when it is created. The error is a
// *shard.InvalidError that names the field, the value and the rule. A post drops what this refuses.
func CheckHeaders(contentType string, headers map[string]string) error {
	if !validValue(contentType) {
		return &shard.InvalidError{Field: "content_type", Value: shown(contentType), Limit: "a webhook's must be what HTTP can carry: printable text in one line"}
	}
	for _, name := range slices.Sorted(maps.Keys(headers)) {
		field := "headers[" + shown(name) + "]"
		if !validName(name) {
			return &shard.InvalidError{Field: field, Value: shown(name), Limit: "a webhook's header needs a name that HTTP can carry: letters, digits and !#$%&'*+-.^_`|~"}
		}
		if why := ownHeader(name); why != "" {
			return &shard.InvalidError{Field: field, Value: shown(headers[name]), Limit: "not with a webhook: it is " + why}
		}
		if !validValue(headers[name]) {
			return &shard.InvalidError{Field: field, Value: shown(headers[name]), Limit: "a webhook's header must be what HTTP can carry: text in one line"}
		}
	}
	return nil
}

// validName says whether a name is a token of HTTP.
func validName(name string) bool {
	return name != "" && !strings.ContainsFunc(name, func(r rune) bool {
		return (r < 'a' || r > 'z') && (r < 'A' || r > 'Z') && (r < '0' || r > '9') && !strings.ContainsRune("!#$%&'*+-.^_`|~", r)
	})
}

func validValue(value string) bool {
	return !strings.ContainsFunc(value, func(r rune) bool { return r < ' ' && r != '\t' || r == 0x7f })
}

// ownHeaders are the timer's headers as far as it may set them.
func ownHeaders(pairs []raftfsm.Pair) http.Header {
	header := make(http.Header, len(pairs)+16)
	for _, pair := range pairs {
		if validName(pair.Key) && ownHeader(pair.Key) == "" && validValue(pair.Value) {
			header.Set(pair.Key, pair.Value)
		}
	}
	return header
}

// describe adds what the post is about: CloudEvents 1.0 in binary mode, the token that fences among the extensions.
func describe(header http.Header, j *job) {
	d := &j.Delivery
	contentType := d.Record.ContentType
	if contentType == "" || !validValue(contentType) {
		contentType = "application/octet-stream"
	}
	header.Set("Content-Type", contentType)
	header.Set("Ce-Specversion", "1.0")
	header.Set("Ce-Id", j.id)
	header.Set("Ce-Source", percent(sourcePrefix+d.Record.Namespace))
	header.Set("Ce-Type", EventType)
	header.Set("Ce-Time", time.UnixMilli(j.due).UTC().Format(timeFormat))
	header.Set("Ce-Subject", percent(d.Record.ID))
	header.Set("Ce-Attempt", strconv.FormatUint(uint64(d.Token.Attempt)+1, 10))
	header.Set("Ce-Epoch", strconv.FormatUint(d.Token.Epoch, 10))
	header.Set("Ce-Revision", strconv.FormatUint(d.Token.Revision, 10))
}

// percent encodes a value as the HTTP binding of CloudEvents demands.
func percent(s string) string {
	var b strings.Builder
	for i := range len(s) {
		if c := s[i]; c <= ' ' || c > '~' || c == '"' || c == '%' {
			fmt.Fprintf(&b, "%%%02X", c)
		} else {
			b.WriteByte(c)
		}
	}
	return b.String()
}

// job is a delivery and what its post needs to know.
type job struct {
	executor.Delivery
	host *host
	// url is where it goes.
	url string
	// id names the timer and the due time; it stays through all attempts.
	id string
	// due is the due time that is posted, Unix milliseconds.
	due int64
	// once is true if the timer is at-most-once: it is settled already.
	once bool
}
