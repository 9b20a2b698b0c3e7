package haproxy

import (
	"crypto/tls"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/outrigger-mesh/outrigger/mesh"
	"github.com/outrigger-mesh/outrigger/sidecar/drivertest"
)

// TestAccessCases has a real HAProxy decide about denials, by requests and by connections.
func TestAccessCases(t *testing.T) {
	decideCases(t, drivertest.AccessCases(store.TrustDomain), nil, nil, mesh.HTTP, mesh.TCP)
}

// TestTokenCases has a real HAProxy decide about tokens.
func TestTokenCases(t *testing.T) {
	tokens := drivertest.NewTokens("https://login.example.com")
	issuers := func(features []mesh.Feature) []mesh.TokenIssuer {
		return []mesh.TokenIssuer{{Issuer: "https://other.example.com"}, tokens.Issuer(features)}
	}
	has := Driver{}.Features()
	if !isAtLeast(t, 3, 0) {
		has = slices.DeleteFunc(has, func(f mesh.Feature) bool { return f == mesh.FeatureTokensPSS })
	}
	decideCases(t, drivertest.TokenCases(store.TrustDomain, tokens), issuers(mesh.Features()), issuers(has), mesh.HTTP)
}

// decideCases gives HAProxy issuers, some of which it uses.
func decideCases(t *testing.T, cases []drivertest.AccessCase, issuers, used []mesh.TokenIssuer, protocols ...mesh.Protocol) {
	t.Helper()
	a := newApp(t)
	f := newFixture(store)
	f.inbound.TLS, f.inbound.Issuers = mesh.Permissive, issuers
	ports := make(map[mesh.Protocol][]uint16)
	for _, c := range cases {
		for _, protocol := range protocols {
			port := a.serve(t)
			ports[protocol] = append(ports[protocol], port)
			f.inbound.Ports = append(f.inbound.Ports, mesh.InboundPort{Port: port, Protocol: protocol, Access: c.Access})
		}
	}
	r, ca := runInbound(t, f)
	certificates := make(map[mesh.Identity]*tls.Config)
	for _, c := range cases {
		for _, call := range c.Calls {
			if call.Peer != (mesh.Identity{}) && certificates[call.Peer] == nil {
				certificates[call.Peer] = ca.as(call.Peer, store)
			}
		}
	}
	var asking sync.WaitGroup
	defer asking.Wait()
	for _, protocol := range protocols {
		for i, c := range cases {
			asking.Go(func() {
				for _, call := range c.Calls {
					response, _, err := ask(client(r.inbound, local(ports[protocol][i]), certificates[call.Peer], false), call.Target, call.Header...)
					if err != nil && protocol.IsHTTP() {
						// A refusal is an answer.
						response, _, err = ask(client(r.inbound, local(ports[protocol][i]), certificates[call.Peer], false), call.Target, call.Header...)
					}
					got := err == nil && response.StatusCode == 200
					if want := c.Wants(call, protocol, drivertest.Forwarding{LeavesPaths: true, Issuers: used}); got != want {
						t.Errorf("%s: %s: %s/%s asks for %s with %q: allowed %t, want %t: %v, %v", protocol, c.Name, call.Peer.Namespace, call.Peer.ServiceAccount, call.Target, call.Header, got, want, response, err)
					}
				}
			})
		}
	}
}

// TestDeniedPassthrough has a port whose requests are denied in part. Requests within the
// application's own TLS cannot be seen, so no such connection is passed on.
func TestDeniedPassthrough(t *testing.T) {
	for name, denials := range map[string][]mesh.Denial{
		"open":             nil,
		"of some requests": {{Everyone: true, Requests: []mesh.HTTPMatch{{Path: mesh.StringMatch{Prefix: "/admin"}}}}},
	} {
		f := newFixture(store)
		f.inbound.TLS = mesh.Permissive
		f.inbound.Ports = []mesh.InboundPort{{Port: 8080, Protocol: mesh.HTTP, Access: mesh.Access{Anyone: true, Denials: denials}}}
		files, err := Driver{}.Translate(f.view())
		if err != nil {
			t.Fatal(err)
		}
		const refuses = "tcp-request content set-var(txn.allow) bool(false) if port-8080 own-tls\n"
		if got, want := strings.Contains(string(files[0].Content), refuses), name != "open"; got != want {
			t.Errorf("%s: TLS of the application is refused: %t", name, got)
		}
	}
}
