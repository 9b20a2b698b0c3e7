package haproxy

import (
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/outrigger-mesh/outrigger/mesh"
)

// FuzzTranslate checks that no text of a user breaks the configuration: a real HAProxy
// accepts every result.
func FuzzTranslate(f *testing.F) {
	for _, text := range []string{
		"a", "a b", `it's "a" $HOME # \ %[src] %`, "'", `'\''`, "a\nbind :1", "{ always_true }", "/a'; http-request allow", "-f /etc/passwd", "--", "é", "\x00", "${HOME}",
		"(a+)+b", "[[.a.]]", `\Q*\E`, "a{1000}", "(?i)k", `\pL`, "a|b)", strings.Repeat("ab", 3000), "*.example.com", "x)y", "a,b", "%", "127.0.0.1", "localhost",
	} {
		f.Add(text)
	}
	f.Fuzz(func(t *testing.T, text string) {
		if err := check(t, hostile(text).view()); err != nil {
			t.Fatal(err)
		}
	})
}

// hostile returns a View with the text in every place that users control.
func hostile(text string) *fixture {
	every := func() mesh.HTTPMatch {
		keys := []mesh.KeyMatch{
			{Name: text, StringMatch: mesh.StringMatch{Exact: "a"}}, {Name: "a", StringMatch: mesh.StringMatch{Exact: text}},
			{Name: "b", StringMatch: mesh.StringMatch{Prefix: text}}, {Name: "c", StringMatch: mesh.StringMatch{Regex: text}}, {Name: text, StringMatch: mesh.StringMatch{Present: true}},
		}
		return mesh.HTTPMatch{Path: mesh.StringMatch{Regex: text}, Methods: []string{text}, Headers: keys, Query: keys}
	}
	f := outboundFixture()
	f.inbound = mesh.Inbound{TLS: mesh.Permissive, Others: anyone, Ports: []mesh.InboundPort{{
		Port: 80, Protocol: mesh.HTTP, Access: access(permission(text, []mesh.HTTPMatch{every(), {Path: mesh.StringMatch{Exact: text}}, {Path: mesh.StringMatch{Prefix: text}}, {Headers: every().Headers[1:2]}, {Query: every().Query[1:4]}},
			identity("default", text), identity(text, "a"))),
		Ingress: []mesh.Ingress{
			{Name: text, TLS: true, SNIHosts: []string{text, "*." + text}, Principals: []mesh.Identity{identity("default", text)}, Requests: []mesh.HTTPMatch{every()}},
			{Name: text, Ranges: append(ranges("10.0.0.0/8"), netip.Prefix{}), Requests: []mesh.HTTPMatch{every()}},
		},
		Limits: mesh.RateLimits{
			Connections: &mesh.TokenBucket{Interval: -time.Second},
			Requests:    &mesh.RequestLimit{Status: 7, AddHeaders: []mesh.Header{{Name: text, Value: "a"}, {Name: "a", Value: text}}},
			Routes:      []mesh.RouteLimit{{Path: text, Limit: mesh.RequestLimit{Status: 999, TokenBucket: mesh.TokenBucket{Tokens: 1 << 31, Burst: 1 << 31, Interval: 1 << 62}}}},
		},
	}}}
	d := f.destinations[0]
	d.Routes = append([]mesh.Route{{Name: text, Match: every(), Backends: []mesh.WeightedBackend{{Backend: text, Weight: 1 << 31}, {Backend: f.backends[0].Name, Weight: 1<<32 - 1}, {Backend: f.backends[1].Name, Weight: 1}},
		Retry: &mesh.Retry{On: []string{text}, Attempts: 1<<32 - 1}, Timeout: 1 << 62}}, d.Routes...)
	f.backends[0].Endpoints = append(f.backends[0].Endpoints, mesh.Endpoint{ServerName: text, Workload: text, Addresses: d.Addresses, Port: 1}, mesh.Endpoint{})
	external := backend(servicePort("hostile", 80), mesh.HTTP, store)
	external.ExternalName = text
	f.service(servicePort("hostile", 80), mesh.HTTP, "10.96.0.30", external)
	f.egress.Ports[0].Hosts = append(f.egress.Ports[0].Hosts, mesh.EgressHost{Host: text, Matches: []mesh.HTTPMatch{every()}}, mesh.EgressHost{Host: "*." + text, Matches: anything})
	f.egress.Ports[1].Hosts = append(f.egress.Ports[1].Hosts, mesh.EgressHost{Host: text, Matches: anything}, mesh.EgressHost{Host: "*." + text, Matches: anything})
	return f
}
