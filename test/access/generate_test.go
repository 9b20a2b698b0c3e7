package access

import (
	"fmt"
	"math/rand/v2"
	"net/netip"
	"strings"

	"github.com/outrigger-mesh/outrigger/mesh"
	"github.com/outrigger-mesh/outrigger/sidecar/drivertest"
)

// generator generates rules and requests from a seed. Its vocabulary is small, so that many
// requests match.
type generator struct {
	*rand.Rand
	// tokens decides about tokens, so that a seed gives the same of everything else as without them.
	tokens *rand.Rand
}

func newGenerator(seed uint64) generator {
	return generator{rand.New(rand.NewPCG(seed, 37)), rand.New(rand.NewPCG(seed, 38))}
}

// ofTokens returns the generator for tokens.
func (g generator) ofTokens() generator { return generator{g.tokens, g.tokens} }

func pick[T any](g generator, of ...T) T { return of[g.IntN(len(of))] }

func (g generator) chance(percent int) bool { return g.IntN(100) < percent }

// some returns up to so many results of one, and nil in half of the cases.
func some[T any](g generator, most int, one func() T) []T {
	if g.chance(50) {
		return nil
	}
	out := make([]T, 0, most)
	for range 1 + g.IntN(most) {
		out = append(out, one())
	}
	return out
}

const (
	firstPort = 8000
	httpPorts = 24
	tcpPorts  = 6
)

// inbound returns rules for the ports from firstPort on.
func (g generator) inbound() *mesh.Inbound {
	in := &mesh.Inbound{TLS: pick(g, mesh.Strict, mesh.Permissive, mesh.Permissive), Others: g.access(false), Issuers: issuers()}
	for i := range httpPorts + tcpPorts {
		port := mesh.InboundPort{Port: uint16(firstPort + i), Protocol: pick(g, mesh.HTTP, mesh.HTTP, mesh.HTTP, mesh.HTTP2, mesh.GRPC)}
		http := i < httpPorts
		if !http {
			port.Protocol = pick(g, mesh.TCP, mesh.TCPServerFirst)
		}
		port.Access = g.access(http)
		if g.chance(30) {
			for range 1 + g.IntN(2) {
				port.Ingress = append(port.Ingress, g.ingress(http))
			}
		}
		in.Ports = append(in.Ports, port)
	}
	return in
}

func (g generator) access(http bool) mesh.Access {
	var a mesh.Access
	if a.Anyone = g.chance(35); a.Anyone {
		a.Audit = g.chance(30)
	}
	if !a.Anyone || a.Audit {
		for i := range 1 + g.IntN(3) {
			a.Rules = append(a.Rules, mesh.Permission{
				Origin: drivertest.Origin("AccessPolicy", fmt.Sprintf("shop/allow-%d", i)), Sources: g.sources(), Except: some(g, 1, g.source), Requests: g.requests(http),
			})
		}
	}
	if g.chance(60) {
		for i := range 1 + g.IntN(2) {
			d := mesh.Denial{Origin: drivertest.Origin("AccessPolicy", fmt.Sprintf("shop/deny-%d", i)), Everyone: g.chance(50), Except: some(g, 2, g.source), Requests: g.requests(http)}
			if !d.Everyone {
				d.Sources = g.sources()
			}
			a.Denials = append(a.Denials, d)
		}
	}
	return a
}

// source is an account, a namespace, the mesh, or something that stands for nobody.
func (g generator) source() mesh.Identity {
	return pick(g,
		identity("shop", "web"), identity("shop", "web-2"), identity("ops", "tool.x"), identity("edge", "gateway"),
		identity("shop", ""), identity("ops", ""), identity("shop", ""), identity("", ""),
		identity("", "web"), mesh.Identity{TrustDomain: "other.test", Namespace: "shop", ServiceAccount: "web"}, mesh.Identity{TrustDomain: "other.test"})
}

func (g generator) sources() []mesh.Identity {
	out := make([]mesh.Identity, 0, 3)
	for range 1 + g.IntN(3) {
		out = append(out, g.source())
	}
	if g.chance(30) {
		out = append(out, identity("", ""))
	}
	return out
}

func (g generator) requests(http bool) []mesh.HTTPMatch {
	if !http || g.chance(15) {
		return []mesh.HTTPMatch{{}}
	}
	out := make([]mesh.HTTPMatch, 0, 2)
	for range 1 + g.IntN(2) {
		out = append(out, g.match())
	}
	return out
}

