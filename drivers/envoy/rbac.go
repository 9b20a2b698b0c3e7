package envoy

import (
	"fmt"
	"net/netip"
	"regexp"
	"strconv"
	"strings"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	listenerv3 "github.com/envoyproxy/go-control-plane/envoy/config/listener/v3"
	rbacv3 "github.com/envoyproxy/go-control-plane/envoy/config/rbac/v3"
	routev3 "github.com/envoyproxy/go-control-plane/envoy/config/route/v3"
	httprbacv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/rbac/v3"
	hcmv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/http_connection_manager/v3"
	networkrbacv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/rbac/v3"
	matcherv3 "github.com/envoyproxy/go-control-plane/envoy/type/matcher/v3"
	"google.golang.org/protobuf/types/known/anypb"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/outrigger-mesh/outrigger/mesh"
)

// The names are also those of the metadata in which the filters leave the result of an audit.
const (
	rbacFilter        = "envoy.filters.http.rbac"
	networkRBACFilter = "envoy.filters.network.rbac"
	denialsFilter     = "outrigger.denials"
)

// denyAll applies to routes without configuration of their own: an allow list without
// entries. Without rules Envoy would allow everything.
var denyAll = httpFilterOf(rbacFilter, &httprbacv3.RBAC{Rules: allow(nil)})

// denials refuses nothing, except on routes with denials of their own.
var denials = func() *hcmv3.HttpFilter {
	f := httpFilterOf(denialsFilter, &httprbacv3.RBAC{})
	f.Disabled = true
	return f
}()

// policies are allow policies by the name of their rule. A request is allowed if any of
// them matches. Nil ones stay empty.
type policies map[string]*rbacv3.Policy

// audited returns policies to which the audited rules are added, or nil if there is no audit.
func audited(a mesh.Access) policies {
	if a.Audit {
		return policies{}
	}
	return nil
}

// add adds a policy unless it has no principals or no permissions: Envoy would take an
// empty list for everybody or everything, or reject it.
func (p policies) add(name string, principals []*rbacv3.Principal, permissions []*rbacv3.Permission) {
	if p == nil || len(principals) == 0 || len(permissions) == 0 {
		return
	}
	key := name
	for i := 2; p[key] != nil; i++ {
		key = name + "#" + strconv.Itoa(i)
	}
	p[key] = &rbacv3.Policy{Principals: principals, Permissions: permissions}
}

// addAccess adds the permissions of mesh peers.
func (p policies) addAccess(a mesh.Access, trustDomain string) {
	if a.Anyone {
		p.add("anyone", []*rbacv3.Principal{member(trustDomain)}, anyPermission)
		return
	}
	for _, rule := range a.Rules {
		if len(rule.Sources) > 0 {
			who := []*rbacv3.Principal{peers(rule.Sources, trustDomain)}
			if len(rule.Except) > 0 {
				who = []*rbacv3.Principal{allOf(append(who, notOf(anyOf(identities(rule.Except)))))}
			}
			p.add(rule.Origin.Name(), who, permissions(rule.Requests))
		}
	}
}

// addDenials adds what the denials refuse.
func (p policies) addDenials(denials []mesh.Denial, trustDomain string) {
	for _, d := range denials {
		who := anyPrincipal
		if !d.Everyone {
			who = identities(d.Sources)
		}
		if len(d.Except) > 0 && len(who) > 0 {
			who = []*rbacv3.Principal{allOf([]*rbacv3.Principal{anyOf(who), notOf(peers(d.Except, trustDomain))})}
		}
		p.add(d.Origin.Name(), who, each(d.Requests, denial))
	}
}

func notOf(id *rbacv3.Principal) *rbacv3.Principal {
	return &rbacv3.Principal{Identifier: &rbacv3.Principal_NotId{NotId: id}}
}

// addCallers adds the permissions of mesh peers to open connections.
func (p policies) addCallers(a mesh.Access) {
	for _, rule := range a.Rules {
		if len(rule.Sources) > 0 && matchesAny(rule.Requests) {
			p.add(rule.Origin.Name(), []*rbacv3.Principal{anyOf(identities(rule.Sources))}, anyPermission)
		}
	}
}

// addRanges adds the permission to open connections from the addresses.
func (p policies) addRanges(ranges []netip.Prefix) {
	if len(ranges) > 0 {
		p.add("ingress", []*rbacv3.Principal{within(ranges)}, anyPermission)
	}
}

