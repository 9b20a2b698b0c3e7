package haproxy

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"github.com/outrigger-mesh/outrigger/mesh"
)

// changesOf returns the lines of a target that change requests and responses. What HAProxy
// can't express answers 500 instead.
func changesOf(r *mesh.Route, to mesh.WeightedBackend) []string {
	lines := append(corsLines(r.CORS), headerLines("http-request", to.Request)...)
	lines = append(lines, headerLines("http-response", to.Response)...)
	if rewrite := r.Rewrite; rewrite != nil {
		if rewrite.Host != "" {
			lines = append(lines, line("http-request set-header host", literal(rewrite.Host)))
		}
		if path := changedPath(rewrite.Path, r.Match.Path.Prefix); path != "" {
			lines = append(lines, "http-request set-path "+path)
		}
	}
	return lines
}

func headerLines(rule string, c mesh.HeaderChanges) []string {
	var lines []string
	for _, h := range c.Set {
		lines = append(lines, line(rule+" set-header "+h.Name, literal(h.Value)))
	}
	for _, h := range c.Add {
		add := line(rule+" add-header "+h.Name, literal(h.Value))
		if rule == "http-request" && h.Name != "cookie" && word.MatchString(h.Name) {
			// HAProxy can join a value with one line, but not with several.
			one := fmt.Sprintf("{ req.fhdr_cnt(%s) eq 1 }", h.Name)
			lines = append(lines, line(rule+" set-header "+h.Name, fmt.Sprintf("%%[req.fhdr(%s)],", h.Name)+literal(h.Value))+" if "+one)
			add += " unless " + one
		}
		lines = append(lines, add)
	}
	for _, name := range c.Remove {
		lines = append(lines, rule+" del-header "+name)
	}
	return lines
}

// corsLines answers preflight requests, and adds the headers for other origins to answers.
func corsLines(c *mesh.CORS) []string {
	if c == nil {
		return nil
	}
	origins := []string{"req.fhdr(origin) -m found"}
	if !c.Origin.Present {
		origins = value("req.fhdr(origin)", c.Origin)
	}
	var lines []string
	for _, origin := range origins {
		lines = append(lines, "acl cors-origin "+origin)
	}
	lines = append(lines, "http-request set-var(txn.origin) req.fhdr(origin) if cors-origin")
	const preflight, allowed, listed = "{ method OPTIONS } { req.fhdr(origin) -m found } { req.fhdr(access-control-request-method) -m found }",
		"{ var(txn.origin) -m found }", "{ req.fhdr(access-control-request-headers) -m found }"
	origin := []string{"access-control-allow-origin %[var(txn.origin)]", "vary Origin"}
	if c.Credentials {
		origin = append(origin, "access-control-allow-credentials true")
	}
	answer := append(slices.Clip(origin), fmt.Sprintf("access-control-max-age %d", c.MaxAge))
	if c.Methods != "" {
		answer = append(answer, "access-control-allow-methods "+asked(c.Methods, "access-control-request-method"))
	}
	answers := func(headers []string, conditions ...string) {
		line := "http-request return status 204"
		for _, h := range headers {
			line += " hdr " + h
		}
		lines = append(lines, line+" if "+preflight+" "+strings.Join(conditions, " "))
	}
	if c.Headers != "" {
		conditions := []string{allowed}
		if c.Headers == "*" {
			conditions = append(conditions, listed)
		}
		answers(append(slices.Clip(answer), "access-control-allow-headers "+asked(c.Headers, "access-control-request-headers")), conditions...)
	}
	answers(answer, allowed)
	answers(nil)
	if c.Expose != "" {
		origin = append(origin, "access-control-expose-headers "+quote(literal(c.Expose)))
	}
	for _, h := range origin {
		set := "set-header "
		if strings.HasPrefix(h, "vary ") {
			set = "add-header "
		}
		lines = append(lines, "http-response "+set+h+" if "+allowed)
	}
	return lines
}

// asked returns the format of a value of CORS: "*" is what the request's header asks for.
func asked(value, header string) string {
	if value == "*" {
		return "%[req.fhdr(" + header + ")]"
	}
	return quote(literal(value))
}

// literal returns the format of a value: a percent sign begins a variable.
func literal(value string) string { return strings.ReplaceAll(value, "%", "%%") }

// line returns a rule with a format.
func line(rule, format string) string {
	if word := quote(format); word != "" || format == "" {
		return rule + " " + cmp.Or(word, "''")
	}
	return "http-request deny deny_status 500"
}

// changedPath returns the format of a new path, or "" if the path stays. The path without
// its prefix is what follows the prefix's length, since the route has matched.
func changedPath(change mesh.PathChange, prefix string) string {
	if change.Full != "" {
		return quote(literal(change.Full))
	}
	if change.Prefix == "" {
		return ""
	}
	rest := fmt.Sprintf("path,bytes(%d)", len(strings.TrimSuffix(prefix, "/")))
	to := strings.TrimSuffix(change.Prefix, "/")
	if to == "" {
		// Nothing but a slash is left of a path that is the prefix.
		return fmt.Sprintf(`'%%[%s,regsub(^/?,/)]'`, rest)
	}
	return quote(literal(to) + "%[" + rest + "]")
}

// redirect returns the name of a target that redirects all requests.
func (d *document) redirect(of *mesh.Destination, r *mesh.Route) string {
	to := r.Redirect
	host := cmp.Or(to.Host, "%[req.hdr(host),field(1,:)]")
	if port := to.PortFor(of.Port); port != 0 {
		host += fmt.Sprintf(":%d", port)
	}
	path := cmp.Or(strings.Trim(changedPath(to.Path, r.Match.Path.Prefix), "'"), "%[path]")
	location := cmp.Or(to.Scheme, "http") + "://" + host + path
	name := "redirect_" + mesh.DigestOf([]string{location, fmt.Sprint(to.Status)}).String()[:16]
	d.Redirects[name] = redirection{location, to.Status}
	return name
}

// redirection is a target that answers requests with another URL: a format, to which the
// query is appended.
type redirection struct {
	Location string
	Status   uint16
}
