package pipy

import (
	"cmp"
	"math"
	"net/http"
	"net/netip"
	"strconv"
	"strings"
	"time"

	"github.com/outrigger-mesh/outrigger/mesh"
)

func inbound(x *compiler, in *mesh.Inbound) inboundDocument {
	out := inboundDocument{
		header:     header{schema},
		Permissive: in.TLS == mesh.Permissive,
		Ports:      make(map[string]*portDocument, len(in.Ports)),
		Others:     x.access(in.Others),
	}
	for i := range in.Ports {
		out.Ports[strconv.Itoa(int(in.Ports[i].Port))] = x.port(&in.Ports[i])
	}
	return out
}

func (x *compiler) port(p *mesh.InboundPort) *portDocument {
	out := &portDocument{
		Protocol:        protocol(p.Protocol),
		HTTP2:           p.Protocol == mesh.HTTP2 || p.Protocol == mesh.GRPC,
		Access:          x.access(p.Access),
		Ingress:         each(p.Ingress, x.ingress),
		Headers:         p.ComparedHeaders(),
		ConnectionLimit: bucket(p.Limits.Connections),
	}
	if r := p.Limits.Requests; r != nil {
		limit := newRequestLimit(*r)
		out.RequestLimit = &limit
	}
	x.of("rate limit", "port "+strconv.Itoa(int(p.Port)))
	for _, r := range p.Limits.Routes {
		out.RouteLimits = append(out.RouteLimits, routeLimitElement{Path: x.regexMatch(r.Path), Limit: newRequestLimit(r.Limit)})
	}
	return out
}

// protocol returns the scripts' name of a protocol.
func protocol(p mesh.Protocol) string {
	switch {
	case p.IsHTTP():
		return "http"
	case p == mesh.TCPServerFirst:
		return "server-first"
	}
	return "tcp"
}

func (x *compiler) access(a mesh.Access) accessDocument {
	out := accessDocument{Anyone: a.Anyone, Audit: a.Audit}
	for _, rule := range a.Rules {
		x.of(mesh.PartPermission, rule.Origin.Name())
		out.Rules = append(out.Rules, ruleDocument{
			Name: rule.Origin.Name(), Sources: callersOf(rule.Sources), Except: callersOf(rule.Except), Requests: each(rule.Requests, x.request),
		})
	}
	for _, d := range a.Denials {
		x.of(mesh.PartPermission, d.Origin.Name())
		out.Denials = append(out.Denials, denialDocument{
			Name: d.Origin.Name(), Everyone: d.Everyone, Sources: callersOf(d.Sources), Except: callersOf(d.Except), Requests: each(d.Requests, x.denied),
		})
	}
	return out
}

func (x *compiler) ingress(r mesh.Ingress) ingressDocument {
	x.of(mesh.PartIngress, r.Origin.Name())
	return ingressDocument{
		Name: r.Origin.Name(), TLS: r.TLS, SNIHosts: each(r.SNIHosts, strings.ToLower), SkipClientCert: r.SkipClientCert, Ranges: each(r.Ranges, cidr),
		AnyPrincipal: r.AnyPrincipal, Principals: each(r.Principals, spiffeID), Requests: each(r.Requests, x.request),
	}
}

func callersOf(ids []mesh.Identity) callersDocument {
	var out callersDocument
	for _, id := range ids {
		if group, ok := id.GroupPrefix(); ok {
			out.Groups = append(out.Groups, group)
		} else {
			out.IDs = append(out.IDs, spiffeID(id))
		}
	}
	return out
}

// nobody is a SPIFFE ID that no workload has.
const nobody = "spiffe://nobody.invalid"

// spiffeID returns the SPIFFE ID of an identity. An invalid one is replaced and not left
// out: an empty list could mean something else.
func spiffeID(id mesh.Identity) string {
	if id.Validate() != nil {
		return nobody
	}
	return id.String()
}

func cidr(p netip.Prefix) string { return p.Masked().String() }

// bucket returns a token bucket with at least one token and Envoy's shortest interval,
// since users know Envoy's limits.
func bucket(b *mesh.TokenBucket) *bucketDocument {
	if b == nil {
		return nil
	}
	tokens := max(b.Tokens, 1)
	return &bucketDocument{
		Size:     uint32(min(uint64(tokens)+uint64(b.Burst), math.MaxUint32)),
		Tokens:   tokens,
		Interval: max(b.Interval, shortestInterval).Seconds(),
	}
}

const shortestInterval = 50 * time.Millisecond

func newRequestLimit(l mesh.RequestLimit) requestLimit {
	out := requestLimit{bucketDocument: *bucket(&l.TokenBucket), Status: cmp.Or(l.Status, http.StatusTooManyRequests)}
	if out.Status < 400 || http.StatusText(int(out.Status)) == "" {
		out.Status = http.StatusTooManyRequests
	}
	for _, h := range l.AddHeaders {
		if !isToken(h.Name) || strings.ContainsAny(h.Value, "\r\n\x00") {
			continue
		}
		if out.Headers == nil {
			out.Headers = make(map[string]string)
		}
		out.Headers[strings.ToLower(h.Name)] = h.Value
	}
	return out
}

// isToken reports whether name is a valid header name (RFC 9110).
func isToken(name string) bool {
	return name != "" && !strings.ContainsFunc(name, func(r rune) bool {
		return (r < 'a' || r > 'z') && (r < 'A' || r > 'Z') && (r < '0' || r > '9') && !strings.ContainsRune("!#$%&'*+-.^_`|~", r)
	})
}
