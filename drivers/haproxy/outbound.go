package haproxy

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/outrigger-mesh/outrigger/mesh"
)

// draw is a weighted target: it is chosen if a random number from 0 to 999,999 is less than
// Below and not less than that of the draw before. Requests of its sessions have Share in
// their token, and go to the servers of the target Place.
type draw struct {
	Target       string
	Below        uint64
	Share, Place string
}

// The targets without servers: nowhere answers 503 or closes connections, unresolved
// answers 500, and unmatched 404.
const nowhere, unresolved, unmatched = "nowhere", "unresolved", "unmatched"

// target is an HAProxy backend: a backend of the mesh with what a route asks of it.
type target struct {
	*mesh.Backend
	Timeout  time.Duration
	Retry    *mesh.Retry
	Session  *mesh.Session
	Changes  []string
	Prefers6 bool // The pod has no IPv4 address.
	// Mirrors have targets instead of Backends.
	Mirrors []mesh.Mirror
	// Via is the target for each try, whose answers have a status code for which HAProxy can
	// repeat the request. It is empty if that is not needed, and for the target of a try, IsTry.
	Via   string
	IsTry bool
}

// addOutbound adds the maps of destinations, the routes and the targets. The template
// closes connections to unknown destinations.
func (d *document) addOutbound() {
	d.Targets, d.Redirects = make(map[string]target), make(map[string]redirection)
	for _, name := range d.View.Outbound.Destinations.Names() {
		of, _ := d.View.Outbound.Destinations.Get(name)
		to, into, variable, routes := sectionName(name), &d.tcpMap, "var(sess.tcp) -m str", []mesh.Route{{Backends: of.Backends}}
		if of.Protocol.IsHTTP() {
			into, variable, routes = &d.httpMap, "var(sess.http) -m str", of.Routes
		}
		here := is(variable, []string{to})
		if of.Protocol.IsHTTP() && (len(routes) == 0 || !routes[len(routes)-1].Match.Matches(nil)) {
			routes = append(slices.Clip(routes), mesh.Route{Backends: []mesh.WeightedBackend{{Backend: unmatched, Weight: 1}}})
		}
		for _, server := range of.Servers {
			r := when(fmt.Sprintf("d%d", len(d.Routes)), "!chosen", mesh.HTTPMatch{}, here, hosts("var(sess.server)", []string{server.Host}))
			r.To = d.draw(of, &mesh.Route{Backends: server.Backends})
			d.Routes = append(d.Routes, r)
		}
		if len(of.Servers) > 0 {
			d.ByServerName = append(d.ByServerName, to)
		}
		for i := range routes {
			choice := d.draw(of, &routes[i])
			if len(routes) == 1 && len(choice) == 1 && routes[i].Match.Matches(nil) && len(of.Servers) == 0 {
				// A single target without conditions goes into the map itself.
				to = choice[0].Target
				break
			}
			r := when(fmt.Sprintf("d%d", len(d.Routes)), "!chosen", routes[i].Match, here)
			r.HTTP, r.To, r.Session = of.Protocol.IsHTTP(), choice, routes[i].Session
			d.Routes = append(d.Routes, r)
		}
		for _, address := range of.Addresses {
			if usable(address) {
				fmt.Fprintf(into, "%s:%d %s\n", address, of.Port, to)
			}
		}
	}
}

// draw returns the targets of a route, at least one.
func (d *document) draw(of *mesh.Destination, r *mesh.Route) []draw {
	if r.Redirect != nil {
		return []draw{{Target: d.redirect(of, r), Below: 1_000_000}}
	}
	var out []draw
	var sum uint64
	for _, b := range r.Backends {
		if b.Weight > 0 || r.Session != nil {
			sum += uint64(b.Weight)
			one := draw{Target: d.target(of, r, b), Below: sum}
			if to, ok := d.Targets[one.Target]; ok && r.Session != nil {
				one.Share, one.Place = r.Session.Share(b.Backend), cmp.Or(to.Via, one.Target)
			}
			out = append(out, one)
		}
	}
	if sum == 0 {
		return []draw{{Target: nowhere, Below: 1_000_000}}
	}
	for i := range out {
		out[i].Below = out[i].Below * 1_000_000 / sum
	}
	return out
}

