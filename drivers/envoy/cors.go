package envoy

import (
	"slices"
	"strconv"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	routev3 "github.com/envoyproxy/go-control-plane/envoy/config/route/v3"

	"github.com/outrigger-mesh/outrigger/mesh"
)

// writeCORS writes what precedes a route with CORS: routes that answer preflight requests,
// and the same route for requests whose origin matches, with headers for the answer. Envoy's
// filter for CORS would pass on preflight requests of other origins, and be part of every
// listener.
func writeCORS(e *encoder, d *mesh.Destination, r *mesh.Route) {
	withHeaders := func(m mesh.HTTPMatch, headers ...mesh.KeyMatch) mesh.HTTPMatch {
		m.Headers = append(slices.Clip(m.Headers), headers...)
		return m
	}
	present := mesh.StringMatch{Present: true}
	allowed := mesh.KeyMatch{Name: "origin", StringMatch: r.CORS.Origin}
	asked := mesh.KeyMatch{Name: "access-control-request-method", StringMatch: present}
	if len(r.Match.Methods) == 0 || slices.Contains(r.Match.Methods, "OPTIONS") {
		preflight := r.Match
		preflight.Methods = []string{"OPTIONS"}
		listed := mesh.KeyMatch{Name: "access-control-request-headers", StringMatch: present}
		for _, answer := range []struct {
			match   mesh.HTTPMatch
			headers []*corev3.HeaderValueOption
		}{
			{withHeaders(preflight, allowed, asked, listed), preflightHeaders(r.CORS, true)},
			{withHeaders(preflight, allowed, asked), preflightHeaders(r.CORS, false)},
			{withHeaders(preflight, mesh.KeyMatch{Name: "origin", StringMatch: present}, asked), nil},
		} {
			e.accepted(r, answer.match, func(own *encoder) {
				own.part(&routev3.Route{Name: r.Name(), Match: match(answer.match), Action: respond(204), ResponseHeadersToAdd: answer.headers})
			})
		}
	}
	shared := *r
	shared.Match = withHeaders(r.Match, allowed)
	e.accepted(r, shared.Match, func(own *encoder) {
		writeRoute(own, d, &shared)
		own.part(&routev3.Route{ResponseHeadersToAdd: originHeaders(r.CORS)})
	})
}

// preflightHeaders returns the headers of an answer to a preflight request, which may have
// listed headers.
func preflightHeaders(c *mesh.CORS, listed bool) []*corev3.HeaderValueOption {
	headers := append(originHeaders(c), setHeader("access-control-max-age", literal(strconv.Itoa(int(c.MaxAge)))))
	if c.Methods == "*" {
		headers = append(headers, setHeader("access-control-allow-methods", "%REQ(access-control-request-method)%"))
	} else if c.Methods != "" {
		headers = append(headers, setHeader("access-control-allow-methods", literal(c.Methods)))
	}
	if c.Headers == "*" && listed {
		headers = append(headers, setHeader("access-control-allow-headers", "%REQ(access-control-request-headers)%"))
	} else if c.Headers != "*" && c.Headers != "" {
		headers = append(headers, setHeader("access-control-allow-headers", literal(c.Headers)))
	}
	return headers
}

func originHeaders(c *mesh.CORS) []*corev3.HeaderValueOption {
	headers := []*corev3.HeaderValueOption{
		setHeader("access-control-allow-origin", "%REQ(origin)%"),
		headerOption("vary", "Origin", corev3.HeaderValueOption_APPEND_IF_EXISTS_OR_ADD),
	}
	if c.Credentials {
		headers = append(headers, setHeader("access-control-allow-credentials", "true"))
	}
	if c.Expose != "" {
		headers = append(headers, setHeader("access-control-expose-headers", literal(c.Expose)))
	}
	return headers
}

func setHeader(name string, value format) *corev3.HeaderValueOption {
	return headerOption(name, value, corev3.HeaderValueOption_OVERWRITE_IF_EXISTS_OR_ADD)
}
