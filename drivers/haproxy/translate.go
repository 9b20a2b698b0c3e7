package haproxy

import (
	"bytes"
	"embed"
	"fmt"
	"maps"
	"net/netip"
	"regexp"
	"slices"
	"strings"
	texttemplate "text/template"
	"time"

	"github.com/outrigger-mesh/outrigger/drivers/haproxy/syntax"
	"github.com/outrigger-mesh/outrigger/mesh"
	"github.com/outrigger-mesh/outrigger/sidecar/agentspec"
	"github.com/outrigger-mesh/outrigger/sidecar/driver"
	"github.com/outrigger-mesh/outrigger/sidecar/pcre"
	"github.com/outrigger-mesh/outrigger/sidecar/repo"
)

// configFile is the configuration. It reads http.map and tcp.map, which map an address and
// a port to a destination, for HTTP and for other protocols, and hosts.map, which maps a port of a
// gateway and a host to the host's number; listeners.map maps that to the number of its listener. names.txt is for name.lua.
const configFile = "haproxy.cfg"

// collectorFile tells the agent where to send spans.
const collectorFile = "collector.json"

// sources are the template of the configuration, and scripts that it loads: caller.lua reads
// the caller's identity from its certificate, authorization.lua asks the mesh's authorization
// service, mirror.lua sends copies of requests, retry.lua delays retries, session.lua keeps sessions,
// name.lua reads /etc/hosts, path.lua normalizes paths, token.lua reads tokens of users, and pace.lua lets many connections begin
// one after another.
//
//go:embed haproxy.cfg.tmpl *.lua
var sources embed.FS

// liveFiles begins the names of the files with endpoints, which live.lua puts into use.
const liveFiles = "endpoints/"

var configTemplate = texttemplate.Must(syntax.Parse(sources, "haproxy.cfg.tmpl", texttemplate.FuncMap{
	"egressHosts": egressHosts, "host": hosts, "hosts": hostsOf, "within": within, "anyOf": anyOf, "path": limitedPath,
	"section": syntax.Section, "word": word, "when": when, "limit": limitOf, "limitLines": limitLines, "hashLines": hashLines,
	"ambiguousPath": func() (syntax.Text, error) { return word(mesh.AmbiguousPath) }, "abnormalPath": func() (syntax.Text, error) { return word(mesh.AbnormalPath) },
	"plainHost":           func() (syntax.Text, error) { return word("^(?:" + mesh.PlainHost + ")$") },
	"ambiguousDeniedPath": func() (syntax.Text, error) { return word(mesh.AmbiguousDeniedPath) },
	"refusedPath":         func() (syntax.Text, error) { return word(mesh.RefusedPath) }, "identityHeaders": mesh.IdentityHeaders, "framingHeaders": mesh.FramingHeaders,
	"spellings":      func(name string) (syntax.Text, error) { return word("^" + mesh.HeaderSpellings(name) + "$") },
	"otherSpellings": otherSpellings,
	"isHashed":       isHashed, "hashesSource": hashesSource, "share": share,
	"less":         func(n, by uint32) uint32 { return n - min(n, by) },
	"append":       func(texts []syntax.Text, text syntax.Text) []syntax.Text { return append(texts, text) },
	"add":          func(a, b uint32) uint64 { return uint64(a) + uint64(b) },
	"atMost":       func(n uint32) uint32 { return min(n, 1<<30) },
	"isWildcard":   func(host string) bool { return strings.HasPrefix(host, "*.") },
	"list":         func(texts ...syntax.Text) []syntax.Text { return texts },
	"milliseconds": func(d time.Duration) int64 { return min(max(d, time.Millisecond), 20*24*time.Hour).Milliseconds() },
	"ownStatuses": func() []int {
		return []int{400, 401, 403, 404, 405, 407, 408, 410, 413, 421, 422, 425, 429, 500, 501, 502, 503, 504}
	},
	"address":     syntax.Address,
	"translated6": func() syntax.Text { return syntax.Literal(agentspec.TranslatedIPv6) },
}))

