package explain

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/outrigger-mesh/outrigger/mesh"
	"github.com/outrigger-mesh/outrigger/sidecar/telemetry"
)

// call follows the request from the caller's sidecar, which has the Destination.
func (x *inquiry) call(c caller, d *mesh.Destination) {
	if d.Listens {
		x.say("destination", fmt.Sprintf("port %d of Gateway %s, with the protocol %s", d.Port, d.Service.Name, d.Protocol))
	} else {
		x.say("destination", fmt.Sprintf("the sidecar has %s: %s at %s, port %d", d.Name, d.Protocol, list(texts(d.Addresses), 2), d.Port))
	}
	x.involve(mesh.ObjectsOf(d.Origins)...)
	x.namespaces = append(x.namespaces, d.Service.Namespace)
	defer func(asked mesh.Request) { x.request = asked }(x.request)
	if normal, ok := d.Normalize(x.asked()); !ok {
		x.refuse(Unreachable, telemetry.ReasonNoRoute, "route", "no route matches a path that proxies read in different ways: the sidecar answers 404 or 400")
		return
	} else if normal != nil {
		x.normalized(normal)
	}
	route, ok := d.RouteOf(x.asked())
	if len(d.Servers) > 0 {
		server, found := d.ServerOf(x.request.Host)
		if !found {
			x.end(Unreachable, "route", fmt.Sprintf("no route is for TLS connections with the server name %s: the sidecar closes them", x.request.Host))
			return
		}
		x.say("route", fmt.Sprintf("the route of %s is for TLS connections with the server name %s; all others are closed", server.Origin.Name(), server.Host))
		route = mesh.Route{Backends: server.Backends}
		x.involve(server.Origin.Object)
	}
	if !ok {
		if _, ok := d.HostOf(x.asked()); !ok {
			x.refuse(Unreachable, telemetry.ReasonNoRoute, "route", fmt.Sprintf("no listener or route is for the host %q: the gateway answers 404; name a host with --header host=HOST", x.request.Host))
			return
		}
		x.refuse(Unreachable, telemetry.ReasonNoRoute, "route", "no route matches the request: the sidecar answers 404", x.passedOver(d, route)...)
		return
	}
	x.involve(route.Origin.Object)
	if route.Retry != nil {
		x.involve(route.Retry.Origin.Object)
	}
	backends := weighted(route.Backends)
	if route.Session != nil {
		backends = route.Backends
	}
	switch {
	case route.Redirect != nil:
		x.describeCORS(route.CORS)
		to := route.Redirect.Location(x.request.Host, x.request.Path, route.Match.Path.Prefix, d.Port)
		x.end(Allowed, "route", fmt.Sprintf("the route of %s matches: %s: the sidecar answers %d with the location %s", route.Name(), describeMatch(route.Match), route.Redirect.Status, to), x.passedOver(d, route)...)
		return
	case len(backends) == 0:
		x.refuse(Unreachable, telemetry.ReasonNoEndpoint, "route", "the route"+of(route.Name())+" has no backends: the sidecar answers 503", x.passedOver(d, route)...)
		return
	case route.Name() == "" && len(d.Routes) > 1:
		x.say("route", "the default route of the service", x.passedOver(d, route)...)
	case route.Name() != "":
		x.say("route", fmt.Sprintf("the route of %s matches: %s", route.Name(), describeMatch(route.Match)), x.passedOver(d, route)...)
	case !d.Protocol.IsHTTP() && len(backends) > 1:
		x.say("route", "connections are distributed over the backends")
	}
	x.describeCORS(route.CORS)
	for _, m := range route.Mirrors {
		x.say("mirror", fmt.Sprintf("%s of the requests are copied to %s, if it allows them too", percent(m.Numerator, uint64(m.Denominator)), m.Backend))
	}
	x.describeRetries(route)
	x.describeSession(route.Session)
	var total uint64
	for _, b := range backends {
		total += uint64(b.Weight)
	}
	asked := x.request
	for _, share := range backends {
		if share.Backend == "" {
			refused := "is answered with 500"
			if !d.Protocol.IsHTTP() {
				refused = "is closed"
			}
			x.end(Unreachable, "backend", percent(share.Weight, total)+" "+refused+", since the route or a backend of it is invalid or does not exist")
			continue
		}
		b, ok := c.view.Outbound.Backends.Get(share.Backend)
		text := fmt.Sprintf("%s gets %s", share.Backend, percent(share.Weight, total))
		if share.Weight == 0 {
			text = share.Backend + " gets requests of its sessions only"
		}
		if !ok {
			x.end(Unreachable, "backend", text+", but does not exist")
			continue
		}
		x.involve(mesh.ObjectsOf(b.Origins)...)
		if forwarded := route.Forwarded(x.asked(), share); forwarded != nil {
			if forwarded.Host != asked.Host || forwarded.Path != asked.Path {
				x.say("rewrite", fmt.Sprintf("the server sees the host %s and the path %s", forwarded.Host, forwarded.Path))
			}
			x.request = *forwarded
		}
		x.send(c, b, text)
		x.request = asked
	}
}

// normalized continues with the request as a sidecar compares and forwards it.
func (x *inquiry) normalized(request *mesh.Request) {
	if request.Path != x.request.Path {
		x.say("path", "the sidecar compares and forwards the path "+request.Path)
		x.request = *request
	}
}

