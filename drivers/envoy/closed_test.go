package envoy

import (
	"slices"
	"strings"
	"testing"
	"time"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	listenerv3 "github.com/envoyproxy/go-control-plane/envoy/config/listener/v3"
	rbacv3 "github.com/envoyproxy/go-control-plane/envoy/config/rbac/v3"
	routev3 "github.com/envoyproxy/go-control-plane/envoy/config/route/v3"
	httprbacv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/rbac/v3"
	hcmv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/http_connection_manager/v3"
	tlsv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/transport_sockets/tls/v3"
	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"

	"github.com/outrigger-mesh/outrigger/mesh"
)

// made is the decoded inbound configuration of a case.
type made struct {
	t      *testing.T
	config *Config
}

func makeInbound(t *testing.T, c inboundCase) made { return made{t, c.config()} }

func (m made) chains() []*listenerv3.FilterChain {
	m.t.Helper()
	return m.message(listenerType, inboundListener).(*listenerv3.Listener).FilterChains
}

func (m made) chain(name string) *listenerv3.FilterChain {
	m.t.Helper()
	for _, c := range m.chains() {
		if c.Name == name {
			return c
		}
	}
	return nil
}

func (m made) message(typeURL, name string) proto.Message {
	m.t.Helper()
	r, ok := m.config.table(typeURL).Get(name)
	if !ok {
		m.t.Fatalf("there is no %s %q", typeURL, name)
	}
	message, err := r.Message()
	if err != nil {
		m.t.Fatal(err)
	}
	return message
}

// rules returns the RBAC rules of the route configuration.
func (m made) rules(name string) *rbacv3.RBAC {
	m.t.Helper()
	host := m.message(routeType, name).(*routev3.RouteConfiguration).VirtualHosts[0]
	per := unpack[*httprbacv3.RBACPerRoute](m.t, host.TypedPerFilterConfig[rbacFilter])
	return per.GetRbac().GetRules()
}

// sans returns the names that the secret accepts.
func (m made) sans(name string) []string {
	m.t.Helper()
	var out []string
	for _, san := range m.message(secretType, name).(*tlsv3.Secret).GetValidationContext().MatchTypedSubjectAltNames {
		if san.SanType != tlsv3.SubjectAltNameMatcher_URI {
			m.t.Errorf("%s compares %s", name, san.SanType)
		}
		out = append(out, san.Matcher.GetPrefix()+san.Matcher.GetExact())
	}
	return out
}

func unpack[M proto.Message](t *testing.T, packed *anypb.Any) M {
	t.Helper()
	var want M
	message, err := packed.UnmarshalNew()
	if err != nil {
		t.Fatal(err)
	}
	got, ok := message.(M)
	if !ok {
		t.Fatalf("there is a %T, want a %T", message, want)
	}
	return got
}

func downstream(t *testing.T, socket *corev3.TransportSocket) *tlsv3.DownstreamTlsContext {
	t.Helper()
	return unpack[*tlsv3.DownstreamTlsContext](t, socket.GetTypedConfig())
}

// TestInboundIsClosed searches all filter chains of all cases for unintended access.
func TestInboundIsClosed(t *testing.T) {
	for name, c := range inboundCases {
		t.Run(name, func(t *testing.T) {
			m := makeInbound(t, c)
			m.isClosed()
			if c.inbound.TLS == mesh.Permissive || name == "plaintext-class" {
				return
			}
			for _, chain := range m.chains() {
				if chain.TransportSocket == nil && len(chain.FilterChainMatch.GetSourcePrefixRanges()) == 0 && m.manager(chain) == nil && chain.Name != "closed" {
					t.Errorf("%s accepts connections from anybody", chain.Name)
				}
			}
		})
	}
}

// isClosed checks that filter chains authorize requests, or verify the certificates of
// peers.
func (m made) isClosed() {
	m.t.Helper()
	for _, chain := range m.chains() {
		if manager := m.manager(chain); manager != nil {
			m.requestsAreClosed(chain.Name, manager)
		}
		if !slices.ContainsFunc(chain.FilterChainMatch.GetServerNames(), func(name string) bool { return strings.HasPrefix(name, "*.sa.") }) {
			continue
		}
		tls := downstream(m.t, chain.TransportSocket)
		secret := tls.CommonTlsContext.GetValidationContextSdsSecretConfig()
		if !tls.RequireClientCertificate.GetValue() || secret == nil {
			m.t.Errorf("%s accepts peers without a certificate", chain.Name)
		}
		if m.manager(chain) == nil && (secret.GetSdsConfig().GetAds() == nil || len(m.sans(secret.GetName())) == 0) {
			m.t.Errorf("%s accepts every certificate", chain.Name)
		}
	}
}