// target returns the name of the target for a backend with what the route asks of it.
func (d *document) target(of *mesh.Destination, r *mesh.Route, to mesh.WeightedBackend) string {
	switch {
	case to.Backend == "" && of.Protocol.IsHTTP():
		return unresolved
	case to.Backend == unmatched:
		return unmatched
	}
	b, ok := d.View.Outbound.Backends.Get(to.Backend)
	if !ok || b.Protocol.IsHTTP() != of.Protocol.IsHTTP() {
		return nowhere
	}
	name, changes := sectionName(b.Name), changesOf(r, to)
	if r.Timeout > 0 || r.Retry != nil || r.Session != nil || len(changes)+len(r.Mirrors) > 0 {
		asked := mesh.DigestOf(mesh.Route{Timeout: r.Timeout, Retry: r.Retry, Session: r.Session, Mirrors: r.Mirrors})
		name += "_" + mesh.JoinDigests(asked, mesh.DigestOf(changes)).String()[:16]
	}
	retry := r.Retry
	if most := b.Policy.MaxRetries; retry != nil && most != nil && *most == 0 {
		none := *retry
		none.Attempts, retry = 0, &none
	}
	out := target{Backend: b, Timeout: r.Timeout, Retry: retry, Session: r.Session, Changes: changes, Prefers6: d.Family() == "ipv6"}
	if retry != nil && retry.Attempts > 0 && (retry.Backoff > 0 || slices.Contains(retry.Needs(), mesh.FeatureRetryCodes)) {
		out.Via = name + ":try"
		d.Targets[out.Via] = target{Backend: b, Timeout: r.Timeout, Retry: retry, Session: r.Session, IsTry: true, Prefers6: out.Prefers6}
	}
	for _, m := range r.Mirrors {
		m.Backend = d.target(of, &mesh.Route{Timeout: r.Timeout}, mesh.WeightedBackend{Backend: m.Backend})
		out.Mirrors = append(out.Mirrors, m)
	}
	d.Targets[name] = out
	return name
}

// usable reports whether an address can be used: HAProxy takes 0.0.0.0 and :: for the
// client's original destination.
func usable(a netip.Addr) bool { return a.IsValid() && !a.IsUnspecified() && a.Zone() == "" }

// Address returns the address and port of an endpoint, or "" if it can't be called.
func (t target) Address(e mesh.Endpoint) string {
	i := slices.IndexFunc(e.Addresses, usable)
	if last := len(e.Addresses) - 1; i >= 0 && t.Prefers6 && usable(e.Addresses[last]) {
		i = last
	}
	if i < 0 || e.Port == 0 || e.ServerName != "" && !word.MatchString(e.ServerName) {
		return ""
	}
	return netip.AddrPortFrom(e.Addresses[i], e.Port).String()
}

// byName returns the server line of a host outside the mesh. The system resolves the name
// when HAProxy starts, and HAProxy itself from then on.
func byName(host string, port uint16, family string) string {
	address, err := netip.ParseAddr(host)
	switch {
	case port == 0 || !word.MatchString(host) || err == nil && !usable(address):
		return "127.0.0.1:1 disabled"
	case err == nil:
		return netip.AddrPortFrom(address, port).String()
	}
	return fmt.Sprintf("%s:%d resolvers dns init-addr libc,none resolve-prefer %s", host, port, family)
}

// egressHosts returns the valid hosts of a port, the most specific first.
func egressHosts(port mesh.EgressRoutes) []mesh.EgressHost {
	out := slices.DeleteFunc(slices.Clone(port.Hosts), func(h mesh.EgressHost) bool {
		return len(h.Host) > 253 || !word.MatchString(strings.TrimPrefix(h.Host, "*."))
	})
	slices.SortStableFunc(out, func(a, b mesh.EgressHost) int {
		// Exact hosts come first: their index of an asterisk is -1.
		return cmp.Or(strings.Index(a.Host, "*")-strings.Index(b.Host, "*"), len(b.Host)-len(a.Host), strings.Compare(a.Host, b.Host))
	})
	return slices.CompactFunc(out, func(a, b mesh.EgressHost) bool { return a.Host == b.Host })
}