// passedOver explains why the routes before the given one don't match.
func (x *inquiry) passedOver(d *mesh.Destination, taken mesh.Route) []string {
	var reasons []string
	host, _ := d.HostOf(x.asked())
	for _, route := range d.Routes {
		if route.Host != host {
			continue
		}
		if route.Match.Matches(x.asked()) {
			break
		}
		if len(reasons) < mostShown {
			reasons = append(reasons, fmt.Sprintf("not the route of %s (%s): %s", route.Name(), describeMatch(route.Match), mismatch(route.Match.Mismatch(x.asked()), x.asked())))
		}
	}
	return reasons
}

func (x *inquiry) describeRetries(route mesh.Route) {
	var details []string
	if r := route.Retry; r != nil && r.Attempts > 0 {
		on := slices.Clone(r.On)
		for _, code := range r.Codes {
			on = append(on, strconv.Itoa(int(code)))
		}
		text := fmt.Sprintf("retried up to %s on %s", count(int(r.Attempts), "time"), strings.Join(on, ", "))
		if r.PerTry > 0 {
			text += fmt.Sprintf(", each attempt at most %s", r.PerTry)
		}
		if r.Backoff > 0 {
			text += fmt.Sprintf(", the first retry after %s", r.Backoff)
		}
		details = append(details, text)
	}
	if route.Timeout > 0 {
		details = append(details, fmt.Sprintf("at most %s including retries", route.Timeout))
	}
	if len(details) > 0 {
		x.say("retries", strings.Join(details, "; "))
	}
}

func (x *inquiry) describeSession(s *mesh.Session) {
	if s == nil {
		return
	}
	where := "the cookie "
	if s.Header != "" {
		where = "the header "
	}
	text := "a request goes to the endpoint that its token names, in " + where + s.Name()
	if s.Lifetime > 0 {
		text += fmt.Sprintf(", up to %s after the first one", s.Lifetime)
	}
	x.say("session", text+"; the backends are for all others")
}

// send follows the request to the endpoints of a Backend.
func (x *inquiry) send(c caller, b *mesh.Backend, text string) {
	if b.ExternalName != "" {
		x.end(Allowed, "backend", fmt.Sprintf("%s: it is an alias for %s, outside the mesh, and is called in plaintext", text, b.ExternalName))
		return
	}
	var calls []arrival
	draining := 0
	for _, e := range b.Endpoints {
		if e.Draining {
			draining++
			continue
		}
		a := arrival{
			caller: c, security: mesh.MeshTLS, serverName: e.ServerName, peer: c.identity(),
			workload: e.Workload, port: e.Port, addresses: e.Addresses,
		}
		if e.ServerName == "" || c.view.Proxy.Plaintext {
			a.security, a.serverName, a.peer = mesh.Plaintext, "", mesh.Identity{}
		}
		if w, ok := x.snapshot.Workloads.Get(e.Workload); ok {
			a.view = x.viewOf(w)
		}
		calls = append(calls, a)
	}
	text += ": " + count(len(calls), "endpoint")
	if draining > 0 {
		text += fmt.Sprintf(", and %d draining", draining)
	}
	if len(calls) == 0 {
		x.refuse(Unreachable, telemetry.ReasonNoEndpoint, "backend", text+": the sidecar answers 503")
		return
	}
	if b.Policy.Refuses(b.Protocol) {
		x.end(Unreachable, "backend", text+": the service's UpstreamTrafficSetting has a limit of 0, which blocks all traffic", policyOf(b.Policy)...)
		return
	}
	x.say("backend", text, policyOf(b.Policy)...)
	x.arrive(calls)
}

// policyOf lists the settings for calls to endpoints that are not the proxy's defaults.
func policyOf(p mesh.UpstreamPolicy) []string {
	var details []string
	limit := func(n *uint32, what string) {
		if n != nil {
			details = append(details, fmt.Sprintf("at most %d %s", *n, what))
		}
	}
	limit(p.MaxConnections, "connections")
	limit(p.MaxRequests, "requests at once")
	limit(p.MaxPendingRequests, "pending requests")
	limit(p.MaxRetries, "retries at once")
	if p.RequestsPerConnection > 0 {
		limit(&p.RequestsPerConnection, "requests per connection")
	}
	timeout := func(d time.Duration, what string) {
		if d > 0 {
			details = append(details, fmt.Sprintf("%s at most %s", what, d))
		}
	}
	timeout(p.ConnectTimeout, "connecting takes")
	timeout(p.IdleTimeout, "a connection is idle for")
	if e := p.Ejection; e != nil {
		details = append(details, fmt.Sprintf("an endpoint is ejected temporarily after %s in a row", count(int(e.ConsecutiveErrors), "error")))
	}
	if p.LoadBalancing.Policy != "" {
		details = append(details, "endpoints are chosen by "+string(p.LoadBalancing.Policy))
	}
	if p.LoadBalancing.PreferZone {
		details = append(details, "endpoints in the caller's zone are preferred")
	}
	return details
}

func weighted(backends []mesh.WeightedBackend) []mesh.WeightedBackend {
	var some []mesh.WeightedBackend
	for _, b := range backends {
		if b.Weight > 0 {
			some = append(some, b)
		}
	}
	return some
}

func percent(weight uint32, total uint64) string {
	if uint64(weight) == total {
		return "everything"
	}
	return strings.TrimSuffix(fmt.Sprintf("%.1f", 100*float64(weight)/float64(total)), ".0") + "%"
}

// of returns " of " and the name, or "" without a name.
func of(name string) string {
	if name == "" {
		return ""
	}
	return " of " + name
}

func texts[T fmt.Stringer](values []T) []string {
	words := make([]string, len(values))
	for i, v := range values {
		words[i] = v.String()
	}
	return words
}

func (x *inquiry) describeCORS(c *mesh.CORS) {
	if c != nil {
		x.say("cors", "the sidecar answers preflight requests itself, and adds the headers for other origins to answers")
	}
}
