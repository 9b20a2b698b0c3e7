package envoy

import (
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/outrigger-mesh/outrigger/mesh"
	"github.com/outrigger-mesh/outrigger/sidecar/drivertest"
)

// TestIngressLets checks which rules are satisfiable and which require an identity.
func TestIngressLets(t *testing.T) {
	office, principals := ranges("192.0.2.0/24"), []mesh.Identity{ops}
	for _, tt := range []struct {
		name         string
		rule         mesh.Ingress
		lets, showID bool
	}{
		{"nothing", mesh.Ingress{}, false, false},
		{"nothing over TLS", mesh.Ingress{TLS: true}, false, true},
		{"nothing, certificate skipped", mesh.Ingress{TLS: true, SkipClientCert: true}, false, false},
		{"addresses", mesh.Ingress{Ranges: office}, true, false},
		{"addresses over TLS", mesh.Ingress{Ranges: office, TLS: true}, true, true},
		{"addresses, certificate skipped", mesh.Ingress{Ranges: office, TLS: true, SkipClientCert: true}, true, false},
		{"principals", mesh.Ingress{Principals: principals, TLS: true}, true, true},
		{"any principal", mesh.Ingress{AnyPrincipal: true, TLS: true}, true, true},
		{"principals in plaintext", mesh.Ingress{Ranges: office, Principals: principals}, false, true},
		{"principals, certificate skipped", mesh.Ingress{Principals: principals, TLS: true, SkipClientCert: true}, true, true},
	} {
		t.Run(tt.name, func(t *testing.T) {
			tt.rule.Requests = anyRequest
			if got := isSatisfiable(tt.rule); got != tt.lets {
				t.Errorf("isSatisfiable is %t, want %t", got, tt.lets)
			}
			if got := requiresIdentity(tt.rule); got != tt.showID {
				t.Errorf("requiresIdentity is %t, want %t", got, tt.showID)
			}
			allowed := policies{}
			allowed.addIngress(tt.rule, "cluster.local")
			if (len(allowed) > 0) != tt.lets {
				t.Errorf("the policies are %v", allowed)
			}
			tt.rule.Requests = nil
			if isSatisfiable(tt.rule) {
				t.Error("a rule without requests is satisfiable")
			}
		})
	}
}

// TestIngressByHost checks which rules apply to which server names.
func TestIngressByHost(t *testing.T) {
	tls := func(name string, hosts ...string) mesh.Ingress {
		return mesh.Ingress{Origin: drivertest.Origin("IngressBackend", name), TLS: true, SNIHosts: hosts, AnyPrincipal: true, Requests: anyRequest}
	}
	plain := tls("plain")
	plain.TLS = false
	got := map[string][]string{}
	for _, group := range byHost([]mesh.Ingress{
		plain, tls("any"), tls("wild", "*.example.com"), tls("deep", "*.b.example.com"), tls("exact", "A.b.example.com", "other.org"),
		// Envoy cannot match any of these names.
		tls("peers", "*.sa.cluster.local", "x.y.sa.cluster.local", "*", "*x.example.com", ""),
	}, "cluster.local") {
		var names []string
		for _, r := range group.rules {
			names = append(names, r.Origin.Name())
		}
		got[group.name("inbound/80")] = names
	}
	want := map[string][]string{
		"inbound/80/ingress":                 {"any"},
		"inbound/80/ingress/*.example.com":   {"any", "wild"},
		"inbound/80/ingress/*.b.example.com": {"any", "wild", "deep"},
		"inbound/80/ingress/a.b.example.com": {"any", "wild", "deep", "exact"},
		"inbound/80/ingress/other.org":       {"any", "exact"},
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("rules by server name (-want +got):\n%s", diff)
	}
}

// TestIngressByRange checks which rules apply to which source addresses.
func TestIngressByRange(t *testing.T) {
	got := map[string][]string{}
	for _, group := range byRange([]mesh.Ingress{
		{Origin: drivertest.Origin("IngressBackend", "anywhere")},
		{Origin: drivertest.Origin("IngressBackend", "wide"), Ranges: ranges("10.0.0.0/8", "2001:db8::/32")},
		{Origin: drivertest.Origin("IngressBackend", "narrow"), Ranges: ranges("10.1.2.3/16")},
		{Origin: drivertest.Origin("IngressBackend", "again"), Ranges: ranges("10.1.0.0/16", "192.0.2.0/24")},
	}) {
		name := "any"
		if group.source != nil {
			name = group.source.String()
		}
		for _, r := range group.rules {
			got[name] = append(got[name], r.Origin.Name())
		}
	}
	want := map[string][]string{
		"any":           {"anywhere"},
		"10.0.0.0/8":    {"anywhere", "wide"},
		"10.1.0.0/16":   {"anywhere", "wide", "narrow", "again"},
		"192.0.2.0/24":  {"anywhere", "again"},
		"2001:db8::/32": {"anywhere", "wide"},
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("rules by range (-want +got):\n%s", diff)
	}
}

// TestIngressTCP checks whom a TCP filter chain verifies.
func TestIngressTCP(t *testing.T) {
	m := makeInbound(t, inboundCases["ingress-tls"])
	if diff := cmp.Diff([]string{ops.String()}, m.sans("inbound/9443/ingress")); diff != "" {
		t.Errorf("from anywhere (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff([]string{buyer.String(), ops.String()}, m.sans("inbound/9443/ingress/192.0.2.0/24")); diff != "" {
		t.Errorf("from the office (-want +got):\n%s", diff)
	}
	desk := downstream(t, m.chain("inbound/9443/ingress/192.0.2.7/32").TransportSocket)
	if desk.RequireClientCertificate.GetValue() || desk.CommonTlsContext.ValidationContextType != nil {
		t.Errorf("from the desk a certificate is required: %v", desk)
	}
	plain := makeInbound(t, inboundCases["ingress-plaintext"]).chain("inbound/5432/plaintext").FilterChainMatch.SourcePrefixRanges
	if len(plain) != 1 || plain[0].AddressPrefix != "192.0.2.0" {
		t.Errorf("plaintext is allowed from %v; a rule for some requests must not allow connections", plain)
	}
}
