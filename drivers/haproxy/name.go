package haproxy

import (
	"fmt"
	"net/netip"
	"strings"

	"github.com/outrigger-mesh/outrigger/drivers/haproxy/syntax"
)

// called is how a host outside the mesh is called.
type called struct {
	// Rules precede the Servers, which have names, addresses and options.
	Rules, Servers []syntax.Text
}

// Called returns how the backend calls a host by its name or address. HAProxy resolves names
// itself, while it runs: a name server that does not answer delays nothing but the requests to
// its own names. Until a name is resolved, the requests themselves wait for that and go to the
// server "first". Names in /etc/hosts have the server "known"; see name.lua.
func (d *document) Called(backend, server syntax.Text, isHTTP bool, host string, port uint16) called {
	address, err := netip.ParseAddr(host)
	name, ok := syntax.Plain(strings.TrimSuffix(host, "."))
	switch {
	case port == 0 || !ok || err == nil && !usable(address):
		return called{Servers: []syntax.Text{syntax.Fill("{} 127.0.0.1:1 disabled", server)}}
	case err == nil:
		return called{Servers: []syntax.Text{syntax.Fill("{} {}", server, syntax.Server(address, port))}}
	}
	fmt.Fprintf(&d.names, "%s %s %s %d %s\n", backend, server, name, port, d.Family())
	kind, refuse := syntax.Literal("tcp-request content"), syntax.Literal("reject")
	if isHTTP {
		kind, refuse = syntax.Literal("http-request"), syntax.Literal("deny deny_status 503")
	}
	unresolved := syntax.Fill("!{ srv_is_up({}) } !{ srv_is_up(known) }", server)
	found := syntax.Literal("{ var(txn.address) -m found }")
	return called{
		Rules: []syntax.Text{
			syntax.Fill("{} do-resolve(txn.address,dns,{}) str({}) if {}", kind, d.Family(), name, unresolved),
			syntax.Fill("{} set-dst var(txn.address) if {}", kind, found),
			syntax.Fill("{} set-dst-port int({}) if {}", kind, syntax.Number(port), found),
			syntax.Fill("{} set-var(txn.why) str(no_endpoint) if {} !{}", kind, unresolved, found),
			syntax.Fill("{} {} if {} !{}", kind, refuse, unresolved, found),
		},
		Servers: []syntax.Text{
			syntax.Fill("{} {}:{} resolvers dns init-addr none resolve-prefer {}", server, name, syntax.Number(port), d.Family()),
			syntax.Literal("known 0.0.0.0:1 disabled"),
			syntax.Literal("first 0.0.0.0:0 backup"),
		},
	}
}