// document is the data of the template.
type document struct {
	View *mesh.View
	// RunDir holds the proxy's sockets, which no other process can open.
	RunDir, IdentityDir syntax.Text
	// TrustDomain is the mesh's, MeshNames the suffix of its server names, and Member the
	// expression of the URI in the certificates of all workloads.
	TrustDomain, MeshNames, Member syntax.Text
	// TLS are the options of all mesh TLS, and Curves the key exchanges, if there are settings.
	// ClassicCurves are those without hybrid ones, or all if there are no others.
	TLS, Curves, ClassicCurves syntax.Text

	// Mesh accepts mesh TLS, Ingress the TLS of callers outside the mesh, and Entry every
	// connection if there is more than mesh TLS: it Peeks at the first bytes, and handles
	// plaintext itself.
	Mesh, Ingress, Entry *frontend
	Peeks                bool
	Routes               []route
	Targets              map[syntax.Text]target
	Redirects            map[syntax.Text]redirection
	// HTTPPorts and TCPPorts are those of a gateway.
	HTTPPorts, TCPPorts []gatewayPort
	// TLSPorts are the numbers of those at which TLS ends, and Terminated the values of tcpMap of those
	// without HTTP. The lists are files with their certificates.
	TLSPorts, Terminated []syntax.Text
	lists                []driver.File
	// hosts counts the hosts of HTTPPorts.
	hosts int
	// ByServerName are the values of tcpMap of the destinations with Servers.
	ByServerName []syntax.Text
	// ByPath are the values of httpMap of the destinations whose routes compare paths.
	ByPath []syntax.Text

	httpMap, tcpMap, hostMap, listenerMap strings.Builder
	// names are the lines of the file for name.lua.
	names strings.Builder
}

// Own6 has the pod's IPv6 address, if there is one.
func (d *document) Own6() []netip.Addr {
	return slices.DeleteFunc(slices.Clone(d.View.Proxy.Addresses), netip.Addr.Is4)
}

// Family is the address family that the pod prefers.
func (d *document) Family() syntax.Text {
	if d.prefers6() {
		return syntax.Literal("ipv6")
	}
	return syntax.Literal("ipv4")
}

// prefers6 reports whether the pod has no IPv4 address.
func (d *document) prefers6() bool {
	n := len(d.Own6())
	return n > 0 && n == len(d.View.Proxy.Addresses)
}

