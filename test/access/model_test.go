package access

import (
	"slices"
	"strings"
	"time"

	"github.com/outrigger-mesh/outrigger/mesh"
	"github.com/outrigger-mesh/outrigger/sidecar/drivertest"
)

// arrival returns the arrival of the request for the model, without the request.
func (r *request) arrival(port *mesh.InboundPort) mesh.Arrival {
	c := callerNamed(r.Caller)
	a := mesh.Arrival{Port: r.Port, Source: r.source(), Security: c.security, ServerName: c.serverName, Peer: c.peer}
	if a.Security == mesh.OtherTLS && !endsTLS(port) {
		// The application ends the TLS, and the proxy sees no certificate.
		a.Peer = mesh.Identity{}
	}
	return a
}

// endsTLS reports whether a proxy may end the TLS of clients outside the mesh.
func endsTLS(port *mesh.InboundPort) bool {
	return slices.ContainsFunc(port.Ingress, func(i mesh.Ingress) bool { return i.TLS })
}

// may reports whether the model allows what the application got: a request, or a connection if it
// is nil.
func may(in *mesh.Inbound, r *request, got *received) mesh.Decision {
	port, _ := in.PortOf(r.Port)
	a := r.arrival(&port)
	if got == nil || a.Security == mesh.OtherTLS && !endsTLS(&port) {
		return in.Decide(a)
	}
	target, host := originForm(got.target)
	if hosts := got.values("host"); len(hosts) > 0 && host == "" {
		host = hosts[0]
	}
	method := got.method
	if got.values(":protocol") != nil {
		// A WebSocket of HTTP/1.1 is a CONNECT of HTTP/2.
		method = "GET"
	}
	var ok bool
	if a.Request, ok = port.Normalize(requestOf(method, target, host, got.fields)); !ok {
		return mesh.Decision{Reason: "NoNormalPath"}
	}
	a.Request.Token = mesh.VerifyToken(in.Issuers, a.Request, time.Now())
	return in.Decide(a)
}

// originForm returns the path and query of a target, and the host if it is absolute.
func originForm(target string) (path, host string) {
	_, rest, absolute := strings.Cut(target, "://")
	if !absolute || target[0] == '/' {
		return target, ""
	}
	end := strings.IndexAny(rest, "/?")
	if end < 0 {
		end = len(rest)
	}
	if host, path = rest[:end], rest[end:]; path == "" || path[0] == '?' {
		path = "/" + path
	}
	return path, host
}

func requestOf(method, target, host string, fields [][2]string) *mesh.Request {
	out := &mesh.Request{Method: method, Path: target, Host: host, Headers: make(map[string][]string)}
	for _, f := range fields {
		name := strings.ToLower(f[0])
		out.Headers[name] = append(out.Headers[name], f[1])
	}
	return out
}

// must returns what the model decides about a request that is not odd, as a proxy forwards it.
func must(in *mesh.Inbound, r *request, how drivertest.Forwarding) mesh.Decision {
	port, _ := in.PortOf(r.Port)
	a := r.arrival(&port)
	if callerNamed(r.Caller).refused {
		return mesh.Decision{Reason: "NoHandshake"}
	}
	if a.Security == mesh.OtherTLS && endsTLS(&port) {
		// A proxy that ends the client's TLS refuses what no rule allows.
		return mesh.Decision{Reason: "EndsTLS"}
	}
	if !port.Protocol.IsHTTP() {
		return in.Decide(a)
	}
	target, host := originForm(r.Target)
	for _, f := range r.Fields {
		if host == "" && strings.EqualFold(f[0], "host") {
			host = f[1]
		}
	}
	asked := requestOf(r.Method, target, host, r.Fields)
	for name, lines := range asked.Headers {
		for i := range lines {
			lines[i] = strings.Trim(lines[i], " \t")
		}
		switch {
		case name == "cookie" && r.Version == "2":
			asked.Headers[name] = []string{strings.Join(lines, "; ")}
		case how.JoinsLines:
			asked.Headers[name] = []string{strings.Join(lines, ",")}
		}
	}
	var ok bool
	if a.Request, ok = how.Compared(&port, asked); !ok {
		return mesh.Decision{Reason: "NoNormalPath"}
	}
	a.Request.Token = mesh.VerifyToken(in.Issuers, a.Request, time.Now())
	return in.Decide(a)
}

// ordinary are the methods that every proxy knows.
var ordinary = []string{"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS", "TRACE", "PROPFIND", "MKCOL"}

const tokenCharacters = "!#$%&'*+-.^_`|~0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"