// perRoute returns the policies as per-route configuration. The shadow policies, unless they
// are nil, are evaluated without being enforced.
func (p policies) perRoute(shadow policies) *anypb.Any {
	rules := &httprbacv3.RBAC{Rules: allow(p)}
	if shadow != nil {
		rules.ShadowRules = allow(shadow)
	}
	return pack(&httprbacv3.RBACPerRoute{Rbac: rules})
}

// refused returns the policies as per-route configuration of what is refused.
func (p policies) refused() *anypb.Any {
	return pack(&httprbacv3.RBACPerRoute{Rbac: &httprbacv3.RBAC{Rules: &rbacv3.RBAC{Action: rbacv3.RBAC_DENY, Policies: p}}})
}

// auditConnections returns a filter that evaluates the policies without enforcing them, once
// the client has sent something or ends the connection. It returns none for nil policies.
func auditConnections(name string, shadow policies) []*listenerv3.Filter {
	if shadow == nil {
		return nil
	}
	return []*listenerv3.Filter{filter(networkRBACFilter, &networkrbacv3.RBAC{StatPrefix: name, ShadowRules: allow(shadow)})}
}

func allow(p policies) *rbacv3.RBAC {
	return &rbacv3.RBAC{Action: rbacv3.RBAC_ALLOW, Policies: p}
}

var (
	anyPermission = []*rbacv3.Permission{{Rule: &rbacv3.Permission_Any{Any: true}}}
	anyPrincipal  = []*rbacv3.Principal{{Identifier: &rbacv3.Principal_Any{Any: true}}}
)

// member matches every caller with a certificate of the mesh.
func member(trustDomain string) *rbacv3.Principal {
	return allOf([]*rbacv3.Principal{authenticated(startingWith(memberPrefix(trustDomain))), oneURI(trustDomain)})
}

// peers matches members with one of the identities, of which there must be at least
// one.
func peers(ids []mesh.Identity, trustDomain string) *rbacv3.Principal {
	return allOf([]*rbacv3.Principal{anyOf(identities(ids)), oneURI(trustDomain)})
}

// oneURI matches callers whose certificate has a single URI, which is a workload's and no longer one.
// Envoy's own check would accept one of several URIs, or a DNS name if there is no URI.
// The header, which the client cannot set, lists all of them.
func oneURI(trustDomain string) *rbacv3.Principal {
	text := `(?:By=[^;]*;)*Hash=[0-9a-f]*;URI=` + regexp.QuoteMeta(memberPrefix(trustDomain)) + `[\w.:-]+/sa/[\w.:-]+`
	return &rbacv3.Principal{Identifier: &rbacv3.Principal_Header{
		Header: requestMatch(clientCertHeader, regex(expression(text))),
	}}
}

// memberPrefix is the prefix of the SPIFFE IDs of all workloads.
func memberPrefix(trustDomain string) string { return "spiffe://" + trustDomain + "/ns/" }

func identities(ids []mesh.Identity) []*rbacv3.Principal {
	return each(ids, func(id mesh.Identity) *rbacv3.Principal {
		if prefix, ok := id.GroupPrefix(); ok {
			return authenticated(startingWith(prefix))
		}
		return authenticated(exact(id.String()))
	})
}

// authenticated matches the URI of the verified certificate.
func authenticated(name *matcherv3.StringMatcher) *rbacv3.Principal {
	return &rbacv3.Principal{Identifier: &rbacv3.Principal_Authenticated_{
		Authenticated: &rbacv3.Principal_Authenticated{PrincipalName: name},
	}}
}

// within matches the source address of the connection itself, regardless of headers.
func within(ranges []netip.Prefix) *rbacv3.Principal {
	return anyOf(each(ranges, func(r netip.Prefix) *rbacv3.Principal {
		return &rbacv3.Principal{Identifier: &rbacv3.Principal_DirectRemoteIp{DirectRemoteIp: cidr(r)}}
	}))
}

// anyOf matches if one of the principals does. There must be at least one.
func anyOf(ids []*rbacv3.Principal) *rbacv3.Principal {
	if len(ids) == 1 {
		return ids[0]
	}
	return &rbacv3.Principal{Identifier: &rbacv3.Principal_OrIds{OrIds: &rbacv3.Principal_Set{Ids: ids}}}
}

func allOf(ids []*rbacv3.Principal) *rbacv3.Principal {
	if len(ids) == 1 {
		return ids[0]
	}
	return &rbacv3.Principal{Identifier: &rbacv3.Principal_AndIds{AndIds: &rbacv3.Principal_Set{Ids: ids}}}
}

// permissions returns a permission for each condition. Without conditions nothing is
// allowed.
func permissions(requests []mesh.HTTPMatch) []*rbacv3.Permission {
	return each(requests, permission)
}

