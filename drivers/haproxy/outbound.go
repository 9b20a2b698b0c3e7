package haproxy

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/outrigger-mesh/outrigger/drivers/haproxy/syntax"
	"github.com/outrigger-mesh/outrigger/mesh"
)

// draw is a weighted target: it is chosen if a random number from 0 to 999,999 is less than
// Below and not less than that of the draw before. Requests of its sessions have Share in
// their token, and go to the servers of the target Place.
type draw struct {
	Target       syntax.Text
	Below        uint64
	Share, Place syntax.Text
}

// The targets without servers: nowhere answers 503 or closes connections, unresolved
// answers 500, and unmatched 404.
var nowhere, unresolved, unmatched = syntax.Literal("nowhere"), syntax.Literal("unresolved"), syntax.Literal("unmatched")

// route sends what one of its Matches applies to, to one of the targets.
type route struct {
	Name    syntax.Text
	HTTP    bool
	Matches []rule
	To      []draw
	Session *sticky
}

// target is an HAProxy backend: a backend of the mesh with what a route asks of it.
type target struct {
	*mesh.Backend
	Timeout  time.Duration
	Retry    *mesh.Retry
	Session  *sticky
	Changes  []syntax.Text
	Prefers6 bool // The pod has no IPv4 address.
	// Mirrors have targets instead of Backends.
	Mirrors []copies
	// Via is the target for each try, whose answers have a status code for which HAProxy can
	// repeat the request. It is empty if that is not needed, and for the target of a try, IsTry.
	Via   syntax.Text
	IsTry bool
	// IsCopied marks the target of copies, whose sender does not wait for the answer.
	IsCopied bool
}

// copies is a target that gets copies of requests.
type copies struct {
	Target                 syntax.Text
	Numerator, Denominator uint32
}

// sticky is a session of which HAProxy can express the token.
type sticky struct {
	*mesh.Session
	// Token says where it is, and Cookie what follows its value in a cookie.
	Token, Cookie syntax.Text
}

func sessionOf(s *mesh.Session) (out *sticky, ok bool) {
	if s == nil {
		return nil, true
	}
	kind := syntax.Literal("cookie")
	if s.Header != "" {
		kind = syntax.Literal("header")
	}
	name, ok := syntax.Word(s.Name())
	attributes, valid := syntax.Word(s.Attributes())
	return &sticky{Session: s, Token: syntax.Fill("{} {} {}", kind, name, syntax.Number(s.Seconds())), Cookie: attributes}, ok && valid
}

// ShareOf returns what names a backend in tokens.
func (s *sticky) ShareOf(backend string) syntax.Text { return syntax.Section(s.Share(backend)) }

// addOutbound adds the maps of destinations, the routes and the targets. The template
// closes connections to unknown destinations.
func (d *document) addOutbound() {
	d.Targets, d.Redirects = make(map[syntax.Text]target), make(map[syntax.Text]redirection)
	for _, name := range d.View.Outbound.Destinations.Names() {
		of, _ := d.View.Outbound.Destinations.Get(name)
		switch {
		case !d.View.Proxy.Gateway:
			d.addDestination(of, syntax.Section(name))
		case of.Listens:
			d.addGatewayPort(of, syntax.Section(name))
		}
	}
}

