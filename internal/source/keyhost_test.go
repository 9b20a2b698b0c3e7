package source_test

import (
	"strings"
	"testing"

	"github.com/outrigger-mesh/outrigger/apis/config/v1alpha2"
	"github.com/outrigger-mesh/outrigger/internal/source"
)

// TestKeyHosts reads the hosts from which keys may be fetched. What cannot be read allows nothing.
func TestKeyHosts(t *testing.T) {
	config := func(spec v1alpha2.TokenKeysSpec) *source.Config {
		obj := &v1alpha2.MeshConfig{}
		obj.Spec.Traffic.TokenKeys = spec
		return source.NewConfig(obj, options(nil))
	}
	for _, tt := range []struct {
		hosts, inside, url string
		// allowed is "", "outside" or "inside".
		allowed string
		// bad is a field with a Problem.
		bad string
	}{
		{"", "", "https://a.com/", "", ""},
		{"a.com", "", "https://a.com/x", "outside", ""},
		{"a.com", "", "https://A.com:443/x", "outside", ""},
		{"A.com", "", "https://a.com/x", "outside", ""},
		{"a.com", "a.com", "https://a.com/x", "inside", ""},
		{"a.com", "a.com:8443", "https://a.com/x", "outside", ""},
		{"a.com", "", "https://a.com:8443/", "", ""},
		{"a.com", "", "https://b.a.com/", "", ""},
		{"a.com", "", "https://a.com.b.org/", "", ""},
		{"*.a.com", "", "https://b.a.com/", "outside", ""},
		{"*.a.com", "", "https://c.b.a.com/", "outside", ""},
		{"*.a.com", "", "https://a.com/", "", ""},
		{"*.a.com:8443", "", "https://b.a.com:8443/", "outside", ""},
		{"*", "", "https://a.com/", "", "hosts[0]"},
		{"*.com", "", "https://a.com/", "", "hosts[0]"},
		{"a.*.com", "", "https://a.b.com/", "", "hosts[0]"},
		{"https://a.com", "", "https://a.com/", "", "hosts[0]"},
		{"a.com/x", "", "https://a.com/", "", "hosts[0]"},
		{"a.com:0", "", "https://a.com/", "", "hosts[0]"},
		{"a.com:https", "", "https://a.com/", "", "hosts[0]"},
		{"", "*.a.com", "https://b.a.com/", "", "insideHosts[0]"},
		{"", "10.0.0.1", "https://10.0.0.1/", "inside", ""},
		{"", "10.0.0.1", "https://[::ffff:10.0.0.1]/", "inside", ""},
		{"", "[fd00::1]:8443", "https://[fd00::1]:8443/", "inside", ""},
		{"", "fe80::1%eth0", "https://a.com/", "", "insideHosts[0]"},
	} {
		c := config(v1alpha2.TokenKeysSpec{Hosts: strings.Fields(tt.hosts), InsideHosts: strings.Fields(tt.inside)})
		u, err := source.HTTPSAddress(tt.url)
		if err != nil {
			t.Fatal(err)
		}
		allowed, inside := c.KeyHosts().Allows(u)
		got := map[[2]bool]string{{true, false}: "outside", {true, true}: "inside"}[[2]bool{allowed, inside}]
		if got != tt.allowed {
			t.Errorf("%q and inside %q: %s is %q, want %q", tt.hosts, tt.inside, tt.url, got, tt.allowed)
		}
		bad := ""
		for _, p := range c.Problems() {
			bad = strings.TrimPrefix(p.Field, "spec.traffic.tokenKeys.")
		}
		if bad != tt.bad {
			t.Errorf("%q and inside %q: the Problem is of %q, want %q", tt.hosts, tt.inside, bad, tt.bad)
		}
	}
	// A bundle without a certificate trusts nobody.
	c := config(v1alpha2.TokenKeysSpec{CABundle: "none"})
	if problems := c.Problems(); len(problems) != 1 || problems[0].Field != "spec.traffic.tokenKeys.caBundle" || c.KeyHosts().Roots == nil {
		t.Errorf("a bad bundle gives %v and the roots %v", problems, c.KeyHosts().Roots)
	}
}
