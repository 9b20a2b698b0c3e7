package haproxy

import (
	"cmp"
	"strings"

	"github.com/outrigger-mesh/outrigger/drivers/haproxy/syntax"
	"github.com/outrigger-mesh/outrigger/mesh"
)

// refusal answers requests whose changes HAProxy can't express.
var refusal = syntax.Literal("http-request deny deny_status 500")

// changesOf returns the lines of a target that change requests and responses. What HAProxy
// can't express answers 500 instead.
func changesOf(r *mesh.Route, backend mesh.WeightedBackend) []syntax.Text {
	lines := append(corsLines(r.CORS, syntax.Literal("http-response"), syntax.Text{}), headerLines(syntax.Literal("http-request"), true, backend.Request)...)
	lines = append(lines, headerLines(syntax.Literal("http-response"), false, backend.Response)...)
	if rewrite := r.Rewrite; rewrite != nil {
		if rewrite.Host != "" {
			lines = append(lines, withFormat(syntax.Literal("http-request set-header host"), syntax.Value(rewrite.Host)))
		}
		if path := changedPath(rewrite.Path, r.Match.Path.Prefix); !path.IsZero() {
			lines = append(lines, withFormat(syntax.Literal("http-request set-path"), path))
		}
	}
	return lines
}

func headerLines(rule syntax.Text, isRequest bool, c mesh.HeaderChanges) []syntax.Text {
	var lines []syntax.Text
	change := func(action syntax.Text, name string, value syntax.Format, condition syntax.Text) {
		line := refusal
		if word, ok := syntax.Word(name); ok {
			line = withFormat(syntax.Fill("{} {} {}", rule, action, word), value)
		}
		lines = append(lines, syntax.Fill("{}{}", line, condition))
	}
	set, add := syntax.Literal("set-header"), syntax.Literal("add-header")
	for _, h := range c.Set {
		change(set, h.Name, syntax.Value(h.Value), syntax.Text{})
	}
	for _, h := range c.Add {
		count, ok := syntax.Fetch("req.fhdr_cnt({})", syntax.Name(h.Name)).Word()
		_, valid := syntax.Value(h.Value).Word()
		if !isRequest || h.Name == "cookie" || !ok || !valid {
			change(add, h.Name, syntax.Value(h.Value), syntax.Text{})
			continue
		}
		// HAProxy can join a value with one line, but not with several.
		joined := syntax.Fetched(syntax.Fetch("req.fhdr({})", syntax.Name(h.Name))).Then(syntax.Constant(","), syntax.Value(h.Value))
		change(set, h.Name, joined, syntax.Fill(" if { {} eq 1 }", count))
		change(add, h.Name, syntax.Value(h.Value), syntax.Fill(" unless { {} eq 1 }", count))
	}
	for _, name := range c.Remove {
		if word, ok := syntax.Word(name); ok {
			lines = append(lines, syntax.Fill("{} del-header {}", rule, word))
		} else {
			lines = append(lines, refusal)
		}
	}
	return lines
}

