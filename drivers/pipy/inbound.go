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

func inbound(in *mesh.Inbound) inboundDocument {
	out := inboundDocument{
		header:     header{schema},
		Permissive: in.TLS == mesh.Permissive,
		Ports:      make(map[string]*portDocument, len(in.Ports)),
		Others:     access(in.Others),
	}
	for i := range in.Ports {
		out.Ports[strconv.Itoa(int(in.Ports[i].Port))] = port(&in.Ports[i])
	}
	return out
}

func port(p *mesh.InboundPort) *portDocument {
	out := &portDocument{
		Protocol:        protocol(p.Protocol),
		HTTP2:           p.Protocol == mesh.HTTP2 || p.Protocol == mesh.GRPC,
		Access:          access(p.Access),
		Headers:         p.ComparedHeaders(),
		ConnectionLimit: bucket(p.Limits.Connections),
	}
	for _, r := range p.Ingress {
		out.Ingress = append(out.Ingress, ingress(r))
	}
	if r := p.Limits.Requests; r != nil {
		limit := limitOf(*r)
		out.RequestLimit = &limit
	}
	for _, r := range p.Limits.Routes {
		out.RouteLimits = append(out.RouteLimits, routeLimitElement{Path: regexMatch(r.Path), Limit: limitOf(r.Limit)})
	}
	return out
}

// protocol returns the scripts' word for a protocol.
func protocol(p mesh.Protocol) string {
	switch {
	case p.IsHTTP():
		return "http"
	case p == mesh.TCPServerFirst:
		return "server-first"
	}
	return "tcp"
}

func access(a mesh.Access) accessDocument {
	out := accessDocument{Anyone: a.Anyone}
	for _, rule := range a.Rules {
		out.Rules = append(out.Rules, ruleDocument{Name: rule.Name, Sources: identities(rule.Sources), Requests: requests(rule.Requests)})
	}
	return out
}

func ingress(r mesh.Ingress) ingressDocument {
	out := ingressDocument{
		Name: r.Name, TLS: r.TLS, SkipClientCert: r.SkipClientCert, Ranges: ranges(r.Ranges),
		AnyPrincipal: r.AnyPrincipal, Principals: identities(r.Principals), Requests: requests(r.Requests),
	}
	for _, host := range r.SNIHosts {
		out.SNIHosts = append(out.SNIHosts, strings.ToLower(host))
	}
	return out
}

// nobody is the name of no identity.
const nobody = "spiffe://nobody.invalid"

// identities returns the SPIFFE IDs. What is none is replaced and not left out: a list
// that became empty could mean something else.
func identities(ids []mesh.Identity) []string {
	out := make([]string, len(ids))
	for i, id := range ids {
		out[i] = nobody
		if id.Validate() == nil {
			out[i] = id.String()
		}
	}
	return out
}

func ranges(prefixes []netip.Prefix) []string {
	out := make([]string, len(prefixes))
	for i, p := range prefixes {
		out[i] = p.Masked().String()
	}
	return out
}

// bucket returns a bucket of at least one token, as Envoy has, whose limits are what
// users know.
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

func limitOf(l mesh.RequestLimit) requestLimit {
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

// isToken reports whether a header can have the name (RFC 9110).
func isToken(name string) bool {
	return name != "" && !strings.ContainsFunc(name, func(r rune) bool {
		return (r < 'a' || r > 'z') && (r < 'A' || r > 'Z') && (r < '0' || r > '9') && !strings.ContainsRune("!#$%&'*+-.^_`|~", r)
	})
}
