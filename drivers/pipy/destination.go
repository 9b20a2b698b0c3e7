package pipy

import (
	"cmp"
	"fmt"
	"net/netip"
	"strconv"
	"strings"

	"github.com/outrigger-mesh/outrigger/mesh"
)

func destination(x *compiler, d *mesh.Destination) destinationDocument {
	x.of(mesh.PartDestination, d.Name)
	return destinationDocument{
		header:    header{schema},
		Name:      d.Name,
		Service:   d.Service.String(),
		Addresses: each(d.Addresses, netip.Addr.String),
		Port:      d.Port,
		Protocol:  protocol(d.Protocol),
		HTTP2:     d.Protocol == mesh.HTTP2 || d.Protocol == mesh.GRPC,
		Listens:   d.Listens,
		Hosts:     d.Hosts,
		Certificates: each(d.Certificates, func(c mesh.ServerCertificate) certificateDocument {
			return certificateDocument{Host: c.Host, Listener: c.Listener, Name: c.Name.String()}
		}),
		Listeners: d.Listeners(),
		Routes:    each(d.Routes, func(r mesh.Route) routeDocument { return route(x, r, d.Port) }),
		Backends:  d.Backends,
		Servers: each(d.Servers, func(s mesh.ServerRoute) serverDocument {
			return serverDocument{Host: s.Host, Backends: s.Backends}
		}),
		HashOn: each(d.HashOn, hash),
	}
}

// route returns the route of a destination with the port.
func route(x *compiler, r mesh.Route, port uint16) routeDocument {
	out := routeDocument{Name: r.Name(), Host: r.Host, Match: x.request(r.Match), Backends: r.Backends, Mirrors: r.Mirrors, Timeout: r.Timeout.Seconds()}
	if retry := r.Retry; retry != nil {
		out.Retry = &retryDocument{On: retry.On, Codes: retry.Codes, Attempts: retry.Attempts, PerTry: retry.PerTry.Seconds(), Backoff: retry.Backoff.Seconds()}
	}
	if r.Rewrite != nil {
		out.Rewrite = &rewriteDocument{Host: r.Rewrite.Host, Path: pathChange(r.Rewrite.Path)}
	}
	if to := r.Redirect; to != nil {
		out.Redirect = &redirectDocument{
			Scheme: cmp.Or(to.Scheme, "http"), Host: to.Host, Port: to.PortFor(port), Path: pathChange(to.Path), Status: to.Status, Response: to.Response,
		}
	}
	if s := r.Session; s != nil {
		out.Session = &sessionDocument{Cookie: s.Cookie, Header: s.Header, Lifetime: s.Seconds(), Shares: map[string]string{}}
		if s.Cookie != "" {
			out.Session.Attributes = s.Attributes()
		}
		for _, b := range r.Backends {
			if b.Backend != "" {
				out.Session.Shares[s.Share(b.Backend)] = b.Backend
			}
		}
	}
	if c := r.CORS; c != nil {
		out.CORS = &corsDocument{
			Origin:  x.keyMatch(mesh.KeyMatch{Name: "origin", StringMatch: c.Origin}),
			Methods: c.Methods, Headers: c.Headers, Expose: c.Expose, Credentials: c.Credentials, MaxAge: c.MaxAge,
		}
	}
	return out
}

func pathChange(c mesh.PathChange) *pathDocument {
	if c == (mesh.PathChange{}) {
		return nil
	}
	return &pathDocument{Full: c.Full, Prefix: strings.TrimSuffix(c.Prefix, "/")}
}

func hash(on mesh.HashOn) hashDocument {
	return hashDocument{Header: on.Header, Cookie: on.Cookie, CookieTTL: on.CookieTTL.Seconds(), SourceIP: on.SourceIP}
}

func backend(b *mesh.Backend) backendDocument {
	out := backendDocument{
		header:       header{schema},
		Name:         b.Name,
		Service:      b.Service.String(),
		Port:         b.Service.Port,
		Protocol:     protocol(b.Protocol),
		HTTP1:        b.Protocol == mesh.HTTP1,
		HTTP2:        b.Protocol == mesh.HTTP2 || b.Protocol == mesh.GRPC,
		ExternalName: b.ExternalName,
		HealthChecks: b.HealthChecks,
		Policy:       policy(b.Policy),
	}
	for _, e := range b.Endpoints {
		if len(e.Addresses) == 0 {
			continue
		}
		out.Endpoints = append(out.Endpoints, endpointDocument{
			Address:    netip.AddrPortFrom(e.Addresses[0], e.Port).String(),
			ServerName: e.ServerName, Workload: e.Workload, Zone: e.Zone, Draining: e.Draining,
		})
	}
	return out
}

func policy(p mesh.UpstreamPolicy) policyDocument {
	out := policyDocument{
		MaxConnections:        p.MaxConnections,
		MaxRequests:           p.MaxRequests,
		MaxPendingRequests:    p.MaxPendingRequests,
		MaxRetries:            p.MaxRetries,
		RequestsPerConnection: p.RequestsPerConnection,
		ConnectTimeout:        p.ConnectTimeout.Seconds(),
		RequestTimeout:        p.RequestTimeout.Seconds(),
		IdleTimeout:           p.IdleTimeout.Seconds(),
		LoadBalancing:         string(p.LoadBalancing.Policy),
		PreferZone:            p.LoadBalancing.PreferZone,
	}
	if e := p.Ejection; e != nil {
		out.Ejection = &ejectionDocument{
			ConsecutiveErrors: e.ConsecutiveErrors, Interval: e.Interval.Seconds(), BaseTime: e.BaseTime.Seconds(), MaxPercent: e.MaxPercent,
		}
	}
	return out
}

func egress(x *compiler, e *mesh.Egress, unknown []netip.Prefix) egressDocument {
	out := egressDocument{header: header{schema}, AllowAll: e.AllowAll, Unknown: each(unknown, cidr), Ports: make(map[string]*egressPortDocument, len(e.Ports))}
	for _, p := range e.Ports {
		host := func(h mesh.EgressHost) egressHostDocument {
			x.of(mesh.PartEgress, fmt.Sprintf("%s:%d", h.Host, p.Port))
			return x.egressHost(h)
		}
		out.Ports[strconv.Itoa(int(p.Port))] = &egressPortDocument{Protocol: string(p.Protocol), Hosts: each(p.Hosts, host), Ranges: each(p.Ranges, cidr)}
	}
	return out
}

func (x *compiler) egressHost(h mesh.EgressHost) egressHostDocument {
	out := egressHostDocument{Host: h.Host, Matches: each(h.Matches, x.request), Policy: policy(h.Policy)}
	for _, w := range h.Within {
		out.Within = append(out.Within, egressWithin{Ranges: each(w.Ranges, cidr), Matches: each(w.Matches, x.request)})
	}
	return out
}
