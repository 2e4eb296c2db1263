package webhook

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
)

// Policy says where webhooks may go: to public addresses, and to what the configuration allows beyond that. A nil Policy
// allows public addresses alone. It does not change, and may be used by many goroutines.
type Policy struct {
	prefixes []netip.Prefix
	hosts    []string // whole names
	suffixes []string // ".example.com" of "*.example.com"
}

// NewPolicy reads what is allowed beyond public addresses. An entry is a CIDR ("10.0.0.0/8", "fd00::/8"), an address, a host
// name ("hooks.internal"), or all names below one ("*.svc.cluster.local"). What a name that is allowed resolves to is not
// checked. The error is a *ConfigError.
func NewPolicy(allow []string) (*Policy, error) {
	p := &Policy{}
	for _, entry := range allow {
		if err := p.add(strings.TrimSpace(entry)); err != nil {
			return nil, &ConfigError{"Allow", fmt.Sprintf("%q", entry), err.Error()}
		}
	}
	return p, nil
}

const allowForms = "must be a CIDR, an address, a host name, or * and the end of one (*.example.com)"

func (p *Policy) add(entry string) error {
	if prefix, err := netip.ParsePrefix(entry); err == nil {
		if prefix.Addr().Is4In6() {
			return fmt.Errorf("write %s as an IPv4 network", entry)
		}
		if prefix != prefix.Masked() {
			return fmt.Errorf("it has bits behind its prefix: write %s", prefix.Masked())
		}
		p.prefixes = append(p.prefixes, prefix)
		return nil
	}
	if addr, err := netip.ParseAddr(strings.Trim(entry, "[]")); err == nil {
		if addr.Zone() != "" {
			return errors.New("an address with a zone cannot be allowed")
		}
		addr = addr.Unmap()
		p.prefixes = append(p.prefixes, netip.PrefixFrom(addr, addr.BitLen()))
		return nil
	}
	if strings.ContainsAny(entry, "/:") {
		return errors.New(allowForms)
	}
	name, below := strings.CutPrefix(entry, "*.")
	host, rule := hostName(name)
	switch {
	case rule != "":
		return fmt.Errorf("%s; it %s", rule, allowForms)
	case below:
		p.suffixes = append(p.suffixes, "."+host)
	default:
		p.hosts = append(p.hosts, host)
	}
	return nil
}

// allowsHost says whether the configuration allows a host by its name, which is in lower case.
func (p *Policy) allowsHost(host string) bool {
	return p != nil && (slices.Contains(p.hosts, host) ||
		slices.ContainsFunc(p.suffixes, func(suffix string) bool { return strings.HasSuffix(host, suffix) }))
}

func (p *Policy) allowsAddr(a netip.Addr) bool {
	return p != nil && slices.ContainsFunc(p.prefixes, func(prefix netip.Prefix) bool { return prefix.Contains(a) })
}

// AddressError says that an address may not be posted to, and what it is.
type AddressError struct {
	Addr netip.Addr
	// Kind is what the address is: "loopback", "private", ...
	Kind string
}

func (e *AddressError) Error() string {
	return fmt.Sprintf("%s is not a public address (%s) and not allowed", e.Addr, e.Kind)
}

// CheckAddr says whether an address may be posted to; the error is an *AddressError. An IPv6 address with an IPv4 one in it
// (IPv4-mapped, NAT64, 6to4) is not public in itself; where it is allowed, the one inside is judged as well.
func (p *Policy) CheckAddr(a netip.Addr) error {
	if a.Zone() != "" {
		return &AddressError{a, "of one link"}
	}
	inner, form := embedded(a)
	switch {
	case form == mapped && p.allowsAddr(inner):
		return nil // the same packets as to the one inside
	case form != "" && form != mapped && p.allowsAddr(a):
		if err := p.CheckAddr(inner); err != nil {
			return &AddressError{a, form + " of " + inner.String()}
		}
		return nil
	case form != "":
		return &AddressError{a, form}
	case p.allowsAddr(a):
		return nil
	}
	if kind := special(a); kind != "" {
		return &AddressError{a, kind}
	}
	return nil
}

const mapped = "IPv4-mapped IPv6"

// embedded is the IPv4 address inside an IPv6 one, and by which form it is there; empty if there is none.
func embedded(a netip.Addr) (inner netip.Addr, form string) {
	if a.Is4() {
		return a, ""
	}
	b := a.As16()
	last := netip.AddrFrom4([4]byte(b[12:]))
	switch {
	case a.Is4In6():
		return last, mapped
	case nat64.Contains(a):
		return last, "NAT64"
	case localNAT64.Contains(a):
		return last, "NAT64"
	case sixToFour.Contains(a):
		return netip.AddrFrom4([4]byte(b[2:6])), "6to4"
	case binary.BigEndian.Uint64(b[:8]) == 0 && binary.BigEndian.Uint32(b[8:]) == 0xffff0000:
		return last, "IPv4-translated IPv6"
	}
	return netip.Addr{}, ""
}

var (
	nat64      = netip.MustParsePrefix("64:ff9b::/96")
	localNAT64 = netip.MustParsePrefix("64:ff9b:1::/48")
	sixToFour  = netip.MustParsePrefix("2002::/16")
	unicast6   = netip.MustParsePrefix("2000::/3")
)

// block is a part of the address space that is not public.
type block struct {
	prefix netip.Prefix
	kind   string
}

// blocks4 is after the IANA registry of special-purpose IPv4 addresses, and one address at which a cloud answers its guests.
var blocks4 = blocks(
	"0.0.0.0/8", "unspecified", "10.0.0.0/8", "private", "100.64.0.0/10", "carrier-grade NAT", "127.0.0.0/8", "loopback",
	"169.254.0.0/16", "link-local", "172.16.0.0/12", "private", "192.0.0.0/24", "reserved", "192.0.2.0/24", "documentation",
	"192.88.99.0/24", "reserved", "192.168.0.0/16", "private", "198.18.0.0/15", "benchmarking", "198.51.100.0/24", "documentation",
	"203.0.113.0/24", "documentation", "224.0.0.0/4", "multicast", "240.0.0.0/4", "reserved", "168.63.129.16/32", "a cloud's own",
)

// blocks6 names what is not public of IPv6; the rest outside of 2000::/3 is reserved.
var blocks6 = blocks(
	"::/128", "unspecified", "::1/128", "loopback", "fc00::/7", "unique local", "fe80::/10", "link-local", "fec0::/10", "site-local",
	"ff00::/8", "multicast", "100::/64", "discard", "2001::/32", "Teredo", "2001::/23", "reserved", "2001:db8::/32", "documentation",
	"3fff::/20", "documentation",
)

func blocks(pairs ...string) []block {
	var all []block
	for i := 0; i < len(pairs); i += 2 {
		all = append(all, block{netip.MustParsePrefix(pairs[i]), pairs[i+1]})
	}
	return all
}

// special says what an address is that is not public; empty if it is.
func special(a netip.Addr) string {
	list := blocks6
	if a.Is4() {
		list = blocks4
	}
	for _, b := range list {
		if b.prefix.Contains(a) {
			return b.kind
		}
	}
	if a.Is6() && !unicast6.Contains(a) || !a.IsValid() {
		return "reserved"
	}
	return ""
}