// permission matches the same requests as match, except for paths and queries that the
// application could read differently from Envoy.
func permission(m mesh.HTTPMatch) *rbacv3.Permission {
	if !canMatch(m) {
		return not(anyPermission[0])
	}
	var all []*rbacv3.Permission
	switch prefix := strings.TrimRight(m.Path.Prefix, "/"); {
	case m.Path.Exact != "":
		all = append(all, urlPath(exact(m.Path.Exact)))
	case m.Path.Regex != "":
		all = append(all, urlPath(regex(expression(m.Path.Regex))), not(ambiguousPath))
	case prefix != "":
		all = append(all, either(urlPath(exact(prefix)), urlPath(startingWith(prefix+"/"))), not(ambiguousPath))
	}
	if len(m.Methods) > 0 {
		all = append(all, header(methodMatch(m.Methods)))
	}
	for _, h := range m.Headers {
		all = append(all, header(headerMatch(h)))
	}
	for _, q := range m.Query {
		all = append(all, query(q)...)
	}
	if m.Token != nil {
		all = append(all, verified(m.Token))
	}
	switch len(all) {
	case 0:
		return anyPermission[0]
	case 1:
		return all[0]
	}
	return &rbacv3.Permission{Rule: &rbacv3.Permission_AndRules{AndRules: &rbacv3.Permission_Set{Rules: all}}}
}

// denial matches what the condition denies, also where the application could read the request
// differently from Envoy. A part that Envoy cannot express matches everything.
func denial(m mesh.HTTPMatch) *rbacv3.Permission {
	all := []*rbacv3.Permission{anyPermission[0]}
	if path := m.Path; path != (mesh.StringMatch{}) {
		whole := mesh.HTTPMatch{Path: path}
		switch prefix := strings.TrimRight(path.Prefix, "/"); {
		case !canMatch(whole):
		case path.Exact != "":
			all = append(all, either(urlPath(exact(path.Exact)), ambiguousDeniedPath))
		case path.Regex != "":
			all = append(all, either(urlPath(regex(expression(path.Regex))), ambiguousDeniedPath))
		case prefix != "":
			all = append(all, either(urlPath(exact(prefix)), urlPath(startingWith(prefix+"/")), ambiguousDeniedPath))
		}
	}
	if methods := tokens(m.Methods); len(methods) > 0 && len(methods) == len(m.Methods) {
		all = append(all, header(methodMatch(m.Methods)))
	}
	for _, h := range m.Headers {
		if !isToken(h.Name) {
			continue
		}
		all = append(all, header(headerMatch(mesh.KeyMatch{Name: h.Name, StringMatch: mesh.StringMatch{Present: true}})))
		if pattern, ok := mesh.DeniedValue(h.StringMatch); ok && !h.Present && h.StringMatch != (mesh.StringMatch{}) {
			if denied, ok := expressionOf(pattern); ok {
				// No expression matches invalid UTF-8.
				matches := func(pattern expression) *rbacv3.Permission {
					return header(headerMatch(mesh.KeyMatch{Name: h.Name, StringMatch: mesh.StringMatch{Regex: string(pattern)}}))
				}
				all = append(all, either(matches(denied), not(matches(`[\x00-\x7f]*`))))
			}
		}
	}
	for _, q := range m.Query {
		// An expression that cannot be translated holds for every value of the parameter, not without it.
		if m := (mesh.KeyMatch{Name: q.Name, StringMatch: mesh.StringMatch{Exact: q.Exact, Prefix: q.Prefix}}); canMatch(mesh.HTTPMatch{Query: []mesh.KeyMatch{m}}) {
			all = append(all, deniedQuery(q))
		}
	}
	if m.Token != nil {
		all = append(all, deniedToken(m.Token))
	}
	return &rbacv3.Permission{Rule: &rbacv3.Permission_AndRules{AndRules: &rbacv3.Permission_Set{Rules: all}}}
}

// deniedQuery matches requests that have the parameter with the value, or an ambiguous query. The
// parameter is enough for a regular expression that cannot be translated.
func deniedQuery(q mesh.KeyMatch) *rbacv3.Permission {
	value := `(?:=[^&]*)?`
	switch {
	case q.Exact != "":
		value = "=" + queryText(q.Exact)
	case q.Prefix != "":
		value = "=" + queryText(q.Prefix) + "[^&]*"
	case q.Regex != "":
		if escaped, empty, ok := escapedRegex(q.Regex); ok {
			// What is not ASCII is denied as well.
			if value = "=(?:" + escaped + `|[^&]*%[89A-Fa-f][^&]*)`; empty {
				value = "(?:" + value + ")?"
			}
		}
	}
	target := func(pattern string) *rbacv3.Permission {
		return header(requestMatch(":path", regex(expression(`[^?]*\?`+pattern))))
	}
	return either(target(`(?:.*&)?`+regexp.QuoteMeta(q.Name)+value+`(?:&.*)?`), target(mesh.AmbiguousQuery(q.Name)))
}

