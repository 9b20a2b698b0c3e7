package envoy

import (
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/outrigger-mesh/outrigger/mesh"
	"github.com/outrigger-mesh/outrigger/sidecar/drivertest"
)

// FuzzInbound makes Views with arbitrary texts: nothing may panic or allow unintended
// access. Texts that Kubernetes objects can contain must give valid messages.
func FuzzInbound(f *testing.F) {
	for i, text := range []string{"", "a", "*", "a b", "x\n", "\x00", "%", "*.example.com", "/", "//", "\xff", "#", "&", "zipkin", "otlp", "Permissive"} {
		f.Add(text, uint32(i))
	}
	f.Fuzz(func(t *testing.T, text string, number uint32) {
		c := anyInbound(text, number)
		m := makeInbound(t, c)
		usable := utf8.ValidString(text) && !strings.ContainsAny(text, "\x00\r\n")
		for _, typeURL := range types {
			for name, r := range m.config.table(typeURL).All() {
				if message, err := r.Message(); err == nil && usable {
					validate(t, typeURL+" "+name, message.ProtoReflect())
				}
			}
		}
		if usable {
			m.isClosed()
		}
	})
}

// anyInbound uses the text in every text field.
func anyInbound(text string, number uint32) inboundCase {
	id := mesh.Identity{TrustDomain: text, Namespace: text, ServiceAccount: text}
	requests := []mesh.HTTPMatch{{}, {Methods: []string{text, "GET"}}}
	for _, m := range []mesh.StringMatch{{Exact: text}, {Prefix: text}, {Regex: text}, {Present: true}} {
		requests = append(requests, mesh.HTTPMatch{
			Path: m, Headers: []mesh.KeyMatch{{Name: "x-a", StringMatch: m}}, Query: []mesh.KeyMatch{{Name: text, StringMatch: m}},
		})
	}
	bucket := mesh.TokenBucket{Tokens: number, Burst: number}
	limit := mesh.RequestLimit{TokenBucket: bucket, Status: number, AddHeaders: []mesh.Header{{Name: "x-a", Value: text}}}
	ports := []mesh.InboundPort{{Port: 79, Protocol: mesh.Protocol(text)}, {Port: 80, Protocol: mesh.HTTP}, {Port: 81, Protocol: mesh.TCPServerFirst}}
	for i := range ports {
		ports[i].Access = rules(rule(text, requests, id), rule(text, requests[1:], id))
		ports[i].Ingress = []mesh.Ingress{
			{Origin: drivertest.Origin("IngressBackend", text), TLS: number%2 == 0, SNIHosts: []string{text}, SkipClientCert: number%3 == 0, Principals: []mesh.Identity{id}, Requests: requests},
			{Origin: drivertest.Origin("IngressBackend", text), TLS: number%3 == 0, Ranges: ranges("192.0.2.0/24"), Requests: requests[:1]},
		}
		ports[i].Limits = mesh.RateLimits{Connections: &bucket, Requests: &limit, Routes: []mesh.RouteLimit{{Path: text, Limit: limit}}}
	}
	return inboundCase{
		settings: func(s *mesh.Settings) {
			s.TrustDomain, s.TLS = text, mesh.TLS{Min: text, Max: text}
			s.Tracing = &mesh.Tracing{Protocol: text, Host: "collector.example.com", Port: uint16(number), Path: text, Sampled: number}
			s.Authorization = &mesh.Authorization{Host: "authz.example.com", StatPrefix: text}
		},
		proxy:   func(p *mesh.Proxy) { p.Plaintext, p.Identity = number%5 == 0, id },
		inbound: mesh.Inbound{TLS: mesh.TLSMode(text), Ports: ports, Others: rules(rule(text, requests, id))},
	}
}