func (g generator) match() mesh.HTTPMatch {
	m := mesh.HTTPMatch{}
	if g.chance(60) {
		m.Path = pick(g,
			mesh.StringMatch{Exact: "/a"}, mesh.StringMatch{Exact: "/admin"}, mesh.StringMatch{Exact: "/"}, mesh.StringMatch{Exact: "/a%2Fb"}, mesh.StringMatch{Exact: "/a;v=1"}, mesh.StringMatch{Exact: "/%61"}, mesh.StringMatch{Exact: "/a/"},
			mesh.StringMatch{Exact: "/caf%C3%A9"}, mesh.StringMatch{Exact: "/A"},
			mesh.StringMatch{Prefix: "/a"}, mesh.StringMatch{Prefix: "/a/"}, mesh.StringMatch{Prefix: "/admin"}, mesh.StringMatch{Prefix: "/"}, mesh.StringMatch{Prefix: "/a/b"}, mesh.StringMatch{Prefix: "//"},
			mesh.StringMatch{Regex: "/a/.*"}, mesh.StringMatch{Regex: "/[ab]"}, mesh.StringMatch{Regex: "/[^a].*"}, mesh.StringMatch{Regex: ".*"}, mesh.StringMatch{Regex: "/(x/)?admin"}, mesh.StringMatch{Regex: "(?i)/ADMIN(/.*)?"},
			mesh.StringMatch{Regex: "["}, mesh.StringMatch{Regex: "/[^/]+/b"}, mesh.StringMatch{Regex: `/a\b.*`}, mesh.StringMatch{Regex: "/a|/b"}, mesh.StringMatch{Regex: "^/a$"}, mesh.StringMatch{Present: true})
	}
	if g.chance(30) {
		m.Methods = pick(g, []string{"GET"}, []string{"GET", "HEAD"}, []string{"POST", "PUT"}, []string{"DELETE"}, []string{"PROPFIND"}, []string{"FROB"}, []string{"get"}, []string{"PATCH"})
	}
	m.Headers = some(g, 1, func() mesh.KeyMatch {
		return mesh.KeyMatch{Name: pick(g, "x-role", "x-role", "x-role", "host", "cookie", "user-agent", "x_team", "x-empty", "accept"), StringMatch: g.text()}
	})
	if g.chance(30) {
		m.Query = []mesh.KeyMatch{{Name: pick(g, "debug", "debug", "q", "a b"), StringMatch: g.text()}}
	}
	if g := g.ofTokens(); g.chance(12) {
		m.Token = g.tokenMatch()
	}
	return m
}

func (g generator) text() mesh.StringMatch {
	return pick(g,
		mesh.StringMatch{Exact: "admin"}, mesh.StringMatch{Exact: "a,b"}, mesh.StringMatch{Exact: "1"}, mesh.StringMatch{Exact: "a b"}, mesh.StringMatch{Exact: "a&b"},
		mesh.StringMatch{Prefix: "adm"}, mesh.StringMatch{Prefix: "1"}, mesh.StringMatch{Regex: "[Aa]dmin"}, mesh.StringMatch{Regex: "[^a].*"}, mesh.StringMatch{Regex: ".*"}, mesh.StringMatch{Regex: "adm.*|root"}, mesh.StringMatch{Regex: "("},
		mesh.StringMatch{Regex: "[0-9]+"}, mesh.StringMatch{Present: true}, mesh.StringMatch{})
}

func (g generator) ingress(http bool) mesh.Ingress {
	i := mesh.Ingress{
		Origin: drivertest.Origin("AccessPolicy", "shop/outside"), Requests: g.requests(http),
		Ranges: pick(g, prefixes("198.18.0.1/32"), prefixes("198.18.0.0/16", "2001:db8::/32"), prefixes("203.0.113.0/24"), prefixes("2001:db8::1/128"), prefixes("0.0.0.0/0", "::/0")),
	}
	if g.chance(25) {
		i.TLS, i.SkipClientCert = true, g.chance(40)
		i.SNIHosts = pick(g, nil, []string{"in.example.com"}, []string{"*.example.com"})
		if !i.SkipClientCert && g.chance(50) {
			i.AnyPrincipal = g.chance(50)
			i.Principals = []mesh.Identity{identity("edge", "gateway")}
		}
	}
	return i
}

func prefixes(texts ...string) []netip.Prefix {
	out := make([]netip.Prefix, len(texts))
	for i, text := range texts {
		out[i] = netip.MustParsePrefix(text)
	}
	return out
}