// corsLines answers preflight requests, and adds the headers for other origins to answers: rule
// is the kind of rule for that, and unless a condition for other answers.
func corsLines(c *mesh.CORS, rule, unless syntax.Text) []syntax.Text {
	if c == nil {
		return nil
	}
	origins := part{Lines: []syntax.Text{syntax.Literal("req.fhdr(origin) -m found")}}
	if !c.Origin.Present {
		origins = value(syntax.Fetch("req.fhdr(origin)"), c.Origin)
	}
	var lines []syntax.Text
	for _, origin := range origins.Lines {
		lines = append(lines, syntax.Fill("acl cors-origin {}", origin))
	}
	lines = append(lines, syntax.Literal("http-request set-var(txn.origin) req.fhdr(origin) if cors-origin"))
	preflight := syntax.Literal("{ method OPTIONS } { req.fhdr(origin) -m found } { req.fhdr(access-control-request-method) -m found }")
	allowed, listed := syntax.Literal("{ var(txn.origin) -m found }"), syntax.Literal("{ req.fhdr(access-control-request-headers) -m found }")
	origin := []syntax.Text{syntax.Literal("access-control-allow-origin %[var(txn.origin)]"), syntax.Literal("vary Origin")}
	if c.Credentials {
		origin = append(origin, syntax.Literal("access-control-allow-credentials true"))
	}
	if c.Expose != "" {
		origin = append(origin, syntax.Fill("access-control-expose-headers {}", asked(c.Expose, syntax.Literal("*"))))
	}
	answer := append(clone(origin), syntax.Fill("access-control-max-age {}", syntax.Number(c.MaxAge)))
	if c.Methods != "" {
		answer = append(answer, syntax.Fill("access-control-allow-methods {}", asked(c.Methods, syntax.Literal("%[req.fhdr(access-control-request-method)]"))))
	}
	answers := func(headers []syntax.Text, conditions ...syntax.Text) {
		line := syntax.Literal("http-request return status 204")
		for _, h := range headers {
			line = syntax.Fill("{} hdr {}", line, h)
		}
		lines = append(lines, syntax.Fill("{} if {}", line, syntax.Join(" ", append([]syntax.Text{preflight}, conditions...)...)))
	}
	if c.Headers != "" {
		conditions := []syntax.Text{allowed}
		if c.Headers == "*" {
			conditions = append(conditions, listed)
		}
		headers := syntax.Fill("access-control-allow-headers {}", asked(c.Headers, syntax.Literal("%[req.fhdr(access-control-request-headers)]")))
		answers(append(clone(answer), headers), conditions...)
	}
	answers(answer, allowed)
	answers(nil)
	for i, h := range origin {
		action := syntax.Literal("set-header")
		if i == 1 {
			// There may be other headers that an answer varies with.
			action = syntax.Literal("add-header")
		}
		lines = append(lines, syntax.Fill("{} {} {} if {}{}", rule, action, h, allowed, unless))
	}
	return lines
}

func clone(texts []syntax.Text) []syntax.Text { return append([]syntax.Text(nil), texts...) }

// asked returns the word for a value of CORS: for "*" it is the other one. A value that
// HAProxy can't express allows nothing.
func asked(value string, all syntax.Text) syntax.Text {
	if value == "*" {
		return all
	}
	if word, ok := syntax.Value(value).Word(); ok {
		return word
	}
	nothing, _ := syntax.Value("").Word()
	return nothing
}

// withFormat returns a rule with a format.
func withFormat(rule syntax.Text, format syntax.Format) syntax.Text {
	if word, ok := format.Word(); ok {
		return syntax.Fill("{} {}", rule, word)
	}
	return refusal
}

// changedPath returns the format of a new path, which is zero if the path stays. The path
// without its prefix is what follows the prefix's length, since the route has matched.
func changedPath(change mesh.PathChange, prefix string) syntax.Format {
	if change.Full != "" {
		return syntax.Value(change.Full)
	}
	if change.Prefix == "" {
		return syntax.Format{}
	}
	length := syntax.Length(strings.TrimSuffix(prefix, "/"))
	to := strings.TrimSuffix(change.Prefix, "/")
	if to == "" {
		// Nothing but a slash is left of a path that is the prefix.
		return syntax.Fetched(syntax.Fetch("path,bytes({}),regsub(^/?,/)", length))
	}
	return syntax.Value(to).Then(syntax.Fetched(syntax.Fetch("path,bytes({})", length)))
}

