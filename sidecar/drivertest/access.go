package drivertest

import (
	"net/http"
	"net/netip"
	"strings"
	"time"

	"github.com/outrigger-mesh/outrigger/mesh"
)

// AccessCase is who may call a port, with calls to try. The tests of a driver give each case a
// port of its own, in the mode Permissive, and compare what the real proxy does with Wants.
type AccessCase struct {
	Name   string
	Access mesh.Access
	Calls  []AccessCall
}

// AccessCall is a request, or a connection to a port without HTTP.
type AccessCall struct {
	// Peer is the caller in mesh TLS. A zero Peer calls in plaintext.
	Peer mesh.Identity
	// Target is the path with the query.
	Target string
	// Header has names and values in turn.
	Header []string
}

// Forwarding says what a proxy does to requests before it compares them.
type Forwarding struct {
	// JoinsLines makes one line of several lines of a header.
	JoinsLines bool
	// LeavesPaths does not normalize paths, and takes those for ambiguous that are not normal.
	LeavesPaths bool
	// KeepsLast forwards only the last line of a header.
	KeepsLast bool
	// Issuers are those whose tokens the proxy verifies.
	Issuers []mesh.TokenIssuer
}

// Compared returns the request as the proxy compares it with the rules of the port, or false if
// none may permit it. Lines of headers are not joined.
func (proxy Forwarding) Compared(port *mesh.InboundPort, r *mesh.Request) (*mesh.Request, bool) {
	normal, ok := port.Normalize(r)
	if !ok || !proxy.LeavesPaths || normal.Path == r.Path {
		return normal, ok
	}
	ambiguous := *normal
	_, query, hasQuery := strings.Cut(r.Path, "?")
	if ambiguous.Path = "/%2F"; hasQuery {
		ambiguous.Path += "?" + query
	}
	return &ambiguous, true
}

// Wants returns what package mesh decides about the call.
func (c AccessCase) Wants(call AccessCall, protocol mesh.Protocol, proxy Forwarding) bool {
	in := &mesh.Inbound{TLS: mesh.Permissive, Ports: []mesh.InboundPort{{Port: 80, Protocol: protocol, Access: c.Access}}}
	request := &mesh.Request{Method: http.MethodGet, Host: "shop.example.com", Path: call.Target, Headers: map[string][]string{}}
	for i := 0; i+1 < len(call.Header); i += 2 {
		name := strings.ToLower(call.Header[i])
		request.Headers[name] = append(request.Headers[name], call.Header[i+1])
		if proxy.KeepsLast {
			request.Headers[name] = []string{call.Header[i+1]}
		}
		if proxy.JoinsLines {
			request.Headers[name] = []string{strings.Join(request.Headers[name], ",")}
		}
	}
	request, ok := proxy.Compared(&in.Ports[0], request)
	if !ok {
		return false
	}
	request.Token = mesh.VerifyToken(proxy.Issuers, request, time.Now())
	a := mesh.Arrival{Port: 80, Source: netip.MustParseAddr("127.0.0.1"), Security: mesh.Plaintext, Peer: call.Peer, Request: request}
	if call.Peer != (mesh.Identity{}) {
		a.Security = mesh.MeshTLS
	}
	return in.Decide(a).Allowed
}