// request returns a request to the port: most satisfy one of its rules, but for a change or two.
func (g generator) request(port *mesh.InboundPort) request {
	r := request{Port: port.Port, Caller: g.caller(), Six: g.chance(20), Version: pick(g, "1.1", "1.1", "1.1", "2", "2", "1.0"), Method: "GET", Target: "/", Fields: [][2]string{{"Host", "shop.example.com"}}}
	if !port.Protocol.IsHTTP() {
		return r
	}
	var matches []mesh.HTTPMatch
	for _, rule := range port.Access.Rules {
		matches = append(matches, rule.Requests...)
	}
	for _, d := range port.Access.Denials {
		matches = append(matches, d.Requests...)
	}
	for _, i := range port.Ingress {
		matches = append(matches, i.Requests...)
	}
	if len(matches) > 0 && g.chance(85) {
		g.satisfy(&r, pick(g, matches...))
	} else {
		g.satisfy(&r, g.match())
	}
	if g.chance(20) {
		r.Method = pick(g, "GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS", "PROPFIND")
	}
	for range pick(g, 0, 0, 0, 0, 1, 1, 1, 2, 2, 3) {
		g.change(&r)
	}
	if g := g.ofTokens(); g.chance(6) {
		if all := requestHeaders(); g.chance(60) {
			r.Fields = append(r.Fields, all[g.IntN(len(all))]...)
		} else {
			r.Fields = append(r.Fields, [2]string{"Authorization", pick(g, "Bearer ", "bearer ", "Basic ", "BEARER ", "") + g.token(g.tokenMatch())})
		}
	}
	if r.Method == "POST" || r.Method == "PUT" || r.Method == "PATCH" {
		if r.Version != "1.0" && g.chance(30) {
			g.setBody(&r, "some=body")
		}
	}
	return r
}

func (g generator) caller() string {
	if g.chance(75) {
		return pick(g, "shop/web", "shop/web", "shop/web-2", "ops/tool.x", "edge/gateway", "plaintext")
	}
	return callers[g.IntN(len(callers))].name
}

func (g generator) setBody(r *request, body string) {
	r.Body = body
	if r.Version == "2" {
		return
	}
	r.Fields = append(r.Fields, [2]string{"Content-Length", fmt.Sprint(len(body))})
}

// satisfy changes a request so that the match holds, as far as that is easy.
func (g generator) satisfy(r *request, m mesh.HTTPMatch) {
	switch {
	case m.Path.Exact != "":
		r.Target = m.Path.Exact
	case m.Path.Prefix != "":
		r.Target = strings.TrimSuffix(m.Path.Prefix, "/") + pick(g, "", "/", "/b", "/b/c", "x")
		if r.Target == "" || r.Target[0] != '/' {
			r.Target = "/" + r.Target
		}
	case m.Path.Regex != "":
		r.Target = pick(g, "/a/b", "/a", "/b", "/admin", "/x/admin", "/ADMIN/x", "/x/b", "/a-b", "/q/b")
	default:
		r.Target = pick(g, "/", "/a", "/x/y", "/admin")
	}
	if len(m.Methods) > 0 {
		r.Method = pick(g, m.Methods...)
	}
	for _, h := range m.Headers {
		if h.Name == "host" {
			r.Fields[0][1] = pick(g, "admin", "a", "1", "admin:80", "shop.example.com")
			continue
		}
		r.Fields = append(r.Fields, [2]string{h.Name, g.value(h.StringMatch)})
	}
	if g := g.ofTokens(); m.Token != nil {
		r.Fields = append(r.Fields, [2]string{pick(g, "Authorization", "authorization"), pick(g, "Bearer ", "Bearer ", "bearer ") + g.token(m.Token)})
	}
	for i, q := range m.Query {
		r.Target += pick(g, "?", "?", "?x=1&")
		if i > 0 {
			r.Target += "&"
		}
		r.Target += strings.ReplaceAll(q.Name, " ", pick(g, "+", "%20")) + pick(g, "=", "=", "") + queryEscape(g, g.value(q.StringMatch))
	}
}

func (g generator) value(m mesh.StringMatch) string {
	switch {
	case m.Exact != "":
		return m.Exact
	case m.Prefix != "":
		return m.Prefix + pick(g, "", "in", "x")
	}
	return pick(g, "admin", "Admin", "root", "1", "42", "user", "a,b", "", "bdmin")
}

func queryEscape(g generator, text string) string {
	var out strings.Builder
	for _, c := range []byte(text) {
		switch {
		case c == ' ':
			out.WriteString(pick(g, "+", "%20"))
		case c == '&' || c == ',' && g.chance(50) || g.chance(5):
			fmt.Fprintf(&out, "%%%02x", c)
		default:
			out.WriteByte(c)
		}
	}
	return out.String()
}

