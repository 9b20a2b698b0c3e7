package haproxy

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/outrigger-mesh/outrigger/mesh"
)

// route is where requests or connections go for which the rule holds and none before.
type route struct {
	rule
	HTTP bool
	To   []draw
}

// draw is a target that is taken if a number that was drawn is Below. Total is how many
// numbers there are; 1 means that nothing is drawn.
type draw struct {
	Target       string
	Below, Total uint64
}

// target is one of HAProxy's backends: endpoints of the mesh that are called in one way.
// An HTTP target has a twin, whose name ends in "_h2", for requests that come by HTTP/2.
type target struct {
	Name string
	*mesh.Backend
	Timeout time.Duration
	Retry   *mesh.Retry
}

// addOutbound makes maps and routes. The template closes what nothing is known of.
func (d *document) addOutbound() {
	d.Targets = make(map[string]target)
	for _, name := range d.View.Outbound.Destinations.Names() {
		of, _ := d.View.Outbound.Destinations.Get(name)
		to, into := sectionName(name), &d.tcpMap
		routes := []mesh.Route{{Backends: of.Backends}}
		if of.Protocol.IsHTTP() {
			routes, into = of.Routes, &d.httpMap
		}
		if len(routes) == 1 && routes[0].Match.Matches(nil) && len(d.draws(of, &routes[0])) == 1 {
			to = d.draws(of, &routes[0])[0].Target
		} else {
			d.addRoutes(of, to, routes)
		}
		for _, address := range of.Addresses {
			if usable(address) {
				fmt.Fprintf(into, "%s:%d %s\n", address, of.Port, to)
			}
		}
	}
}

func (d *document) addRoutes(of *mesh.Destination, name string, routes []mesh.Route) {
	here := is("var(sess.tcp) -m str", name)
	if of.Protocol.IsHTTP() {
		here = is("var(sess.http) -m str", name)
	}
	for i := range routes {
		r := when(fmt.Sprintf("d%d", len(d.Routes)), "!chosen", routes[i].Match, here)
		d.Routes = append(d.Routes, route{r, of.Protocol.IsHTTP(), d.draws(of, &routes[i])})
	}
}

// draws returns the targets of a route, at least one.
func (d *document) draws(of *mesh.Destination, r *mesh.Route) []draw {
	var out []draw
	var sum uint64
	for _, b := range r.Backends {
		if b.Weight > 0 {
			sum += uint64(b.Weight)
			out = append(out, draw{Target: d.target(of, r, b.Backend), Below: sum})
		}
	}
	// HAProxy draws numbers below 2^32.
	const most = 1 << 24
	for i := range out {
		if out[i].Total = sum; sum > most {
			out[i].Total, out[i].Below = most, out[i].Below*most/sum
		}
	}
	if len(out) == 0 {
		return []draw{{Target: nowhere(of), Below: 1, Total: 1}}
	}
	if len(out) == 1 {
		out[0].Total = 1
	}
	return out
}

// target returns the name of the target for a backend, called as the route says.
func (d *document) target(of *mesh.Destination, r *mesh.Route, backend string) string {
	b, ok := d.View.Outbound.Backends.Get(backend)
	if !ok || b.Protocol.IsHTTP() != of.Protocol.IsHTTP() {
		return nowhere(of)
	}
	name := sectionName(b.Name)
	if r.Timeout > 0 || r.Retry != nil {
		name += "_" + mesh.DigestOf(mesh.Route{Timeout: r.Timeout, Retry: r.Retry}).String()[:16]
	}
	d.Targets[name] = target{Name: name, Backend: b, Timeout: r.Timeout, Retry: r.Retry}
	return name
}

// nowhere answers 503, or closes connections.
func nowhere(of *mesh.Destination) string {
	if of.Protocol.IsHTTP() {
		return "nowhere"
	}
	return "nowhere-tcp"
}

// usable addresses are those of IPv4 that are somebody's: HAProxy finds the original
// destination of no others, and takes 0.0.0.0 for whatever the client has asked for.
func usable(a netip.Addr) bool { return a.Is4() && !a.IsUnspecified() }

// Address returns where an endpoint is called, or "" if it can't be.
func (target) Address(e mesh.Endpoint) string {
	i := slices.IndexFunc(e.Addresses, usable)
	if i < 0 || e.Port == 0 || e.ServerName != "" && !hostName.MatchString(e.ServerName) {
		return ""
	}
	return netip.AddrPortFrom(e.Addresses[i], e.Port).String()
}

// byName returns the server of a host outside the mesh. It is looked up by the system when
// the proxy starts, and by the proxy from then on.
func byName(host string, port uint16) string {
	if address, err := netip.ParseAddr(host); err == nil && usable(address) && port != 0 {
		return netip.AddrPortFrom(address, port).String()
	}
	if !hostName.MatchString(host) || port == 0 {
		return "127.0.0.1:1 disabled"
	}
	return fmt.Sprintf("%s:%d resolvers dns init-addr libc,none resolve-prefer ipv4", host, port)
}

// Twins returns the ends of the names of a target and its twin.
func (t target) Twins() []string { return twins(t.Protocol.IsHTTP()) }

func twins(http bool) []string {
	if http {
		return []string{"", "_h2"}
	}
	return []string{""}
}

// hostTarget returns the name of the target of a host outside the mesh.
func hostTarget(port uint16, host string) string {
	return fmt.Sprintf("egress_%d_%s", port, strings.Replace(host, "*", "any", 1))
}

// TryTimeout limits one try: from the request to the beginning of the answer, and then
// between any two parts of it.
func (t target) TryTimeout() time.Duration {
	if t.Retry != nil && t.Retry.PerTry > 0 && (t.Timeout == 0 || t.Retry.PerTry < t.Timeout) {
		return t.Retry.PerTry
	}
	return t.Timeout
}

// conditions are HAProxy's words for Envoy's.
var conditions = map[string]string{
	"5xx":             "500 501 502 503 504 empty-response junk-response response-timeout",
	"gateway-error":   "502 503 504",
	"reset":           "empty-response junk-response response-timeout",
	"connect-failure": "", "refused-stream": "",
}

// Retries returns how often a request is tried again.
func (t target) Retries() uint32 {
	if t.Retry == nil {
		return 0
	}
	return min(t.Retry.Attempts, 1000)
}

// RetryOn returns when a request is tried again.
func (t target) RetryOn() string {
	words := []string{"conn-failure"}
	for _, on := range t.Retry.On {
		words = append(words, strings.Fields(conditions[on])...)
	}
	slices.Sort(words)
	return strings.Join(slices.Compact(words), " ")
}

// egressHosts returns the hosts of a port that can be called, the most exact first.
func egressHosts(port mesh.EgressRoutes) []mesh.EgressHost {
	out := slices.DeleteFunc(slices.Clone(port.Hosts), func(h mesh.EgressHost) bool {
		return len(h.Host) > 253 || !hostName.MatchString(strings.TrimPrefix(h.Host, "*."))
	})
	rank := func(h mesh.EgressHost) int {
		if isWildcard(h.Host) {
			return 1000 - len(h.Host)
		}
		return -len(h.Host)
	}
	slices.SortStableFunc(out, func(a, b mesh.EgressHost) int { return rank(a) - rank(b) })
	return out
}