func isToken(text string) bool {
	return text != "" && !strings.ContainsFunc(text, func(c rune) bool { return !strings.ContainsRune(tokenCharacters, c) })
}

// odd returns why a proxy of the class may refuse the request whatever the rules are, or "".
// docs/access.md has the list.
func (r *request) odd(c *class, port *mesh.InboundPort) string {
	if !port.Protocol.IsHTTP() {
		return ""
	}
	switch {
	case !isToken(r.Method) || strings.ContainsAny(r.Method, "abcdefghijklmnopqrstuvwxyz"):
		return "a method that is no word in capital letters"
	case r.Method == "CONNECT" || r.Method == "PRI" || r.Protocol != "":
		return "a tunnel"
	case !slices.Contains(ordinary, r.Method) && c.name == "envoy":
		return "an unusual method"
	case r.Method == "TRACE":
		return "TRACE"
	}
	if why := oddTarget(r, c); why != "" {
		return why
	}
	if r.Version != "2" && port.Protocol != mesh.HTTP && r.Version == "1.0" {
		return "HTTP/1.0 for an application with HTTP/2"
	}
	return oddFields(r, c)
}

func oddTarget(r *request, c *class) string {
	t := r.Target
	if scheme, rest, ok := strings.Cut(t, "://"); ok && t[0] != '/' {
		end := strings.IndexAny(rest, "/?")
		if end < 0 {
			end = len(rest)
		}
		switch host := rest[:end]; {
		case r.Version == "2":
			return "an absolute target in HTTP/2"
		case scheme != "http" || host == "" || strings.ContainsAny(host, "@"):
			return "an absolute target with another scheme, or with a user"
		case len(r.Fields) == 0 || !strings.EqualFold(r.Fields[0][0], "host") || r.Fields[0][1] != host:
			return "an absolute target of another host"
		}
		t = rest[end:]
		if t == "" || t[0] != '/' {
			return "an absolute target without a path"
		}
	}
	if t == "" || t[0] != '/' {
		return "a target without a slash"
	}
	if _, ok := mesh.NormalPath(t); !ok && c.name == "pipy" {
		return "a path that has no normal form"
	}
	for i := range len(t) {
		switch b := t[i]; {
		case b <= ' ' || b == 0x7f || b == '#':
			return "a target with a control character, a space or #"
		case b >= 0x80:
			return "a target with bytes that are not ASCII"
		}
	}
	return ""
}

func oddFields(r *request, c *class) string {
	size, hosts, lengths, upgrades := 0, 0, 0, 0
	for _, f := range r.Fields {
		name, value := strings.ToLower(f[0]), f[1]
		size += len(name) + len(value) + 4
		switch {
		case !isToken(f[0]):
			return "a name of a header that is no word"
		case r.Version == "2" && name != f[0] && name != "host":
			return "capital letters in a name with HTTP/2"
		case name == "transfer-encoding" || name == "te" || name == "expect":
			return "chunks, or an expectation"
		case name == "connection" || name == "upgrade":
			if r.Version != "1.1" || r.Method != "GET" || strings.Contains(value, "x-role") || slices.ContainsFunc(r.Fields, func(f [2]string) bool {
				return strings.EqualFold(f[0], "upgrade") && !strings.EqualFold(f[1], "websocket")
			}) {
				return "a header of the connection, in another request than a WebSocket's"
			}
			if upgrades++; upgrades > 2 {
				return "a header of the connection, in another request than a WebSocket's"
			}
		case name == "content-length":
			if lengths++; lengths > 1 || r.Version == "2" || value != "9" || r.Body != "some=body" {
				return "a length of the body with two meanings"
			}
		case name == "host":
			if hosts++; hosts > 1 || value == "" || strings.Trim(value, "0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ.-:") != "" {
				return "no host, several, or one that is no name"
			}
		}
		for i := range len(value) {
			switch b := value[i]; {
			case b < ' ' && b != '\t' || b == 0x7f:
				return "a value of a header with a control character"
			case b >= 0x80 && c.name == "haproxy":
				return "a value of a header with bytes that are not ASCII"
			}
		}
		if len(name)+len(value) > 16000 && c.name == "pipy" {
			return "a long header"
		}
	}
	switch {
	case hosts == 0:
		return "no host, several, or one that is no name"
	case size > 60_000 || len(r.Fields) > 240:
		return "many or long headers"
	case r.Body != "" && lengths == 0 && r.Version != "2":
		return "a length of the body with two meanings"
	}
	return ""
}
