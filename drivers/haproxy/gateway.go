package haproxy

import (
	"fmt"
	"slices"
	"strings"

	"github.com/outrigger-mesh/outrigger/drivers/haproxy/syntax"
	"github.com/outrigger-mesh/outrigger/mesh"
	"github.com/outrigger-mesh/outrigger/sidecar/driver"
)

// gatewayPort is a port of a gateway, at which HAProxy itself listens.
type gatewayPort struct {
	// Binds are the addresses to listen on.
	Binds syntax.Text
	// Hosts find out which of the port's hosts a request is for: the first one that applies, unless
	// hosts.map has the host. The routes are those of that host.
	Hosts []hostRule
	// TLS are the options of a port at which TLS ends, and Names find out to which of its listeners a
	// connection belongs.
	TLS   syntax.Text
	Names []hostRule
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
	if len(destination.Certificates) > 0 {
		if port.TLS = d.addCertificates(destination); port.TLS.IsZero() {
			return // HAProxy refuses a list without certificates.
		}
		d.TLSPorts = append(d.TLSPorts, syntax.Number(destination.Port))
	}
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
	order := destination.Listeners()
	if len(order) > 1 {
		for i, c := range destination.Certificates {
			if parts, ok := nameParts(serverName, c.Host); ok {
				number := syntax.Number(slices.Index(order, c.Listener))
				port.Names = append(port.Names, hostRule{rule{Name: syntax.Fill("n{}-{}", syntax.Number(destination.Port), syntax.Number(i)), Where: syntax.Literal("!of-listener"), Parts: append([]part{here}, parts...), HTTP: true}, number})
			}
		}
	}
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
		// Each request asks the rules of all hosts, so hosts of a listener with the same routes share theirs.
		listener, _ := destination.ListenerOf(host)
		shared := mesh.JoinDigests(sharedBy(byHost[host]), mesh.DigestOf(listener))
		number, known := numbers[shared]
		if !known {
			number = syntax.Number(d.hosts)
			numbers[shared] = number
			d.hosts++
			if len(order) > 1 {
				fmt.Fprintf(&d.listenerMap, "%s %d\n", number, slices.Index(order, listener))
			}
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
	if len(destination.Certificates) > 0 {
		d.Terminated = append(d.Terminated, section)
	}
	if len(destination.Servers) == 0 {
		d.addRoute(destination, unchosen, d.draw(destination, &mesh.Route{Backends: destination.Backends}), nil, mesh.HTTPMatch{}, here)
		return
	}
	d.addServers(destination, here)
	d.ByServerName = append(d.ByServerName, section)
}

// hostParts returns the parts of a rule for the requests for a host: none for all requests. It
// returns false for what matches no host.
func hostParts(host string) ([]part, bool) { return nameParts(requestedHost, host) }

// nameParts returns the parts of a rule for a host or server name that the fetch returns.
func nameParts(fetch syntax.Text, host string) ([]part, bool) {
	suffix, isWildcard := strings.CutPrefix(host, "*")
	switch {
	case host == "" || host == mesh.AnyHost:
		return nil, true
	case !isWildcard:
		return []part{hosts(fetch, host)}, true
	case !strings.HasPrefix(suffix, "."):
		return nil, false
	}
	// A label must precede the suffix.
	return []part{hosts(fetch, host), not(is(syntax.Fill("{} -m str", fetch), []string{strings.ToLower(suffix)}))}, true
}

// certificateDir has the certificates of a gateway with their private keys, as driver.CertificateFile says.
const certificateDir = "certificates/"

// listFile returns the name of the file with the certificates of a port.
func listFile(port uint16) string { return fmt.Sprintf("certificates-%d.list", port) }

// addCertificates adds the list of the certificates of a port, and returns the port's options, or nothing
// if there is no certificate.
func (d *document) addCertificates(destination *mesh.Destination) syntax.Text {
	list, byDefault := new(strings.Builder), ""
	for _, c := range destination.Certificates {
		namespace, ok := syntax.Plain(c.Name.Namespace)
		name, also := syntax.Plain(c.Name.Name)
		file := syntax.Fill("certificates/{}/{}.pem", namespace, name)
		switch host, isPlain := syntax.Plain(strings.TrimPrefix(c.Host, "*.")); {
		case !ok || !also:
		case c.Host == mesh.AnyHost:
			// The first one is for all names without another one. Its own names are not asked for.
			byDefault = fmt.Sprintf("%s nobody.invalid\n", file)
		case !isPlain:
		case c.Host != host.String():
			fmt.Fprintf(list, "%s *.%s\n", file, host)
		default:
			fmt.Fprintf(list, "%s %s\n", file, host)
		}
	}
	if byDefault == "" && list.Len() == 0 {
		return syntax.Text{}
	}
	d.lists = append(d.lists, driver.File{Name: listFile(destination.Port), Content: []byte(byDefault + list.String())})
	options := syntax.Fill(" ssl crt-list {} ssl-min-ver TLSv1.2 ciphers {}", syntax.Fill("certificates-{}.list", syntax.Number(destination.Port)), edgeCiphers)
	if destination.Protocol.IsHTTP() {
		options = syntax.Fill("{} alpn h2,http/1.1", options)
	}
	if byDefault == "" {
		options = syntax.Fill("{} strict-sni", options)
	}
	return options
}

// edgeCiphers are the ciphers of TLS 1.2 with forward secrecy and authenticated encryption.
var edgeCiphers = syntax.Literal("ECDHE-ECDSA-AES128-GCM-SHA256:ECDHE-RSA-AES128-GCM-SHA256:ECDHE-ECDSA-CHACHA20-POLY1305:ECDHE-RSA-CHACHA20-POLY1305:ECDHE-ECDSA-AES256-GCM-SHA384:ECDHE-RSA-AES256-GCM-SHA384")

// serverName fetches the server name of a client's connection in lower case, without a final dot.
var serverName = syntax.Literal("var(txn.sni)")

// requestedHost fetches the host of a request in lower case, without a port and a final dot.
var requestedHost = syntax.Literal("var(txn.name)")
