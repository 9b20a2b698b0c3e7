package catalog

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/outrigger-mesh/outrigger/internal/fact"
	"github.com/outrigger-mesh/outrigger/mesh"
)

// TestGatewayCertificates holds which certificate is for which server name, and what is said of those that
// cannot be used.
func TestGatewayCertificates(t *testing.T) {
	certificate := func(name string, hosts ...string) fact.Fact {
		return factOf("Secret", name, &fact.ServerCertificate{Hosts: hosts, Chain: mesh.DigestOf(name)}, nil)
	}
	broken := factOf("Secret", "shop/broken", &fact.ServerCertificate{Flaw: &fact.Flaw{Reason: fact.ReasonInvalidCertificateRef, Message: "Secret shop/broken: it is broken"}}, nil)
	grant := func(kind, namespace string, secrets ...string) fact.Fact {
		return factOf("ReferenceGrant", "bank/grant", &fact.ReferenceGrant{Name: parseName("bank/grant"), From: []fact.Referrer{{Kind: kind, Namespace: namespace}}, Secrets: secrets}, nil)
	}
	listener := func(host string, secrets ...string) fact.GatewayListener {
		l := fact.GatewayListener{Name: "l-" + host, Port: 443, Host: host, Protocol: mesh.HTTP, Terminates: true, Kinds: []fact.RouteKind{fact.HTTPRoute}, All: true}
		for i, name := range secrets {
			l.Certificates = append(l.Certificates, fact.CertificateRef{Field: fmt.Sprintf("%s[%d]", host, i), Secret: parseName(name)})
		}
		return l
	}
	plain := fact.GatewayListener{Name: "plain", Port: 80, Protocol: mesh.HTTP}
	for _, tt := range []struct {
		name      string
		listeners []fact.GatewayListener
		facts     []fact.Fact
		// want are the server names, each with its listener and Secret, and problems the reasons with fields.
		want, problems string
	}{
		{"one", []fact.GatewayListener{listener("", "shop/a"), plain}, list(certificate("shop/a", "a.example.com", "b.example.com")), "* of * shop/a", ""},
		{"by listener", []fact.GatewayListener{listener("*.example.com", "shop/w"), listener("a.example.com", "shop/a")},
			list(certificate("shop/w", "*.example.com", "x.y.example.com", "a.example.com"), certificate("shop/a", "a.example.com")),
			"x.y.example.com of *.example.com shop/w, a.example.com of a.example.com shop/a, *.example.com of *.example.com shop/w", ""},
		{"by their names", []fact.GatewayListener{listener("", "shop/a", "shop/b")}, list(certificate("shop/a", "a.example.com"), certificate("shop/b", "b.example.com", "a.example.com")),
			"a.example.com of * shop/a, b.example.com of * shop/b, * of * shop/a", ""},
		{"the second fits", []fact.GatewayListener{listener("a.example.com", "shop/x", "shop/w")}, list(certificate("shop/x", "other.example.org"), certificate("shop/w", "*.example.com")), "a.example.com of a.example.com shop/w", ""},
		{"missing and broken", []fact.GatewayListener{listener("a.example.com", "shop/none", "shop/broken", "shop/a")}, list(broken, certificate("shop/a", "a.example.com")),
			"a.example.com of a.example.com shop/a", "InvalidCertificateRef a.example.com[0], InvalidCertificateRef a.example.com[1]"},
		{"none that can be used closes the port", []fact.GatewayListener{listener("a.example.com", "shop/broken")}, list(broken), "", "InvalidCertificateRef a.example.com[0]"},
		{"another namespace's", []fact.GatewayListener{listener("", "bank/a")}, list(certificate("bank/a", "a.example.com")), "", "RefNotPermitted [0]"},
		{"another namespace's that does not exist", []fact.GatewayListener{listener("", "bank/a")}, nil, "", "RefNotPermitted [0]"},
		{"permitted", []fact.GatewayListener{listener("", "bank/a")}, list(certificate("bank/a", "a.example.com"), grant("Gateway", "shop", "a")), "* of * bank/a", ""},
		{"all are permitted", []fact.GatewayListener{listener("", "bank/a")}, list(certificate("bank/a", "a.example.com"), grant("Gateway", "shop", fact.AllNames)), "* of * bank/a", ""},
		{"others are permitted", []fact.GatewayListener{listener("", "bank/a")}, list(certificate("bank/a", "a.example.com"), grant("Gateway", "shop", "b")), "", "RefNotPermitted [0]"},
		{"another namespace is permitted", []fact.GatewayListener{listener("", "bank/a")}, list(certificate("bank/a", "a.example.com"), grant("Gateway", "front", "a")), "", "RefNotPermitted [0]"},
		{"routes are permitted", []fact.GatewayListener{listener("", "bank/a")}, list(certificate("bank/a", "a.example.com"), grant("HTTPRoute", "shop", "a")), "", "RefNotPermitted [0]"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			door := pod("shop/door", "door", "10.1.0.40", func(w *fact.Workload) { w.Labels = map[string]string{fact.GatewayLabel: "door"} })
			facts := append(list(namespace("shop"), namespace("bank"), door,
				factOf("GatewayClass", "/k", &fact.GatewayClass{Name: "k", Class: "envoy"}, nil),
				factOf("Gateway", "shop/door", &fact.Gateway{Name: parseName("shop/door"), Class: "k", Listeners: tt.listeners}, nil)), tt.facts...)
			snapshot := BuildFor(facts, Options{Features: features})
			view := viewOf(t, snapshot, "shop/door")
			var got, problems []string
			for _, d := range view.Outbound.Destinations.All() {
				if d.Port == 443 && len(d.Certificates) == 0 {
					t.Error("a port at which TLS ends is open without a certificate")
				}
				for _, c := range d.Certificates {
					got = append(got, fmt.Sprintf("%s of %s %s", c.Host, c.Listener, c.Name))
				}
			}
			if got := strings.Join(got, ", "); got != tt.want {
				t.Errorf("the certificates are %q, want %q", got, tt.want)
			}
			if about, ok := snapshot.Problems.Get(object("v1", "Gateway", "shop", "door").String()); ok {
				for _, p := range about.List {
					problems = append(problems, p.Reason+" "+p.Field)
				}
			}
			slices.Sort(problems)
			if got := strings.Join(problems, ", "); got != tt.problems {
				t.Errorf("the Problems are %q, want %q", got, tt.problems)
			}
		})
	}
}