// manager returns the HTTP connection manager of the filter chain, nil for TCP.
func (m made) manager(chain *listenerv3.FilterChain) *hcmv3.HttpConnectionManager {
	m.t.Helper()
	last := chain.Filters[len(chain.Filters)-1]
	if !strings.HasSuffix(last.Name, "http_connection_manager") {
		return nil
	}
	return unpack[*hcmv3.HttpConnectionManager](m.t, last.GetTypedConfig())
}

func (m made) requestsAreClosed(name string, manager *hcmv3.HttpConnectionManager) {
	m.t.Helper()
	if first := manager.HttpFilters[0]; first.Name != mutationFilter {
		m.t.Errorf("%s: %s sees identity headers of the client", name, first.Name)
	}
	if denials := manager.HttpFilters[2]; denials.Name != denialsFilter || !denials.Disabled {
		m.t.Errorf("%s: %s is where denials are evaluated, if there are any", name, denials.Name)
	}
	base := unpack[*httprbacv3.RBAC](m.t, manager.HttpFilters[1].GetTypedConfig())
	if base.Rules == nil || base.Rules.Action != rbacv3.RBAC_ALLOW || len(base.Rules.Policies) > 0 {
		m.t.Errorf("%s: the default rules are %v", name, base.Rules)
	}
	rules := m.rules(manager.GetRds().GetRouteConfigName())
	if rules == nil || rules.Action != rbacv3.RBAC_ALLOW {
		m.t.Fatalf("%s: the rules %v allow everybody", name, rules)
	}
	for policy, p := range rules.Policies {
		if len(p.Principals) == 0 || len(p.Permissions) == 0 {
			m.t.Errorf("%s: the policy %s is %v; an empty list means everybody or everything", name, policy, p)
		}
	}
}

// TestNobody has rules that allow nothing to anybody.
func TestNobody(t *testing.T) {
	exact := []mesh.HTTPMatch{{Path: mesh.StringMatch{Exact: "/"}}}
	for name, access := range map[string]mesh.Access{
		"no rules":                {},
		"no sources":              rules(rule("a/b", anyRequest)),
		"no requests":             rules(rule("a/b", nil, buyer)),
		"neither":                 rules(rule("a/b", nil)),
		"requests of connections": rules(rule("a/b", exact, buyer)),
	} {
		t.Run(name, func(t *testing.T) {
			m := makeInbound(t, inboundCase{inbound: mesh.Inbound{Ports: []mesh.InboundPort{
				{Port: 80, Protocol: mesh.HTTP, Access: access}, {Port: 81, Protocol: mesh.TCP, Access: access},
			}, Others: access}})
			if name != "requests of connections" {
				if policies := m.rules("inbound/80").Policies; len(policies) > 0 {
					t.Errorf("requests are allowed by %v", policies)
				}
			}
			for _, secret := range []string{"inbound/81", "inbound/others"} {
				if diff := cmp.Diff([]string{"spiffe://nobody.invalid"}, m.sans(secret)); diff != "" {
					t.Errorf("%s (-want +got):\n%s", secret, diff)
				}
			}
		})
	}
}

// TestSameName has two rules with the same name; both must apply.
func TestSameName(t *testing.T) {
	m := makeInbound(t, inboundCase{inbound: mesh.Inbound{Ports: []mesh.InboundPort{{Port: 80, Protocol: mesh.HTTP, Access: rules(
		rule("a/b", anyRequest, buyer), rule("a/b", anyRequest, ops))}}}})
	var got []string
	for _, p := range m.rules("inbound/80").Policies {
		got = append(got, p.Principals[0].GetAndIds().GetIds()[0].GetAuthenticated().GetPrincipalName().GetExact())
	}
	slices.Sort(got)
	if diff := cmp.Diff([]string{buyer.String(), ops.String()}, got); diff != "" {
		t.Errorf("callers (-want +got):\n%s", diff)
	}
}