func (d *document) addDestination(destination *mesh.Destination, section syntax.Text) {
	into, routes := &d.tcpMap, []mesh.Route{{Backends: destination.Backends}}
	here := anyOf(syntax.Literal("var(sess.tcp) -m str"), []syntax.Text{section})
	if destination.Protocol.IsHTTP() {
		into, routes = &d.httpMap, destination.Routes
		here = anyOf(syntax.Literal("var(sess.http) -m str"), []syntax.Text{section})
	}
	d.addServers(destination, here)
	if len(destination.Servers) > 0 {
		d.ByServerName = append(d.ByServerName, section)
	}
	if destination.ComparesPath() {
		d.ByPath = append(d.ByPath, section)
	}
	for i := range routes {
		choice := d.draw(destination, &routes[i])
		if len(routes) == 1 && len(choice) == 1 && routes[i].Match.Matches(nil) && len(destination.Servers) == 0 {
			// A single target without conditions goes into the map itself.
			section = choice[0].Target
			break
		}
		s, _ := sessionOf(routes[i].Session)
		d.addRoute(destination, unchosen, choice, s, routes[i].Match, here)
	}
	if destination.Protocol.IsHTTP() && (len(routes) == 0 || !routes[len(routes)-1].Match.Matches(nil)) {
		d.addRoute(destination, unchosen, []draw{{Target: unmatched, Below: 1_000_000}}, nil, mesh.HTTPMatch{}, here)
	}
	for _, address := range destination.Addresses {
		if usable(address) {
			fmt.Fprintf(into, "%s:%d %s\n", syntax.Address(address), destination.Port, section)
		}
	}
}

// addServers adds the routes of a destination that are chosen by server name.
func (d *document) addServers(destination *mesh.Destination, here part) {
	for _, server := range destination.Servers {
		d.addRoute(destination, unchosen, d.draw(destination, &mesh.Route{Backends: server.Backends}), nil, mesh.HTTPMatch{}, here, hosts(syntax.Literal("var(sess.server)"), strings.TrimSuffix(server.Host, ".")))
	}
}

// unchosen is the condition that no route before matches.
var unchosen = syntax.Literal("!chosen")

// addRoute adds a route of the destination to the targets, for requests and connections for which
// the condition holds.
func (d *document) addRoute(destination *mesh.Destination, where syntax.Text, choice []draw, s *sticky, m mesh.HTTPMatch, parts ...part) {
	last := len(d.Routes) - 1
	// The matches of a rule share its targets.
	if last < 0 || len(d.Routes[last].Matches) == 0 || d.Routes[last].HTTP != destination.Protocol.IsHTTP() || !slices.Equal(d.Routes[last].To, choice) || !sameSession(d.Routes[last].Session, s) {
		last++
		d.Routes = append(d.Routes, route{Name: syntax.Fill("d{}", syntax.Number(last)), HTTP: destination.Protocol.IsHTTP(), To: choice, Session: s})
	}
	r := matching(syntax.Fill("d{}-{}", syntax.Number(last), syntax.Number(len(d.Routes[last].Matches))), where, m, parts...)
	r.HTTP = destination.Protocol.IsHTTP()
	d.Routes[last].Matches = append(d.Routes[last].Matches, r)
}

func sameSession(a, b *sticky) bool {
	return a == nil && b == nil || a != nil && b != nil && *a.Session == *b.Session
}