// ambiguousPath matches paths that some applications read as another one, after Envoy's
// own normalization.
var ambiguousPath, ambiguousDeniedPath = urlPath(regex(`.*(?:` + mesh.AmbiguousPath + `).*`)), urlPath(regex(`.*(?:` + mesh.AmbiguousDeniedPath + `).*`))

// query matches requests that have the parameter exactly once, in an unambiguous query. It matches
// nothing for a regular expression that cannot be translated.
func query(q mesh.KeyMatch) []*rbacv3.Permission {
	const before, other = `[^?]*\?(?:`, `[^&=;%+#]*(?:=[^&;#]*)?`
	name := regexp.QuoteMeta(q.Name)
	value := `(?:=[^&;#]*)?`
	switch {
	case strings.ContainsAny(q.Name, "&=;%+#"):
		return []*rbacv3.Permission{not(anyPermission[0])}
	case q.Exact != "":
		value = "=" + queryText(q.Exact)
	case q.Prefix != "":
		value = "=" + queryText(q.Prefix) + "(?:[^&;%#]|%[0-9A-Fa-f]{2})*"
	case q.Regex != "":
		escaped, empty, ok := escapedRegex(q.Regex)
		if !ok {
			return []*rbacv3.Permission{not(anyPermission[0])}
		}
		if value = "=" + escaped; empty {
			value = "(?:" + value + ")?"
		}
	}
	target := func(pattern string) *rbacv3.Permission {
		return header(requestMatch(":path", regex(expression(pattern))))
	}
	return []*rbacv3.Permission{
		target(before + other + `&)*` + name + value + `(?:&` + other + `)*`),
		not(target(before + `[^#]*&)?` + name + `(?:=[^&#]*)?&(?:[^#]*&)?` + name + `(?:[=&#].*)?`)),
	}
}

// queryText matches the text in a query, where each byte may be escaped.
func queryText(text string) string {
	var out strings.Builder
	for _, c := range []byte(text) {
		fmt.Fprintf(&out, "(?:(?i:%%%02x)", c)
		switch {
		case c == ' ':
			out.WriteString(`|\+`)
		case c < 0x80 && !strings.ContainsRune("&;%+#", rune(c)):
			out.WriteString("|" + regexp.QuoteMeta(string(rune(c))))
		}
		out.WriteByte(')')
	}
	return out.String()
}

func urlPath(m *matcherv3.StringMatcher) *rbacv3.Permission {
	return &rbacv3.Permission{Rule: &rbacv3.Permission_UrlPath{
		UrlPath: &matcherv3.PathMatcher{Rule: &matcherv3.PathMatcher_Path{Path: m}},
	}}
}

func header(m *routev3.HeaderMatcher) *rbacv3.Permission {
	return &rbacv3.Permission{Rule: &rbacv3.Permission_Header{Header: m}}
}

func not(p *rbacv3.Permission) *rbacv3.Permission {
	return &rbacv3.Permission{Rule: &rbacv3.Permission_NotRule{NotRule: p}}
}

func either(rules ...*rbacv3.Permission) *rbacv3.Permission {
	return &rbacv3.Permission{Rule: &rbacv3.Permission_OrRules{OrRules: &rbacv3.Permission_Set{Rules: rules}}}
}

func exact(s string) *matcherv3.StringMatcher {
	return &matcherv3.StringMatcher{MatchPattern: &matcherv3.StringMatcher_Exact{Exact: s}}
}

func startingWith(s string) *matcherv3.StringMatcher {
	return &matcherv3.StringMatcher{MatchPattern: &matcherv3.StringMatcher_Prefix{Prefix: s}}
}

func cidrs(ranges []netip.Prefix) []*corev3.CidrRange { return each(ranges, cidr) }

func cidr(p netip.Prefix) *corev3.CidrRange {
	if !p.IsValid() {
		// No connection comes from or goes to this address.
		p = netip.PrefixFrom(netip.IPv4Unspecified(), 32)
	}
	return &corev3.CidrRange{AddressPrefix: p.Addr().String(), PrefixLen: wrapperspb.UInt32(uint32(p.Bits()))}
}