// Translate returns haproxy.cfg, its maps and its scripts.
func (Driver) Translate(view *mesh.View) ([]driver.File, error) {
	settings := view.Settings
	domain, ok := syntax.Plain(settings.TrustDomain)
	lower, _ := syntax.Plain(strings.ToLower(settings.TrustDomain))
	member, also := syntax.Word(`\Aspiffe://` + regexp.QuoteMeta(settings.TrustDomain) + `/ns/[^/]+/sa/[^/]+\z`)
	if !ok || !also {
		return nil, fmt.Errorf("haproxy: the trust domain %q is no DNS name", settings.TrustDomain)
	}
	doc := &document{
		View: view, RunDir: syntax.Literal(driver.RunDir), IdentityDir: syntax.Literal(driver.IdentityDir),
		TrustDomain: domain, MeshNames: syntax.Fill(".sa.{}", lower), Member: member,
		TLS: syntax.Join("", option(syntax.Literal("ssl-min-ver TLSv"), settings.TLS.Min), option(syntax.Literal(" ssl-max-ver TLSv"), settings.TLS.Max),
			option(syntax.Literal(" ciphers "), settings.TLS.Ciphers...)),
		Curves: option(syntax.Literal(""), settings.TLS.Curves...),
	}
	classic := slices.DeleteFunc(slices.Clone(settings.TLS.Curves), func(name string) bool { return name == driver.KeyExchangeHybrid })
	if doc.ClassicCurves = option(syntax.Literal(""), classic...); doc.ClassicCurves.IsZero() {
		// HAProxy refuses them, rather than use what nobody has asked for.
		doc.ClassicCurves = doc.Curves
	}
	doc.addInbound()
	doc.addOutbound()
	var config bytes.Buffer
	if err := configTemplate.Execute(&config, doc); err != nil {
		return nil, fmt.Errorf("haproxy: %w", err)
	}
	files := []driver.File{
		{Name: configFile, Content: config.Bytes()},
		{Name: collectorFile, Content: repo.Collector(view)},
		{Name: "http.map", Content: []byte(doc.httpMap.String())},
		{Name: "tcp.map", Content: []byte(doc.tcpMap.String())},
		{Name: "hosts.map", Content: []byte(doc.hostMap.String())},
		{Name: "listeners.map", Content: []byte(doc.listenerMap.String())},
		{Name: "names.txt", Content: []byte(doc.names.String())},
	}
	for _, script := range []string{"caller.lua", "authorization.lua", "mirror.lua", "retry.lua", "live.lua", "session.lua", "name.lua", "path.lua", "pace.lua", "token.lua"} {
		content, _ := sources.ReadFile(script)
		files = append(files, driver.File{Name: script, Content: content})
	}
	files = append(files, tokenFiles(view.Inbound)...)
	files = append(files, doc.lists...)
	byName := func(a, b syntax.Text) int { return strings.Compare(a.String(), b.String()) }
	for _, name := range slices.SortedFunc(maps.Keys(doc.Targets), byName) {
		var endpoints bytes.Buffer
		if t := doc.Targets[name]; t.isLive() {
			if err := configTemplate.ExecuteTemplate(&endpoints, "endpoints", map[string]any{"Target": t, "Zone": view.Proxy.Zone}); err != nil {
				return nil, fmt.Errorf("haproxy: %w", err)
			}
			files = append(files, driver.File{Name: liveFiles + name.String(), Content: endpoints.Bytes()})
		}
	}
	return files, nil
}

// limit is a limit of the requests for a port.
type limit struct {
	Rule  rule
	Limit *mesh.RequestLimit
}

func limitOf(name syntax.Text, port uint16, path mesh.HTTPMatch, data any) limit {
	out := limit{Rule: when(name, syntax.Fill("!limited port-{}", syntax.Number(port)), path)}
	switch l := data.(type) {
	case mesh.RequestLimit:
		out.Limit = &l
	case *mesh.RequestLimit:
		out.Limit = l
	}
	return out
}

// limitedPath returns the match of the requests that the rate limit of a path counts: all
// requests if HAProxy can't express the path.
func limitedPath(expression string) (m mesh.HTTPMatch) {
	if _, ok := syntax.Word(pcre.WholeString(expression)); ok {
		m.Path.Regex = expression
	}
	return m
}

func hostsOf(fetch syntax.Text, names []string) part { return hosts(fetch, names...) }

// word is for texts that are not a user's.
func word(text string) (syntax.Text, error) {
	if t, ok := syntax.Word(text); ok {
		return t, nil
	}
	return syntax.Text{}, fmt.Errorf("%q can't be quoted", text)
}

// otherSpellings returns the expression of the other spellings of a header, or nothing if it
// has none.
func otherSpellings(name string) syntax.Text {
	others := mesh.OtherSpellings(name)
	if others == "" {
		return syntax.Text{}
	}
	t, _ := syntax.Word("^(?:" + others + ")$")
	return t
}

// option returns an option with names, or nothing if there are none or one of them is invalid.
func option(option syntax.Text, names ...string) syntax.Text {
	var all []syntax.Text
	for _, name := range names {
		t, ok := syntax.Plain(name)
		if !ok {
			return syntax.Text{}
		}
		all = append(all, t)
	}
	if len(all) == 0 {
		return syntax.Text{}
	}
	return syntax.Fill("{}{}", option, syntax.Join(":", all...))
}
