package webhook

import (
	"errors"
	"net/netip"
	"net/url"
	"strconv"
	"strings"
	"testing"

	"github.com/carillon-timers/carillon/shard"
)

func TestURLs(t *testing.T) {
	t.Parallel()
	for raw, want := range map[string]string{
		"https://example.com/":                  "https://example.com:443",
		"http://example.com":                    "http://example.com:80",
		"HTTPS://Example.COM/Path?x=1":          "https://example.com:443",
		"https://example.com.:0443/":            "https://example.com:443",
		"https://example.com:8443/a%20b":        "https://example.com:8443",
		"https://a_b.example.com":               "https://a_b.example.com:443",
		"http://8.8.8.8:80/":                    "http://8.8.8.8:80",
		"https://[2606:4700:0:0::1111]/":        "https://[2606:4700::1111]:443",
		"https://hooks/":                        "https://hooks:443",
		"https://example.com/?next=http://[::1": "https://example.com:443",
	} {
		if got, err := (*Policy)(nil).CheckURL(raw); err != nil || got != want {
			t.Errorf("%s: %q, %v, want %q", raw, got, err, want)
		}
	}
	for raw, allow := range map[string]string{
		"http://127.0.0.1:8080/": "127.0.0.0/8", "http://localhost/": "127.0.0.0/8", "http://[::1]/": "::1",
		"http://a.localhost/": "*.localhost", "http://[::ffff:127.0.0.1]/": "127.0.0.1", "http://localhost:1/": "localhost",
	} {
		if _, err := policy(t, allow).CheckURL(raw); err != nil {
			t.Errorf("%s with %s: %v", raw, allow, err)
		}
	}
}

func TestBadURLs(t *testing.T) {
	t.Parallel()
	for raw, rule := range map[string]string{
		"":                                     "scheme",
		"ftp://example.com/":                   "scheme",
		"example.com":                          "scheme",
		"//example.com/":                       "scheme",
		"https:example.com":                    "host",
		"https://":                             "host",
		"https:///path":                        "host",
		"https://:443/":                        "host",
		"https://user:pw@example.com/":         "user",
		"https://example.com@127.0.0.1/":       "user",
		"https://example.com/#part":            "fragment",
		"https://example.com/#":                "fragment",
		"https://example.com:0/":               "port",
		"https://example.com:65536/":           "port",
		"https://example.com:x/":               "URL",
		"https://exam ple.com/":                "ASCII",
		"https://example.com/\r\nX: y":         "ASCII",
		"https://example.com\\@127.0.0.1/":     "ASCII",
		"https://b\u00fccher.example/":         "ASCII",
		"https://exa..mple/":                   "name",
		"https://-a.example/":                  "name",
		"https://127.0.0.1/":                   "loopback",
		"https://localhost:8080/":              "loopback",
		"https://a.localhost/":                 "loopback",
		"https://LOCALHOST./":                  "loopback",
		"http://169.254.169.254/latest":        "link-local",
		"http://[::ffff:127.0.0.1]/":           "IPv4-mapped",
		"http://[::1]:80/":                     "loopback",
		"http://[fe80::1%25eth0]/":             "of one link",
		"http://[127.0.0.1]/":                  "URL",
		"http://2130706433/":                   "number",
		"http://0x7f000001/":                   "number",
		"http://127.1/":                        "number",
		"http://0177.0.0.1/":                   "number",
		"http://127.0.0.1./":                   "number",
		"http://%31%32%37.0.0.1/":              "URL",
		"https://" + strings.Repeat("a.", 140): "bytes",
		"https://example.com/" + strings.Repeat("a", MaxURLBytes): "bytes",
	} {
		got, err := (*Policy)(nil).CheckURL(raw)
		var invalid *shard.InvalidError
		if !errors.As(err, &invalid) || invalid.Field != "webhook" || !strings.Contains(invalid.Limit, rule) {
			t.Errorf("%q: %q, %v, want a rule with %q", raw, got, err, rule)
		}
	}
}

// loose reads an address as the old C functions do: fewer parts, octal and hexadecimal numbers.
func loose(host string) bool {
	parts := strings.Split(strings.TrimSuffix(host, "."), ".")
	if len(parts) > 4 {
		return false
	}
	for _, part := range parts {
		if _, err := strconv.ParseUint(part, 0, 32); err != nil {
			if _, err := strconv.ParseUint(part, 8, 32); err != nil {
				return false
			}
		}
	}
	return true
}

// A URL that passes says the same to everybody: it has one host, which nobody can take for a special address.
func FuzzURL(f *testing.F) {
	for _, s := range []string{
		"https://example.com/", "http://127.1", "http://[::ffff:1.2.3.4]", "https://a@b/", "http://0x7f.1", "https://[2606::1]:44/x?y", "http://%31/",
		"http://8.8.8.8", "https://x.y.:1/#", "http://a\\b", "http://1.1.1.1.:9",
	} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, raw string) {
		origin, err := (*Policy)(nil).CheckURL(raw)
		if err != nil {
			var invalid *shard.InvalidError
			if !errors.As(err, &invalid) {
				t.Fatalf("%q: %T", raw, err)
			}
			return
		}
		if again, err := (*Policy)(nil).CheckURL(origin); err != nil || again != origin {
			t.Fatalf("%q: %q became %q, %v", raw, origin, again, err)
		}
		if len(queueMark+origin) > 255 || strings.ToLower(origin) != origin {
			t.Fatalf("%q: origin %q", raw, origin)
		}
		u, err := url.Parse(raw)
		o, err2 := url.Parse(origin)
		if err != nil || err2 != nil || !strings.EqualFold(u.Scheme, o.Scheme) || o.Port() == "" {
			t.Fatalf("%q: origin %q, %v, %v", raw, origin, err, err2)
		}
		host := o.Hostname()
		addr, err := netip.ParseAddr(host)
		if err != nil {
			if loose(host) || strings.EqualFold(host, "localhost") || !strings.EqualFold(strings.TrimSuffix(u.Hostname(), "."), host) {
				t.Fatalf("%q: host %q", raw, host)
			}
			return
		}
		if !addr.IsGlobalUnicast() || addr.IsPrivate() || addr.IsLoopback() || addr.Is4In6() {
			t.Fatalf("%q: address %s", raw, addr)
		}
	})
}
