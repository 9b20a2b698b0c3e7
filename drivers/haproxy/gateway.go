package haproxy

import (
	"fmt"
	"strings"

	"github.com/outrigger-mesh/outrigger/drivers/haproxy/syntax"
	"github.com/outrigger-mesh/outrigger/mesh"
)

// gatewayPort is a port of a gateway, at which HAProxy itself listens.
type gatewayPort struct {
	// Binds are the addresses to listen on.
	Binds syntax.Text
	// Hosts find out which of the port's hosts a request is for: the first one that applies, unless
	// hosts.map has the host. The routes are those of that host.
	Hosts []hostRule
}

// hostRule is for the requests for a host, which has a Number.
type hostRule struct {
	rule
	Number syntax.Text
}

// addGatewayPort adds a port of a gateway with its hosts and routes. The maps have ports instead
// of addresses: which address of the pod a client connects to makes no difference.
func (d *document) addGatewayPort(destination *mesh.Destination, section syntax.Text) {
	var binds []syntax.Text
	option := syntax.Text{}
	for _, address := range destination.Addresses {
		binds = append(binds, syntax.Server(address, destination.Port))
		if address.Is6() {
			option = syntax.Literal(" v6only")
		}
	}
	if len(binds) == 0 || destination.Port == 0 {
		return
	}
	port := gatewayPort{Binds: syntax.Fill("{}{}", syntax.Join(",", binds...), option)}
	if !destination.Protocol.IsHTTP() {
		fmt.Fprintf(&d.tcpMap, "%d %s\n", destination.Port, section)
		d.addConnections(destination, section)
		d.TCPPorts = append(d.TCPPorts, port)
		return
	}
	fmt.Fprintf(&d.httpMap, "%d %s\n", destination.Port, section)
	if destination.ComparesPath() {
		d.ByPath = append(d.ByPath, section)
	}
	here := anyOf(syntax.Literal("var(sess.http) -m str"), []syntax.Text{section})
	all := destination.Hosts
	if len(all) == 0 {
		// Its routes have no host.
		all = []string{""}
	}
	byHost, numbers := destination.RoutesByHost(), map[mesh.Digest]syntax.Text{}
	for _, host := range all {
		parts, ok := hostParts(host)
		if !ok {
			continue
		}
		// Each request asks the rules of all hosts, so hosts with the same routes share theirs.
		shared := sharedBy(byHost[host])
		number, known := numbers[shared]
		if !known {
			number = syntax.Number(d.hosts)
			numbers[shared] = number
			d.hosts++
		}
		if exact, ok := syntax.Plain(strings.ToLower(host)); ok {
			// Exact hosts come first in any case.
			fmt.Fprintf(&d.hostMap, "%s/%s %s\n", section, exact, number)
		} else {
			port.Hosts = append(port.Hosts, hostRule{rule{Name: syntax.Fill("h{}-{}", syntax.Number(len(d.HTTPPorts)), syntax.Number(len(port.Hosts))), Where: syntax.Literal("!hosted"), Parts: append([]part{here}, parts...), HTTP: true}, number})
		}
		if known {
			continue
		}
		// Most rules are of other hosts.
		where := syntax.Fill("{ var(txn.at) -m int {} } {}", number, unchosen)
		for _, r := range byHost[host] {
			s, _ := sessionOf(r.Session)
			d.addRoute(destination, where, d.draw(destination, r), s, r.Match)
		}
	}
	d.HTTPPorts = append(d.HTTPPorts, port)
}

// sharedBy returns what distinguishes the routes of a host from those of hosts with the same ones.
func sharedBy(routes []*mesh.Route) mesh.Digest {
	all := make([]mesh.Route, 0, len(routes))
	for _, r := range routes {
		route := *r
		route.Host = ""
		all = append(all, route)
	}
	return mesh.DigestOf(all)
}

// addConnections adds where the connections to a port without HTTP go.
func (d *document) addConnections(destination *mesh.Destination, section syntax.Text) {
	here := anyOf(syntax.Literal("var(sess.tcp) -m str"), []syntax.Text{section})
	if len(destination.Servers) == 0 {
		d.addRoute(destination, unchosen, d.draw(destination, &mesh.Route{Backends: destination.Backends}), nil, mesh.HTTPMatch{}, here)
		return
	}
	d.addServers(destination, here)
	d.ByServerName = append(d.ByServerName, section)
}

// hostParts returns the parts of a rule for the requests for a host: none for all requests. It
// returns false for what matches no host.
func hostParts(host string) ([]part, bool) {
	suffix, isWildcard := strings.CutPrefix(host, "*")
	switch {
	case host == "" || host == mesh.AnyHost:
		return nil, true
	case !isWildcard:
		return []part{hosts(requestedHost, host)}, true
	case !strings.HasPrefix(suffix, "."):
		return nil, false
	}
	// A label must precede the suffix.
	return []part{hosts(requestedHost, host), not(is(syntax.Fill("{} -m str", requestedHost), []string{strings.ToLower(suffix)}))}, true
}

// requestedHost fetches the host of a request in lower case, without a port and a final dot.
var requestedHost = syntax.Literal("var(txn.name)")