// draw returns the targets of a route, at least one.
func (d *document) draw(destination *mesh.Destination, r *mesh.Route) []draw {
	if r.Redirect != nil {
		return []draw{{Target: d.redirect(destination, r), Below: 1_000_000}}
	}
	s, ok := sessionOf(r.Session)
	if !ok {
		return []draw{{Target: unresolved, Below: 1_000_000}}
	}
	var out []draw
	var sum uint64
	for _, b := range r.Backends {
		if b.Weight > 0 || s != nil {
			sum += uint64(b.Weight)
			one := draw{Target: d.target(destination, r, b), Below: sum}
			if to, ok := d.Targets[one.Target]; ok && s != nil {
				one.Share, one.Place = s.ShareOf(b.Backend), cmp.Or(to.Via, one.Target)
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
func (d *document) target(destination *mesh.Destination, r *mesh.Route, backend mesh.WeightedBackend) syntax.Text {
	if backend.Backend == "" && destination.Protocol.IsHTTP() {
		return unresolved
	}
	b, ok := d.View.Outbound.Backends.Get(backend.Backend)
	if !ok || b.Protocol.IsHTTP() != destination.Protocol.IsHTTP() {
		return nowhere
	}
	name, changes := syntax.Section(b.Name), changesOf(r, backend)
	s, _ := sessionOf(r.Session)
	if r.Timeout > 0 || r.Retry != nil || s != nil || len(changes)+len(r.Mirrors) > 0 {
		asked := mesh.DigestOf(mesh.Route{Timeout: r.Timeout, Retry: r.Retry, Session: r.Session, Mirrors: r.Mirrors})
		digest := mesh.JoinDigests(asked, mesh.DigestOf(syntax.Join("\n", changes...).String())).String()
		name = syntax.Fill("{}_{}", name, syntax.Section(digest[:16]))
	}
	retry := r.Retry
	if most := b.Policy.MaxRetries; retry != nil && most != nil && *most == 0 {
		none := *retry
		none.Attempts, retry = 0, &none
	}
	out := target{Backend: b, Timeout: r.Timeout, Retry: retry, Session: s, Changes: changes, Prefers6: d.prefers6()}
	if retry != nil && retry.Attempts > 0 && (retry.Backoff > 0 || slices.Contains(retry.Needs(), mesh.FeatureRetryCodes)) {
		out.Via = syntax.Fill("{}:try", name)
		d.Targets[out.Via] = target{Backend: b, Timeout: r.Timeout, Retry: retry, Session: s, IsTry: true, Prefers6: out.Prefers6}
	}
	for _, m := range r.Mirrors {
		count := len(d.Targets)
		to := d.target(destination, &mesh.Route{Timeout: r.Timeout}, mesh.WeightedBackend{Backend: m.Backend})
		if copied, ok := d.Targets[to]; ok {
			if len(d.Targets) > count {
				// No route has it.
				delete(d.Targets, to)
			}
			copied.IsCopied = true
			to = syntax.Fill("{}:copy", to)
			d.Targets[to] = copied
		}
		out.Mirrors = append(out.Mirrors, copies{to, m.Numerator, m.Denominator})
	}
	d.Targets[name] = out
	return name
}

// usable reports whether an address can be used: HAProxy takes 0.0.0.0 and :: for the
// client's original destination.
func usable(a netip.Addr) bool { return a.IsValid() && !a.IsUnspecified() && a.Zone() == "" }

// Address returns the address and port of an endpoint, or nothing if it can't be called.
func (t target) Address(e mesh.Endpoint) syntax.Text {
	i := slices.IndexFunc(e.Addresses, usable)
	if last := len(e.Addresses) - 1; i >= 0 && t.Prefers6 && usable(e.Addresses[last]) {
		i = last
	}
	if _, ok := syntax.Plain(e.ServerName); i < 0 || e.Port == 0 || e.ServerName != "" && !ok {
		return syntax.Text{}
	}
	return syntax.Server(e.Addresses[i], e.Port)
}

// outside is a host outside the mesh.
type outside struct {
	mesh.EgressHost
	// Section names its targets.
	Section syntax.Text
}

// egressHosts returns the valid hosts of a port, the most specific first.
func egressHosts(port mesh.EgressRoutes) []outside {
	var out []outside
	for _, host := range port.Hosts {
		// A dot at the end of a name only says that it is complete.
		host.Host = strings.TrimSuffix(host.Host, ".")
		name, wild := strings.CutPrefix(host.Host, "*.")
		plain, ok := syntax.Plain(name)
		if !ok || len(host.Host) > 253 {
			continue
		}
		section := syntax.Fill("egress_{}_{}", syntax.Number(port.Port), plain)
		if wild {
			section = syntax.Fill("egress_{}_:.{}", syntax.Number(port.Port), plain)
		}
		out = append(out, outside{host, section})
	}
	slices.SortStableFunc(out, func(a, b outside) int {
		// Exact hosts come first: their index of an asterisk is -1.
		return cmp.Or(strings.Index(a.Host, "*")-strings.Index(b.Host, "*"), len(b.Host)-len(a.Host), strings.Compare(a.Host, b.Host))
	})
	return slices.CompactFunc(out, func(a, b outside) bool { return a.Host == b.Host })
}
