package webhook

import (
	"errors"
	"net/netip"
	"testing"
)

func policy(t testing.TB, allow ...string) *Policy {
	t.Helper()
	p, err := NewPolicy(allow)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

func TestAddresses(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ addr, kind string }{
		{"8.8.8.8", ""}, {"1.1.1.1", ""}, {"9.255.255.255", ""}, {"11.0.0.0", ""}, {"100.63.255.255", ""}, {"100.128.0.0", ""},
		{"172.15.255.255", ""}, {"172.32.0.0", ""}, {"223.255.255.255", ""}, {"2606:4700::1111", ""}, {"2001:200::1", ""},
		{"2a00:1450::5", ""}, {"3ffe::1", ""},
		{"0.0.0.0", "unspecified"}, {"0.1.2.3", "unspecified"}, {"127.0.0.1", "loopback"}, {"127.255.255.254", "loopback"},
		{"10.1.2.3", "private"}, {"172.16.0.1", "private"}, {"172.31.255.255", "private"}, {"192.168.1.1", "private"},
		{"169.254.169.254", "link-local"}, {"100.64.0.1", "carrier-grade NAT"}, {"100.100.100.200", "carrier-grade NAT"},
		{"192.0.0.192", "reserved"}, {"198.19.255.255", "benchmarking"}, {"224.0.0.1", "multicast"}, {"239.1.1.1", "multicast"},
		{"240.0.0.1", "reserved"}, {"255.255.255.255", "reserved"}, {"168.63.129.16", "a cloud's own"}, {"203.0.113.7", "documentation"},
		{"::", "unspecified"}, {"::1", "loopback"}, {"fc00::1", "unique local"}, {"fd00:ec2::254", "unique local"},
		{"fe80::1", "link-local"}, {"fe80::1%eth0", "of one link"}, {"fec0::1", "site-local"}, {"ff02::1", "multicast"},
		{"::ffff:127.0.0.1", "IPv4-mapped IPv6"}, {"::ffff:8.8.8.8", "IPv4-mapped IPv6"}, {"::127.0.0.1", "reserved"},
		{"64:ff9b::7f00:1", "NAT64"}, {"64:ff9b::808:808", "NAT64"}, {"64:ff9b:1::a00:1", "NAT64"}, {"2002:7f00:1::", "6to4"},
		{"::ffff:0:7f00:1", "IPv4-translated IPv6"}, {"2001::1", "Teredo"}, {"2001:db8::1", "documentation"}, {"100::1", "discard"},
		{"5f00::1", "reserved"}, {"4000::1", "reserved"},
	} {
		err := (*Policy)(nil).CheckAddr(netip.MustParseAddr(c.addr))
		var got *AddressError
		switch {
		case c.kind == "" && err != nil:
			t.Errorf("%s: %v, want none", c.addr, err)
		case c.kind != "" && (!errors.As(err, &got) || got.Kind != c.kind):
			t.Errorf("%s: %v, want %s", c.addr, err, c.kind)
		}
	}
}

func TestAllowed(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		allow, addr string
		ok          bool
	}{
		{"127.0.0.0/8", "127.0.0.1", true}, {"127.0.0.0/8", "::1", false}, {"127.0.0.0/8", "::ffff:127.0.0.1", true},
		{"10.0.0.0/24", "10.0.0.255", true}, {"10.0.0.0/24", "10.0.1.0", false}, {"10.0.0.7", "10.0.0.7", true}, {"10.0.0.7", "10.0.0.8", false},
		{"::1", "::1", true}, {"[::1]", "::1", true}, {"fd00::/8", "fd12::1", true}, {"0.0.0.0/0", "169.254.169.254", true},
		{"::/0", "fe80::1", true}, {"::/0", "127.0.0.1", false},
		// A gateway's prefix that is allowed does not open what lies behind it.
		{"64:ff9b::/96", "64:ff9b::808:808", true}, {"64:ff9b::/96", "64:ff9b::7f00:1", false}, {"64:ff9b::/96", "64:ff9b::a9fe:a9fe", false},
		{"2002::/16", "2002:808:808::", true}, {"2002::/16", "2002:a00:1::", false}, {"::/0", "::ffff:127.0.0.1", false},
		{"10.0.0.0/8", "64:ff9b::a00:1", false},
	} {
		err := policy(t, c.allow).CheckAddr(netip.MustParseAddr(c.addr))
		if (err == nil) != c.ok {
			t.Errorf("%s with %s: %v, want ok %v", c.addr, c.allow, err, c.ok)
		}
	}
}

func TestAllowEntries(t *testing.T) {
	t.Parallel()
	for _, bad := range []string{"", "10.0.0.1/8", "10.0.0.0/33", "http://a", "a:80", "*", "*.", "a..b", "fe80::1%eth0", "::ffff:10.0.0.0/104", "-a", "1.2.3"} {
		if _, err := NewPolicy([]string{bad}); err == nil {
			t.Errorf("%q was accepted", bad)
		}
	}
	p := policy(t, "hooks.internal", "*.svc.cluster.local", "Upper.Example.")
	for host, want := range map[string]bool{
		"hooks.internal": true, "x.hooks.internal": false, "a.svc.cluster.local": true, "a.b.svc.cluster.local": true,
		"svc.cluster.local": false, "evilsvc.cluster.local": false, "upper.example": true, "example": false,
	} {
		if got := p.allowsHost(host); got != want {
			t.Errorf("%s: %v, want %v", host, got, want)
		}
	}
}

// An address that passes is, by the standard library's own words, none of the special ones, in whatever form it is written.
func FuzzAddress(f *testing.F) {
	for _, s := range []string{"8.8.8.8", "::ffff:10.0.0.1", "64:ff9b::1", "2002:a00:1::", "fe80::1%a", "ff02::1", "2001:db8::", "0.0.0.0"} {
		b, _ := netip.MustParseAddr(s).MarshalBinary()
		f.Add(b)
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		var a netip.Addr
		if a.UnmarshalBinary(b) != nil || !a.IsValid() {
			return
		}
		if (*Policy)(nil).CheckAddr(a) != nil {
			if a.Zone() == "" && !a.Is4In6() && policy(t, a.String()).CheckAddr(a) != nil {
				if _, form := embedded(a); form == "" {
					t.Fatalf("%s is refused although it is allowed itself", a)
				}
			}
			return
		}
		if a.IsLoopback() || a.IsPrivate() || a.IsMulticast() || a.IsUnspecified() || a.IsLinkLocalUnicast() ||
			a.IsInterfaceLocalMulticast() || !a.IsGlobalUnicast() || a.Is4In6() || a.Zone() != "" {
			t.Fatalf("%s passed", a)
		}
		if b := a.As16(); a.Is6() && b[0]>>5 != 1 {
			t.Fatalf("%s passed", a)
		}
	})
}