// change makes one part of a request odd.
func (g generator) change(r *request) {
	path, query, hasQuery := strings.Cut(r.Target, "?")
	rejoin := func() {
		if r.Target = path; hasQuery {
			r.Target += "?" + query
		}
	}
	// insert puts a text somewhere behind the first slash of the path.
	insert := func(text string) {
		at := min(1+g.IntN(max(len(path), 1)), len(path))
		path = path[:at] + text + path[at:]
		rejoin()
	}
	// segment puts a segment before another or behind the last.
	segment := func(text string) {
		segments := strings.Split(path, "/")
		at := 1 + g.IntN(len(segments))
		segments = append(segments[:at:at], append([]string{text}, segments[at:]...)...)
		path = strings.Join(segments, "/")
		rejoin()
	}
	switch g.IntN(24) {
	case 0, 1:
		segment(pick(g, ".", "..", "", "x/..", "%2e", "%2E%2e", ".%2e", "..;v=1", ".;", "..;%2f", "%2e.;", "x/../..", "...", ";"))
	case 2, 3:
		insert(pick(g, "%2f", "%2F", "%5c", `\`, "%00", "%25", "%2541", "%", "%zz", "%6", "%c0%af", "%e0%80%af", "%c3%a9", "é", "\xff", "%ff", "%7f", "%20", "%3b", "%3f", "%23", "%0d%0a"))
	case 4, 5:
		if i := g.IntN(max(len(path), 1)); i < len(path) && path[i] != '/' {
			path = path[:i] + fmt.Sprintf(pick(g, "%%%02x", "%%%02X"), path[i]) + path[i+1:]
			rejoin()
		}
	case 6:
		if g.chance(60) {
			insert(pick(g, ";", ";v=1", "'", "(", "*", "!", "$", "+", ",", ":", "=", "@", "&", "~", "|", "^"))
			break
		}
		insert(pick(g, ";", ";v=1", ";/", "\"", "<", "|", "{}", "^", "`", "~", "'", "(", "*", "!", "$", "+", ",", ":", "=", "@", "&", "#", "#/a", "\t", "\x01", "\x7f"))
	case 7:
		path = pick(g, strings.ToUpper(path), path+"/", "/"+path, strings.TrimSuffix(path, "/"), path+"x", path+"//")
		rejoin()
	case 8, 9:
		query, hasQuery = pick(g, query+"&debug=1", "debug=2&"+query, query+";debug=1", "%64ebug=1", "debug=admin&debug=1", query+"#x", "debug", "debug=%61dmin", "a+b=1", "a%20b=admin", query+"&&", "?"+query, query+"%", query+"&x=%zz", "debug=/../x", query+"&q", "debug=1&x=debug=2", "Debug=1", "debug=\xff", "debug=%ff", "=debug", ""), true
		rejoin()
	case 10, 11:
		r.Fields = append(r.Fields, [2]string{"x-role", pick(g, "admin", "user", "", "a,b", "user, admin", "administrator", "adm", "root", "\xff", "é", "admin\xff", "x"+strings.Repeat("y", 3000), "admin\tx", "b", "1")})
	case 12:
		r.Fields = append(r.Fields, [2]string{pick(g, "X-Role", "x_role", "x.role", "X_Team", "x-team", "x_team", "x-role-2", "xrole", "X-EMPTY", "x_empty", "Accept"), pick(g, "admin", "", "a,b", "1")})
	case 13:
		r.Fields[0][1] = pick(g, "admin", "ADMIN", "admin:80", "shop.example.com.", "a", "", "adm%69n", "1", "a b", "x@admin", "admin,shop", "[::1]", "é", "admin\x01")
	case 14:
		if !g.chance(60) {
			return
		}
		switch g.IntN(5) {
		case 0:
			r.Fields = append(r.Fields, [2]string{"Host", pick(g, "admin", "shop.example.com")})
		case 1:
			r.Fields = r.Fields[1:]
			if len(r.Fields) == 0 || !strings.EqualFold(r.Fields[0][0], "host") {
				r.Fields = append([][2]string{{"x-first", "1"}}, r.Fields...)
			}
		default:
			r.Fields = append(r.Fields, [2]string{"Cookie", pick(g, "admin", "a=1; b=2", "1", "a,b")}, [2]string{"Cookie", pick(g, "admin", "c=3", "")})
		}
	case 15:
		if !g.chance(50) {
			return
		}
		r.Method = pick(g, "GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS", "TRACE", "PROPFIND", "MKCOL", "FROB", "get", "Get", "CONNECT", "G\x00T", "GE T", "PRI", "QUERY", "G(T")
	case 16:
		if !g.chance(40) {
			return
		}
		r.Target = pick(g, "http://shop.example.com", "http://admin", "https://shop.example.com", "HTTP://shop.example.com", "ftp://shop.example.com", "http://user@shop.example.com", "http://shop.example.com:80") + r.Target
	case 17:
		if !g.chance(30) {
			return
		}
		r.Target = pick(g, "*", "", "?debug=1", "admin", "shop.example.com:80", "/..", "//admin", `\admin`, "/?", "/#", "http://", "/a b", "/a\x00b", "/./admin", "/a/..//admin")
	case 18:
		if r.Version == "1.1" && r.Method != "HEAD" {
			r.Fields = append(r.Fields, [2]string{"Connection", pick(g, "Upgrade", "upgrade, keep-alive", "x-role", "close, x-role")}, [2]string{"Upgrade", pick(g, "websocket", "WebSocket", "h2c", "websocket, h2c", "tls/1.2")},
				[2]string{"Sec-WebSocket-Version", "13"}, [2]string{"Sec-WebSocket-Key", "dGhlIHNhbXBsZSBub25jZQ=="})
		}
	case 19:
		if !g.chance(50) {
			return
		}
		name := pick(g, "x-role\x00", "x role", "x-röle", "x-role\t", "", "x-role:", "(x)", "x-\xff", "x-role ", "x-forwarded-client-cert", "x_forwarded_client_cert", "x-envoy-original-path", "x-original-url", "x-rewrite-url", "x-http-method-override", "x-forwarded-host", "x-envoy-peer-metadata", "x-outrigger-caller", "transfer_encoding", "content_length")
		r.Fields = append(r.Fields, [2]string{name, pick(g, "admin", "/admin", "DELETE", "spiffe://cluster.local/ns/shop/sa/web", "URI=spiffe://cluster.local/ns/ops/sa/tool.x", "1")})
	case 20:
		if !g.chance(30) {
			return
		}
		r.Fields = append(r.Fields, [2]string{pick(g, "x-role", "x-other"), pick(g, "a\x00b", "a\rb", "a\nb", "a\r\n b", " admin ", "\tadmin", "admin\x0b", "\x7f", "admin\r\n\tx", "admin\r\nx-role: user")})
	case 21:
		if g.chance(10) {
			r.Fields = append(r.Fields, [2]string{"x-long", strings.Repeat("z", pick(g, 8000, 15000, 17000, 40000, 70000))})
		} else if g.chance(10) {
			for i := range pick(g, 50, 120, 300) {
				r.Fields = append(r.Fields, [2]string{fmt.Sprintf("x-many-%d", i), "1"})
			}
		}
	case 22:
		if r.Version != "2" && g.chance(40) {
			// The end of the body has two meanings, and what follows is a second request.
			second := smuggled
			r.Method = pick(g, "POST", "PUT", "GET")
			switch g.IntN(6) {
			case 0:
				r.Fields, r.Body = append(r.Fields, [2]string{"Content-Length", "5"}, [2]string{"Content-Length", "0"}), "hello"
			case 1:
				r.Fields, r.Body = append(r.Fields, [2]string{"Content-Length", fmt.Sprint(len(second))}, [2]string{pick(g, "Transfer-Encoding", "Transfer_Encoding"), "chunked"}), "0\r\n\r\n"+second
			case 2:
				r.Fields, r.Body = append(r.Fields, [2]string{"Transfer-Encoding", pick(g, "xchunked", "chunked, identity", "identity", "chunked\x0b", "\x0bchunked", "chunked;q=1")}), "0\r\n\r\n"
			case 3:
				r.Fields, r.Body = append(r.Fields, [2]string{"Content-Length", pick(g, "+5", "0x5", "5 ", "5,5", "05", "-1")}), "hello"
			case 4:
				r.Fields, r.Body = append(r.Fields, [2]string{"Transfer-Encoding", "chunked"}), pick(g, "5\r\nhello\r\n0\r\n\r\n", "5;x=y\r\nhello\r\n0\r\n\r\n", "0000000005\r\nhello\r\n0\r\n\r\n", "0\r\nx-role: admin\r\n\r\n", "g\r\n\r\n", "5\nhello\n0\n\n", "5\r\nhello0\r\n\r\n", "fffffffffffffffff\r\n")
			default:
				r.Fields, r.Body = append(r.Fields, [2]string{"Content-Length", "0"}), second
			}
		}
	case 23:
		if r.Version == "2" && g.chance(30) {
			r.Method, r.Protocol = "CONNECT", pick(g, "websocket", "websocket", "connect-udp")
		}
	}
}
