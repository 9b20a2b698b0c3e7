package mesh

import (
	"slices"
	"strings"
)

// ComparesPath reports whether a route compares a path. If none does, the path is forwarded
// as it came, since some applications sign paths.
func (d *Destination) ComparesPath() bool {
	return slices.ContainsFunc(d.Routes, func(r Route) bool { return r.Match.comparesPath() })
}

// Normalize returns the request as the routes compare it and as it is forwarded, apart from
// the changes of its route: with the NormalPath if the Destination ComparesPath. It returns
// false if no route matches, whatever it compares: the answer is 404, or 400 if the proxy
// takes the path for invalid. It does not change the argument, which is nil for a connection.
func (d *Destination) Normalize(r *Request) (*Request, bool) {
	if r == nil || !d.ComparesPath() {
		return r, true
	}
	return r.withNormalPath()
}

// ComparesPath reports whether a match of a host compares a path. If none does, the path is
// forwarded as it came.
func (r *EgressRoutes) ComparesPath() bool {
	return slices.ContainsFunc(r.Hosts, func(h EgressHost) bool {
		return slices.ContainsFunc(h.Matches, HTTPMatch.comparesPath) || slices.ContainsFunc(h.Within, func(w EgressWithin) bool {
			return slices.ContainsFunc(w.Matches, HTTPMatch.comparesPath)
		})
	})
}

// Normalize does for requests to hosts outside the mesh what Destination.Normalize does.
func (r *EgressRoutes) Normalize(request *Request) (*Request, bool) {
	if request == nil || !r.ComparesPath() {
		return request, true
	}
	return request.withNormalPath()
}

// ComparesPath reports whether a rule or a limit of the port compares a path. If none does,
// the application gets the path as it came. Rules that are only audited do not count: an audit
// changes no request.
func (p *InboundPort) ComparesPath() bool {
	for _, rule := range p.Access.Denials {
		if slices.ContainsFunc(rule.Requests, HTTPMatch.comparesPath) {
			return true
		}
	}
	if !p.Access.Anyone {
		for _, rule := range p.Access.Rules {
			if slices.ContainsFunc(rule.Requests, HTTPMatch.comparesPath) {
				return true
			}
		}
	}
	for _, rule := range p.Ingress {
		if slices.ContainsFunc(rule.Requests, HTTPMatch.comparesPath) {
			return true
		}
	}
	return len(p.Limits.Routes) > 0
}

// Normalize returns the request as the rules of the port compare it and as the application
// gets it: if the port ComparesPath, with the NormalPath, in which several slashes in a row
// become one. It returns false if no rule may permit the request: the answer is 403, or 400 if
// the proxy takes the path for invalid. A proxy that cannot normalize paths may instead refuse
// every request that this changes and whose rule has a path that is not exact; see Permits.
func (p *InboundPort) Normalize(r *Request) (*Request, bool) {
	if r == nil || !p.Protocol.IsHTTP() || !p.ComparesPath() {
		return r, true
	}
	normal, ok := r.withNormalPath()
	if !ok {
		return nil, false
	}
	path, query, hasQuery := strings.Cut(normal.Path, "?")
	for strings.Contains(path, "//") {
		path = strings.ReplaceAll(path, "//", "/")
	}
	if normal.Path = path; hasQuery {
		normal.Path += "?" + query
	}
	return normal, true
}

func (r *Request) withNormalPath() (*Request, bool) {
	path, ok := NormalPath(r.Path)
	if !ok {
		return nil, false
	}
	normal := *r
	normal.Path = path
	return &normal, true
}

// comparesPath reports whether m matches some paths and not others.
func (m HTTPMatch) comparesPath() bool { return m.Path.Exact != "" || m.Path.isPattern() }
