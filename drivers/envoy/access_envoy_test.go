package envoy

import (
	"crypto/tls"
	"fmt"
	"sync"
	"testing"

	"github.com/outrigger-mesh/outrigger/mesh"
	"github.com/outrigger-mesh/outrigger/sidecar/drivertest"
)

// TestRealAccessCases has a real Envoy decide about denials, by requests and by connections.
func TestRealAccessCases(t *testing.T) {
	decideCases(t, drivertest.AccessCases(buyer.TrustDomain), nil, mesh.HTTP, mesh.TCPServerFirst)
}

// TestRealTokenCases has a real Envoy decide about tokens.
func TestRealTokenCases(t *testing.T) {
	tokens := drivertest.NewTokens("https://login.example.com")
	issuers := []mesh.TokenIssuer{{Issuer: "https://other.example.com"}, drivertest.NewTokens("https://third.example.com").Issuer(mesh.Features()), tokens.Issuer(mesh.Features())}
	decideCases(t, drivertest.TokenCases(buyer.TrustDomain, tokens), issuers, mesh.HTTP)
}

func decideCases(t *testing.T, cases []drivertest.AccessCase, issuers []mesh.TokenIssuer, protocols ...mesh.Protocol) {
	t.Helper()
	for _, protocol := range protocols {
		t.Run(string(protocol), func(t *testing.T) {
			ports := make([]uint16, len(cases))
			e := runInbound(t, func(p *app) inboundCase {
				in := mesh.Inbound{TLS: mesh.Permissive, Issuers: issuers}
				for i, c := range cases {
					if protocol.IsHTTP() {
						ports[i] = p.serve(t)
					} else {
						ports[i] = drivertest.StartGreeter(t, &p.connections)
					}
					in.Ports = append(in.Ports, mesh.InboundPort{Port: ports[i], Protocol: protocol, Access: c.Access})
				}
				return inboundCase{inbound: in}
			})
			certificates := make(map[mesh.Identity]*tls.Config)
			for _, c := range cases {
				for _, call := range c.Calls {
					if call.Peer != (mesh.Identity{}) && certificates[call.Peer] == nil {
						certificates[call.Peer] = e.as(call.Peer)
					}
				}
			}
			var asking sync.WaitGroup
			defer asking.Wait()
			for i, c := range cases {
				asking.Go(func() {
					asked := make(map[mesh.Identity]bool)
					for _, call := range c.Calls {
						var got bool
						if protocol.IsHTTP() {
							response, _, err := e.ask(ports[i], certificates[call.Peer], call.Target, call.Header...)
							got = err == nil && response.StatusCode == 200
						} else if asked[call.Peer] {
							continue
						} else {
							asked[call.Peer] = true
							text, err := e.hello(ports[i], certificates[call.Peer])
							got = err == nil && text != ""
						}
						if want := c.Wants(call, protocol, drivertest.Forwarding{JoinsLines: true, Issuers: issuers}); got != want {
							t.Errorf("%s: %s: allowed %t, want %t", c.Name, describe(call), got, want)
						}
					}
				})
			}
		})
	}
}

func describe(c drivertest.AccessCall) string {
	return fmt.Sprintf("%s/%s asks for %s with %q", c.Peer.Namespace, c.Peer.ServiceAccount, c.Target, c.Header)
}

// TestDeniedPassthrough has a port whose requests are denied in part. Requests within the
// application's own TLS cannot be seen, so no such connection is passed on.
func TestDeniedPassthrough(t *testing.T) {
	for name, denials := range map[string][]mesh.Denial{
		"open":             nil,
		"of an account":    {{Sources: []mesh.Identity{buyer}, Requests: anyRequest}},
		"of some requests": {{Everyone: true, Requests: []mesh.HTTPMatch{{Path: mesh.StringMatch{Prefix: "/admin"}}}}},
	} {
		m := makeInbound(t, inboundCase{inbound: mesh.Inbound{TLS: mesh.Permissive, Ports: []mesh.InboundPort{
			{Port: 8080, Protocol: mesh.HTTP, Access: mesh.Access{Anyone: true, Denials: denials}},
		}}})
		passes := false
		for _, chain := range m.chains() {
			passes = passes || chain.Name == "inbound/8080/tls"
		}
		if want := name != "of some requests"; passes != want {
			t.Errorf("%s: TLS of the application is passed on: %t", name, passes)
		}
	}
}