// TestPlaintext checks which connections without mesh TLS reach which port.
func TestPlaintext(t *testing.T) {
	byRule := rules(rule("a/b", anyRequest, buyer))
	for _, tt := range []struct {
		name     string
		mode     mesh.TLSMode
		class    bool
		protocol mesh.Protocol
		access   mesh.Access
		chains   []string
		open     bool
	}{
		{"strict", mesh.Strict, false, mesh.HTTP, anyone, []string{""}, false},
		{"no mode", "", false, mesh.TCP, anyone, []string{""}, false},
		{"permissive", mesh.Permissive, false, mesh.HTTP, anyone, []string{"", "/plaintext", "/tls"}, true},
		{"permissive with rules", mesh.Permissive, false, mesh.HTTP, byRule, []string{"", "/plaintext"}, false},
		{"permissive TCP", mesh.Permissive, false, mesh.TCP, anyone, []string{"", "/plaintext", "/tls"}, true},
		{"permissive TCP with rules", mesh.Permissive, false, mesh.TCP, byRule, []string{""}, false},
		{"class", mesh.Strict, true, mesh.HTTP, anyone, []string{"/plaintext", "/tls"}, true},
		{"class with rules", mesh.Strict, true, mesh.HTTP, byRule, []string{"/plaintext"}, false},
		{"class TCP with rules", mesh.Strict, true, mesh.TCP, byRule, nil, false},
	} {
		t.Run(tt.name, func(t *testing.T) {
			m := makeInbound(t, inboundCase{
				proxy:   func(p *mesh.Proxy) { p.Plaintext = tt.class },
				inbound: mesh.Inbound{TLS: tt.mode, Ports: []mesh.InboundPort{{Port: 80, Protocol: tt.protocol, Access: tt.access}}},
			})
			var got []string
			for _, chain := range m.chains() {
				if rest, ok := strings.CutPrefix(chain.Name, "inbound/80"); ok {
					got = append(got, rest)
				}
			}
			if diff := cmp.Diff(tt.chains, got); diff != "" {
				t.Errorf("filter chains (-want +got):\n%s", diff)
			}
			if tt.protocol == mesh.HTTP && slices.Contains(tt.chains, "/plaintext") {
				if open := len(m.rules("inbound/80/plaintext").Policies) > 0; open != tt.open {
					t.Errorf("plaintext is allowed: %t, want %t", open, tt.open)
				}
			}
		})
	}
}

// TestHelloTimeout checks how long connections without TLS wait, and that nothing else of the
// listener depends on the rules: Envoy would replace it, and end its connections.
func TestHelloTimeout(t *testing.T) {
	for name, want := range map[string]struct {
		within time.Duration
		skips  bool
	}{
		"strict-tcp": {within: handshakeTimeout}, "permissive": {within: helloTimeout},
		"plaintext-class": {within: helloTimeout, skips: true}, "ingress-plaintext": {within: helloTimeout},
		"strict-http": {within: handshakeTimeout},
	} {
		l := makeInbound(t, inboundCases[name]).message(listenerType, inboundListener).(*listenerv3.Listener)
		if !l.ContinueOnListenerFiltersTimeout || l.ListenerFiltersTimeout.AsDuration() != want.within {
			t.Errorf("%s: after %v connections continue: %t, want after %s", name, l.ListenerFiltersTimeout, l.ContinueOnListenerFiltersTimeout, want.within)
		}
		if r := l.ListenerFilters[1].FilterDisabled.GetDestinationPortRange(); (r != nil) != want.skips || want.skips && (r.Start != 3306 || r.End != 3307) {
			t.Errorf("%s: TLS is not inspected at %v", name, r)
		}
	}
}

// TestSilentPorts checks where the listener does not wait for the client.
func TestSilentPorts(t *testing.T) {
	got := serverFirstPorts([]mesh.InboundPort{
		{Port: 25, Protocol: mesh.TCPServerFirst, Ingress: []mesh.Ingress{{}}},
		{Port: 80, Protocol: mesh.HTTP},
		{Port: 3306, Protocol: mesh.TCPServerFirst, Ingress: []mesh.Ingress{{}, {TLS: true}}},
	})
	if diff := cmp.Diff([]uint16{25}, got); diff != "" {
		t.Errorf("ports (-want +got):\n%s", diff)
	}
}

// TestListenOn checks the listening addresses.
func TestListenOn(t *testing.T) {
	for _, tt := range []struct{ addresses, want []string }{
		{nil, []string{"0.0.0.0"}},
		{[]string{"10.0.0.1"}, []string{"0.0.0.0"}},
		{[]string{"::ffff:10.0.0.1"}, []string{"0.0.0.0"}},
		{[]string{"2001:db8::1"}, []string{"::"}},
		{[]string{"2001:db8::1", "10.0.0.1"}, []string{"0.0.0.0", "::"}},
	} {
		l := new(listenerv3.Listener)
		listenOn(l, addresses(tt.addresses...), 15003)
		got := []string{l.Address.GetSocketAddress().Address}
		for _, more := range l.AdditionalAddresses {
			got = append(got, more.Address.GetSocketAddress().Address)
		}
		if diff := cmp.Diff(tt.want, got); diff != "" {
			t.Errorf("%v (-want +got):\n%s", tt.addresses, diff)
		}
	}
}
