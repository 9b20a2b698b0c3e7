package pipy

import (
	"net/netip"
	"strconv"

	"github.com/outrigger-mesh/outrigger/mesh"
)

func destination(d *mesh.Destination) destinationDocument {
	out := destinationDocument{
		header:    header{schema},
		Name:      d.Name,
		Service:   d.Service.String(),
		Addresses: make([]string, len(d.Addresses)),
		Port:      d.Port,
		Protocol:  protocol(d.Protocol),
		HTTP2:     d.Protocol == mesh.HTTP2 || d.Protocol == mesh.GRPC,
		Backends:  weights(d.Backends),
		HashOn:    hashes(d.HashOn),
	}
	for i, address := range d.Addresses {
		out.Addresses[i] = address.String()
	}
	for _, r := range d.Routes {
		out.Routes = append(out.Routes, route(r))
	}
	return out
}

func route(r mesh.Route) routeDocument {
	out := routeDocument{Name: r.Name, Match: request(r.Match), Backends: weights(r.Backends), Timeout: r.Timeout.Seconds()}
	if retry := r.Retry; retry != nil {
		out.Retry = &retryDocument{On: retry.On, Attempts: retry.Attempts, PerTry: retry.PerTry.Seconds(), Backoff: retry.Backoff.Seconds()}
	}
	return out
}

func weights(backends []mesh.WeightedBackend) []weightDocument {
	out := make([]weightDocument, len(backends))
	for i, b := range backends {
		out[i] = weightDocument{Backend: b.Backend, Weight: b.Weight}
	}
	return out
}

func hashes(on []mesh.HashOn) []hashDocument {
	out := make([]hashDocument, len(on))
	for i, h := range on {
		out[i] = hashDocument{Header: h.Header, Cookie: h.Cookie, CookieTTL: h.CookieTTL.Seconds(), SourceIP: h.SourceIP}
	}
	return out
}

func backend(b *mesh.Backend) backendDocument {
	out := backendDocument{
		header:       header{schema},
		Name:         b.Name,
		Service:      b.Service.String(),
		Port:         b.Service.Port,
		Protocol:     protocol(b.Protocol),
		HTTP2:        b.Protocol == mesh.HTTP2 || b.Protocol == mesh.GRPC,
		ExternalName: b.ExternalName,
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

func egress(e *mesh.Egress) egressDocument {
	out := egressDocument{header: header{schema}, AllowAll: e.AllowAll, Ports: make(map[string]*egressPortDocument, len(e.Ports))}
	for _, p := range e.Ports {
		document := &egressPortDocument{Protocol: string(p.Protocol), Ranges: ranges(p.Ranges)}
		for _, h := range p.Hosts {
			host := egressHostDocument{Host: h.Host, Matches: requests(h.Matches), Policy: policy(h.Policy)}
			for _, w := range h.Within {
				host.Within = append(host.Within, egressWithin{Ranges: ranges(w.Ranges), Matches: requests(w.Matches)})
			}
			document.Hosts = append(document.Hosts, host)
		}
		out.Ports[strconv.Itoa(int(p.Port))] = document
	}
	return out
}
