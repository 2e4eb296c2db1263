package webhook

import (
	"net"
	"net/netip"
	"net/url"
	"strconv"
	"strings"

	"github.com/carillon-timers/carillon/shard"
)

const (
	// MaxURLBytes bounds the URL of a webhook.
	MaxURLBytes = 2048
	// MaxHostBytes bounds the host in it, so that a queue name can hold scheme, host and port.
	MaxHostBytes = 239

	// queueMark begins the names of the queues of webhooks; no user can name such a queue.
	queueMark = "\x00"
)

// target is a URL that was checked.
type target struct {
	url *url.URL
	// origin is scheme://host:port in lower case, the port always there.
	origin string
	// host and port are those of the origin, the host without brackets.
	host, port string
	// addr is the host if it is a literal address.
	addr netip.Addr
}

// CheckURL checks a URL as far as that can be done without the network, and returns scheme://host:port, in lower case and
// with the port. The error is a *shard.InvalidError that names the field webhook, the value and the rule. What a name
// resolves to is checked whenever a connection is made.
func (p *Policy) CheckURL(raw string) (origin string, err error) {
	t, rule := p.parse(raw)
	if rule != "" {
		return "", &shard.InvalidError{Field: "webhook", Value: shown(raw), Limit: rule}
	}
	return t.origin, nil
}

// parse also returns the rule that the URL breaks; empty if it breaks none.
func (p *Policy) parse(raw string) (target, string) {
	if len(raw) > MaxURLBytes {
		return target{}, "a URL of at most " + strconv.Itoa(MaxURLBytes) + " bytes"
	}
	if strings.ContainsFunc(raw, func(r rune) bool { return r <= ' ' || r > '~' || r == '\\' }) {
		return target{}, "a URL of printable ASCII without spaces and backslashes: write other characters as %XX, and names in their xn-- form"
	}
	u, err := url.Parse(raw)
	if err != nil {
		return target{}, "must be a URL"
	}
	port := u.Port()
	switch {
	case u.Scheme != "http" && u.Scheme != "https":
		return target{}, "scheme must be http or https"
	case u.Opaque != "" || u.Host == "" || u.Hostname() == "":
		return target{}, "must have a host: https://host/path"
	case u.User != nil:
		return target{}, "no user and password: send them in the header Authorization"
	case strings.Contains(raw, "#"):
		return target{}, "no fragment: it would not be sent"
	case port == "" && u.Scheme == "http":
		port = "80"
	case port == "" && u.Scheme == "https":
		port = "443"
	}
	if n, err := strconv.ParseUint(port, 10, 16); err != nil || n == 0 {
		return target{}, "port must be 1 to 65535"
	} else {
		port = strconv.FormatUint(n, 10)
	}
	t := target{url: u, port: port}
	if rule := p.setHost(&t, u.Hostname(), strings.HasPrefix(u.Host, "[")); rule != "" {
		return target{}, rule
	}
	t.origin = u.Scheme + "://" + net.JoinHostPort(t.host, port)
	return t, ""
}

func (p *Policy) setHost(t *target, host string, bracketed bool) (rule string) {
	if addr, err := netip.ParseAddr(host); err == nil && addr.Is6() == bracketed {
		t.addr, t.host = addr, addr.String()
		if err := p.CheckAddr(addr); err != nil {
			return err.Error() + " (--webhook-allow)"
		}
		return ""
	}
	if bracketed {
		return "what stands in brackets must be an IPv6 address"
	}
	if t.host, rule = hostName(host); rule != "" {
		return rule
	}
	if t.host == "localhost" || strings.HasSuffix(t.host, ".localhost") {
		if loopback := netip.AddrFrom4([4]byte{127, 0, 0, 1}); !p.allowsHost(t.host) && !p.allowsAddr(loopback) {
			return (&AddressError{loopback, "loopback"}).Error() + " (--webhook-allow)"
		}
	}
	return ""
}

// hostName brings a host name to lower case, without the dot at its end; rule is what it breaks. A name whose last part is a
// number is refused: some resolvers read 127.1 or 0x7f000001 as an address.
func hostName(raw string) (name, rule string) {
	name = strings.ToLower(strings.TrimSuffix(raw, "."))
	if name == "" || len(name) > MaxHostBytes {
		return "", "host must have 1 to " + strconv.Itoa(MaxHostBytes) + " bytes"
	}
	labels := strings.Split(name, ".")
	for _, label := range labels {
		if label == "" || len(label) > 63 || label[0] == '-' || label[len(label)-1] == '-' || strings.ContainsFunc(label, notInName) {
			return "", "host must be an address, or a name of letters, digits, '-' and '_' in parts of 1 to 63 bytes"
		}
	}
	last := labels[len(labels)-1]
	if strings.HasPrefix(last, "0x") || !strings.ContainsFunc(last, func(r rune) bool { return r < '0' || r > '9' }) {
		return "", "host ends in a number but is not an IPv4 address in its usual form"
	}
	return name, ""
}

func notInName(r rune) bool {
	return (r < 'a' || r > 'z') && (r < '0' || r > '9') && r != '-' && r != '_'
}

// shown cuts a value for an error.
func shown(raw string) string {
	const most = 128
	if len(raw) > most {
		return strconv.Quote(raw[:most]) + "..."
	}
	return strconv.Quote(raw)
}
