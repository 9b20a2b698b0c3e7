package haproxy

import (
	"cmp"
	"fmt"
	"strings"

	"github.com/outrigger-mesh/outrigger/mesh"
)

// changesOf returns the lines of a target that change requests and responses. What HAProxy
// can't express answers 500 instead.
func changesOf(r *mesh.Route, to mesh.WeightedBackend) []string {
	lines := append(headerLines("http-request", to.Request), headerLines("http-response", to.Response)...)
	if rewrite := r.Rewrite; rewrite != nil {
		if rewrite.Host != "" {
			lines = append(lines, line("http-request set-header host", rewrite.Host))
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
		lines = append(lines, line(rule+" set-header "+h.Name, h.Value))
	}
	for _, h := range c.Add {
		lines = append(lines, line(rule+" add-header "+h.Name, h.Value))
	}
	for _, name := range c.Remove {
		lines = append(lines, rule+" del-header "+name)
	}
	return lines
}

// line returns a rule with a value, which is no format.
func line(rule, value string) string {
	if word := quote(strings.ReplaceAll(value, "%", "%%")); word != "" || value == "" {
		return rule + " " + cmp.Or(word, "''")
	}
	return "http-request deny deny_status 500"
}

// changedPath returns the format of a new path, or "" if the path stays. The path without
// its prefix is what follows the prefix's length, since the route has matched.
func changedPath(change mesh.PathChange, prefix string) string {
	if change.Full != "" {
		return quote(strings.ReplaceAll(change.Full, "%", "%%"))
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
	return quote(strings.ReplaceAll(to, "%", "%%") + "%[" + rest + "]")
}

// redirect returns the name of a target that redirects all requests.
func (d *document) redirect(of *mesh.Destination, r *mesh.Route) string {
	to := r.Redirect
	host := "%[req.hdr(host),field(1,:)]"
	if to.Host != "" {
		host = to.Host
	}
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