// redirect returns the name of a target that redirects all requests.
func (d *document) redirect(destination *mesh.Destination, r *mesh.Route) syntax.Text {
	to := r.Redirect
	host := syntax.Value(to.Host)
	if to.Host == "" {
		host = syntax.Constant("%[req.hdr(host),field(1,:)]")
	}
	if port := to.PortFor(destination.Port); port != 0 {
		host = host.Then(syntax.Constant(":"), syntax.Decimal(port))
	}
	path := changedPath(to.Path, r.Match.Path.Prefix)
	if path.IsZero() {
		path = syntax.Constant("%[path]")
	}
	location := syntax.Value(cmp.Or(to.Scheme, "http")).Then(syntax.Constant("://"), host, path)
	changed := syntax.Literal("http-after-response")
	out := redirection{Status: to.Status, Changes: headerLines(changed, false, to.Response)}
	if r.CORS != nil {
		// These rules also see the answers to preflight requests, which are no redirects.
		preflight := syntax.Literal(" !{ status 204 }")
		for i, line := range out.Changes {
			if line != refusal {
				out.Changes[i] = syntax.Fill("{} if{}", line, preflight)
			}
		}
		out.Changes = append(corsLines(r.CORS, changed, preflight), out.Changes...)
	}
	var ok bool
	if out.Location, ok = location.Word(); !ok {
		return unresolved
	}
	if out.WithQuery, ok = location.Then(syntax.Constant("?%[query]")).Word(); !ok {
		return unresolved
	}
	name := syntax.Fill("redirect_{}", syntax.Section(mesh.DigestOf([]string{out.Location.String(), syntax.Number(to.Status).String(), syntax.Join("\n", out.Changes...).String()}).String()[:16]))
	d.Redirects[name] = out
	return name
}

// redirection is a target that answers requests with another URL, with and without the query.
// Changes are lines that change the answer's headers.
type redirection struct {
	Location, WithQuery syntax.Text
	Status              uint16
	Changes             []syntax.Text
}

// limitLines returns the lines that add the headers of a limit to its answers.
func limitLines(name syntax.Text, l *mesh.RequestLimit) []syntax.Text {
	var lines []syntax.Text
	for _, h := range l.AddHeaders {
		header, ok := syntax.Word(h.Name)
		content, valid := syntax.Value(h.Value).Word()
		if ok && valid {
			lines = append(lines, syntax.Fill("http-after-response add-header {} {} if { var(txn.refused) -m str {} }", header, content, name))
		}
	}
	return lines
}

// hashLines returns the lines that set txn.hash to what a policy hashes.
func hashLines(b mesh.LoadBalancing) []syntax.Text {
	unset := syntax.Literal("if !{ var(txn.hash) -m found }")
	var lines []syntax.Text
	for i, on := range b.HashOn {
		header, isHeader := syntax.Fetch("req.fhdr({})", syntax.Name(on.Header)).Word()
		cookie, isCookie := syntax.Fetch("req.cook({})", syntax.Name(on.Cookie)).Word()
		switch {
		case on.Header != "" && isHeader:
			lines = append(lines, syntax.Fill("http-request set-var(txn.hash) {} {}", header, unset))
		case on.Cookie != "" && isCookie:
			// A missing cookie is set.
			made := syntax.Fill("txn.cookie{}", syntax.Number(i))
			attributes := "; Path=/; HttpOnly"
			if seconds := int(on.CookieTTL.Seconds()); seconds > 0 {
				attributes += "; Max-Age=" + syntax.Number(seconds).String()
			}
			set := syntax.Value(on.Cookie+"=").Then(syntax.Fetched(syntax.Fetch("var(txn.cookie{})", syntax.Count(i))), syntax.Value(attributes))
			content, ok := set.Word()
			if !ok {
				continue
			}
			lines = append(lines,
				syntax.Fill("http-request set-var(txn.hash) {} {}", cookie, unset),
				syntax.Fill("http-request set-var({}) uuid {}", made, unset),
				syntax.Fill("http-request set-var(txn.hash) var({}) {}", made, unset),
				syntax.Fill("http-response add-header set-cookie {} if { var({}) -m found }", content, made))
		case on.SourceIP:
			lines = append(lines, syntax.Fill("http-request set-var(txn.hash) src {}", unset))
		}
	}
	return lines
}
