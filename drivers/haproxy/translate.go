package haproxy

import (
	"bytes"
	"embed"
	"errors"
	"fmt"
	"maps"
	"net"
	"net/netip"
	"slices"
	"strings"
	texttemplate "text/template"
	"time"

	"github.com/outrigger-mesh/outrigger/mesh"
	"github.com/outrigger-mesh/outrigger/sidecar/agentspec"
	"github.com/outrigger-mesh/outrigger/sidecar/driver"
	"github.com/outrigger-mesh/outrigger/sidecar/pcre"
)

// configFile is the configuration. It reads http.map and tcp.map, which map an address and
// a port to a destination, for HTTP and for other protocols.
const configFile = "haproxy.cfg"

// collectorFile tells the agent where to send spans.
const collectorFile = "collector.json"

// sources are the template of the configuration, and scripts that it loads: caller.lua reads
// the caller's identity from its certificate, authorization.lua asks the mesh's authorization
// service, mirror.lua sends copies of requests, retry.lua delays retries, and session.lua keeps sessions.
//
//go:embed haproxy.cfg.tmpl *.lua
var sources embed.FS

// liveFiles begins the names of the files with endpoints, which live.lua puts into use.
const liveFiles = "endpoints/"

var configTemplate = texttemplate.Must(texttemplate.New("haproxy.cfg.tmpl").Funcs(texttemplate.FuncMap{
	"byName": byName, "egressHosts": egressHosts, "hosts": hosts, "is": is, "isHeader": word.MatchString,
	"path": limitedPath, "prefixes": prefixes, "quote": quote, "replace": strings.ReplaceAll, "sectionName": sectionName, "when": when,
	"ambiguousPath": func() string { return mesh.AmbiguousPath }, "identityHeaders": mesh.IdentityHeaders,
	"spellings": mesh.HeaderSpellings, "otherSpellings": mesh.OtherSpellings,
	"isHashed": isHashed, "hashesSource": hashesSource, "share": share,
	"address":      func(host string, port uint16) string { return net.JoinHostPort(host, fmt.Sprint(port)) },
	"less":         func(n, by uint32) uint32 { return n - min(n, by) },
	"append":       func(texts []string, text string) []string { return append(texts, text) },
	"add":          func(a, b uint32) uint64 { return uint64(a) + uint64(b) },
	"atMost":       func(n uint32) uint32 { return min(n, 1<<30) },
	"isWildcard":   func(host string) bool { return strings.HasPrefix(host, "*.") },
	"list":         func(texts ...string) []string { return texts },
	"milliseconds": func(d time.Duration) int64 { return min(max(d, time.Millisecond), 20*24*time.Hour).Milliseconds() },
	"translated6":  func() string { return agentspec.TranslatedIPv6 },
}).ParseFS(sources, "haproxy.cfg.tmpl"))

// document is the data of the template.
type document struct {
	View *mesh.View
	// RunDir holds the proxy's sockets, which no other process can open.
	RunDir, IdentityDir string
	// MeshNames is the suffix of the mesh's server names, and Member the prefix of the URI
	// in the certificates of all workloads.
	MeshNames, Member string
	// TLS are the options of all mesh TLS, and Curves that of listeners: HAProxy 2.6 has no
	// such option for servers.
	TLS, Curves string

	// Mesh accepts mesh TLS, Ingress the TLS of callers outside the mesh, and Entry every
	// connection if there is more than mesh TLS: it Peeks at the first bytes, and handles
	// plaintext itself.
	Mesh, Ingress, Entry *frontend
	Peeks                bool
	Routes               []rule
	Targets              map[string]target
	Redirects            map[string]redirection
	// ByServerName are the values of tcpMap of the destinations with Servers.
	ByServerName []string

	httpMap, tcpMap strings.Builder
}

// Own6 has the pod's IPv6 address, if there is one.
func (d *document) Own6() []netip.Addr {
	return slices.DeleteFunc(slices.Clone(d.View.Proxy.Addresses), netip.Addr.Is4)
}

// Family is the address family that the pod prefers.
func (d *document) Family() string {
	if n := len(d.Own6()); n > 0 && n == len(d.View.Proxy.Addresses) {
		return "ipv6"
	}
	return "ipv4"
}

// Translate returns haproxy.cfg, its maps and its scripts.
func (Driver) Translate(view *mesh.View) ([]driver.File, error) {
	settings := view.Settings
	if !word.MatchString(settings.TrustDomain) {
		return nil, fmt.Errorf("haproxy: the trust domain %q is no DNS name", settings.TrustDomain)
	}
	doc := &document{
		View: view, RunDir: driver.RunDir, IdentityDir: driver.IdentityDir,
		MeshNames: ".sa." + strings.ToLower(settings.TrustDomain),
		Member:    "spiffe://" + settings.TrustDomain + "/ns/",
		TLS:       option("ssl-min-ver TLSv", settings.TLS.Min) + option(" ssl-max-ver TLSv", settings.TLS.Max) + option(" ciphers ", settings.TLS.Ciphers...),
		Curves:    option(" curves ", settings.TLS.Curves...),
	}
	doc.addInbound()
	doc.addOutbound()
	var config, collector bytes.Buffer
	if err := errors.Join(configTemplate.Execute(&config, doc), configTemplate.ExecuteTemplate(&collector, collectorFile, doc)); err != nil {
		return nil, fmt.Errorf("haproxy: %w", err)
	}
	files := []driver.File{
		{Name: configFile, Content: config.Bytes()},
		{Name: collectorFile, Content: collector.Bytes()},
		{Name: "http.map", Content: []byte(doc.httpMap.String())},
		{Name: "tcp.map", Content: []byte(doc.tcpMap.String())},
	}
	for _, script := range []string{"caller.lua", "authorization.lua", "mirror.lua", "retry.lua", "live.lua", "session.lua"} {
		content, _ := sources.ReadFile(script)
		files = append(files, driver.File{Name: script, Content: content})
	}
	for _, name := range slices.Sorted(maps.Keys(doc.Targets)) {
		var endpoints bytes.Buffer
		if t := doc.Targets[name]; t.isLive() {
			if err := configTemplate.ExecuteTemplate(&endpoints, "endpoints", map[string]any{"Target": t, "Zone": view.Proxy.Zone}); err != nil {
				return nil, fmt.Errorf("haproxy: %w", err)
			}
			files = append(files, driver.File{Name: liveFiles + name, Content: endpoints.Bytes()})
		}
	}
	return files, nil
}

// limitedPath returns the match of the requests that the rate limit of a path counts: all
// requests if HAProxy can't express the path.
func limitedPath(expression string) (m mesh.HTTPMatch) {
	if quote(pcre.WholeString(expression)) != "" {
		m.Path.Regex = expression
	}
	return m
}

// sectionName returns the name of a part with the characters that a section can have.
func sectionName(name string) string { return noWord.ReplaceAllString(name, ":") }

// option returns an option with names, or "" if there are none or one of them is invalid.
func option(option string, names ...string) string {
	if joined := strings.Join(names, ":"); !noWord.MatchString(strings.ReplaceAll(joined, ":", "")) && joined != "" {
		return option + joined
	}
	return ""
}