// AccessCases returns cases of denials, exceptions and groups of identities, which a driver with
// FeatureAccessPolicies must decide as package mesh does.
func AccessCases(trustDomain string) []AccessCase {
	id := func(namespace, account string) mesh.Identity {
		return mesh.Identity{TrustDomain: trustDomain, Namespace: namespace, ServiceAccount: account}
	}
	web, desk, tool := id("shop", "web"), id("shop", "web-2"), id("ops", "tool.x")
	shop, ops, member, nobody := id("shop", ""), id("ops", ""), id("", ""), mesh.Identity{}
	anything := []mesh.HTTPMatch{{}}
	path := func(m mesh.StringMatch) []mesh.HTTPMatch { return []mesh.HTTPMatch{{Path: m}} }
	role := func(m mesh.StringMatch) []mesh.HTTPMatch {
		return []mesh.HTTPMatch{{Headers: []mesh.KeyMatch{{Name: "x-role", StringMatch: m}}}}
	}
	query := func(m mesh.StringMatch) []mesh.HTTPMatch {
		return []mesh.HTTPMatch{{Query: []mesh.KeyMatch{{Name: "debug", StringMatch: m}}}}
	}
	deny := func(name string, d mesh.Denial) mesh.Denial {
		d.Origin = Origin("AccessPolicy", "shop/"+name)
		return d
	}
	open := func(name string, d mesh.Denial) mesh.Access {
		return mesh.Access{Anyone: true, Denials: []mesh.Denial{deny(name, d)}}
	}
	allow := func(p mesh.Permission) mesh.Access {
		p.Origin = Origin("AccessPolicy", "shop/some")
		return mesh.Access{Rules: []mesh.Permission{p}}
	}
	var callers, paths, roles, queries []AccessCall
	for _, peer := range []mesh.Identity{web, desk, tool, nobody} {
		callers = append(callers, AccessCall{Peer: peer, Target: "/"})
	}
	for _, target := range []string{
		"/", "/admin", "/admin/", "/admin/x?y=/", "/administrator", "/x/../admin", "/x/%2e%2e/admin", "/x/..;/admin", "/x%2Fadmin", "/%61dmin", "/x//admin", "/Admin", "/x?/admin", "/a;b", "/a%5cb", "/admin;v=1/x", "/x/;/admin", "/a%00",
	} {
		paths = append(paths, AccessCall{Peer: web, Target: target}, AccessCall{Target: target})
	}
	for _, lines := range [][]string{
		nil, {"admin"}, {"user"}, {"administrator"}, {"user,admin"}, {"user, admin , guest"}, {"an admin"}, {"user", "admin"}, {"admin", "user"}, {""}, {"Admin"}, {"root;admin"}, {"us\xffer"}, {"\u00fcser"}, {"admin" + strings.Repeat(",", 20_000)},
	} {
		call := AccessCall{Peer: web, Target: "/"}
		for _, line := range lines {
			call.Header = append(call.Header, "X-Role", line)
		}
		roles = append(roles, call)
	}
	roles = append(roles, AccessCall{Peer: tool, Target: "/", Header: []string{"X-Other", "admin"}})
	for _, text := range []string{"", "?", "?debug", "?debug=1", "?debug=10", "?a=1&debug=1&b", "?debug=%31", "?%64ebug=2", "?debug=2&debug=3", "?x=2&debug=2&x=1", "?x=1;debug=1", "?debug=%ff", "?debug=1%00x", "?debug=2" + strings.Repeat("&a", 5000) + "&debug=3", "?debugger=1", "?xdebug=1", "?x=debug=1"} {
		queries = append(queries, AccessCall{Peer: web, Target: "/" + text})
	}
	return []AccessCase{
		{"nobody is denied", mesh.Access{Anyone: true, Denials: []mesh.Denial{deny("none", mesh.Denial{Requests: anything}), deny("no", mesh.Denial{Everyone: true})}}, callers},
		{"everyone", open("all", mesh.Denial{Everyone: true, Requests: anything}), callers},
		{"everyone but a namespace", open("others", mesh.Denial{Everyone: true, Except: []mesh.Identity{shop}, Requests: anything}), callers},
		{"an account", open("web", mesh.Denial{Sources: []mesh.Identity{web}, Requests: anything}), callers},
		{"a namespace", open("shop", mesh.Denial{Sources: []mesh.Identity{shop}, Requests: anything}), callers},
		{"a namespace but an account", open("shop", mesh.Denial{Sources: []mesh.Identity{shop, ops}, Except: []mesh.Identity{web}, Requests: anything}), callers},
		{"the mesh", open("mesh", mesh.Denial{Sources: []mesh.Identity{member}, Requests: anything}), callers},
		{"two denials", mesh.Access{Anyone: true, Denials: []mesh.Denial{
			deny("one", mesh.Denial{Everyone: true, Except: []mesh.Identity{shop, tool}, Requests: anything}), deny("two", mesh.Denial{Sources: []mesh.Identity{web}, Requests: anything}),
		}}, callers},
		{"a namespace may call", allow(mesh.Permission{Sources: []mesh.Identity{shop}, Requests: anything}), callers},
		{"all members may call", allow(mesh.Permission{Sources: []mesh.Identity{member}, Requests: anything}), callers},
		{"a namespace but an account may call", allow(mesh.Permission{Sources: []mesh.Identity{shop}, Except: []mesh.Identity{web}, Requests: anything}), callers},
		{"what is allowed is denied", mesh.Access{
			Rules:   []mesh.Permission{{Origin: Origin("TrafficTarget", "shop/t"), Sources: []mesh.Identity{web, tool}, Requests: anything}},
			Denials: []mesh.Denial{deny("web", mesh.Denial{Sources: []mesh.Identity{shop}, Requests: anything})},
		}, callers},
		{"a path", open("admin", mesh.Denial{Everyone: true, Requests: path(mesh.StringMatch{Prefix: "/admin"})}), paths},
		{"an exact path", open("admin", mesh.Denial{Everyone: true, Requests: path(mesh.StringMatch{Exact: "/admin"})}), paths},
		{"an expression", open("admin", mesh.Denial{Everyone: true, Requests: path(mesh.StringMatch{Regex: "/(x/)?admin"})}), paths},
		{"an invalid expression", open("admin", mesh.Denial{Everyone: true, Requests: path(mesh.StringMatch{Regex: "/("})}), paths},
		{"a path, of an account", open("admin", mesh.Denial{Sources: []mesh.Identity{web}, Requests: path(mesh.StringMatch{Prefix: "/admin/"})}), paths},
		{"a method", open("get", mesh.Denial{Everyone: true, Requests: []mesh.HTTPMatch{{Methods: []string{"GET", "PUT"}}}}), paths[:2]},
		{"another method", open("put", mesh.Denial{Everyone: true, Requests: []mesh.HTTPMatch{{Methods: []string{"PUT"}}}}), paths},
		{"a header", open("role", mesh.Denial{Sources: []mesh.Identity{member}, Requests: role(mesh.StringMatch{Exact: "admin"})}), roles},
		{"the beginning of a header", open("role", mesh.Denial{Sources: []mesh.Identity{shop}, Requests: role(mesh.StringMatch{Prefix: "admin"})}), roles},
		{"an expression of a header", open("role", mesh.Denial{Everyone: true, Requests: role(mesh.StringMatch{Regex: "[Aa]dmin|root.*"})}), roles},
		{"a header that is there", open("role", mesh.Denial{Everyone: true, Requests: role(mesh.StringMatch{Present: true})}), roles},
		{"an expression of a parameter", open("debug", mesh.Denial{Everyone: true, Requests: query(mesh.StringMatch{Regex: "[^2].*"})}), queries},
		{"a parameter may be sent", allow(mesh.Permission{Sources: []mesh.Identity{shop}, Requests: query(mesh.StringMatch{Exact: "1"})}), queries},
		{"paths may be requested that an expression does not exclude", allow(mesh.Permission{Sources: []mesh.Identity{shop}, Requests: path(mesh.StringMatch{Regex: "/[^a].*"})}), paths},
		{"a parameter", open("debug", mesh.Denial{Everyone: true, Requests: query(mesh.StringMatch{Exact: "1"})}), queries},
		{"a parameter that is there", open("debug", mesh.Denial{Everyone: true, Requests: query(mesh.StringMatch{Present: true})}), queries},
		{"one of two", open("two", mesh.Denial{Everyone: true, Requests: append(path(mesh.StringMatch{Exact: "/admin"}), role(mesh.StringMatch{Exact: "admin"})...)}), append(roles, paths...)},
	}
}
